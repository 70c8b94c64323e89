//! Access to the database file while no daemon has it open: detects losses and restores lost jobs.
//!
//! A restore is one transaction: if it is killed, the file is unchanged.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use model::{Job, JobId, Owner, StateName, Timestamp, Usage};
use rusqlite::{Connection, ErrorCode, OptionalExtension, TransactionBehavior, params};
use uuid::Uuid;

use crate::error::StoreError;
use crate::loss::{Loss, StoreLoss};
use crate::options::StoreOptions;
use crate::row::{ExchangeRow, JobRow};
use crate::setting::StoreSetting;
use crate::sqlite::jobs::{self, JobUpdate, to_i64};
use crate::sqlite::location::StoreLocation;
use crate::sqlite::{QueryError, file, reads, rescue, schema};

/// The offset of the version fields in the database header, and their values in a database with a write-ahead log.
const HEADER_VERSIONS: (u64, [u8; 2]) = (18, [2, 2]);

/// The file of the embedded store while no daemon has it open.
#[derive(Debug, Clone)]
pub struct DatabaseFile {
    path: PathBuf,
}

/// A job as stored in its directory.
#[derive(Debug, Clone, PartialEq)]
pub struct RestoredJob {
    /// The job.
    pub job: Job,
    /// Is true if `continue_latest` may resume its session.
    pub has_answer: bool,
}

/// A job that could not be restored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RejectedJob {
    /// The job.
    pub job: JobId,
    /// Its state according to its directory.
    pub state: StateName,
    /// The reason.
    pub reason: String,
}

impl DatabaseFile {
    /// Returns the file that the options name, or `None` if the store is not a single file.
    pub fn from_options(options: &StoreOptions) -> Option<Self> {
        match &options.setting {
            StoreSetting::Sqlite { path } => {
                Some(Self { path: path.clone().unwrap_or_else(|| options.default_file.clone()) })
            }
            _ => None,
        }
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the loss of the file since `owner`, its last owner, opened it.
    ///
    /// The heartbeat of that owner must be in the file. So must the write-ahead log, unless the owner closed the
    /// file, which checkpoints and removes the log. Another program that opens and closes the file also removes the
    /// log, without a loss: after [`Loss::LogLost`] the caller checks for missing jobs.
    pub fn find_loss(&self, owner: &Owner) -> Result<Option<StoreLoss>, StoreError> {
        let lost = |loss| Ok(Some(StoreLoss { location: self.location().name(), loss }));
        match fs::metadata(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return lost(Loss::Removed),
            Err(error) => return Err(self.cannot_open(error)),
            Ok(found) if found.len() < file::HEADER_SIZE => return lost(Loss::Truncated),
            Ok(_) => {}
        }
        let uses_wal = self.uses_wal().map_err(|error| self.cannot_open(error))?;
        let has_wal = file::has_wal(&self.path);
        let lease = self.read(|connection| {
            if schema::has_tables(connection)? { rescue::lease_expiry(connection, owner) } else { Ok(None) }
        })?;
        match lease {
            None => lost(Loss::OutOfDate),
            Some(lease) if lease != rescue::RELEASED && uses_wal && !has_wal => lost(Loss::LogLost),
            Some(_) => Ok(None),
        }
    }

    /// Returns the revision of every job in the file; empty if there is no file.
    pub fn revisions(&self) -> Result<HashMap<JobId, u64>, StoreError> {
        if !self.has_header() {
            return Ok(HashMap::new());
        }
        self.read(|connection| {
            if !schema::has_tables(connection)? {
                return Ok(HashMap::new());
            }
            let mut statement = connection.prepare("SELECT id, revision FROM agent_jobs")?;
            let rows =
                statement.query_map([], |row| Ok((row.get::<_, [u8; 16]>(0)?, row.get::<_, i64>(1)?)))?;
            let revision = |(id, revision): ([u8; 16], i64)| {
                (JobId::from_uuid(Uuid::from_bytes(id)), u64::try_from(revision).unwrap_or(0))
            };
            Ok(rows.map(|row| row.map(revision)).collect::<Result<_, _>>()?)
        })
    }

    /// Checks the integrity of the whole file. A missing file is an error.
    pub fn check(&self) -> Result<(), StoreError> {
        if let Some(path) = file::find_irregular_file(&self.path) {
            return Err(StoreError::NotAFile { path });
        }
        if !self.has_header() {
            let source = "there is no database in it".into();
            return Err(StoreError::Damaged { location: self.location().name(), source });
        }
        file::reject_foreign(&self.path, &self.location())?;
        self.read(reads::check)?;
        let problem = self.read(|connection| Ok(schema::find_problem(connection)?))?;
        match problem {
            Some(problem) => {
                Err(StoreError::Damaged { location: self.location().name(), source: problem.into() })
            }
            None => Ok(()),
        }
    }

    /// Renames the file and its log to an unused name and returns it, or `None` if there is no file.
    pub fn set_aside(&self) -> io::Result<Option<PathBuf>> {
        let suffixes = ["-wal", "-shm", ""];
        let exists = |suffix: &&str| fs::symlink_metadata(file::sibling_path(&self.path, suffix)).is_ok();
        if !suffixes.iter().any(exists) {
            return Ok(None);
        }
        let mut numbers = 1_u32..;
        let aside = loop {
            let Some(number) = numbers.next() else { return Err(io::ErrorKind::AlreadyExists.into()) };
            let aside = file::sibling_path(&self.path, &format!(".lost-{number}"));
            if !suffixes.iter().any(|suffix| fs::symlink_metadata(file::sibling_path(&aside, suffix)).is_ok())
            {
                break aside;
            }
        };
        // The log first: SQLite would apply it to a new file of the same name.
        for suffix in suffixes.iter().copied().filter(|suffix| exists(suffix)) {
            fs::rename(file::sibling_path(&self.path, suffix), file::sibling_path(&aside, suffix))?;
        }
        Ok(Some(aside))
    }

    /// Adds missing jobs and replaces jobs with an older revision. Creates the file if it is missing. Skips and
    /// returns jobs that conflict with others, such as the one in a copied directory.
    pub fn restore(&self, jobs: impl Iterator<Item = RestoredJob>) -> Result<Vec<RejectedJob>, StoreError> {
        let location = self.location();
        let mut connection = file::open(&self.path)?;
        let failed = |error| location.query_error(error);
        connection.pragma_update(None, "synchronous", "full").map_err(failed)?;
        let mut transaction =
            connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        let mut rejected = Vec::new();
        for job in jobs {
            // Rolled back on drop.
            let savepoint = transaction.savepoint().map_err(failed)?;
            match restore_job(&savepoint, &job) {
                Ok(()) => savepoint.commit().map_err(failed)?,
                Err(QueryError::Sqlite(error))
                    if error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation) =>
                {
                    let (job, state) = (job.job.id, job.job.progress.state.name());
                    let reason = format!("it contradicts another job: {error}");
                    rejected.push(RejectedJob { job, state, reason });
                }
                Err(QueryError::Sqlite(error)) => return Err(location.query_error(error)),
                Err(QueryError::Store(error)) => return Err(error),
            }
        }
        transaction.commit().map_err(|error| location.commit_error(error))?;
        connection.close().map_err(|(_, error)| location.query_error(error))?;
        Ok(rejected)
    }

    fn read<T>(&self, read: impl FnOnce(&Connection) -> Result<T, QueryError>) -> Result<T, StoreError> {
        let location = self.location();
        let connection = file::open_read_only(&self.path).map_err(|error| location.query_error(error))?;
        read(&connection).map_err(|error| match error {
            QueryError::Sqlite(error) => location.query_error(error),
            QueryError::Store(error) => error,
        })
    }

    /// Returns whether the file exists and is long enough for a database.
    fn has_header(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|found| found.is_file() && found.len() >= file::HEADER_SIZE)
    }

    fn uses_wal(&self) -> io::Result<bool> {
        let (offset, wal_versions) = HEADER_VERSIONS;
        let mut versions = [0; 2];
        File::open(&self.path)?.read_exact_at(&mut versions, offset)?;
        Ok(versions == wal_versions)
    }

    fn location(&self) -> StoreLocation {
        StoreLocation::file(&self.path)
    }

    fn cannot_open(&self, error: io::Error) -> StoreError {
        StoreError::CannotOpen { location: self.location().name(), source: error.into() }
    }
}

/// Writes a job, unless the file has the same or a newer revision.
fn restore_job(connection: &Connection, restored: &RestoredJob) -> Result<(), QueryError> {
    let RestoredJob { job, has_answer } = restored;
    let id = job.id.as_uuid();
    let mut row = JobRow::new(job)?;
    let known: Option<i64> = connection
        .prepare_cached("SELECT revision FROM agent_jobs WHERE id = ?1")?
        .query_row([id.as_bytes()], |row| row.get(0))
        .optional()?;
    if known.is_some_and(|known| known >= to_i64(row.revision)) {
        return Ok(());
    }
    for query in ["DELETE FROM agent_exchanges WHERE job = ?1", "DELETE FROM agent_jobs WHERE id = ?1"] {
        connection.prepare_cached(query)?.execute([id.as_bytes()])?;
    }
    if reads::row_by_key(connection, &row.summary.home, row.idempotency_key.as_deref())?.is_some() {
        // Another call used the key after the loss.
        row.idempotency_key = None;
    }
    jobs::insert(connection, &row)?;
    jobs::update_job(connection, job.id, &JobUpdate::from_row(&row))?;
    let tokens = |suffix: fn(&Usage) -> u64| row.summary.usage.as_ref().map(suffix).map(to_i64);
    connection
        .prepare_cached(
            "UPDATE agent_jobs SET session = ?2, exchange = ?3, input_tokens = ?4, output_tokens = ?5, cached_tokens = ?6,
                reasoning_tokens = ?7, cost_usd = ?8, failure = ?9, outcome = ?10, metadata = ?11
            WHERE id = ?1",
        )?
        .execute(params![
            id.as_bytes(),
            row.summary.session,
            row.exchange.as_ref().map(Uuid::as_bytes),
            tokens(|usage| usage.input),
            tokens(|usage| usage.output),
            tokens(|usage| usage.cached),
            tokens(|usage| usage.reasoning),
            row.summary.cost_usd,
            row.summary.failure,
            row.outcome,
            row.metadata,
        ])?;
    let ended_at = job.completed_at.unwrap_or(job.created_at);
    if let (Some(exchange), Some(outcome)) = (job.exchange, &job.outcome) {
        let exchange_row = ExchangeRow {
            id: exchange,
            prompt: job.order.call.prompt.clone(),
            response: outcome.text.clone(),
        };
        jobs::insert_exchange(connection, job.id, &exchange_row, ended_at)?;
    }
    if let Some(session) =
        job.session.as_ref().filter(|_| *has_answer && is_last_of_task(connection, job, ended_at))
    {
        jobs::upsert_last_session(connection, job.id, session, ended_at)?;
    }
    Ok(())
}

/// Returns whether no later job of the task has a session: directories are read in the order of their ids, not of
/// their end times.
fn is_last_of_task(connection: &Connection, job: &Job, ended_at: Timestamp) -> bool {
    let order = &job.order;
    let last = reads::last_session(connection, order.call.agent, &order.task, &order.home);
    last.is_ok_and(|last| last.is_none_or(|last| last.at <= ended_at))
}
