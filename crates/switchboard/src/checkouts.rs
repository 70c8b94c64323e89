//! The changes in private checkouts: `apply`, `discard` and `jobs --open-changes`.

use std::process::ExitCode;

use calls::{Answer, Changes};
use model::{ApplyTarget, GroupId};
use protocol::{
    ApplyReply, ConflictEntry, DaemonConnector, DaemonRequest, OpenChangesEntry, RequestError, RestoredEntry,
};
use render::text::{format_bytes, format_count, strip_control, unique_prefix_length};

use crate::changes::{describe, print_restored, select, short_id};
use crate::client::{self, JobReply};
use crate::exit_status::ExitStatus;
use crate::failure::{CommandError, CommandFailure};
use crate::groups::{self, has_open_changes};
use crate::{cli, output, style};

/// Applies the changes of a job to the worktree of the user.
pub fn apply(args: &cli::ApplyChanges) -> Result<ExitCode, CommandFailure> {
    let cli::ApplyChanges { id, paths, conflicts: markers, index, commit, dry_run, json } = args;
    let target = match (index, commit) {
        (true, _) => ApplyTarget::Index,
        (_, true) => ApplyTarget::Commit,
        (false, false) => ApplyTarget::Worktree,
    };
    let (job, files) = (id.clone(), select(paths));
    let request = DaemonRequest::Apply { job, target, markers: *markers, dry_run: *dry_run, files };
    let mut connector = client::connector()?;
    // Idempotent without markers and commit: a repeated request would merge or commit again.
    let reply = if *markers || *commit {
        protocol::request_once(&mut connector, &request)?
    } else {
        protocol::request(&mut connector, &request)?
    };
    let JobReply::Applied(applied) = reply else { return Err(RequestError::UnexpectedReply.into()) };
    if *json {
        output::line(&serde_json::to_string(&applied)?);
    } else {
        print_restored(&applied.files, *dry_run);
        for ConflictEntry { path, reason } in &applied.conflicts {
            output::line(&format!("conflict: {path}: {reason}"));
        }
        if !applied.conflicts.is_empty() {
            let job = short_id(&applied.job_id);
            return Err(
                ConflictsError { job, files: applied.conflicts.len(), can_mark: applied.can_mark }.into()
            );
        }
        print_next_step(args, &applied);
    }
    let is_incomplete = !applied.conflicts.is_empty()
        || ["conflicted", "not_applied"].iter().any(|action| count(&applied.files, action) > 0);
    Ok(if is_incomplete { ExitStatus::Failed.into() } else { ExitCode::SUCCESS })
}

fn count(files: &[RestoredEntry], action: &str) -> usize {
    files.iter().filter(|file| file.action == action).count()
}

fn count_files(files: usize) -> String {
    format_count(u32::try_from(files).unwrap_or(u32::MAX), "file", "files")
}

/// Prints the state of the changes and the command for the next step.
fn print_next_step(args: &cli::ApplyChanges, applied: &ApplyReply) {
    if args.dry_run {
        return output::aside("nothing was changed; omit `--dry-run` to apply the changes");
    }
    let job = short_id(&applied.job_id);
    if let Some(commit) = &applied.commit {
        output::aside(&format!("commit: {}", commit.get(..12).unwrap_or(commit)));
    }
    let (conflicted, left) = (count(&applied.files, "conflicted"), count(&applied.files, "not_applied"));
    if conflicted > 0 {
        let files = count_files(conflicted);
        output::aside(&format!("resolve the conflicts in {files}, between `<<<<<<<` and `>>>>>>>`"));
    }
    output::aside(&if applied.state == "applied" && conflicted > 0 {
        "the private checkout is removed".to_owned()
    } else if applied.state == "applied" {
        format!("the private checkout is removed; take the changes back with `switchboard undo {job}`")
    } else if left > 0 {
        format!(
            "the changes stay open: {} only in the private checkout, in the directory that `switchboard status {job}` prints; copy what \
             you need, then run `switchboard discard {job}`",
            if left == 1 { "1 file is".to_owned() } else { format!("{left} files are") }
        )
    } else {
        format!(
            "the changes stay open; apply the rest with `switchboard apply {job}`, or drop it with `switchboard discard {job}`"
        )
    });
}

/// The changes cannot be applied.
#[derive(Debug, thiserror::Error)]
#[error("cannot apply the changes of job {job}: {} with conflicts", count_files(*files))]
struct ConflictsError {
    job: String,
    files: usize,
    can_mark: bool,
}

impl CommandError for ConflictsError {
    fn hint(&self) -> Option<String> {
        let job = &self.job;
        Some(if self.can_mark {
            format!(
                "no file was changed; write the conflicts into the files with `switchboard apply --conflicts {job}`, or apply other \
                 files with `switchboard apply {job} PATH`"
            )
        } else {
            format!(
                "no file was changed; resolve these files by hand, or apply others with `switchboard apply {job} PATH`"
            )
        })
    }

    fn exit_status(&self) -> ExitStatus {
        ExitStatus::Failed
    }
}

/// Discards the changes of jobs, and those of all jobs of groups.
pub fn discard(args: &cli::DiscardChanges) -> Result<ExitCode, CommandFailure> {
    client::for_each_job(&args.ids, |connector, id| {
        if GroupId::strip_prefix(id).is_none() {
            return discard_job(connector, id, args.json);
        }
        let report = groups::fetch(connector, id, Some(0))?;
        let open = report
            .contenders
            .iter()
            .map(|contender| &contender.answer)
            .filter(|answer| has_open_changes(answer));
        let mut discarded = 0;
        for answer in open {
            discard_job(connector, &answer.job_id, args.json)?;
            discarded += 1;
        }
        if discarded == 0 && !args.json {
            output::line(&format!("{}: no open changes", report.group_id));
        }
        Ok(())
    })
}

fn discard_job(connector: &mut DaemonConnector, id: &str, json: bool) -> Result<(), RequestError> {
    // Not idempotent: a repeated request would be rejected.
    let reply = protocol::request_once(connector, &DaemonRequest::Discard { job: id.to_owned() })?;
    let JobReply::Discarded { job_id, changes } = reply else { return Err(RequestError::UnexpectedReply) };
    let changes = changes.as_ref().map(Changes::from);
    if json {
        let line = serde_json::json!({
            "job_id": job_id,
            "files_changed": changes.as_ref().map(|changes| changes.files_changed),
            "lines_added": changes.as_ref().map(|changes| changes.lines_added),
            "lines_removed": changes.as_ref().map(|changes| changes.lines_removed),
        });
        output::line(&line.to_string());
    } else if let Some(changes) = changes {
        output::line(&format!("{job_id}: discarded {}", describe(&changes)));
        output::aside(&format!("see the patch with `switchboard diff {}`", short_id(&job_id)));
    } else {
        output::line(&format!("{job_id}: discarded, without a record of the changes"));
    }
    Ok(())
}

/// Lists the changes that are neither applied nor discarded.
pub fn list(args: &cli::ListJobs) -> Result<ExitCode, CommandFailure> {
    let reply = protocol::request(&mut client::connector()?, &DaemonRequest::OpenChanges)?;
    let JobReply::OpenChanges { changes } = reply else { return Err(RequestError::UnexpectedReply.into()) };
    if args.json {
        output::line(&serde_json::json!({ "open_changes": changes }).to_string());
    } else if changes.is_empty() {
        output::line("no open changes");
    } else {
        print_list(&changes);
    }
    Ok(ExitCode::SUCCESS)
}

fn print_list(changes: &[OpenChangesEntry]) {
    let id_length = unique_prefix_length(changes.iter().map(|entry| entry.job_id.as_str()).collect());
    let row = |entry: &OpenChangesEntry| {
        let unknown = || "-".to_owned();
        vec![
            entry.job_id.chars().take(id_length).collect(),
            entry.status.map_or_else(unknown, |status| status.as_str().to_owned()),
            entry.files_changed.map_or_else(unknown, |files| files.to_string()),
            match (entry.lines_added, entry.lines_removed) {
                (Some(added), Some(removed)) => format!("+{added} −{removed}"),
                _ => unknown(),
            },
            format_bytes(entry.disk_bytes),
            entry.branch.as_deref().map_or_else(unknown, strip_control),
            strip_control(&entry.source),
        ]
    };
    let heads = ["ID", "STATUS", "FILES", "LINES", "DISK", "BRANCH", "DIRECTORY"];
    let rows: Vec<Vec<String>> = changes.iter().map(row).collect();
    // The branch is named like the job.
    let (heads, rows) = style::drop_columns(&heads, rows, &["BRANCH", "DISK"], style::stdout_width());
    output::line(&style::table(&heads, &rows, style::stdout_width()).join("\n"));
    output::aside(
        "see them with `switchboard diff ID`, then `switchboard apply ID` or `switchboard discard ID`",
    );
}

/// Describes the private checkout of a job with its disk space, if it has one.
pub fn describe_checkout(
    connector: &mut DaemonConnector,
    answer: &Answer,
) -> Result<Option<String>, RequestError> {
    let published = answer.changes.as_ref().and_then(|changes| changes.checkout.as_ref());
    // An ended job without recorded changes can have one, too.
    let request = DaemonRequest::Checkout { job: answer.job_id.clone() };
    let JobReply::Checkout { directory, disk_bytes } = protocol::request(connector, &request)? else {
        return Err(RequestError::UnexpectedReply);
    };
    let directory = published.map(|checkout| checkout.directory.clone()).or(directory);
    let facts = [
        published.map(|checkout| checkout.state.name().to_owned()),
        published.and_then(|checkout| checkout.branch.as_ref().map(|branch| format!("branch {branch}"))),
        Some(disk_bytes.map_or_else(|| "removed".to_owned(), format_bytes)),
    ];
    let facts: Vec<String> = facts.into_iter().flatten().collect();
    Ok(directory.map(|directory| format!("{directory} ({})", facts.join(", "))))
}
