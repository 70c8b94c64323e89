//! `call_apply`: merges the changes of a job in a private checkout into the worktree of the user.

use std::path::PathBuf;

use calls::{
    Applied, ApplyRequest, CallError, ChangesState, ClosedJobs, FileSelection, GroupError, JobService,
    RestoreAction, RestoredFile,
};
use model::exact_path::show_path;
use model::{GroupRole, Job, JobId};
use render::text::format_count;
use rmcp::model::{CallToolResponse, Tool};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::definition::{Effect, ToolRequest, define_tool};
use crate::context::ClientContext;
use crate::rejection::ToolRejection;
use crate::{job_ids, results};

pub(super) const NAME: &str = "call_apply";
const DESCRIPTION: &str = "Merge the changes that a job made in a private checkout (`worktree: true`) into the git worktree of the user, \
    three-way with the edits there. Review them with call_changes first. If any file conflicts, no file is changed and the error lists the \
    conflicts. After all changes are applied, the checkout and its branch are removed. Nothing is committed or staged. With `discard_others`, the other solutions of a \
    call_many are dropped then.";
pub(super) const HOWTO: &str = "Examples:\n- {\"job_id\": \"01a1dde2\", \"dry_run\": true}\n- {\"job_id\": \"01a1dde2\"}\n\
    - {\"job_id\": \"01a1dde2\", \"paths\": [\"src\"]}; the other changes stay open\n\
    - {\"job_id\": \"01a1dde2\", \"discard_others\": true} for the best contender of a call_many\n\
    A job that resumed the session continues the changes: apply the last one. `_meta` of an error contains `switchboard/error` with \
    `conflicts`, a list of {path, reason}. An agent inside of a call cannot use this tool.";

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct ApplyParameters {
    /// The `job_id` of a call, or a unique prefix of it.
    job_id: String,
    /// Only these files, and the files below these directories. Relative to the root of the worktree, as in the list of `call_changes`. The other changes stay open.
    paths: Option<Vec<String>>,
    /// Write conflicts in the same lines into the files, between conflict markers. Default: any conflict means that no file is changed.
    #[serde(default)]
    conflicts: bool,
    /// Change nothing, and return the result that the merge would have.
    #[serde(default)]
    dry_run: bool,
    /// For a contender of a `call_many`: once all of its changes are applied without a conflict, stop the unfinished jobs of its group and discard the changes of the other contenders.
    #[serde(default)]
    discard_others: bool,
}

/// The result of applying changes.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ApplyResult {
    /// The job.
    job_id: String,
    /// The worktree of the user, to which the paths are relative.
    worktree: String,
    /// State of the changes now: `applied`, or `open` if some of them are left.
    state: ChangesState,
    /// The files, sorted by path. A renamed file is listed with both paths.
    files: Vec<AppliedFile>,
    /// The other contenders whose changes were discarded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    discarded: Vec<String>,
    /// Explanation of the new state.
    message: String,
}

/// A file of the changes.
#[derive(Debug, Serialize, JsonSchema)]
struct AppliedFile {
    /// Its path.
    path: String,
    /// `applied`: written as the job left it; `deleted`; `merged`: with the edits of the user; `conflicted`: written with conflict markers; `already_applied`: it was in this state; `not_applied`: left as it is.
    action: String,
    /// The reason why it was left as it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl From<&RestoredFile> for AppliedFile {
    fn from(file: &RestoredFile) -> Self {
        Self {
            path: show_path(&file.path),
            action: file.what.as_str().replace("restored", "applied"),
            reason: file.reason.as_ref().map(ToString::to_string),
        }
    }
}

pub(super) fn tool() -> Tool {
    define_tool::<ApplyParameters, ApplyResult>(NAME, "Apply a job's changes", DESCRIPTION, Effect::Changes)
}

pub(super) async fn call(mut request: ToolRequest<'_>) -> Result<CallToolResponse, ToolRejection> {
    let ApplyParameters { job_id, paths, conflicts, dry_run, discard_others } = request.parse_arguments()?;
    check_permission(request.client, NAME)?;
    let service = &request.client.service;
    let job = job_ids::find(service, &job_id).await?;
    if discard_others {
        // Before anything is applied.
        check_contender(&job)?;
    }
    let job = job.id;
    if discard_others && !dry_run && service.are_changes_applied(job).await? {
        return finish_keep(service, job).await;
    }
    let paths: Vec<PathBuf> = paths.unwrap_or_default().into_iter().map(PathBuf::from).collect();
    let is_partial = !paths.is_empty();
    let files = FileSelection { paths, base: None };
    let applied = service
        .apply(job, ApplyRequest { files, markers: conflicts, dry_run, ..ApplyRequest::default() })
        .await?;
    tracing::info!(%job, dry_run, "applied changes over MCP");
    let mut result = ApplyResult {
        job_id: job.to_string(),
        worktree: show_path(&applied.worktree),
        state: applied.state,
        files: applied.restored.files.iter().map(AppliedFile::from).collect(),
        discarded: Vec::new(),
        message: describe(&applied, dry_run, is_partial),
    };
    let mut is_error = None;
    if discard_others {
        let added = match drop_others(service, job, &applied).await {
            Ok(dropped) => {
                result.discarded = dropped.discarded.iter().map(ToString::to_string).collect();
                describe_dropped(&dropped)
            }
            Err(message) => {
                is_error = Some(true);
                message
            }
        };
        result.message = format!("{}; {added}", result.message);
    }
    let text = text(&result, job);
    let mut result = results::tool_result(&result, text);
    result.is_error = is_error.or(result.is_error);
    Ok(result.into())
}

/// Discards the other contenders of a job whose changes an earlier request has applied.
async fn finish_keep(service: &JobService, job: JobId) -> Result<CallToolResponse, ToolRejection> {
    let dropped = service.discard_other_contenders(job).await?;
    let changes = service.answer(job).await?.changes;
    let result = ApplyResult {
        job_id: job.to_string(),
        worktree: changes
            .and_then(|changes| changes.checkout)
            .map(|checkout| checkout.source)
            .unwrap_or_default(),
        state: ChangesState::Applied,
        files: Vec::new(),
        discarded: dropped.discarded.iter().map(ToString::to_string).collect(),
        message: format!("the changes were already applied; {}", describe_dropped(&dropped)),
    };
    let text = text(&result, job);
    Ok(results::tool_result(&result, text).into())
}

/// Rejects an agent inside of a run: the tool writes outside of its sandbox, and the job can be one that it could not have placed.
pub(super) fn check_permission(client: &ClientContext, tool: &str) -> Result<(), ToolRejection> {
    if client.can_apply() {
        return Ok(());
    }
    Err(ToolRejection::new(
        format!("{tool} is not available to an agent inside of a call"),
        "name the job in your answer: your caller or the user applies or discards its changes",
    ))
}

/// Rejects a job without other contenders.
fn check_contender(job: &Job) -> Result<(), ToolRejection> {
    let role = job.order.call.group.as_ref().map(|group| group.role(job.id));
    let error = match role {
        Some(Some(GroupRole::Contender(_))) => return Ok(()),
        Some(_) => GroupError::NotAContender { job: job.id },
        None => GroupError::NotGrouped { job: job.id },
    };
    Err(ToolRejection::from(CallError::from(error)).with_field("discard_others"))
}

/// Discards the other contenders of a job whose changes are applied without a conflict, and returns those with changes. The error is a
/// message: the changes of the job are applied nevertheless.
async fn drop_others(service: &JobService, job: JobId, applied: &Applied) -> Result<ClosedJobs, String> {
    let has_conflicts = applied.restored.files.iter().any(|file| file.what == RestoreAction::Conflicted);
    if applied.state != ChangesState::Applied || has_conflicts {
        return Ok(ClosedJobs::default());
    }
    let dropped = service.discard_other_contenders(job).await.map_err(|error| {
        let next = "stop the others with call_cancel, and drop their changes with call_discard";
        format!("not all other contenders are discarded: {next}\n{}", ToolRejection::from(error).text())
    })?;
    tracing::info!(%job, ?dropped, "discarded the other contenders over MCP");
    Ok(dropped)
}

fn describe_dropped(dropped: &ClosedJobs) -> String {
    let count = |jobs: &[JobId]| u32::try_from(jobs.len()).unwrap_or(u32::MAX);
    let discarded = match count(&dropped.discarded) {
        0 => "no changes of other contenders are discarded".to_owned(),
        count => {
            let others = format_count(count, "other contender", "other contenders");
            format!("the changes of {others} are discarded")
        }
    };
    match count(&dropped.cancelled) {
        0 => discarded,
        count => format!("{discarded}, and {} cancelled", format_count(count, "job is", "jobs are")),
    }
}

/// Describes the outcome in a sentence.
fn describe(applied: &Applied, dry_run: bool, is_partial: bool) -> String {
    let count = |action: RestoreAction| {
        let files = applied.restored.files.iter().filter(|file| file.what == action);
        u32::try_from(files.count()).unwrap_or(u32::MAX)
    };
    let worktree = show_path(&applied.worktree);
    let mut parts = vec![match applied.state {
        ChangesState::Applied => {
            format!("the changes are applied to `{worktree}`, and the private checkout is removed")
        }
        _ if dry_run => format!("nothing was written to `{worktree}`"),
        _ if is_partial => {
            format!("the selected files are applied to `{worktree}`; the other changes stay open")
        }
        _ => format!("the changes are applied to `{worktree}`, except for some files"),
    }];
    let conflicted = count(RestoreAction::Conflicted);
    if conflicted > 0 {
        let (one, many) =
            if dry_run { ("file would have", "files would have") } else { ("file has", "files have") };
        parts.push(format!("{} conflict markers", format_count(conflicted, one, many)));
    }
    let left = count(RestoreAction::NotRestored);
    if left > 0 {
        parts.push(format!(
            "{} left out and only in the private checkout, which stays",
            format_count(left, "file is", "files are")
        ));
    }
    parts.join("; ")
}

fn text(result: &ApplyResult, job: JobId) -> String {
    let mut lines = vec![format!("{} (job {job})", result.message)];
    lines.extend(result.files.iter().map(|file| {
        let reason = file.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        format!("{} {}{reason}", file.action, file.path)
    }));
    lines.join("\n")
}
