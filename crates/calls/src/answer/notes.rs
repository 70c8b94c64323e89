//! Notes about a job: facts that neither its state nor its output shows.

use model::{End, Outcome};
use serde::Deserialize;
use serde_json::Value;

use super::Processes;
use crate::job_changes::Changes;
use crate::metadata::CHANGES_NOT_RECORDED;

/// Returns the notes about an ended run.
pub(super) fn run_notes(outcome: &Outcome, metadata: Option<&Value>) -> Vec<String> {
    let mut notes = outcome.notes();
    notes.extend(metadata.and_then(|metadata| {
        let killed = metadata.pointer("/report/descendants_ended")?.as_u64()?;
        let end = End::deserialize(metadata.pointer("/report/end")?).ok()?;
        killed_processes_note(killed, &end)
    }));
    notes
}

/// Returns a note about the processes, besides the agent's, that were killed when a run ended. Only an agent that exited by itself has left
/// them running.
pub fn killed_processes_note(number: u64, end: &End) -> Option<String> {
    match (number, end) {
        (0, _) => None,
        (1, End::Exited) => Some("1 process that the agent left running was killed".to_owned()),
        (number, End::Exited) => Some(format!("{number} processes that the agent left running were killed")),
        (1, _) => Some("1 other process of the agent was killed".to_owned()),
        (number, _) => Some(format!("{number} other processes of the agent were killed")),
    }
}

/// Notes the secrets that were redacted in a prompt. The stored prompt is the one that the agent got, so the marks in it are counted,
/// including any that the caller wrote.
pub(super) fn redacted_prompt(prompt: &str) -> Option<String> {
    match prompt.matches(store::REDACTED).count() {
        0 => None,
        1 => Some("1 secret was taken out of the prompt: the agent got `[redacted]` in its place".to_owned()),
        number => Some(format!(
            "{number} secrets were taken out of the prompt: the agent got `[redacted]` in their place"
        )),
    }
}

/// Notes the lost runs before the last one: the work was restarted, and their usage is unknown.
pub(super) fn lost_runs(requeues: u32) -> Option<String> {
    let times = match requeues {
        0 => return None,
        1 => "once".to_owned(),
        number => format!("{number} times"),
    };
    Some(format!(
        "started again {times} after a run was lost; time, tokens, turns and cost of lost runs are not included"
    ))
}

/// Notes that only a search shows that no process of the job is left.
pub(super) fn unverified_end(processes: Option<Processes>) -> Option<String> {
    let note = "a supervisor was killed: its processes were searched for and killed, but without a PID namespace or a cgroup, one that \
                cleared its environment and started its own session cannot be found";
    (processes == Some(Processes::NoneFound)).then(|| note.to_owned())
}

/// Notes that the call committed or switched branches: an undo restores only files.
pub(super) fn moved_head(changes: &Changes) -> Option<String> {
    // The commits in a private checkout are on its branch.
    if changes.checkout.is_some() {
        return None;
    }
    let short = |id: &str| id.get(..8).unwrap_or(id).to_owned();
    let (base, head) = (changes.base.as_deref(), changes.head.as_deref()?);
    let from = base.map(|base| format!(" from {}", short(base))).unwrap_or_default();
    Some(format!("HEAD moved{from} to {}; an undo restores files, not commits", short(head)))
}

/// Notes that the changes in the git worktree are unknown.
pub(super) fn missing_changes(metadata: &Value) -> Option<String> {
    let reason = metadata.get(CHANGES_NOT_RECORDED)?.as_str()?;
    Some(format!("changes were not recorded: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redacted_prompt_is_noted_with_the_number_of_secrets() {
        assert_eq!(redacted_prompt("push it"), None);
        let noted = |prompt| redacted_prompt(prompt).unwrap_or_default();
        assert!(noted("KEY=[redacted]").starts_with("1 secret was taken out of the prompt"));
        assert!(noted("[redacted], [redacted]").starts_with("2 secrets were taken out of the prompt"));
    }
}
