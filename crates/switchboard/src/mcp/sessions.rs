//! The sessions of HTTP clients: a bounded number.
//!
//! Clients seldom end their sessions. When a new one exceeds the bound, the one that was idle for longest is closed; should its client
//! come back, it gets the 404 with which the protocol asks it to initialize again. Its jobs go on. A session with an open request is
//! never closed for another.

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

use super::http::refuse;
use crate::listener::retry_later;

const SESSION_HEADER: &str = "mcp-session-id";

/// The sessions, and when each was used last.
#[derive(Debug)]
pub(super) struct BoundedSessions {
    manager: Arc<LocalSessionManager>,
    max: usize,
    uses: Mutex<HashMap<SessionId, SessionUse>>,
}

#[derive(Debug, Clone, Copy)]
struct SessionUse {
    last: Instant,
    open_requests: usize,
}

impl BoundedSessions {
    pub fn new(manager: Arc<LocalSessionManager>, max: usize) -> Self {
        Self { manager, max, uses: Mutex::default() }
    }

    fn uses(&self) -> MutexGuard<'_, HashMap<SessionId, SessionUse>> {
        self.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request of a session as open.
    fn start_request(sessions: &Arc<Self>, id: SessionId) -> Option<OpenRequest> {
        sessions.uses().get_mut(&id)?.open_requests += 1;
        Some(OpenRequest { sessions: Arc::clone(sessions), id })
    }

    /// Adds a new session, and closes the one that was idle for longest if there are too many. False: none is idle.
    async fn add(&self, id: &SessionId) -> bool {
        let alive = self.manager.sessions.read().await;
        let excess = {
            let mut uses = self.uses();
            uses.retain(|id, _| alive.contains_key(id));
            let idle = uses.iter().filter(|(_, session)| session.open_requests == 0);
            let oldest = idle.min_by_key(|(_, session)| session.last).map(|(id, _)| id.clone());
            uses.insert(id.clone(), SessionUse { last: Instant::now(), open_requests: 0 });
            (uses.len() > self.max).then(|| oldest.unwrap_or_else(|| id.clone()))
        };
        drop(alive);
        let Some(excess) = excess else { return true };
        self.uses().remove(&excess);
        if let Err(error) = self.manager.close_session(&excess).await {
            tracing::debug!(%error, "cannot close an idle HTTP session");
        }
        excess != *id
    }
}

/// A request of a session that is open.
struct OpenRequest {
    sessions: Arc<BoundedSessions>,
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

/// Keeps the number of sessions within its bound.
pub(super) async fn bound_sessions(
    State(sessions): State<Arc<BoundedSessions>>,
    request: Request,
    next: Next,
) -> Response {
    let named = session_id(request.headers());
    let open = named.clone().and_then(|id| BoundedSessions::start_request(&sessions, id));
    let response = next.run(request).await;
    if named.is_none()
        && let Some(new) = session_id(response.headers())
        && !sessions.add(&new).await
    {
        let message = format!("all {} HTTP sessions have open requests", sessions.max);
        let hint = "end a session that is not needed (DELETE /mcp), or raise `http.max_sessions`";
        return retry_later(refuse(StatusCode::SERVICE_UNAVAILABLE, &message, hint));
    }
    response.map(|body| {
        if body.size_hint().exact().is_some() {
            return body;
        }
        Body::new(body.map_frame(move |frame| {
            // Open as long as the body is there.
            let _ = &open;
            frame
        }))
    })
}

fn session_id(headers: &HeaderMap) -> Option<SessionId> {
    headers.get(SESSION_HEADER)?.to_str().ok().map(SessionId::from)
}
