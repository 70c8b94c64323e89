//! The bodies of HTTP requests: bounded in length, in time, and all together in memory.

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

use super::capacity::{MessageBytes, RequestCapacity};
use super::envelope::Envelope;
use super::http::{error, refuse};
use super::{MAX_MESSAGE_BYTES, stream};
use crate::listener::retry_later;

/// How much of a message that is too long is read to its end, so that the client hears the answer instead of a broken pipe.
const MAX_DRAINED_BYTES: usize = 256 * 1024 * 1024;
/// How long the next piece of a body may take.
const STALLED_AFTER: Duration = Duration::from_secs(30);

/// Reads the message of a request, and refuses one that cannot be answered under its id: rmcp takes it for a notification.
pub(super) async fn read_message(
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
    let mut body = TimedBody { body, stalled_after: STALLED_AFTER };
    if announced.is_some_and(|length| length > MAX_MESSAGE_BYTES) {
        body.drain().await;
        return too_long();
    }
    let mut reserved = MessageBytes::new(capacity);
    let message = match body.read(&mut reserved).await {
        Ok(message) => message,
        Err(refused) => return refused,
    };
    if Envelope::of(&message).asks_without_usable_id() {
        return error(StatusCode::BAD_REQUEST, &stream::no_usable_id().text());
    }
    let response = next.run(Request::from_parts(parts, Body::from(message))).await;
    drop(reserved);
    response
}

/// A body of which each piece has its time.
struct TimedBody {
    body: Body,
    stalled_after: Duration,
}

impl TimedBody {
    async fn read(&mut self, reserved: &mut MessageBytes) -> Result<Bytes, Response> {
        let mut message = Vec::new();
        while let Some(piece) = self.next_piece().await? {
            let length = message.len() + piece.len();
            let refusal = if length > MAX_MESSAGE_BYTES {
                too_long()
            } else if !reserved.grow_to(length) {
                retry_later(error(StatusCode::SERVICE_UNAVAILABLE, &stream::busy().text()))
            } else {
                message.extend_from_slice(&piece);
                continue;
            };
            drop(message);
            self.drain().await;
            return Err(refusal);
        }
        Ok(message.into())
    }

    /// Returns the next piece; none at the end.
    async fn next_piece(&mut self) -> Result<Option<Bytes>, Response> {
        loop {
            match timeout(self.stalled_after, self.body.frame()).await {
                Ok(Some(Ok(frame))) => {
                    if let Ok(piece) = frame.into_data() {
                        return Ok(Some(piece));
                    }
                }
                Ok(None) => return Ok(None),
                // Its client hears this only if it still reads.
                Ok(Some(Err(_))) => {
                    return Err(refuse(StatusCode::BAD_REQUEST, "the body broke off", "send it again"));
                }
                Err(_) => {
                    let message = format!("the body stalled for {} s", self.stalled_after.as_secs());
                    return Err(refuse(StatusCode::REQUEST_TIMEOUT, &message, "send the request in one go"));
                }
            }
        }
    }

    /// Reads to the end and keeps nothing.
    async fn drain(&mut self) {
        let mut left = MAX_DRAINED_BYTES;
        while let Ok(Some(piece)) = self.next_piece().await {
            left = left.saturating_sub(piece.len());
            if left == 0 {
                return;
            }
        }
    }
}

pub(super) fn too_long() -> Response {
    error(StatusCode::PAYLOAD_TOO_LARGE, &stream::too_long().text())
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream::{StreamExt, iter, pending};

    #[tokio::test]
    async fn body_that_stalls_is_refused() {
        let half = iter([Ok::<_, std::io::Error>("{")]).chain(pending());
        let mut body = TimedBody { body: Body::from_stream(half), stalled_after: Duration::from_millis(50) };
        let refused = body.read(&mut MessageBytes::new(Arc::default())).await.unwrap_err();
        assert_eq!(refused.status(), StatusCode::REQUEST_TIMEOUT);
    }
}
