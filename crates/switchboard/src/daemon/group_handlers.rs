//! Handles the requests of commands about groups.

use std::io;

use calls::{CallError, ClosedJobs, GroupRequest, JobService, SubmittedGroup};
use model::{GroupKind, JobId};
use protocol::{DaemonRequest, ErrorCategory, ErrorReply, SubmitGroupReply, SubmitGroupRequest};

use super::connection::ClientConnection;
use super::handler_error::HandlerError;
use super::job_handlers::{self, call_request, cancelled_entry, submit_reply};
use super::job_lookup::{find_group, find_job};
use crate::client::JobReply;

/// Returns whether a request is about a group.
pub fn is_about_group(request: &DaemonRequest) -> bool {
    matches!(
        request,
        DaemonRequest::SubmitGroup(_)
            | DaemonRequest::Group { .. }
            | DaemonRequest::CancelGroup { .. }
            | DaemonRequest::DiscardOthers { .. }
    )
}

/// Handles a request about a group and sends the reply. Fails only if the connection does.
pub async fn handle(
    service: &JobService,
    request: DaemonRequest,
    connection: &mut ClientConnection,
) -> io::Result<()> {
    let reply = handle_unary(service, request, connection).await;
    job_handlers::send(reply.map(Some), connection).await
}

async fn handle_unary(
    service: &JobService,
    request: DaemonRequest,
    connection: &ClientConnection,
) -> Result<JobReply, HandlerError> {
    Ok(match request {
        DaemonRequest::SubmitGroup(submit) => {
            let kind = submit.kind;
            let submitted = submit_group(service, *submit, connection).await;
            JobReply::GroupSubmitted(submitted.map_err(|error| rejection(kind, error))?)
        }
        DaemonRequest::Group { group, max_chars } => {
            let group = find_group(service, &group).await?;
            let report = service.group_report(&group).await?;
            let report = match max_chars {
                Some(max_chars) => report.cut_to(max_chars),
                None => report,
            };
            JobReply::Group { report: serde_json::to_value(report).map_err(io::Error::from)? }
        }
        DaemonRequest::CancelGroup { group } => cancel(service, &group).await?,
        DaemonRequest::DiscardOthers { job } => {
            let job = find_job(service, &job).await?.id;
            let ClosedJobs { cancelled, discarded } = service.discard_other_contenders(job).await?;
            let ids = |jobs: Vec<JobId>| jobs.iter().map(ToString::to_string).collect();
            JobReply::OthersDiscarded { cancelled: ids(cancelled), discarded: ids(discarded) }
        }
        request => return Err(HandlerError::unexpected(&request)),
    })
}

async fn submit_group(
    service: &JobService,
    submit: SubmitGroupRequest,
    connection: &ClientConnection,
) -> Result<SubmitGroupReply, CallError> {
    let SubmitGroupRequest { kind, base, contenders, judge } = submit;
    let base = call_request(service, base, connection);
    let SubmittedGroup { id, contenders, reviewers } =
        service.submit_group(GroupRequest { base, kind, contenders, judge }).await?;
    Ok(SubmitGroupReply {
        group_id: id.to_string(),
        contenders: contenders.into_iter().map(submit_reply).collect(),
        reviews: reviewers.into_iter().map(submit_reply).collect(),
    })
}

/// Converts an error of a submission. A race has no option to work in the directory itself.
fn rejection(kind: GroupKind, error: CallError) -> HandlerError {
    let needs_checkout = kind == GroupKind::Race && matches!(error, CallError::Checkout(_));
    match HandlerError::from(error) {
        HandlerError::Rejected(category, error) if needs_checkout => {
            let hint = "a race changes files in private checkouts: start it in the worktree of a git repository, with a policy that \
                        lets the agents write; or ask for answers only, with `--observe`";
            HandlerError::Rejected(category, ErrorReply { hint: hint.to_owned(), ..error })
        }
        error => error,
    }
}

/// Cancels a group. Like a job, a group that has ended cannot be cancelled.
async fn cancel(service: &JobService, given: &str) -> Result<JobReply, HandlerError> {
    let group = find_group(service, given).await?;
    let cancelled = service.cancel_group(&group).await?;
    let group_id = group.id().map(|id| id.to_string()).unwrap_or_default();
    if cancelled.is_empty() {
        let message = format!("{group_id} has already finished");
        let hint = format!("see its results with `switchboard status {group_id}`");
        return Err(HandlerError::Rejected(ErrorCategory::Input, ErrorReply { message, hint }));
    }
    let jobs = cancelled.into_iter().map(|(job, cancellation)| cancelled_entry(job, cancellation)).collect();
    Ok(JobReply::GroupCancelled { group_id, jobs })
}
