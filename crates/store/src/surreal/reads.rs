//! Queries for jobs, lists and statistics.

use model::{
    AgentKind, Exchange, ExchangeId, Job, JobId, JobIdPrefix, MAX_COST_USD, MAX_TOKENS, NewExchange,
    Placement, StateName, Timestamp, Usage,
};
use surrealdb::types::SurrealValue;

use crate::error::StoreError;
use crate::requests::{JobFilter, LastSession, Page, PageRequest, PrefixMatch};
use crate::row::{FieldReader, page_from_rows};
use crate::stats::{DAY_MS, Stats, StatsRange, StatsRow};
use crate::surreal::client::{SurrealClient, Vars};
use crate::surreal::records::{
    ExchangeRecord, JobRecord, SUMMARY_FIELDS, SessionRecord, SummaryRecord, job_record_id, scoped_key,
    session_id, to_i64,
};

/// The maximum number of ids returned for an ambiguous prefix.
const MAX_MATCHES: usize = 10;

/// Returns a job by its id.
pub async fn job(client: &SurrealClient, id: JobId) -> Result<Option<Job>, StoreError> {
    let query = "SELECT *, worker.expires_at AS lease_expires_at FROM $job;";
    let mut reply = client.run(query, Vars::new().with("job", job_record_id(id))).await?;
    let record = reply.rows::<JobRecord>(0).map_err(|error| with_job(error, id))?.pop();
    record.map(|record| record.into_row()?.into_job()).transpose()
}

/// Returns a job by its home and its idempotency key.
pub async fn job_by_key(
    client: &SurrealClient,
    home: &Placement,
    key: &str,
) -> Result<Option<Job>, StoreError> {
    let query = "SELECT VALUE placed FROM agent_jobs WHERE scoped_key = $key;";
    let vars = Vars::new().with("key", scoped_key(&home.to_string(), key));
    let placed = client.run(query, vars).await?.rows::<String>(0)?.pop();
    match placed.and_then(|placed| placed.parse().ok()) {
        Some(id) => job(client, id).await,
        None => Ok(None),
    }
}

/// Returns the fields of a job that a step needs.
pub async fn summary(client: &SurrealClient, id: JobId) -> Result<SummaryRecord, StoreError> {
    let query = format!("SELECT {SUMMARY_FIELDS} FROM $job;");
    let mut reply = client.run(&query, Vars::new().with("job", job_record_id(id))).await?;
    reply.rows(0).map_err(|error| with_job(error, id))?.pop().ok_or(StoreError::NoSuchJob { job: id })
}

/// Adds the id of the job to an error about an unreadable record.
fn with_job(error: StoreError, job: JobId) -> StoreError {
    match error {
        StoreError::Unreadable { field, source, .. } => {
            StoreError::Unreadable { record: job.to_string(), field, source }
        }
        other => other,
    }
}

/// Finds the jobs with an id prefix.
pub async fn find(client: &SurrealClient, prefix: JobIdPrefix) -> Result<PrefixMatch, StoreError> {
    let (first, last) = prefix.range();
    let vars = Vars::new()
        .with("first", first.to_string())
        .with("last", last.to_string())
        .with("limit", to_i64(MAX_MATCHES as u64));
    let query = "SELECT VALUE placed FROM agent_jobs WHERE placed >= $first AND placed <= $last
        ORDER BY placed LIMIT $limit;";
    let mut reply = client.run(query, vars).await?;
    let ids: Vec<JobId> = reply.rows::<String>(0)?.iter().filter_map(|placed| placed.parse().ok()).collect();
    match ids.as_slice() {
        [] => Ok(PrefixMatch::Nothing),
        [one] => {
            Ok(job(client, *one).await?.map_or(PrefixMatch::Nothing, |job| PrefixMatch::One(Box::new(job))))
        }
        _ => Ok(PrefixMatch::Several(ids)),
    }
}

/// Returns a page of a list, newest first.
pub async fn list(client: &SurrealClient, filter: &JobFilter, page: PageRequest) -> Result<Page, StoreError> {
    let mut conditions = Conditions::from_filter(filter);
    conditions.and_if_some("placed < $older_than", "older_than", page.before.map(|id| id.to_string()));
    let limit = page.clamped_limit();
    let query = format!(
        "SELECT {SUMMARY_FIELDS} FROM agent_jobs{} ORDER BY placed DESC LIMIT $limit;",
        conditions.where_clause()
    );
    let mut reply = client.run(&query, conditions.vars.with("limit", i64::from(limit) + 1)).await?;
    let rows = reply.rows_or_ids::<SummaryRecord>(0)?.into_iter().filter_map(|summary| match summary {
        // Without a valid id it has no position in the list either.
        Ok(summary) => summary.into_row().ok().map(Ok),
        Err(job) => Some(Err(job)),
    });
    Ok(page_from_rows(rows.collect(), limit))
}

#[derive(Debug, SurrealValue)]
#[surreal(crate = "surrealdb::types")]
struct Count {
    jobs: i64,
}

/// Counts the jobs that match a filter.
pub async fn count(client: &SurrealClient, filter: &JobFilter) -> Result<u64, StoreError> {
    let conditions = Conditions::from_filter(filter);
    let query = format!("SELECT count() AS jobs FROM agent_jobs{} GROUP ALL;", conditions.where_clause());
    let mut reply = client.run(&query, conditions.vars).await?;
    Ok(reply.rows::<Count>(0)?.first().map_or(0, |count| count.jobs.unsigned_abs()))
}

/// A filter as constant query fragments and their parameters.
#[derive(Default)]
struct Conditions {
    clauses: Vec<&'static str>,
    vars: Vars,
}

impl Conditions {
    fn from_filter(filter: &JobFilter) -> Self {
        let JobFilter { states, agent, tool, task, home, parent, session, since, until, text } = filter;
        let mut conditions = Self::default();
        match states.as_slice() {
            [] => {}
            [state] => conditions.and_if_some("state = $state", "state", Some(state.as_str().to_owned())),
            several => {
                let names: Vec<String> = several.iter().map(|state| state.as_str().to_owned()).collect();
                conditions.and_if_some("state IN $states", "states", Some(names));
            }
        }
        conditions.and_if_some("agent = $agent", "agent", agent.map(|agent| agent.name().to_owned()));
        conditions.and_if_some("tool = $tool", "tool", tool.clone());
        conditions.and_if_some("task = $task", "task", task.clone());
        conditions.and_if_some("home = $home", "home", home.as_ref().map(Placement::to_string));
        conditions.and_if_some("parent = $parent", "parent", parent.map(|parent| parent.to_string()));
        let session = session.as_ref().map(|session| session.as_str().to_owned());
        conditions.and_if_some("session = $of_session", "of_session", session);
        let first_of = |at| JobId::first_of(at).to_string();
        conditions.and_if_some("placed >= $since", "since", since.map(first_of));
        conditions.and_if_some("placed < $until", "until", until.map(first_of));
        conditions.and_if_some(
            "(string::contains(string::lowercase(task), $words) OR string::contains(string::lowercase(prompt), $words))",
            "words",
            text.as_ref().map(|text| text.to_lowercase()),
        );
        conditions
    }

    fn and_if_some(&mut self, clause: &'static str, name: &'static str, value: Option<impl SurrealValue>) {
        if let Some(value) = value {
            self.clauses.push(clause);
            self.vars = std::mem::take(&mut self.vars).with(name, value);
        }
    }

    fn where_clause(&self) -> String {
        if self.clauses.is_empty() { String::new() } else { format!(" WHERE {}", self.clauses.join(" AND ")) }
    }
}

/// Returns the exchange of a job; the last one if there are several.
pub async fn exchange(client: &SurrealClient, job: JobId) -> Result<Option<Exchange>, StoreError> {
    let query = "SELECT * FROM agent_exchanges WHERE job = $job ORDER BY name DESC LIMIT 1;";
    let mut reply = client.run(query, Vars::new().with("job", job.to_string())).await?;
    let Some(record) = reply.rows::<ExchangeRecord>(0)?.pop() else { return Ok(None) };
    Ok(Some(Exchange {
        id: FieldReader(job).parse::<ExchangeId>("exchange", &record.name)?,
        job,
        created_at: Timestamp::from_millis(record.created_at.unsigned_abs()),
        said: NewExchange { prompt: record.prompt, response: record.response },
    }))
}

/// Returns the last session of a task.
pub async fn last_session(
    client: &SurrealClient,
    agent: AgentKind,
    task: &str,
    home: &Placement,
) -> Result<Option<LastSession>, StoreError> {
    let id = session_id(agent.name(), task, &home.to_string());
    let mut reply = client.run("SELECT * FROM $last;", Vars::new().with("last", id)).await?;
    let Some(record) = reply.rows::<SessionRecord>(0)?.pop() else { return Ok(None) };
    let reader = FieldReader(JobId::first_of(Timestamp::default()));
    let job: JobId = reader.parse("job", &record.job)?;
    Ok(Some(LastSession {
        session: FieldReader(job).parse("session", &record.session)?,
        cwd: record.cwd,
        job,
        at: Timestamp::from_millis(record.updated_at.unsigned_abs()),
    }))
}

#[derive(Debug, SurrealValue)]
#[surreal(crate = "surrealdb::types")]
struct StateCount {
    state: String,
    jobs: i64,
}

#[derive(Debug, SurrealValue)]
#[surreal(crate = "surrealdb::types")]
struct EndedSums {
    agent: String,
    model: Option<String>,
    day: i64,
    state: String,
    jobs: i64,
    duration: f64,
    input: f64,
    output: f64,
    cached: f64,
    reasoning: f64,
    cost: f64,
}

/// Returns the statistics of a range.
pub async fn stats(client: &SurrealClient, range: StatsRange) -> Result<Stats, StoreError> {
    let filter = JobFilter { since: range.since, until: range.until, ..JobFilter::default() };
    let mut conditions = Conditions::from_filter(&filter);
    let all = conditions.where_clause();
    conditions.clauses.push("completed_at > 0");
    let query = format!(
        "SELECT state, count() AS jobs FROM agent_jobs{all} GROUP BY state;
        SELECT agent, model, <int> math::floor(created_at / $day_ms) AS day, state, count() AS jobs,
            <float> math::sum(<float> (duration_ms ?? 0)) AS duration,
            <float> math::sum(IF (input_tokens ?? 0) <= {MAX_TOKENS} THEN <float> (input_tokens ?? 0) ELSE 0f END) AS input,
            <float> math::sum(IF (output_tokens ?? 0) <= {MAX_TOKENS} THEN <float> (output_tokens ?? 0) ELSE 0f END) AS output,
            <float> math::sum(IF (cached_tokens ?? 0) <= {MAX_TOKENS} THEN <float> (cached_tokens ?? 0) ELSE 0f END) AS cached,
            <float> math::sum(IF (reasoning_tokens ?? 0) <= {MAX_TOKENS} THEN <float> (reasoning_tokens ?? 0) ELSE 0f END) AS reasoning,
            <float> math::sum(IF (cost_usd ?? 0) <= {MAX_COST_USD} THEN <float> (cost_usd ?? 0) ELSE 0f END) AS cost
        FROM agent_jobs{} GROUP BY agent, model, day, state;",
        conditions.where_clause()
    );
    let mut reply = client.run(&query, conditions.vars.with("day_ms", to_i64(DAY_MS))).await?;
    let reader = FieldReader(JobId::first_of(Timestamp::default()));
    // Unreadable records are excluded from the sums.
    let states = reply
        .readable::<StateCount>(0)?
        .into_iter()
        .filter_map(|row| Some((reader.parse("state", &row.state).ok()?, row.jobs.unsigned_abs())))
        .collect();
    let mut sums = reply.readable::<EndedSums>(1)?;
    sums.sort_by(|a, b| (a.day, &a.agent, &a.model, &a.state).cmp(&(b.day, &b.agent, &b.model, &b.state)));
    Ok(Stats { states, ended: sums.into_iter().filter_map(|sums| ended_stats_row(sums, &reader)).collect() })
}

fn ended_stats_row(sums: EndedSums, reader: &FieldReader) -> Option<StatsRow> {
    let state: StateName = reader.parse("state", &sums.state).ok()?;
    let how = state.ended()?;
    Some(StatsRow {
        agent: reader.parse("agent", &sums.agent).ok()?,
        model: sums.model,
        day: Timestamp::from_millis(sums.day.unsigned_abs().saturating_mul(DAY_MS)),
        how,
        jobs: sums.jobs.unsigned_abs(),
        duration_ms: saturating_sum(sums.duration),
        usage: Usage {
            input: saturating_sum(sums.input),
            output: saturating_sum(sums.output),
            cached: saturating_sum(sums.cached),
            reasoning: saturating_sum(sums.reasoning),
        },
        cost_usd: sums.cost,
    })
}

/// Converts a sum. An integer sum would overflow; the float saturates, as with `SQLite`.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast stops at both ends")]
fn saturating_sum(sum: f64) -> u64 {
    (sum as u64).min(i64::MAX.unsigned_abs())
}
