//! Hints for MCP clients: they name tools and parameters, never a command or a flag of the command line.

use agents::LaunchError;
use calls::{Answer, CallError, ChangesState, GroupError, PrivateCheckout, Problem, RestoreError};
use model::NotStartedReason;
use render::text::format_count;

/// Returns the remedy for an error.
pub(crate) fn call_error_hint(error: &CallError) -> String {
    match error {
        CallError::NoSuchJob { .. } => {
            "list the jobs with call_jobs; old jobs are removed after a while".to_owned()
        }
        CallError::NoEarlierSession { .. } => {
            "omit continue_latest to start a session, or name one with resume_session_id".to_owned()
        }
        CallError::SessionElsewhere { .. } => {
            "pass its directory as cwd, name the session with resume_session_id, or use one task_name per directory"
                .to_owned()
        }
        CallError::AlreadyEnded { .. } => "get its answer with call_status".to_owned(),
        CallError::StoppedUnkept { source, .. } => {
            format!("check it with call_status; then {}", without_commands(source.hint()))
        }
        CallError::StillRunning { .. } => "wait for it with call_wait, or stop it with call_cancel".to_owned(),
        CallError::WorktreeInUse { user, .. } => {
            format!("wait for job {user} with call_wait, or stop it with call_cancel")
        }
        CallError::NoCheckout { .. } => {
            "its changes are already in the directory in which it worked; see them with call_changes".to_owned()
        }
        CallError::ChangesState { .. } => "see them with call_changes".to_owned(),
        CallError::Restore(RestoreError::Conflicts(_)) => {
            "no file was changed; select other files with `paths`, write conflicts in the same lines into the files with \
             `conflicts: true`, or ask the user"
                .to_owned()
        }
        CallError::Group(error) => group_error_hint(error).to_owned(),
        CallError::Closing => {
            "try again after its running jobs have finished; the next call starts a new daemon".to_owned()
        }
        CallError::Launch(LaunchError::NoNetwork { .. }) => {
            "list the hosts that the task needs in `network`; the vendor's hosts are always allowed"
                .to_owned()
        }
        CallError::Launch(LaunchError::UnsupportedVersion { agent, .. }) => {
            format!("ask the user to update {agent}")
        }
        CallError::Launch(LaunchError::UnknownVariable { variable, .. }) => {
            format!("ask the user to export `{variable}` and to list it in `pass_env`, or omit it")
        }
        CallError::Launch(LaunchError::NoFileTools) => {
            "ask the user to install `file-tools` with the other programs of Switchboard".to_owned()
        }
        CallError::Launch(LaunchError::NoTerminalHost { .. }) => {
            "ask the user to install `terminal-host` with the other programs of Switchboard".to_owned()
        }
        CallError::NotReady(error) if names_command(error.hint()) => {
            format!("ask the user to check the setup of {}", error.agent)
        }
        error => without_commands(&error.hint()),
    }
}

fn group_error_hint(error: &GroupError) -> &'static str {
    match error {
        GroupError::Size { .. } => {
            "list two to eight agents in `agents`; the same agent may occur several times"
        }
        GroupError::Session => "omit it: each agent starts a new session",
        GroupError::ReadOnly => {
            "omit `verify`, `repair`, `verify_protect` and `expect_changes`, or omit `observe`"
        }
        GroupError::SharedDirectories => "omit `add_dirs`, or call the agents one after the other",
        GroupError::NotGrouped { .. } => "omit `discard_others`, which is for the jobs of call_many",
        GroupError::RepeatedReview { .. } => "call call_many again",
        GroupError::NotAContender { .. } => {
            "pass the job_id of one of the contenders, which call_status lists for the group_id"
        }
    }
}

/// Replaces the parts of an answer that mention the command line.
pub(crate) fn replace_commands(answer: &mut Answer) {
    if let Some(problem) = &mut answer.error {
        problem.message = without_flags(&problem.message);
        if let Some(hint) = failure_hint(problem) {
            hint.clone_into(&mut problem.hint);
        }
    }
    answer.note = answer.note.take().map(|note| without_flags(&note));
}

/// Replaces the parts of an answer that mention the command line, and adds the next step to the note: for an unfinished job, and for
/// changes in a private checkout.
pub(crate) fn adapt_answer(mut answer: Answer, can_apply: bool) -> Answer {
    replace_commands(&mut answer);
    if !answer.status.is_final() {
        let note = answer.note.take().unwrap_or_else(|| answer.status.as_str().to_owned());
        answer.note = Some(format!("{note}; wait for it with call_wait, or stop it with call_cancel"));
    }
    let checkout = answer.changes.as_ref().and_then(|changes| changes.checkout.as_ref());
    if let Some(next) = checkout.and_then(|checkout| checkout_note(checkout, can_apply)) {
        let earlier = answer.note.map(|note| format!("{note}; ")).unwrap_or_default();
        answer.note = Some(format!("{earlier}{next}; review them with call_changes"));
    }
    answer
}

/// Returns the next step for changes that are neither applied nor discarded.
pub(crate) fn checkout_note(checkout: &PrivateCheckout, can_apply: bool) -> Option<String> {
    if checkout.state != ChangesState::Open {
        return None;
    }
    let next = if can_apply {
        "apply them with call_apply, or drop them with call_discard"
    } else {
        "the user applies or discards them"
    };
    let collisions = match u32::try_from(checkout.collisions.len()).unwrap_or(u32::MAX) {
        0 => String::new(),
        count => format!("; {}: see checkout.collisions", format_count(count, "collision", "collisions")),
    };
    Some(format!(
        "the changes are in a private checkout and not yet in `{}`: {next}{collisions}",
        checkout.source
    ))
}

/// Returns the remedy for a failed job whose own hint names a command.
fn failure_hint(problem: &Problem) -> Option<&'static str> {
    Some(match (problem.kind.as_str(), problem.reason) {
        ("invalid_output", _) => "read the raw output with call_output, and ask the user to update the agent",
        ("protocol_error", _) => "read stderr with call_output, and ask the user to update the agent",
        ("empty_output", _) => "read stderr with call_output, and ask the user to check the agent's setup",
        ("internal", _) => "ask the user to check Switchboard's log and to report the bug; then call again",
        ("not_started", Some(NotStartedReason::NotConfined)) => {
            "ask the user to check the sandbox of this machine, or use a policy that it can enforce"
        }
        _ => return None,
    })
}

fn names_command(hint: &str) -> bool {
    hint.contains("`switchboard ")
}

/// Replaces a hint that names a command.
fn without_commands(hint: &str) -> String {
    if names_command(hint) {
        return "ask the user to check Switchboard's log and to repair its store".to_owned();
    }
    without_flags(hint)
}

/// Removes flags in parentheses, such as `` (`--max-turns`) ``, after the parameter that they belong to.
pub(crate) fn without_flags(text: &str) -> String {
    let mut parts = text.split(" (`--");
    let mut stripped = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        stripped.push_str(part.split_once("`)").map_or(part, |(_, rest)| rest));
    }
    stripped
}

#[cfg(test)]
mod tests {
    use super::*;
    use agents::doctor::NotReady;
    use model::{AgentKind, Deadline, FailureKind};

    /// Returns the kind after `kind`, so that a new kind does not compile until it is listed.
    fn next_kind(kind: Option<FailureKind>) -> Option<FailureKind> {
        let not_started = |reason| Some(FailureKind::NotStarted { reason });
        let deadline = |which| Some(FailureKind::Deadline { which });
        let Some(kind) = kind else { return Some(FailureKind::MaxTurns) };
        match kind {
            FailureKind::MaxTurns => Some(FailureKind::MaxBudget),
            FailureKind::MaxBudget => Some(FailureKind::Auth),
            FailureKind::Auth => Some(FailureKind::RateLimit { retry_after: None }),
            FailureKind::RateLimit { .. } => Some(FailureKind::Overloaded),
            FailureKind::Overloaded => Some(FailureKind::PermissionDenied),
            FailureKind::PermissionDenied => Some(FailureKind::Incomplete),
            FailureKind::Incomplete => Some(FailureKind::SessionNotFound),
            FailureKind::SessionNotFound => Some(FailureKind::SessionInUse),
            FailureKind::SessionInUse => Some(FailureKind::InvalidOutput),
            FailureKind::InvalidOutput => Some(FailureKind::SchemaMismatch),
            FailureKind::SchemaMismatch => Some(FailureKind::ProtocolError),
            FailureKind::ProtocolError => Some(FailureKind::UnsupportedOption),
            FailureKind::UnsupportedOption => Some(FailureKind::Killed { signal: 9 }),
            FailureKind::Killed { .. } => Some(FailureKind::EmptyOutput),
            FailureKind::EmptyOutput => Some(FailureKind::Network),
            FailureKind::Network => Some(FailureKind::AgentError),
            FailureKind::AgentError => deadline(Deadline::Start),
            FailureKind::Deadline { which: Deadline::Start } => deadline(Deadline::Idle),
            FailureKind::Deadline { which: Deadline::Idle } => deadline(Deadline::Wall),
            FailureKind::Deadline { which: Deadline::Wall } => Some(FailureKind::OutputLimit),
            FailureKind::OutputLimit => Some(FailureKind::Stopped),
            FailureKind::Stopped => Some(FailureKind::SpoolFailed),
            FailureKind::SpoolFailed => Some(FailureKind::SupervisorLost),
            FailureKind::SupervisorLost => Some(FailureKind::Internal),
            FailureKind::Internal => Some(FailureKind::PolicyViolation),
            FailureKind::PolicyViolation => Some(FailureKind::CheckoutFailed),
            FailureKind::CheckoutFailed => Some(FailureKind::SetupFailed),
            FailureKind::SetupFailed => Some(FailureKind::VerificationFailed),
            FailureKind::VerificationFailed => Some(FailureKind::NoChanges),
            FailureKind::NoChanges => Some(FailureKind::NothingToReview),
            FailureKind::NothingToReview => not_started(NotStartedReason::ProgramMissing),
            FailureKind::NotStarted { reason } => match reason {
                NotStartedReason::ProgramMissing => not_started(NotStartedReason::ProgramNotExecutable),
                NotStartedReason::ProgramNotExecutable => not_started(NotStartedReason::CwdMissing),
                NotStartedReason::CwdMissing => not_started(NotStartedReason::CwdNotADirectory),
                NotStartedReason::CwdNotADirectory => not_started(NotStartedReason::CwdForbidden),
                NotStartedReason::CwdForbidden => not_started(NotStartedReason::NotConfined),
                NotStartedReason::NotConfined => not_started(NotStartedReason::Other),
                NotStartedReason::Other => None,
            },
        }
    }

    #[test]
    fn no_failure_hint_names_a_command_or_flag() {
        for kind in std::iter::successors(next_kind(None), |kind| next_kind(Some(kind.clone()))) {
            let reason = match kind {
                FailureKind::NotStarted { reason } => Some(reason),
                _ => None,
            };
            for (agent, has_session) in
                AgentKind::NATIVE.into_iter().flat_map(|agent| [(agent, false), (agent, true)])
            {
                let problem = Problem {
                    kind: kind.name().to_owned(),
                    message: String::new(),
                    hint: kind.hint(agent, has_session).to_owned(),
                    reason,
                    deadline: None,
                    retry_after_ms: None,
                };
                let hint = failure_hint(&problem).unwrap_or(&problem.hint);
                assert!(!names_command(hint) && !hint.contains("--"), "{kind:?}: {hint}");
            }
        }
    }

    #[test]
    fn hint_for_an_unready_agent_names_no_command() {
        let error = CallError::NotReady(NotReady { agent: AgentKind::Codex, findings: Vec::new() });
        assert_eq!(call_error_hint(&error), "ask the user to check the setup of codex");
    }

    #[test]
    fn hints_name_no_command_and_no_flag() {
        let job = model::JobId::from_uuid(uuid::Uuid::nil());
        let launch = [
            LaunchError::NoFileTools,
            LaunchError::NoTerminalHost { agent: AgentKind::Codex },
            LaunchError::UnsupportedVersion { agent: AgentKind::Codex, version: None, option: "tools" },
        ];
        let errors = launch.map(CallError::Launch).into_iter().chain([
            CallError::Closing,
            CallError::NoSuchJob { job },
            CallError::AlreadyEnded { job, state: model::StateName::Completed },
            CallError::StillRunning { job },
            CallError::NoCheckout { job },
            CallError::ChangesState { job, state: ChangesState::Applied },
            CallError::Continued { job, by: job },
            CallError::Restore(RestoreError::Conflicts(Vec::new())),
            CallError::Group(GroupError::Size { given: 1 }),
            CallError::Group(GroupError::Session),
            CallError::Group(GroupError::ReadOnly),
            CallError::Group(GroupError::SharedDirectories),
            CallError::Group(GroupError::NotGrouped { job }),
            CallError::Group(GroupError::RepeatedReview { job }),
            CallError::Group(GroupError::NotAContender { job }),
        ]);
        for error in errors {
            let hint = call_error_hint(&error);
            assert!(!hint.contains("`switchboard ") && !hint.contains("--"), "{error}: {hint}");
        }
    }

    #[test]
    fn flags_in_parentheses_are_removed() {
        assert_eq!(without_flags("codex has no `max_turns` (`--max-turns`)"), "codex has no `max_turns`");
        assert_eq!(without_flags("a (`--b`) c (`--d`)"), "a c");
        assert_eq!(without_flags("plain (text)"), "plain (text)");
    }
}
