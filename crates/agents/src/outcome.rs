//! What a run came to: the agent's own word, the supervisor's report and the words on stderr, weighed into one outcome.
//!
//! Owns the order in which they count. The stream is read before the exit code is looked at: an agent that said it was
//! done is done, whatever ended its process afterwards, unless background work or a further turn was cut short; and
//! without its word no exit code is a success. Something that was refused on the way is listed, and decides nothing.

mod figures;
mod refusals;
mod words;

use std::time::Duration;

use model::{
    AgentKind, BackgroundTask, End, Exit, ExpectedSession, Failure, FailureKind, Outcome, Requirement,
    RunReport, SandboxReport, SessionId, SessionMismatch, Totals, Usage, Verdict,
};

use crate::early_stop::is_login_refused;
use crate::parse::{ReportedError, ReportedErrorCode, ReportedResult, Summary};
use crate::{Launch, Version};
use figures::Figures;
pub(crate) use refusals::joined as joined_refusals;
use words::{kind_of_status, kind_of_words, retried_request, retry_after};

/// Since this version claude counts cost over the whole session.
const CLAUDE_COUNTS_SESSIONS_SINCE: Version = Version(2, 1, 325);

/// How much of an agent's own words is kept in a failure.
const MESSAGE_CHARS: usize = 2000;

/// Everything that is known about a run when it has ended.
#[derive(Debug)]
pub struct FinishedRun<'a> {
    /// Whose run it was.
    pub agent: AgentKind,
    /// What its stdout said.
    pub summary: &'a Summary,
    /// What the supervisor saw.
    pub report: &'a RunReport,
    /// The end of its stderr.
    pub stderr_tail: &'a str,
    /// Which session it was to use.
    pub session: &'a ExpectedSession,
    /// The model that it was told to use.
    pub model: Option<&'a str>,
    /// Whether it was given a schema for its answer. The schema itself is not looked at: an agent that was given one must
    /// answer with JSON, of whatever form.
    pub has_schema: bool,
    /// What the agent had counted for the session before this run ([`Outcome::session_totals`] of the run before).
    pub before: Option<Totals>,
}

impl<'a> FinishedRun<'a> {
    /// What is known of a launch that has ended, for a call without a schema and a session without a past.
    pub fn new(
        agent: AgentKind,
        launch: &'a Launch,
        summary: &'a Summary,
        report: &'a RunReport,
        stderr_tail: &'a str,
    ) -> Self {
        let (session, model) = (&launch.session, launch.model.as_deref());
        Self { agent, summary, report, stderr_tail, session, model, has_schema: false, before: None }
    }
}

/// Judges a run.
pub fn judge(ended: &FinishedRun<'_>) -> Outcome {
    let summary = ended.summary;
    let mismatch = mismatch(ended);
    let verdict = verdict(ended, mismatch.as_ref());
    let (usage, cost_usd) = this_run(ended);
    let Figures { usage, cost_usd, implausible } = Figures::check(usage, cost_usd);
    Outcome {
        agent: ended.agent,
        session: session(ended, &verdict),
        verdict,
        text: summary.text(),
        text_cut: summary.text_cut(),
        structured_output: structured_output(ended),
        session_mismatch: mismatch,
        model: summary.model.clone().or_else(|| ended.model.map(str::to_owned)),
        usage,
        cost_usd,
        session_totals: totals(ended),
        turns: turns(summary),
        duration_ms: ended.report.duration_ms,
        permission_denials: summary.denials.clone(),
        background: background(ended),
        refusals: refusals::refusals(ended),
        implausible,
        retries: summary.retries,
        exit: exit(ended),
    }
}

/// The exit status of an agent that was stopped after its last word is the doing of whoever stopped it.
fn exit(ended: &FinishedRun<'_>) -> Option<Exit> {
    let is_its_own = ended.summary.reported.is_none() || ended.report.end == End::Exited;
    ended.report.exit.filter(|_| is_its_own)
}

fn verdict(ended: &FinishedRun<'_>, mismatch: Option<&SessionMismatch>) -> Verdict {
    let failure = match (&ended.summary.reported, &ended.report.end) {
        (Some(ReportedResult::Done), _) => done_but(ended, mismatch),
        (Some(ReportedResult::Failed(complaint)), _) => Some(complained(ended, complaint)),
        (Some(ReportedResult::Unreadable(why)), End::Exited) => {
            let message = format!("the agent's result cannot be read: {why}");
            Some(failure(FailureKind::InvalidOutput, &message))
        }
        (None, End::Exited) => Some(silent(ended)),
        (None | Some(ReportedResult::Unreadable(_)), end) => Some(ended_from_outside(ended, end)),
    };
    failure.map_or(Verdict::Success, Verdict::Failed)
}

/// What speaks against an agent that says it is done.
fn done_but(ended: &FinishedRun<'_>, mismatch: Option<&SessionMismatch>) -> Option<Failure> {
    if let (Some(mismatch), ExpectedSession::Resumed(_)) = (mismatch, ended.session) {
        let SessionMismatch { asked, got } = mismatch;
        let message = format!("asked to resume session {asked}, the agent began session {got}");
        return Some(failure(FailureKind::SessionNotFound, &message));
    }
    let unfinished = cut_short(ended).or_else(|| killed_after_result(ended));
    if let Some(failure) = unfinished.or_else(|| not_enforced(ended)) {
        return Some(failure);
    }
    if ended.summary.answer_is_lost() {
        let Summary { oversized, stray_lines, .. } = ended.summary;
        let message = format!(
            "the answer is not known: it may be in a line that could not be read ({oversized} were over the limit, \
             {stray_lines} were no JSON)"
        );
        return Some(failure(FailureKind::InvalidOutput, &message));
    }
    // Gemini does this with a prompt that is too long for its model.
    let used_nothing = ended.summary.usage == Some(Usage::default());
    if used_nothing && ended.summary.text().is_empty() {
        return Some(failure(FailureKind::EmptyOutput, "the agent says it is done, but asked no model"));
    }
    if ended.has_schema && structured_output(ended).is_none() {
        return Some(failure(
            FailureKind::InvalidOutput,
            "there is no answer in the form of the output schema",
        ));
    }
    None
}

/// The failure of an agent that answered while work of it was still going on, and cut short.
///
/// If a limit or a stop did that, it is the end of the run. If the agent itself did, or its process exited, the run is
/// incomplete; and it is, too, if the agent cut work short, answered knowing of it, and was stopped only afterwards.
fn cut_short(ended: &FinishedRun<'_>) -> Option<Failure> {
    let (summary, end) = (ended.summary, &ended.report.end);
    let (in_turn, tasks) = (summary.is_in_further_turn(), background(ended));
    if !in_turn && (tasks.is_empty() || !summary.background.is_cut_short()) {
        return None;
    }
    let after_answer = in_turn || summary.background.is_cut_short_after_answer();
    if after_answer && *end != End::Exited {
        return Some(ended_from_outside(ended, end));
    }
    let message = match tasks.as_slice() {
        [] => "the agent answered and began a further turn, which never ended".to_owned(),
        tasks => {
            let names: Vec<_> = tasks.iter().map(BackgroundTask::to_string).collect();
            format!("the agent answered, but background work did not complete: {}", names.join("; "))
        }
    };
    Some(failure(FailureKind::Incomplete, &message))
}

/// The failure of an agent that a signal ended after its result, and not through us. A process of its own tools can print a result in its
/// name and kill it.
fn killed_after_result(ended: &FinishedRun<'_>) -> Option<Failure> {
    let signal = match ended.report.exit? {
        Exit::Signal(signal) => signal,
        // As a program reports it that handles the signal.
        Exit::Code(code @ 129..=159) => code - 128,
        Exit::Code(_) => return None,
    };
    let message =
        format!("the agent was killed (signal {signal}) after a result was printed: it may not be its own");
    (ended.report.end == End::Exited).then(|| failure(FailureKind::Incomplete, &message))
}

/// The failure of a run whose policy was required, and was not enforced in full after all: what its agent created could not be examined or
/// moved away.
fn not_enforced(ended: &FinishedRun<'_>) -> Option<Failure> {
    let Some(SandboxReport::Confined(confined)) = &ended.report.sandbox else { return None };
    let is_required = confined.policy.requirement == Requirement::Require;
    let left = confined.quarantined.iter().find(|left| is_required && left.moved_to.is_none())?;
    let done = if left.unexamined { "examined" } else { "moved to quarantine" };
    let message = format!(
        "the policy was required and could not be enforced in full: `{}` could not be {done}",
        left.path.display()
    );
    Some(failure(FailureKind::PolicyViolation, &message))
}

/// The background tasks that did not complete. Gemini never reports the end of one; but one that is over leaves no process
/// behind when gemini exits.
fn background(ended: &FinishedRun<'_>) -> Vec<BackgroundTask> {
    let left_nothing = ended.report.end == End::Exited && ended.report.descendants_ended == 0;
    if ended.agent == AgentKind::Gemini && left_nothing {
        return Vec::new();
    }
    ended.summary.background.not_completed()
}

fn complained(ended: &FinishedRun<'_>, complaint: &ReportedError) -> Failure {
    let kind = match complaint.code {
        ReportedErrorCode::MaxTurns => FailureKind::MaxTurns,
        ReportedErrorCode::MaxBudget => FailureKind::MaxBudget,
        ReportedErrorCode::SchemaNotMet => FailureKind::InvalidOutput,
        ReportedErrorCode::Other => {
            let told = complaint.http_status.or_else(|| exit_status(ended)).and_then(kind_of_status);
            // A refused key is a plain 400 to gemini: a status that may be many things leaves it to the words.
            let told = told.filter(|kind| *kind != FailureKind::AgentError);
            told.or_else(|| kind_of_words(&complaint.words)).unwrap_or(FailureKind::AgentError)
        }
    };
    let kind = with_wait(kind, ended, &complaint.words);
    let words = complaint.words.trim();
    let words = if words.is_empty() { last_line(ended.stderr_tail) } else { words };
    failure(kind, words)
}

/// The process ended by itself and the stream has no last word.
fn silent(ended: &FinishedRun<'_>) -> Failure {
    let stderr = without_notices(ended.stderr_tail);
    let stderr = stderr.trim();
    let exit = ended.report.exit.map_or_else(|| "an unknown exit".to_owned(), |exit| exit.to_string());
    let trouble = ended.summary.last_trouble.as_deref().unwrap_or_default();
    let words = if trouble.is_empty() { stderr } else { trouble };
    // 137 is how a shell or a launcher reports it.
    let signal = match ended.report.exit {
        Some(Exit::Signal(signal)) => Some(signal),
        Some(Exit::Code(137)) => Some(9),
        _ => None,
    };
    if let Some(signal) = signal {
        let said = if words.is_empty() { String::new() } else { format!(": {words}") };
        let message = format!("the agent was killed (signal {signal}) before it gave a result{said}");
        return failure(FailureKind::Killed { signal }, &message);
    }
    let told = exit_kind(ended).or_else(|| kind_of_words(words)).or_else(|| kind_of_words(stderr));
    if let Some(kind) = told {
        return failure(with_wait(kind, ended, words), words);
    }
    if stderr.contains("cannot be used with root/sudo privileges") {
        let remedy = "keep the sandbox on (policy `workspace`), or work as an ordinary user";
        return failure(
            FailureKind::AgentError,
            &format!("claude refuses to run as root without a sandbox: {remedy}"),
        );
    }
    if ended.report.output_bytes == 0 {
        let said = if stderr.is_empty() { "nothing on stderr either" } else { stderr };
        return failure(FailureKind::EmptyOutput, &format!("{exit}, nothing on stdout: {said}"));
    }
    let oversized = match ended.summary.oversized {
        0 => String::new(),
        lines => format!("; {lines} lines were over the limit and not read"),
    };
    let said = if words.is_empty() { ended.summary.stray() } else { words };
    let said = if said.is_empty() { String::new() } else { format!(": {said}") };
    failure(
        FailureKind::InvalidOutput,
        &format!("the stream ended without a result, with {exit}{oversized}{said}"),
    )
}

fn ended_from_outside(ended: &FinishedRun<'_>, end: &End) -> Failure {
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
    if is_login_refused(ended.summary) && matches!(end, End::Stopped | End::Deadline { .. }) {
        let trouble = ended.summary.last_trouble.as_deref().unwrap_or("authentication failed");
        let times = ended.summary.login_refusals;
        return failure(
            FailureKind::Auth,
            &format!("{trouble}, {times} times; stopped instead of retrying further"),
        );
    }
    if let (End::Deadline { .. }, true, Some(trouble)) =
        (end, ended.summary.is_retrying, ended.summary.last_trouble.as_deref())
        && kind_of_words(trouble) == Some(FailureKind::Network)
    {
        return failure(FailureKind::Network, &format!("{trouble}; stopped at the {end}"));
    }
    // What the agent was struggling with when it was ended is most often why it took so long.
    let retried = || retried_request(ended.stderr_tail).filter(|_| ended.agent == AgentKind::Gemini);
    match ended.summary.last_trouble.clone().or_else(retried) {
        Some(trouble) => failure(kind, &format!("{end}; before that: {trouble}")),
        None => failure(kind, &end.to_string()),
    }
}

fn failure(kind: FailureKind, words: &str) -> Failure {
    Failure { kind, message: words.trim().chars().take(MESSAGE_CHARS).collect() }
}

/// Gemini's exit codes: its own few, and the HTTP status modulo 256.
fn exit_kind(ended: &FinishedRun<'_>) -> Option<FailureKind> {
    let (AgentKind::Gemini, Some(Exit::Code(code))) = (ended.agent, ended.report.exit) else { return None };
    match code {
        41 => Some(FailureKind::Auth),
        42 if matches!(ended.session, ExpectedSession::Resumed(_)) => Some(FailureKind::SessionNotFound),
        53 => Some(FailureKind::MaxTurns),
        _ => exit_status(ended).and_then(kind_of_status),
    }
}

fn exit_status(ended: &FinishedRun<'_>) -> Option<u16> {
    let (AgentKind::Gemini, Some(Exit::Code(code))) = (ended.agent, ended.report.exit) else { return None };
    // 128 and above, or it would be one of gemini's own; and below what a signal leaves behind a shell.
    u16::try_from(code).ok().filter(|code| (144..=255).contains(code)).map(|code| code + 256)
}

/// Adds to a rate limit how long it lasts.
fn with_wait(kind: FailureKind, ended: &FinishedRun<'_>, words: &str) -> FailureKind {
    let FailureKind::RateLimit { .. } = kind else { return kind };
    let now = ended.report.ended_at_ms / 1000;
    let until = ended.summary.limit_resets_at.map(|at| Duration::from_secs(at.saturating_sub(now)));
    FailureKind::RateLimit { retry_after: until.or_else(|| retry_after(words, now)) }
}

/// What gemini writes on stderr in every run would stand before every message.
fn without_notices(stderr: &str) -> String {
    let notices =
        ["Warning:", "YOLO mode is enabled", "Ripgrep is not available", "Loaded cached credentials"];
    let lines: Vec<_> =
        stderr.lines().filter(|line| !notices.iter().any(|notice| line.starts_with(notice))).collect();
    lines.join("\n")
}

fn last_line(text: &str) -> &str {
    text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("the agent said nothing about it")
}

/// Returns the session that can be resumed: the one that the agent named, or the one that was resumed. A new session exists only once
/// the agent has named it.
fn session(ended: &FinishedRun<'_>, verdict: &Verdict) -> Option<SessionId> {
    if let Verdict::Failed(Failure { kind, .. }) = verdict {
        let began_another = ended.summary.reported == Some(ReportedResult::Done);
        match kind {
            // An agent that finds no session echoes the id, or makes one up that it never keeps.
            FailureKind::SessionNotFound if !began_another => return None,
            FailureKind::NotStarted { .. } => return None,
            _ => {}
        }
    }
    let told = ended.summary.session_id.as_deref().and_then(|id| id.parse().ok());
    told.or_else(|| match ended.session {
        ExpectedSession::Resumed(session) => Some(session.clone()),
        _ => None,
    })
}

/// Claude counts the turn that it was not allowed to take, and one in which no model answered because nobody is logged in.
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

fn mismatch(ended: &FinishedRun<'_>) -> Option<SessionMismatch> {
    let got = ended.summary.session_id.as_deref()?;
    let asked = ended.session.broken_by(got)?.clone();
    Some(SessionMismatch { asked, got: got.to_owned() })
}

/// Codex has no field for it: its whole answer is the JSON. That it is JSON is all that is checked here. Claude checks the
/// schema itself, and has no such field in its result when the schema was not kept to.
fn structured_output(ended: &FinishedRun<'_>) -> Option<String> {
    match ended.agent {
        AgentKind::Codex if ended.has_schema && ended.summary.reported == Some(ReportedResult::Done) => {
            let text = ended.summary.text();
            serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok().then_some(text)
        }
        _ => ended.summary.structured_output.clone(),
    }
}

/// What the agent's own counters say, where they count the session and not the run.
fn totals(ended: &FinishedRun<'_>) -> Option<Totals> {
    let counted = Figures::check(ended.summary.usage, ended.summary.cost_usd);
    let totals = Totals {
        usage: counted.usage.filter(|_| ended.agent == AgentKind::Codex),
        cost_usd: counted.cost_usd.filter(|_| counts_cost_of_session(ended)),
    };
    (totals != Totals::default()).then_some(totals)
}

fn counts_cost_of_session(ended: &FinishedRun<'_>) -> bool {
    let version = ended.summary.agent_version.as_deref().and_then(Version::find);
    ended.agent == AgentKind::Claude && version.is_some_and(|version| version >= CLAUDE_COUNTS_SESSIONS_SINCE)
}

/// Counters of a session become this run's by the difference to what they were before it. When that is not known, a
/// session with a past has no honest number: none is told.
fn this_run(ended: &FinishedRun<'_>) -> (Option<Usage>, Option<f64>) {
    let (mut usage, mut cost) = (ended.summary.usage, ended.summary.cost_usd);
    if !has_past(ended) {
        return (usage, cost.or(ended.summary.run_cost_usd));
    }
    if let Some(cost) = ended.summary.run_cost_usd {
        return (usage, Some(cost));
    }
    let before = ended.before.unwrap_or_default();
    if ended.agent == AgentKind::Codex {
        usage = usage.zip(before.usage).map(|(now, before)| now.since(before));
    }
    if counts_cost_of_session(ended) {
        cost = cost.zip(before.cost_usd).map(|(now, before)| (now - before).max(0.0));
    }
    (usage, cost)
}

fn has_past(ended: &FinishedRun<'_>) -> bool {
    match ended.session {
        // A fork begins with the counters of the session it came from.
        ExpectedSession::Resumed(_) | ExpectedSession::Forked { .. } | ExpectedSession::Latest => true,
        ExpectedSession::Assigned(_) | ExpectedSession::Any => false,
    }
}
