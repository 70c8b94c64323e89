//! The list of jobs: newest first, paged, with filters and a search that the store executes.

use std::collections::BTreeSet;

use agents::ProfileSupport;
use axum::extract::{Extension, Query, State};
use axum::response::Response;
use calls::{CallError, ChangesState, JobFilter, JobService, JobSummary, PageRequest};
use maud::{Markup, html};
use model::{AgentKind, JobId, StateName};
use render::duration::format_millis;
use render::text::{abbreviate, format_dollars, sanitize, to_one_line};
use serde::Deserialize;

use crate::context::PageContext;
use crate::login::WebVisitor;
use crate::page::{self, ActivePage};
use crate::rejection::PageRejection;
use crate::stats::duration_ms;

/// Jobs per page.
const PAGE_SIZE: u32 = 50;

/// The states of the filter `active`.
const ACTIVE: [StateName; 4] =
    [StateName::Running, StateName::Queued, StateName::Paused, StateName::Interrupted];

/// The query parameters of a list request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct ListQuery {
    /// A state, or `active`.
    state: String,
    agent: String,
    /// `open`: only ended jobs with open changes in a private checkout.
    changes: String,
    /// Words of the task or the prompt.
    q: String,
    /// Only jobs older than this one.
    before: String,
}

impl ListQuery {
    /// Returns the filter for the store. Rejects unknown values: an unfiltered list would look like a result.
    pub fn filter(&self) -> Result<JobFilter, PageRejection> {
        let invalid = |name: &str, given: &str| {
            PageRejection::bad_request(
                format!("Unknown {name} `{}`", to_one_line(given, 40)),
                "choose one from the list on the jobs page",
            )
        };
        let states = match self.state.as_str() {
            "" => Vec::new(),
            "active" => ACTIVE.to_vec(),
            state => vec![state.parse().map_err(|_| invalid("state", state))?],
        };
        let agent = match self.agent.as_str() {
            "" => None,
            agent => Some(agent.parse::<AgentKind>().map_err(|_| invalid("agent", agent))?),
        };
        if !matches!(self.changes.as_str(), "" | "open") {
            return Err(invalid("filter of changes", &self.changes));
        }
        let text = Some(self.q.trim().to_owned()).filter(|text| !text.is_empty());
        Ok(JobFilter { states, agent, text, ..JobFilter::default() })
    }

    fn older_than(&self) -> Result<Option<JobId>, PageRejection> {
        if self.before.is_empty() {
            return Ok(None);
        }
        let parsed = self.before.parse();
        parsed.map(Some).map_err(|_| {
            PageRejection::bad_request(
                "This page of the list does not exist",
                "start with the newest jobs at `/`",
            )
        })
    }

    fn is_filtered(&self) -> bool {
        !(self.state.is_empty()
            && self.agent.is_empty()
            && self.changes.is_empty()
            && self.q.trim().is_empty())
    }

    /// Returns the URL of a list with these filters, starting after a job.
    fn url(&self, path: &str, before: &str) -> String {
        let fields = [
            ("state", self.state.as_str()),
            ("agent", &self.agent),
            ("changes", &self.changes),
            ("q", self.q.trim()),
            ("before", before),
        ];
        let given = fields.iter().filter(|(_, value)| !value.is_empty());
        let pairs: Vec<String> =
            given.map(|(name, value)| format!("{name}={}", percent_encode(value))).collect();
        if pairs.is_empty() { path.to_owned() } else { format!("{path}?{}", pairs.join("&")) }
    }
}

/// Percent-encodes a query value.
fn percent_encode(value: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    value.bytes().map(byte).collect()
}

/// Counts the jobs in each state. One query per state uses an index; aggregating all jobs would read them all.
async fn counts(service: &JobService) -> Result<Vec<(StateName, u64)>, CallError> {
    let mut counts = Vec::new();
    for state in StateName::ALL {
        counts
            .push((state, service.count(&JobFilter { states: vec![state], ..JobFilter::default() }).await?));
    }
    Ok(counts)
}

/// Returns the ended jobs with open changes.
async fn open_jobs(service: &JobService) -> Result<BTreeSet<JobId>, CallError> {
    let open = service.open_changes().await?;
    Ok(open.into_iter().filter(|changes| changes.has_ended).map(|changes| changes.job).collect())
}

/// Returns whether the job has ended with changes that are neither applied nor discarded.
pub(crate) async fn has_open_changes(service: &JobService, job: &JobSummary) -> bool {
    if job.completed_at.is_none() {
        return false;
    }
    let changes = service.answer(job.id).await.ok().and_then(|answer| answer.changes);
    changes.and_then(|changes| changes.checkout).is_some_and(|checkout| checkout.state == ChangesState::Open)
}

/// Returns the summary of a job if it matches the filter.
pub(crate) async fn find_matching(
    service: &JobService,
    filter: &JobFilter,
    job: JobId,
) -> Result<Option<JobSummary>, CallError> {
    // The newest matching job up to this one: this job, unless it does not match.
    let page = PageRequest { limit: 1, before: Some(next_id(job)) };
    let found = service.list(filter, page).await?.jobs.pop();
    Ok(found.filter(|found| found.id == job))
}

fn next_id(job: JobId) -> JobId {
    JobId::from_uuid(uuid::Uuid::from_u128(job.as_uuid().as_u128().saturating_add(1)))
}

/// A page of the list.
struct ListedJobs {
    jobs: Vec<JobSummary>,
    unreadable: Vec<JobId>,
    next: Option<JobId>,
    /// The number of matching jobs on all pages.
    total: u64,
}

/// Lists matching jobs that have open changes. The store does not know the state of changes.
async fn list_open(
    service: &JobService,
    filter: &JobFilter,
    open: &BTreeSet<JobId>,
    before: Option<JobId>,
) -> Result<ListedJobs, CallError> {
    let mut jobs = Vec::new();
    for job in open.iter().rev() {
        jobs.extend(find_matching(service, filter, *job).await?);
    }
    let total = jobs.len() as u64;
    jobs.retain(|job| before.is_none_or(|before| job.id < before));
    let is_last = jobs.len() <= PAGE_SIZE as usize;
    jobs.truncate(PAGE_SIZE as usize);
    let next = jobs.last().filter(|_| !is_last).map(|job| job.id);
    Ok(ListedJobs { jobs, unreadable: Vec::new(), next, total })
}

/// Handles requests for the list.
pub(crate) async fn show(
    State(context): State<PageContext>,
    Extension(visitor): Extension<WebVisitor>,
    Query(query): Query<ListQuery>,
) -> Result<Response, PageRejection> {
    let (filter, before) = (query.filter()?, query.older_than()?);
    let service = context.service();
    let open = open_jobs(service).await?;
    let counts = counts(service).await?;
    // A separate count: a job that changes its state between two counts would appear in both or in none.
    let all = service.count(&JobFilter::default()).await?;
    let found = if query.changes.is_empty() {
        let page = service.list(&filter, PageRequest { limit: PAGE_SIZE, before }).await?;
        let total = if query.is_filtered() { service.count(&filter).await? } else { all };
        ListedJobs { jobs: page.jobs, unreadable: page.unreadable, next: page.next, total }
    } else {
        list_open(service, &filter, &open, before).await?
    };
    // New jobs belong on the first page. A change that is applied or discarded is no event of the store.
    let is_live = before.is_none() && query.changes.is_empty();
    let agents = offered_agents(service, &found.jobs, &query);
    let main = html! {
        div.head {
            h1 { "Jobs" }
            (summary(&counts, all, open.len() as u64, &query))
        }
        (filters(&query, &agents))
        @if all == 0 {
            (nothing_yet())
        } @else if found.jobs.is_empty() && found.unreadable.is_empty() {
            section.blank {
                h2 { "No matching jobs" }
                p { a href="/" { "Show all " (page::group_digits(all)) } }
            }
        }
        div.jobs-list data-live=[is_live.then(|| query.url("/live", ""))] data-most=(PAGE_SIZE)
            hidden[found.jobs.is_empty() && !is_live] {
            div.jobs-head aria-hidden="true" hidden[found.jobs.is_empty()] {
                span { "State" } span { "Task" } span.figure { "Took" } span.figure { "Tokens" } span.figure { "Cost" } span.figure { "Submitted" }
            }
            ol.jobs #jobs aria-label="Jobs, newest first" {
                @for job in &found.jobs { (row(service, job, open.contains(&job.id))) }
            }
        }
        @if !found.unreadable.is_empty() {
            p.aside { "Unreadable jobs (run " code { "switchboard status ID" } " for the reason):"
                @for job in &found.unreadable { " " code { (job) } } }
        }
        (pages(&query, found.total, found.jobs.len(), found.next))
    };
    Ok(page::page("Jobs", ActivePage::Jobs, &visitor, &main))
}

/// Renders the number of jobs per state and of those with open changes, each with a link.
fn summary(counts: &[(StateName, u64)], all: u64, open: u64, query: &ListQuery) -> Markup {
    let count = |state: StateName| counts.iter().find(|(of, _)| *of == state).map_or(0, |(_, count)| *count);
    let running = count(StateName::Running);
    let shown = StateName::ALL.into_iter().filter(|state| count(*state) > 0);
    html! {
        ul.counts #counts aria-label="Jobs by state" data-running=(running) {
            li { a href="/" aria-current=[(query.state.is_empty() && query.changes.is_empty()).then_some("true")] { "all " b { (page::group_digits(all)) } } }
            @for state in shown {
                @let link = ListQuery { state: state.as_str().to_owned(), ..ListQuery::default() };
                li {
                    a href=(link.url("/", "")) aria-current=[(query.state == state.as_str()).then_some("true")] {
                        (page::state_chip(state)) " " b { (page::group_digits(count(state))) }
                    }
                }
            }
            @if open > 0 {
                @let link = ListQuery { changes: "open".to_owned(), ..ListQuery::default() };
                li {
                    a href=(link.url("/", "")) aria-current=[(!query.changes.is_empty()).then_some("true")] {
                        span.chip.is-open { "open changes" } " " b { (page::group_digits(open)) }
                    }
                }
            }
        }
    }
}

/// Returns the agents to filter by: those of the large vendors, the operator's own, and those of the listed jobs.
fn offered_agents(service: &JobService, jobs: &[JobSummary], query: &ListQuery) -> BTreeSet<String> {
    let profiles = service.profiles().iter();
    let custom = profiles.filter(|profile| profile.support == ProfileSupport::Custom);
    let known = AgentKind::NATIVE.into_iter().chain(custom.map(|profile| profile.agent));
    let listed = jobs.iter().map(|job| job.agent);
    let names = known.chain(listed).map(|agent| agent.name().to_owned());
    names.chain(Some(query.agent.clone()).filter(|name| !name.is_empty())).collect()
}

fn filters(query: &ListQuery, agents: &BTreeSet<String>) -> Markup {
    let states = StateName::ALL.map(|state| (state.as_str(), state.as_str()));
    html! {
        form.filters method="get" action="/" role="search" {
            label { span { "State" }
                select name="state" {
                    (choice("", "any", &query.state))
                    (choice("active", "active", &query.state))
                    @for (value, name) in states { (choice(value, name, &query.state)) }
                }
            }
            label { span { "Agent" }
                select name="agent" {
                    (choice("", "any", &query.agent))
                    @for name in agents { (choice(name, name, &query.agent)) }
                }
            }
            label.changes-filter { span { "Changes" }
                select name="changes" {
                    (choice("", "any", &query.changes))
                    (choice("open", "open", &query.changes))
                }
            }
            label.wide { span { "Search" }
                input type="search" name="q" value=(query.q) placeholder="words in the task or prompt" autocomplete="off" spellcheck="false";
            }
            button type="submit" { "Find" }
            @if query.is_filtered() { a.clear href="/" { "Clear" } }
        }
    }
}

fn choice(value: &str, name: &str, chosen: &str) -> Markup {
    html! { option value=(value) selected[value == chosen] { (name) } }
}

fn nothing_yet() -> Markup {
    html! {
        section.blank #nothing-yet {
            h2 { "No calls yet" }
            p { "Run one in a terminal, and it appears here:" }
            pre { "switchboard call rehearsal \"Hello\"" }
            p.aside { "Or let an agent do it: " code { "switchboard setup all" } " registers the tools with the agents on this machine." }
        }
    }
}

fn pages(query: &ListQuery, total: u64, shown: usize, next: Option<JobId>) -> Markup {
    html! {
        nav.pages aria-label="Pages of the list" {
            @if !query.before.is_empty() { a href=(query.url("/", "")) rel="first" { "Newest" } }
            @if shown > 0 { span #shown { (page::group_digits(shown as u64)) " of " (page::group_digits(total)) } }
            @if let Some(next) = next {
                a href=(query.url("/", &next.to_string())) rel="next" { "Older" }
            }
        }
    }
}

/// Renders a job of the list.
pub(crate) fn row(service: &JobService, job: &JobSummary, has_open_changes: bool) -> Markup {
    let duration = duration_ms(service, job);
    let is_running = job.completed_at.is_none()
        && service.activity(job.id).is_none_or(|activity| activity.borrow().waiting.is_none());
    let title = to_one_line(&job.prompt_head, 160);
    html! {
        li.job #{ "job-" (job.id) } data-state=(job.state.as_str()) {
            span.state { (page::state_chips(job.state, job.cancel_requested)) }
            span.what {
                a href={ "/jobs/" (job.id) } { @if title.is_empty() { "(an empty prompt)" } @else { (title) } }
                span.meta {
                    span { (job.agent) }
                    @if let Some(model) = &job.model { span { (sanitize(model)) } }
                    @if job.task != job.tool { span { (to_one_line(&job.task, 60)) } }
                    @if let Some(failure) = &job.failure { span.why { (failure.kind.name()) } }
                    @if has_open_changes { span.waits { "open changes" } }
                }
            }
            span.figure {
                span.label { "took " }
                @match duration {
                    Some(millis) if !is_running => (format_millis(millis)),
                    Some(millis) => (page::running_duration(millis)),
                    None => { span.none { "–" } }
                }
            }
            span.figure {
                span.label { "tokens " }
                @match job.usage { Some(usage) => (abbreviate(usage.input + usage.output)), None => { span.none { "–" } } }
            }
            span.figure {
                span.label { "cost " }
                @match job.cost_usd { Some(cost) => (format_dollars(cost)), None => { span.none { "–" } } }
            }
            span.figure.placed { span.label { "submitted " } (page::timestamp(job.created_at.as_millis())) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::Timestamp;

    #[test]
    fn url_contains_only_set_filters() {
        assert_eq!(ListQuery::default().url("/", ""), "/");
        let query = ListQuery { state: "failed".into(), q: " a&b=ü ".into(), ..ListQuery::default() };
        assert_eq!(query.url("/live", "x"), "/live?state=failed&q=a%26b%3D%C3%BC&before=x");
    }

    #[test]
    fn unknown_filter_values_are_rejected() {
        let query = |state: &str, agent: &str| ListQuery {
            state: state.into(),
            agent: agent.into(),
            ..ListQuery::default()
        };
        assert!(query("done", "").filter().is_err() && query("", "my gpt").filter().is_err());
        assert!(ListQuery { changes: "x".into(), ..ListQuery::default() }.filter().is_err());
        assert_eq!(query("active", "codex").filter().unwrap().states, ACTIVE);
        assert!(ListQuery { before: "x".into(), ..ListQuery::default() }.older_than().is_err());
    }

    #[test]
    fn next_id_directly_follows_the_job() {
        let job = JobId::new(Timestamp::from_millis(7), [255; 10]);
        assert!(next_id(job) > job);
        assert_eq!(next_id(job).as_uuid().as_u128() - job.as_uuid().as_u128(), 1);
    }
}
