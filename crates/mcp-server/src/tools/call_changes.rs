//! `call_changes`: returns the changes of a job in its git worktree.

use std::path::PathBuf;

use calls::{Changes, FileSelection};
use render::text::truncate;
use rmcp::model::{CallToolResponse, Tool};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::definition::{Effect, ToolRequest, define_tool};
use crate::rejection::ToolRejection;
use crate::{hints, job_ids, results};

pub(super) const NAME: &str = "call_changes";
const DESCRIPTION: &str = "Get the files that a job changed in the git worktree of its directory, with the patch. Use it to review the work of an \
    agent. A running job returns its changes so far. Edits from before the call are not part of it, and neither are ignored files.";
pub(super) const HOWTO: &str = "Examples:\n- {\"job_id\": \"01a1dde2\"}\n- {\"job_id\": \"01a1dde2\", \"paths\": [\"src\"]}\n\
    - {\"job_id\": \"01a1dde2\", \"max_chars\": 0} for the list of files alone\n\
    A patch over max_chars is cut: select paths, or read patch_file. A job outside of a git repository, a read-only job and one whose \
    snapshot failed have no changes.";

/// The default limit on the characters of a patch.
const MAX_CHARS: u32 = 50_000;

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct ChangesParameters {
    /// The `job_id` of a call, or a unique prefix of it.
    job_id: String,
    /// Only these files, and the files below these directories. Relative to the root of the worktree, as in the list.
    paths: Option<Vec<String>>,
    /// Maximum number of characters of the patch. Default: 50000.
    #[schemars(range(min = 0, max = 1_000_000))]
    max_chars: Option<u32>,
}

/// The changes of a job.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ChangesResult {
    /// The job.
    job_id: String,
    /// The changes.
    changes: Changes,
    /// The patch in the format of git; invalid UTF-8 is replaced by U+FFFD.
    patch: String,
    /// The number of characters missing at the end of the patch.
    left_out_chars: u64,
}

pub(super) fn tool() -> Tool {
    define_tool::<ChangesParameters, ChangesResult>(
        NAME,
        "Get a job's changes",
        DESCRIPTION,
        Effect::ReadOnly,
    )
}

pub(super) async fn call(mut request: ToolRequest<'_>) -> Result<CallToolResponse, ToolRejection> {
    let ChangesParameters { job_id, paths, max_chars } = request.parse_arguments()?;
    let client = request.client;
    let service = &client.service;
    let job = job_ids::find(service, &job_id).await?.id;
    let paths = paths.unwrap_or_default().into_iter().map(PathBuf::from).collect();
    let selection = FileSelection { paths, base: None };
    let change_set = service.change_set(job, selection.clone()).await?;
    let patch = service.patch(job, selection).await?;
    let text = String::from_utf8_lossy(&patch);
    let limit = usize::try_from(max_chars.unwrap_or(MAX_CHARS)).unwrap_or(usize::MAX);
    let (patch, left_out) = truncate(&text, limit);
    let mut changes = Changes::from(&change_set);
    // The state of the checkout is not part of the record.
    changes.checkout = client.service.answer(job).await?.changes.and_then(|changes| changes.checkout);
    changes.patch_file = Some(service.patch_file(job).to_string_lossy().into_owned());
    let result = ChangesResult {
        job_id: job.to_string(),
        patch: patch.to_owned(),
        left_out_chars: left_out as u64,
        changes,
    };
    let gap = if left_out == 0 { String::new() } else { format!("\n[{left_out} characters left out]") };
    let checkout = result.changes.checkout.as_ref();
    let note = checkout.and_then(|checkout| hints::checkout_note(checkout, client.can_apply()));
    let note = note.map(|note| format!("\n{note}")).unwrap_or_default();
    let text =
        format!("job {job} {}{note}\n\n{}{gap}", results::describe_changes(&result.changes), result.patch);
    Ok(results::tool_result(&result, text).into())
}
