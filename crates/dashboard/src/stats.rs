//! Statistics of the jobs: the totals of the store, and duration quantiles computed here.
//!
//! Also used by the daemon for the command line.

use std::collections::BTreeMap;

use calls::{CallError, JobFilter, JobService, JobSummary, PageRequest, StatsRange};
use model::{AgentKind, DailyStats, DurationBucket, JobStats, StateName, TerminalState, Timestamp};

/// Maximum number of jobs for the quantiles. More would take long and hardly change the result.
const MAX_JOBS: u64 = 10_000;
const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// Agent, model and start of the day.
type RowKey = (AgentKind, Option<String>, u64);

/// Returns the statistics of the jobs that were submitted since then.
pub async fn collect_statistics(
    service: &JobService,
    since: Option<Timestamp>,
) -> Result<JobStats, CallError> {
    let stats = service.stats(StatsRange { since, until: None }).await?;
    let (durations, quantiles_from) = durations(service, since).await?;
    let mut rows: BTreeMap<RowKey, DailyStats> = BTreeMap::new();
    for row in stats.ended {
        let key = (row.agent, row.model.clone(), row.day.as_millis());
        let row_durations = durations.get(&key);
        let line = rows.entry(key).or_insert_with(|| DailyStats {
            day: format_day(row.day),
            agent: row.agent,
            model: row.model,
            calls: 0,
            completed: 0,
            p50_ms: row_durations.and_then(|durations| quantile(durations, 50)),
            p95_ms: row_durations.and_then(|durations| quantile(durations, 95)),
            duration_ms: 0,
            input_tokens: 0,
            output_tokens: 0,
            cost_usd: 0.0,
        });
        line.calls += row.jobs;
        if row.how == TerminalState::Completed {
            line.completed += row.jobs;
        }
        line.duration_ms += row.duration_ms;
        line.input_tokens += row.usage.input;
        line.output_tokens += row.usage.output;
        line.cost_usd += row.cost_usd;
    }
    let mut rows: Vec<DailyStats> = rows.into_values().collect();
    rows.sort_by(|one, other| other.day.cmp(&one.day));
    let durations = histogram(durations.values().flatten().copied());
    Ok(JobStats { states: stats.states, rows, quantiles_from, durations })
}

/// Bounds of the histogram. Each is about three times the previous one.
const BOUNDS_MS: [u64; 9] = [1_000, 3_000, 10_000, 30_000, 60_000, 180_000, 600_000, 1_800_000, 3_600_000];

/// Counts durations per bucket.
fn histogram(durations: impl Iterator<Item = u64>) -> Vec<DurationBucket> {
    let bounds = BOUNDS_MS.iter().copied().map(Some).chain([None]);
    let mut buckets: Vec<DurationBucket> =
        bounds.map(|up_to_ms| DurationBucket { up_to_ms, calls: 0 }).collect();
    for millis in durations {
        buckets[BOUNDS_MS.partition_point(|bound| *bound < millis)].calls += 1;
    }
    buckets
}

/// Returns the sorted durations of the newest jobs, and their number.
async fn durations(
    service: &JobService,
    since: Option<Timestamp>,
) -> Result<(BTreeMap<RowKey, Vec<u64>>, u64), CallError> {
    let filter = JobFilter { since, ..JobFilter::default() };
    let mut page = PageRequest { limit: PageRequest::MAX, before: None };
    let (mut durations, mut seen) = (BTreeMap::<RowKey, Vec<u64>>::new(), 0);
    loop {
        let found = service.list(&filter, page).await?;
        for job in found.jobs.iter().filter(|job| job.completed_at.is_some()) {
            seen += 1;
            let day = job.created_at.as_millis() / DAY_MS * DAY_MS;
            if let Some(millis) = duration_ms(service, job) {
                durations.entry((job.agent, job.model.clone(), day)).or_default().push(millis);
            }
        }
        page.before = found.next;
        if found.next.is_none() || seen >= MAX_JOBS {
            for durations in durations.values_mut() {
                durations.sort_unstable();
            }
            return Ok((durations, seen));
        }
    }
}

/// Returns the duration of a job's runs so far; none before the first run.
pub fn duration_ms(service: &JobService, job: &JobSummary) -> Option<u64> {
    let started_at = job.started_at?;
    let duration = match (job.completed_at, service.run_time(job.id)) {
        (Some(_), _) => job.duration?,
        (None, Some(run_time)) => run_time,
        // It runs on another machine. Only that machine knows its waiting time.
        (None, None) if job.state == StateName::Running => service.now().since(started_at),
        (None, None) => return None,
    };
    u64::try_from(duration.as_millis()).ok()
}

/// Returns the nearest-rank percentile of sorted numbers.
fn quantile(sorted: &[u64], percent: usize) -> Option<u64> {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

fn format_day(at: Timestamp) -> String {
    let seconds = i64::try_from(at.as_millis() / 1000).unwrap_or_default();
    chrono::DateTime::from_timestamp(seconds, 0)
        .map(|day| day.format("%Y-%m-%d").to_string())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_counts_each_duration_once() {
        let buckets = histogram([0, 1_000, 1_001, 3_600_000, 3_600_001, u64::MAX].into_iter());
        let counted: Vec<u64> = buckets.iter().map(|bucket| bucket.calls).collect();
        assert_eq!(counted, [2, 1, 0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(buckets.last().unwrap().up_to_ms, None);
    }

    #[test]
    fn quantile_uses_the_nearest_rank() {
        assert_eq!(quantile(&[], 50), None);
        assert_eq!((quantile(&[7], 50), quantile(&[7], 95)), (Some(7), Some(7)));
        let hundred: Vec<u64> = (1..=100).collect();
        assert_eq!((quantile(&hundred, 50), quantile(&hundred, 95)), (Some(50), Some(95)));
    }
}
