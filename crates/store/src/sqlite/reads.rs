//! Queries for jobs, lists and statistics.
//!
//! Statements are built from constant fragments only; values are always bound as parameters.

use std::cmp::Reverse;

use model::{
    AgentKind, Exchange, ExchangeId, Job, JobId, JobIdPrefix, MAX_COST_USD, MAX_TOKENS, NewExchange,
    Placement, StateName, Timestamp, Usage,
};
use rusqlite::types::{FromSql, Value};
use rusqlite::{Connection, OptionalExtension, Row, params, params_from_iter};
use uuid::Uuid;

use crate::error::StoreError;
use crate::requests::{JobFilter, LastSession, Page, PageRequest, PrefixMatch};
use crate::row::{FieldReader, JobRow, ProgressRow, SummaryRow, page_from_rows};
use crate::sqlite::QueryError;
use crate::sqlite::jobs::to_i64;
use crate::stats::{DAY_MS, Stats, StatsRange, StatsRow};

const SUMMARY_COLUMNS: &str =
    "id, state, job.owner, attempt, requeues, max_attempts, paused_until, cancel_requested_at,
    created_at, started_at, completed_at, duration_ms, agent, model, tool, task, home, cwd, session, parent,
    input_tokens, output_tokens, cached_tokens, reasoning_tokens, cost_usd, prompt_head, failure";

const DETAIL_COLUMNS: &str =
    "revision, exchange, idempotency_key, fire_and_forget, expose_stream, call, prompt, outcome,
    metadata, worker.expires_at";

/// The maximum number of ids returned for an ambiguous prefix.
const MAX_MATCHES: i64 = 10;

/// Returns a job by its id.
pub fn job(connection: &Connection, id: JobId) -> Result<Option<Job>, QueryError> {
    let row = find_row(connection, "id = ?1", [id.as_uuid().as_bytes()])?;
    Ok(row.map(JobRow::into_job).transpose()?)
}

/// Returns a job by its home and its idempotency key.
pub fn row_by_key(
    connection: &Connection,
    home: &str,
    key: Option<&str>,
) -> Result<Option<JobRow>, QueryError> {
    match key {
        Some(key) => find_row(connection, "home = ?1 AND idempotency_key = ?2", [home, key]),
        None => Ok(None),
    }
}

fn find_row(
    connection: &Connection,
    which: &'static str,
    values: impl rusqlite::Params,
) -> Result<Option<JobRow>, QueryError> {
    let statement = format!(
        "SELECT {SUMMARY_COLUMNS}, {DETAIL_COLUMNS} FROM agent_jobs AS job LEFT JOIN agent_workers AS worker ON worker.owner = job.owner
        WHERE {which}"
    );
    Ok(connection.prepare_cached(&statement)?.query_row(values, job_row).optional()?)
}

/// Finds the jobs with an id prefix.
pub fn find(connection: &Connection, prefix: JobIdPrefix) -> Result<PrefixMatch, QueryError> {
    let (first, last) = prefix.range();
    let ids: Vec<[u8; 16]> = connection
        .prepare_cached("SELECT id FROM agent_jobs WHERE id BETWEEN ?1 AND ?2 ORDER BY id LIMIT ?3")?
        .query_map(params![first.as_uuid().as_bytes(), last.as_uuid().as_bytes(), MAX_MATCHES], |row| {
            row.get(0)
        })?
        .collect::<Result<_, _>>()?;
    let ids: Vec<JobId> = ids.into_iter().map(|id| JobId::from_uuid(Uuid::from_bytes(id))).collect();
    match ids.as_slice() {
        [] => Ok(PrefixMatch::Nothing),
        [one] => {
            Ok(job(connection, *one)?.map_or(PrefixMatch::Nothing, |job| PrefixMatch::One(Box::new(job))))
        }
        _ => Ok(PrefixMatch::Several(ids)),
    }
}

/// Returns a page of a list, newest first.
pub fn list(connection: &Connection, filter: &JobFilter, page: PageRequest) -> Result<Page, QueryError> {
    let limit = page.clamped_limit();
    let mut found = Vec::new();
    // One query per state: an index returns the newest rows first, and no other row is read.
    for filter in filter_per_state(filter) {
        found.extend(newest(connection, &filter, page.before, i64::from(limit) + 1)?);
    }
    found.sort_by_key(|row| Reverse(row.as_ref().map_or_else(|job| *job, SummaryRow::job_id)));
    found.truncate(limit as usize + 1);
    Ok(page_from_rows(found, limit))
}

fn filter_per_state(filter: &JobFilter) -> Vec<JobFilter> {
    let mut states = filter.states.clone();
    states.sort_unstable();
    states.dedup();
    match states.as_slice() {
        [] | [_] => vec![filter.clone()],
        several => several.iter().map(|state| JobFilter { states: vec![*state], ..filter.clone() }).collect(),
    }
}

fn newest(
    connection: &Connection,
    filter: &JobFilter,
    before: Option<JobId>,
    limit: i64,
) -> Result<Vec<Result<SummaryRow, JobId>>, QueryError> {
    let mut conditions = Conditions::from_filter(filter);
    conditions.and_if_some("id < ?", before.map(blob));
    conditions.values.push(Value::Integer(limit));
    let statement = format!(
        "SELECT {SUMMARY_COLUMNS} FROM agent_jobs AS job{} ORDER BY id DESC LIMIT ?",
        conditions.where_clause()
    );
    let rows = connection
        .prepare_cached(&statement)?
        .query_map(params_from_iter(conditions.values), summary_or_id)?
        .collect::<Result<_, _>>()?;
    Ok(rows)
}

/// Counts the jobs that match a filter.
pub fn count(connection: &Connection, filter: &JobFilter) -> Result<u64, QueryError> {
    let conditions = Conditions::from_filter(filter);
    let statement = format!("SELECT count(*) FROM agent_jobs AS job{}", conditions.where_clause());
    let count = connection
        .prepare_cached(&statement)?
        .query_row(params_from_iter(conditions.values), |row| Columns::new(row).unsigned())?;
    Ok(count)
}

/// A filter as constant SQL fragments and their parameters.
#[derive(Default)]
struct Conditions {
    clauses: Vec<&'static str>,
    values: Vec<Value>,
}

impl Conditions {
    fn from_filter(filter: &JobFilter) -> Self {
        let JobFilter { states, agent, tool, task, home, parent, session, since, until, text } = filter;
        let sql_text = |text: &str| Value::Text(text.to_owned());
        let mut conditions = Self::default();
        match states.as_slice() {
            [] => {}
            [state] => conditions.and("state = ?", [sql_text(state.as_str())]),
            // A parameter for every state, so that the statement is the same for any number of them.
            several => {
                let named = StateName::ALL.map(|state| {
                    if several.contains(&state) { sql_text(state.as_str()) } else { Value::Null }
                });
                conditions.and("state IN (?, ?, ?, ?, ?, ?, ?, ?)", named);
            }
        }
        conditions.and_if_some("agent = ?", agent.map(|agent| sql_text(agent.name())));
        conditions.and_if_some("tool = ?", tool.as_deref().map(sql_text));
        conditions.and_if_some("task = ?", task.as_deref().map(sql_text));
        conditions.and_if_some("home = ?", home.as_ref().map(|home| sql_text(&home.to_string())));
        conditions.and_if_some("parent = ?", parent.map(blob));
        conditions.and_if_some("session = ?", session.as_ref().map(|session| sql_text(session.as_str())));
        conditions.and_if_some("id >= ?", since.map(|since| blob(JobId::first_of(since))));
        conditions.and_if_some("id < ?", until.map(|until| blob(JobId::first_of(until))));
        if let Some(text) = text {
            let anywhere = Value::Text(format!("%{}%", escape_like(text)));
            let clause = r"(task LIKE ? ESCAPE '\' OR prompt LIKE ? ESCAPE '\')";
            conditions.and(clause, [anywhere.clone(), anywhere]);
        }
        conditions
    }

    fn and_if_some(&mut self, clause: &'static str, value: Option<Value>) {
        if let Some(value) = value {
            self.and(clause, [value]);
        }
    }

    fn and<const N: usize>(&mut self, clause: &'static str, values: [Value; N]) {
        self.clauses.push(clause);
        self.values.extend(values);
    }

    fn where_clause(&self) -> String {
        if self.clauses.is_empty() { String::new() } else { format!(" WHERE {}", self.clauses.join(" AND ")) }
    }
}

/// Escapes the wildcards of LIKE.
fn escape_like(text: &str) -> String {
    text.replace('\\', r"\\").replace('%', r"\%").replace('_', r"\_")
}

fn blob(id: JobId) -> Value {
    Value::Blob(id.as_uuid().as_bytes().to_vec())
}

/// Returns the exchange of a job; the last one if there are several.
pub fn exchange(connection: &Connection, job: JobId) -> Result<Option<Exchange>, QueryError> {
    let found = connection
        .prepare_cached(
            "SELECT id, created_at, prompt, response FROM agent_exchanges WHERE job = ?1 ORDER BY id DESC LIMIT 1",
        )?
        .query_row([job.as_uuid().as_bytes()], |row| {
            let mut columns = Columns::new(row);
            Ok(Exchange {
                id: ExchangeId::from_uuid(Uuid::from_bytes(columns.next()?)),
                job,
                created_at: Timestamp::from_millis(columns.unsigned()?),
                said: NewExchange { prompt: columns.next()?, response: columns.next()? },
            })
        })
        .optional()?;
    Ok(found)
}

/// Returns the last session of a task.
pub fn last_session(
    connection: &Connection,
    agent: AgentKind,
    task: &str,
    home: &Placement,
) -> Result<Option<LastSession>, QueryError> {
    let found = connection
        .prepare_cached(
            "SELECT session, cwd, job, updated_at FROM tool_sessions WHERE agent = ?1 AND task = ?2 AND home = ?3",
        )?
        .query_row(params![agent.name(), task, home.to_string()], |row| {
            let mut columns = Columns::new(row);
            let (session, cwd): (String, String) = (columns.next()?, columns.next()?);
            Ok((session, cwd, JobId::from_uuid(Uuid::from_bytes(columns.next()?)), columns.unsigned()?))
        })
        .optional()?;
    let Some((session, cwd, job, at)) = found else { return Ok(None) };
    let session = FieldReader(job).parse("session", &session)?;
    Ok(Some(LastSession { session, cwd, job, at: Timestamp::from_millis(at) }))
}

/// Returns the statistics of a range.
pub fn stats(connection: &Connection, range: StatsRange) -> Result<Stats, QueryError> {
    let filter = JobFilter { since: range.since, until: range.until, ..JobFilter::default() };
    let conditions = Conditions::from_filter(&filter);
    let statement =
        format!("SELECT state, count(*) FROM agent_jobs AS job{} GROUP BY state", conditions.where_clause());
    let counts: Vec<(String, u64)> = connection
        .prepare_cached(&statement)?
        .query_map(params_from_iter(conditions.values), |row| {
            Ok((row.get(0)?, Columns { row, index: 1 }.unsigned()?))
        })?
        .collect::<Result<_, _>>()?;
    // Unreadable records are excluded from the sums.
    let reader = FieldReader(JobId::first_of(Timestamp::default()));
    let states = counts
        .into_iter()
        .filter_map(|(state, jobs)| Some((reader.parse("state", &state).ok()?, jobs)))
        .collect();
    Ok(Stats { states, ended: ended_stats(connection, &filter)? })
}

fn ended_stats(connection: &Connection, filter: &JobFilter) -> Result<Vec<StatsRow>, QueryError> {
    let mut conditions = Conditions::from_filter(filter);
    conditions.and("completed_at IS NOT NULL", []);
    conditions.values.insert(0, Value::Integer(to_i64(DAY_MS)));
    // `sum` fails on overflow; `total` is a float, and the cast saturates. Implausible values, which earlier versions
    // stored, are excluded.
    let tokens = |column: &str| {
        format!("CAST(total(CASE WHEN {column} <= {MAX_TOKENS} THEN {column} END) AS INTEGER)")
    };
    let statement = format!(
        "SELECT created_at / ? AS day, state, agent, model, count(*), CAST(total(duration_ms) AS INTEGER),
            {}, {}, {}, {}, total(CASE WHEN cost_usd <= {MAX_COST_USD} THEN cost_usd END)
        FROM agent_jobs AS job{} GROUP BY day, agent, model, state ORDER BY day, agent, model, state",
        tokens("input_tokens"),
        tokens("output_tokens"),
        tokens("cached_tokens"),
        tokens("reasoning_tokens"),
        conditions.where_clause()
    );
    let mut statement = connection.prepare_cached(&statement)?;
    let mut rows = statement.query(params_from_iter(conditions.values))?;
    let mut stats = Vec::new();
    while let Some(row) = rows.next()? {
        match ended_stats_row(row) {
            Err(failed) if failed.is_unreadable_record() => {}
            row => stats.push(row?),
        }
    }
    Ok(stats)
}

fn ended_stats_row(row: &Row<'_>) -> Result<StatsRow, QueryError> {
    // A sum has no record; its day identifies it in errors.
    let mut columns = Columns::new(row);
    let day = Timestamp::from_millis(columns.unsigned()?.saturating_mul(DAY_MS));
    let reader = FieldReader(JobId::first_of(day));
    let state: StateName = reader.parse("state", &columns.next::<String>()?)?;
    Ok(StatsRow {
        day,
        agent: reader.parse("agent", &columns.next::<String>()?)?,
        model: columns.next()?,
        how: state.ended().ok_or(StoreError::Unreadable {
            record: reader.0.to_string(),
            field: "state",
            source: "a finished job is not in a terminal state".into(),
        })?,
        jobs: columns.unsigned()?,
        duration_ms: columns.unsigned()?,
        usage: columns.usage()?.unwrap_or_default(),
        cost_usd: columns.next::<Option<f64>>()?.unwrap_or(0.0),
    })
}

/// Checks every page and index of the file.
pub fn check(connection: &Connection) -> Result<(), QueryError> {
    let mut statement = connection.prepare("PRAGMA integrity_check")?;
    let found: Vec<String> = statement.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
    if found == ["ok"] {
        return Ok(());
    }
    let location = connection.path().unwrap_or_default().to_owned();
    Err(StoreError::Damaged { location, source: found.join("; ").into() }.into())
}

/// Reads the columns of a row in the order of the constants above. Access by name would search for each.
struct Columns<'a> {
    row: &'a Row<'a>,
    index: usize,
}

impl<'a> Columns<'a> {
    fn new(row: &'a Row<'a>) -> Self {
        Self { row, index: 0 }
    }

    fn next<T: FromSql>(&mut self) -> rusqlite::Result<T> {
        self.index += 1;
        self.row.get(self.index - 1)
    }

    fn unsigned(&mut self) -> rusqlite::Result<u64> {
        Ok(self.optional_unsigned()?.unwrap_or(0))
    }

    fn optional_unsigned(&mut self) -> rusqlite::Result<Option<u64>> {
        // No counter is negative.
        Ok(self.next::<Option<i64>>()?.map(|number| u64::try_from(number).unwrap_or(0)))
    }

    fn uuid(&mut self) -> rusqlite::Result<Option<Uuid>> {
        Ok(self.next::<Option<[u8; 16]>>()?.map(Uuid::from_bytes))
    }

    fn usage(&mut self) -> rusqlite::Result<Option<Usage>> {
        let input = self.optional_unsigned()?;
        let (output, cached, reasoning) = (self.unsigned()?, self.unsigned()?, self.unsigned()?);
        Ok(input.map(|input| Usage { input, output, cached, reasoning }))
    }

    /// Reads the columns of a [`ProgressRow`], in its order.
    fn progress(&mut self) -> rusqlite::Result<ProgressRow> {
        Ok(ProgressRow {
            state: self.next()?,
            owner: self.next()?,
            attempt: self.next()?,
            requeues: self.next()?,
            max_attempts: self.next()?,
            paused_until: self.optional_unsigned()?,
            cancel_requested_at: self.optional_unsigned()?,
        })
    }

    /// Reads [`SUMMARY_COLUMNS`].
    fn summary(&mut self) -> rusqlite::Result<SummaryRow> {
        Ok(SummaryRow {
            id: Uuid::from_bytes(self.next()?),
            progress: self.progress()?,
            created_at: self.unsigned()?,
            started_at: self.optional_unsigned()?,
            completed_at: self.optional_unsigned()?,
            duration_ms: self.optional_unsigned()?,
            agent: self.next()?,
            model: self.next()?,
            tool: self.next()?,
            task: self.next()?,
            home: self.next()?,
            cwd: self.next()?,
            session: self.next()?,
            parent: self.uuid()?,
            usage: self.usage()?,
            cost_usd: self.next()?,
            prompt_head: self.next()?,
            failure: self.next()?,
        })
    }
}

/// Reads a summary, or only its id if the rest is unreadable.
fn summary_or_id(row: &Row<'_>) -> rusqlite::Result<Result<SummaryRow, JobId>> {
    let id = Uuid::from_bytes(row.get(0)?);
    Ok(Columns::new(row).summary().map_err(|_| JobId::from_uuid(id)))
}

/// Reads [`SUMMARY_COLUMNS`] and [`DETAIL_COLUMNS`].
fn job_row(row: &Row<'_>) -> rusqlite::Result<JobRow> {
    let mut columns = Columns::new(row);
    Ok(JobRow {
        summary: columns.summary()?,
        revision: columns.unsigned()?,
        exchange: columns.uuid()?,
        idempotency_key: columns.next()?,
        fire_and_forget: columns.next()?,
        expose_stream: columns.next()?,
        call: columns.next()?,
        prompt: columns.next()?,
        outcome: columns.next()?,
        metadata: columns.next()?,
        lease_expires_at: columns.optional_unsigned()?,
    })
}

/// The columns of a job that a step needs.
pub struct JobHead {
    pub progress: ProgressRow,
    pub started_at: Option<u64>,
    pub revision: u64,
}

pub fn job_head(connection: &Connection, job: JobId) -> Result<JobHead, QueryError> {
    let found = connection
        .prepare_cached(
            "SELECT state, owner, attempt, requeues, max_attempts, paused_until, cancel_requested_at, started_at,
                revision
            FROM agent_jobs WHERE id = ?1",
        )?
        .query_row([job.as_uuid().as_bytes()], |row| {
            let mut columns = Columns::new(row);
            Ok(JobHead {
                progress: columns.progress()?,
                started_at: columns.optional_unsigned()?,
                revision: columns.unsigned()?,
            })
        })
        .optional()?;
    Ok(found.ok_or(StoreError::NoSuchJob { job })?)
}
