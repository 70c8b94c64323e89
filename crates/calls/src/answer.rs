//! What a caller is told about a job: the one object that the tools return and that `result.json` holds.
//!
//! Owns its form and how a long answer is cut. Makes nothing up: every field is read from the job's record and files.

mod events;
mod notes;

use std::path::Path;
use std::time::Duration;

use agents::RunSequence;
use model::{
    BackgroundTask, Deadline, Exit, FailureKind, Job, JobState, NotStartedReason, Outcome, RefusedAction,
    StateName, TreeEnd, Usage,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::activity::Activity;
use crate::confinement::{Sandbox, ceiling_note};
use crate::files::{JobFiles, PAUSE, Stream};
use crate::wait_reason::WaitReason;
use events::StreamEvents;
pub use notes::left_running_note;
use notes::{lost_runs, redacted_prompt, run_notes};

/// How many characters of the agent's words are passed on when nobody says otherwise.
pub const MAX_RESPONSE_CHARS: usize = 100_000;

/// How much of the end of stderr is passed on.
const STDERR_BYTES: u64 = 4 * 1024;

/// What a call has come to so far.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Answer {
    /// completed, failed, timeout and cancelled are final; running, queued and paused are not.
    pub status: JobStatus,
    /// Names the job in `call_status`, `call_wait`, `call_output` and `call_cancel`.
    pub job_id: String,
    /// Which agent.
    pub agent: String,
    /// The caller's name for the task.
    pub task_name: String,
    /// The working directory of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// The agent's answer, or as far as it came. Empty while it runs.
    pub output: String,
    /// Said by Switchboard, not by the agent: what to do next, or what to know about this answer, a line each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The answer as JSON, when a schema was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub structured_output: Option<Value>,
    /// The end of what the agent wrote to stderr, when it failed or said nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr: Option<String>,
    /// The exit code of the agent's process. None when a signal ended it, when it has not ended, or when it was stopped after its answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The model that answered, or that was asked for.
    pub model: Option<String>,
    /// The conversation; give it as `resume_session_id` to go on with it.
    pub session_id: Option<String>,
    /// How long the agent has run, in all of its runs. Waits for a session, a slot or a quota are not counted.
    pub duration_ms: u64,
    /// What the job waits for before its next run: a session, a directory, a slot or a quota. Left out while the agent runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<String>,
    /// How many turns the model took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_turns: Option<u32>,
    /// The tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Tokens>,
    /// The cost, where the agent tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    /// What went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Problem>,
    /// Background tasks of the agent that did not complete.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub background: Vec<UnfinishedTask>,
    /// Tools, writes, hosts and paths of the home directory that were refused. The agent's own verdict decides the status, not these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refusals: Vec<ListedRefusal>,
    /// The refused tools among `refusals`, one entry for each call.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub permission_denials: Vec<Denial>,
    /// How sure it is that nothing of the call is left running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<Processes>,
    /// What confined the agent, and how well that held; left out when none was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Sandbox>,
    /// What was left out of `output` and of `stream_events`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub truncated: Option<Truncated>,
    /// Until when a paused job waits, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_until_ms: Option<u64>,
    /// What the agent printed, byte for byte; of a job of several runs, in the newest.
    pub output_file: String,
    /// The same of each run in its order, when there was more than one: together they are all that was printed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub output_files: Vec<String>,
    /// This answer with nothing left out of `output`, once the job has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_file: Option<String>,
    /// What the agent wrote to stderr.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_file: Option<String>,
    /// Says where the job stands, replaced whenever that changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status_file: Option<String>,
    /// What the agent did on the way, when the call asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream_events: Option<Vec<Value>>,
}

/// Where a job stands, as a caller sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobStatus {
    /// The agent did it.
    Completed,
    /// The agent did not.
    Failed,
    /// A deadline ended it.
    Timeout,
    /// Somebody ended it.
    Cancelled,
    /// It is being worked on.
    Running,
    /// It waits for its turn.
    Queued,
    /// It waits for the reset of a quota.
    Paused,
}

impl JobStatus {
    /// Whether it will never change.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Timeout | Self::Cancelled)
    }

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Timeout => "timeout",
            Self::Cancelled => "cancelled",
            Self::Running => "running",
            Self::Queued => "queued",
            Self::Paused => "paused",
        }
    }
}

impl From<StateName> for JobStatus {
    fn from(state: StateName) -> Self {
        match state {
            StateName::Completed => Self::Completed,
            StateName::Failed => Self::Failed,
            StateName::Timeout => Self::Timeout,
            StateName::Cancelled => Self::Cancelled,
            // An interrupted job is in somebody's hands, who will queue it again or end it.
            StateName::Running | StateName::Interrupted => Self::Running,
            StateName::Queued => Self::Queued,
            StateName::Paused => Self::Paused,
        }
    }
}

/// What went wrong, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// What kind: `auth`, `rate_limit`, `max_turns`, `deadline`, `session_not_found` …
    pub kind: String,
    /// In the agent's own words, where it has some.
    pub message: String,
    /// What to do.
    pub hint: String,
    /// Why the agent was not started, of a `not_started`: `program_missing`, `cwd_missing`, `not_confined` …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub reason: Option<NotStartedReason>,
    /// Which wait was over: `start`, `idle` or `wall`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<String>,
    /// How long to wait before the next try, where the agent says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
}

/// The tokens of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Tokens {
    /// What the model read, from a cache or not.
    pub input_tokens: u64,
    /// What it wrote, reasoning included.
    pub output_tokens: u64,
    /// The part of the input that came from a cache.
    pub cached_tokens: u64,
    /// The part of the output that was reasoning.
    pub reasoning_tokens: u64,
}

impl From<Usage> for Tokens {
    fn from(usage: Usage) -> Self {
        let Usage { input, output, cached, reasoning } = usage;
        Self {
            input_tokens: input,
            output_tokens: output,
            cached_tokens: cached,
            reasoning_tokens: reasoning,
        }
    }
}

/// A tool that was denied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Denial {
    /// Its name.
    pub tool: String,
    /// What the agent says of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// A background task that did not complete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnfinishedTask {
    /// The agent's own description of it.
    pub description: String,
    /// `stopped`: the agent stopped it; `killed`: it was killed with the run; `failed`: by itself; or `unknown`.
    pub status: String,
}

/// Something that the agent tried and that was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ListedRefusal {
    /// `tool`, `write`, `read` or `host`.
    pub kind: String,
    /// The tool, the path or the host.
    pub subject: String,
    /// What the first refusal said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// How often it was refused.
    pub count: u32,
}

/// How sure it is that nothing of a call is left running.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Processes {
    /// The kernel said so.
    NoneLeft,
    /// Its supervisor had been killed; all that could be found was ended.
    NoneFound,
    /// Some could not be ended.
    SomeLeft,
}

/// What was left out of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Truncated {
    /// How many characters of `output` are missing, between the head and the tail that were kept.
    pub left_out_chars: u64,
    /// How many bytes of the agent's words are missing that were never kept as text because there were too many; `call_output` has
    /// them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out_bytes: u64,
    /// How many events are missing in `stream_events`, between those of the beginning and those of the end; `call_output` has all that
    /// the agent printed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out_events: u64,
    /// How many events come before those that are missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events_before_gap: Option<u64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature serde asks for")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Answer {
    /// What a job has come to by `now`.
    pub(crate) fn new(
        job: &Job,
        files: &JobFiles,
        activity: Option<&Activity>,
        now: model::Timestamp,
    ) -> Self {
        let status = JobStatus::from(job.progress.state.name());
        // What a paused job has said so far stands beside it.
        let so_far = if job.outcome.is_none() { files.read::<RunSequence>(PAUSE) } else { None };
        let outcome = job.outcome.as_ref().or_else(|| so_far.as_ref()?.combined_outcome());
        let path = |path: std::path::PathBuf| path.to_string_lossy().into_owned();
        // The session that a run is told to use exists only once the agent has named it.
        let known = || activity.filter(|_| !status.is_final()).and_then(|activity| activity.session.clone());
        let told = || outcome.and_then(|outcome| outcome.session.clone());
        let session = job.session.clone().or_else(known).or_else(told);
        let metadata: Option<Value> =
            job.metadata.as_deref().and_then(|text| serde_json::from_str(text).ok());
        let mut answer = Self {
            status,
            job_id: job.id.to_string(),
            agent: job.order.call.agent.to_string(),
            task_name: job.order.task.clone(),
            cwd: job.order.call.cwd.to_str().map(str::to_owned),
            output: outcome.map(|outcome| outcome.text.clone()).unwrap_or_default(),
            note: None,
            structured_output: outcome
                .and_then(|outcome| serde_json::from_str(outcome.structured_output.as_deref()?).ok()),
            stderr: None,
            exit_code: outcome.and_then(|outcome| match outcome.exit? {
                Exit::Code(code) => Some(code),
                Exit::Signal(_) => None,
            }),
            model: outcome.and_then(|outcome| outcome.model.clone()).or_else(|| job.order.call.model.clone()),
            session_id: session.map(String::from),
            duration_ms: duration_ms(job, outcome, activity, now),
            waiting: None,
            num_turns: outcome.and_then(|outcome| outcome.turns),
            usage: outcome.and_then(|outcome| outcome.usage).map(Tokens::from),
            cost_usd: outcome.and_then(|outcome| outcome.cost_usd),
            error: job.failure.as_ref().map(|failure| problem(job, failure)),
            background: outcome.map(background).unwrap_or_default(),
            refusals: outcome.map(refusals).unwrap_or_default(),
            permission_denials: outcome.map(denials).unwrap_or_default(),
            processes: metadata.as_ref().and_then(processes),
            sandbox: metadata
                .as_ref()
                .and_then(|metadata| metadata.pointer("/report/sandbox"))
                .and_then(Sandbox::read),
            truncated: None,
            paused_until_ms: match job.progress.state {
                JobState::Paused { until } => Some(until.as_millis()),
                _ => None,
            },
            output_file: path(files.stream(Stream::Output)),
            output_files: files.outputs().into_iter().map(path).collect(),
            result_file: status.is_final().then(|| path(files.result())),
            error_file: Some(path(files.stream(Stream::Error))),
            status_file: Some(path(files.status())),
            stream_events: None,
        };
        let mut about_the_run =
            outcome.map(|outcome| run_notes(outcome, metadata.as_ref())).unwrap_or_default();
        about_the_run.extend(lost_runs(job.progress.requeues));
        about_the_run.extend(redacted_prompt(&job.order.call.prompt));
        let asked = job.order.call.asked_preset();
        about_the_run
            .extend(answer.sandbox.as_ref().and_then(|sandbox| ceiling_note(asked, &sandbox.policy)));
        let left_out_bytes = outcome.map_or(0, |outcome| outcome.text_cut);
        let events = metadata.and_then(StreamEvents::read);
        answer.leave_out(Truncated {
            left_out_bytes,
            ..events.as_ref().map(StreamEvents::gap).unwrap_or_default()
        });
        answer.stream_events = events.map(|events| events.kept);
        answer.note = if status.is_final() {
            let about_the_sandbox = answer.sandbox.as_ref().map(Sandbox::notes).unwrap_or_default();
            let notes: Vec<String> = about_the_run.into_iter().chain(about_the_sandbox).collect();
            (!notes.is_empty()).then(|| notes.join("\n"))
        } else {
            progress_note(&answer, activity)
        };
        if status.is_final() && (status != JobStatus::Completed || answer.output.is_empty()) {
            answer.stderr = stderr(files);
        }
        answer
    }

    /// Names what the job waits for, in the answer and in its note.
    #[must_use]
    pub(crate) fn waiting_for(mut self, reason: Option<&WaitReason>) -> Self {
        self.waiting = reason.map(WaitReason::to_string);
        if self.waiting.is_some() {
            self.note.clone_from(&self.waiting);
        }
        self
    }

    /// The same answer with at most that many characters of output, and as many of events: the head and the tail of each. A line
    /// in the output says how much of it is missing and where all of it is; `truncated` says it of both.
    #[must_use]
    pub fn cut_to(mut self, max_chars: usize) -> Self {
        let mut truncated = self.truncated.unwrap_or_default();
        if let Some((kept, left_out)) = cut(&self.output, max_chars, || self.where_all_is()) {
            self.output = kept;
            truncated.left_out_chars = left_out;
        }
        if let Some(kept) = self.stream_events.take() {
            let events = StreamEvents::with_gap(kept, &truncated).cut_to(max_chars);
            let Truncated { left_out_events, events_before_gap, .. } = events.gap();
            truncated = Truncated { left_out_events, events_before_gap, ..truncated };
            self.stream_events = Some(events.kept);
        }
        self.leave_out(truncated);
        self
    }

    fn leave_out(&mut self, truncated: Truncated) {
        self.truncated = (truncated != Truncated::default()).then_some(truncated);
    }

    /// Where the whole of the output is.
    fn where_all_is(&self) -> String {
        match &self.result_file {
            // A disk that was full has kept it from being written.
            Some(file) if Path::new(file).exists() => format!("the whole is in {file}"),
            _ => format!("the printed output is in {}", self.output_file),
        }
    }
}

/// Returns how long the runs of a job took, or have taken by now.
fn duration_ms(
    job: &Job,
    outcome: Option<&Outcome>,
    activity: Option<&Activity>,
    now: model::Timestamp,
) -> u64 {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    match (activity, &job.progress.state) {
        (Some(activity), state) if state.name().ended().is_none() => millis(activity.run_time(now)),
        // It runs on another machine, which alone knows its waits.
        (None, JobState::Running { .. }) => {
            job.started_at.map_or(0, |started_at| millis(now.since(started_at)))
        }
        _ => outcome.map_or(0, |outcome| outcome.duration_ms),
    }
}

fn problem(job: &Job, failure: &model::Failure) -> Problem {
    Problem {
        kind: failure.kind.name().to_owned(),
        message: failure.message.clone(),
        hint: failure.kind.hint(job.order.call.agent).to_owned(),
        reason: match &failure.kind {
            FailureKind::NotStarted { reason } => Some(*reason),
            _ => None,
        },
        deadline: match &failure.kind {
            FailureKind::Deadline { which } => Some(Deadline::to_string(which)),
            _ => None,
        },
        retry_after_ms: match &failure.kind {
            FailureKind::RateLimit { retry_after: Some(wait) } => u64::try_from(wait.as_millis()).ok(),
            _ => None,
        },
    }
}

fn denials(outcome: &Outcome) -> Vec<Denial> {
    let denial = |denial: &model::PermissionDenial| Denial {
        tool: denial.tool.clone(),
        detail: denial.detail.clone(),
    };
    outcome.permission_denials.iter().map(denial).collect()
}

fn background(outcome: &Outcome) -> Vec<UnfinishedTask> {
    let task = |task: &BackgroundTask| UnfinishedTask {
        description: task.description.clone(),
        status: task.status.name().to_owned(),
    };
    outcome.background.iter().map(task).collect()
}

fn refusals(outcome: &Outcome) -> Vec<ListedRefusal> {
    let refusal = |refusal: &RefusedAction| ListedRefusal {
        kind: refusal.kind.name().to_owned(),
        subject: refusal.subject.clone(),
        detail: refusal.detail.clone(),
        count: refusal.count,
    };
    outcome.refusals.iter().map(refusal).collect()
}

/// Describes the current activity of an unfinished job.
fn progress_note(answer: &Answer, activity: Option<&Activity>) -> Option<String> {
    let state = match answer.status {
        JobStatus::Running => "still running",
        JobStatus::Queued | JobStatus::Paused => "queued",
        _ => return None,
    };
    let line = activity.map(|activity| activity.line.as_str()).filter(|line| !line.is_empty());
    Some(line.map_or_else(|| state.to_owned(), |line| format!("{state} ({line})")))
}

fn stderr(files: &JobFiles) -> Option<String> {
    // Not by the link, which a daemon that died over it has not made yet.
    let bytes = files.error_tail(files.newest_run()?, STDERR_BYTES).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes).trim().to_owned();
    (!text.is_empty()).then_some(text)
}

fn processes(metadata: &Value) -> Option<Processes> {
    let tree = metadata.pointer("/tree").or_else(|| metadata.pointer("/report/tree"))?;
    Some(match serde_json::from_value(tree.clone()).ok()? {
        TreeEnd::ProvenEmpty => Processes::NoneLeft,
        TreeEnd::SweptByIdentity => Processes::NoneFound,
        TreeEnd::LeftAlive { .. } => Processes::SomeLeft,
    })
}

/// The head and the tail of a text, when it has more characters than that, and how many are missing.
fn cut(text: &str, max_chars: usize, where_all_is: impl FnOnce() -> String) -> Option<(String, u64)> {
    // As many bytes cannot be more characters.
    if text.len() <= max_chars {
        return None;
    }
    let count = text.chars().count();
    if count <= max_chars {
        return None;
    }
    let (head, tail) = (max_chars - max_chars / 3, max_chars / 3);
    let at = |position: usize| text.char_indices().nth(position).map_or(text.len(), |(at, _)| at);
    let left_out = count - head - tail;
    let gap = format!("\n[… {left_out} characters left out; {} …]\n", where_all_is());
    Some((format!("{}{gap}{}", &text[..at(head)], &text[at(count - tail)..]), left_out as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn somewhere() -> String {
        "it is f".to_owned()
    }

    #[test]
    fn a_long_text_keeps_its_head_and_its_tail_and_names_the_gap() {
        assert_eq!(cut("äöü", 3, somewhere), None);
        let (text, left_out) = cut("0123456789ä", 6, somewhere).unwrap();
        assert_eq!(left_out, 5);
        assert_eq!(text, "0123\n[… 5 characters left out; it is f …]\n9ä");
    }

    #[test]
    fn nothing_at_all_may_be_asked_for() {
        let (text, left_out) = cut("abc", 0, somewhere).unwrap();
        assert_eq!((text.contains("3 characters left out"), left_out), (true, 3));
    }
}
