//! Reads the bodies of HTTP requests within limits on size, time and shared memory.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::header::CONTENT_LENGTH;
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use http_body_util::BodyExt;
use tokio::time::timeout;

use http_listener::retry_later;

use crate::capacity::{MessageMemory, RequestCapacity};
use crate::envelope::Envelope;
use crate::http_errors::{error, error_with_hint};
use crate::message_errors::{self, MAX_MESSAGE_BYTES};

/// Maximum number of bytes of an oversized body that are read and dropped, so that the client gets the error instead of EPIPE.
const MAX_DRAINED_BYTES: usize = 256 * 1024 * 1024;
/// Timeout for the next chunk of a body.
const CHUNK_TIMEOUT: Duration = Duration::from_secs(30);

/// Reads the message of a request. Rejects a request with an invalid id, which rmcp would treat as a notification.
pub(crate) async fn read_message(
    State(capacity): State<Arc<RequestCapacity>>,
    request: Request,
    next: Next,
) -> Response {
    if request.method() != Method::POST {
        return next.run(request).await;
    }
    let announced =
        request.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    let (parts, body) = request.into_parts();
    let mut body = TimedBody { body, chunk_timeout: CHUNK_TIMEOUT };
    if announced.is_some_and(|length| length > MAX_MESSAGE_BYTES) {
        body.drain().await;
        return too_long();
    }
    let mut reserved = MessageMemory::new(capacity);
    let message = match body.read(&mut reserved).await {
        Ok(message) => message,
        Err(response) => return response,
    };
    if Envelope::from_bytes(&message).is_request_with_invalid_id() {
        return error(StatusCode::BAD_REQUEST, &message_errors::invalid_id().text());
    }
    let response = next.run(Request::from_parts(parts, Body::from(message))).await;
    drop(reserved);
    response
}

/// A body with a timeout for each chunk.
struct TimedBody {
    body: Body,
    chunk_timeout: Duration,
}

impl TimedBody {
    async fn read(&mut self, reserved: &mut MessageMemory) -> Result<Bytes, Response> {
        let mut message = Vec::new();
        while let Some(chunk) = self.next_chunk().await? {
            let length = message.len() + chunk.len();
            let response = if length > MAX_MESSAGE_BYTES {
                too_long()
            } else if !reserved.try_grow_to(length) {
                retry_later(error(StatusCode::SERVICE_UNAVAILABLE, &message_errors::out_of_memory().text()))
            } else {
                message.extend_from_slice(&chunk);
                continue;
            };
            drop(message);
            self.drain().await;
            return Err(response);
        }
        Ok(message.into())
    }

    /// Returns the next chunk; none at the end.
    async fn next_chunk(&mut self) -> Result<Option<Bytes>, Response> {
        loop {
            match timeout(self.chunk_timeout, self.body.frame()).await {
                Ok(Some(Ok(frame))) => {
                    if let Ok(chunk) = frame.into_data() {
                        return Ok(Some(chunk));
                    }
                }
                Ok(None) => return Ok(None),
                // The client gets this only if it closed just its sending side.
                Ok(Some(Err(_))) => {
                    return Err(error_with_hint(
                        StatusCode::BAD_REQUEST,
                        "the body is incomplete",
                        "send it again",
                    ));
                }
                Err(_) => {
                    let message = format!("the body stalled for {} s", self.chunk_timeout.as_secs());
                    return Err(error_with_hint(
                        StatusCode::REQUEST_TIMEOUT,
                        &message,
                        "send the request without a pause",
                    ));
                }
            }
        }
    }

    /// Reads and drops the rest of the body.
    async fn drain(&mut self) {
        let mut remaining = MAX_DRAINED_BYTES;
        while let Ok(Some(chunk)) = self.next_chunk().await {
            remaining = remaining.saturating_sub(chunk.len());
            if remaining == 0 {
                return;
            }
        }
    }
}

/// Returns the response to an oversized message.
pub(crate) fn too_long() -> Response {
    error(StatusCode::PAYLOAD_TOO_LARGE, &message_errors::too_long().text())
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream::{StreamExt, iter, pending};

    #[tokio::test]
    async fn stalled_body_is_rejected() {
        let half = iter([Ok::<_, std::io::Error>("{")]).chain(pending());
        let mut body = TimedBody { body: Body::from_stream(half), chunk_timeout: Duration::from_millis(50) };
        let rejected = body.read(&mut MessageMemory::new(Arc::default())).await.unwrap_err();
        assert_eq!(rejected.status(), StatusCode::REQUEST_TIMEOUT);
    }
}
