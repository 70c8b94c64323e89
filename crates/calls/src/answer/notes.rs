//! Notes about a job: facts that neither its state nor its output shows.

use model::Outcome;
use serde_json::Value;

use super::Processes;

/// Returns the notes about an ended run.
pub(super) fn run_notes(outcome: &Outcome, metadata: Option<&Value>) -> Vec<String> {
    let left_running = metadata.and_then(left_running).unwrap_or_default();
    let mut notes = outcome.notes();
    notes.extend(left_running_note(left_running));
    notes
}

/// Returns a note about the processes that an agent left running.
pub fn left_running_note(number: u64) -> Option<String> {
    match number {
        0 => None,
        1 => Some("1 process that the agent left running was ended".to_owned()),
        number => Some(format!("{number} processes that the agent left running were ended")),
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

/// Returns the number of processes that an agent left running.
fn left_running(metadata: &Value) -> Option<u64> {
    metadata.pointer("/report/descendants_ended")?.as_u64()
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
