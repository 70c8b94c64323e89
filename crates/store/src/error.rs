//! Why the store did not do what it was asked, and whether that is certain.

use std::error::Error;
use std::path::PathBuf;

use model::{JobId, TransitionError};

use crate::loss::StoreLoss;
use crate::setting::SettingError;

/// What an engine gave as the reason.
pub type Cause = Box<dyn Error + Send + Sync>;

/// Whether a write that failed was done after all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Certainty {
    /// Nothing was written.
    NotDone,
    /// Nobody can tell before the store answers again: look, or ask once more with the same idempotency key.
    Unknown,
}

/// Why the store did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The job cannot take that step.
    #[error("job {job}: {refusal}")]
    Refused {
        /// Which job.
        job: JobId,
        /// Why.
        refusal: TransitionError,
    },
    /// There is no such job.
    #[error("there is no job {job}")]
    NoSuchJob {
        /// The id that was asked for.
        job: JobId,
    },
    /// The setting names no store.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The store cannot be opened.
    #[error("cannot open the store `{place}`")]
    CannotOpen {
        /// Which one.
        place: String,
        /// Why.
        source: Cause,
    },
    /// The store was written by a newer program.
    #[error("the store `{place}` has version {found}, and this program knows versions up to {known}")]
    NewerVersion {
        /// Which one.
        place: String,
        /// Its version.
        found: i64,
        /// The newest that this program knows.
        known: i64,
    },
    /// The file is a database, but not one of ours; or the folder has something else in it.
    #[error("`{place}` belongs to another program")]
    Foreign {
        /// Which one.
        place: String,
    },
    /// What the store holds cannot be trusted any more.
    #[error("the store `{place}` is damaged")]
    Damaged {
        /// Which one.
        place: String,
        /// What was found.
        source: Cause,
    },
    /// The store is no longer the one that was opened.
    #[error(transparent)]
    Lost(#[from] StoreLoss),
    /// Somebody else has held the store for too long.
    #[error("the store `{place}` is locked by another process")]
    Locked {
        /// Which one.
        place: String,
        /// The engine's own words.
        source: Cause,
    },
    /// There is no room.
    #[error("there is no room left for the store `{place}`")]
    Full {
        /// Which one.
        place: String,
        /// The engine's own words.
        source: Cause,
    },
    /// The server cannot be reached, and was not asked.
    #[error("the store `{place}` cannot be reached")]
    Unreachable {
        /// Which one.
        place: String,
        /// The engine's own words.
        source: Cause,
    },
    /// The server's certificate is vouched for by nobody whom we believe, or is not for this server.
    #[error("the certificate of the store `{place}` is not trusted")]
    Untrusted {
        /// Which one.
        place: String,
        /// What is wrong with it.
        source: Cause,
    },
    /// The file that says whom to believe says nothing.
    #[error("cannot read the authorities in `{}`", path.display())]
    NoAuthority {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: Cause,
    },
    /// The server refused the user or the password.
    #[error("the store `{place}` refuses the credentials")]
    NotAllowed {
        /// Which one.
        place: String,
        /// The engine's own words.
        source: Cause,
    },
    /// The write was given out of hand, and no answer came back.
    #[error("the store `{place}` gave no answer: whether it wrote is not known")]
    Unconfirmed {
        /// Which one.
        place: String,
        /// The job that may have been written.
        job: Option<JobId>,
        /// The engine's own words.
        source: Cause,
    },
    /// Others changed the same record all the time.
    #[error("the store `{place}` was too busy: gave up after {tries} conflicts with other writers")]
    Conflicts {
        /// Which one.
        place: String,
        /// How often it was tried.
        tries: u32,
    },
    /// The engine failed in another way, and wrote nothing.
    #[error("the store `{place}` failed")]
    Engine {
        /// Which one.
        place: String,
        /// The engine's own words.
        source: Cause,
    },
    /// A record is there and makes no sense.
    #[error("the {field} of record {record} cannot be read")]
    Unreadable {
        /// Which record.
        record: String,
        /// Which part of it.
        field: &'static str,
        /// Why.
        source: Cause,
    },
    /// A value cannot be written down.
    #[error("the {field} cannot be written down")]
    Unstorable {
        /// Which part.
        field: &'static str,
        /// Why.
        source: Cause,
    },
    /// A name holds a secret. Unlike a text, a name cannot be changed without meaning something else.
    #[error("the {field} holds what looks like a secret, and is not stored")]
    SecretInName {
        /// Which part.
        field: &'static str,
    },
    /// An MCP server is to be started with a secret, which would be stored with the call. Without it the server would not work.
    #[error("the {what} of the MCP server `{server}` holds what looks like a secret, and is not stored")]
    SecretForServer {
        /// Which server.
        server: String,
        /// Which variable or argument of it.
        what: String,
    },
    /// A name is empty, and could not be told from none.
    #[error("the {field} is empty")]
    Empty {
        /// Which part.
        field: &'static str,
    },
    /// The machine gives no random numbers.
    #[error("no random bytes for an id")]
    NoRandomness(#[source] Cause),
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
    /// A folder could not be removed.
    #[error("cannot remove `{}`", path.display())]
    CannotRemove {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// Why a sweep ended early. What it had removed by then is gone for good, and its folders can go, too.
#[derive(Debug, thiserror::Error)]
#[error("the sweep ended early, after {} jobs", removed.len())]
pub struct SweepError {
    /// The jobs that were removed.
    pub removed: Vec<JobId>,
    /// The jobs that were being removed when no answer came: gone or not, as [`StoreError::Unconfirmed`] says. One that is
    /// gone is not found by a later sweep, so look for it before its folder goes.
    pub perhaps: Vec<JobId>,
    /// What ended it.
    pub source: StoreError,
}

impl SweepError {
    /// The end of a sweep at these jobs, after those.
    pub(crate) fn after(removed: Vec<JobId>, at: Vec<JobId>, source: StoreError) -> Self {
        let perhaps = if source.certainty() == Certainty::Unknown { at } else { Vec::new() };
        Self { removed, perhaps, source }
    }
}

impl StoreError {
    /// Whether what was asked for was done after all.
    pub fn certainty(&self) -> Certainty {
        match self {
            Self::Unconfirmed { .. } => Certainty::Unknown,
            _ => Certainty::NotDone,
        }
    }

    /// Why a job did not take the step, when that is all.
    pub fn refusal(&self) -> Option<&TransitionError> {
        match self {
            Self::Refused { refusal, .. } => Some(refusal),
            _ => None,
        }
    }

    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Refused { refusal, .. } => refusal_hint(refusal),
            Self::NoSuchJob { .. } => "check the id; old jobs are removed after a while",
            Self::Setting(error) => error.hint(),
            Self::CannotOpen { .. } => "check that the folder exists, belongs to you and can be written",
            Self::NewerVersion { .. } => {
                "install the newer Switchboard again, or give this one a store of its own"
            }
            Self::Foreign { .. } => "name one that does not exist yet",
            Self::Damaged { .. } => {
                "rebuild it from the job directories with `switchboard recover`, or put a backup in its place"
            }
            Self::Lost(_) => {
                "stop the daemon with `switchboard stop --now`, then rebuild the database with `switchboard recover`, or put the file back"
            }
            Self::Locked { .. } => "end the other program that uses this store; one daemon owns it",
            Self::Full { .. } => "make room on that disk, then try again; nothing was half written",
            Self::Unreachable { .. } => {
                "check that the server runs and that host and port are right; nothing was written"
            }
            Self::Untrusted { .. } => {
                "name the certificate of the authority that signed it as `store_ca_file`; it has to be for this host, and still valid"
            }
            Self::NoAuthority { .. } => {
                "name a PEM file with the certificate of the authority that signed the server's"
            }
            Self::NotAllowed { .. } => "check the user and the password of the store",
            Self::Unconfirmed { .. } => {
                "look whether the job is there, or ask again with the same idempotency key"
            }
            Self::Conflicts { .. } => "try again; nothing was written",
            Self::Engine { .. } => "the cause is the engine's own message; nothing was written",
            Self::Unreadable { .. } => "the record was changed by hand or by another program; remove it",
            Self::Unstorable { .. } => "use paths and texts that are valid Unicode",
            Self::SecretInName { .. } => "keep secrets out of names and paths; texts are redacted instead",
            Self::SecretForServer { .. } => {
                "let the server read it from a file, or set the server up in the agent's own configuration, which is not stored"
            }
            Self::Empty { .. } => "give it a name, or leave it out",
            Self::NoRandomness(_) => "check that the system's random source can be read",
            Self::Closed => "open it again",
            Self::CannotRemove { .. } => "check that the folder belongs to you, then remove it by hand",
        }
    }
}

fn refusal_hint(refusal: &TransitionError) -> &'static str {
    match refusal {
        TransitionError::Ended(_) => "see its result; place a new call to do it again",
        TransitionError::Stale { .. } => "stop this run: another owner has the job",
        TransitionError::NoSuchTransition { .. } => "look at the job's state first",
        TransitionError::NoAttemptLeft { .. } => "finish it as failed, with what is there",
    }
}
