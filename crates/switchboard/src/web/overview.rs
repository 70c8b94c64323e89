//! What the jobs came to: a few numbers and four figures, of the last days.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::{Extension, Query, State};
use axum::response::Response;
use maud::{Markup, html};
use model::{StateName, Timestamp};
use serde::Deserialize;

use super::Web;
use super::login::Visitor;
use super::page::{self, Here};
use super::plot::{self, Figure};
use super::refusal::Refusal;
use crate::job_stats as sums;
use crate::text::visible;
use protocol::{DailyStats as StatsLine, JobStats as Sums};

/// How many days can be looked at.
const SPANS: [u16; 3] = [7, 30, 90];
const DAY_MS: u64 = 24 * 60 * 60 * 1000;
/// More models are added up in one row.
const MOST_MODELS: usize = 8;

/// How far back, as it stands in the address.
#[derive(Debug, Deserialize)]
#[serde(default)]
pub struct Back {
    days: u16,
}

impl Default for Back {
    fn default() -> Self {
        Self { days: 30 }
    }
}

/// The page.
pub async fn show(
    State(web): State<Web>,
    Extension(visitor): Extension<Visitor>,
    Query(back): Query<Back>,
) -> Result<Response, Refusal> {
    let days = SPANS.into_iter().find(|days| *days >= back.days).unwrap_or(90);
    let dates = dates(web.desk().now(), days);
    let since = web.desk().now().as_millis() / DAY_MS * DAY_MS;
    let since = Timestamp::from_millis(since).minus(Duration::from_millis(DAY_MS * u64::from(days - 1)));
    let sums = sums::collect(web.desk(), Some(since)).await?;
    let main = html! {
        div.head {
            h1 { "Overview" }
            nav.spans aria-label="How far back" {
                @for span in SPANS { a href={ "/overview?days=" (span) } aria-current=[(span == days).then_some("page")] { (span) " days" } }
            }
        }
        @if sums.states.is_empty() {
            section.blank { h2 { "Nothing yet" } p { "No call was placed in the last " (days) " days." } }
        } @else {
            (tiles(&sums))
            div.plots {
                (by_day(&sums.rows, &dates).render())
                (success(&sums.rows, &dates).render())
                (durations(&sums).render())
                (cost(&sums.rows).render())
            }
        }
    };
    Ok(page::page("Overview", Here::Overview, &visitor, &main))
}

/// The last so many days (UTC), the oldest first.
fn dates(now: Timestamp, days: u16) -> Vec<String> {
    let day = |back: u16| {
        let millis = now.as_millis().saturating_sub(u64::from(back) * DAY_MS);
        let at = i64::try_from(millis).ok().and_then(chrono::DateTime::from_timestamp_millis);
        at.map(|at| at.format("%Y-%m-%d").to_string()).unwrap_or_default()
    };
    (0..days).rev().map(day).collect()
}

fn tiles(sums: &Sums) -> Markup {
    let ended: u64 = sums.rows.iter().map(|row| row.calls).sum();
    let completed: u64 = sums.rows.iter().map(|row| row.completed).sum();
    let tokens =
        sums.rows.iter().flat_map(|row| [row.input_tokens, row.output_tokens]).fold(0, u64::saturating_add);
    let spent: u64 = sums.rows.iter().map(|row| row.duration_ms).sum();
    let cost: f64 = sums.rows.iter().map(|row| row.cost_usd).sum();
    let open: u64 =
        sums.states.iter().filter(|(state, _)| state.ended().is_none()).map(|(_, count)| count).sum();
    let running: u64 =
        sums.states.iter().find(|(state, _)| *state == StateName::Running).map_or(0, |(_, count)| *count);
    let going = match open.saturating_sub(running) {
        0 => format!("{} running", page::grouped(running)),
        waiting => format!("{} running, {} waiting", page::grouped(running), page::grouped(waiting)),
    };
    let tile = |name: &str, value: String, more: String| html! { div { dt { (name) } dd { (value) span { (more) } } } };
    html! {
        dl.tiles {
            (tile("Ended", page::grouped(ended), going))
            (tile("Success", share(completed, ended).map_or_else(|| "–".to_owned(), |share| format!("{share}%")), format!("{} completed", page::grouped(completed))))
            (tile("Time of agents", render::duration::format_millis(spent), "added up".to_owned()))
            (tile("Tokens", page::brief(tokens), "read and written".to_owned()))
            (tile("Cost", page::dollars(cost), "where agents tell it".to_owned()))
        }
    }
}

/// In whole per cent, rounded down: only all is all.
fn share(part: u64, all: u64) -> Option<u64> {
    (part * 100).checked_div(all)
}

fn by_day(rows: &[StatsLine], dates: &[String]) -> Figure {
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
    Figure {
        id: "calls",
        title: "Calls per day",
        summary: format!(
            "Ended calls by the day (UTC) on which they were placed: {}.",
            or_none(&named.join(", "))
        ),
        heads: vec!["Day", "Calls", "By agent"],
        rows: table.collect(),
        drawing: plot::strips(dates, &agents),
    }
}

fn or_none(text: &str) -> &str {
    if text.is_empty() { "none" } else { text }
}

fn success(rows: &[StatsLine], dates: &[String]) -> Figure {
    let on = |date: &String| {
        let of_day = rows.iter().filter(|row| row.day == *date);
        of_day.fold((0, 0), |(completed, calls), row| (completed + row.completed, calls + row.calls))
    };
    let counts: Vec<(u64, u64)> = dates.iter().map(on).collect();
    let (completed, calls) = counts.iter().fold((0, 0), |all, day| (all.0 + day.0, all.1 + day.1));
    let shares: Vec<Option<u64>> =
        counts.iter().map(|(completed, calls)| share(*completed, *calls)).collect();
    let table = dates.iter().zip(&counts).rev().filter(|(_, (_, calls))| *calls > 0);
    Figure {
        id: "success",
        title: "Success rate",
        summary: match share(completed, calls) {
            Some(share) => format!("{share}% of {} ended calls were completed.", page::grouped(calls)),
            None => "No call has ended.".to_owned(),
        },
        heads: vec!["Day", "Completed", "Ended", "Share"],
        rows: table
            .map(|(date, (completed, calls))| {
                let share = share(*completed, *calls).unwrap_or_default();
                vec![date.clone(), completed.to_string(), calls.to_string(), format!("{share}%")]
            })
            .collect(),
        drawing: plot::shares(dates, &shares),
    }
}

fn durations(sums: &Sums) -> Figure {
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
    let names: Vec<String> = sums.durations.iter().map(|taken| taken.up_to_ms).map(name).collect();
    let bars: Vec<(String, u64)> =
        names.into_iter().zip(sums.durations.iter().map(|taken| taken.calls)).collect();
    let slowest = sums.rows.iter().filter_map(|row| row.p95_ms).max();
    Figure {
        id: "durations",
        title: "How long calls take",
        summary: format!(
            "Of the newest {} ended calls, each by the time that it took at most{}.",
            page::grouped(sums.quantiles_from),
            slowest
                .map(|millis| format!(
                    "; on the slowest day 95 of 100 took at most {}",
                    render::duration::format_millis(millis)
                ))
                .unwrap_or_default()
        ),
        heads: vec!["Took at most", "Calls"],
        rows: bars.iter().map(|(name, calls)| vec![name.clone(), calls.to_string()]).collect(),
        drawing: plot::columns(&bars),
    }
}

fn cost(rows: &[StatsLine]) -> Figure {
    let mut models: BTreeMap<String, (f64, u64)> = BTreeMap::new();
    for row in rows {
        let name = row
            .model
            .as_deref()
            .map_or_else(|| format!("{}, model not told", row.agent), |model| visible(model).into_owned());
        let sums = models.entry(name).or_default();
        *sums = (sums.0 + row.cost_usd, sums.1 + row.calls);
    }
    let mut models: Vec<(String, f64, u64)> =
        models.into_iter().map(|(name, (cost, calls))| (name, cost, calls)).collect();
    models.sort_by(|one, other| other.1.total_cmp(&one.1));
    let all: f64 = models.iter().map(|(_, cost, _)| cost).sum();
    let mut bars: Vec<(String, f64, String)> = Vec::new();
    for (name, cost, _) in models.iter().filter(|(_, cost, _)| *cost > 0.0) {
        match bars.get_mut(MOST_MODELS - 1) {
            Some(others) => *others = ("others".to_owned(), others.1 + cost, page::dollars(others.1 + cost)),
            None => bars.push((name.clone(), *cost, page::dollars(*cost))),
        }
    }
    Figure {
        id: "cost",
        title: "Cost by model",
        summary: format!("{} in all, as far as the agents tell it.", page::dollars(all)),
        heads: vec!["Model", "Cost", "Calls"],
        rows: models
            .iter()
            .map(|(name, cost, calls)| vec![name.clone(), page::dollars(*cost), calls.to_string()])
            .collect(),
        drawing: plot::ranks(&bars),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::AgentKind;

    fn row(day: &str, model: Option<&str>, calls: u64, completed: u64, cost_usd: f64) -> StatsLine {
        StatsLine {
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
    fn the_last_days_end_today() {
        let dates = dates(Timestamp::from_millis(3 * DAY_MS + 5), 3);
        assert_eq!(dates, ["1970-01-02", "1970-01-03", "1970-01-04"]);
    }

    #[test]
    fn a_day_without_calls_has_no_rate_and_nearly_all_is_not_all() {
        let dates = ["d1".to_owned(), "d2".to_owned()];
        let figure = success(&[row("d2", None, 1000, 999, 0.0)], &dates);
        assert_eq!(figure.rows, [["d2", "999", "1000", "99%"]]);
        assert!(figure.summary.starts_with("99% of 1,000"), "{}", figure.summary);
    }

    #[test]
    fn models_beyond_the_eighth_are_added_up_in_the_drawing_and_listed_in_the_table() {
        let rows: Vec<StatsLine> =
            (0..10).map(|number| row("d", Some(&format!("m{number}")), 1, 1, 1.0)).collect();
        let figure = cost(&rows);
        assert_eq!(figure.rows.len(), 10);
        let drawn = figure.render().into_string();
        assert!(drawn.contains("others: $3.00"), "{drawn}");
    }
}
