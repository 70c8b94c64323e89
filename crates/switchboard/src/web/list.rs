//! The list of jobs: the newest first, a page at a time, with filters and a search that the store answers.

use axum::extract::{Extension, Query, State};
use axum::response::Response;
use calls::{CallError, JobFilter, JobService, JobSummary, PageRequest};
use maud::{Markup, html};
use model::{AgentKind, JobId, StateName};
use serde::Deserialize;

use super::Web;
use super::login::Visitor;
use super::page::{self, Here};
use super::refusal::Refusal;
use crate::job_stats::duration_ms;
use crate::text::{one_line, visible};

/// How many jobs a page has.
pub const PAGE: u32 = 50;

/// The states that are a group of their own for a reader.
const ACTIVE: [StateName; 4] =
    [StateName::Running, StateName::Queued, StateName::Paused, StateName::Interrupted];

/// What is looked for, as it stands in the address.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Wanted {
    /// A state, or `active`.
    state: String,
    agent: String,
    /// Words in the task or the prompt.
    q: String,
    /// Only jobs older than this one.
    before: String,
}

impl Wanted {
    /// As the store understands it. What is not understood is refused: a list that leaves nothing out would look like an answer.
    pub fn filter(&self) -> Result<JobFilter, Refusal> {
        let refused = |what: &str, given: &str| {
            Refusal::bad(
                format!("`{}` is no {what}", one_line(given, 40)),
                "choose one from the list on the page of the jobs",
            )
        };
        let states = match self.state.as_str() {
            "" => Vec::new(),
            "active" => ACTIVE.to_vec(),
            state => vec![state.parse().map_err(|_| refused("state", state))?],
        };
        let agent = match self.agent.as_str() {
            "" => None,
            agent => Some(agent.parse::<AgentKind>().map_err(|_| refused("agent", agent))?),
        };
        let text = Some(self.q.trim().to_owned()).filter(|text| !text.is_empty());
        Ok(JobFilter { states, agent, text, ..JobFilter::default() })
    }

    fn older_than(&self) -> Result<Option<JobId>, Refusal> {
        if self.before.is_empty() {
            return Ok(None);
        }
        let parsed = self.before.parse();
        parsed
            .map(Some)
            .map_err(|_| Refusal::bad("This page of the list does not exist", "begin with the newest at `/`"))
    }

    fn leaves_something_out(&self) -> bool {
        !(self.state.is_empty() && self.agent.is_empty() && self.q.trim().is_empty())
    }

    /// The address of a list with these filters, from a job on.
    fn address(&self, path: &str, before: &str) -> String {
        let fields = [
            ("state", self.state.as_str()),
            ("agent", &self.agent),
            ("q", self.q.trim()),
            ("before", before),
        ];
        let given = fields.iter().filter(|(_, value)| !value.is_empty());
        let pairs: Vec<String> = given.map(|(name, value)| format!("{name}={}", encoded(value))).collect();
        if pairs.is_empty() { path.to_owned() } else { format!("{path}?{}", pairs.join("&")) }
    }
}

/// A value in an address.
fn encoded(value: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    value.bytes().map(byte).collect()
}

/// How many jobs are in each state. Asked one by one, each is a look at an index; the sums of all jobs would read them all.
async fn counts(desk: &JobService) -> Result<Vec<(StateName, u64)>, CallError> {
    let mut counts = Vec::new();
    for state in StateName::ALL {
        counts.push((state, desk.count(&JobFilter { states: vec![state], ..JobFilter::default() }).await?));
    }
    Ok(counts)
}

/// The page.
pub async fn show(
    State(web): State<Web>,
    Extension(visitor): Extension<Visitor>,
    Query(wanted): Query<Wanted>,
) -> Result<Response, Refusal> {
    let (filter, before) = (wanted.filter()?, wanted.older_than()?);
    let desk = web.desk();
    let found = desk.list(&filter, PageRequest { limit: PAGE, before }).await?;
    let counts = counts(desk).await?;
    // Counted at once: a job that changes its state between two counts would be in both or in none.
    let all = desk.count(&JobFilter::default()).await?;
    let total = if wanted.leaves_something_out() { desk.count(&filter).await? } else { all };
    let main = html! {
        div.head {
            h1 { "Jobs" }
            (summary(&counts, all, &wanted))
        }
        (filters(&wanted))
        @if all == 0 {
            (nothing_yet())
        } @else if found.jobs.is_empty() && found.unreadable.is_empty() {
            section.blank {
                h2 { "Nothing fits" }
                p { "No job is like that. " a href="/" { "Show all " (page::grouped(all)) } }
            }
        }
        // Only the newest are live: what is placed now belongs to the first page.
        div.jobs-list data-live=[before.is_none().then(|| wanted.address("/live", ""))] data-most=(PAGE)
            hidden[found.jobs.is_empty() && before.is_some()] {
            div.jobs-head aria-hidden="true" hidden[found.jobs.is_empty()] {
                span { "State" } span { "Task" } span.figure { "Took" } span.figure { "Tokens" } span.figure { "Cost" } span.figure { "Placed" }
            }
            ol.jobs #jobs aria-label="Jobs, the newest first" {
                @for job in &found.jobs { (row(desk, job)) }
            }
        }
        @if !found.unreadable.is_empty() {
            p.aside { "Cannot be read; " code { "switchboard status ID" } " says why:"
                @for job in &found.unreadable { " " code { (job) } } }
        }
        (pages(&wanted, total, found.jobs.len(), found.next))
    };
    Ok(page::page("Jobs", Here::Jobs, &visitor, &main))
}

/// How many are in each state, each a link to those.
fn summary(counts: &[(StateName, u64)], all: u64, wanted: &Wanted) -> Markup {
    let count = |state: StateName| counts.iter().find(|(of, _)| *of == state).map_or(0, |(_, count)| *count);
    let running = count(StateName::Running);
    let shown = StateName::ALL.into_iter().filter(|state| count(*state) > 0);
    html! {
        ul.counts #counts aria-label="Jobs by state" data-running=(running) {
            li { a href="/" aria-current=[wanted.state.is_empty().then_some("true")] { "all " b { (page::grouped(all)) } } }
            @for state in shown {
                @let link = Wanted { state: state.as_str().to_owned(), ..Wanted::default() };
                li {
                    a href=(link.address("/", "")) aria-current=[(wanted.state == state.as_str()).then_some("true")] {
                        (page::chip(state)) " " b { (page::grouped(count(state))) }
                    }
                }
            }
        }
    }
}

fn filters(wanted: &Wanted) -> Markup {
    let states = StateName::ALL.map(|state| (state.as_str(), state.as_str()));
    let agents = AgentKind::ALL.map(|agent| (agent.name(), agent.name()));
    html! {
        form.filters method="get" action="/" role="search" {
            label { span { "State" }
                select name="state" {
                    (choice("", "any", &wanted.state))
                    (choice("active", "active", &wanted.state))
                    @for (value, name) in states { (choice(value, name, &wanted.state)) }
                }
            }
            label { span { "Agent" }
                select name="agent" {
                    (choice("", "any", &wanted.agent))
                    @for (value, name) in agents { (choice(value, name, &wanted.agent)) }
                }
            }
            label.wide { span { "Search" }
                input type="search" name="q" value=(wanted.q) placeholder="words of the task or the prompt" autocomplete="off" spellcheck="false";
            }
            button type="submit" { "Find" }
            @if wanted.leaves_something_out() { a.clear href="/" { "Clear" } }
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
            p { "Place one in a terminal, and it appears here by itself:" }
            pre { "switchboard call rehearsal \"Hello\"" }
            p.aside { "Or let an agent do it: " code { "switchboard setup all" } " offers the tools to the agents on this machine." }
        }
    }
}

fn pages(wanted: &Wanted, total: u64, shown: usize, next: Option<JobId>) -> Markup {
    html! {
        nav.pages aria-label="Pages of the list" {
            @if !wanted.before.is_empty() { a href=(wanted.address("/", "")) rel="first" { "Newest" } }
            @if shown > 0 { span #shown { (page::grouped(shown as u64)) " of " (page::grouped(total)) } }
            @if let Some(next) = next {
                a href=(wanted.address("/", &next.to_string())) rel="next" { "Older" }
            }
        }
    }
}

/// A job in the list.
pub fn row(desk: &JobService, job: &JobSummary) -> Markup {
    let took = duration_ms(desk, job);
    let runs = job.completed_at.is_none()
        && desk.activity(job.id).is_none_or(|activity| activity.borrow().waiting.is_none());
    let title = one_line(&job.prompt_head, 160);
    html! {
        li.job #{ "job-" (job.id) } data-state=(job.state.as_str()) {
            span.state { (page::chips(job.state, job.cancel_requested)) }
            span.what {
                a href={ "/jobs/" (job.id) } { @if title.is_empty() { "(an empty prompt)" } @else { (title) } }
                span.meta {
                    span { (job.agent) }
                    @if let Some(model) = &job.model { span { (visible(model)) } }
                    @if job.task != job.tool { span { (one_line(&job.task, 60)) } }
                    @if let Some(failure) = &job.failure { span.why { (failure.kind.name()) } }
                }
            }
            span.figure {
                span.label { "took " }
                @match took {
                    Some(millis) if !runs => (render::duration::format_millis(millis)),
                    Some(millis) => (page::growing(millis)),
                    None => { span.none { "–" } }
                }
            }
            span.figure {
                span.label { "tokens " }
                @match job.usage { Some(usage) => (page::brief(usage.input + usage.output)), None => { span.none { "–" } } }
            }
            span.figure {
                span.label { "cost " }
                @match job.cost_usd { Some(cost) => (page::dollars(cost)), None => { span.none { "–" } } }
            }
            span.figure.placed { span.label { "placed " } (page::moment(job.created_at.as_millis())) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_says_what_is_looked_for_and_nothing_else() {
        assert_eq!(Wanted::default().address("/", ""), "/");
        let wanted = Wanted { state: "failed".into(), q: " a&b=ü ".into(), ..Wanted::default() };
        assert_eq!(wanted.address("/live", "x"), "/live?state=failed&q=a%26b%3D%C3%BC&before=x");
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        let wanted = |state: &str, agent: &str| Wanted {
            state: state.into(),
            agent: agent.into(),
            ..Wanted::default()
        };
        assert!(wanted("done", "").filter().is_err() && wanted("", "gpt").filter().is_err());
        assert_eq!(wanted("active", "codex").filter().unwrap().states, ACTIVE);
        assert!(Wanted { before: "x".into(), ..Wanted::default() }.older_than().is_err());
    }
}
