//! The refusals of a run in one form for all agents: tools, paths, hosts.

use std::path::Path;

use model::{AgentKind, Confined, PermissionDenial, RefusedAction, RefusedKind, RootAccess, SandboxReport};

use super::FinishedRun;
use crate::driver::{RefusedErrno, RefusedPath};

/// The limit of listed refusals, and of the characters of a detail.
const MAX_REFUSALS: usize = 100;
const DETAIL_CHARS: usize = 200;
/// The limit of characters of a rejected command in its subject.
const COMMAND_CHARS: usize = 100;

/// Codex's name of commands in its stream.
const CODEX_COMMAND: &str = "command_execution";

/// Codex's message for a patch of a file that it cannot read.
const UNREAD_PATCH: &str = "apply_patch verification failed: Failed to read file to update ";

/// The subject of a refused write without a path in its message.
const NO_PATH: &str = "unknown path";

/// Returns the refusals. Paths and hosts are rejected only in a sandboxed run.
pub(super) fn refusals(run: &FinishedRun<'_>) -> Vec<RefusedAction> {
    let mut refusals = Vec::new();
    for PermissionDenial { tool, detail, .. } in &run.summary.denials {
        add(&mut refusals, refused_tool(tool, detail.as_deref()));
    }
    let codex_errors: Vec<&str> = match run.agent {
        AgentKind::Codex => run.stderr_tail.lines().filter_map(codex_error).collect(),
        _ => Vec::new(),
    };
    for message in codex_errors.iter().filter_map(|error| rejected_command(error)) {
        add(&mut refusals, refused_tool(CODEX_COMMAND, Some(&message)));
    }
    let unread: Vec<_> = codex_errors.iter().filter_map(|error| unread_file(error)).collect();
    for refused in run.summary.refused_paths.iter().chain(&unread) {
        add_path(&mut refusals, run, refused);
    }
    if let Some(SandboxReport::Confined(confined)) = &run.report.sandbox {
        for host in &confined.refused_hosts {
            add(&mut refusals, RefusedAction::new(RefusedKind::Host, host, None));
        }
    }
    refusals
}

/// Adds a path that a tool could not open, if the sandbox or a rule of the agent is the cause.
fn add_path(refusals: &mut Vec<RefusedAction>, run: &FinishedRun<'_>, refused: &RefusedPath) {
    let path = refused.path.as_deref().unwrap_or(NO_PATH);
    if let RefusedErrno::AgentRule { writes } = refused.errno {
        let kind = if writes { RefusedKind::Write } else { RefusedKind::Read };
        let refusal = RefusedAction::new(kind, path, Some(&refused.line));
        return add(refusals, RefusedAction { by_agent: true, count: refused.count, ..refusal });
    }
    let Some(SandboxReport::Confined(confined)) = &run.report.sandbox else { return };
    if !is_refused_by(confined, refused) {
        return;
    }
    // A missing file was to be created.
    let is_read = match refused.errno {
        RefusedErrno::MissingInput => true,
        RefusedErrno::Missing => Path::new(path).symlink_metadata().is_ok(),
        _ => false,
    };
    let kind = if is_read { RefusedKind::Read } else { RefusedKind::Write };
    let (path, line) = with_original(confined, path, &refused.line);
    let detail = Some(line.as_str()).filter(|line| !line.is_empty());
    let refusal = RefusedAction::new(kind, &path, detail);
    add(refusals, RefusedAction { count: refused.count, ..refusal });
}

/// Replaces the path of a copy by the user's original, in a path and in its message.
fn with_original(confined: &Confined, path: &str, line: &str) -> (String, String) {
    let copies = confined.policy.home.iter().flat_map(|home| &home.copies);
    let found = copies.into_iter().find(|(_, copy)| Path::new(path) == copy);
    match found.and_then(|(original, _)| original.to_str()) {
        Some(original) => (original.to_owned(), line.replace(path, original)),
        None => (path.to_owned(), line.to_owned()),
    }
}

/// Returns the error of a codex tool. The output of commands is not on its stderr.
fn codex_error(line: &str) -> Option<&str> {
    line.split_once(" ERROR codex_core::tools::router: error=").map(|(_, error)| error)
}

/// Parses the message about a command that a built-in rule of codex rejected. Its stream has no item for such a command.
fn rejected_command(error: &str) -> Option<String> {
    let (_, message) = error.split_once(r#"message: "Rejected(\""#)?;
    let message = message.strip_suffix(r#"\")" }"#)?;
    // Two levels of `Debug`.
    Some(message.replace(r#"\\\""#, "\"").replace(r"\\n", " "))
}

/// Parses the message about a patch of a file that codex cannot read.
fn unread_file(error: &str) -> Option<RefusedPath> {
    let (path, _) = error.strip_prefix(UNREAD_PATCH)?.rsplit_once(": ")?;
    Some(RefusedPath::new(Some(path), error, RefusedErrno::MissingInput))
}

/// Returns the refusal of a tool. A message such as "`rm -rf x` rejected: …" comes from a built-in rule of the agent; the subject
/// then includes the command.
fn refused_tool(tool: &str, message: Option<&str>) -> RefusedAction {
    let refusal = RefusedAction::new(RefusedKind::Tool, tool, message);
    let quoted = message.and_then(|message| message.strip_prefix('`')?.split_once("` rejected: "));
    let Some((command, _)) = quoted else { return refusal };
    let command: String = command.chars().take(COMMAND_CHARS).collect();
    RefusedAction { subject: format!("{tool}: {command}"), by_agent: true, ..refusal }
}

/// Merges the refusals of two runs of a call.
pub(crate) fn joined(earlier: Vec<RefusedAction>, later: Vec<RefusedAction>) -> Vec<RefusedAction> {
    let mut refusals = earlier;
    for refusal in later {
        add(&mut refusals, refusal);
    }
    refusals
}

fn add(refusals: &mut Vec<RefusedAction>, refusal: RefusedAction) {
    let key = |refusal: &RefusedAction| (refusal.kind, refusal.subject.clone(), refusal.by_agent);
    let is_same = |known: &&mut RefusedAction| key(known) == key(&refusal);
    if let Some(known) = refusals.iter_mut().find(is_same) {
        known.count = known.count.saturating_add(refusal.count);
    } else if refusals.len() < MAX_REFUSALS {
        let detail = refusal.detail.map(|detail| detail.chars().take(DETAIL_CHARS).collect());
        refusals.push(RefusedAction { detail, ..refusal });
    }
}

/// Returns whether the sandbox can have rejected a path. Ordinary permissions cause `EACCES`, too, so it counts only for paths
/// that the policy makes read-only.
fn is_refused_by(confined: &Confined, refused: &RefusedPath) -> bool {
    let policy = &confined.policy;
    match (refused.errno, &refused.path) {
        (RefusedErrno::ReadOnly | RefusedErrno::AgentRule { .. }, _) => true,
        (RefusedErrno::Access, Some(path)) if path.starts_with('/') => {
            let path = Path::new(path);
            let writable = policy.roots.iter().filter(|root| root.access != RootAccess::Read);
            let is_protected = policy.protected.iter().any(|protected| path.starts_with(&protected.path));
            is_protected || !writable.into_iter().any(|root| path.starts_with(&root.path))
        }
        // Programs print the path relative to their working directory.
        (RefusedErrno::Busy, Some(path)) => {
            policy.protected.iter().any(|protected| protected.path.ends_with(path))
        }
        (RefusedErrno::Missing, Some(path)) => is_absent(confined, Path::new(path)),
        (RefusedErrno::MissingInput, Some(path)) => {
            let path = Path::new(path);
            path.symlink_metadata().is_ok() && is_absent(confined, path)
        }
        (RefusedErrno::Access, _)
        | (RefusedErrno::Busy | RefusedErrno::Missing | RefusedErrno::MissingInput, None) => false,
    }
}

/// Returns whether a path of the home directory exists, or could be created, but was hidden from the run. Excludes the agent's
/// state.
fn is_absent(confined: &Confined, path: &Path) -> bool {
    let Some(home) = &confined.policy.home else { return false };
    let roots = confined.policy.roots.iter().map(|root| &root.path);
    let state = confined.policy.states.iter().map(|state| &state.directory);
    let mut seen = roots.chain(&confined.exposed).chain(state);
    path.starts_with(&home.directory)
        && !seen.any(|seen| path.starts_with(seen))
        && (path.symlink_metadata().is_ok()
            || path.parent().is_some_and(|above| above != home.directory && above.is_dir()))
}
