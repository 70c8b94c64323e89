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
use crate::requests::{Found, JobFilter, LastSession, Page, PageRequest};
use crate::row::{JobRow, LineRow, Reader, Standing, page_from_rows};
use crate::sqlite::Failed;
use crate::sqlite::jobs::int;
use crate::stats::{DAY_MS, Stats, StatsRange, StatsRow};

const LINE: &str = "id, state, job.owner, attempt, requeues, max_attempts, paused_until, cancel_requested_at,
    created_at, started_at, completed_at, duration_ms, agent, model, tool, task, home, cwd, session, parent,
    input_tokens, output_tokens, cached_tokens, reasoning_tokens, cost_usd, prompt_head, failure";

const REST: &str =
    "revision, exchange, idempotency_key, fire_and_forget, expose_stream, call, prompt, outcome,
    metadata, worker.expires_at";

/// The maximum number of ids returned for an ambiguous prefix.
const FOUND: i64 = 10;

/// Returns a job by its id.
pub fn job(connection: &Connection, id: JobId) -> Result<Option<Job>, Failed> {
    let row = one_row(connection, "id = ?1", [id.as_uuid().as_bytes()])?;
    Ok(row.map(JobRow::job).transpose()?)
}

/// Returns a job by its home and its idempotency key.
pub fn row_of_key(connection: &Connection, home: &str, key: Option<&str>) -> Result<Option<JobRow>, Failed> {
    match key {
        Some(key) => one_row(connection, "home = ?1 AND idempotency_key = ?2", [home, key]),
        None => Ok(None),
    }
}

fn one_row(
    connection: &Connection,
    which: &'static str,
    values: impl rusqlite::Params,
) -> Result<Option<JobRow>, Failed> {
    let statement = format!(
        "SELECT {LINE}, {REST} FROM agent_jobs AS job LEFT JOIN agent_workers AS worker ON worker.owner = job.owner
        WHERE {which}"
    );
    Ok(connection.prepare_cached(&statement)?.query_row(values, whole).optional()?)
}

/// Finds the jobs with an id prefix.
pub fn find(connection: &Connection, prefix: JobIdPrefix) -> Result<Found, Failed> {
    let (first, last) = prefix.range();
    let ids: Vec<[u8; 16]> = connection
        .prepare_cached("SELECT id FROM agent_jobs WHERE id BETWEEN ?1 AND ?2 ORDER BY id LIMIT ?3")?
        .query_map(params![first.as_uuid().as_bytes(), last.as_uuid().as_bytes(), FOUND], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    let ids: Vec<JobId> = ids.into_iter().map(|id| JobId::from_uuid(Uuid::from_bytes(id))).collect();
    match ids.as_slice() {
        [] => Ok(Found::Nothing),
        [one] => Ok(job(connection, *one)?.map_or(Found::Nothing, |job| Found::One(Box::new(job)))),
        _ => Ok(Found::Several(ids)),
    }
}

/// Returns a page of a list, newest first.
pub fn list(connection: &Connection, filter: &JobFilter, page: PageRequest) -> Result<Page, Failed> {
    let rows = page.rows();
    let mut lines = Vec::new();
    // One query per state: an index returns the newest rows first, and no other row is read.
    for filter in one_state_each(filter) {
        lines.extend(newest(connection, &filter, page.before, i64::from(rows) + 1)?);
    }
    lines.sort_by_key(|line| Reverse(line.as_ref().map_or_else(|job| *job, LineRow::job)));
    lines.truncate(rows as usize + 1);
    Ok(page_from_rows(lines, rows))
}

fn one_state_each(filter: &JobFilter) -> Vec<JobFilter> {
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
) -> Result<Vec<Result<LineRow, JobId>>, Failed> {
    let mut conditions = Conditions::of(filter);
    conditions.maybe("id < ?", before.map(blob));
    conditions.values.push(Value::Integer(limit));
    let statement =
        format!("SELECT {LINE} FROM agent_jobs AS job{} ORDER BY id DESC LIMIT ?", conditions.clause());
    let lines = connection
        .prepare_cached(&statement)?
        .query_map(params_from_iter(conditions.values), line_or_id)?
        .collect::<Result<_, _>>()?;
    Ok(lines)
}

/// Counts the jobs that match a filter.
pub fn count(connection: &Connection, filter: &JobFilter) -> Result<u64, Failed> {
    let conditions = Conditions::of(filter);
    let statement = format!("SELECT count(*) FROM agent_jobs AS job{}", conditions.clause());
    let count = connection
        .prepare_cached(&statement)?
        .query_row(params_from_iter(conditions.values), |row| Columns { row, next: 0 }.unsigned())?;
    Ok(count)
}

/// A filter as constant SQL fragments and their parameters.
#[derive(Default)]
struct Conditions {
    pieces: Vec<&'static str>,
    values: Vec<Value>,
}

impl Conditions {
    fn of(filter: &JobFilter) -> Self {
        let JobFilter { states, agent, tool, task, home, parent, session, since, until, words } = filter;
        let text = |text: &str| Value::Text(text.to_owned());
        let mut conditions = Self::default();
        match states.as_slice() {
            [] => {}
            [state] => conditions.and("state = ?", [text(state.as_str())]),
            // A parameter for every state, so that the statement is the same for any number of them.
            several => {
                let named = StateName::ALL
                    .map(|state| if several.contains(&state) { text(state.as_str()) } else { Value::Null });
                conditions.and("state IN (?, ?, ?, ?, ?, ?, ?, ?)", named);
            }
        }
        conditions.maybe("agent = ?", agent.map(|agent| text(agent.name())));
        conditions.maybe("tool = ?", tool.as_deref().map(text));
        conditions.maybe("task = ?", task.as_deref().map(text));
        conditions.maybe("home = ?", home.as_ref().map(|home| text(&home.to_string())));
        conditions.maybe("parent = ?", parent.map(blob));
        conditions.maybe("session = ?", session.as_ref().map(|session| text(session.as_str())));
        conditions.maybe("id >= ?", since.map(|since| blob(JobId::first_of(since))));
        conditions.maybe("id < ?", until.map(|until| blob(JobId::first_of(until))));
        if let Some(words) = words {
            let anywhere = Value::Text(format!("%{}%", as_it_is(words)));
            let piece = r"(task LIKE ? ESCAPE '\' OR prompt LIKE ? ESCAPE '\')";
            conditions.and(piece, [anywhere.clone(), anywhere]);
        }
        conditions
    }

    fn maybe(&mut self, piece: &'static str, value: Option<Value>) {
        if let Some(value) = value {
            self.and(piece, [value]);
        }
    }

    fn and<const N: usize>(&mut self, piece: &'static str, values: [Value; N]) {
        self.pieces.push(piece);
        self.values.extend(values);
    }

    fn clause(&self) -> String {
        if self.pieces.is_empty() { String::new() } else { format!(" WHERE {}", self.pieces.join(" AND ")) }
    }
}

/// Escapes the wildcards of LIKE.
fn as_it_is(words: &str) -> String {
    words.replace('\\', r"\\").replace('%', r"\%").replace('_', r"\_")
}

fn blob(id: JobId) -> Value {
    Value::Blob(id.as_uuid().as_bytes().to_vec())
}

/// Returns the exchange of a job; the last one if there are several.
pub fn exchange(connection: &Connection, job: JobId) -> Result<Option<Exchange>, Failed> {
    let found = connection
        .prepare_cached(
            "SELECT id, created_at, prompt, response FROM agent_exchanges WHERE job = ?1 ORDER BY id DESC LIMIT 1",
        )?
        .query_row([job.as_uuid().as_bytes()], |row| {
            let mut columns = Columns { row, next: 0 };
            Ok(Exchange {
                id: ExchangeId::from_uuid(Uuid::from_bytes(columns.take()?)),
                job,
                created_at: Timestamp::from_millis(columns.unsigned()?),
                said: NewExchange { prompt: columns.take()?, response: columns.take()? },
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
) -> Result<Option<LastSession>, Failed> {
    let found = connection
        .prepare_cached(
            "SELECT session, cwd, job, updated_at FROM tool_sessions WHERE agent = ?1 AND task = ?2 AND home = ?3",
        )?
        .query_row(params![agent.name(), task, home.to_string()], |row| {
            let mut columns = Columns { row, next: 0 };
            let (session, cwd): (String, String) = (columns.take()?, columns.take()?);
            Ok((session, cwd, JobId::from_uuid(Uuid::from_bytes(columns.take()?)), columns.unsigned()?))
        })
        .optional()?;
    let Some((session, cwd, job, at)) = found else { return Ok(None) };
    let session = Reader(job).parse("session", &session)?;
    Ok(Some(LastSession { session, cwd, job, at: Timestamp::from_millis(at) }))
}

/// Returns the statistics of a range.
pub fn stats(connection: &Connection, range: StatsRange) -> Result<Stats, Failed> {
    let filter = JobFilter { since: range.since, until: range.until, ..JobFilter::default() };
    let conditions = Conditions::of(&filter);
    let statement =
        format!("SELECT state, count(*) FROM agent_jobs AS job{} GROUP BY state", conditions.clause());
    let counts: Vec<(String, u64)> = connection
        .prepare_cached(&statement)?
        .query_map(params_from_iter(conditions.values), |row| {
            Ok((row.get(0)?, Columns { row, next: 1 }.unsigned()?))
        })?
        .collect::<Result<_, _>>()?;
    // Unreadable records are excluded from the sums.
    let nobody = Reader(JobId::first_of(Timestamp::default()));
    let states = counts
        .into_iter()
        .filter_map(|(state, jobs)| Some((nobody.parse("state", &state).ok()?, jobs)))
        .collect();
    Ok(Stats { states, ended: ended(connection, &filter)? })
}

fn ended(connection: &Connection, filter: &JobFilter) -> Result<Vec<StatsRow>, Failed> {
    let mut conditions = Conditions::of(filter);
    conditions.and("completed_at IS NOT NULL", []);
    conditions.values.insert(0, Value::Integer(int(DAY_MS)));
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
        conditions.clause()
    );
    let mut statement = connection.prepare_cached(&statement)?;
    let mut rows = statement.query(params_from_iter(conditions.values))?;
    let mut ended = Vec::new();
    while let Some(row) = rows.next()? {
        match ended_row(row) {
            Err(failed) if failed.is_of_record() => {}
            sums => ended.push(sums?),
        }
    }
    Ok(ended)
}

fn ended_row(row: &Row<'_>) -> Result<StatsRow, Failed> {
    // A sum has no record; its day identifies it in errors.
    let mut columns = Columns { row, next: 0 };
    let day = Timestamp::from_millis(columns.unsigned()?.saturating_mul(DAY_MS));
    let reader = Reader(JobId::first_of(day));
    let state: StateName = reader.parse("state", &columns.take::<String>()?)?;
    Ok(StatsRow {
        day,
        agent: reader.parse("agent", &columns.take::<String>()?)?,
        model: columns.take()?,
        how: state.ended().ok_or(StoreError::Unreadable {
            record: reader.0.to_string(),
            field: "state",
            source: "an ended job is not in a state that is an end".into(),
        })?,
        jobs: columns.unsigned()?,
        duration_ms: columns.unsigned()?,
        usage: columns.usage()?.unwrap_or_default(),
        cost_usd: columns.take::<Option<f64>>()?.unwrap_or(0.0),
    })
}

/// Checks every page and index of the file.
pub fn check(connection: &Connection) -> Result<(), Failed> {
    let mut statement = connection.prepare("PRAGMA integrity_check")?;
    let found: Vec<String> = statement.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
    if found == ["ok"] {
        return Ok(());
    }
    let place = connection.path().unwrap_or_default().to_owned();
    Err(StoreError::Damaged { place, source: found.join("; ").into() }.into())
}

/// Reads the columns of a row in the order of the constants above. Access by name would search for each.
struct Columns<'a> {
    row: &'a Row<'a>,
    next: usize,
}

impl Columns<'_> {
    fn take<T: FromSql>(&mut self) -> rusqlite::Result<T> {
        self.next += 1;
        self.row.get(self.next - 1)
    }

    fn unsigned(&mut self) -> rusqlite::Result<u64> {
        Ok(self.maybe_unsigned()?.unwrap_or(0))
    }

    fn maybe_unsigned(&mut self) -> rusqlite::Result<Option<u64>> {
        // No counter is negative.
        Ok(self.take::<Option<i64>>()?.map(|number| u64::try_from(number).unwrap_or(0)))
    }

    fn uuid(&mut self) -> rusqlite::Result<Option<Uuid>> {
        Ok(self.take::<Option<[u8; 16]>>()?.map(Uuid::from_bytes))
    }

    fn usage(&mut self) -> rusqlite::Result<Option<Usage>> {
        let input = self.maybe_unsigned()?;
        let (output, cached, reasoning) = (self.unsigned()?, self.unsigned()?, self.unsigned()?);
        Ok(input.map(|input| Usage { input, output, cached, reasoning }))
    }

    /// Reads the columns of a [`ProgressRow`], in its order.
    fn standing(&mut self) -> rusqlite::Result<Standing> {
        Ok(Standing {
            state: self.take()?,
            owner: self.take()?,
            attempt: self.take()?,
            requeues: self.take()?,
            max_attempts: self.take()?,
            paused_until: self.maybe_unsigned()?,
            cancel_requested_at: self.maybe_unsigned()?,
        })
    }

    /// Reads [`SUMMARY_COLUMNS`].
    fn line(&mut self) -> rusqlite::Result<LineRow> {
        Ok(LineRow {
            id: Uuid::from_bytes(self.take()?),
            standing: self.standing()?,
            created_at: self.unsigned()?,
            started_at: self.maybe_unsigned()?,
            completed_at: self.maybe_unsigned()?,
            duration_ms: self.maybe_unsigned()?,
            agent: self.take()?,
            model: self.take()?,
            tool: self.take()?,
            task: self.take()?,
            home: self.take()?,
            cwd: self.take()?,
            session: self.take()?,
            parent: self.uuid()?,
            usage: self.usage()?,
            cost_usd: self.take()?,
            prompt_head: self.take()?,
            failure: self.take()?,
        })
    }
}

/// Reads a summary, or only its id if the rest is unreadable.
fn line_or_id(row: &Row<'_>) -> rusqlite::Result<Result<LineRow, JobId>> {
    let id = Uuid::from_bytes(row.get(0)?);
    Ok(Columns { row, next: 0 }.line().map_err(|_| JobId::from_uuid(id)))
}

/// Reads [`SUMMARY_COLUMNS`] and [`DETAIL_COLUMNS`].
fn whole(row: &Row<'_>) -> rusqlite::Result<JobRow> {
    let mut columns = Columns { row, next: 0 };
    Ok(JobRow {
        line: columns.line()?,
        revision: columns.unsigned()?,
        exchange: columns.uuid()?,
        idempotency_key: columns.take()?,
        fire_and_forget: columns.take()?,
        expose_stream: columns.take()?,
        call: columns.take()?,
        prompt: columns.take()?,
        outcome: columns.take()?,
        metadata: columns.take()?,
        lease_expires_at: columns.maybe_unsigned()?,
    })
}

/// The columns of a job that a step needs.
pub struct Head {
    pub standing: Standing,
    pub started_at: Option<u64>,
    pub revision: u64,
}

pub fn head(connection: &Connection, job: JobId) -> Result<Head, Failed> {
    let found = connection
        .prepare_cached(
            "SELECT state, owner, attempt, requeues, max_attempts, paused_until, cancel_requested_at, started_at,
                revision
            FROM agent_jobs WHERE id = ?1",
        )?
        .query_row([job.as_uuid().as_bytes()], |row| {
            let mut columns = Columns { row, next: 0 };
            Ok(Head {
                standing: columns.standing()?,
                started_at: columns.maybe_unsigned()?,
                revision: columns.unsigned()?,
            })
        })
        .optional()?;
    Ok(found.ok_or(StoreError::NoSuchJob { job })?)
}
