//! Job statistics in the form of the socket protocol.

use calls::{CallError, JobService};
use dashboard::stats::{StatisticsRow, collect_statistics};
use model::Timestamp;
use protocol::{DailyStats, DurationBucket, JobStats};

pub use dashboard::stats::duration_ms;

/// Aggregates the jobs submitted since a time.
pub async fn collect(service: &JobService, since: Option<Timestamp>) -> Result<JobStats, CallError> {
    let statistics = collect_statistics(service, since).await?;
    let buckets = statistics.durations.into_iter();
    Ok(JobStats {
        states: statistics.states,
        rows: statistics.rows.into_iter().map(to_daily_stats).collect(),
        quantiles_from: statistics.quantiles_from,
        durations: buckets
            .map(|bucket| DurationBucket { up_to_ms: bucket.up_to_ms, calls: bucket.calls })
            .collect(),
    })
}

fn to_daily_stats(row: StatisticsRow) -> DailyStats {
    DailyStats {
        day: row.day,
        agent: row.agent,
        model: row.model,
        calls: row.calls,
        completed: row.completed,
        p50_ms: row.p50_ms,
        p95_ms: row.p95_ms,
        duration_ms: row.duration_ms,
        input_tokens: row.input_tokens,
        output_tokens: row.output_tokens,
        cost_usd: row.cost_usd,
    }
}
