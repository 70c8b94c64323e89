//! The commands `diff` and `undo`.
//!
//! File names and contents are those of an agent: on a terminal, all of them pass the sanitizer of `output`.

use std::env;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use calls::{ChangedFile, Changes};
use protocol::{DaemonRequest, RequestError, RestoredEntry, SelectedFiles};
use render::text::{list_id_prefixes, strip_control};

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
        String::from_utf8_lossy(&patch).lines().for_each(|line| output::line(&style::patch_line(line)));
    } else {
        output::raw(&patch);
    }
    Ok(ExitCode::SUCCESS)
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
    for RestoredEntry { path, action } in &files {
        output::line(&format!("{action}: {path}"));
    }
    let back = if args.redo { "" } else { " --redo" };
    output::aside(&format!("take it back with `switchboard undo{back} {}`", short_id(&job_id)));
    Ok(ExitCode::SUCCESS)
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
            (_, _, content) => content.clone().unwrap_or_default(),
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
        0 => "no files".to_owned(),
        files => {
            let noun = if files == 1 { "file" } else { "files" };
            format!("{files} {noun} (+{} −{})", changes.lines_added, changes.lines_removed)
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
