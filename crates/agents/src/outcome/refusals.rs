//! The refusals of a run, as one list for every agent: tools, writes, hosts.

use std::path::Path;

use model::{Access, Confined, PermissionDenial, RefusedAction, RefusedKind, SandboxReport};

use super::Ended;
use crate::parse::{RefusedWrite, WriteErrno};

/// How many are listed, and how many characters of a detail.
const MAX_REFUSALS: usize = 100;
const DETAIL_CHARS: usize = 200;

/// The subject of a refused write whose message names no path.
const NO_PATH: &str = "unknown path";

/// Lists the refusals. Writes and hosts only of a confined run: nothing else refuses them.
pub(super) fn refusals(ended: &Ended<'_>) -> Vec<RefusedAction> {
    let mut refusals = Vec::new();
    for PermissionDenial { tool, detail, .. } in &ended.summary.denials {
        add(&mut refusals, RefusedKind::Tool, tool, detail.as_deref(), 1);
    }
    if let Some(SandboxReport::Confined(confined)) = &ended.report.sandbox {
        for write in ended.summary.refused_writes.iter().filter(|write| is_refused_by(confined, write)) {
            let path = write.path.as_deref().unwrap_or(NO_PATH);
            add(&mut refusals, RefusedKind::Write, path, Some(&write.line), write.count);
        }
        for host in &confined.refused_hosts {
            add(&mut refusals, RefusedKind::Host, host, None, 1);
        }
    }
    refusals
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

/// Whether the sandbox can have refused a write. Ordinary permissions answer `EACCES`, too: it is counted only for a path
/// that the policy does not let the agent write.
fn is_refused_by(confined: &Confined, write: &RefusedWrite) -> bool {
    let policy = &confined.policy;
    match (write.errno, &write.path) {
        (WriteErrno::ReadOnly, _) => true,
        (WriteErrno::Access, Some(path)) if path.starts_with('/') => {
            let path = Path::new(path);
            let writable = policy.roots.iter().filter(|root| root.access != Access::Read);
            let is_protected = policy.protected.iter().any(|protected| path.starts_with(&protected.path));
            is_protected || !writable.into_iter().any(|root| path.starts_with(&root.path))
        }
        (WriteErrno::Access, _) => false,
    }
}
