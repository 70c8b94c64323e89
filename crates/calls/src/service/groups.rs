//! Groups: several calls for one task, submitted, cancelled and reported together.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::Duration;

use agents::LaunchSetup;
use model::{
    AgentChoice, CallSpec, FailureKind, GroupId, GroupKind, GroupRole, Job, JobGroup, JobId, JobIdPrefix,
    MAX_CONTENDERS, MIN_CONTENDERS, Mode, NewJob, SessionChoice,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use store::{PrefixMatch, StoreError};

use super::JobService;
use super::cancel::Cancellation;
use super::submit::{CallRequest, SubmittedJob};
use super::wait::Until;
use crate::answer::{Answer, JobStatus};
use crate::checkouts::{self, JobCheckout};
use crate::error::CallError;
use crate::group::{GroupError, GroupVerdict, Review, combine_reviews};
use crate::job_changes::{Changes, ChangesState};

/// The time for cancelled jobs to end. Their supervisors kill processes that ignore SIGTERM after a few seconds.
const CANCEL_TIMEOUT: Duration = Duration::from_mins(1);
/// The maximum number of overlapping paths of a contender in a report.
const MAX_OVERLAPS: usize = 100;

/// A task for several agents.
#[derive(Debug, Clone)]
pub struct GroupRequest {
    /// The call of every contender, apart from agent and model.
    pub base: CallRequest,
    /// The purpose.
    pub kind: GroupKind,
    /// The agents that work on the task.
    pub contenders: Vec<AgentChoice>,
    /// The agent that compares the results. For [`GroupKind::Answers`] the first contender's agent by default.
    pub judge: Option<AgentChoice>,
}

/// A group whose jobs are durable.
#[derive(Debug, Clone)]
pub struct SubmittedGroup {
    /// The id.
    pub id: GroupId,
    /// The contenders.
    pub contenders: Vec<SubmittedJob>,
    /// The reviewers.
    pub reviewers: Vec<SubmittedJob>,
}

/// The result of a search by the prefix of a group id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupMatch {
    /// No group matches.
    Nothing,
    /// Exactly one group matches.
    One(JobGroup),
    /// Several groups match; these are the first ones.
    Several(Vec<GroupId>),
}

/// The other jobs of a group, after the changes of one contender were kept.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClosedJobs {
    /// The jobs that were running or queued.
    pub cancelled: Vec<JobId>,
    /// The contenders whose changes were discarded.
    pub discarded: Vec<JobId>,
}

/// The state of a group, with the answers of its jobs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GroupReport {
    /// The id.
    pub group_id: String,
    /// `race`: the contenders change files in private checkouts; `answers`: they only answer.
    pub kind: String,
    /// Is true if all jobs of the group have ended.
    pub has_ended: bool,
    /// The calls that work on the task.
    pub contenders: Vec<Contender>,
    /// The verdict of the judge of a race. A verdict counts only if two runs of the judge, which see the patches in reversed order, agree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<GroupVerdict>,
    /// The calls that compare the results: two of a judge, or the synthesis of the answers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reviews: Vec<Answer>,
}

/// A call that works on the task of a group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Contender {
    /// Its number, from 1.
    pub number: u32,
    /// The current activity of its agent, in one line. Omitted unless the agent runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activity: Option<String>,
    /// Files that other contenders have changed, too; the first 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overlaps: Vec<String>,
    /// The answer of its job.
    #[serde(flatten)]
    pub answer: Answer,
}

impl GroupReport {
    /// Returns whether the contenders change files.
    pub fn is_race(&self) -> bool {
        self.kind == GroupKind::Race.name()
    }

    /// Returns the answer that decides about an ended group: in a race that of a contender that completed the task, or else of the first
    /// one; otherwise the synthesis.
    pub fn decisive_answer(&self) -> Option<&Answer> {
        if !self.is_race() {
            return self.reviews.last();
        }
        let mut contenders = self.contenders.iter().map(|contender| &contender.answer);
        let completed = contenders.clone().find(|answer| answer.status == JobStatus::Completed);
        completed.or_else(|| contenders.next())
    }

    /// Returns the status of the group as a whole.
    pub fn status(&self) -> JobStatus {
        if self.has_ended {
            return self.decisive_answer().map_or(JobStatus::Failed, |answer| answer.status);
        }
        let answers = || self.contenders.iter().map(|contender| &contender.answer).chain(&self.reviews);
        let unfinished = [JobStatus::Running, JobStatus::Paused];
        let found = unfinished.into_iter().find(|status| answers().any(|answer| answer.status == *status));
        found.unwrap_or(JobStatus::Queued)
    }

    /// Cuts the texts of all answers.
    #[must_use]
    pub fn cut_to(mut self, max_chars: usize) -> Self {
        for contender in &mut self.contenders {
            contender.answer = contender.answer.clone().cut_to(max_chars);
        }
        self.reviews = self.reviews.into_iter().map(|review| review.cut_to(max_chars)).collect();
        self
    }
}

impl JobService {
    /// Submits a group. Fails if one of its calls could not be launched right now; once this returns, all its jobs survive a crash.
    ///
    /// A repeated request with the same idempotency key returns the same group, and submits the jobs that are missing because the daemon
    /// was killed.
    pub async fn submit_group(&self, request: GroupRequest) -> Result<SubmittedGroup, CallError> {
        self.0.health.check().map_err(StoreError::from)?;
        let calls = plan_calls(&request)?;
        let GroupRequest { base, kind, contenders, .. } = &request;
        let count = contenders.len();
        if let Some(environment) = &base.environment {
            self.0.store.redact_values(&environment.secrets());
        }
        // A concurrent request with the same key waits for all jobs of the group.
        let turn = self.0.group_submissions.lock().await;
        let begun = self.find_by_key(base.idempotency_key.as_deref()).await?;
        let mut planned = Vec::new();
        let group = if let Some(first) = &begun {
            let group = self.check_same_group(first, *kind, count, &calls, base).await?;
            for (number, (job, call)) in group.jobs().zip(calls).enumerate() {
                planned.extend(self.plan_repeated_job(first, job, member_request(base, number, call)).await?);
            }
            group
        } else {
            let mut contenders = self.new_ids(calls.len()).await?;
            let jobs = contenders.clone();
            let reviewers = contenders.split_off(count);
            for (number, (job, call)) in jobs.into_iter().zip(calls).enumerate() {
                let (order, setup) = Box::pin(self.validate(member_request(base, number, call))).await?;
                planned.push((job, PlannedJob::New(Box::new(order), setup)));
            }
            JobGroup { kind: *kind, contenders, reviewers }
        };
        let id = group.id().ok_or(GroupError::Size { given: 0 })?;
        let mut submitted = BTreeMap::new();
        let mut created = Vec::new();
        for (job, planned) in planned {
            let stored = match planned {
                PlannedJob::Stored(found) => {
                    Ok(store::Submitted { job: *found, is_new: false, redactions: 0, claimed: None })
                }
                PlannedJob::New(order, setup) => {
                    let call = CallSpec { group: Some(group.clone()), ..order.call };
                    let order = NewJob { call, ..*order };
                    let stored = self.store_job_as(job, order, base.environment.clone(), Some(setup));
                    Box::pin(stored).await
                }
            };
            match stored {
                // Another machine has submitted a group with the same key meanwhile.
                Ok(stored) if stored.job.id != job => {
                    drop(turn);
                    return Box::pin(self.submit_group(request)).await;
                }
                Ok(stored) => {
                    created.extend(stored.is_new.then_some(job));
                    submitted.insert(job, self.submitted_job(&stored));
                }
                Err(error) => {
                    self.cancel_all_of(&created).await;
                    return Err(error);
                }
            }
        }
        // Those that were found may have been stored a moment ago.
        self.0.store.sync().await?;
        let mut take = |jobs: &[JobId]| jobs.iter().filter_map(|job| submitted.remove(job)).collect();
        Ok(SubmittedGroup { id, contenders: take(&group.contenders), reviewers: take(&group.reviewers) })
    }

    /// Plans a job of a group that an earlier request has submitted. Returns `None` for one that retention has removed.
    async fn plan_repeated_job(
        &self,
        first: &Job,
        job: JobId,
        request: CallRequest,
    ) -> Result<Option<(JobId, PlannedJob)>, CallError> {
        match self.job(job).await {
            Ok(found) => return Ok(Some((job, PlannedJob::Stored(Box::new(found))))),
            Err(CallError::NoSuchJob { .. }) if first.completed_at.is_some() => return Ok(None),
            Err(CallError::NoSuchJob { .. }) => {}
            Err(error) => return Err(error),
        }
        let (order, setup) = Box::pin(self.validate(request)).await?;
        // The daemon can have been killed between the environment and the job.
        self.0.environments.remove(job);
        Ok(Some((job, PlannedJob::New(Box::new(order), setup))))
    }

    /// Returns the group of a job that was submitted with the same idempotency key. Fails if the request differs from that group.
    async fn check_same_group(
        &self,
        first: &Job,
        kind: GroupKind,
        contenders: usize,
        calls: &[CallSpec],
        base: &CallRequest,
    ) -> Result<JobGroup, CallError> {
        let key = base.idempotency_key.clone().unwrap_or_default();
        let differs = || CallError::KeyOfAnother { key: key.clone(), job: first.id };
        let group = first.order.call.group.clone().ok_or_else(differs)?;
        let is_same_form = group.kind == kind && group.contenders.len() == contenders;
        if !is_same_form || group.jobs().count() != calls.len() {
            return Err(differs());
        }
        for (id, call) in group.jobs().zip(calls) {
            match self.job(id).await {
                Ok(job) if !self.is_same_call(&job.order, call, &base.tool) => return Err(differs()),
                // Not submitted before the daemon died, or removed by retention.
                Ok(_) | Err(CallError::NoSuchJob { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(group)
    }

    /// Returns ids that differ in their timestamps, so that their short forms and the names of their branches differ.
    async fn new_ids(&self, count: usize) -> Result<Vec<JobId>, CallError> {
        let mut ids: Vec<JobId> = Vec::new();
        while ids.len() < count {
            let id = self.0.store.new_id()?;
            let stamp = |id: &JobId| id.as_uuid().as_u128() >> 80;
            if ids.last().is_some_and(|last| stamp(last) == stamp(&id)) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            } else {
                ids.push(id);
            }
        }
        Ok(ids)
    }

    /// Cancels the jobs of a group that could not be submitted as a whole.
    async fn cancel_all_of(&self, jobs: &[JobId]) {
        for job in jobs {
            if let Err(error) = self.cancel(*job).await {
                tracing::warn!(%job, error = model::error_chain(&error), "cannot cancel a job of an incomplete group");
            }
        }
    }

    /// Returns the group of a job.
    pub async fn group_of(&self, job: JobId) -> Result<JobGroup, CallError> {
        self.job(job).await?.order.call.group.ok_or_else(|| GroupError::NotGrouped { job }.into())
    }

    /// Finds a group by the id of one of its jobs, or a unique prefix of it. Jobs of one group differ only at the end of their ids.
    pub async fn find_group(&self, prefix: JobIdPrefix) -> Result<GroupMatch, CallError> {
        let jobs = match self.find(prefix).await? {
            PrefixMatch::Nothing => Vec::new(),
            PrefixMatch::One(job) => vec![job.id],
            PrefixMatch::Several(jobs) => jobs,
        };
        let mut groups = BTreeMap::new();
        for job in jobs {
            match self.group_of(job).await {
                Ok(group) => groups.extend(group.id().map(|id| (id, group))),
                Err(CallError::Group(GroupError::NotGrouped { .. }) | CallError::NoSuchJob { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(match groups.len() {
            0 => GroupMatch::Nothing,
            1 => groups.into_values().next().map_or(GroupMatch::Nothing, GroupMatch::One),
            _ => GroupMatch::Several(groups.into_keys().collect()),
        })
    }

    /// Returns the jobs of a group that exist. Retention may have removed others.
    pub async fn jobs_of_group(&self, group: &JobGroup) -> Result<Vec<JobId>, CallError> {
        let mut existing = Vec::new();
        for job in group.jobs() {
            match self.job(job).await {
                Ok(_) => existing.push(job),
                Err(CallError::NoSuchJob { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(existing)
    }

    /// Cancels the unfinished jobs of a group. Returns what was done; nothing for jobs that had ended. An error does not affect the
    /// other jobs; the first one is returned.
    pub async fn cancel_group(&self, group: &JobGroup) -> Result<Vec<(JobId, Cancellation)>, CallError> {
        let (mut cancelled, mut failure) = (Vec::new(), None);
        // The reviewers first: otherwise they start when the last contender ends.
        let reviewers_first = group.reviewers.iter().chain(&group.contenders);
        for job in reviewers_first {
            match self.cancel(*job).await {
                Ok(cancellation) if cancellation.previous.ended().is_none() => {
                    cancelled.push((*job, cancellation));
                }
                Ok(_) | Err(CallError::AlreadyEnded { .. } | CallError::NoSuchJob { .. }) => {}
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        cancelled.sort_by_key(|(job, _)| group.jobs().position(|other| other == *job));
        failure.map_or(Ok(cancelled), Err)
    }

    /// Returns the state of a group.
    pub async fn group_report(&self, group: &JobGroup) -> Result<GroupReport, CallError> {
        let mut answers: BTreeMap<JobId, Answer> = BTreeMap::new();
        for job in group.jobs() {
            match self.answer(job).await {
                Ok(answer) => drop(answers.insert(job, answer)),
                // Removed by retention, or never submitted.
                Err(CallError::NoSuchJob { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let mut report = report(group, &answers);
        for contender in &mut report.contenders {
            contender.activity = self.agent_activity(&contender.answer);
        }
        Ok(report)
    }

    fn agent_activity(&self, answer: &Answer) -> Option<String> {
        let activity = self.activity(answer.job_id.parse().ok()?)?;
        let line = activity.borrow().line.clone();
        (answer.status == JobStatus::Running && !line.is_empty()).then_some(line)
    }

    /// Cancels the unfinished other jobs of the group of a contender, and discards the open changes of the other contenders. An error does
    /// not affect the others; the first one is returned.
    pub async fn discard_other_contenders(&self, kept: JobId) -> Result<ClosedJobs, CallError> {
        let group = self.group_of(kept).await?;
        let Some(GroupRole::Contender(_)) = group.role(kept) else {
            return Err(GroupError::NotAContender { job: kept }.into());
        };
        let others = JobGroup {
            contenders: group.contenders.into_iter().filter(|job| *job != kept).collect(),
            ..group
        };
        let cancelled: Vec<JobId> =
            self.cancel_group(&others).await?.into_iter().map(|(job, _)| job).collect();
        self.wait(&cancelled, Until::All, CANCEL_TIMEOUT).await?;
        let (mut discarded, mut failure) = (Vec::new(), None);
        for job in others.contenders {
            match self.discard(job).await {
                Ok(()) => discarded.push(job),
                // Without changes, already applied or discarded, part of a later job, or removed by retention.
                Err(
                    CallError::NoCheckout { .. }
                    | CallError::ChangesState { .. }
                    | CallError::Continued { .. }
                    | CallError::NoSuchJob { .. },
                ) => {}
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        failure.map_or(Ok(ClosedJobs { cancelled, discarded }), Err)
    }

    /// Removes the checkout that another contender has created for a job, if the job ended before its agent started.
    pub(super) async fn remove_unused_checkout(&self, job: JobId) {
        let files = self.files(job);
        let removed = tokio::task::spawn_blocking(move || {
            let checkout = JobCheckout::read(&files).filter(|checkout| checkout.belongs_to(job));
            match checkout {
                Some(checkout) if files.newest_run().is_none() => checkouts::remove_unused(&checkout, &files),
                _ => Ok(()),
            }
        });
        if let Ok(Err(error)) = removed.await {
            tracing::warn!(%job, %error, "cannot remove the unused checkout");
        }
    }
}

/// A job of a group that is submitted.
enum PlannedJob {
    /// An earlier request has stored it.
    Stored(Box<Job>),
    New(Box<NewJob>, Box<LaunchSetup>),
}

/// Returns the request for a job of a group. The first one has the idempotency key of the group.
fn member_request(base: &CallRequest, number: usize, call: CallSpec) -> CallRequest {
    let key = base.idempotency_key.as_ref();
    let idempotency_key = key.map(|key| if number == 0 { key.clone() } else { format!("{key}/{number}") });
    CallRequest { call, idempotency_key, ..base.clone() }
}

/// Returns the calls of a group, those of the reviewers last.
fn plan_calls(request: &GroupRequest) -> Result<Vec<CallSpec>, GroupError> {
    let GroupRequest { base, kind, contenders, judge } = request;
    let given = contenders.len();
    if !(MIN_CONTENDERS..=MAX_CONTENDERS).contains(&given) {
        return Err(GroupError::Size { given });
    }
    let call = &base.call;
    if call.session != SessionChoice::New {
        return Err(GroupError::Session);
    }
    let with_agent = |call: &CallSpec, choice: &AgentChoice| CallSpec {
        agent: choice.agent,
        model: choice.model.clone(),
        ..call.clone()
    };
    let review = CallSpec {
        mode: Mode::Observe,
        worktree: Some(false),
        verify: None,
        expect_changes: false,
        // The answer of a reviewer has a form of its own.
        output_schema: None,
        ..call.clone()
    };
    let (contender, reviewers) = match kind {
        GroupKind::Race => {
            if !call.add_dirs.is_empty() {
                return Err(GroupError::SharedDirectories);
            }
            let contender = CallSpec { worktree: Some(true), ..call.clone() };
            // The order is reversed for the second.
            (contender, judge.iter().chain(judge).collect::<Vec<_>>())
        }
        GroupKind::Answers => {
            if call.verify.is_some() || call.expect_changes || call.worktree == Some(true) {
                return Err(GroupError::ReadOnly);
            }
            let contender = CallSpec { mode: Mode::Observe, worktree: Some(false), ..call.clone() };
            (contender, judge.as_ref().or(contenders.first()).into_iter().collect())
        }
    };
    let contenders = contenders.iter().map(|choice| with_agent(&contender, choice));
    Ok(contenders.chain(reviewers.into_iter().map(|choice| with_agent(&review, choice))).collect())
}

/// Builds the report of a group from the answers of its jobs.
fn report(group: &JobGroup, answers: &BTreeMap<JobId, Answer>) -> GroupReport {
    let is_eligible = |index: usize| {
        let answer = group.contenders.get(index).and_then(|job| answers.get(job));
        answer.is_some_and(|answer| {
            answer.status == JobStatus::Completed
                && answer.changes.as_ref().is_some_and(|changes| changes.files_changed > 0)
        })
    };
    let reviews: Vec<Review> = group.reviewers.iter().map(|job| read_review(answers.get(job))).collect();
    let contenders = group.contenders.iter().enumerate().filter_map(|(index, job)| {
        let answer = answers.get(job)?.clone();
        let others =
            group.contenders.iter().filter(|other| *other != job).filter_map(|other| answers.get(other));
        let overlaps = find_overlaps(&answer, others);
        let number = u32::try_from(index + 1).unwrap_or(u32::MAX);
        Some(Contender { number, activity: None, overlaps, answer })
    });
    GroupReport {
        group_id: group.id().map(|id| id.to_string()).unwrap_or_default(),
        kind: group.kind.name().to_owned(),
        has_ended: answers.values().all(|answer| answer.status.is_final()),
        contenders: contenders.collect(),
        verdict: combine_reviews(group, &reviews, is_eligible).map(|verdict| qualify(verdict, answers)),
        reviews: group.reviewers.iter().filter_map(|job| answers.get(job).cloned()).collect(),
    }
}

/// Adds to the reason of a verdict the limits of the winner.
fn qualify(verdict: GroupVerdict, answers: &BTreeMap<JobId, Answer>) -> GroupVerdict {
    let winner = answers.values().find(|answer| verdict.winner.as_ref() == Some(&answer.job_id));
    let Some(changes) = winner.and_then(|answer| answer.changes.as_ref()) else { return verdict };
    let mut reason = verdict.reason.clone();
    let unseen = changes.files.iter().filter(|file| file.content.is_some()).count();
    if unseen > 0 {
        let _ = write!(reason, "; {unseen} of its files are not texts, and only their names were shown");
    }
    if changes.checkout.as_ref().is_some_and(|checkout| checkout.state == ChangesState::Discarded) {
        reason.push_str("; its changes are discarded");
    }
    GroupVerdict { reason, ..verdict }
}

fn read_review(answer: Option<&Answer>) -> Review {
    match answer {
        Some(answer) if answer.status == JobStatus::Completed => Review::Answered(answer.output.clone()),
        Some(answer) if !answer.status.is_final() => Review::Pending,
        Some(answer) if answer.status == JobStatus::Cancelled => Review::Cancelled,
        Some(answer) => {
            let nothing = FailureKind::NothingToReview.name();
            if answer.error.as_ref().is_some_and(|error| error.kind == nothing) {
                return Review::NothingToCompare;
            }
            let reason = answer.error.as_ref().map(|error| error.message.clone());
            Review::Failed { reason: reason.unwrap_or_else(|| answer.status.as_str().to_owned()) }
        }
        None => Review::Failed { reason: "its job was removed".to_owned() },
    }
}

/// Returns the files of a contender that others have changed, too.
fn find_overlaps<'a>(answer: &Answer, others: impl Iterator<Item = &'a Answer>) -> Vec<String> {
    let paths = |changes: &Changes| -> BTreeSet<String> {
        changes.files.iter().flat_map(|file| [Some(file.path.clone()), file.from.clone()]).flatten().collect()
    };
    let theirs: BTreeSet<String> =
        others.filter_map(|other| other.changes.as_ref()).flat_map(paths).collect();
    let own = answer.changes.as_ref().map(paths).unwrap_or_default();
    own.intersection(&theirs).take(MAX_OVERLAPS).cloned().collect()
}
