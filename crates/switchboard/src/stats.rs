//! `switchboard stats`: statistics by agent, model and day, and a bar chart of the calls per day.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use model::{DailyStats, JobStats};
use protocol::{DaemonRequest, RequestError};
use render::duration::format_millis;
use render::text::{format_dollars, strip_control};
use serde_json::Value;

use crate::client::{self, JobReply};
use crate::failure::CommandFailure;
use crate::{cli, output, style};

/// The columns that are dropped on a narrow terminal, in this args.
const OPTIONAL_COLUMNS: [&str; 4] = ["P95", "P50", "TOKENS IN", "TOKENS OUT"];
/// The width of the longest bar.
const BAR_WIDTH: usize = 40;

/// Prints the statistics.
pub fn run(args: &cli::Statistics) -> Result<ExitCode, CommandFailure> {
    let since_ms = args.since.map(|span| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(now.saturating_sub(span).as_millis()).unwrap_or_default()
    });
    let reply = protocol::request(&mut client::connector()?, &DaemonRequest::Stats { since_ms })?;
    let JobReply::Stats(stats) = reply else { return Err(RequestError::UnexpectedReply.into()) };
    if args.json {
        output::line(&with_unknown_costs(&stats)?.to_string());
    } else {
        print_stats(&stats);
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the statistics as JSON, with `null` for costs that no agent reported.
fn with_unknown_costs(stats: &JobStats) -> serde_json::Result<Value> {
    let mut json = serde_json::to_value(stats)?;
    for row in json["rows"].as_array_mut().into_iter().flatten() {
        if row["cost_usd"] == 0.0 {
            row["cost_usd"] = Value::Null;
        }
    }
    Ok(json)
}

fn print_stats(stats: &JobStats) {
    if stats.states.is_empty() {
        return output::line("no jobs");
    }
    let counts = stats.states.iter().map(|(state, count)| format!("{count} {}", state.as_str()));
    output::line(&counts.collect::<Vec<_>>().join(", "));
    if stats.rows.is_empty() {
        return;
    }
    output::line("");
    output::line(&table(&stats.rows, style::stdout_width()).join("\n"));
    output::line("");
    output::line(&bars(&stats.rows).join("\n"));
    let ended: u64 = stats.rows.iter().map(|row| row.calls).sum();
    if stats.quantiles_from < ended {
        output::aside(&format!(
            "p50 and p95 are those of the newest {} of {ended} calls",
            stats.quantiles_from
        ));
    }
}

/// Formats the table. A narrow terminal shows fewer columns; `--json` has all figures.
fn table(lines: &[DailyStats], width: Option<usize>) -> Vec<String> {
    let heads = [
        "DAY (UTC)",
        "AGENT",
        "MODEL",
        "CALLS",
        "COMPLETED",
        "P50",
        "P95",
        "TOKENS IN",
        "TOKENS OUT",
        "COST",
    ];
    let (heads, rows) =
        style::drop_columns(&heads, lines.iter().map(row).collect(), &OPTIONAL_COLUMNS, width);
    style::table(&heads, &rows, width)
}

fn row(line: &DailyStats) -> Vec<String> {
    let duration = |millis: Option<u64>| millis.map_or_else(|| "-".to_owned(), format_millis);
    vec![
        line.day.clone(),
        line.agent.to_string(),
        line.model.as_deref().map_or_else(|| "-".to_owned(), strip_control),
        line.calls.to_string(),
        format!("{} ({}%)", line.completed, line.completed * 100 / line.calls.max(1)),
        duration(line.p50_ms),
        duration(line.p95_ms),
        line.input_tokens.to_string(),
        line.output_tokens.to_string(),
        if line.cost_usd > 0.0 { format_dollars(line.cost_usd) } else { "-".to_owned() },
    ]
}

/// Formats the calls of each day as bars.
fn bars(rows: &[DailyStats]) -> Vec<String> {
    let mut days: BTreeMap<&str, u64> = BTreeMap::new();
    for row in rows {
        *days.entry(&row.day).or_default() += row.calls;
    }
    let most = days.values().copied().max().unwrap_or(1).max(1);
    let bar = |calls: u64| {
        let length = usize::try_from(calls * BAR_WIDTH as u64 / most).unwrap_or(BAR_WIDTH).max(1);
        "█".repeat(length)
    };
    days.into_iter().map(|(day, calls)| format!("{day}  {} {calls}", bar(calls))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::AgentKind;

    fn line(day: &str, calls: u64) -> DailyStats {
        DailyStats {
            day: day.to_owned(),
            agent: AgentKind::Claude,
            model: None,
            calls,
            completed: calls,
            p50_ms: None,
            p95_ms: None,
            duration_ms: 0,
            input_tokens: 0,
            output_tokens: 0,
            cost_usd: 0.0,
        }
    }

    #[test]
    fn table_fits_80_columns_and_keeps_the_cost() {
        let line = DailyStats {
            model: Some("claude-haiku-4-5".to_owned()),
            p50_ms: Some(61_000),
            p95_ms: Some(610_000),
            input_tokens: 1_234_567,
            output_tokens: 123_456,
            cost_usd: 12.3456,
            ..line("2026-01-02", 123)
        };
        let table = table(&[line], Some(80));
        assert!(table.iter().all(|line| line.chars().count() <= 80), "{table:#?}");
        assert!(table[1].ends_with(&format_dollars(12.3456)), "{table:#?}");
    }

    #[test]
    fn unknown_cost_is_null_in_json() {
        let known = DailyStats { cost_usd: 0.5, ..line("2026-01-02", 1) };
        let stats = JobStats { rows: vec![known, line("2026-01-02", 1)], ..JobStats::default() };
        let json = with_unknown_costs(&stats).unwrap();
        assert_eq!((&json["rows"][0]["cost_usd"], &json["rows"][1]["cost_usd"]), (&0.5.into(), &Value::Null));
    }

    #[test]
    fn bar_length_is_proportional_and_never_zero() {
        let bars = bars(&[line("2026-01-02", 400), line("2026-01-01", 1), line("2026-01-02", 400)]);
        assert_eq!(bars[0], "2026-01-01  █ 1");
        assert_eq!(bars[1], format!("2026-01-02  {} 800", "█".repeat(BAR_WIDTH)));
    }
}
