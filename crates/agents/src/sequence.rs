//! A call that may take several runs: after the turn limit it continues in the same session.
//!
//! Owns the decision to resume, the backoff, and the combined outcome. Pure: it starts nothing and waits for nothing. The caller
//! runs [`RunSequence::spec`], passes the outcome to [`RunSequence::next`], and may store the sequence (serde) in between, so
//! that the call survives a restart.

use std::time::Duration;

use model::{
    BackgroundStatus, BackgroundTask, CallSpec, Deadline, Failure, FailureKind, Outcome, SessionChoice,
    SessionId, ToolChoice, Totals, Usage, Verdict,
};
use serde::{Deserialize, Serialize};

use crate::outcome::joined_refusals;

/// The default maximum of automatic resumes.
pub const MAX_RESUME_ATTEMPTS: u32 = 5;

/// The prompt of a resumed run.
pub const CONTINUE_PROMPT: &str =
    "Continue where you left off and finish the task. Do not repeat what you have already said or done.";

/// The longest backoff, as a power of two in seconds.
const LONGEST_WAIT: u32 = 8;

/// A call and its runs so far.
///
/// ```
/// use agents::{MAX_RESUME_ATTEMPTS, RunSequence, SequenceStep};
/// # use model::{AgentKind, CallSpec, Failure, FailureKind, Outcome, SessionChoice, Verdict};
/// # fn run(spec: &CallSpec) -> Outcome {
/// #     let resumed = spec.session != SessionChoice::New;
/// #     let failure = Failure { kind: FailureKind::MaxTurns, message: "out of turns".into() };
/// #     Outcome {
/// #         agent: AgentKind::Claude,
/// #         verdict: if resumed { Verdict::Success } else { Verdict::Failed(failure) },
/// #         text: if resumed { "two".into() } else { "one".into() },
/// #         text_cut: 0, structured_output: None, session: "s".parse().ok(), session_mismatch: None, model: None,
/// #         usage: None, cost_usd: None, session_totals: None, turns: None, duration_ms: 1,
/// #         permission_denials: vec![], background: vec![], refusals: vec![], implausible: vec![], retries: 0, exit: None,
/// #     }
/// # }
/// let spec = CallSpec::new(AgentKind::Claude, "Tidy up.", "/work");
/// let mut sequence = RunSequence::new(spec, MAX_RESUME_ATTEMPTS).with_turns_per_run(25);
/// let outcome = loop {
///     match sequence.next(run(sequence.spec())) {
///         SequenceStep::Resume { delay } => assert_eq!(delay.as_secs(), 2), // wait, then run again
///         SequenceStep::Done(outcome) => break outcome,
///     }
/// };
/// assert_eq!(outcome.text, "one\n\ntwo");
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunSequence {
    /// The next run.
    spec: CallSpec,
    /// The time limit of the whole call.
    wall: Option<Duration>,
    /// The cost limit of the whole call: agents count the budget of each run separately.
    budget_usd: Option<f64>,
    /// The turn limit comes from the caller, so the call is never resumed.
    turns_are_the_callers: bool,
    max_resume_attempts: u32,
    /// The number of resumes.
    resumes: u32,
    /// The number of runs that repair the work of the earlier ones.
    #[serde(default)]
    repairs: u32,
    /// The time of backoffs, pauses and lost runs.
    waited: Duration,
    /// The combined outcome of the finished runs.
    so_far: Option<Outcome>,
}

/// The decision after a run.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "one at a time, and taken apart at once")]
pub enum SequenceStep {
    /// The call is finished with this outcome.
    Done(Outcome),
    /// Run [`RunSequence::spec`] after a delay.
    Resume {
        /// The delay.
        delay: Duration,
    },
}

impl RunSequence {
    /// Returns the sequence of a new call. A call with its own turn limit is never resumed.
    pub fn new(spec: CallSpec, max_resume_attempts: u32) -> Self {
        Self {
            wall: spec.limits.wall,
            budget_usd: spec.max_budget_usd,
            turns_are_the_callers: spec.max_turns.is_some(),
            spec,
            max_resume_attempts,
            resumes: 0,
            repairs: 0,
            waited: Duration::ZERO,
            so_far: None,
        }
    }

    /// Sets the turn limit of each run if the caller has none. The next run continues the work.
    #[must_use]
    pub fn with_turns_per_run(mut self, turns: u32) -> Self {
        if !self.turns_are_the_callers {
            self.spec.max_turns = Some(turns);
        }
        self
    }

    /// Returns the next or current run.
    pub fn spec(&self) -> &CallSpec {
        &self.spec
    }

    /// Returns the number of resumes.
    pub fn resumes(&self) -> u32 {
        self.resumes
    }

    /// Returns the number of repairs.
    pub fn repairs(&self) -> u32 {
        self.repairs
    }

    /// Returns the combined outcome of the finished runs. `None` before the first.
    pub fn combined_outcome(&self) -> Option<&Outcome> {
        self.so_far.as_ref()
    }

    /// Returns the agent's totals of the session before the next run, for [`crate::FinishedRun::totals_before`].
    pub fn totals_before(&self) -> Option<Totals> {
        self.so_far.as_ref().and_then(|outcome| outcome.session_totals)
    }

    /// Returns the time that the call has used before the next run.
    pub fn elapsed(&self) -> Duration {
        let ran = self.so_far.as_ref().map_or(0, |outcome| outcome.duration_ms);
        Duration::from_millis(ran) + self.waited
    }

    /// Returns whether time is left after a further duration.
    pub fn has_time_for(&self, more: Duration) -> bool {
        left_of(self.wall, self.elapsed() + more).is_some()
    }

    /// Adds the duration of a lost run. The next run gets the remaining time, at least a millisecond.
    pub fn add_elapsed(&mut self, time: Duration) {
        self.waited += time;
        self.spec.limits.wall =
            self.wall.map(|wall| wall.saturating_sub(self.elapsed()).max(Duration::from_millis(1)));
    }

    /// Makes the next run resume the session of a lost run with this prompt.
    pub fn resume_lost_run(&mut self, prompt: String, session: SessionId) {
        self.spec.prompt = prompt;
        self.spec.session = SessionChoice::Resume(session);
    }

    /// Adds the outcome of a run and returns the next step.
    pub fn next(&mut self, outcome: Outcome) -> SequenceStep {
        let outcome = match self.so_far.take() {
            None => outcome,
            Some(earlier) => joined(earlier, outcome),
        };
        let Some(session) = self.to_resume(&outcome) else { return SequenceStep::Done(outcome) };
        let delay = Duration::from_secs(1 << (self.resumes + 1).min(LONGEST_WAIT));
        let spent = Duration::from_millis(outcome.duration_ms) + self.waited + delay;
        let Some(left) = left_of(self.wall, spent) else { return SequenceStep::Done(out_of_time(outcome)) };
        let budget_left = self.budget_usd.map(|budget| budget - outcome.cost_usd.unwrap_or(0.0));
        if budget_left.is_some_and(|left| left <= 0.0) {
            return SequenceStep::Done(out_of_budget(outcome));
        }
        self.resumes += 1;
        self.waited += delay;
        self.continue_session(session, CONTINUE_PROMPT.to_owned(), left, budget_left);
        self.so_far = Some(outcome);
        SequenceStep::Resume { delay }
    }

    /// Adds a run in which the agent repairs the work of the finished ones, whose combined outcome is given. Returns false if there is no
    /// session, no time or no budget left.
    pub fn repair(&mut self, outcome: &Outcome, prompt: String) -> bool {
        let spent = Duration::from_millis(outcome.duration_ms) + self.waited;
        let budget_left = self.budget_usd.map(|budget| budget - outcome.cost_usd.unwrap_or(0.0));
        let (Some(session), Some(left)) = (outcome.session.clone(), left_of(self.wall, spent)) else {
            return false;
        };
        if budget_left.is_some_and(|left| left <= 0.0) {
            return false;
        }
        self.repairs += 1;
        self.continue_session(session, prompt, left, budget_left);
        self.so_far = Some(outcome.clone());
        true
    }

    fn continue_session(
        &mut self,
        session: SessionId,
        prompt: String,
        wall: Option<Duration>,
        budget_usd: Option<f64>,
    ) {
        self.spec.prompt = prompt;
        self.spec.session = SessionChoice::Resume(session);
        self.spec.limits.wall = wall;
        self.spec.max_budget_usd = budget_usd;
        if self.spec.agent_name.take().is_some() {
            // The session keeps its named agent, which has all its tools.
            self.spec.tools = ToolChoice::Full;
        }
    }

    /// Like [`RunSequence::next`], with a delay that the agent requested, such as until the reset of a quota. Does not count as a
    /// resume: no work was lost. If the time limit is too short for the delay, the outcome is the run's own.
    pub fn next_after_pause(&mut self, outcome: Outcome, wait: Duration) -> SequenceStep {
        let outcome = match self.so_far.take() {
            None => outcome,
            Some(earlier) => joined(earlier, outcome),
        };
        let spent = Duration::from_millis(outcome.duration_ms) + self.waited + wait;
        let Some(left) = left_of(self.wall, spent) else { return SequenceStep::Done(outcome) };
        self.waited += wait;
        self.spec.limits.wall = left;
        if let Some(session) = outcome.session.clone().filter(|_| self.spec.agent_name.is_none()) {
            CONTINUE_PROMPT.clone_into(&mut self.spec.prompt);
            self.spec.session = SessionChoice::Resume(session);
        }
        self.so_far = Some(outcome);
        SequenceStep::Resume { delay: wait }
    }

    /// Returns the session to resume, if the call continues.
    fn to_resume(&self, outcome: &Outcome) -> Option<SessionId> {
        let out_of_turns = outcome.failure().is_some_and(|failure| failure.kind == FailureKind::MaxTurns);
        let may_go_on = !self.turns_are_the_callers && self.resumes < self.max_resume_attempts;
        outcome.session.clone().filter(|_| out_of_turns && may_go_on)
    }
}

/// Returns the rest of a limit. `None` if nothing is left.
#[expect(
    clippy::option_option,
    reason = "no limit, a limit with something left, and nothing left are three things"
)]
fn left_of(limit: Option<Duration>, spent: Duration) -> Option<Option<Duration>> {
    match limit {
        None => Some(None),
        Some(limit) => limit.checked_sub(spent).filter(|left| !left.is_zero()).map(Some),
    }
}

/// Reports a call that reached both the turn limit and the time limit as timed out.
fn out_of_time(outcome: Outcome) -> Outcome {
    let kind = FailureKind::Deadline { which: Deadline::Wall };
    let message = "the call reached its time limit and its turn limit".to_owned();
    Outcome { verdict: Verdict::Failed(Failure { kind, message }), ..outcome }
}

fn out_of_budget(outcome: Outcome) -> Outcome {
    let kind = FailureKind::MaxBudget;
    let message = "the call reached its budget and its turn limit".to_owned();
    Outcome { verdict: Verdict::Failed(Failure { kind, message }), ..outcome }
}

/// Combines the outcomes of two runs. Figures are added up as far as they are known; anything else comes from the last run.
fn joined(earlier: Outcome, last: Outcome) -> Outcome {
    let permission_denials = [earlier.permission_denials, last.permission_denials].concat();
    let not_found =
        matches!(&last.verdict, Verdict::Failed(Failure { kind: FailureKind::SessionNotFound, .. }));
    Outcome {
        agent: last.agent,
        verdict: match last.verdict {
            Verdict::Success => incomplete(&earlier.background).map_or(Verdict::Success, Verdict::Failed),
            failed @ Verdict::Failed(_) => failed,
        },
        text: join_texts(earlier.text, &last.text),
        text_cut: earlier.text_cut.saturating_add(last.text_cut),
        structured_output: last.structured_output,
        session: last.session.or(earlier.session.filter(|_| !not_found)),
        session_mismatch: last.session_mismatch.or(earlier.session_mismatch),
        model: last.model.or(earlier.model),
        usage: sum(earlier.usage, last.usage, Usage::plus),
        cost_usd: sum(earlier.cost_usd, last.cost_usd, |a, b| a + b),
        session_totals: last.session_totals.or(earlier.session_totals),
        turns: sum(earlier.turns, last.turns, u32::saturating_add),
        duration_ms: earlier.duration_ms.saturating_add(last.duration_ms),
        permission_denials,
        background: [earlier.background, last.background].concat(),
        refusals: joined_refusals(earlier.refusals, last.refusals),
        implausible: [earlier.implausible, last.implausible].concat(),
        retries: earlier.retries.saturating_add(last.retries),
        exit: last.exit,
    }
}

/// Returns the failure of a call whose earlier run left background work unfinished: no later run waits for it.
fn incomplete(background: &[BackgroundTask]) -> Option<Failure> {
    let task = background.iter().find(|task| task.status != BackgroundStatus::Failed)?;
    let message = format!("background work of an earlier run did not complete: {task}");
    Some(Failure { kind: FailureKind::Incomplete, message })
}

fn join_texts(mut earlier: String, last: &str) -> String {
    if !earlier.is_empty() && !last.is_empty() {
        earlier.push_str("\n\n");
    }
    earlier.push_str(last);
    earlier
}

fn sum<T>(one: Option<T>, other: Option<T>, add: impl FnOnce(T, T) -> T) -> Option<T> {
    match (one, other) {
        (Some(one), Some(other)) => Some(add(one, other)),
        (one, other) => one.or(other),
    }
}
