//! The commands `diff` and `undo`, and the descriptions of changes.
//!
//! File names and contents are those of an agent: on a terminal, all of them pass the sanitizer of `output`.

use std::env;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use calls::{ChangedFile, Changes, ChangesState, Collision, PrivateCheckout};
use protocol::{DaemonConnector, DaemonRequest, RequestError, RestoredEntry, SelectedFiles};
use render::text::{list_id_prefixes, shell_quote, show_escapes, strip_control};

use crate::client::{self, JobReply};
use crate::failure::CommandFailure;
use crate::{cli, output, style};

/// The maximum number of files in a line.
const MAX_LISTED: usize = 5;

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
            print_place(&mut connector, args)?;
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
    print_place(&mut connector, args)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the place of changes that are not in the worktree of the user, beside them.
fn print_place(connector: &mut DaemonConnector, args: &cli::ShowDiff) -> Result<(), CommandFailure> {
    let answer = client::fetch_answer(connector, &args.id)?;
    let checkout = answer.changes.as_ref().and_then(|changes| changes.checkout.as_ref());
    if let Some(checkout) = checkout.filter(|checkout| checkout.state == ChangesState::Open) {
        output::aside(&format!("not applied:{}", describe_place(checkout, &answer.job_id)));
    }
    Ok(())
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
    print_restored(&files, false);
    if files.iter().any(is_written) {
        let command = reverse_command(args, &job_id);
        let verb = if args.redo { "undo it again" } else { "redo it" };
        output::aside(&format!("{verb} with `{command}`"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints files with the actions that restored them, or would restore them.
pub fn print_restored(files: &[RestoredEntry], is_dry_run: bool) {
    for file in files {
        let reason = file.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        let would_be = if is_dry_run && is_written(file) { "would be " } else { "" };
        output::line(&format!("{would_be}{}: {}{reason}", file.action.replace('_', " "), file.path));
    }
}

/// Returns whether a file was changed in the worktree.
fn is_written(file: &RestoredEntry) -> bool {
    !file.action.starts_with("already_") && !file.action.starts_with("not_")
}

/// Returns the command that reverses an undo or a redo of the same files.
fn reverse_command(args: &cli::UndoChanges, job: &str) -> String {
    let option = if args.redo { "" } else { "--redo " };
    let paths = args.paths.iter().map(|path| format!(" {}", shell_quote(&path.to_string_lossy())));
    format!("switchboard undo {option}{}{}", short_id(job), paths.collect::<String>())
}

/// Selects files by their paths in the current directory.
pub fn select(paths: &[PathBuf]) -> SelectedFiles {
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

/// Describes the changes of a job, their place, and the next command. Returns no line if there are none.
pub fn summary_lines(changes: &Changes, job: &str) -> Vec<String> {
    if changes.files_changed == 0 {
        return Vec::new();
    }
    let Some(checkout) = &changes.checkout else {
        return vec![format!("changed: {}; switchboard diff {}", describe(changes), short_id(job))];
    };
    let mut lines = vec![format!("changed: {}{}", describe(changes), describe_place(checkout, job))];
    if checkout.state == ChangesState::Open {
        let reason = checkout.not_published.as_deref().map(strip_control);
        lines.extend(reason.map(|reason| format!("no branch: {reason}")));
        lines.extend(describe_collisions(&checkout.collisions));
        let missing: Vec<String> = checkout.without_content.iter().map(|path| strip_control(path)).collect();
        lines.extend(list_first(&missing, ", ").map(|paths| format!("not in the checkout: {paths}")));
    }
    lines
}

/// Describes the place of changes in a private checkout and the next command: ` on branch switchboard/1; switchboard apply 1`.
fn describe_place(checkout: &PrivateCheckout, job: &str) -> String {
    let id = short_id(job);
    match (checkout.state, &checkout.branch) {
        (ChangesState::Open, Some(branch)) => {
            format!(" on branch {}; switchboard apply {id}", strip_control(branch))
        }
        (ChangesState::Open, None) => {
            format!(" in {}; switchboard apply {id}", strip_control(&checkout.directory))
        }
        (ChangesState::Applied, _) => format!(", applied; switchboard undo {id}"),
        (ChangesState::Undone, _) => format!(", undone; switchboard undo --redo {id}"),
        (ChangesState::Continued, _) => format!(", continued by a later call; switchboard diff {id}"),
        (state @ (ChangesState::Unchanged | ChangesState::Discarded), _) => {
            format!(", {}; switchboard diff {id}", state.name())
        }
    }
}

/// Describes the files that others have changed, too.
pub fn describe_collisions(collisions: &[Collision]) -> Option<String> {
    let one = |collision: &Collision| {
        let path = strip_control(&collision.path);
        match (&collision.job_id, &collision.conflict) {
            (Some(job), _) => format!("{path} also changed by {}", short_id(job)),
            (None, Some(reason)) => format!("{path} cannot be merged: {}", strip_control(reason)),
            (None, None) => format!("{path} merges with your edits"),
        }
    };
    let listed: Vec<String> = collisions.iter().map(one).collect();
    list_first(&listed, "; ").map(|listed| format!("collisions: {listed}"))
}

/// Joins the first items of a list; `None` if it is empty.
pub fn list_first(items: &[String], separator: &str) -> Option<String> {
    let (first, others) = items.split_at(items.len().min(MAX_LISTED));
    let others = (!others.is_empty()).then(|| format!("{} more", others.len()));
    let listed: Vec<&str> = first.iter().chain(&others).map(String::as_str).collect();
    (!listed.is_empty()).then(|| listed.join(separator))
}

/// Shortens the id of a job for a command.
pub fn short_id(job: &str) -> String {
    list_id_prefixes(&[job.to_owned()])
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: &str = "01a1dde2-0000-7000-8000-000000000000";

    fn changes(checkout: PrivateCheckout) -> Changes {
        let set = serde_json::json!({ "worktree": "/c/shop", "files_changed": 3, "lines_added": 20, "lines_removed": 4, "files": [] });
        Changes { checkout: Some(checkout), ..serde_json::from_value(set).unwrap() }
    }

    fn checkout(state: ChangesState) -> PrivateCheckout {
        PrivateCheckout {
            directory: "/c/shop".to_owned(),
            source: "/home/ana/shop".to_owned(),
            state,
            branch: (state == ChangesState::Open).then(|| "switchboard/01a1dde2-0000".to_owned()),
            not_published: None,
            collisions: Vec::new(),
            without_content: Vec::new(),
        }
    }

    #[test]
    fn summary_names_place_and_next_command() {
        for (state, place) in [
            (ChangesState::Open, " on branch switchboard/01a1dde2-0000; switchboard apply 01a1dde2-0000"),
            (ChangesState::Continued, ", continued by a later call; switchboard diff 01a1dde2-0000"),
            (ChangesState::Applied, ", applied; switchboard undo 01a1dde2-0000"),
            (ChangesState::Undone, ", undone; switchboard undo --redo 01a1dde2-0000"),
            (ChangesState::Discarded, ", discarded; switchboard diff 01a1dde2-0000"),
        ] {
            let lines = summary_lines(&changes(checkout(state)), JOB);
            assert_eq!(lines, [format!("changed: 3 files (+20 −4){place}")]);
        }
    }

    #[test]
    fn summary_lists_collisions_and_missing_parts() {
        let collision = |path: &str, job: Option<&str>, conflict: Option<&str>| Collision {
            path: path.to_owned(),
            job_id: job.map(str::to_owned),
            conflict: conflict.map(str::to_owned),
        };
        let mut collisions = vec![
            collision("src/a\u{7}.rs", Some(JOB), None),
            collision("b", None, Some("edited since")),
            collision("c", None, None),
        ];
        collisions.extend((0..4).map(|number| collision(&number.to_string(), None, None)));
        let open = PrivateCheckout {
            branch: None,
            not_published: Some("the disk is full".to_owned()),
            collisions,
            without_content: vec!["vendor/lib".to_owned(), "nested".to_owned()],
            ..checkout(ChangesState::Open)
        };
        assert_eq!(
            summary_lines(&changes(open), JOB),
            [
                "changed: 3 files (+20 −4) in /c/shop; switchboard apply 01a1dde2-0000",
                "no branch: the disk is full",
                "collisions: src/a␇.rs also changed by 01a1dde2-0000; b cannot be merged: edited since; c merges with your edits; \
                 0 merges with your edits; 1 merges with your edits; 2 more",
                "not in the checkout: vendor/lib, nested",
            ]
        );
    }
}
