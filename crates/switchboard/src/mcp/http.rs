//! Streamable HTTP: the same server behind a token, at `/mcp`.
//!
//! Owns who may come in: a bearer token that only the user can read, hosts and origins that are named, a bound on what is sent.
//! Every refusal is JSON. Listens nowhere itself: [`serve`] is given a socket.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HOST, ORIGIN, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use calls::JobService;
use http_body_util::BodyExt;
use rmcp::transport::streamable_http_server::session::local::{LocalSessionManager, SessionConfig};
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use serde_json::json;
use subtle::ConstantTimeEq;
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::request_body::{read_message, too_long};
use super::server::Server;
use super::sessions::{BoundedSessions, bound_sessions};
use super::{Client, MAX_MESSAGE_BYTES, Options, origins};
use crate::listener::{Admission, HttpLimits, HttpPeer, TcpEnds, retry_later, serve_http};

/// How long a refusal of rmcp may be.
const MAX_REFUSAL_BYTES: usize = 64 * 1024;
/// How long those who wait for an answer may take to hear that the daemon ends.
const LAST_WORDS_WITHIN: Duration = Duration::from_secs(2);
/// How long they may then take to close the line. Whoever does not, or is in the middle of a request, is left.
const CLOSED_WITHIN: Duration = Duration::from_secs(1);
/// How long nothing may pass on a connection. A call without a session says nothing until it is answered, after ten minutes at most.
const SILENCE: Duration = Duration::from_mins(11);
/// After how long a session is forgotten in which nothing was asked. A call blocks for ten minutes at most, so none is open then.
const FORGOTTEN_AFTER: Duration = Duration::from_hours(24);
/// How long a token is, in hexadecimal digits.
const TOKEN_DIGITS: usize = 64;

/// The word that opens the door. Never printed.
#[derive(Clone)]
pub struct Token(String);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(…)")
    }
}

/// A token that cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// Its file cannot be read or written.
    #[error("cannot use the token file `{}`", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Others can read it, or it belongs to somebody else.
    #[error("the token file `{}` is not yours alone", file.display())]
    Shared {
        /// The file.
        file: PathBuf,
    },
    /// It holds no token.
    #[error("the token file `{}` holds no token", file.display())]
    Empty {
        /// The file.
        file: PathBuf,
    },
}

impl TokenError {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::File { .. } => "check that its folder exists, belongs to you and can be written",
            Self::Shared { .. } => {
                "remove it, and a new one is made; whoever could read it knows the old token"
            }
            Self::Empty { .. } => {
                "remove it, and a new one is made; a token has at least 16 letters and digits"
            }
        }
    }
}

impl Token {
    /// The token in that file, which is made with a new one, for the user alone, when it is not there.
    pub fn in_file(file: &Path) -> Result<Self, TokenError> {
        let failed = |source| TokenError::File { file: file.to_owned(), source };
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(file) {
            Ok(new) => Self::write_new(new).map_err(failed),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Self::read(file),
            Err(error) => Err(failed(error)),
        }
    }

    fn write_new(mut file: File) -> io::Result<Self> {
        // Two random UUIDs: 244 bits from the operating system.
        let mut token = format!("{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple());
        token.truncate(TOKEN_DIGITS);
        file.write_all(token.as_bytes())?;
        file.sync_all()?;
        Ok(Self(token))
    }

    fn read(path: &Path) -> Result<Self, TokenError> {
        let failed = |source| TokenError::File { file: path.to_owned(), source };
        let file = File::open(path).map_err(failed)?;
        let found = file.metadata().map_err(failed)?;
        if found.mode() & 0o077 != 0 || found.uid() != rustix::process::geteuid().as_raw() {
            return Err(TokenError::Shared { file: path.to_owned() });
        }
        let mut token = String::new();
        file.take(4096).read_to_string(&mut token).map_err(failed)?;
        let token = token.trim().to_owned();
        if token.len() < 16 || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(TokenError::Empty { file: path.to_owned() });
        }
        Ok(Self(token))
    }

    /// For the one who is to be told how to connect.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Whether a request brings it. Takes as long for a wrong one as for a right one.
    pub fn is_brought_by(&self, headers: &HeaderMap) -> bool {
        let given = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes).unwrap_or_default();
        let (scheme, given) = given.split_at(given.len().min("Bearer ".len()));
        scheme.eq_ignore_ascii_case(b"Bearer ") && bool::from(given.trim_ascii().ct_eq(self.0.as_bytes()))
    }
}

/// Who may come in.
#[derive(Debug, Clone)]
pub struct Gate {
    /// What every request must bring.
    pub token: Token,
    /// The names under which this server may be addressed (`Host`), with or without a port.
    pub allowed_hosts: Vec<String>,
    /// The web pages that may use it (`Origin`), such as `https://app.example.com:443`.
    pub allowed_origins: Vec<String>,
    /// How many there may be.
    pub limits: ClientLimits,
    /// Tells whether a client is a process inside a confined call (see [`HttpLimits::is_confined`]).
    pub is_confined: fn(TcpEnds) -> bool,
}

impl Gate {
    /// Only this machine, and pages that it serves itself.
    pub fn loopback(token: Token) -> Self {
        let allowed_hosts = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec();
        let origins = ["http://localhost:*", "http://127.0.0.1:*", "http://[::1]:*"];
        let allowed_origins = origins.map(str::to_owned).to_vec();
        Self {
            token,
            allowed_hosts,
            allowed_origins,
            limits: ClientLimits::default(),
            is_confined: |_| false,
        }
    }
}

/// How many clients there may be.
#[derive(Debug, Clone, Copy)]
pub struct ClientLimits {
    /// How many connections whose clients have brought the token.
    pub max_connections: usize,
    /// How many sessions.
    pub max_sessions: usize,
}

impl Default for ClientLimits {
    fn default() -> Self {
        Self { max_connections: 512, max_sessions: 256 }
    }
}

/// Serves `/mcp` until `shutdown`. Calls that are open then are answered, with their job: only afterwards is the line cut, and nobody
/// can put that off. `asked` is told of every request that is let in.
pub async fn serve(
    listener: TcpListener,
    desk: JobService,
    options: Arc<Options>,
    gate: Gate,
    shutdown: CancellationToken,
    asked: impl Fn() + Clone + Send + Sync + 'static,
) {
    let (answers, cut) = (TaskTracker::new(), CancellationToken::new());
    let limits = HttpLimits {
        max_connections: gate.limits.max_connections,
        silence: SILENCE,
        is_confined: gate.is_confined,
    };
    let ask = move |request: Request, next: Next| {
        let asked = asked.clone();
        async move {
            let response = next.run(request).await;
            // Not who lacks the token, and not a browser that asks before it brings it.
            if !matches!(response.status(), StatusCode::UNAUTHORIZED | StatusCode::NO_CONTENT) {
                asked();
            }
            response
        }
    };
    let router = router(desk, options, gate, shutdown.clone(), cut.clone())
        .layer(from_fn(ask))
        .layer(from_fn_with_state(answers.clone(), until_answered));
    let over = async {
        shutdown.cancelled().await;
        answers.close();
        // One who does not listen is not waited for.
        let _ = timeout(LAST_WORDS_WITHIN, answers.wait()).await;
        cut.cancel();
        sleep(CLOSED_WITHIN).await;
    };
    tokio::select! {
        () = serve_http(listener, router, limits, shutdown.clone()) => {}
        () = over => tracing::debug!("a client over HTTP was left in the middle of a word"),
    }
    // Also when nobody was there to be let go.
    cut.cancel();
}

/// Counts an answer as open until its last byte was taken. What a client listens to without having asked (`GET`) has no end.
async fn until_answered(State(answers): State<TaskTracker>, request: Request, next: Next) -> Response {
    if request.method() != Method::POST {
        return next.run(request).await;
    }
    let open = answers.token();
    next.run(request).await.map(|body| {
        if body.size_hint().exact().is_some() {
            // It is whole, and the line stays until it is sent.
            return body;
        }
        Body::new(body.map_frame(move |frame| {
            // Open as long as the body is there.
            let _ = &open;
            frame
        }))
    })
}

/// The server at `/mcp`. Sessions live until `cut`, however silent a call in them is; one in which nobody has asked anything for a
/// day is forgotten.
pub fn router(
    desk: JobService,
    options: Arc<Options>,
    gate: Gate,
    shutdown: CancellationToken,
    cut: CancellationToken,
) -> Router {
    let Gate { token, allowed_hosts, allowed_origins, limits, .. } = gate;
    let pages: Arc<[String]> = allowed_origins.clone().into();
    let mut manager = LocalSessionManager::default();
    let mut patient = SessionConfig::default();
    patient.keep_alive = Some(FORGOTTEN_AFTER);
    manager.session_config = patient;
    let manager = Arc::new(manager);
    let sessions = Arc::new(BoundedSessions::new(Arc::clone(&manager), limits.max_sessions));
    let capacity = Arc::clone(&options.capacity);
    let config = StreamableHttpServerConfig::default()
        .with_allowed_hosts(allowed_hosts)
        .with_allowed_origins(allowed_origins)
        .enforce_origin_validation()
        .with_max_request_body_bytes(MAX_MESSAGE_BYTES)
        .with_cancellation_token(cut);
    let server = move || {
        Ok(Server::new(
            desk.clone(),
            Client::default(),
            Arc::clone(&options),
            shutdown.clone(),
            CancellationToken::new(),
        ))
    };
    let service = StreamableHttpService::new(server, manager, config);
    Router::new()
        .route_service("/mcp", service)
        .fallback(nothing_here)
        .layer(from_fn_with_state(sessions, bound_sessions))
        .layer(from_fn_with_state(capacity, read_message))
        .layer(from_fn_with_state(token, with_token))
        .layer(from_fn(as_json))
        // Before the token: a browser asks without it.
        .layer(from_fn_with_state(pages, origins::to_pages))
}

async fn nothing_here() -> Response {
    refuse(StatusCode::NOT_FOUND, "there is nothing here", "the MCP server is at /mcp")
}

/// Lets through who brings the token.
async fn with_token(State(token): State<Token>, request: Request, next: Next) -> Response {
    if token.is_brought_by(request.headers()) {
        return match HttpPeer::authenticate(&request).await {
            Admission::Admitted => next.run(request).await,
            Admission::Full => {
                let message = "the daemon has as many HTTP connections as it serves";
                let hint = "close one, or raise `limits.max_connections`";
                retry_later(refuse(StatusCode::SERVICE_UNAVAILABLE, message, hint))
            }
            Admission::Confined => {
                let message = "the daemon does not serve processes inside a sandboxed call";
                refuse(StatusCode::FORBIDDEN, message, "place the call outside")
            }
        };
    }
    let hint =
        "send `Authorization: Bearer TOKEN`; the token is in the file that the daemon names at its start";
    let mut response = refuse(StatusCode::UNAUTHORIZED, "the bearer token is missing or wrong", hint);
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

/// Makes JSON of every refusal: rmcp's are plain text.
async fn as_json(request: Request, next: Next) -> Response {
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
    let text = to_bytes(body, MAX_REFUSAL_BYTES).await.unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let text = if text.is_empty() { status.canonical_reason().unwrap_or("refused") } else { text.trim() };
    let told = match status {
        // rmcp says which of the two it is, and neither its value nor what to do.
        StatusCode::FORBIDDEN if text.contains("Origin") => {
            not_named(text, origin.as_ref(), "http.allowed_origins")
        }
        StatusCode::FORBIDDEN if text.contains("Host") => {
            not_named(text, host.as_ref(), "http.allowed_hosts")
        }
        StatusCode::NOT_FOUND if text.contains("Session") => {
            let hint = "initialize again: a session is closed when it was idle for a day, or for longer than `http.max_sessions` others";
            refuse(status, "there is no such session", hint)
        }
        _ => error(status, text),
    };
    // What rmcp has said in headers (`Allow`) counts still; how long its text was does not.
    parts.headers.remove(CONTENT_TYPE);
    parts.headers.remove(CONTENT_LENGTH);
    let (told_parts, body) = told.into_parts();
    parts.headers.extend(told_parts.headers);
    Response::from_parts(parts, body)
}

/// Refuses a host or an origin that the operator has not named.
fn not_named(text: &str, value: Option<&HeaderValue>, key: &str) -> Response {
    let value = value.map(HeaderValue::as_bytes).unwrap_or_default();
    let shown: String = String::from_utf8_lossy(value).chars().take(200).collect();
    let hint = format!(
        "if it is one of yours, name it in `{key}` of the configuration and restart the daemon: `switchboard stop --now`"
    );
    refuse(StatusCode::FORBIDDEN, &format!("{text}: `{}`", shown.escape_debug()), &hint)
}

pub(super) fn refuse(status: StatusCode, message: &str, hint: &str) -> Response {
    error(status, &format!("{message}\nhint: {hint}"))
}

/// An error of JSON-RPC whose request is not known.
pub(super) fn error(status: StatusCode, message: &str) -> Response {
    let body = json!({ "jsonrpc": "2.0", "id": null, "error": { "code": -32600, "message": message } });
    (status, [(CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_token_is_made_once_for_the_user_alone() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        let made = Token::in_file(&file).unwrap();
        assert_eq!(made.reveal().len(), TOKEN_DIGITS);
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        assert_eq!(Token::in_file(&file).unwrap().reveal(), made.reveal());
        assert!(!format!("{made:?}").contains(made.reveal()));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(Token::in_file(&file), Err(TokenError::Shared { .. })));
    }

    #[test]
    fn a_file_without_a_token_opens_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        let mut options = OpenOptions::new();
        options.write(true).create(true).mode(0o600).open(&file).unwrap().write_all(b" \n").unwrap();
        assert!(matches!(Token::in_file(&file), Err(TokenError::Empty { .. })));
    }

    #[test]
    fn only_the_whole_token_opens() {
        let token = Token("0123456789abcdef".to_owned());
        let opens = |value: &str| {
            let request = Request::builder().header(AUTHORIZATION, value).body(Body::empty()).unwrap();
            token.is_brought_by(request.headers())
        };
        assert!(opens("Bearer 0123456789abcdef") && opens("bearer 0123456789abcdef"));
        for wrong in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer 0123456789abcde",
            "Bearer 0123456789abcdef0",
            "Basic 0123456789abcdef",
        ] {
            assert!(!opens(wrong), "{wrong}");
        }
    }
}
