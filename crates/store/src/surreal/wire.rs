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
pub const PATIENCE: Duration = Duration::from_secs(15);

/// The maximum number of attempts of a query that meets conflicts or lost connections.
pub const TRIES: u32 = 12;

const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// The error of one attempt.
#[derive(Debug)]
pub enum Fault {
    /// Another writer committed first, and nothing was written: retry.
    Conflict,
    /// The connection was lost or the query timed out: the write may have been applied.
    Lost(Cause),
    /// The query failed, and nothing was written.
    Failed(StoreError),
}

/// The error of a query after all its attempts.
#[derive(Debug)]
pub struct GaveUp {
    /// The error of the last attempt.
    pub error: StoreError,
    /// The error of an attempt without a reply, if there was one: the write may have been applied.
    pub lost: Option<Cause>,
}

/// A client of a database.
#[derive(Debug)]
pub struct Wire {
    end: FarEnd,
    place: String,
}

/// The connection to a database.
#[derive(Debug)]
pub enum FarEnd {
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
pub struct Answer {
    results: IndexedResults,
    place: String,
}

impl Answer {
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
    pub fn each<T: SurrealValue>(&mut self, statement: usize) -> Result<Vec<Result<T, JobId>>, StoreError> {
        let rows: Vec<Value> = self.rows(statement)?;
        let read = |row: Value| {
            let job = job_of(&row);
            match T::from_value(row) {
                Ok(row) => Some(Ok(row)),
                Err(_) => job.map(Err),
            }
        };
        Ok(rows.into_iter().filter_map(read).collect())
    }

    /// Returns the job ids of the rows of a statement, which must select the `id`.
    pub fn jobs(&mut self, statement: usize) -> Result<Vec<JobId>, StoreError> {
        Ok(self.rows::<Value>(statement)?.iter().filter_map(job_of).collect())
    }

    /// Returns the readable rows of a statement.
    pub fn readable<T: SurrealValue>(&mut self, statement: usize) -> Result<Vec<T>, StoreError> {
        let rows: Vec<Value> = self.rows(statement)?;
        Ok(rows.into_iter().filter_map(|row| T::from_value(row).ok()).collect())
    }

    fn unreadable(&self, error: surrealdb::Error) -> StoreError {
        StoreError::Unreadable { record: self.place.clone(), field: "answer", source: error.into() }
    }
}

/// Returns the job of a record by its id, which is immutable. A record with another type of id is not ours.
fn job_of(row: &Value) -> Option<JobId> {
    let Value::Object(fields) = row else { return None };
    let Some(Value::RecordId(id)) = fields.get("id") else { return None };
    match &id.key {
        RecordIdKey::Uuid(uuid) => Some(JobId::from_uuid((*uuid).into())),
        _ => None,
    }
}

impl Wire {
    pub fn to(end: FarEnd, place: String) -> Self {
        Self { end, place }
    }

    pub fn place(&self) -> String {
        self.place.clone()
    }

    /// Runs a query once, without error classification.
    pub async fn ask(&self, query: &str, vars: Vars) -> surrealdb::Result<IndexedResults> {
        let vars = Value::Object(vars.0);
        match &self.end {
            FarEnd::Server(db) => db.query(query).bind(vars).await,
            #[cfg(feature = "surreal-embedded")]
            FarEnd::Embedded(engine) => engine.db().query(query).bind(vars).await,
        }
    }

    /// Runs an idempotent query: a read, or a write that may be repeated. Retries after conflicts and lost
    /// connections until the timeout.
    pub async fn read(&self, query: &str, vars: Vars) -> Result<Answer, StoreError> {
        self.insist(query, vars).await.map_err(|gave_up| gave_up.error)
    }

    /// Runs an idempotent write like [`Self::read`]. The error reports whether an attempt remained without a reply.
    pub async fn insist(&self, query: &str, vars: Vars) -> Result<Answer, GaveUp> {
        let mut lost: Option<Cause> = None;
        let deadline = Instant::now() + PATIENCE;
        let mut pause = Pause::default();
        for tries in 1.. {
            let over = tries >= TRIES || Instant::now() >= deadline;
            match self.once(query, vars.clone()).await {
                Ok(answer) => return Ok(answer),
                Err(Fault::Failed(error)) => return Err(GaveUp { error, lost }),
                Err(Fault::Conflict) if over => {
                    return Err(GaveUp { error: self.too_many_conflicts(), lost });
                }
                Err(Fault::Lost(source)) if over => {
                    let lost = Some(lost.unwrap_or_else(|| source.to_string().into()));
                    return Err(GaveUp {
                        error: StoreError::Unreachable { place: self.place(), source },
                        lost,
                    });
                }
                Err(Fault::Conflict) => pause.wait().await,
                Err(Fault::Lost(source)) => {
                    lost = Some(source);
                    pause.wait().await;
                }
            }
        }
        Err(GaveUp { error: StoreError::Closed, lost })
    }

    /// Runs a query once. Checks the errors of all statements: the first may only be that it was not executed.
    pub async fn once(&self, query: &str, vars: Vars) -> Result<Answer, Fault> {
        let mut results = match timeout(PATIENCE, self.ask(query, vars)).await {
            Ok(Ok(results)) => results,
            Ok(Err(error)) => return Err(self.fault(error)),
            Err(late) => return Err(Fault::Lost(late.into())),
        };
        let errors = results.take_errors();
        if errors.is_empty() {
            return Ok(Answer { results, place: self.place() });
        }
        let mut faults: Vec<surrealdb::Error> = errors.into_values().collect();
        if faults.iter().any(is_conflict) {
            return Err(Fault::Conflict);
        }
        // Prefer an error that names the cause.
        faults.sort_by_key(|error| error.query_details() == Some(&QueryError::NotExecuted));
        Err(self.fault(faults.swap_remove(0)))
    }

    fn fault(&self, error: surrealdb::Error) -> Fault {
        if is_conflict(&error) {
            Fault::Conflict
        } else if error.is_connection() || is_of_storage(&error) {
            Fault::Lost(error.into())
        } else if error.is_not_allowed() {
            Fault::Failed(StoreError::NotAllowed { place: self.place(), source: error.into() })
        } else {
            Fault::Failed(StoreError::Engine { place: self.place(), source: error.into() })
        }
    }

    pub fn too_many_conflicts(&self) -> StoreError {
        StoreError::Conflicts { place: self.place(), tries: TRIES }
    }
}

/// Returns whether an error is a conflict, by its type or, if a server only forwards the message, by its text.
fn is_conflict(error: &surrealdb::Error) -> bool {
    error.query_details() == Some(&QueryError::TransactionConflict)
        || error.message().contains("Transaction conflict")
}

/// Returns a random index below a limit; 0 without randomness.
pub fn at_random(of: usize) -> usize {
    let mut bytes = [0; 4];
    let _ = getrandom::fill(&mut bytes);
    u32::from_le_bytes(bytes) as usize % of.max(1)
}

/// Returns whether the storage of the server failed, for example with ENOSPC. Such a write was found in the log at
/// the next start, so its outcome is unknown.
fn is_of_storage(error: &surrealdb::Error) -> bool {
    ["There was a problem with a transaction", "There was a problem with the datastore"]
        .iter()
        .any(|words| error.message().contains(words))
}

/// Exponential backoff with jitter, so that concurrent writers spread out.
#[derive(Debug)]
pub struct Pause(Duration);

impl Default for Pause {
    fn default() -> Self {
        Self(FIRST_PAUSE)
    }
}

impl Pause {
    pub async fn wait(&mut self) {
        let mut byte = [128];
        // Without randomness the jitter has its mean value.
        let _ = getrandom::fill(&mut byte);
        sleep(self.0.mul_f64(0.5 + f64::from(byte[0]) / 256.0)).await;
        self.0 = (self.0 * 2).min(LONGEST_PAUSE);
    }
}
