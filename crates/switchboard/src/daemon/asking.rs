//! Requests about jobs: what a person at a terminal asks, answered by the desk of `calls`.
//!
//! Owns the way from a request's words to the desk and back. Whoever follows or waits may go away at any moment; the job goes on.

use std::io;
use std::time::Duration;

use calls::{
    CallError, CallRequest, Followed, Found, JobFilter, JobService, JobSummary, PageRequest, Stream, Until,
};
use model::{Job, JobId, JobIdPrefix, Timestamp};
use tokio::io::AsyncBufReadExt;
use tokio::time::sleep;

use super::connection::Connection;
use super::sums;
use crate::wire::{self, About, Complaint, JobLine, Line, Placed, Reply, Request, Search, Wanted};

/// Through which tool the jobs of the command line are placed.
const TOOL: &str = "cli";
/// How much of a stream is read at once.
const PIECE: usize = 64 * 1024;
/// How often it is looked for more of a stream.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// The hint about an unknown job.
const LIST_JOBS: &str = "list jobs with `switchboard jobs`; old jobs are removed after a while";
/// Longer than anybody waits.
const FOR_EVER: Duration = Duration::from_hours(24 * 365);

/// Answers to the last line. An error is the connection's.
pub async fn answer(desk: &JobService, request: Request, connection: &mut Connection) -> io::Result<()> {
    let reply = match request {
        Request::Follow { job } => follow(desk, &job, connection).await,
        Request::Output { job, stream, follow } => output(desk, &job, stream, follow, connection).await,
        Request::Wait { jobs, any, timeout_ms } => wait(desk, &jobs, any, timeout_ms, connection).await,
        request => brief(desk, request, connection).await.map(Some),
    };
    match reply {
        Ok(Some(reply)) => connection.say(&Line { reply, more: false }).await,
        // Nobody is left to be told.
        Ok(None) => Err(io::ErrorKind::BrokenPipe.into()),
        Err(Stopped::Connection(error)) => Err(error),
        Err(Stopped::Refused(about, why)) => {
            connection.say(&Line { reply: Reply::Refused { about, why }, more: false }).await
        }
    }
}

/// Why an answer was not given.
enum Stopped {
    Connection(io::Error),
    Refused(About, Complaint),
}

impl From<io::Error> for Stopped {
    fn from(error: io::Error) -> Self {
        Self::Connection(error)
    }
}

impl From<CallError> for Stopped {
    fn from(error: CallError) -> Self {
        let about = match &error {
            CallError::NotReady(_) => About::Agent,
            CallError::Cwd { .. } | CallError::CwdIsNoFolder { .. } | CallError::CwdIsRelative { .. } => {
                About::Directory
            }
            CallError::Launch(error) if error.is_about_cwd() => About::Directory,
            error if error.is_storage_failure() => About::Storage,
            CallError::Store(_)
            | CallError::StoppedUnkept { .. }
            | CallError::Files { .. }
            | CallError::State { .. }
            | CallError::Copied { .. }
            | CallError::Closing => About::Other,
            _ => About::Input,
        };
        let hint = match &error {
            CallError::NoEarlierSession { .. } => {
                "omit `--continue` to start a session, or pass one with `--session`".to_owned()
            }
            CallError::SessionElsewhere { .. } => {
                "pass its directory with `--cwd`, or a session with `--session`".to_owned()
            }
            CallError::StoppedUnkept { job, source } => {
                format!("check it with `switchboard status {job}`; then {}", source.hint())
            }
            CallError::Closing => {
                "wait for its running jobs, or stop it with `switchboard stop --now`; running jobs continue"
                    .to_owned()
            }
            CallError::NoSuchJob { .. } => LIST_JOBS.to_owned(),
            CallError::AlreadyEnded { job, .. } => format!("see its result with `switchboard status {job}`"),
            error => error.hint(),
        };
        Self::Refused(about, Complaint { message: model::error_chain(&error), hint })
    }
}

/// Says that something was refused, and why.
pub fn refused(about: About, error: &dyn std::error::Error, hint: &str) -> Reply {
    Reply::Refused { about, why: Complaint { message: model::error_chain(error), hint: hint.to_owned() } }
}

/// What is answered by one line.
async fn brief(desk: &JobService, request: Request, connection: &Connection) -> Result<Reply, Stopped> {
    Ok(match request {
        Request::Place(wanted) => Reply::Placed(place(desk, *wanted, connection).await?),
        Request::Retry { job } => {
            let job = find(desk, &job).await?;
            if job.completed_at.is_none() {
                let message = format!("job {} has not finished", job.id);
                let hint = format!(
                    "wait for it with `switchboard wait {0}`, or cancel it with `switchboard cancel {0}`",
                    job.id
                );
                return Err(Stopped::Refused(About::Input, Complaint { message, hint }));
            }
            Reply::Placed(placed(desk.retry(job.id, connection.caller_environment()).await?))
        }
        Request::Job { job } => {
            let job = find(desk, &job).await?;
            Reply::Answer(Box::new(desk.answer(job.id).await?))
        }
        Request::Cancel { job } => {
            let job = find(desk, &job).await?.id;
            let calls::Cancellation { previous, now } = desk.cancel(job).await?;
            Reply::Cancelled { job_id: job.to_string(), previous, now }
        }
        Request::Jobs(search) => jobs(desk, search).await?,
        Request::Stats { since_ms } => {
            Reply::Stats(sums::of(desk, since_ms.map(Timestamp::from_millis)).await?)
        }
        // Those are answered elsewhere.
        request => {
            let message = format!("unexpected request: {request:?}");
            return Err(Stopped::Refused(About::Other, Complaint { message, hint: String::new() }));
        }
    })
}

async fn place(desk: &JobService, wanted: Wanted, connection: &Connection) -> Result<Placed, CallError> {
    let Wanted { call, task, key, background } = wanted;
    let order = CallRequest {
        task: Some(task),
        idempotency_key: Some(key),
        fire_and_forget: background,
        environment: connection.caller_environment(),
        parent: connection.parent(desk),
        ..CallRequest::new(call, TOOL)
    };
    desk.submit(order).await.map(placed)
}

fn placed(placed: calls::SubmittedJob) -> Placed {
    let files = placed.files;
    Placed {
        job_id: placed.job.to_string(),
        folder: files.directory().to_owned(),
        status_file: files.status(),
        output_file: files.stream(Stream::Output),
        error_file: files.stream(Stream::Error),
        result_file: files.result(),
        redactions: placed.redactions,
    }
}

/// The job that is meant.
async fn find(desk: &JobService, given: &str) -> Result<Job, Stopped> {
    let refused = |message: String, hint: String| Stopped::Refused(About::Input, Complaint { message, hint });
    let prefix: JobIdPrefix = given
        .trim()
        .parse()
        .map_err(|error: model::BadJobId| refused(error.to_string(), error.hint().to_owned()))?;
    match desk.find(prefix).await? {
        Found::One(job) => Ok(*job),
        Found::Nothing => Err(refused(format!("there is no job {given}"), LIST_JOBS.to_owned())),
        Found::Several(ids) => {
            let ids: Vec<String> = ids.iter().map(JobId::to_string).collect();
            Err(refused(
                format!("several job ids start with {given}"),
                format!("pass a longer prefix of one of them: {}", ids.join(", ")),
            ))
        }
    }
}

async fn jobs(desk: &JobService, search: Search) -> Result<Reply, Stopped> {
    let Search { states, agent, tool, task, limit } = search;
    let filter = JobFilter { states, agent, tool, task, ..JobFilter::default() };
    let page = desk.list(&filter, PageRequest { limit, before: None }).await?;
    let total = desk.count(&filter).await?;
    Ok(Reply::Jobs { jobs: page.jobs.into_iter().map(|job| line(desk, job)).collect(), total })
}

fn line(desk: &JobService, job: JobSummary) -> JobLine {
    JobLine {
        job_id: job.id.to_string(),
        status: job.state,
        duration_ms: sums::duration_ms(desk, &job),
        agent: job.agent,
        model: job.model,
        tool: job.tool,
        task: job.task,
        cwd: job.cwd,
        session_id: job.session.map(String::from),
        created_at_ms: job.created_at.as_millis(),
        tokens: job.usage.map(|usage| usage.input + usage.output),
        cost_usd: job.cost_usd,
        error: job.failure.map(|failure| failure.kind.name().to_owned()),
        prompt: job.prompt_head,
    }
}

/// Tells everything that happens in a job; none when nobody listens any more.
async fn follow(desk: &JobService, job: &str, connection: &mut Connection) -> Result<Option<Reply>, Stopped> {
    let job = find(desk, job).await?.id;
    let mut events = desk.follow(job).await?;
    loop {
        let told = tokio::select! {
            told = events.next() => told?,
            () = gone(connection) => return Ok(None),
        };
        let reply = match told {
            Some(Followed::Waiting(reason)) => Reply::Event { said: wire::waiting(&reason.to_string()) },
            Some(Followed::Run(number)) => Reply::Run { number },
            Some(Followed::Event(event)) => Reply::Event { said: wire::said(&event) },
            Some(Followed::Error(bytes)) => {
                Reply::Stderr { text: String::from_utf8_lossy(&bytes).into_owned() }
            }
            Some(Followed::Ended(_)) | None => {
                return Ok(Some(Reply::Answer(Box::new(desk.answer(job).await?))));
            }
        };
        connection.say(&Line { reply, more: true }).await?;
    }
}

/// Over when the front-end has gone away. One that says something meanwhile is heard later.
async fn gone(connection: &mut Connection) {
    match connection.reader.fill_buf().await {
        Ok(bytes) if !bytes.is_empty() => std::future::pending().await,
        _ => {}
    }
}

async fn output(
    desk: &JobService,
    job: &str,
    stream: Stream,
    follow: bool,
    connection: &mut Connection,
) -> Result<Option<Reply>, Stopped> {
    let job = find(desk, job).await?.id;
    let mut offset = 0;
    loop {
        // Before the look: what was printed before the end is then seen.
        let over = !follow || desk.job(job).await?.completed_at.is_some();
        let part = desk.output(job, stream, offset, PIECE).await?;
        offset += part.bytes.len() as u64;
        if !part.bytes.is_empty() {
            let latin1 = part.bytes.iter().map(|&byte| char::from(byte)).collect();
            connection.say(&Line { reply: Reply::Bytes { latin1 }, more: true }).await?;
        } else if over {
            return Ok(Some(Reply::Done));
        } else {
            tokio::select! {
                () = sleep(LOOK_AGAIN) => {}
                () = gone(connection) => return Ok(None),
            }
        }
    }
}

async fn wait(
    desk: &JobService,
    given: &[String],
    any: bool,
    timeout_ms: Option<u64>,
    connection: &mut Connection,
) -> Result<Option<Reply>, Stopped> {
    let mut jobs = Vec::new();
    for job in given {
        jobs.push(find(desk, job).await?.id);
    }
    let until = if any { Until::Any } else { Until::All };
    let time = timeout_ms.map_or(FOR_EVER, Duration::from_millis);
    tokio::select! {
        ended = desk.wait(&jobs, until, time) => drop(ended?),
        () = gone(connection) => return Ok(None),
    }
    let mut answers = Vec::new();
    for job in jobs {
        answers.push(desk.answer(job).await?);
    }
    Ok(Some(Reply::Answers { answers }))
}
