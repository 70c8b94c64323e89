//! `switchboard stats`: what the jobs came to, by agent, model and day, and the calls of each day as bars.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::failure::Failure;
use crate::wire::{Reply, Request, StatsLine, Sums};
use crate::{cli, front, jobs, output, paint};
use render::duration::format_millis;
use render::text::{format_dollars, strip_control};

/// The columns that a narrow terminal does without, in this order.
const SPARED: [&str; 4] = ["P95", "P50", "READ", "WRITTEN"];
/// How wide the longest bar is.
const BAR: usize = 40;

/// Adds up and prints.
pub fn print(order: &cli::Statistics) -> Result<ExitCode, Failure> {
    let since_ms = order.since.map(|span| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(now.saturating_sub(span).as_millis()).unwrap_or_default()
    });
    let reply = front::ask(&mut jobs::starter()?, &Request::Stats { since_ms })?;
    let Reply::Stats(sums) = reply else { return Err(Failure::UnexpectedReply) };
    if order.json {
        output::line(&with_unknown_costs(&sums)?.to_string());
    } else {
        tell(&sums);
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the sums as JSON, with `null` in place of a cost that no agent reported.
fn with_unknown_costs(sums: &Sums) -> serde_json::Result<Value> {
    let mut sums = serde_json::to_value(sums)?;
    for row in sums["rows"].as_array_mut().into_iter().flatten() {
        if row["cost_usd"] == 0.0 {
            row["cost_usd"] = Value::Null;
        }
    }
    Ok(sums)
}

fn tell(sums: &Sums) {
    if sums.states.is_empty() {
        return output::line("no jobs");
    }
    let states = sums.states.iter().map(|(state, count)| format!("{count} {}", state.as_str()));
    output::line(&states.collect::<Vec<_>>().join(", "));
    if sums.rows.is_empty() {
        return;
    }
    output::line("");
    output::line(&table(&sums.rows, paint::width()).join("\n"));
    output::line("");
    output::line(&bars(&sums.rows).join("\n"));
    let ended: u64 = sums.rows.iter().map(|row| row.calls).sum();
    if sums.quantiles_from < ended {
        output::aside(&format!(
            "p50 and p95 are those of the newest {} of {ended} calls",
            sums.quantiles_from
        ));
    }
}

/// Lays out the rows. A narrow terminal gets fewer columns; `--json` has all figures.
fn table(lines: &[StatsLine], width: Option<usize>) -> Vec<String> {
    let heads =
        ["DAY (UTC)", "AGENT", "MODEL", "CALLS", "COMPLETED", "P50", "P95", "READ", "WRITTEN", "COST"];
    let (heads, rows) = paint::fitting(&heads, lines.iter().map(row).collect(), &SPARED, width);
    paint::table(&heads, &rows, width)
}

fn row(line: &StatsLine) -> Vec<String> {
    let span = |millis: Option<u64>| millis.map_or_else(|| "-".to_owned(), format_millis);
    vec![
        line.day.clone(),
        line.agent.to_string(),
        line.model.as_deref().map_or_else(|| "-".to_owned(), strip_control),
        line.calls.to_string(),
        format!("{} ({}%)", line.completed, line.completed * 100 / line.calls.max(1)),
        span(line.p50_ms),
        span(line.p95_ms),
        line.input_tokens.to_string(),
        line.output_tokens.to_string(),
        if line.cost_usd > 0.0 { format_dollars(line.cost_usd) } else { "-".to_owned() },
    ]
}

/// The calls of each day; the number stands beside its bar.
fn bars(rows: &[StatsLine]) -> Vec<String> {
    let mut days: BTreeMap<&str, u64> = BTreeMap::new();
    for row in rows {
        *days.entry(&row.day).or_default() += row.calls;
    }
    let most = days.values().copied().max().unwrap_or(1).max(1);
    let bar = |calls: u64| {
        let length = usize::try_from(calls * BAR as u64 / most).unwrap_or(BAR).max(1);
        "█".repeat(length)
    };
    days.into_iter().map(|(day, calls)| format!("{day}  {} {calls}", bar(calls))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::AgentKind;

    fn line(day: &str, calls: u64) -> StatsLine {
        StatsLine {
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
        let line = StatsLine {
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
        let known = StatsLine { cost_usd: 0.5, ..line("2026-01-02", 1) };
        let sums = Sums { rows: vec![known, line("2026-01-02", 1)], ..Sums::default() };
        let json = with_unknown_costs(&sums).unwrap();
        assert_eq!((&json["rows"][0]["cost_usd"], &json["rows"][1]["cost_usd"]), (&0.5.into(), &Value::Null));
    }

    #[test]
    fn a_bar_is_as_long_as_its_day_had_calls_and_never_nothing() {
        let bars = bars(&[line("2026-01-02", 400), line("2026-01-01", 1), line("2026-01-02", 400)]);
        assert_eq!(bars[0], "2026-01-01  █ 1");
        assert_eq!(bars[1], format!("2026-01-02  {} 800", "█".repeat(BAR)));
    }
}
