//! The connection: every query goes through here, and comes back as an answer, a conflict, or a doubt.
//!
//! Queries are fixed texts; what a caller gives is always a parameter.

use std::time::Duration;

use model::JobId;
use surrealdb::engine::any::Any;
use surrealdb::types::{Object, QueryError, RecordIdKey, SurrealValue, Value};
use surrealdb::{IndexedResults, Surreal};
use tokio::time::{Instant, sleep, timeout};

use crate::error::{Cause, StoreError};

/// How long one query may take. A server that is away is asked again until then by the client itself.
pub const PATIENCE: Duration = Duration::from_secs(15);

/// How often a query is tried that meets other writers, or no server.
pub const TRIES: u32 = 12;

const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// What became of a query that was tried once.
#[derive(Debug)]
pub enum Fault {
    /// Another writer was faster, and nothing was written: try again.
    Conflict,
    /// The connection broke, or no answer came: what was to be written may be.
    Lost(Cause),
    /// It failed, and nothing was written.
    Failed(StoreError),
}

/// Why a query that was tried several times has no answer.
#[derive(Debug)]
pub struct GaveUp {
    /// What the last try met.
    pub error: StoreError,
    /// Why a try got no answer, if one did: what was to be written may be.
    pub lost: Option<Cause>,
}

/// A connection to a database.
#[derive(Debug)]
pub struct Wire {
    end: FarEnd,
    place: String,
}

/// Who answers.
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

/// What a query answered, statement by statement.
#[derive(Debug)]
pub struct Answer {
    results: IndexedResults,
    place: String,
}

impl Answer {
    /// The rows that a statement answered.
    pub fn rows<T: SurrealValue>(&mut self, statement: usize) -> Result<Vec<T>, StoreError> {
        let value: Value = self.results.take(statement).map_err(|error| self.unreadable(error))?;
        let rows = match value {
            Value::None | Value::Null => Vec::new(),
            Value::Array(rows) => rows.into_iter().collect(),
            one => vec![one],
        };
        rows.into_iter().map(|row| T::from_value(row).map_err(|error| self.unreadable(error))).collect()
    }

    /// The rows that a statement answered, each by itself: one that makes no sense is named by its id, and spoils no other.
    /// The statement has to ask for the `id`.
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

    /// The jobs whose records a statement answered. It has to ask for the `id`.
    pub fn jobs(&mut self, statement: usize) -> Result<Vec<JobId>, StoreError> {
        Ok(self.rows::<Value>(statement)?.iter().filter_map(job_of).collect())
    }

    /// The rows that a statement answered and that can be read.
    pub fn readable<T: SurrealValue>(&mut self, statement: usize) -> Result<Vec<T>, StoreError> {
        let rows: Vec<Value> = self.rows(statement)?;
        Ok(rows.into_iter().filter_map(|row| T::from_value(row).ok()).collect())
    }

    fn unreadable(&self, error: surrealdb::Error) -> StoreError {
        StoreError::Unreadable { record: self.place.clone(), field: "answer", source: error.into() }
    }
}

/// Whose record it is, by its id: that one nobody can change. A record with an id of another kind is not ours.
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

    /// Asks, and answers as the engine does: for what no other way is there.
    pub async fn ask(&self, query: &str, vars: Vars) -> surrealdb::Result<IndexedResults> {
        let vars = Value::Object(vars.0);
        match &self.end {
            FarEnd::Server(db) => db.query(query).bind(vars).await,
            #[cfg(feature = "surreal-embedded")]
            FarEnd::Embedded(engine) => engine.db().query(query).bind(vars).await,
        }
    }

    /// Asks what can be asked twice: reads, and writes that come to the same. Tries again after conflicts and lost
    /// connections, for as long as a caller can be expected to wait.
    pub async fn read(&self, query: &str, vars: Vars) -> Result<Answer, StoreError> {
        self.insist(query, vars).await.map_err(|gave_up| gave_up.error)
    }

    /// Like [`Self::read`], for a write that comes to the same: says whether one of the tries was lost.
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

    /// Asks once. Looks at the errors of all statements: the first may only say that it was not executed.
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
        // The one that tells most.
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

/// Told by its kind, or, where a server passes it on as plain words, by those.
fn is_conflict(error: &surrealdb::Error) -> bool {
    error.query_details() == Some(&QueryError::TransactionConflict)
        || error.message().contains("Transaction conflict")
}

/// One of so many, by chance; without randomness the first.
pub fn at_random(of: usize) -> usize {
    let mut bytes = [0; 4];
    let _ = getrandom::fill(&mut bytes);
    u32::from_le_bytes(bytes) as usize % of.max(1)
}

/// The storage below the engine failed. Be it for want of room: a write that was refused for that has been found in the log when
/// it was read again, so nobody knows whether it was done.
fn is_of_storage(error: &surrealdb::Error) -> bool {
    ["There was a problem with a transaction", "There was a problem with the datastore"]
        .iter()
        .any(|words| error.message().contains(words))
}

/// The pauses between tries: each twice as long as the one before, and of a random part, so that racers part.
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
        // Without randomness it is half of the pause.
        let _ = getrandom::fill(&mut byte);
        sleep(self.0.mul_f64(0.5 + f64::from(byte[0]) / 256.0)).await;
        self.0 = (self.0 * 2).min(LONGEST_PAUSE);
    }
}
