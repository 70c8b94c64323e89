//! The overview page: totals and four charts of the last days.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::{Extension, Query, State};
use axum::response::Response;
use maud::{Markup, html};
use model::{DailyStats, JobStats, StateName, Timestamp};
use render::duration::format_millis;
use render::text::{abbreviate, format_dollars, sanitize};
use serde::Deserialize;

use crate::context::PageContext;
use crate::login::WebVisitor;
use crate::page::{self, ActivePage};
use crate::plot::{self, Chart};
use crate::rejection::PageRejection;
use crate::stats::collect_statistics;

/// Selectable numbers of days.
const RANGES: [u16; 3] = [7, 30, 90];
const DAY_MS: u64 = 24 * 60 * 60 * 1000;
/// Maximum number of bars. Further models are summed up.
const MAX_MODELS: usize = 8;

/// The query parameters of an overview request.
#[derive(Debug, Deserialize)]
#[serde(default)]
pub(crate) struct RangeQuery {
    days: u16,
}

impl Default for RangeQuery {
    fn default() -> Self {
        Self { days: 30 }
    }
}

/// Handles requests for the overview.
pub(crate) async fn show(
    State(context): State<PageContext>,
    Extension(visitor): Extension<WebVisitor>,
    Query(query): Query<RangeQuery>,
) -> Result<Response, PageRejection> {
    let days = RANGES.into_iter().find(|days| *days >= query.days).unwrap_or(90);
    let dates = dates(context.service().now(), days);
    let since = context.service().now().as_millis() / DAY_MS * DAY_MS;
    let since = Timestamp::from_millis(since).minus(Duration::from_millis(DAY_MS * u64::from(days - 1)));
    let stats = collect_statistics(context.service(), Some(since)).await?;
    let main = html! {
        div.head {
            h1 { "Overview" }
            nav.spans aria-label="Range" {
                @for span in RANGES { a href={ "/overview?days=" (span) } aria-current=[(span == days).then_some("page")] { (span) " days" } }
            }
        }
        @if stats.states.is_empty() {
            section.blank { h2 { "Nothing yet" } p { "No call was submitted in the last " (days) " days." } }
        } @else {
            (tiles(&stats))
            div.plots {
                (by_day(&stats.rows, &dates).render())
                (success(&stats.rows, &dates).render())
                (durations(&stats).render())
                (cost(&stats.rows).render())
            }
        }
    };
    Ok(page::page("Overview", ActivePage::Overview, &visitor, &main))
}

/// Returns the last days (UTC), oldest first.
fn dates(now: Timestamp, days: u16) -> Vec<String> {
    let day = |back: u16| {
        let millis = now.as_millis().saturating_sub(u64::from(back) * DAY_MS);
        let at = i64::try_from(millis).ok().and_then(chrono::DateTime::from_timestamp_millis);
        at.map(|at| at.format("%Y-%m-%d").to_string()).unwrap_or_default()
    };
    (0..days).rev().map(day).collect()
}

fn tiles(stats: &JobStats) -> Markup {
    let ended: u64 = stats.rows.iter().map(|row| row.calls).sum();
    let completed: u64 = stats.rows.iter().map(|row| row.completed).sum();
    let tokens =
        stats.rows.iter().flat_map(|row| [row.input_tokens, row.output_tokens]).fold(0, u64::saturating_add);
    let spent: u64 = stats.rows.iter().map(|row| row.duration_ms).sum();
    let cost: f64 = stats.rows.iter().map(|row| row.cost_usd).sum();
    let open: u64 =
        stats.states.iter().filter(|(state, _)| state.ended().is_none()).map(|(_, count)| count).sum();
    let running: u64 =
        stats.states.iter().find(|(state, _)| *state == StateName::Running).map_or(0, |(_, count)| *count);
    let active = match open.saturating_sub(running) {
        0 => format!("{} running", page::group_digits(running)),
        waiting => {
            format!("{} running, {} waiting", page::group_digits(running), page::group_digits(waiting))
        }
    };
    let tile = |name: &str, value: String, more: String| html! { div { dt { (name) } dd { (value) span { (more) } } } };
    html! {
        dl.tiles {
            (tile("Finished", page::group_digits(ended), active))
            (tile("Success", share(completed, ended).map_or_else(|| "–".to_owned(), |share| format!("{share}%")), format!("{} completed", page::group_digits(completed))))
            (tile("Agent time", format_millis(spent), "total".to_owned()))
            (tile("Tokens", abbreviate(tokens), "read and written".to_owned()))
            (tile("Cost", format_dollars(cost), "as reported by agents".to_owned()))
        }
    }
}

/// Returns a percentage, rounded down, so that 100% means all.
fn share(part: u64, all: u64) -> Option<u64> {
    (part * 100).checked_div(all)
}

fn by_day(rows: &[DailyStats], dates: &[String]) -> Chart {
    let mut agents: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for row in rows {
        let counts = agents.entry(row.agent.to_string()).or_insert_with(|| vec![0; dates.len()]);
        if let Some(at) = dates.iter().position(|date| *date == row.day) {
            counts[at] += row.calls;
        }
    }
    let agents: Vec<(String, Vec<u64>)> = agents.into_iter().collect();
    let sum = |counts: &[u64]| counts.iter().sum::<u64>();
    let named: Vec<String> = agents.iter().map(|(name, counts)| format!("{name} {}", sum(counts))).collect();
    let table = dates.iter().enumerate().rev().filter_map(|(at, date)| {
        let cells: Vec<u64> = agents.iter().map(|(_, counts)| counts[at]).collect();
        (sum(&cells) > 0).then(|| {
            let by_agent = agents.iter().zip(&cells).filter(|(_, count)| **count > 0);
            let by_agent: Vec<String> =
                by_agent.map(|((name, _), count)| format!("{name} {count}")).collect();
            vec![date.clone(), sum(&cells).to_string(), by_agent.join(", ")]
        })
    });
    Chart {
        id: "calls",
        title: "Calls per day",
        summary: format!("Finished calls by day of submission (UTC): {}.", or_none(&named.join(", "))),
        heads: vec!["Day", "Calls", "By agent"],
        rows: table.collect(),
        drawing: plot::strips(dates, &agents),
    }
}

fn or_none(text: &str) -> &str {
    if text.is_empty() { "none" } else { text }
}

fn success(rows: &[DailyStats], dates: &[String]) -> Chart {
    let on = |date: &String| {
        let of_day = rows.iter().filter(|row| row.day == *date);
        of_day.fold((0, 0), |(completed, calls), row| (completed + row.completed, calls + row.calls))
    };
    let counts: Vec<(u64, u64)> = dates.iter().map(on).collect();
    let (completed, calls) = counts.iter().fold((0, 0), |all, day| (all.0 + day.0, all.1 + day.1));
    let shares: Vec<Option<u64>> =
        counts.iter().map(|(completed, calls)| share(*completed, *calls)).collect();
    let table = dates.iter().zip(&counts).rev().filter(|(_, (_, calls))| *calls > 0);
    Chart {
        id: "success",
        title: "Success rate",
        summary: match share(completed, calls) {
            Some(share) => format!("{share}% of {} finished calls completed.", page::group_digits(calls)),
            None => "No call has finished.".to_owned(),
        },
        heads: vec!["Day", "Completed", "Finished", "Share"],
        rows: table
            .map(|(date, (completed, calls))| {
                let share = share(*completed, *calls).unwrap_or_default();
                vec![date.clone(), completed.to_string(), calls.to_string(), format!("{share}%")]
            })
            .collect(),
        drawing: plot::shares(dates, &shares),
    }
}

fn durations(stats: &JobStats) -> Chart {
    let short = |millis: u64| match millis {
        ..60_000 => format!("{}s", millis / 1_000),
        60_000..3_600_000 => format!("{}m", millis / 60_000),
        _ => format!("{}h", millis / 3_600_000),
    };
    let mut last = 0;
    let name = |up_to: Option<u64>| match up_to {
        Some(up_to) => {
            last = up_to;
            short(up_to)
        }
        None => format!(">{}", short(last)),
    };
    let names: Vec<String> = stats.durations.iter().map(|bucket| bucket.up_to_ms).map(name).collect();
    let bars: Vec<(String, u64)> =
        names.into_iter().zip(stats.durations.iter().map(|bucket| bucket.calls)).collect();
    let slowest = stats.rows.iter().filter_map(|row| row.p95_ms).max();
    Chart {
        id: "durations",
        title: "Duration of calls",
        summary: format!(
            "The newest {} finished calls by duration{}.",
            page::group_digits(stats.quantiles_from),
            slowest
                .map(|millis| format!("; the highest daily 95th percentile is {}", format_millis(millis)))
                .unwrap_or_default()
        ),
        heads: vec!["Up to", "Calls"],
        rows: bars.iter().map(|(name, calls)| vec![name.clone(), calls.to_string()]).collect(),
        drawing: plot::columns(&bars),
    }
}

fn cost(rows: &[DailyStats]) -> Chart {
    let mut models: BTreeMap<String, (f64, u64)> = BTreeMap::new();
    for row in rows {
        let name = row
            .model
            .as_deref()
            .map_or_else(|| format!("{}, unknown model", row.agent), |model| sanitize(model).into_owned());
        let totals = models.entry(name).or_default();
        *totals = (totals.0 + row.cost_usd, totals.1 + row.calls);
    }
    let mut models: Vec<(String, f64, u64)> =
        models.into_iter().map(|(name, (cost, calls))| (name, cost, calls)).collect();
    models.sort_by(|one, other| other.1.total_cmp(&one.1));
    let all: f64 = models.iter().map(|(_, cost, _)| cost).sum();
    let mut bars: Vec<(String, f64, String)> = Vec::new();
    for (name, cost, _) in models.iter().filter(|(_, cost, _)| *cost > 0.0) {
        match bars.get_mut(MAX_MODELS - 1) {
            Some(others) => *others = ("others".to_owned(), others.1 + cost, format_dollars(others.1 + cost)),
            None => bars.push((name.clone(), *cost, format_dollars(*cost))),
        }
    }
    Chart {
        id: "cost",
        title: "Cost by model",
        summary: format!("{} total, as reported by the agents.", format_dollars(all)),
        heads: vec!["Model", "Cost", "Calls"],
        rows: models
            .iter()
            .map(|(name, cost, calls)| vec![name.clone(), format_dollars(*cost), calls.to_string()])
            .collect(),
        drawing: plot::ranks(&bars),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::AgentKind;

    fn row(day: &str, model: Option<&str>, calls: u64, completed: u64, cost_usd: f64) -> DailyStats {
        DailyStats {
            day: day.to_owned(),
            agent: AgentKind::Claude,
            model: model.map(str::to_owned),
            calls,
            completed,
            p50_ms: None,
            p95_ms: None,
            duration_ms: 0,
            input_tokens: 0,
            output_tokens: 0,
            cost_usd,
        }
    }

    #[test]
    fn dates_end_today() {
        let dates = dates(Timestamp::from_millis(3 * DAY_MS + 5), 3);
        assert_eq!(dates, ["1970-01-02", "1970-01-03", "1970-01-04"]);
    }

    #[test]
    fn success_rate_is_rounded_down() {
        let dates = ["d1".to_owned(), "d2".to_owned()];
        let figure = success(&[row("d2", None, 1000, 999, 0.0)], &dates);
        assert_eq!(figure.rows, [["d2", "999", "1000", "99%"]]);
        assert!(figure.summary.starts_with("99% of 1,000"), "{}", figure.summary);
    }

    #[test]
    fn models_beyond_the_limit_are_summed_up_in_the_chart() {
        let rows: Vec<DailyStats> =
            (0..10).map(|number| row("d", Some(&format!("m{number}")), 1, 1, 1.0)).collect();
        let figure = cost(&rows);
        assert_eq!(figure.rows.len(), 10);
        let drawn = figure.render().into_string();
        assert!(drawn.contains("others: $3.00"), "{drawn}");
    }
}
