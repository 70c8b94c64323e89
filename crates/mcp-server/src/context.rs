//! The state of one client that its request handlers share.

use std::sync::Arc;

use calls::{Answer, CallError, JobService};
use model::JobId;
use tokio_util::sync::CancellationToken;

use crate::cancellation::CancelledRequests;
use crate::capacity::ClientWaits;
use crate::hints;
use crate::options::{McpClient, McpOptions};

/// One client with the services that its requests use.
#[derive(Debug, Clone)]
pub(crate) struct ClientContext {
    pub service: JobService,
    pub info: McpClient,
    pub options: Arc<McpOptions>,
    /// Cancelled when the daemon stops.
    pub shutdown: CancellationToken,
    /// Cancelled when the client has disconnected.
    pub disconnected: CancellationToken,
    /// Requests that the client has cancelled.
    pub cancelled: Arc<CancelledRequests>,
    /// Limits how many of its requests wait for jobs.
    pub waits: Arc<ClientWaits>,
}

impl ClientContext {
    /// Returns the answer of a job so far.
    pub async fn answer(&self, job: JobId) -> Result<Answer, CallError> {
        self.service.answer(job).await.map(|answer| hints::adapt_answer(answer, self.can_apply()))
    }

    /// Returns the answer of a job so far, cut to the operator's limit.
    pub async fn cut_answer(&self, job: JobId) -> Result<Answer, CallError> {
        let answer = self.answer(job).await?;
        Ok(answer.cut_to(self.options.defaults.max_response_chars))
    }

    /// Returns whether the client may apply and discard changes. An agent inside of a run may not: both write outside of its sandbox.
    pub fn can_apply(&self) -> bool {
        self.options.apply_changes && !self.info.is_inside_run
    }
}
