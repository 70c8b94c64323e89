//! Handles the requests of commands about jobs.
//!
//! Translates between the socket protocol and the job service. A client that follows or waits may disconnect at any moment; the job
//! continues.

use std::io;
use std::time::Duration;

use calls::{
    ApplyRequest, CallError, CallRequest, Cancellation, ChangesState, Conflict, ConflictReason, Direction,
    FileSelection, Followed, JobFilter, JobService, JobSummary, OpenChanges, PageRequest, RestoreError,
    Restored, RestoredFile, Stream, SubmittedJob, Until,
};
use dashboard::stats;
use model::exact_path::show_path;
use model::{ApplyTarget, JobId, StateName, Timestamp};
use tokio::io::AsyncBufReadExt;
use tokio::time::sleep;

use protocol::{
    ApplyReply, CancelledEntry, ConflictEntry, DaemonRequest, ErrorCategory, ErrorReply, JobListEntry,
    JobQuery, OpenChangesEntry, OutputStream, ReplyLine, RestoredEntry, SelectedFiles, SubmitReply,
    SubmitRequest, event_to_json, waiting_event,
};

use super::connection::ClientConnection;
use super::handler_error::HandlerError;
use super::job_lookup::{find_job, find_jobs};
use crate::client::JobReply;

/// The tool name of jobs that commands submit.
const TOOL: &str = "cli";
/// The chunk size of an output stream.
const CHUNK_BYTES: usize = 64 * 1024;
/// The poll interval of a followed output stream.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The timeout of a wait without a limit.
const NO_TIMEOUT: Duration = Duration::from_hours(24 * 365);

/// Handles a request and sends all lines of the reply. Fails only if the connection does.
pub async fn handle(
    service: &JobService,
    request: DaemonRequest,
    connection: &mut ClientConnection,
) -> io::Result<()> {
    let reply = match request {
        DaemonRequest::Follow { job, until_now } => follow(service, &job, until_now, connection).await,
        DaemonRequest::Output { job, stream, follow } => {
            stream_output(service, &job, stream, follow, connection).await
        }
        DaemonRequest::Patch { job, files } => stream_patch(service, &job, files, connection).await,
        DaemonRequest::Wait { jobs, any, timeout_ms } => {
            wait(service, &jobs, any, timeout_ms, connection).await
        }
        request => handle_unary(service, request, connection).await.map(Some),
    };
    send(reply, connection).await
}

/// Sends the last line of a reply, or the error. Fails if the client has disconnected.
pub(super) async fn send(
    reply: Result<Option<JobReply>, HandlerError>,
    connection: &mut ClientConnection,
) -> io::Result<()> {
    match reply {
        Ok(Some(reply)) => connection.send(&ReplyLine { reply, more: false }).await,
        // The client has disconnected.
        Ok(None) => Err(io::ErrorKind::BrokenPipe.into()),
        Err(HandlerError::Connection(error)) => Err(error),
        Err(HandlerError::Rejected(category, error)) => {
            connection.send(&ReplyLine { reply: JobReply::Rejected { category, error }, more: false }).await
        }
    }
}

/// Handles a request with a one-line reply.
async fn handle_unary(
    service: &JobService,
    request: DaemonRequest,
    connection: &ClientConnection,
) -> Result<JobReply, HandlerError> {
    Ok(match request {
        DaemonRequest::Submit(submit) => {
            JobReply::Submitted(submit_call(service, *submit, connection).await?)
        }
        DaemonRequest::Retry { job } => {
            let job = find_job(service, &job).await?;
            if job.completed_at.is_none() {
                let message = format!("job {} has not finished", job.id);
                let hint = format!(
                    "wait for it with `switchboard wait {0}`, or cancel it with `switchboard cancel {0}`",
                    job.id
                );
                return Err(HandlerError::Rejected(ErrorCategory::Input, ErrorReply { message, hint }));
            }
            JobReply::Submitted(submit_reply(service.retry(job.id, connection.caller_environment()).await?))
        }
        DaemonRequest::Job { job } => {
            let job = find_job(service, &job).await?;
            JobReply::Answer(Box::new(service.answer(job.id).await?))
        }
        DaemonRequest::Cancel { job } => {
            let job = find_job(service, &job).await?.id;
            JobReply::Cancelled(cancelled_entry(job, service.cancel(job).await?))
        }
        DaemonRequest::Changes { job, files } => {
            let job = find_job(service, &job).await?.id;
            let changes = service.change_set(job, selection(files)).await?;
            JobReply::Changes { job_id: job.to_string(), changes }
        }
        DaemonRequest::Restore { job, redo, files } => {
            let job = find_job(service, &job).await?.id;
            let direction = if redo { Direction::Redo } else { Direction::Undo };
            let restored = service.restore(job, direction, selection(files)).await?;
            let files = restored.files.iter().map(restored_entry).collect();
            JobReply::Restored { job_id: job.to_string(), files }
        }
        DaemonRequest::Apply { .. }
        | DaemonRequest::Discard { .. }
        | DaemonRequest::OpenChanges
        | DaemonRequest::Checkout { .. } => handle_checkout(service, request).await?,
        DaemonRequest::Jobs(query) => list_jobs(service, query).await?,
        DaemonRequest::Stats { since_ms } => {
            JobReply::Stats(stats::collect_statistics(service, since_ms.map(Timestamp::from_millis)).await?)
        }
        // Handled elsewhere.
        request => return Err(HandlerError::unexpected(&request)),
    })
}

/// Handles a request about changes in private checkouts.
async fn handle_checkout(service: &JobService, request: DaemonRequest) -> Result<JobReply, HandlerError> {
    Ok(match request {
        DaemonRequest::Apply { job, target, markers, dry_run, files } => {
            let job = find_job(service, &job).await?.id;
            let request = ApplyRequest { files: selection(files), target, markers, dry_run };
            JobReply::Applied(apply(service, job, request).await?)
        }
        DaemonRequest::Discard { job } => {
            let job = find_job(service, &job).await?.id;
            // Before the directory is gone. A change set that could not be recorded is no reason to keep it.
            let changes = service.change_set(job, FileSelection::default()).await.ok();
            service.discard(job).await?;
            JobReply::Discarded { job_id: job.to_string(), changes }
        }
        DaemonRequest::Checkout { job } => {
            let job = find_job(service, &job).await?.id;
            let directory = service.checkout_directory(job).map(|directory| show_path(&directory));
            JobReply::Checkout { directory, disk_bytes: service.checkout_bytes(job).await }
        }
        _ => {
            let mut changes = Vec::new();
            for open in service.open_changes().await?.into_iter().rev() {
                let status = service.job(open.job).await.ok().map(|job| job.progress.state.name());
                let disk_bytes = service.checkout_bytes(open.job).await;
                changes.push(open_changes_entry(open, status, disk_bytes.unwrap_or_default()));
            }
            JobReply::OpenChanges { changes }
        }
    })
}

/// Applies the changes of a job. Conflicts are a result, so that a client can list them.
async fn apply(service: &JobService, job: JobId, request: ApplyRequest) -> Result<ApplyReply, CallError> {
    let can_mark = request.target == ApplyTarget::Worktree;
    let (restored, state, conflicts) = match service.apply(job, request).await {
        Ok(applied) => (applied.restored, applied.state, Vec::new()),
        Err(CallError::Restore(RestoreError::Conflicts(conflicts))) => {
            (Restored::default(), ChangesState::Open, conflicts)
        }
        Err(error) => return Err(error),
    };
    let entry = |conflict: &Conflict| ConflictEntry {
        path: show_path(&conflict.path),
        reason: conflict.reason.to_string(),
    };
    Ok(ApplyReply {
        job_id: job.to_string(),
        state: state.name().to_owned(),
        files: restored.files.iter().map(applied_entry).collect(),
        commit: restored.commit,
        can_mark: can_mark
            && !conflicts.is_empty()
            && conflicts.iter().all(|conflict| conflict.reason == ConflictReason::SameLines),
        conflicts: conflicts.iter().map(entry).collect(),
    })
}

/// Describes a file that was applied, in place of restored.
fn applied_entry(file: &RestoredFile) -> RestoredEntry {
    let entry = restored_entry(file);
    RestoredEntry { action: entry.action.replace("restored", "applied"), ..entry }
}

fn open_changes_entry(open: OpenChanges, status: Option<StateName>, disk_bytes: u64) -> OpenChangesEntry {
    let OpenChanges { job, source, directory, branch, extent, .. } = open;
    OpenChangesEntry {
        job_id: job.to_string(),
        status,
        source: show_path(&source),
        checkout: show_path(&directory),
        branch,
        files_changed: extent.map(|(files, _, _)| files),
        lines_added: extent.map(|(_, added, _)| added),
        lines_removed: extent.map(|(_, _, removed)| removed),
        disk_bytes,
    }
}

async fn submit_call(
    service: &JobService,
    submit: SubmitRequest,
    connection: &ClientConnection,
) -> Result<SubmitReply, CallError> {
    service.submit(call_request(service, submit, connection)).await.map(submit_reply)
}

/// Converts a submission to a request for the job service.
pub(super) fn call_request(
    service: &JobService,
    submit: SubmitRequest,
    connection: &ClientConnection,
) -> CallRequest {
    let SubmitRequest { call, task, key, background, server_variables } = submit;
    let environment = connection.caller_environment();
    CallRequest {
        task: Some(task),
        idempotency_key: Some(key),
        fire_and_forget: background,
        environment: environment.map(|own| own.with_server_variables(server_variables)),
        parent: connection.parent(service),
        ..CallRequest::new(call, TOOL)
    }
}

/// Describes a submitted job.
pub(super) fn submit_reply(job: SubmittedJob) -> SubmitReply {
    let files = job.files;
    SubmitReply {
        job_id: job.job.to_string(),
        directory: files.directory().to_owned(),
        status_file: files.status(),
        output_file: files.stream(Stream::Output),
        error_file: files.stream(Stream::Error),
        result_file: files.result(),
        redactions: job.redactions,
    }
}

/// Describes a cancelled job.
pub(super) fn cancelled_entry(job: JobId, cancellation: Cancellation) -> CancelledEntry {
    let Cancellation { previous, now } = cancellation;
    CancelledEntry { job_id: job.to_string(), previous, now }
}

async fn list_jobs(service: &JobService, query: JobQuery) -> Result<JobReply, HandlerError> {
    let JobQuery { states, agent, tool, task, limit } = query;
    let filter = JobFilter { states, agent, tool, task, ..JobFilter::default() };
    let page = service.list(&filter, PageRequest { limit, before: None }).await?;
    let total = service.count(&filter).await?;
    Ok(JobReply::Jobs { jobs: page.jobs.into_iter().map(|job| list_entry(service, job)).collect(), total })
}

fn list_entry(service: &JobService, job: JobSummary) -> JobListEntry {
    JobListEntry {
        job_id: job.id.to_string(),
        status: job.state,
        duration_ms: stats::duration_ms(service, &job),
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

/// Streams the events of a job; `None` if the client has disconnected.
async fn follow(
    service: &JobService,
    job: &str,
    until_now: bool,
    connection: &mut ClientConnection,
) -> Result<Option<JobReply>, HandlerError> {
    let job = find_job(service, job).await?.id;
    let mut events = service.follow(job).await?;
    if until_now {
        events = events.until_now();
    }
    loop {
        let followed = tokio::select! {
            followed = events.next() => followed?,
            () = disconnected(connection) => return Ok(None),
        };
        let reply = match followed {
            Some(Followed::Waiting(reason)) => JobReply::Event { event: waiting_event(&reason.to_string()) },
            Some(Followed::Run(number)) => {
                let checkout = service.checkout_directory(job);
                JobReply::Run { number, checkout: checkout.and_then(|path| path.to_str().map(str::to_owned)) }
            }
            Some(Followed::Event(event)) => JobReply::Event { event: event_to_json(&event) },
            Some(Followed::Error(bytes)) => {
                JobReply::Stderr { text: String::from_utf8_lossy(&bytes).into_owned() }
            }
            Some(Followed::Ended(_)) | None => {
                return Ok(Some(JobReply::Answer(Box::new(service.answer(job).await?))));
            }
        };
        connection.send(&ReplyLine { reply, more: true }).await?;
    }
}

/// Waits until the client has disconnected. A request that it sends meanwhile stays buffered.
async fn disconnected(connection: &mut ClientConnection) {
    match connection.reader.fill_buf().await {
        Ok(bytes) if !bytes.is_empty() => std::future::pending().await,
        _ => {}
    }
}

async fn stream_output(
    service: &JobService,
    job: &str,
    stream: OutputStream,
    follow: bool,
    connection: &mut ClientConnection,
) -> Result<Option<JobReply>, HandlerError> {
    let job = find_job(service, job).await?.id;
    let stream = match stream {
        OutputStream::Output => Stream::Output,
        OutputStream::Error => Stream::Error,
    };
    let mut offset = 0;
    loop {
        // Checked before the read, so that output printed before the end is not missed.
        let is_over = !follow || service.job(job).await?.completed_at.is_some();
        let part = service.output(job, stream, offset, CHUNK_BYTES).await?;
        offset += part.bytes.len() as u64;
        if !part.bytes.is_empty() {
            let latin1 = part.bytes.iter().map(|&byte| char::from(byte)).collect();
            connection.send(&ReplyLine { reply: JobReply::Bytes { latin1 }, more: true }).await?;
        } else if is_over {
            return Ok(Some(JobReply::Done));
        } else {
            tokio::select! {
                () = sleep(POLL_INTERVAL) => {}
                () = disconnected(connection) => return Ok(None),
            }
        }
    }
}

fn selection(files: SelectedFiles) -> FileSelection {
    FileSelection { paths: files.paths, base: files.base }
}

fn restored_entry(file: &RestoredFile) -> RestoredEntry {
    RestoredEntry {
        path: show_path(&file.path),
        action: file.what.as_str().to_owned(),
        reason: file.reason.as_ref().map(ToString::to_string),
    }
}

async fn stream_patch(
    service: &JobService,
    job: &str,
    files: SelectedFiles,
    connection: &mut ClientConnection,
) -> Result<Option<JobReply>, HandlerError> {
    let job = find_job(service, job).await?.id;
    let patch = service.patch(job, selection(files)).await?;
    for chunk in patch.chunks(CHUNK_BYTES) {
        let latin1 = chunk.iter().map(|&byte| char::from(byte)).collect();
        connection.send(&ReplyLine { reply: JobReply::Bytes { latin1 }, more: true }).await?;
    }
    Ok(Some(JobReply::Done))
}

async fn wait(
    service: &JobService,
    ids: &[String],
    any: bool,
    timeout_ms: Option<u64>,
    connection: &mut ClientConnection,
) -> Result<Option<JobReply>, HandlerError> {
    let jobs = find_jobs(service, ids).await?;
    let until = if any { Until::Any } else { Until::All };
    let time = timeout_ms.map_or(NO_TIMEOUT, Duration::from_millis);
    tokio::select! {
        ended = service.wait(&jobs, until, time) => drop(ended?),
        () = disconnected(connection) => return Ok(None),
    }
    let mut answers = Vec::new();
    for job in jobs {
        answers.push(service.answer(job).await?);
    }
    Ok(Some(JobReply::Answers { answers }))
}
