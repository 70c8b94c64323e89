//! The page of a group: its contenders, the verdict or the synthesis, and the reviewers.
//!
//! Names and texts come from agents and callers: everything is sanitized, and maud escapes it.

use axum::extract::{Extension, Form, Path, State};
use axum::response::{IntoResponse, Redirect, Response};
use calls::{
    Answer, CallError, Changes, Contender, GroupMatch, GroupReport, GroupVerdict, JobService, JobStatus,
    VerdictState, Verification, VerificationState,
};
use maud::{Markup, html};
use model::{GroupId, GroupKind, Job, JobGroup, JobId};
use render::duration::format_millis;
use render::text::{format_dollars, sanitize, to_one_line, truncate};

use crate::actions::FormFields;
use crate::changes;
use crate::context::PageContext;
use crate::job;
use crate::keep;
use crate::login::WebVisitor;
use crate::page::{self, ActivePage};
use crate::rejection::PageRejection;

/// The maximum number of listed overlaps of a contender.
const MAX_OVERLAPS: usize = 5;
/// The maximum number of characters of a line of text.
const LINE_CHARS: usize = 160;
/// The maximum number of characters of the reason of a verdict.
const REASON_CHARS: usize = 500;

/// Finds a group by its id, or by a unique prefix of it. The id of one of its jobs names it, too.
pub(crate) async fn find_group(
    service: &JobService,
    given: &str,
) -> Result<(GroupId, JobGroup), PageRejection> {
    let unknown = || {
        PageRejection::not_found(
            format!("Group {} not found", to_one_line(given, 40)),
            "all jobs are at `/`; old jobs are removed after a while",
        )
    };
    let prefix = GroupId::parse_prefix(given).and_then(Result::ok).ok_or_else(unknown)?;
    match service.find_group(prefix).await? {
        GroupMatch::One(group) => Ok((group.id().ok_or_else(unknown)?, group)),
        GroupMatch::Nothing => Err(unknown()),
        GroupMatch::Several(_) => Err(PageRejection::bad_request(
            "Several groups start with this id",
            "use a longer prefix of the id of the group",
        )),
    }
}

/// Returns what an unfinished job does or waits for, if this daemon runs it.
pub(crate) fn current_activity(service: &JobService, job: JobId) -> Option<String> {
    let activity = service.activity(job)?;
    let activity = activity.borrow();
    let waiting = activity.waiting.as_ref().map(ToString::to_string);
    Some(waiting.unwrap_or_else(|| activity.line.clone())).filter(|line| !line.is_empty())
}

/// Renders the current activity of a job.
pub(crate) fn activity_line(line: &str) -> Markup {
    html! { (to_one_line(line, LINE_CHARS)) }
}

/// The state of a group for its page.
struct GroupState<'a> {
    service: &'a JobService,
    id: GroupId,
    group: JobGroup,
    report: GroupReport,
    /// The records of the jobs that retention has not removed.
    jobs: Vec<Job>,
}

impl<'a> GroupState<'a> {
    /// Reads the report before the records: if it has ended, no record is older.
    async fn read(service: &'a JobService, id: GroupId, group: JobGroup) -> Result<Self, PageRejection> {
        let report = service.group_report(&group).await?;
        let mut jobs = Vec::new();
        for job in group.jobs() {
            match service.job(job).await {
                Ok(job) => jobs.push(job),
                Err(CallError::NoSuchJob { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Self { service, id, group, report, jobs })
    }

    fn find_job(&self, answer: &Answer) -> Option<&Job> {
        self.jobs.iter().find(|job| job.id.to_string() == answer.job_id)
    }

    /// Returns whether the cancellation of all unfinished jobs was requested.
    fn is_stopping(&self) -> bool {
        let mut unfinished = self.jobs.iter().filter(|job| job.completed_at.is_none()).peekable();
        unfinished.peek().is_some() && unfinished.all(|job| job.progress.cancel_requested_at.is_some())
    }

    fn is_race(&self) -> bool {
        self.group.kind == GroupKind::Race
    }
}

/// Handles requests for the page of a group.
pub(crate) async fn show(
    State(context): State<PageContext>,
    Extension(visitor): Extension<WebVisitor>,
    Path(given): Path<String>,
) -> Result<Response, PageRejection> {
    let service = context.service();
    let (id, group) = find_group(service, &given).await?;
    if given != id.to_string() {
        return Ok(Redirect::to(&format!("/groups/{id}")).into_response());
    }
    let state = GroupState::read(service, id, group).await?;
    let head = state.jobs.first().map(job::headline).unwrap_or_default();
    let is_live = !state.report.has_ended;
    let main = html! {
        (heading(&state, &head, &visitor))
        div.group-page.story data-live=[is_live.then(|| format!("/groups/{id}/live"))] {
            @if let Some(job) = state.jobs.first() { (job::prompt(job)) }
            (contenders(&state))
            div data-swap="result" { (result(&state)) }
            @if state.is_race() { (keep::actions(&state.report, &visitor)) }
            (reviewers(&state))
        }
    };
    Ok(page::page(if head.is_empty() { "Group" } else { &head }, ActivePage::Job, &visitor, &main))
}

/// Handles a request to cancel the unfinished jobs of a group.
pub(crate) async fn cancel(
    State(context): State<PageContext>,
    Extension(visitor): Extension<WebVisitor>,
    Path(group): Path<String>,
    Form(form): Form<FormFields>,
) -> Result<Redirect, PageRejection> {
    form.check(&visitor)?;
    let (id, group) = find_group(context.service(), &group).await?;
    context.service().cancel_group(&group).await?;
    tracing::info!(group = %id, "cancelled on the web page");
    Ok(Redirect::to(&format!("/groups/{id}")))
}

fn heading(state: &GroupState<'_>, head: &str, visitor: &WebVisitor) -> Markup {
    let report = &state.report;
    let count = state.group.contenders.len();
    let ended = report.contenders.iter().filter(|contender| contender.answer.status.is_final()).count();
    html! {
        div.head.of-job {
            p.crumb { a href="/" { "Jobs" } " / " span.id { (state.id) } }
            h1 { @if head.is_empty() { "(empty prompt)" } @else { (head) } }
            p.line data-swap="state" {
                @if report.has_ended { span.chip { "ended" } } @else { span.chip.is-running { "running" } }
                span { @if state.is_race() { "race of " (count) } @else { (count) " independent answers" } }
                @if !report.has_ended { span { (ended) " of " (count) " have ended" } }
                @if let Some(job) = state.jobs.first() {
                    span { "submitted " (page::timestamp(job.created_at.as_millis())) }
                }
            }
            div data-swap="actions" {
                div.actions {
                    @if state.is_stopping() {
                        p.aside { "The group is being stopped." }
                    } @else if !report.has_ended {
                        (page::confirmed_action(visitor, &format!("/groups/{}/cancel", state.id), "Cancel the group",
                            "This stops all running agents of the group and their processes, and cancels its waiting jobs. Changes so far are kept.", "danger"))
                    }
                }
            }
        }
    }
}

fn contenders(state: &GroupState<'_>) -> Markup {
    let is_verified = state.jobs.iter().any(|job| job.order.call.verify.is_some());
    let removed = state.group.contenders.len() - state.report.contenders.len();
    html! {
        section aria-labelledby="contenders" {
            h2 #contenders { "Contenders" }
            table.contenders {
                thead {
                    tr {
                        th scope="col" { "Agent" }
                        th scope="col" { "State" }
                        @if is_verified { th scope="col" { "Verified" } }
                        @if state.is_race() {
                            th scope="col" { "Changes" }
                            th scope="col" { "Overlaps" }
                        }
                        th.figure scope="col" { "Took" }
                        th.figure scope="col" { "Cost" }
                    }
                }
                tbody { @for contender in &state.report.contenders { (row(state, contender, is_verified)) } }
            }
            @if removed > 0 { p.aside { (page::group_digits(removed as u64)) " more were removed: old jobs are removed after a while." } }
        }
    }
}

fn row(state: &GroupState<'_>, contender: &Contender, is_verified: bool) -> Markup {
    let Contender { number, overlaps, answer, .. } = contender;
    let is_running = answer.status == JobStatus::Running && answer.waiting.is_none();
    let duration = html! {
        @if is_running { (page::running_duration(answer.duration_ms)) } @else { (format_millis(answer.duration_ms)) }
    };
    html! {
        tr data-swap={ "contender-" (number) } {
            th scope="row" {
                a href={ "/jobs/" (answer.job_id) } { (number) ". " (answer.agent) }
                @if let Some(model) = &answer.model { span.meta { (to_one_line(model, keep::LABEL_CHARS)) } }
                @if keep::is_winner(&state.report, contender) { span.chip.is-completed { "best" } }
            }
            (cell("State", None, Some(job_state(state, answer))))
            @if is_verified { (cell("Verified", None, answer.verified.as_ref().map(verified))) }
            @if state.is_race() {
                (cell("Changes", None, answer.changes.as_ref().map(extent)))
                (cell("Overlaps", None, (!overlaps.is_empty()).then(|| list_overlaps(overlaps))))
            }
            (cell("Took", FIGURE, (answer.duration_ms > 0).then_some(duration)))
            (cell("Cost", FIGURE, answer.cost_usd.map(|cost| html! { (format_dollars(cost)) })))
        }
    }
}

/// The style of a cell with a figure.
const FIGURE: Option<&str> = Some("figure");

/// Renders a cell of the table. A narrow page shows the name of the column in the cell.
fn cell(name: &str, class: Option<&str>, value: Option<Markup>) -> Markup {
    html! { td class=[class] data-name=(name) { @match value { Some(value) => (value), None => span.none { "–" } } } }
}

/// Renders the state of a job, and its current activity or its failure.
fn job_state(state: &GroupState<'_>, answer: &Answer) -> Markup {
    let job = state.find_job(answer);
    let activity =
        job.and_then(|job| current_activity(state.service, job.id)).or_else(|| answer.waiting.clone());
    html! {
        @if let Some(job) = job {
            (page::state_chips(job.progress.state.name(), job.progress.cancel_requested_at.is_some()))
        }
        @if let Some(error) = answer.error.as_ref().filter(|_| answer.status != JobStatus::Cancelled) {
            span.meta { span.why { (error.kind.replace('_', " ")) ": " (to_one_line(&error.message, LINE_CHARS)) } }
        } @else if !answer.status.is_final() {
            span.meta #{ "activity-" (answer.job_id) } { (activity_line(&activity.unwrap_or_default())) }
        }
    }
}

fn verified(verification: &Verification) -> Markup {
    let (class, label) = match verification.state {
        VerificationState::Passed => ("chip is-completed", "passed"),
        VerificationState::Failed => ("chip is-failed", "failed"),
        VerificationState::NotRun => ("chip", "not run"),
    };
    html! {
        span class=(class) { (label) }
        @if let Some(reason) = &verification.reason { span.meta { (to_one_line(reason, LINE_CHARS)) } }
    }
}

/// Renders the size and the state of changes.
fn extent(changes: &Changes) -> Markup {
    html! {
        (page::count_files(changes.files_changed))
        @if changes.files_changed > 0 {
            span.meta { "+" (page::group_digits(changes.lines_added)) " −" (page::group_digits(changes.lines_removed)) " lines" }
            @if let Some(checkout) = &changes.checkout { (changes::state_chip(checkout.state)) }
        }
    }
}

fn list_overlaps(paths: &[String]) -> Markup {
    html! {
        @for (position, path) in paths.iter().take(MAX_OVERLAPS).enumerate() {
            @if position > 0 { ", " }
            code.path { (to_one_line(path, LINE_CHARS)) }
        }
        @if paths.len() > MAX_OVERLAPS { " and " (page::group_digits((paths.len() - MAX_OVERLAPS) as u64)) " more" }
    }
}

/// Renders the verdict of a race, or the synthesis of the answers.
fn result(state: &GroupState<'_>) -> Markup {
    match (&state.report.verdict, state.report.reviews.first()) {
        (Some(given), _) => verdict(state, given),
        (None, Some(review)) if !state.is_race() => synthesis(review),
        _ => html! {},
    }
}

fn verdict(state: &GroupState<'_>, verdict: &GroupVerdict) -> Markup {
    let winner = state.report.contenders.iter().find(|contender| keep::is_winner(&state.report, contender));
    html! {
        section.verdict aria-labelledby="verdict" {
            h2 #verdict { "Verdict" }
            p {
                @match winner {
                    Some(winner) => strong { a href={ "/jobs/" (winner.answer.job_id) } { "Contender " (winner.number) } " is the best" },
                    None => strong { (describe_verdict(verdict.state)) },
                }
                ": " (to_one_line(&verdict.reason, REASON_CHARS)) "."
            }
        }
    }
}

fn describe_verdict(state: VerdictState) -> &'static str {
    match state {
        VerdictState::Decided => "Decided",
        VerdictState::NoneAccepted => "None is good enough",
        VerdictState::Disagreed => "No decision",
        VerdictState::NotJudged => "Not judged",
        VerdictState::Pending => "Not yet decided",
    }
}

fn synthesis(review: &Answer) -> Markup {
    let (text, missing) = truncate(&review.output, job::MAX_PROMPT_CHARS);
    html! {
        section.synthesis aria-labelledby="synthesis" {
            h2 #synthesis { "Synthesis" }
            @if review.status == JobStatus::Completed {
                div.said { div.text { (sanitize(text)) } }
                @if missing > 0 { p.aside { (page::group_digits(missing as u64)) " more characters are not shown." } }
            } @else if review.status.is_final() {
                p { "There is none: its job is " strong { (review.status.as_str()) } "." }
            } @else {
                p.aside { "It appears here after all answers." }
            }
        }
    }
}

/// Renders the jobs that compare the results.
fn reviewers(state: &GroupState<'_>) -> Markup {
    html! {
        @if !state.report.reviews.is_empty() {
            section.reviewers aria-labelledby="reviewers" {
                h2 #reviewers { "Reviewers" }
                ul.files {
                    @for (position, review) in state.report.reviews.iter().enumerate() {
                        li data-swap={ "reviewer-" (position + 1) } {
                            a href={ "/jobs/" (review.job_id) } { @if state.is_race() { "Judge, run " (position + 1) } @else { "Synthesis" } }
                            ": " (keep::label(review)) " " (job_state(state, review))
                        }
                    }
                }
            }
        }
    }
}
