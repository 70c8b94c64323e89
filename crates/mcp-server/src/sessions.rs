//! Limits the number of HTTP sessions.
//!
//! Clients seldom delete their sessions. When a new session exceeds the limit, the session with the longest idle time is closed. Its
//! client then gets the 404 that makes it initialize again; its jobs continue. A session with an open request is never closed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use http_body_util::BodyExt;
use rmcp::transport::streamable_http_server::SessionId;
use rmcp::transport::streamable_http_server::session::SessionManager;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use tokio::time::Instant;

use http_listener::retry_later;

use crate::http_errors::error_with_hint;

const SESSION_HEADER: &str = "mcp-session-id";

/// The open sessions with their last use.
#[derive(Debug)]
pub(crate) struct SessionLimiter {
    manager: Arc<LocalSessionManager>,
    max_sessions: usize,
    uses: Mutex<HashMap<SessionId, SessionUse>>,
}

#[derive(Debug, Clone, Copy)]
struct SessionUse {
    last: Instant,
    open_requests: usize,
}

impl SessionLimiter {
    pub fn new(manager: Arc<LocalSessionManager>, max_sessions: usize) -> Self {
        Self { manager, max_sessions, uses: Mutex::default() }
    }

    fn uses(&self) -> MutexGuard<'_, HashMap<SessionId, SessionUse>> {
        self.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an open request of a session.
    fn start_request(sessions: &Arc<Self>, id: SessionId) -> Option<OpenRequest> {
        sessions.uses().get_mut(&id)?.open_requests += 1;
        Some(OpenRequest { sessions: Arc::clone(sessions), id })
    }

    /// Registers a new session, and closes the longest idle one over the limit. Returns false if no session is idle; the new one is
    /// closed then.
    async fn register(&self, id: &SessionId) -> bool {
        let alive = self.manager.sessions.read().await;
        let evicted = {
            let mut uses = self.uses();
            uses.retain(|id, _| alive.contains_key(id));
            let idle = uses.iter().filter(|(_, session)| session.open_requests == 0);
            let oldest = idle.min_by_key(|(_, session)| session.last).map(|(id, _)| id.clone());
            uses.insert(id.clone(), SessionUse { last: Instant::now(), open_requests: 0 });
            (uses.len() > self.max_sessions).then(|| oldest.unwrap_or_else(|| id.clone()))
        };
        drop(alive);
        let Some(evicted) = evicted else { return true };
        self.uses().remove(&evicted);
        if let Err(error) = self.manager.close_session(&evicted).await {
            tracing::debug!(%error, "cannot close an idle HTTP session");
        }
        evicted != *id
    }
}

/// Counts an open request until it is dropped.
struct OpenRequest {
    sessions: Arc<SessionLimiter>,
    id: SessionId,
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        if let Some(session) = self.sessions.uses().get_mut(&self.id) {
            session.open_requests = session.open_requests.saturating_sub(1);
            session.last = Instant::now();
        }
    }
}

/// Enforces the session limit.
pub(crate) async fn limit_sessions(
    State(sessions): State<Arc<SessionLimiter>>,
    request: Request,
    next: Next,
) -> Response {
    let requested = session_id(request.headers());
    let open = requested.clone().and_then(|id| SessionLimiter::start_request(&sessions, id));
    let response = next.run(request).await;
    if requested.is_none()
        && let Some(new) = session_id(response.headers())
        && !sessions.register(&new).await
    {
        let message = format!("all {} HTTP sessions have open requests", sessions.max_sessions);
        let hint = "delete an unused session (DELETE /mcp), or raise `http.max_sessions`";
        return retry_later(error_with_hint(StatusCode::SERVICE_UNAVAILABLE, &message, hint));
    }
    response.map(|body| {
        if body.size_hint().exact().is_some() {
            return body;
        }
        Body::new(body.map_frame(move |frame| {
            // The request is open while its body exists.
            let _ = &open;
            frame
        }))
    })
}

fn session_id(headers: &HeaderMap) -> Option<SessionId> {
    headers.get(SESSION_HEADER)?.to_str().ok().map(SessionId::from)
}
