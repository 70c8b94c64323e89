//! `/healthz` and `/metrics`, for monitoring.
//!
//! `/healthz` is public. `/metrics` reveals usage and cost, and every user of the machine can connect to a loopback port, so it requires a
//! login or the bearer token of the state directory, which MCP over HTTP uses, too.

use std::collections::BTreeSet;
use std::fmt::Write;

use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use calls::{JobFilter, StatsRange};
use http_listener::BearerToken;
use model::{AgentKind, StateName};

use crate::auth;
use crate::context::PageContext;
use crate::rejection::PageRejection;

/// Handles health checks: a response means that the daemon process is running.
pub(crate) async fn health() -> &'static str {
    "ok\n"
}

/// Handles requests for the metrics, in the Prometheus text format.
pub(crate) async fn show(
    State(context): State<PageContext>,
    headers: HeaderMap,
) -> Result<Response, PageRejection> {
    let file = context.token_file();
    let token = BearerToken::load_or_create(file).ok();
    if let Some(token) = &token {
        context.service().redact_secret(token.reveal());
    }
    let has_token = token.is_some_and(|token| token.is_in(&headers));
    if !has_token && auth::find_visitor(&context, &headers).is_none() {
        let hint = format!("send `Authorization: Bearer TOKEN`; the token is in {}\n", file.display());
        return Ok((StatusCode::UNAUTHORIZED, [(WWW_AUTHENTICATE, "Bearer")], hint).into_response());
    }
    let text = gather(&context).await?.0;
    Ok(([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response())
}

/// A growing text in the Prometheus format.
#[derive(Default)]
struct Exposition(String);

impl Exposition {
    /// Starts a metric. All are gauges: removed jobs are no longer counted.
    fn metric(&mut self, name: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} gauge");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        let label = |(name, value): &(&str, &str)| {
            let value = value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
            format!("{name}=\"{value}\"")
        };
        let labels: Vec<String> = labels.iter().map(label).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }

    fn single(&mut self, name: &str, help: &str, value: impl std::fmt::Display) {
        self.metric(name, help);
        self.sample(name, &[], value);
    }
}

async fn gather(context: &PageContext) -> Result<Exposition, PageRejection> {
    let mut text = Exposition::default();
    text.metric("switchboard_build_info", "The version of the daemon.");
    text.sample("switchboard_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
    jobs(context, &mut text).await?;
    text.single("switchboard_held_jobs", "Jobs that this daemon is running.", context.service().running());
    text.single("switchboard_web_watchers", "Open live streams of the web page.", context.watchers());
    text.single(
        "process_resident_memory_bytes",
        "Resident memory of the daemon.",
        resident_bytes().unwrap_or(0),
    );
    let started = context.started_at().as_millis();
    text.single(
        "process_start_time_seconds",
        "Start time of the daemon in seconds since the epoch.",
        format!("{}.{:03}", started / 1000, started % 1000),
    );
    Ok(text)
}

async fn jobs(context: &PageContext, text: &mut Exposition) -> Result<(), PageRejection> {
    let stats = context.service().stats(StatsRange::default()).await?;
    // The agent of a stored job may not be configured any more.
    let ended = stats.ended.iter().map(|row| row.agent);
    let known = context.service().profiles().iter().map(|profile| profile.agent);
    let agents: BTreeSet<AgentKind> = known.chain(ended).collect();
    text.metric("switchboard_jobs", "Stored jobs by agent and state.");
    for &agent in &agents {
        for state in StateName::ALL {
            let count = match state.ended() {
                Some(how) => stats
                    .ended
                    .iter()
                    .filter(|row| row.agent == agent && row.how == how)
                    .map(|row| row.jobs)
                    .sum(),
                // Saves a query for a state without jobs.
                None if stats.in_state(state) == 0 => 0,
                None => {
                    let filter =
                        JobFilter { states: vec![state], agent: Some(agent), ..JobFilter::default() };
                    context.service().count(&filter).await?
                }
            };
            text.sample("switchboard_jobs", &[("agent", agent.name()), ("state", state.as_str())], count);
        }
    }
    let finished = |agent: AgentKind| stats.ended.iter().filter(move |row| row.agent == agent);
    text.metric("switchboard_job_duration_seconds_sum", "Total duration of the stored finished jobs.");
    for &agent in &agents {
        let millis: u64 = finished(agent).map(|row| row.duration_ms).sum();
        let seconds = format!("{}.{:03}", millis / 1000, millis % 1000);
        text.sample("switchboard_job_duration_seconds_sum", &[("agent", agent.name())], seconds);
    }
    text.metric("switchboard_job_duration_seconds_count", "Number of the stored finished jobs.");
    for &agent in &agents {
        let jobs: u64 = finished(agent).map(|row| row.jobs).sum();
        text.sample("switchboard_job_duration_seconds_count", &[("agent", agent.name())], jobs);
    }
    text.metric("switchboard_job_tokens", "Tokens of the stored finished jobs.");
    for &agent in &agents {
        let (read, written) =
            finished(agent).fold((0, 0), |sum, row| (sum.0 + row.usage.input, sum.1 + row.usage.output));
        text.sample("switchboard_job_tokens", &[("agent", agent.name()), ("direction", "read")], read);
        text.sample("switchboard_job_tokens", &[("agent", agent.name()), ("direction", "written")], written);
    }
    text.metric("switchboard_job_cost_usd", "Cost of the stored finished jobs, as reported by the agents.");
    for &agent in &agents {
        let cost: f64 = finished(agent).map(|row| row.cost_usd).sum();
        text.sample("switchboard_job_cost_usd", &[("agent", agent.name())], cost);
    }
    Ok(())
}

/// Returns the resident memory of this process.
fn resident_bytes() -> Option<u64> {
    let pages = std::fs::read_to_string("/proc/self/statm").ok()?.split(' ').nth(1)?.parse::<u64>().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_values_are_escaped() {
        let mut text = Exposition::default();
        text.sample("x", &[("a", "q\"\\\n"), ("b", "")], 1.5);
        assert_eq!(text.0, "x{a=\"q\\\"\\\\\\n\",b=\"\"} 1.5\n");
    }
}
