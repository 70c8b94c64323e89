//! Judges a run: combines the agent's reported result, the supervisor's report and stderr to one outcome.
//!
//! Owns their precedence. The stream counts before the exit code: an agent that reported success has succeeded, however its
//! process ended afterwards, unless background work or a further turn was cut short. Without a reported result no exit code means
//! success. Refusals are listed, but decide nothing.

mod answer_schema;
mod error_patterns;
mod figures;
mod refusals;
mod schema;

use std::time::Duration;

use model::{
    AgentKind, BackgroundTask, End, Exit, ExpectedSession, Failure, FailureKind, Limits, Outcome,
    Requirement, RunReport, SandboxReport, SessionId, SessionMismatch, Totals, Usage, Verdict,
};

use crate::driver::{ExitRule, ReportedError, ReportedErrorCode, ReportedResult, Summary, without_last_word};
use crate::early_stop::is_login_refused;
use crate::{EarlyStop, Launch, Version};
pub(crate) use answer_schema::check_schema;
use error_patterns::{kind_from_message, kind_from_status, retried_request, retry_after};
use figures::Figures;
pub(crate) use refusals::joined as joined_refusals;

/// Since this version claude counts cost per session.
const CLAUDE_COUNTS_SESSIONS_SINCE: Version = Version(2, 1, 325);

/// The limit of an agent's message in a failure.
const MESSAGE_CHARS: usize = 2000;

/// The inputs of a judgment.
#[derive(Debug)]
pub struct FinishedRun<'a> {
    /// The agent.
    pub agent: AgentKind,
    /// The summary of stdout.
    pub summary: &'a Summary,
    /// The supervisor's report.
    pub report: &'a RunReport,
    /// The tail of stderr.
    pub stderr_tail: &'a str,
    /// The expected session.
    pub session: &'a ExpectedSession,
    /// The requested model.
    pub model: Option<&'a str>,
    /// The output schema of the call.
    pub schema: Option<&'a str>,
    /// The agent's totals of the session before this run ([`Outcome::session_totals`] of the previous run).
    pub totals_before: Option<Totals>,
    /// The limits of the call, for messages; `None` if they are not known.
    pub limits: Option<&'a Limits>,
    /// The reason for which the reader of the run has stopped it.
    pub early_stop: Option<EarlyStop>,
}

impl<'a> FinishedRun<'a> {
    /// Returns the inputs for a call without a schema and a new session.
    pub fn new(
        agent: AgentKind,
        launch: &'a Launch,
        summary: &'a Summary,
        report: &'a RunReport,
        stderr_tail: &'a str,
    ) -> Self {
        let (session, model) = (&launch.session, launch.model.as_deref());
        let limits = Some(&launch.plan.limits);
        Self {
            agent,
            summary,
            report,
            stderr_tail,
            session,
            model,
            schema: None,
            totals_before: None,
            limits,
            early_stop: None,
        }
    }
}

/// Returns the outcome of a run.
pub fn judge(run: &FinishedRun<'_>) -> Outcome {
    let summary = run.summary;
    let mismatch = mismatch(run);
    let verdict = verdict(run, mismatch.as_ref());
    let (usage, cost_usd) = usage_of_run(run);
    let Figures { usage, cost_usd, implausible } = Figures::check(usage, cost_usd);
    Outcome {
        agent: run.agent,
        session: session(run, &verdict),
        verdict,
        text: summary.text(),
        text_cut: summary.text_cut(),
        structured_output: schema::answer(run),
        session_mismatch: mismatch,
        model: summary.model.clone().or_else(|| run.model.map(str::to_owned)),
        usage,
        cost_usd,
        session_totals: totals(run),
        turns: turns(summary),
        duration_ms: run.report.duration_ms,
        permission_denials: summary.denials.clone(),
        background: background(run),
        refusals: refusals::refusals(run),
        implausible,
        retries: summary.retries,
        exit: exit(run),
    }
}

/// Returns the exit status, unless the process was stopped after the agent had reported its result.
fn exit(run: &FinishedRun<'_>) -> Option<Exit> {
    let is_its_own = run.summary.reported.is_none() || run.report.end == End::Exited;
    run.report.exit.filter(|_| is_its_own)
}

fn verdict(run: &FinishedRun<'_>, mismatch: Option<&SessionMismatch>) -> Verdict {
    let failure = match (&run.summary.reported, &run.report.end) {
        (Some(ReportedResult::Done), _) => contradicted_success(run, mismatch),
        (Some(ReportedResult::Failed(error)), end)
            if error.code == ReportedErrorCode::Canceled && *end != End::Exited =>
        {
            Some(failure_from_outside(run, end))
        }
        (Some(ReportedResult::Failed(error)), _) => Some(reported_failure(run, error)),
        (Some(ReportedResult::Unreadable(why)), End::Exited) => {
            let message = format!("the agent's result cannot be parsed: {why}");
            Some(failure(FailureKind::InvalidOutput, &message))
        }
        (None, End::Exited) => match &run.summary.exit_rule {
            Some(rule) => judge_exit_code(run, rule, mismatch),
            None => Some(failure_without_result(run)),
        },
        (None | Some(ReportedResult::Unreadable(_)), end) => Some(failure_from_outside(run, end)),
    };
    failure.map_or(Verdict::Success, Verdict::Failed)
}

/// Returns the evidence against a reported success.
fn contradicted_success(run: &FinishedRun<'_>, mismatch: Option<&SessionMismatch>) -> Option<Failure> {
    if let (Some(mismatch), ExpectedSession::Resumed(_)) = (mismatch, run.session) {
        let SessionMismatch { asked, got } = mismatch;
        let message = format!("asked to resume session {asked}, the agent started session {got}");
        return Some(failure(FailureKind::SessionNotFound, &message));
    }
    let unfinished =
        cut_short(run).or_else(|| killed_after_result(run)).or_else(|| suspended_after_result(run));
    if let Some(failure) = unfinished.or_else(|| not_enforced(run)) {
        return Some(failure);
    }
    if run.summary.answer_is_lost() {
        let Summary { oversized, stray_lines, .. } = run.summary;
        let message = format!(
            "the answer is not known: it may be in a line that could not be read ({oversized} were over the limit, \
             {stray_lines} were no JSON)"
        );
        return Some(failure(FailureKind::InvalidOutput, &message));
    }
    // Gemini does this for a prompt that exceeds its model's context.
    let used_nothing = run.summary.usage == Some(Usage::default());
    if used_nothing && run.summary.text().is_empty() {
        return Some(failure(
            FailureKind::EmptyOutput,
            "the agent reported success without a request to a model",
        ));
    }
    // They end a turn like this when they cancel a tool or run a command of their own.
    let is_profiled = matches!(run.agent, AgentKind::Profiled(_));
    if is_profiled && run.summary.exit_rule.is_none() && is_blank(&run.summary.text()) {
        return Some(failure(FailureKind::EmptyOutput, "the agent ended its turn without an answer"));
    }
    schema::find_mismatch(run).map(|problem| failure(FailureKind::SchemaMismatch, &problem))
}

/// Returns whether an answer shows nothing.
fn is_blank(text: &str) -> bool {
    text.chars().all(|c| c.is_whitespace() || c.is_control() || ('\u{200b}'..='\u{200f}').contains(&c))
}

/// Judges a program without a result of its own.
fn judge_exit_code(
    run: &FinishedRun<'_>,
    rule: &ExitRule,
    mismatch: Option<&SessionMismatch>,
) -> Option<Failure> {
    if run.report.exit != Some(Exit::Code(0)) {
        let failed = failure_without_result(run);
        // The output is no stream that could be damaged.
        let is_plain = matches!(failed.kind, FailureKind::InvalidOutput | FailureKind::EmptyOutput);
        let exit = run.report.exit.map_or_else(|| "an unknown exit".to_owned(), |exit| exit.to_string());
        let message = format!("the command ended with {exit}: {}", last_line(run.stderr_tail));
        return Some(if is_plain { failure(FailureKind::AgentError, &message) } else { failed });
    }
    if let Some(problem) = &rule.problem {
        return Some(failure(FailureKind::InvalidOutput, problem));
    }
    if is_blank(&run.summary.text()) {
        return Some(failure(FailureKind::EmptyOutput, "the command succeeded without an answer"));
    }
    contradicted_success(run, mismatch)
}

/// Returns the failure of an agent that answered while other work was running and was cut short.
///
/// If a limit or a stop was the cause, that is the failure. If the agent cut the work short, or its process exited, the run is
/// incomplete; likewise if the agent cut work short, knowingly answered, and was stopped only afterwards.
fn cut_short(run: &FinishedRun<'_>) -> Option<Failure> {
    let (summary, end) = (run.summary, &run.report.end);
    let (in_turn, tasks) = (summary.is_in_further_turn(), background(run));
    if !in_turn && (tasks.is_empty() || !summary.background.is_cut_short()) {
        return None;
    }
    let after_answer = in_turn || summary.background.is_cut_short_after_answer();
    if after_answer && *end != End::Exited {
        return Some(failure_from_outside(run, end));
    }
    let message = match tasks.as_slice() {
        [] => "the agent answered and started a further turn, which never finished".to_owned(),
        tasks => {
            let names: Vec<_> = tasks.iter().map(BackgroundTask::to_string).collect();
            format!("the agent answered, but background work did not complete: {}", names.join("; "))
        }
    };
    Some(failure(FailureKind::Incomplete, &message))
}

/// Returns the failure of an agent that was killed by a foreign signal after its result: a process of its tools could print a
/// result in its name and kill it.
fn killed_after_result(run: &FinishedRun<'_>) -> Option<Failure> {
    let signal = match run.report.exit? {
        Exit::Signal(signal) => signal,
        // The exit code of a program that handles the signal.
        Exit::Code(code @ 129..=159) => code - 128,
        Exit::Code(_) => return None,
    };
    let message =
        format!("the agent was killed (signal {signal}) after a result was printed: it may not be its own");
    (run.report.end == End::Exited).then(|| failure(FailureKind::Incomplete, &message))
}

/// Returns the failure of an agent that was suspended when it was stopped after its result: a process of its tools could print a
/// result in its name and suspend it.
fn suspended_after_result(run: &FinishedRun<'_>) -> Option<Failure> {
    let message = "the agent was suspended after a result was printed: it may not be its own";
    (run.report.was_suspended && run.report.end != End::Exited)
        .then(|| failure(FailureKind::Incomplete, message))
}

/// Returns the failure of a run whose required policy was not fully enforced: a new path could not be scanned or quarantined.
fn not_enforced(run: &FinishedRun<'_>) -> Option<Failure> {
    let Some(SandboxReport::Confined(confined)) = &run.report.sandbox else { return None };
    let is_required = confined.policy.requirement == Requirement::Require;
    let left = confined.quarantined.iter().find(|left| is_required && left.moved_to.is_none())?;
    let done = if left.unexamined { "examined" } else { "moved to quarantine" };
    let message =
        format!("the required policy was not fully enforced: `{}` could not be {done}", left.path.display());
    Some(failure(FailureKind::PolicyViolation, &message))
}

/// Returns the background tasks that did not complete. Gemini never reports the exit of a task, but a finished one leaves no
/// process behind when gemini exits.
fn background(run: &FinishedRun<'_>) -> Vec<BackgroundTask> {
    let left_nothing = run.report.end == End::Exited && run.report.descendants_ended == 0;
    if run.agent == AgentKind::Gemini && left_nothing {
        return Vec::new();
    }
    run.summary.background.not_completed()
}

fn reported_failure(run: &FinishedRun<'_>, error: &ReportedError) -> Failure {
    let kind = match error.code {
        ReportedErrorCode::MaxTurns => FailureKind::MaxTurns,
        ReportedErrorCode::MaxBudget => FailureKind::MaxBudget,
        ReportedErrorCode::SchemaNotMet => FailureKind::SchemaMismatch,
        ReportedErrorCode::Auth => FailureKind::Auth,
        ReportedErrorCode::SessionNotFound => FailureKind::SessionNotFound,
        ReportedErrorCode::UnsupportedOption => FailureKind::UnsupportedOption,
        ReportedErrorCode::CutOff | ReportedErrorCode::Canceled => FailureKind::Incomplete,
        ReportedErrorCode::Protocol => FailureKind::ProtocolError,
        ReportedErrorCode::Other => {
            let by_status = error.http_status.or_else(|| exit_status(run)).and_then(kind_from_status);
            // Gemini reports a rejected key as a plain 400: an ambiguous status leaves the decision to the message.
            let by_status = by_status.filter(|kind| *kind != FailureKind::AgentError);
            by_status.or_else(|| kind_from_message(&error.message)).unwrap_or(FailureKind::AgentError)
        }
    };
    let kind = with_retry_after(kind, run, &error.message);
    let message = error.message.trim();
    let message = if message.is_empty() { last_line(run.stderr_tail) } else { message };
    failure(kind, message)
}

/// Returns the failure of a process that exited without a result.
fn failure_without_result(run: &FinishedRun<'_>) -> Failure {
    let stderr = without_notices(run.stderr_tail);
    let stderr = stderr.trim();
    let exit = run.report.exit.map_or_else(|| "an unknown exit".to_owned(), |exit| exit.to_string());
    let last_error = run.summary.last_error.as_deref().unwrap_or_default();
    let message = if last_error.is_empty() { stderr } else { last_error };
    // A shell or launcher reports SIGKILL as 137.
    let signal = match run.report.exit {
        Some(Exit::Signal(signal)) => Some(signal),
        Some(Exit::Code(137)) => Some(9),
        _ => None,
    };
    if let Some(signal) = signal {
        let detail = if message.is_empty() { String::new() } else { format!(": {message}") };
        let message = format!("the agent was killed (signal {signal}) before it gave a result{detail}");
        return failure(FailureKind::Killed { signal }, &message);
    }
    let classified =
        exit_kind(run).or_else(|| kind_from_message(message)).or_else(|| kind_from_message(stderr));
    if let Some(kind) = classified {
        return failure(with_retry_after(kind, run, message), message);
    }
    if stderr.contains("cannot be used with root/sudo privileges") {
        let remedy = "keep the sandbox on (policy `workspace`), or run as an unprivileged user";
        return failure(
            FailureKind::AgentError,
            &format!("claude refuses to run as root without a sandbox: {remedy}"),
        );
    }
    if let Some(method) = run.summary.unanswered {
        let detail = if message.is_empty() { run.summary.stray() } else { message };
        let detail = if detail.is_empty() { String::new() } else { format!(": {detail}") };
        let message = format!("the agent ended with {exit} before it answered `{method}`{detail}");
        return failure(FailureKind::ProtocolError, &message);
    }
    if run.report.output_bytes == 0 {
        let message = match stderr {
            "" => format!("{exit} without any output"),
            stderr => format!("{exit} without output on stdout: {stderr}"),
        };
        return failure(FailureKind::EmptyOutput, &message);
    }
    let oversized = match run.summary.oversized {
        0 => String::new(),
        lines => format!("; {lines} lines exceeded the limit and were skipped"),
    };
    let detail = if message.is_empty() { run.summary.stray() } else { message };
    let detail = if detail.is_empty() { String::new() } else { format!(": {detail}") };
    failure(
        FailureKind::InvalidOutput,
        &format!("the stream ended without a result, with {exit}{oversized}{detail}"),
    )
}

fn failure_from_outside(run: &FinishedRun<'_>, end: &End) -> Failure {
    let kind = match end {
        End::Exited => FailureKind::InvalidOutput,
        End::Deadline { which } => FailureKind::Deadline { which: *which },
        End::OutputLimit => FailureKind::OutputLimit,
        End::Stopped | End::StarterGone => FailureKind::Stopped,
        End::NotStarted(why) => FailureKind::NotStarted { reason: why.reason },
        End::SpoolFailed { .. } => FailureKind::SpoolFailed,
        End::SupervisorLost => FailureKind::SupervisorLost,
        End::PolicyViolation { .. } => FailureKind::PolicyViolation,
    };
    if let (Some(EarlyStop::Unresponsive { silence }), Some(method)) =
        (run.early_stop, run.summary.unanswered)
    {
        let seconds = silence.as_secs_f64();
        let message = format!("the agent did not reply to `{method}` within {seconds} s");
        return failure(FailureKind::ProtocolError, &message);
    }
    if is_login_refused(run.summary) && matches!(end, End::Stopped | End::Deadline { .. }) {
        let last_error = run.summary.last_error.as_deref().unwrap_or("authentication failed");
        let times = run.summary.login_refusals;
        return failure(
            FailureKind::Auth,
            &format!("{last_error}, {times} times; stopped instead of retrying further"),
        );
    }
    if let (End::Deadline { .. }, true, Some(last_error)) =
        (end, run.summary.is_retrying, run.summary.last_error.as_deref())
        && kind_from_message(last_error) == Some(FailureKind::Network)
    {
        return failure(FailureKind::Network, &format!("{last_error}; {}", describe_end(run, end)));
    }
    // The last retried request is the most likely cause of the delay.
    let retried = || retried_request(run.stderr_tail).filter(|_| run.agent == AgentKind::Gemini);
    let end = describe_end(run, end);
    match run.summary.last_error.clone().or_else(retried) {
        Some(last_error) => failure(kind, &format!("{end}; before that: {last_error}")),
        None => failure(kind, &end),
    }
}

/// Describes the end of a run that did not exit by itself.
fn describe_end(run: &FinishedRun<'_>, end: &End) -> String {
    match end {
        End::Deadline { which } => which.describe(run.limits),
        End::OutputLimit => "the output exceeded its limit".to_owned(),
        End::Stopped => "cancelled".to_owned(),
        End::SupervisorLost => "the supervisor was killed".to_owned(),
        end => end.to_string(),
    }
}

fn failure(kind: FailureKind, message: &str) -> Failure {
    let message = message.trim();
    let message = match message.char_indices().nth(MESSAGE_CHARS) {
        // The rest of a cut secret would not be recognized and redacted.
        Some((end, _)) => without_last_word(&message[..end]),
        None => message,
    };
    Failure { kind, message: message.to_owned() }
}

/// Maps gemini's exit codes: its own, and the HTTP status modulo 256.
fn exit_kind(run: &FinishedRun<'_>) -> Option<FailureKind> {
    let (AgentKind::Gemini, Some(Exit::Code(code))) = (run.agent, run.report.exit) else { return None };
    match code {
        41 => Some(FailureKind::Auth),
        42 if matches!(run.session, ExpectedSession::Resumed(_)) => Some(FailureKind::SessionNotFound),
        53 => Some(FailureKind::MaxTurns),
        _ => exit_status(run).and_then(kind_from_status),
    }
}

fn exit_status(run: &FinishedRun<'_>) -> Option<u16> {
    let (AgentKind::Gemini, Some(Exit::Code(code))) = (run.agent, run.report.exit) else { return None };
    // Above gemini's own codes and those of signals.
    u16::try_from(code).ok().filter(|code| (144..=255).contains(code)).map(|code| code + 256)
}

/// Adds the waiting time to a rate limit.
fn with_retry_after(kind: FailureKind, run: &FinishedRun<'_>, message: &str) -> FailureKind {
    let FailureKind::RateLimit { .. } = kind else { return kind };
    let now = run.report.ended_at_ms / 1000;
    let until = run.summary.limit_resets_at.map(|at| Duration::from_secs(at.saturating_sub(now)));
    FailureKind::RateLimit { retry_after: until.or_else(|| retry_after(message, now)) }
}

/// Removes the notices that gemini prints to stderr in every run.
fn without_notices(stderr: &str) -> String {
    let notices =
        ["Warning:", "YOLO mode is enabled", "Ripgrep is not available", "Loaded cached credentials"];
    let lines: Vec<_> =
        stderr.lines().filter(|line| !notices.iter().any(|notice| line.starts_with(notice))).collect();
    lines.join("\n")
}

fn last_line(text: &str) -> &str {
    text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("the agent gave no reason")
}

/// Returns the session to resume: the reported one, or the one that was resumed. A new session exists only once the agent has
/// reported it.
fn session(run: &FinishedRun<'_>, verdict: &Verdict) -> Option<SessionId> {
    if let Verdict::Failed(Failure { kind, .. }) = verdict {
        let started_other = run.summary.reported == Some(ReportedResult::Done);
        match kind {
            // An agent that does not find the session echoes the id, or makes one up that it never stores.
            FailureKind::SessionNotFound if !started_other => return None,
            FailureKind::NotStarted { .. } => return None,
            _ => {}
        }
    }
    let reported = run.summary.session_id.as_deref().and_then(|id| id.parse().ok());
    reported.or_else(|| match run.session {
        ExpectedSession::Resumed(session) => Some(session.clone()),
        _ => None,
    })
}

/// Returns the number of turns. Claude also counts the turn that exceeded the limit, and one without an answer because of a
/// missing login.
fn turns(summary: &Summary) -> Option<u32> {
    let used_nothing = summary.usage.is_none_or(|usage| usage == Usage::default());
    match &summary.reported {
        Some(ReportedResult::Failed(ReportedError { code: ReportedErrorCode::Other, .. }))
            if used_nothing && summary.turns == Some(1) =>
        {
            None
        }
        Some(ReportedResult::Failed(ReportedError { code: ReportedErrorCode::MaxTurns, .. })) => {
            summary.turns.map(|turns| turns.saturating_sub(1))
        }
        _ => summary.turns,
    }
}

fn mismatch(run: &FinishedRun<'_>) -> Option<SessionMismatch> {
    let got = run.summary.session_id.as_deref()?;
    let asked = run.session.broken_by(got)?.clone();
    Some(SessionMismatch { asked, got: got.to_owned() })
}

/// Returns the counters of an agent that counts per session.
fn totals(run: &FinishedRun<'_>) -> Option<Totals> {
    let counted = Figures::check(run.summary.usage, run.summary.cost_usd);
    let totals = Totals {
        usage: counted.usage.filter(|_| run.agent == AgentKind::Codex),
        cost_usd: counted.cost_usd.filter(|_| counts_cost_of_session(run)),
    };
    (totals != Totals::default()).then_some(totals)
}

fn counts_cost_of_session(run: &FinishedRun<'_>) -> bool {
    let version = run.summary.agent_version.as_deref().and_then(Version::find);
    run.agent == AgentKind::Claude && version.is_some_and(|version| version >= CLAUDE_COUNTS_SESSIONS_SINCE)
}

/// Returns the usage of this run: the difference of the session's counters. Unknown earlier counters of a resumed session leave
/// no correct figure, so none is returned.
fn usage_of_run(run: &FinishedRun<'_>) -> (Option<Usage>, Option<f64>) {
    let (mut usage, mut cost) = (run.summary.usage, run.summary.cost_usd);
    if !has_earlier_runs(run) {
        return (usage, cost.or(run.summary.run_cost_usd));
    }
    if let Some(cost) = run.summary.run_cost_usd {
        return (usage, Some(cost));
    }
    let before = run.totals_before.unwrap_or_default();
    if run.agent == AgentKind::Codex {
        usage = usage.zip(before.usage).map(|(now, before)| now.since(before));
    }
    if counts_cost_of_session(run) {
        cost = cost.zip(before.cost_usd).map(|(now, before)| (now - before).max(0.0));
    }
    (usage, cost)
}

fn has_earlier_runs(run: &FinishedRun<'_>) -> bool {
    match run.session {
        // A fork starts with the counters of its origin.
        ExpectedSession::Resumed(_) | ExpectedSession::Forked { .. } | ExpectedSession::Latest => true,
        ExpectedSession::Assigned(_) | ExpectedSession::Any => false,
    }
}
