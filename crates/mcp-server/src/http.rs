//! Streamable HTTP: the server at `/mcp`, behind a bearer token.
//!
//! Owns the access checks: token, allowed hosts and origins, limits. Every error is JSON. Binds no socket: [`serve`] gets a listener.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, ORIGIN, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::Response;
use calls::JobService;
use http_body_util::BodyExt;
use http_listener::{
    Admission, BearerToken, HttpClient, HttpLimits, HttpPeer, TcpEnds, retry_later, serve_http,
};
use rmcp::transport::streamable_http_server::session::local::{LocalSessionManager, SessionConfig};
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::cors::apply_cors;
use crate::http_errors::{error, error_with_hint};
use crate::message_errors::MAX_MESSAGE_BYTES;
use crate::options::{McpClient, McpOptions};
use crate::request_body::{read_message, too_long};
use crate::server::McpHandler;
use crate::sessions::{SessionLimiter, limit_sessions};

/// Maximum size of an error body of rmcp.
const MAX_ERROR_BYTES: usize = 64 * 1024;
/// Time for open requests to get their responses at shutdown.
const RESPONSE_GRACE: Duration = Duration::from_secs(2);
/// Time for clients to close their connections afterwards. Half-sent requests are dropped.
const CLOSE_GRACE: Duration = Duration::from_secs(1);
/// Idle timeout of a connection. A call without a session sends nothing until its response, after ten minutes at most.
const IDLE_TIMEOUT: Duration = Duration::from_mins(11);
/// Lifetime of an idle session. A call blocks for ten minutes at most, so no request is open then.
const SESSION_LIFETIME: Duration = Duration::from_hours(24);
/// The access rules of the HTTP server.
#[derive(Debug, Clone)]
pub struct HttpAccess {
    /// Token that every request must carry.
    pub token: BearerToken,
    /// Accepted `Host` headers, with or without a port.
    pub allowed_hosts: Vec<String>,
    /// Accepted `Origin` headers, such as `https://app.example.com:443`.
    pub allowed_origins: Vec<String>,
    /// Limits on connections and sessions.
    pub limits: ClientLimits,
    /// Identifies the client of a connection (see [`HttpLimits::identify_client`]).
    pub identify_client: fn(TcpEnds) -> HttpClient,
}

impl HttpAccess {
    /// Allows only loopback hosts and pages from loopback origins.
    pub fn loopback(token: BearerToken) -> Self {
        let allowed_hosts = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec();
        let origins = ["http://localhost:*", "http://127.0.0.1:*", "http://[::1]:*"];
        let allowed_origins = origins.map(str::to_owned).to_vec();
        Self {
            token,
            allowed_hosts,
            allowed_origins,
            limits: ClientLimits::default(),
            identify_client: |_| HttpClient::Outside,
        }
    }
}

/// Limits on HTTP clients.
#[derive(Debug, Clone, Copy)]
pub struct ClientLimits {
    /// Maximum number of authenticated connections.
    pub max_connections: usize,
    /// Maximum number of sessions.
    pub max_sessions: usize,
}

impl Default for ClientLimits {
    fn default() -> Self {
        Self { max_connections: 512, max_sessions: 256 }
    }
}

/// Serves `/mcp` until `shutdown`. Open calls then return the status of their jobs before the connections are closed. A client that
/// does not read cannot delay that. Calls `on_request` for each authenticated request.
pub async fn serve(
    listener: TcpListener,
    service: JobService,
    options: Arc<McpOptions>,
    access: HttpAccess,
    shutdown: CancellationToken,
    on_request: impl Fn() + Clone + Send + Sync + 'static,
) {
    let (responses, closing) = (TaskTracker::new(), CancellationToken::new());
    let limits = HttpLimits {
        max_connections: access.limits.max_connections,
        idle_timeout: IDLE_TIMEOUT,
        identify_client: access.identify_client,
        error_response: error_with_hint,
    };
    let notify = move |request: Request, next: Next| {
        let on_request = on_request.clone();
        async move {
            let response = next.run(request).await;
            // Neither requests without the token nor preflight requests count.
            if !matches!(response.status(), StatusCode::UNAUTHORIZED | StatusCode::NO_CONTENT) {
                on_request();
            }
            response
        }
    };
    let router = router(service, options, access, shutdown.clone(), closing.clone())
        .layer(from_fn(notify))
        .layer(from_fn_with_state(responses.clone(), track_response));
    let close = async {
        shutdown.cancelled().await;
        responses.close();
        // A client that does not read is not waited for.
        let _ = timeout(RESPONSE_GRACE, responses.wait()).await;
        closing.cancel();
        sleep(CLOSE_GRACE).await;
    };
    tokio::select! {
        () = serve_http(listener, router, limits, shutdown.clone()) => {}
        () = close => tracing::debug!("closed an HTTP connection with an unfinished request"),
    }
    // Also if `serve_http` returned first: sessions end with this token.
    closing.cancel();
}

/// Counts a response as open until its last byte is sent. The event stream of a `GET` has no end and is not counted.
async fn track_response(State(responses): State<TaskTracker>, request: Request, next: Next) -> Response {
    if request.method() != Method::POST {
        return next.run(request).await;
    }
    let open = responses.token();
    next.run(request).await.map(|body| {
        if body.size_hint().exact().is_some() {
            // The body is complete, and `serve_http` sends it before it closes the connection.
            return body;
        }
        Body::new(body.map_frame(move |frame| {
            // The response is open while its body exists.
            let _ = &open;
            frame
        }))
    })
}

/// Returns the routes of the server. Sessions last until `closing`, or until they were idle for a day.
pub fn router(
    service: JobService,
    options: Arc<McpOptions>,
    access: HttpAccess,
    shutdown: CancellationToken,
    closing: CancellationToken,
) -> Router {
    let HttpAccess { token, allowed_hosts, allowed_origins, limits, .. } = access;
    let cors_origins: Arc<[String]> = allowed_origins.clone().into();
    let mut manager = LocalSessionManager::default();
    let mut session_config = SessionConfig::default();
    session_config.keep_alive = Some(SESSION_LIFETIME);
    manager.session_config = session_config;
    let manager = Arc::new(manager);
    let sessions = Arc::new(SessionLimiter::new(Arc::clone(&manager), limits.max_sessions));
    let capacity = Arc::clone(&options.capacity);
    let config = StreamableHttpServerConfig::default()
        .with_allowed_hosts(allowed_hosts)
        .with_allowed_origins(allowed_origins)
        .enforce_origin_validation()
        .with_max_request_body_bytes(MAX_MESSAGE_BYTES)
        .with_cancellation_token(closing);
    let server = move || {
        Ok(McpHandler::new(
            service.clone(),
            McpClient::default(),
            Arc::clone(&options),
            shutdown.clone(),
            CancellationToken::new(),
        ))
    };
    let service = StreamableHttpService::new(server, manager, config);
    Router::new()
        .route_service("/mcp", service)
        .fallback(not_found)
        .layer(from_fn_with_state(sessions, limit_sessions))
        .layer(from_fn_with_state(capacity, read_message))
        .layer(from_fn_with_state(token, require_token))
        .layer(from_fn(convert_errors_to_json))
        // Outside of the token check: a preflight request carries no token.
        .layer(from_fn_with_state(cors_origins, apply_cors))
}

async fn not_found() -> Response {
    error_with_hint(StatusCode::NOT_FOUND, "not found", "the MCP server is at /mcp")
}

/// Rejects requests without the token.
async fn require_token(State(token): State<BearerToken>, request: Request, next: Next) -> Response {
    if token.is_in(request.headers()) {
        return match HttpPeer::authenticate(&request).await {
            Admission::Admitted => next.run(request).await,
            Admission::Full => {
                let message = "the daemon has reached its limit of HTTP connections";
                let hint = "close one, or raise `limits.max_connections`";
                retry_later(error_with_hint(StatusCode::SERVICE_UNAVAILABLE, message, hint))
            }
        };
    }
    let hint = "send `Authorization: Bearer TOKEN`; the daemon prints the path of the token file at startup";
    let mut response =
        error_with_hint(StatusCode::UNAUTHORIZED, "the bearer token is missing or wrong", hint);
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

/// Converts the plain-text errors of rmcp to JSON.
async fn convert_errors_to_json(request: Request, next: Next) -> Response {
    let (host, origin) = (request.headers().get(HOST).cloned(), request.headers().get(ORIGIN).cloned());
    let response = next.run(request).await;
    let status = response.status();
    let is_json = response
        .headers()
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
    if !(status.is_client_error() || status.is_server_error()) || is_json {
        return response;
    }
    if status == StatusCode::PAYLOAD_TOO_LARGE {
        return too_long();
    }
    let (mut parts, body) = response.into_parts();
    let text = to_bytes(body, MAX_ERROR_BYTES).await.unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let text = if text.is_empty() { status.canonical_reason().unwrap_or("rejected") } else { text.trim() };
    let converted = match status {
        // rmcp names the header, but neither its value nor the remedy.
        StatusCode::FORBIDDEN if text.contains("Origin") => {
            not_allowed(text, origin.as_ref(), "http.allowed_origins")
        }
        StatusCode::FORBIDDEN if text.contains("Host") => {
            not_allowed(text, host.as_ref(), "http.allowed_hosts")
        }
        StatusCode::NOT_FOUND if text.contains("Session") => {
            let hint = "initialize again: a session is closed after a day without requests, or when `http.max_sessions` is exceeded and it was idle for longest";
            error_with_hint(status, "unknown session", hint)
        }
        _ => error(status, text),
    };
    // Other headers of rmcp, such as `Allow`, are kept.
    parts.headers.remove(CONTENT_TYPE);
    parts.headers.remove(CONTENT_LENGTH);
    let (converted, body) = converted.into_parts();
    parts.headers.extend(converted.headers);
    Response::from_parts(parts, body)
}

/// Rejects a host or an origin that the configuration does not allow.
fn not_allowed(text: &str, value: Option<&HeaderValue>, key: &str) -> Response {
    let value = value.map(HeaderValue::as_bytes).unwrap_or_default();
    let shown: String = String::from_utf8_lossy(value).chars().take(200).collect();
    let hint = format!("to allow it, add it to `{key}` in the configuration and restart the daemon");
    error_with_hint(StatusCode::FORBIDDEN, &format!("{text}: `{}`", shown.escape_debug()), &hint)
}
