//! The refusals of a run, as one list for every agent: tools, writes, hosts.

use std::path::Path;

use model::{AgentKind, Confined, PermissionDenial, RefusedAction, RefusedKind, RootAccess, SandboxReport};

use super::FinishedRun;
use crate::parse::{RefusedErrno, RefusedPath};

/// How many are listed, and how many characters of a detail.
const MAX_REFUSALS: usize = 100;
const DETAIL_CHARS: usize = 200;
/// How many characters of a rejected command are part of its subject.
const COMMAND_CHARS: usize = 100;

/// The name of codex's commands in its stream.
const CODEX_COMMAND: &str = "command_execution";

/// How codex reports a patch that names a file which it cannot read.
const UNREAD_PATCH: &str = "apply_patch verification failed: Failed to read file to update ";

/// The subject of a refused write whose message names no path.
const NO_PATH: &str = "unknown path";

/// Lists the refusals. The sandbox refuses paths and hosts only of a confined run.
pub(super) fn refusals(ended: &FinishedRun<'_>) -> Vec<RefusedAction> {
    let mut refusals = Vec::new();
    for PermissionDenial { tool, detail, .. } in &ended.summary.denials {
        add(&mut refusals, refused_tool(tool, detail.as_deref()));
    }
    let codex_errors: Vec<&str> = match ended.agent {
        AgentKind::Codex => ended.stderr_tail.lines().filter_map(codex_error).collect(),
        _ => Vec::new(),
    };
    for message in codex_errors.iter().filter_map(|error| rejected_command(error)) {
        add(&mut refusals, refused_tool(CODEX_COMMAND, Some(&message)));
    }
    let unread: Vec<_> = codex_errors.iter().filter_map(|error| unread_file(error)).collect();
    for refused in ended.summary.refused_paths.iter().chain(&unread) {
        add_path(&mut refusals, ended, refused);
    }
    if let Some(SandboxReport::Confined(confined)) = &ended.report.sandbox {
        for host in &confined.refused_hosts {
            add(&mut refusals, RefusedAction::new(RefusedKind::Host, host, None));
        }
    }
    refusals
}

/// Adds a path that a tool could not open, if the sandbox or a rule of the agent is the reason.
fn add_path(refusals: &mut Vec<RefusedAction>, ended: &FinishedRun<'_>, refused: &RefusedPath) {
    let path = refused.path.as_deref().unwrap_or(NO_PATH);
    if let RefusedErrno::AgentRule { writes } = refused.errno {
        let kind = if writes { RefusedKind::Write } else { RefusedKind::Read };
        let refusal = RefusedAction::new(kind, path, Some(&refused.line));
        return add(refusals, RefusedAction { by_agent: true, count: refused.count, ..refusal });
    }
    let Some(SandboxReport::Confined(confined)) = &ended.report.sandbox else { return };
    if !is_refused_by(confined, refused) {
        return;
    }
    // One that does not exist was to be created.
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

/// Returns the user's own file in the place of a copy that the agent was given, in a path and in the message about it.
fn with_original(confined: &Confined, path: &str, line: &str) -> (String, String) {
    let copies = confined.policy.home.iter().flat_map(|home| &home.copies);
    let found = copies.into_iter().find(|(_, copy)| Path::new(path) == copy);
    match found.and_then(|(original, _)| original.to_str()) {
        Some(original) => (original.to_owned(), line.replace(path, original)),
        None => (path.to_owned(), line.to_owned()),
    }
}

/// Returns an error of one of codex's tools. What commands print themselves is not on its stderr.
fn codex_error(line: &str) -> Option<&str> {
    line.split_once(" ERROR codex_core::tools::router: error=").map(|(_, error)| error)
}

/// Reads the message about a command that codex rejected by a rule of its own. Its stream has no item for such a command.
fn rejected_command(error: &str) -> Option<String> {
    let (_, message) = error.split_once(r#"message: "Rejected(\""#)?;
    let message = message.strip_suffix(r#"\")" }"#)?;
    // Two levels of `Debug`.
    Some(message.replace(r#"\\\""#, "\"").replace(r"\\n", " "))
}

/// Reads the message about a patch that names a file which codex cannot read.
fn unread_file(error: &str) -> Option<RefusedPath> {
    let (path, _) = error.strip_prefix(UNREAD_PATCH)?.rsplit_once(": ")?;
    Some(RefusedPath::new(Some(path), error, RefusedErrno::MissingInput))
}

/// Returns the refusal of a tool. A message such as "`rm -rf x` rejected: …" is of a rule that is built into the agent, and the command
/// is part of the subject.
fn refused_tool(tool: &str, message: Option<&str>) -> RefusedAction {
    let refusal = RefusedAction::new(RefusedKind::Tool, tool, message);
    let quoted = message.and_then(|message| message.strip_prefix('`')?.split_once("` rejected: "));
    let Some((command, _)) = quoted else { return refusal };
    let command: String = command.chars().take(COMMAND_CHARS).collect();
    RefusedAction { subject: format!("{tool}: {command}"), by_agent: true, ..refusal }
}

/// Joins the refusals of two runs of a call.
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

/// Whether the sandbox can have refused a path. Ordinary permissions answer `EACCES`, too: it is counted only for a path
/// that the policy does not let the agent write.
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
        // Programs name the path relative to their own working directory.
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

/// Whether a path of the home directory exists, or could be created, and the run did not see it. The agent's state is its own matter.
fn is_absent(confined: &Confined, path: &Path) -> bool {
    let Some(home) = &confined.policy.home else { return false };
    let roots = confined.policy.roots.iter().map(|root| &root.path);
    let state = confined.policy.state.iter().map(|state| &state.directory);
    let mut seen = roots.chain(&confined.exposed).chain(state);
    path.starts_with(&home.directory)
        && !seen.any(|seen| path.starts_with(seen))
        && (path.symlink_metadata().is_ok()
            || path.parent().is_some_and(|above| above != home.directory && above.is_dir()))
}
