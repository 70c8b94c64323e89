//! Control: one request to a line, answered by one line or more. All but the last say `more`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use calls::{Answer, Stream};
use model::StateName;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Complaint;
use super::jobs::{About, JobLine, Placed, Search, Sums, Wanted};

/// What can be asked of the daemon. A job is named by its id, or by as much of its beginning as is enough.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    /// How it is.
    Status,
    /// Its settings at startup.
    Settings,
    /// To end.
    Stop {
        /// What becomes of the jobs that run.
        how: StopHow,
    },
    /// To place a call.
    Place(Box<Wanted>),
    /// To tell everything that happens in a job, from its beginning to its end; the last line is its answer.
    Follow {
        /// Which job.
        job: String,
    },
    /// The jobs there are.
    Jobs(Search),
    /// What a job has come to.
    Job {
        /// Which job.
        job: String,
    },
    /// What a job's agent printed so far, in pieces.
    Output {
        /// Which job.
        job: String,
        /// Which of its streams.
        stream: Stream,
        /// Whether to go on until the job has ended.
        follow: bool,
    },
    /// To answer when jobs have ended.
    Wait {
        /// Which jobs.
        jobs: Vec<String>,
        /// Whether one is enough.
        any: bool,
        /// How long at most, in milliseconds; none for however long it takes.
        timeout_ms: Option<u64>,
    },
    /// To end a job.
    Cancel {
        /// Which job.
        job: String,
    },
    /// To place an ended job again.
    Retry {
        /// Which job.
        job: String,
    },
    /// The web page: a link that lets one browser in, once.
    Open,
    /// What the jobs came to, added up.
    Stats {
        /// Only jobs placed at that moment or later, in milliseconds since 1970.
        since_ms: Option<u64>,
    },
}

impl Request {
    /// Returns the job that the request names, if it names one.
    pub fn job(&self) -> Option<&str> {
        match self {
            Self::Follow { job }
            | Self::Job { job }
            | Self::Output { job, .. }
            | Self::Cancel { job }
            | Self::Retry { job } => Some(job),
            Self::Wait { jobs, .. } => jobs.first().filter(|_| jobs.len() == 1).map(String::as_str),
            _ => None,
        }
    }
}

/// What becomes of the jobs that run when the daemon is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopHow {
    /// They are waited for, and no other is begun.
    Drain,
    /// They go on without it; the next daemon takes them up.
    Now,
    /// They are cancelled first.
    Cancel,
}

/// One line of an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// What is said.
    #[serde(flatten)]
    pub reply: Reply,
    /// Whether another line follows for the same request.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
}

/// What the daemon answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// How it is.
    Status(Status),
    /// Its settings.
    Settings {
        /// Every setting by its name, as TOML; none for one that an option of the command line has set.
        settings: BTreeMap<String, Option<String>>,
    },
    /// It will end, and waits for so many jobs.
    Draining {
        /// How many run.
        running: u64,
    },
    /// It ends now.
    Ending,
    /// What was asked cannot be done.
    Error(Complaint),
    /// A call was placed.
    Placed(Placed),
    /// A run of a job has begun.
    Run {
        /// Counted from 1.
        number: u32,
    },
    /// A job's agent said something: a `model::AgentEvent`.
    Event {
        /// What it said.
        said: Value,
    },
    /// A job's agent wrote to stderr.
    Stderr {
        /// The words.
        text: String,
    },
    /// A piece of what an agent printed.
    Bytes {
        /// Every character is one byte, so that nothing is lost of what is no text.
        latin1: String,
    },
    /// All was told.
    Done,
    /// What a job has come to.
    Answer(Box<Answer>),
    /// What several have come to, in the order in which they were asked for.
    Answers {
        /// Each.
        answers: Vec<Answer>,
    },
    /// The jobs there are.
    Jobs {
        /// The newest first.
        jobs: Vec<JobLine>,
        /// How many fit in all.
        total: u64,
    },
    /// A job is to end, or has.
    Cancelled {
        /// Which.
        job_id: String,
        /// Where it stood.
        previous: StateName,
        /// Where it stands. One that still runs is being stopped.
        now: StateName,
    },
    /// Where the web page is.
    Link {
        /// Opens the page once, and soon: whoever has it is let in.
        url: String,
    },
    /// The sums.
    Stats(Sums),
    /// A request about jobs was refused.
    Refused {
        /// Whose fault it is.
        about: About,
        /// What is wrong, and what to do.
        why: Complaint,
    },
}

/// How the daemon is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Its version.
    pub version: String,
    /// The protocol it speaks.
    pub protocol: u32,
    /// Its process.
    pub pid: u32,
    /// The name under which it owns jobs.
    pub owner: String,
    /// For how long it has been there.
    pub uptime_ms: u64,
    /// Its state folder.
    pub state: PathBuf,
    /// Its socket.
    pub socket: PathBuf,
    /// Its log.
    pub log: PathBuf,
    /// Where it serves HTTP; none when it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpStatus>,
    /// How many front-ends are connected, the one that asks included.
    pub connections: u64,
    /// How many jobs run.
    pub running: u64,
    /// How many wait.
    pub queued: u64,
    /// Whether it takes on work.
    pub phase: Phase,
    /// Why it accepts no calls; none when it does, or is too old to say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Complaint>,
}

/// Where a daemon serves HTTP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpStatus {
    /// The address of the MCP endpoint.
    pub url: String,
    /// The file of the token that a request needs.
    pub token_file: PathBuf,
}

impl fmt::Display for HttpStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (token in {})", self.url, self.token_file.display())
    }
}

/// Where a daemon is between its first and its last moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It takes on work.
    Open,
    /// It waits for what runs, and ends then.
    Draining,
    /// It ends.
    Ending,
}
