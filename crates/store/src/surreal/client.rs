//! Runs queries on a server: classifies errors, retries, and times out.
//!
//! Queries are constant texts; values are always bound as parameters.

use std::time::Duration;

use model::JobId;
use surrealdb::engine::any::Any;
use surrealdb::types::{Object, QueryError, RecordIdKey, SurrealValue, Value};
use surrealdb::{IndexedResults, Surreal};
use tokio::time::{Instant, sleep, timeout};

use crate::error::{Cause, StoreError};

/// The timeout of one query. Until then the client library itself reconnects to an unavailable server.
pub const QUERY_TIMEOUT: Duration = Duration::from_secs(15);

/// The maximum number of attempts of a query that meets conflicts or lost connections.
pub const MAX_ATTEMPTS: u32 = 12;

const INITIAL_BACKOFF: Duration = Duration::from_millis(2);
const MAX_BACKOFF: Duration = Duration::from_millis(500);

/// The error of one attempt.
#[derive(Debug)]
pub enum AttemptError {
    /// Another writer committed first, and nothing was written: retry.
    Conflict,
    /// The connection was lost or the query timed out: the write may have been applied.
    Lost(Cause),
    /// The query failed, and nothing was written.
    Failed(StoreError),
}

/// The error of a query after all its attempts.
#[derive(Debug)]
pub struct RetryError {
    /// The error of the last attempt.
    pub last: StoreError,
    /// The error of an attempt without a reply, if there was one: the write may have been applied.
    pub lost: Option<Cause>,
}

/// A client of a database.
#[derive(Debug)]
pub struct SurrealClient {
    connection: SurrealConnection,
    location: String,
}

/// The connection to a database.
#[derive(Debug)]
pub enum SurrealConnection {
    Server(Surreal<Any>),
    #[cfg(feature = "surreal-embedded")]
    Embedded(crate::surreal::embedded::Embedded),
}

/// The parameters of a query.
#[derive(Debug, Clone, Default)]
pub struct Vars(Object);

impl Vars {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn with(mut self, name: impl Into<String>, value: impl SurrealValue) -> Self {
        self.0.insert(name.into(), value.into_value());
        self
    }
}

/// The results of the statements of a query.
#[derive(Debug)]
pub struct QueryReply {
    results: IndexedResults,
    location: String,
}

impl QueryReply {
    /// Returns the rows of a statement.
    pub fn rows<T: SurrealValue>(&mut self, statement: usize) -> Result<Vec<T>, StoreError> {
        let value: Value = self.results.take(statement).map_err(|error| self.unreadable(error))?;
        let rows = match value {
            Value::None | Value::Null => Vec::new(),
            Value::Array(rows) => rows.into_iter().collect(),
            one => vec![one],
        };
        rows.into_iter().map(|row| T::from_value(row).map_err(|error| self.unreadable(error))).collect()
    }

    /// Returns the rows of a statement; an unreadable row is replaced by its job id and does not fail the others. The
    /// statement must select the `id`.
    pub fn rows_or_ids<T: SurrealValue>(
        &mut self,
        statement: usize,
    ) -> Result<Vec<Result<T, JobId>>, StoreError> {
        let rows: Vec<Value> = self.rows(statement)?;
        let read = |row: Value| {
            let job = job_id_of(&row);
            match T::from_value(row) {
                Ok(row) => Some(Ok(row)),
                Err(_) => job.map(Err),
            }
        };
        Ok(rows.into_iter().filter_map(read).collect())
    }

    /// Returns the job ids of the rows of a statement, which must select the `id`.
    pub fn jobs(&mut self, statement: usize) -> Result<Vec<JobId>, StoreError> {
        Ok(self.rows::<Value>(statement)?.iter().filter_map(job_id_of).collect())
    }

    /// Returns the readable rows of a statement.
    pub fn readable<T: SurrealValue>(&mut self, statement: usize) -> Result<Vec<T>, StoreError> {
        let rows: Vec<Value> = self.rows(statement)?;
        Ok(rows.into_iter().filter_map(|row| T::from_value(row).ok()).collect())
    }

    fn unreadable(&self, error: surrealdb::Error) -> StoreError {
        StoreError::Unreadable { record: self.location.clone(), field: "reply", source: error.into() }
    }
}

/// Returns the job of a record by its id, which is immutable. A record with another type of id is not ours.
fn job_id_of(row: &Value) -> Option<JobId> {
    let Value::Object(fields) = row else { return None };
    let Some(Value::RecordId(id)) = fields.get("id") else { return None };
    match &id.key {
        RecordIdKey::Uuid(uuid) => Some(JobId::from_uuid((*uuid).into())),
        _ => None,
    }
}

impl SurrealClient {
    pub fn new(connection: SurrealConnection, location: String) -> Self {
        Self { connection, location }
    }

    pub fn location(&self) -> String {
        self.location.clone()
    }

    /// Runs a query once, without error classification.
    pub async fn query(&self, query: &str, vars: Vars) -> surrealdb::Result<IndexedResults> {
        let vars = Value::Object(vars.0);
        match &self.connection {
            SurrealConnection::Server(db) => db.query(query).bind(vars).await,
            #[cfg(feature = "surreal-embedded")]
            SurrealConnection::Embedded(engine) => engine.db().query(query).bind(vars).await,
        }
    }

    /// Runs an idempotent query: a read, or a write that may be repeated. Retries after conflicts and lost
    /// connections until the timeout.
    pub async fn run(&self, query: &str, vars: Vars) -> Result<QueryReply, StoreError> {
        self.run_write(query, vars).await.map_err(|error| error.last)
    }

    /// Runs an idempotent write like [`Self::run`]. The error reports whether an attempt remained without a reply.
    pub async fn run_write(&self, query: &str, vars: Vars) -> Result<QueryReply, RetryError> {
        let mut lost: Option<Cause> = None;
        let deadline = Instant::now() + QUERY_TIMEOUT;
        let mut backoff = Backoff::default();
        for attempt in 1.. {
            let is_last = attempt >= MAX_ATTEMPTS || Instant::now() >= deadline;
            match self.run_once(query, vars.clone()).await {
                Ok(reply) => return Ok(reply),
                Err(AttemptError::Failed(error)) => return Err(RetryError { last: error, lost }),
                Err(AttemptError::Conflict) if is_last => {
                    return Err(RetryError { last: self.too_many_conflicts(), lost });
                }
                Err(AttemptError::Lost(source)) if is_last => {
                    let lost = Some(lost.unwrap_or_else(|| source.to_string().into()));
                    return Err(RetryError {
                        last: StoreError::Unreachable { location: self.location(), source },
                        lost,
                    });
                }
                Err(AttemptError::Conflict) => backoff.wait().await,
                Err(AttemptError::Lost(source)) => {
                    lost = Some(source);
                    backoff.wait().await;
                }
            }
        }
        Err(RetryError { last: StoreError::Closed, lost })
    }

    /// Runs a query once. Checks the errors of all statements: the first may only be that it was not executed.
    pub async fn run_once(&self, query: &str, vars: Vars) -> Result<QueryReply, AttemptError> {
        let mut results = match timeout(QUERY_TIMEOUT, self.query(query, vars)).await {
            Ok(Ok(results)) => results,
            Ok(Err(error)) => return Err(self.classify(error)),
            Err(elapsed) => return Err(AttemptError::Lost(elapsed.into())),
        };
        let errors = results.take_errors();
        if errors.is_empty() {
            return Ok(QueryReply { results, location: self.location() });
        }
        let mut errors: Vec<surrealdb::Error> = errors.into_values().collect();
        if errors.iter().any(is_conflict) {
            return Err(AttemptError::Conflict);
        }
        // Prefer an error that names the cause.
        errors.sort_by_key(|error| error.query_details() == Some(&QueryError::NotExecuted));
        Err(self.classify(errors.swap_remove(0)))
    }

    fn classify(&self, error: surrealdb::Error) -> AttemptError {
        if is_conflict(&error) {
            AttemptError::Conflict
        } else if error.is_connection() || is_storage_error(&error) {
            AttemptError::Lost(error.into())
        } else if error.is_not_allowed() {
            AttemptError::Failed(StoreError::Unauthorized { location: self.location(), source: error.into() })
        } else {
            AttemptError::Failed(StoreError::Engine { location: self.location(), source: error.into() })
        }
    }

    pub fn too_many_conflicts(&self) -> StoreError {
        StoreError::Conflicts { location: self.location(), attempts: MAX_ATTEMPTS }
    }
}

/// Returns whether an error is a conflict, by its type or, if a server only forwards the message, by its text.
fn is_conflict(error: &surrealdb::Error) -> bool {
    error.query_details() == Some(&QueryError::TransactionConflict)
        || error.message().contains("Transaction conflict")
}

/// Returns a random index below a limit; 0 without randomness.
pub fn random_index(limit: usize) -> usize {
    let mut bytes = [0; 4];
    let _ = getrandom::fill(&mut bytes);
    u32::from_le_bytes(bytes) as usize % limit.max(1)
}

/// Returns whether the storage of the server failed, for example with ENOSPC. Such a write was found in the log at
/// the next start, so its outcome is unknown.
fn is_storage_error(error: &surrealdb::Error) -> bool {
    ["There was a problem with a transaction", "There was a problem with the datastore"]
        .iter()
        .any(|text| error.message().contains(text))
}

/// Exponential backoff with jitter, so that concurrent writers spread out.
#[derive(Debug)]
pub struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Self(INITIAL_BACKOFF)
    }
}

impl Backoff {
    pub async fn wait(&mut self) {
        let mut byte = [128];
        // Without randomness the jitter has its mean value.
        let _ = getrandom::fill(&mut byte);
        sleep(self.0.mul_f64(0.5 + f64::from(byte[0]) / 256.0)).await;
        self.0 = (self.0 * 2).min(MAX_BACKOFF);
    }
}
