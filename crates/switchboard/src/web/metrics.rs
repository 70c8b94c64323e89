//! `/healthz` and `/metrics`, for programs that watch the daemon.
//!
//! `/healthz` says nothing but that the daemon is there, to anybody on this machine. The metrics say how much somebody works and
//! what it costs, and a port of the loopback is open to every user of the machine: so they are for who brings the token of the
//! state folder (which is also that of MCP over HTTP), and for visitors.

use std::fmt::Write;

use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use calls::{JobFilter, StatsRange};
use model::{AgentKind, StateName};
use switchboard::mcp::http::Token;

use super::refusal::Refusal;
use super::{Web, gate};
use protocol::VERSION;

/// The daemon is there.
pub async fn health() -> &'static str {
    "ok\n"
}

/// Everything that can be counted, in the text format of Prometheus.
pub async fn show(State(web): State<Web>, headers: HeaderMap) -> Result<Response, Refusal> {
    let file = web.0.home.http_token();
    let brings_token = Token::in_file(&file).is_ok_and(|token| token.is_brought_by(&headers));
    if !brings_token && gate::visitor(&web, &headers).is_none() {
        let hint = format!("send `Authorization: Bearer TOKEN`; the token is in {}\n", file.display());
        return Ok((StatusCode::UNAUTHORIZED, [(WWW_AUTHENTICATE, "Bearer")], hint).into_response());
    }
    let text = gather(&web).await?.0;
    Ok(([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response())
}

/// The text, as it grows.
#[derive(Default)]
struct Exposition(String);

impl Exposition {
    /// Begins a metric. All are gauges: jobs that are kept no longer are counted no longer.
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

    fn one(&mut self, name: &str, help: &str, value: impl std::fmt::Display) {
        self.metric(name, help);
        self.sample(name, &[], value);
    }
}

async fn gather(web: &Web) -> Result<Exposition, Refusal> {
    let mut text = Exposition::default();
    text.metric("switchboard_build_info", "The version of the daemon.");
    text.sample("switchboard_build_info", &[("version", VERSION)], 1);
    jobs(web, &mut text).await?;
    text.one("switchboard_held_jobs", "Jobs that this daemon runs.", web.desk().running());
    text.one("switchboard_web_watchers", "Pages that are being watched live.", web.watchers());
    text.one("process_resident_memory_bytes", "Memory that the daemon has at hand.", resident().unwrap_or(0));
    let began = web.0.began.as_millis();
    text.one(
        "process_start_time_seconds",
        "When the daemon began, in seconds since 1970.",
        format!("{}.{:03}", began / 1000, began % 1000),
    );
    Ok(text)
}

async fn jobs(web: &Web, text: &mut Exposition) -> Result<(), Refusal> {
    let stats = web.desk().stats(StatsRange::default()).await?;
    text.metric("switchboard_jobs", "Jobs that are kept, by agent and state.");
    for agent in AgentKind::ALL {
        for state in StateName::ALL {
            let count = match state.ended() {
                Some(how) => stats
                    .ended
                    .iter()
                    .filter(|row| row.agent == agent && row.how == how)
                    .map(|row| row.jobs)
                    .sum(),
                // Nothing is asked about a state in which there is no job.
                None if stats.in_state(state) == 0 => 0,
                None => {
                    let filter =
                        JobFilter { states: vec![state], agent: Some(agent), ..JobFilter::default() };
                    web.desk().count(&filter).await?
                }
            };
            text.sample("switchboard_jobs", &[("agent", agent.name()), ("state", state.as_str())], count);
        }
    }
    let of = |agent: AgentKind| stats.ended.iter().filter(move |row| row.agent == agent);
    text.metric("switchboard_job_duration_seconds_sum", "How long the ended jobs that are kept took in all.");
    for agent in AgentKind::ALL {
        let millis: u64 = of(agent).map(|row| row.duration_ms).sum();
        let seconds = format!("{}.{:03}", millis / 1000, millis % 1000);
        text.sample("switchboard_job_duration_seconds_sum", &[("agent", agent.name())], seconds);
    }
    text.metric("switchboard_job_duration_seconds_count", "How many those are.");
    for agent in AgentKind::ALL {
        let jobs: u64 = of(agent).map(|row| row.jobs).sum();
        text.sample("switchboard_job_duration_seconds_count", &[("agent", agent.name())], jobs);
    }
    text.metric("switchboard_job_tokens", "Tokens of the ended jobs that are kept.");
    for agent in AgentKind::ALL {
        let (read, written) =
            of(agent).fold((0, 0), |sum, row| (sum.0 + row.usage.input, sum.1 + row.usage.output));
        text.sample("switchboard_job_tokens", &[("agent", agent.name()), ("direction", "read")], read);
        text.sample("switchboard_job_tokens", &[("agent", agent.name()), ("direction", "written")], written);
    }
    text.metric("switchboard_job_cost_usd", "Cost of the ended jobs that are kept, where agents tell it.");
    for agent in AgentKind::ALL {
        let cost: f64 = of(agent).map(|row| row.cost_usd).sum();
        text.sample("switchboard_job_cost_usd", &[("agent", agent.name())], cost);
    }
    Ok(())
}

/// From the kernel's own account of this process.
fn resident() -> Option<u64> {
    let pages = std::fs::read_to_string("/proc/self/statm").ok()?.split(' ').nth(1)?.parse::<u64>().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_holds_whatever_it_is_given() {
        let mut text = Exposition::default();
        text.sample("x", &[("a", "q\"\\\n"), ("b", "")], 1.5);
        assert_eq!(text.0, "x{a=\"q\\\"\\\\\\n\",b=\"\"} 1.5\n");
    }
}
