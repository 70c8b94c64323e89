//! The refusals of a run, as one list for every agent: tools, writes, hosts.

use std::path::Path;

use model::{Access, AgentKind, Confined, PermissionDenial, RefusedAction, RefusedKind, SandboxReport};

use super::Ended;
use crate::parse::{RefusedErrno, RefusedPath};

/// How many are listed, and how many characters of a detail.
const MAX_REFUSALS: usize = 100;
const DETAIL_CHARS: usize = 200;

/// The name of codex's commands in its stream.
const CODEX_COMMAND: &str = "command_execution";

/// The subject of a refused write whose message names no path.
const NO_PATH: &str = "unknown path";

/// Lists the refusals. Paths and hosts only of a confined run: nothing else refuses them.
pub(super) fn refusals(ended: &Ended<'_>) -> Vec<RefusedAction> {
    let mut refusals = Vec::new();
    for PermissionDenial { tool, detail, .. } in &ended.summary.denials {
        add(&mut refusals, RefusedKind::Tool, tool, detail.as_deref(), 1);
    }
    if ended.agent == AgentKind::Codex {
        for message in ended.stderr_tail.lines().filter_map(rejected_command) {
            add(&mut refusals, RefusedKind::Tool, CODEX_COMMAND, Some(&message), 1);
        }
    }
    if let Some(SandboxReport::Confined(confined)) = &ended.report.sandbox {
        for refused in ended.summary.refused_paths.iter().filter(|refused| is_refused_by(confined, refused)) {
            let path = refused.path.as_deref().unwrap_or(NO_PATH);
            // One that does not exist was to be created.
            let is_read =
                refused.errno == RefusedErrno::Missing && Path::new(path).symlink_metadata().is_ok();
            let kind = if is_read { RefusedKind::Read } else { RefusedKind::Write };
            add(&mut refusals, kind, path, Some(&refused.line), refused.count);
        }
        for host in &confined.refused_hosts {
            add(&mut refusals, RefusedKind::Host, host, None, 1);
        }
    }
    refusals
}

/// Reads the message about a command that codex rejected by a rule of its own. Its stream has no item for such a command; what commands
/// print themselves is not on its stderr.
fn rejected_command(line: &str) -> Option<String> {
    let (_, error) = line.split_once(" ERROR codex_core::tools::router: ")?;
    let (_, message) = error.split_once(r#"message: "Rejected(\""#)?;
    let message = message.strip_suffix(r#"\")" }"#)?;
    // Two levels of `Debug`.
    Some(message.replace(r#"\\\""#, "\"").replace(r"\\n", " "))
}

/// Joins the refusals of two runs of a call.
pub(crate) fn joined(earlier: Vec<RefusedAction>, later: Vec<RefusedAction>) -> Vec<RefusedAction> {
    let mut refusals = earlier;
    for RefusedAction { kind, subject, detail, count } in later {
        add(&mut refusals, kind, &subject, detail.as_deref(), count);
    }
    refusals
}

fn add(
    refusals: &mut Vec<RefusedAction>,
    kind: RefusedKind,
    subject: &str,
    detail: Option<&str>,
    count: u32,
) {
    let is_same = |known: &&mut RefusedAction| known.kind == kind && known.subject == subject;
    if let Some(known) = refusals.iter_mut().find(is_same) {
        known.count = known.count.saturating_add(count);
    } else if refusals.len() < MAX_REFUSALS {
        let detail = detail.map(|detail| detail.chars().take(DETAIL_CHARS).collect());
        refusals.push(RefusedAction { kind, subject: subject.to_owned(), detail, count });
    }
}

/// Whether the sandbox can have refused a path. Ordinary permissions answer `EACCES`, too: it is counted only for a path
/// that the policy does not let the agent write.
fn is_refused_by(confined: &Confined, refused: &RefusedPath) -> bool {
    let policy = &confined.policy;
    match (refused.errno, &refused.path) {
        (RefusedErrno::ReadOnly, _) => true,
        (RefusedErrno::Access, Some(path)) if path.starts_with('/') => {
            let path = Path::new(path);
            let writable = policy.roots.iter().filter(|root| root.access != Access::Read);
            let is_protected = policy.protected.iter().any(|protected| path.starts_with(&protected.path));
            is_protected || !writable.into_iter().any(|root| path.starts_with(&root.path))
        }
        // Programs name the path relative to their own working directory.
        (RefusedErrno::Busy, Some(path)) => {
            policy.protected.iter().any(|protected| protected.path.ends_with(path))
        }
        (RefusedErrno::Missing, Some(path)) => is_absent(confined, Path::new(path)),
        (RefusedErrno::Access, _) | (RefusedErrno::Busy | RefusedErrno::Missing, None) => false,
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
