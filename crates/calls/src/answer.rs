//! The answer of a job: the one object that the tools return and that `result.json` contains.
//!
//! Owns its form and the cutting of long answers. Every field is read from the job's record and files.

mod events;
mod notes;

use std::path::Path;
use std::time::Duration;

use agents::RunSequence;
use model::{
    BackgroundTask, Deadline, Exit, FailureKind, Job, JobGroup, JobState, NotStartedReason, Outcome,
    RefusedAction, StateName, TreeEnd, Usage,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use store::Store;

use crate::activity::Activity;
use crate::checkouts::JobCheckout;
use crate::confinement::{Sandbox, ceiling_note};
use crate::files::{JobFiles, PAUSE, Stream};
use crate::job_changes::{Changes, ChangesState, patch_file};
use crate::metadata::{CHANGES, VERIFIED};
use crate::verification::Verification;
use crate::wait_reason::WaitReason;
use events::StreamEvents;
pub use notes::killed_processes_note;
use notes::{lost_runs, missing_changes, moved_head, redacted_prompt, run_notes, unverified_end};

/// The default limit on the characters of an answer.
pub const MAX_RESPONSE_CHARS: usize = 100_000;

/// The size of the stderr tail in an answer.
const STDERR_BYTES: u64 = 4 * 1024;

/// The result of a call so far.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Answer {
    /// `completed`, `failed`, `timeout` and `cancelled` are final; `running`, `queued` and `paused` are not.
    pub status: JobStatus,
    /// The id of the job, for `call_status`, `call_wait`, `call_output` and `call_cancel`.
    pub job_id: String,
    /// The group of the call, if several agents were called with one task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_id: Option<String>,
    /// The agent.
    pub agent: String,
    /// The caller's name for the task.
    pub task_name: String,
    /// The working directory of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// The agent's answer, complete or in part. Empty while it runs.
    pub output: String,
    /// Notes by Switchboard, not by the agent: the next step or facts about this answer, one per line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The answer as JSON, if a schema was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub structured_output: Option<Value>,
    /// The end of stderr, if the agent failed or printed nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr: Option<String>,
    /// The exit code of the agent's process. Omitted if a signal terminated it, if it has not exited, or if it was stopped after its answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The model that answered, or the requested one.
    pub model: Option<String>,
    /// The session; pass it as `resume_session_id` to resume it.
    pub session_id: Option<String>,
    /// The run time of the agent, in all of its runs. Waits for a session, a slot or a quota are not counted.
    pub duration_ms: u64,
    /// The session, directory, slot or quota that the job waits for. Omitted while the agent runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<String>,
    /// The number of turns of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_turns: Option<u32>,
    /// The tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Tokens>,
    /// The cost, if the agent reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    /// The error, if the call failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Problem>,
    /// Background tasks of the agent that did not complete.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub background: Vec<UnfinishedTask>,
    /// Tools, writes, hosts and paths of the home directory that were refused. They do not decide the status; the agent's own verdict does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refusals: Vec<ListedRefusal>,
    /// The refused tools among `refusals`, one entry per call.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub permission_denials: Vec<Denial>,
    /// The certainty that no process of the call is left running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<Processes>,
    /// The confinement of the agent; omitted if none was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Sandbox>,
    /// The changes in the git worktree of the working directory. Omitted outside of one, and for a read-only call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<Changes>,
    /// The verification of the agent's work, if the call requested one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verified: Option<Verification>,
    /// The parts of `output` and `stream_events` that were left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub truncated: Option<Truncated>,
    /// The end of a pause, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_until_ms: Option<u64>,
    /// The file with the exact output of the agent, in the newest run.
    pub output_file: String,
    /// The output files of all runs in order, if there was more than one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub output_files: Vec<String>,
    /// The file with this answer and its complete `output`, once the job has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_file: Option<String>,
    /// The file with the agent's stderr.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_file: Option<String>,
    /// The file with the job's status, replaced on every change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status_file: Option<String>,
    /// The agent's events, if the call requested them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream_events: Option<Vec<Value>>,
}

/// The status of a job for its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobStatus {
    /// The agent succeeded.
    Completed,
    /// The agent failed.
    Failed,
    /// A deadline was reached.
    Timeout,
    /// The job was cancelled.
    Cancelled,
    /// The job is running.
    Running,
    /// The job waits in the queue.
    Queued,
    /// The job waits until a quota resets.
    Paused,
}

impl JobStatus {
    /// Returns whether the status cannot change any more.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Timeout | Self::Cancelled)
    }

    /// Returns the name of the status.
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
            // An interrupted job is about to be requeued or failed.
            StateName::Running | StateName::Interrupted => Self::Running,
            StateName::Queued => Self::Queued,
            StateName::Paused => Self::Paused,
        }
    }
}

/// The error of a call and its remedy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// The kind: `auth`, `rate_limit`, `max_turns`, `deadline`, `session_not_found` …
    pub kind: String,
    /// The message, in the agent's own words if possible.
    pub message: String,
    /// The remedy.
    pub hint: String,
    /// The reason of a `not_started`: `program_missing`, `cwd_missing`, `not_confined` …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub reason: Option<NotStartedReason>,
    /// The deadline that was reached: `start`, `idle` or `wall`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<String>,
    /// The delay before the next try, if the agent reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
}

/// The tokens of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Tokens {
    /// Input tokens, cached or not.
    pub input_tokens: u64,
    /// Output tokens, including reasoning.
    pub output_tokens: u64,
    /// Input tokens from a cache.
    pub cached_tokens: u64,
    /// Output tokens for reasoning.
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

/// A denied tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Denial {
    /// Its name.
    pub tool: String,
    /// The agent's explanation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// A background task that did not complete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnfinishedTask {
    /// The agent's description of the task.
    pub description: String,
    /// `stopped`: by the agent; `killed`: with the run; `failed`: by itself; or `unknown`.
    pub status: String,
}

/// An action of the agent that was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ListedRefusal {
    /// `tool`, `write`, `read` or `host`.
    pub kind: String,
    /// The tool, the path or the host.
    pub subject: String,
    /// The text of the first refusal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The number of refusals.
    pub count: u32,
}

/// The certainty that no process of a call is left running.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Processes {
    /// None, according to the kernel.
    NoneLeft,
    /// None was found after the supervisor had been killed.
    NoneFound,
    /// Some could not be killed.
    SomeLeft,
}

/// The parts of an answer that were left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Truncated {
    /// The number of characters missing in `output`, between head and tail.
    pub left_out_chars: u64,
    /// The number of bytes of the agent's text that exceeded the limit for stored text; `call_output` has them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out_bytes: u64,
    /// The number of events missing in `stream_events`, between head and tail; `call_output` has the whole output.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out_events: u64,
    /// The number of events before the gap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events_before_gap: Option<u64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature serde asks for")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Answer {
    /// Builds the answer of a job at `now`.
    pub(crate) fn new(
        job: &Job,
        files: &JobFiles,
        activity: Option<&Activity>,
        now: model::Timestamp,
    ) -> Self {
        let status = JobStatus::from(job.progress.state.name());
        // A paused job has its outcome so far in a file.
        let so_far = if job.outcome.is_none() { files.read::<RunSequence>(PAUSE) } else { None };
        let outcome = job.outcome.as_ref().or_else(|| so_far.as_ref()?.combined_outcome());
        let path = |path: std::path::PathBuf| path.to_string_lossy().into_owned();
        // An assigned session exists only once the agent has reported it.
        let known = || activity.filter(|_| !status.is_final()).and_then(|activity| activity.session.clone());
        let told = || outcome.and_then(|outcome| outcome.session.clone());
        let session = job.session.clone().or_else(known).or_else(told);
        let has_session = session.is_some();
        let metadata: Option<Value> =
            job.metadata.as_deref().and_then(|text| serde_json::from_str(text).ok());
        let mut answer = Self {
            status,
            job_id: job.id.to_string(),
            group_id: job.order.call.group.as_ref().and_then(JobGroup::id).map(|id| id.to_string()),
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
            error: job.failure.as_ref().map(|failure| problem(job, failure, has_session)),
            background: outcome.map(background).unwrap_or_default(),
            refusals: outcome.map(refusals).unwrap_or_default(),
            permission_denials: outcome.map(denials).unwrap_or_default(),
            processes: metadata.as_ref().and_then(processes),
            sandbox: metadata
                .as_ref()
                .and_then(|metadata| metadata.pointer("/report/sandbox"))
                .and_then(Sandbox::read)
                .map(|sandbox| sandbox.for_call(&job.order.call)),
            changes: metadata.as_ref().and_then(|metadata| read_changes(metadata, files)),
            verified: metadata
                .as_ref()
                .and_then(|metadata| Verification::deserialize(metadata.get(VERIFIED)?).ok()),
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
        about_the_run.extend(unverified_end(answer.processes));
        about_the_run.extend(answer.changes.as_ref().and_then(moved_head));
        about_the_run.extend(metadata.as_ref().and_then(missing_changes));
        about_the_run.extend(redacted_prompt(&job.order.call.prompt));
        let asked = job.order.call.requested_preset();
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

    /// Redacts the stderr of the agent, which comes from its file; the other texts were redacted when they were stored.
    #[must_use]
    pub(crate) fn redacted(mut self, store: &Store) -> Self {
        if let Some(stderr) = &mut self.stderr {
            store.redact(stderr);
        }
        self
    }

    /// Sets the reason for which the job waits, also as the note.
    #[must_use]
    pub(crate) fn waiting_for(mut self, reason: Option<&WaitReason>) -> Self {
        self.waiting = reason.map(WaitReason::to_string);
        if self.waiting.is_some() {
            self.note.clone_from(&self.waiting);
        }
        self
    }

    /// Cuts the output and the events to at most that many characters each, and keeps head and tail. A line in the output tells the size of the
    /// gap and the file with the whole; `truncated` has both gaps.
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

    /// Returns the location of the whole output.
    fn where_all_is(&self) -> String {
        match &self.result_file {
            // It may be missing, such as after ENOSPC.
            Some(file) if Path::new(file).exists() => format!("the whole is in {file}"),
            _ => format!("the printed output is in {}", self.output_file),
        }
    }
}

/// Returns the run time of a job until now.
fn duration_ms(
    job: &Job,
    outcome: Option<&Outcome>,
    activity: Option<&Activity>,
    now: model::Timestamp,
) -> u64 {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    match (activity, &job.progress.state) {
        (Some(activity), state) if state.name().ended().is_none() => millis(activity.run_time(now)),
        // Only the machine that runs the job knows its waits.
        (None, JobState::Running { .. }) => {
            job.started_at.map_or(0, |started_at| millis(now.since(started_at)))
        }
        _ => outcome.map_or(0, |outcome| outcome.duration_ms),
    }
}

fn problem(job: &Job, failure: &model::Failure, has_session: bool) -> Problem {
    Problem {
        kind: failure.kind.name().to_owned(),
        message: failure.message.clone(),
        hint: failure.kind.hint(job.order.call.agent, has_session).to_owned(),
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
    // Not through the link, which a daemon that died may not have created.
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

/// Returns the stored changes, with their patch if it is on this machine.
fn read_changes(metadata: &Value, files: &JobFiles) -> Option<Changes> {
    let changes = Changes::deserialize(metadata.get(CHANGES)?).ok()?;
    let patch = Some(patch_file(files)).filter(|patch| patch.exists());
    let patch_file = patch.map(|patch| patch.to_string_lossy().into_owned());
    let checkout = changes.checkout.map(|mut checkout| {
        if let Some(now) = JobCheckout::read(files) {
            checkout.state = now.state;
        }
        checkout.branch.take_if(|_| checkout.state != ChangesState::Open);
        checkout
    });
    Some(Changes { patch_file, checkout, ..changes })
}

/// Cuts a text to its head and tail, and returns it with the number of missing characters; none if it is short enough.
fn cut(text: &str, max_chars: usize, where_all_is: impl FnOnce() -> String) -> Option<(String, u64)> {
    // A text has at most as many characters as bytes.
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
    fn cut_text_keeps_head_and_tail() {
        assert_eq!(cut("äöü", 3, somewhere), None);
        let (text, left_out) = cut("0123456789ä", 6, somewhere).unwrap();
        assert_eq!(left_out, 5);
        assert_eq!(text, "0123\n[… 5 characters left out; it is f …]\n9ä");
    }

    #[test]
    fn text_can_be_cut_to_nothing() {
        let (text, left_out) = cut("abc", 0, somewhere).unwrap();
        assert_eq!((text.contains("3 characters left out"), left_out), (true, 3));
    }
}
