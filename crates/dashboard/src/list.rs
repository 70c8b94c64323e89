//! The list of jobs: newest first, paged, with filters and a search that the store executes.

use axum::extract::{Extension, Query, State};
use axum::response::Response;
use calls::{CallError, JobFilter, JobService, JobSummary, PageRequest};
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
        !(self.state.is_empty() && self.agent.is_empty() && self.q.trim().is_empty())
    }

    /// Returns the URL of a list with these filters, starting after a job.
    fn url(&self, path: &str, before: &str) -> String {
        let fields = [
            ("state", self.state.as_str()),
            ("agent", &self.agent),
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

/// Handles requests for the list.
pub(crate) async fn show(
    State(context): State<PageContext>,
    Extension(visitor): Extension<WebVisitor>,
    Query(query): Query<ListQuery>,
) -> Result<Response, PageRejection> {
    let (filter, before) = (query.filter()?, query.older_than()?);
    let service = context.service();
    let found = service.list(&filter, PageRequest { limit: PAGE_SIZE, before }).await?;
    let counts = counts(service).await?;
    // A separate count: a job that changes its state between two counts would appear in both or in none.
    let all = service.count(&JobFilter::default()).await?;
    let total = if query.is_filtered() { service.count(&filter).await? } else { all };
    let main = html! {
        div.head {
            h1 { "Jobs" }
            (summary(&counts, all, &query))
        }
        (filters(&query))
        @if all == 0 {
            (nothing_yet())
        } @else if found.jobs.is_empty() && found.unreadable.is_empty() {
            section.blank {
                h2 { "No matching jobs" }
                p { a href="/" { "Show all " (page::group_digits(all)) } }
            }
        }
        // Only the first page is live: new jobs belong there.
        div.jobs-list data-live=[before.is_none().then(|| query.url("/live", ""))] data-most=(PAGE_SIZE)
            hidden[found.jobs.is_empty() && before.is_some()] {
            div.jobs-head aria-hidden="true" hidden[found.jobs.is_empty()] {
                span { "State" } span { "Task" } span.figure { "Took" } span.figure { "Tokens" } span.figure { "Cost" } span.figure { "Submitted" }
            }
            ol.jobs #jobs aria-label="Jobs, newest first" {
                @for job in &found.jobs { (row(service, job)) }
            }
        }
        @if !found.unreadable.is_empty() {
            p.aside { "Unreadable jobs (run " code { "switchboard status ID" } " for the reason):"
                @for job in &found.unreadable { " " code { (job) } } }
        }
        (pages(&query, total, found.jobs.len(), found.next))
    };
    Ok(page::page("Jobs", ActivePage::Jobs, &visitor, &main))
}

/// Renders the number of jobs per state, each with a link.
fn summary(counts: &[(StateName, u64)], all: u64, query: &ListQuery) -> Markup {
    let count = |state: StateName| counts.iter().find(|(of, _)| *of == state).map_or(0, |(_, count)| *count);
    let running = count(StateName::Running);
    let shown = StateName::ALL.into_iter().filter(|state| count(*state) > 0);
    html! {
        ul.counts #counts aria-label="Jobs by state" data-running=(running) {
            li { a href="/" aria-current=[query.state.is_empty().then_some("true")] { "all " b { (page::group_digits(all)) } } }
            @for state in shown {
                @let link = ListQuery { state: state.as_str().to_owned(), ..ListQuery::default() };
                li {
                    a href=(link.url("/", "")) aria-current=[(query.state == state.as_str()).then_some("true")] {
                        (page::state_chip(state)) " " b { (page::group_digits(count(state))) }
                    }
                }
            }
        }
    }
}

fn filters(query: &ListQuery) -> Markup {
    let states = StateName::ALL.map(|state| (state.as_str(), state.as_str()));
    let agents = AgentKind::ALL.map(|agent| (agent.name(), agent.name()));
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
                    @for (value, name) in agents { (choice(value, name, &query.agent)) }
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
pub(crate) fn row(service: &JobService, job: &JobSummary) -> Markup {
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
        assert!(query("done", "").filter().is_err() && query("", "gpt").filter().is_err());
        assert_eq!(query("active", "codex").filter().unwrap().states, ACTIVE);
        assert!(ListQuery { before: "x".into(), ..ListQuery::default() }.older_than().is_err());
    }
}
