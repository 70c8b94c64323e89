//! The errors of the store, and whether a failed write may have been applied.

use std::error::Error;
use std::path::PathBuf;

use model::{JobId, TransitionError};

use crate::loss::StoreLoss;
use crate::setting::SettingError;

/// The error of an engine.
pub type Cause = Box<dyn Error + Send + Sync>;

/// States whether a failed write may have been applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Certainty {
    /// Nothing was written.
    NotDone,
    /// Unknown until the store replies again: look the job up, or retry with the same idempotency key.
    Unknown,
}

/// An error of the store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The job's state does not allow the step.
    #[error("job {job}: {refusal}")]
    Refused {
        /// The job.
        job: JobId,
        /// The reason.
        refusal: TransitionError,
    },
    /// The job does not exist.
    #[error("there is no job {job}")]
    NoSuchJob {
        /// The requested id.
        job: JobId,
    },
    /// The setting names no store.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The store cannot be opened.
    #[error("cannot open the store `{location}`")]
    CannotOpen {
        /// The location of the store.
        location: String,
        /// The cause.
        source: Cause,
    },
    /// Another kind of file is in place of the database or its log.
    #[error("`{}` is not a regular file", path.display())]
    NotAFile {
        /// The path of the file.
        path: PathBuf,
    },
    /// The store was written by a newer version of this program.
    #[error("the store `{location}` has version {found}, but this program supports versions up to {known}")]
    NewerVersion {
        /// The location of the store.
        location: String,
        /// Its version.
        found: i64,
        /// The newest version that this program supports.
        known: i64,
    },
    /// The file is a database of another program, or the directory contains other files.
    #[error("`{location}` belongs to another program")]
    Foreign {
        /// The location of the store.
        location: String,
    },
    /// The database is corrupt.
    #[error("the store `{location}` is damaged")]
    Damaged {
        /// The location of the store.
        location: String,
        /// The cause.
        source: Cause,
    },
    /// The store is no longer the opened one.
    #[error(transparent)]
    Lost(#[from] StoreLoss),
    /// Another process held the lock for too long.
    #[error("the store `{location}` is locked by another process")]
    Locked {
        /// The location of the store.
        location: String,
        /// The error of the engine.
        source: Cause,
    },
    /// No space is left on the device.
    #[error("no space left for the store `{location}`")]
    Full {
        /// The location of the store.
        location: String,
        /// The error of the engine.
        source: Cause,
    },
    /// The server is unreachable and received no request.
    #[error("cannot reach the store `{location}`")]
    Unreachable {
        /// The location of the store.
        location: String,
        /// The error of the engine.
        source: Cause,
    },
    /// The server's certificate has no trusted issuer, or is not for this host.
    #[error("the certificate of the store `{location}` is not trusted")]
    Untrusted {
        /// The location of the store.
        location: String,
        /// The error of the TLS library.
        source: Cause,
    },
    /// The CA file has no usable certificates.
    #[error("cannot read CA certificates from `{}`", path.display())]
    NoCaCertificates {
        /// The path of the file.
        path: PathBuf,
        /// The cause.
        source: Cause,
    },
    /// The server rejected the user or the password.
    #[error("the store `{location}` rejected the credentials")]
    Unauthorized {
        /// The location of the store.
        location: String,
        /// The error of the engine.
        source: Cause,
    },
    /// The write was sent, and no reply arrived.
    #[error("the store `{location}` did not reply; the write may or may not have been applied")]
    Unconfirmed {
        /// The location of the store.
        location: String,
        /// The job that may have been written.
        job: Option<JobId>,
        /// The error of the engine.
        source: Cause,
    },
    /// Every attempt conflicted with another writer.
    #[error("the store `{location}` is too busy: gave up after {attempts} conflicts with other writers")]
    Conflicts {
        /// The location of the store.
        location: String,
        /// The number of attempts.
        attempts: u32,
    },
    /// The engine failed in another way and wrote nothing.
    #[error("the store `{location}` failed")]
    Engine {
        /// The location of the store.
        location: String,
        /// The error of the engine.
        source: Cause,
    },
    /// A record has an invalid field.
    #[error("the {field} of record {record} cannot be read")]
    Unreadable {
        /// The record.
        record: String,
        /// The field.
        field: &'static str,
        /// The cause.
        source: Cause,
    },
    /// A value cannot be serialized.
    #[error("the {field} cannot be stored")]
    Unstorable {
        /// The field.
        field: &'static str,
        /// The cause.
        source: Cause,
    },
    /// A name contains a secret. Unlike a text, a name cannot be redacted without changing its meaning.
    #[error("the {field} appears to contain a secret and is not stored")]
    SecretInName {
        /// The field.
        field: &'static str,
    },
    /// An MCP server gets a secret as a variable or argument, which would be stored with the call. Without it the
    /// server would not work.
    #[error("the {item} of the MCP server `{server}` appears to contain a secret and is not stored")]
    SecretForServer {
        /// The server.
        server: String,
        /// The variable or argument.
        item: String,
    },
    /// A name is empty, and could not be distinguished from a missing one.
    #[error("the {field} is empty")]
    Empty {
        /// The field.
        field: &'static str,
    },
    /// The system provides no random numbers.
    #[error("cannot get random bytes for an id")]
    NoRandomness(#[source] Cause),
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
    /// A directory could not be removed.
    #[error("cannot remove `{}`", path.display())]
    CannotRemove {
        /// The path of the directory.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
}

/// Reports a retention sweep that stopped early. The jobs that it removed are gone, so their directories can be
/// removed, too.
#[derive(Debug, thiserror::Error)]
#[error("retention stopped early after removing {} jobs", removed.len())]
pub struct SweepError {
    /// The removed jobs.
    pub removed: Vec<JobId>,
    /// The jobs whose removal was sent without a reply ([`StoreError::Unconfirmed`]). Later sweeps do not find a
    /// removed job, so look each one up before its directory is removed.
    pub unconfirmed: Vec<JobId>,
    /// The error that stopped the sweep.
    pub source: StoreError,
}

impl SweepError {
    /// Returns the error of a sweep that failed at the jobs `current`.
    pub(crate) fn new(removed: Vec<JobId>, current: Vec<JobId>, source: StoreError) -> Self {
        let unconfirmed = if source.certainty() == Certainty::Unknown { current } else { Vec::new() };
        Self { removed, unconfirmed, source }
    }
}

impl StoreError {
    /// Returns whether a failed write may have been applied.
    pub fn certainty(&self) -> Certainty {
        match self {
            Self::Unconfirmed { .. } => Certainty::Unknown,
            _ => Certainty::NotDone,
        }
    }

    /// Returns the reason if a job's state did not allow the step.
    pub fn refusal(&self) -> Option<&TransitionError> {
        match self {
            Self::Refused { refusal, .. } => Some(refusal),
            _ => None,
        }
    }

    /// Returns a remedy for the user.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Refused { refusal, .. } => refusal_hint(refusal),
            Self::NoSuchJob { .. } => "check the id; old jobs are removed after a while",
            Self::Setting(error) => error.hint(),
            Self::CannotOpen { .. } => "check that the directory exists, belongs to you and is writable",
            Self::NotAFile { .. } => {
                "run `switchboard recover`: it moves the file away and rebuilds the database from the job directories"
            }
            Self::NewerVersion { .. } => {
                "install the newer Switchboard again, or use another store with this one"
            }
            Self::Foreign { .. } => "choose a path that does not exist yet",
            Self::Damaged { .. } => {
                "rebuild it from the job directories with `switchboard recover`, or restore a backup"
            }
            Self::Lost(_) => {
                "stop the daemon with `switchboard stop --now`, then rebuild the database with `switchboard recover`, or put the file back"
            }
            Self::Locked { .. } => "stop the other program that uses this store; only one daemon can own it",
            Self::Full { .. } => "free some disk space, then retry; nothing was partially written",
            Self::Unreachable { .. } => {
                "check that the server is running and that host and port are right; nothing was written"
            }
            Self::Untrusted { .. } => {
                "set `store_ca_file` to the certificate of the CA that signed it; it must be valid and issued for this host"
            }
            Self::NoCaCertificates { .. } => {
                "name a PEM file with the certificate of the CA that signed the server's certificate"
            }
            Self::Unauthorized { .. } => "check the user and the password of the store",
            Self::Unconfirmed { .. } => {
                "check whether the job exists, or retry with the same idempotency key"
            }
            Self::Conflicts { .. } => "retry; nothing was written",
            Self::Engine { .. } => "see the cause for the engine's message; nothing was written",
            Self::Unreadable { .. } => "the record was changed by hand or by another program; remove it",
            Self::Unstorable { .. } => "use paths and texts that are valid Unicode",
            Self::SecretInName { .. } => "keep secrets out of names and paths; texts are redacted instead",
            Self::SecretForServer { .. } => {
                "have the server read it from a file, or add the server to the agent's own configuration, which is not stored"
            }
            Self::Empty { .. } => "give it a name, or leave it out",
            Self::NoRandomness(_) => "check that the system's random number source is readable",
            Self::Closed => "open it again",
            Self::CannotRemove { .. } => "check that the directory belongs to you, then remove it manually",
        }
    }
}

fn refusal_hint(refusal: &TransitionError) -> &'static str {
    match refusal {
        TransitionError::Ended(_) => "see its result; submit a new call to run it again",
        TransitionError::Stale { .. } => "stop this run: another owner has the job",
        TransitionError::NoSuchTransition { .. } => "check the job's state first",
        TransitionError::NoAttemptLeft { .. } => "finish it as failed",
    }
}
