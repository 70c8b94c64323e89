//! Translates submissions and cancellations between the socket protocol and the job service.

use calls::{CallRequest, Cancellation, JobService, Stream, SubmittedJob};
use model::JobId;
use protocol::{CancelledEntry, SubmitReply, SubmitRequest};

use super::connection::ClientConnection;

/// The tool name of jobs that commands submit.
const TOOL: &str = "cli";

/// Converts a submission to a request for the job service.
pub(super) fn call_request(
    service: &JobService,
    submit: SubmitRequest,
    connection: &ClientConnection,
) -> CallRequest {
    let SubmitRequest { call, task, key, background } = submit;
    CallRequest {
        task: Some(task),
        idempotency_key: Some(key),
        fire_and_forget: background,
        environment: connection.caller_environment(),
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
