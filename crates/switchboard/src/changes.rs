//! The commands `diff` and `undo`.
//!
//! File names and contents are those of an agent: on a terminal, all of them pass the sanitizer of `output`.

use std::env;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use calls::{ChangedFile, Changes};
use protocol::{DaemonConnector, DaemonRequest, RequestError, RestoredEntry, SelectedFiles};
use render::text::{list_id_prefixes, shell_quote, show_escapes, strip_control};

use crate::client::{self, JobReply};
use crate::failure::CommandFailure;
use crate::{cli, output, style};

/// Prints the changes of a job.
pub fn diff(args: &cli::ShowDiff) -> Result<ExitCode, CommandFailure> {
    let mut connector = client::connector()?;
    let (job, files) = (args.id.clone(), select(&args.paths));
    if args.stat || args.json {
        let reply = protocol::request(&mut connector, &DaemonRequest::Changes { job, files })?;
        let JobReply::Changes { changes, .. } = reply else {
            return Err(RequestError::UnexpectedReply.into());
        };
        if args.json {
            output::line(&serde_json::to_string(&changes)?);
        } else {
            print_list(&changes.files.iter().map(ChangedFile::from).collect::<Vec<_>>());
            output::line(&describe(&Changes::from(&changes)));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut patch = Vec::new();
    protocol::request_streaming(&mut connector, &DaemonRequest::Patch { job, files }, |reply: &JobReply| {
        if let JobReply::Bytes { latin1 } = reply {
            patch.extend(latin1.chars().filter_map(|c| u8::try_from(u32::from(c)).ok()));
        }
    })?;
    if style::is_interactive(&io::stdout()) {
        let patch = show_escapes(&String::from_utf8_lossy(&patch));
        patch.lines().for_each(|line| output::line(&style::patch_line(line)));
    } else {
        output::raw(&patch);
    }
    print_unshown(&mut connector, args)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the changed files that are not in the patch, beside it.
fn print_unshown(connector: &mut DaemonConnector, args: &cli::ShowDiff) -> Result<(), CommandFailure> {
    let request = DaemonRequest::Changes { job: args.id.clone(), files: select(&args.paths) };
    let JobReply::Changes { changes, .. } = protocol::request(connector, &request)? else {
        return Err(RequestError::UnexpectedReply.into());
    };
    if changes.files.is_empty() {
        output::aside("no changes");
    }
    for file in changes.files.iter().map(ChangedFile::from) {
        if let Some(reason) = describe_unrecorded(&file) {
            output::aside(&format!("not in the patch: {}: {reason}", strip_control(&file.path)));
        }
    }
    Ok(())
}

/// Describes why the content of a file is not recorded.
fn describe_unrecorded(file: &ChangedFile) -> Option<&'static str> {
    Some(match file.content.as_deref()? {
        "too_large" => "too large",
        "filtered" => "content of a filter",
        "repository" => "a repository of its own",
        "unreadable" => "unreadable",
        _ => return None,
    })
}

/// Restores the files of a job.
pub fn undo(args: &cli::UndoChanges) -> Result<ExitCode, CommandFailure> {
    let request =
        DaemonRequest::Restore { job: args.id.clone(), redo: args.redo, files: select(&args.paths) };
    let reply = protocol::request(&mut client::connector()?, &request)?;
    let JobReply::Restored { job_id, files } = reply else {
        return Err(RequestError::UnexpectedReply.into());
    };
    if args.json {
        output::line(&serde_json::json!({ "job_id": job_id, "files": files }).to_string());
        return Ok(ExitCode::SUCCESS);
    }
    if files.is_empty() {
        output::line("no files");
        return Ok(ExitCode::SUCCESS);
    }
    for RestoredEntry { path, action, reason } in &files {
        let reason = reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        output::line(&format!("{}: {path}{reason}", action.replace('_', " ")));
    }
    if files.iter().any(|file| !matches!(&*file.action, "already_restored" | "not_restored")) {
        let command = reverse_command(args, &job_id);
        let verb = if args.redo { "undo it again" } else { "redo it" };
        output::aside(&format!("{verb} with `{command}`"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the command that reverses an undo or a redo of the same files.
fn reverse_command(args: &cli::UndoChanges, job: &str) -> String {
    let option = if args.redo { "" } else { "--redo " };
    let paths = args.paths.iter().map(|path| format!(" {}", shell_quote(&path.to_string_lossy())));
    format!("switchboard undo {option}{}{}", short_id(job), paths.collect::<String>())
}

fn select(paths: &[PathBuf]) -> SelectedFiles {
    SelectedFiles { paths: paths.to_vec(), base: env::current_dir().ok() }
}

fn print_list(files: &[ChangedFile]) {
    let row = |file: &ChangedFile| {
        let path = match &file.from {
            Some(from) => format!("{} → {}", strip_control(from), strip_control(&file.path)),
            None => strip_control(&file.path),
        };
        let extent = match (file.added, file.removed, &file.content) {
            (Some(added), Some(removed), _) => format!("+{added} −{removed}"),
            (_, _, content) => {
                describe_unrecorded(file).or(content.as_deref()).unwrap_or_default().to_owned()
            }
        };
        let shared = if file.shared { " (shared)" } else { "" };
        vec![file.kind.replace('_', " "), extent, format!("{path}{shared}")]
    };
    if !files.is_empty() {
        let rows: Vec<Vec<String>> = files.iter().map(row).collect();
        output::line(&style::table(&["CHANGE", "LINES", "FILE"], &rows, None).join("\n"));
    }
}

/// Describes the changes in a few words: `3 files (+20 −4)`.
pub fn describe(changes: &Changes) -> String {
    match changes.files_changed {
        0 => "no changes".to_owned(),
        files => {
            let noun = if files == 1 { "file" } else { "files" };
            let shared = match changes.files_shared {
                0 => String::new(),
                shared => format!(", {shared} shared with another call"),
            };
            format!("{files} {noun} (+{} −{}{shared})", changes.lines_added, changes.lines_removed)
        }
    }
}

/// Describes the changes of a job with the command that shows them. Returns `None` if there are none.
pub fn summary_line(changes: &Changes, job: &str) -> Option<String> {
    let show = || format!("changed: {}; switchboard diff {}", describe(changes), short_id(job));
    (changes.files_changed > 0).then(show)
}

fn short_id(job: &str) -> String {
    list_id_prefixes(&[job.to_owned()])
}
