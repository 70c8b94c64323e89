//! Converts the outcome of a request to the answer or error that the program receives.
//!
//! Output in an unexpected form, or a missing answer, is returned as far as possible, with a warning. Pure.

use std::time::{Duration, SystemTime};

use model::{
    AgentKind, Deadline, Exit, Failure, FailureKind, Limits, NotStartedReason, Outcome, SandboxReport,
    Verdict,
};

use crate::error::ProviderError;
use crate::message::{Metadata, OutgoingMessage, Warning};

/// The text that replaces a missing answer without an error.
pub const NO_ANSWER: &str =
    "I received your message but wasn't able to generate a response. Please try again.";

/// All facts about a finished request.
#[derive(Debug)]
pub(crate) struct FinishedRequest {
    /// [`crate::Provider::name`].
    pub provider: String,
    /// The outcome of its runs.
    pub outcome: Outcome,
    /// Facts about the last run only.
    pub last: LastRun,
    /// The limits of the request.
    pub limits: Limits,
    pub resumes: u32,
    pub processing_time: Duration,
    /// The time of its end.
    pub now: SystemTime,
    pub warnings: Vec<Warning>,
}

/// Facts about a run besides its outcome.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct LastRun {
    /// True if the agent reported a final result.
    pub has_result: bool,
    /// True if that result is an error of its model's API.
    pub refused_by_api: bool,
    /// The output, if none of it was JSON.
    pub plain_text: Option<String>,
    /// The number of omitted bytes of that output.
    pub plain_text_cut: u64,
    /// The tail of stderr.
    pub stderr: String,
    /// The confinement; `None` if no process was started.
    pub sandbox: Option<SandboxReport>,
}

/// Returns the answer or the error.
pub(crate) fn answer(finished: FinishedRequest) -> Result<OutgoingMessage, ProviderError> {
    let FinishedRequest { outcome, .. } = &finished;
    let verdict = outcome.verdict.clone();
    match verdict {
        // A call accepts the agent's own verdict; a program must decide for itself.
        Verdict::Success if !outcome.permission_denials.is_empty() => Err(denied(finished)),
        Verdict::Success if outcome.text.is_empty() => Ok(placeholder(finished)),
        Verdict::Success => Ok(outgoing_message(finished)),
        Verdict::Failed(failure) => {
            degraded(finished, &failure).map_err(|finished| error(*finished, failure))
        }
    }
}

/// Returns the error for an agent that reports success although tools were denied.
fn denied(finished: FinishedRequest) -> ProviderError {
    let denials = &finished.outcome.permission_denials;
    let message = denials.first().map(|denial| {
        let others =
            if denials.len() > 1 { format!(" (and {} more)", denials.len() - 1) } else { String::new() };
        format!("`{}` was denied{others}: {}", denial.tool, denial.detail.as_deref().unwrap_or_default())
    });
    error(finished, Failure { kind: FailureKind::PermissionDenied, message: message.unwrap_or_default() })
}

/// Returns failures that count as an answer, with a warning.
fn degraded(
    mut finished: FinishedRequest,
    failure: &Failure,
) -> Result<OutgoingMessage, Box<FinishedRequest>> {
    let exited_zero = finished.outcome.exit == Some(Exit::Code(0));
    let has_no_text = finished.outcome.text.is_empty();
    match &failure.kind {
        FailureKind::InvalidOutput if exited_zero && !finished.last.has_result => {
            let Some(text) = finished.last.plain_text.take() else { return Err(Box::new(finished)) };
            finished.outcome.text_cut += finished.last.plain_text_cut;
            Ok(with_warning(finished, &text, Warning::NotJson))
        }
        FailureKind::EmptyOutput if exited_zero && !finished.last.has_result => Ok(placeholder(finished)),
        // Only claude reports an error name without a text.
        FailureKind::AgentError
            if has_no_text
                && finished.last.has_result
                && !finished.last.refused_by_api
                && matches!(finished.outcome.agent, AgentKind::Claude | AgentKind::Rehearsal) =>
        {
            let text = format!("Error from Claude: {}", failure.message);
            let message = failure.message.clone();
            Ok(with_warning(finished, &text, Warning::ErrorWithoutText { message }))
        }
        _ => Err(Box::new(finished)),
    }
}

fn placeholder(finished: FinishedRequest) -> OutgoingMessage {
    with_warning(finished, NO_ANSWER, Warning::NoText)
}

/// Returns an answer whose last part is not the agent's own. Text of earlier runs is kept before it.
fn with_warning(mut finished: FinishedRequest, text: &str, warning: Warning) -> OutgoingMessage {
    if !finished.outcome.text.is_empty() {
        finished.outcome.text.push_str("\n\n");
    }
    finished.outcome.text.push_str(text);
    finished.warnings.push(warning);
    outgoing_message(finished)
}

fn outgoing_message(finished: FinishedRequest) -> OutgoingMessage {
    let FinishedRequest { provider, outcome, resumes, processing_time, mut warnings, last, .. } = finished;
    if outcome.text_cut > 0 {
        warnings.push(Warning::TextCut { bytes: outcome.text_cut });
    }
    OutgoingMessage {
        text: outcome.text,
        metadata: Metadata {
            provider,
            model: outcome.model,
            session_id: outcome.session,
            tokens: outcome.usage,
            cost_usd: outcome.cost_usd,
            turns: outcome.turns,
            processing_time,
            resumes,
            permission_denials: outcome.permission_denials,
            background: outcome.background,
            refusals: outcome.refusals,
            sandbox: last.sandbox,
            warnings,
        },
    }
}

fn error(finished: FinishedRequest, failure: Failure) -> ProviderError {
    let Failure { kind, message } = failure;
    let agent = finished.outcome.agent;
    let (exit, now) = (finished.outcome.exit, finished.now);
    let (has_result, stderr) = (finished.last.has_result, finished.last.stderr.trim().to_owned());
    let limits = finished.limits.clone();
    let so_far = Box::new(outgoing_message(finished));
    match kind {
        FailureKind::MaxTurns => ProviderError::MaxTurns { agent, so_far },
        FailureKind::MaxBudget => ProviderError::Budget { agent, message, so_far },
        FailureKind::Auth => ProviderError::Authentication { agent, message, so_far },
        FailureKind::RateLimit { retry_after } => {
            let resets_at = retry_after.and_then(|wait| now.checked_add(wait));
            ProviderError::RateLimit { agent, message, resets_at, so_far }
        }
        FailureKind::Overloaded => ProviderError::Overloaded { agent, message, so_far },
        FailureKind::Network => ProviderError::Network { agent, message, so_far },
        FailureKind::PermissionDenied => {
            let denials = so_far.metadata.permission_denials.clone();
            ProviderError::ToolPermission { agent, message, denials, so_far }
        }
        FailureKind::Incomplete => ProviderError::Incomplete { agent, message, so_far },
        FailureKind::SessionNotFound => ProviderError::SessionNotFound { agent, message },
        FailureKind::SessionInUse => ProviderError::SessionInUse { agent, message },
        FailureKind::Killed { signal } => {
            ProviderError::Exited { agent, exit: Exit::Signal(signal), stderr: message, so_far }
        }
        FailureKind::InvalidOutput | FailureKind::EmptyOutput => match exit {
            Some(exit) if !has_result && exit != Exit::Code(0) => {
                let stderr = if stderr.is_empty() { message } else { stderr };
                ProviderError::Exited { agent, exit, stderr, so_far }
            }
            _ => ProviderError::InvalidResponse { agent, message, so_far },
        },
        FailureKind::SchemaMismatch | FailureKind::ProtocolError => {
            ProviderError::InvalidResponse { agent, message, so_far }
        }
        FailureKind::AgentError | FailureKind::PolicyViolation | FailureKind::UnsupportedOption => {
            ProviderError::Agent { agent, message, so_far }
        }
        FailureKind::Deadline { which } => {
            ProviderError::Timeout { agent, deadline: which, after: duration_of(&limits, which), so_far }
        }
        FailureKind::OutputLimit => ProviderError::OutputLimit { agent, so_far },
        FailureKind::Stopped => ProviderError::Cancelled { agent, so_far },
        FailureKind::NotStarted { reason: NotStartedReason::NotConfined } => {
            let missing = message.rsplit("cannot confine the agent: ").next().unwrap_or(&message);
            ProviderError::NeedsSandbox { agent, missing: missing.to_owned() }
        }
        FailureKind::NotStarted { .. }
        | FailureKind::SpoolFailed
        | FailureKind::SupervisorLost
        | FailureKind::Internal
        | FailureKind::CheckoutFailed
        | FailureKind::SetupFailed
        // The library runs no verification and no groups.
        | FailureKind::VerificationFailed
        | FailureKind::NoChanges
        | FailureKind::NothingToReview => ProviderError::environment(
            format!("{agent} CLI could not run: {message}"),
            kind.hint(agent, false),
        ),
    }
}

fn duration_of(limits: &Limits, which: Deadline) -> Duration {
    let limit = match which {
        Deadline::Start => limits.start,
        Deadline::Idle => limits.idle,
        Deadline::Wall => limits.wall,
    };
    limit.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{PermissionDenial, Usage};
    use std::time::UNIX_EPOCH;

    fn finished() -> FinishedRequest {
        FinishedRequest {
            provider: "claude-code".to_owned(),
            outcome: Outcome {
                agent: AgentKind::Claude,
                verdict: Verdict::Success,
                text: "Four.".to_owned(),
                text_cut: 0,
                structured_output: None,
                session: "s-1".parse().ok(),
                session_mismatch: None,
                model: Some("claude-haiku-4-5".to_owned()),
                usage: Some(Usage { input: 10, output: 2, cached: 0, reasoning: 0 }),
                cost_usd: Some(0.5),
                session_totals: None,
                turns: Some(2),
                duration_ms: 900,
                permission_denials: Vec::new(),
                background: Vec::new(),
                refusals: Vec::new(),
                implausible: Vec::new(),
                retries: 0,
                exit: Some(Exit::Code(0)),
            },
            last: LastRun { has_result: true, ..LastRun::default() },
            limits: Limits { idle: Some(Duration::from_millis(1500)), ..Limits::default() },
            resumes: 0,
            processing_time: Duration::from_secs(1),
            now: UNIX_EPOCH + Duration::from_secs(1000),
            warnings: Vec::new(),
        }
    }

    fn failed(kind: FailureKind) -> FinishedRequest {
        let mut finished = finished();
        finished.outcome.exit = Some(Exit::Code(1));
        finished.outcome.verdict = Verdict::Failed(Failure { kind, message: "its message".to_owned() });
        finished
    }

    #[test]
    fn answer_contains_all_metadata() {
        let OutgoingMessage { text, metadata } = answer(finished()).unwrap();
        assert_eq!(text, "Four.");
        let expected = Metadata {
            provider: "claude-code".to_owned(),
            model: Some("claude-haiku-4-5".to_owned()),
            session_id: "s-1".parse().ok(),
            tokens: Some(Usage { input: 10, output: 2, cached: 0, reasoning: 0 }),
            cost_usd: Some(0.5),
            turns: Some(2),
            processing_time: Duration::from_secs(1),
            ..Metadata::default()
        };
        assert_eq!(metadata, expected);
    }

    #[test]
    fn every_failure_kind_maps_to_its_own_error() {
        type Check = fn(&ProviderError) -> bool;
        let denied = FailureKind::PermissionDenied;
        let not_started = FailureKind::NotStarted { reason: NotStartedReason::CwdMissing };
        let not_confined = FailureKind::NotStarted { reason: NotStartedReason::NotConfined };
        let table: [(FailureKind, &str, Check); 18] = [
            (not_confined, "claude CLI cannot be confined here: its message", |e| {
                matches!(e, ProviderError::NeedsSandbox { .. })
            }),
            (FailureKind::Auth, "claude CLI is not logged in: its message", |e| {
                matches!(e, ProviderError::Authentication { .. })
            }),
            (
                FailureKind::RateLimit { retry_after: None },
                "claude CLI has reached its rate limit: its message",
                |e| matches!(e, ProviderError::RateLimit { resets_at: None, .. }),
            ),
            (FailureKind::Overloaded, "claude's servers are overloaded: its message", |e| {
                matches!(e, ProviderError::Overloaded { .. })
            }),
            (FailureKind::Network, "claude CLI cannot reach its model: its message", |e| {
                matches!(e, ProviderError::Network { .. })
            }),
            (
                FailureKind::InvalidOutput,
                "claude CLI returned output that cannot be parsed: its message",
                |e| matches!(e, ProviderError::InvalidResponse { .. }),
            ),
            (FailureKind::AgentError, "claude CLI failed: its message", |e| {
                matches!(e, ProviderError::Agent { .. })
            }),
            (denied, "claude CLI was not allowed to use a tool: its message", |e| {
                matches!(e, ProviderError::ToolPermission { .. })
            }),
            (FailureKind::Deadline { which: Deadline::Wall }, "claude CLI timed out after 3600s", |e| {
                matches!(e, ProviderError::Timeout { deadline: Deadline::Wall, .. })
            }),
            (
                FailureKind::Deadline { which: Deadline::Idle },
                "claude CLI timed out after 1500ms of silence",
                |e| matches!(e, ProviderError::Timeout { deadline: Deadline::Idle, .. }),
            ),
            (FailureKind::Stopped, "claude CLI was stopped", |e| {
                matches!(e, ProviderError::Cancelled { .. })
            }),
            (FailureKind::SessionNotFound, "claude CLI has no such session: its message", |e| {
                matches!(e, ProviderError::SessionNotFound { .. })
            }),
            (FailureKind::SessionInUse, "claude CLI is already using the session: its message", |e| {
                matches!(e, ProviderError::SessionInUse { .. })
            }),
            (FailureKind::MaxTurns, "claude CLI used up its turns (2 turns)", |e| {
                matches!(e, ProviderError::MaxTurns { .. })
            }),
            (FailureKind::MaxBudget, "claude CLI used up its budget: its message", |e| {
                matches!(e, ProviderError::Budget { .. })
            }),
            (FailureKind::OutputLimit, "claude CLI exceeded its output limit", |e| {
                matches!(e, ProviderError::OutputLimit { .. })
            }),
            (not_started, "claude CLI could not run: its message", |e| {
                matches!(e, ProviderError::Environment { .. })
            }),
            (FailureKind::SupervisorLost, "claude CLI could not run: its message", |e| {
                matches!(e, ProviderError::Environment { .. })
            }),
        ];
        for (kind, message, is_right) in table {
            let error = answer(failed(kind)).unwrap_err();
            assert!(is_right(&error), "{error:?}");
            assert_eq!(error.to_string(), message);
            assert!(!error.hint().is_empty(), "{error:?}");
            if let Some(so_far) = error.so_far() {
                assert_eq!(so_far.text, "Four.", "{error:?}");
                assert_eq!(error.session_id().map(ToString::to_string).as_deref(), Some("s-1"));
            }
        }
    }

    #[test]
    fn missing_sandbox_is_reported_without_its_context() {
        let mut finished = failed(FailureKind::NotStarted { reason: NotStartedReason::NotConfined });
        if let Verdict::Failed(failure) = &mut finished.outcome.verdict {
            failure.message = "not started: cannot confine the agent: there is no bubblewrap".to_owned();
        }
        let error = answer(finished).unwrap_err();
        assert_eq!(error.to_string(), "claude CLI cannot be confined here: there is no bubblewrap");
        assert!(error.hint().contains("Access::Files"));
    }

    #[test]
    fn rate_limit_reports_its_reset_time() {
        let wait = FailureKind::RateLimit { retry_after: Some(Duration::from_mins(1)) };
        let ProviderError::RateLimit { resets_at, .. } = answer(failed(wait)).unwrap_err() else { panic!() };
        assert_eq!(resets_at, Some(UNIX_EPOCH + Duration::from_secs(1060)));
    }

    #[test]
    fn denied_tool_is_named_and_answer_is_kept() {
        let mut finished = failed(FailureKind::PermissionDenied);
        let denial = PermissionDenial { tool: "Bash".to_owned(), tool_use_id: None, detail: None };
        finished.outcome.permission_denials = vec![denial.clone()];
        let error = answer(finished).unwrap_err();
        assert_eq!(error.so_far().unwrap().metadata.permission_denials, std::slice::from_ref(&denial));
        let ProviderError::ToolPermission { denials, .. } = error else { panic!() };
        assert_eq!(denials, [denial]);
    }

    #[test]
    fn silent_exit_reports_exit_status_and_stderr() {
        for (kind, text) in [(FailureKind::EmptyOutput, ""), (FailureKind::InvalidOutput, "half")] {
            let mut finished = failed(kind);
            finished.outcome.text = text.to_owned();
            let plain_text = Some("some message".to_owned());
            let stderr = "cannot find module x\n".to_owned();
            finished.last = LastRun { plain_text, stderr, ..LastRun::default() };
            let error = answer(finished).unwrap_err();
            assert_eq!(error.to_string(), "claude CLI exited with exit code 1: cannot find module x");
        }
    }

    #[test]
    fn plain_text_answer_has_a_warning() {
        let mut finished = failed(FailureKind::InvalidOutput);
        finished.outcome.text.clear();
        finished.outcome.exit = Some(Exit::Code(0));
        let plain_text = Some("Four, I think.".to_owned());
        finished.last = LastRun { plain_text, plain_text_cut: 9, ..LastRun::default() };
        let message = answer(finished).unwrap();
        assert_eq!(message.text, "Four, I think.");
        assert_eq!(message.metadata.warnings, [Warning::NotJson, Warning::TextCut { bytes: 9 }]);
    }

    #[test]
    fn error_without_text_is_an_answer_with_a_warning() {
        let mut finished = failed(FailureKind::AgentError);
        finished.outcome.text.clear();
        if let Verdict::Failed(failure) = &mut finished.outcome.verdict {
            failure.message = "error_during_execution".to_owned();
        }
        let message = answer(finished).unwrap();
        assert_eq!(message.text, "Error from Claude: error_during_execution");
        let warning = Warning::ErrorWithoutText { message: "error_during_execution".to_owned() };
        assert_eq!(message.metadata.warnings, [warning]);
    }

    #[test]
    fn api_and_other_agents_errors_stay_errors() {
        let mut by_api = failed(FailureKind::AgentError);
        by_api.last.refused_by_api = true;
        let mut by_codex = failed(FailureKind::AgentError);
        by_codex.outcome.agent = AgentKind::Codex;
        for mut finished in [by_api, by_codex] {
            finished.outcome.text.clear();
            let error = answer(finished).unwrap_err();
            assert!(matches!(error, ProviderError::Agent { .. }), "{error:?}");
        }
    }

    #[test]
    fn empty_answer_returns_placeholder_with_warning() {
        let mut said_nothing = finished();
        said_nothing.outcome.text.clear();
        let mut printed_nothing = failed(FailureKind::EmptyOutput);
        printed_nothing.outcome.text.clear();
        printed_nothing.outcome.exit = Some(Exit::Code(0));
        printed_nothing.last.has_result = false;
        for finished in [said_nothing, printed_nothing] {
            let message = answer(finished).unwrap();
            assert_eq!(message.text, NO_ANSWER);
            assert_eq!(message.metadata.warnings, [Warning::NoText]);
        }
    }

    #[test]
    fn truncated_text_has_a_warning() {
        let mut finished = finished();
        finished.outcome.text_cut = 7;
        assert_eq!(answer(finished).unwrap().metadata.warnings, [Warning::TextCut { bytes: 7 }]);
    }
}
