//! What browsers ask before a web page may use the server, and what they want to read beside the answer (CORS).
//!
//! Only pages of this machine, and those whose origin the operator has named, get an answer. It opens nothing: every request that
//! follows brings the token.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use axum::http::{HeaderValue, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// What a page may read of an answer beside the usual headers.
const READABLE: &str = "mcp-session-id, www-authenticate";
/// For how long a browser need not ask again, in seconds.
const REMEMBERED: &str = "600";

/// Answers a browser that asks first, and lets it hand answers to pages of these origins.
pub(crate) async fn to_pages(State(allowed): State<Arc<[String]>>, request: Request, next: Next) -> Response {
    let headers = request.headers();
    let origin = headers.get(ORIGIN).filter(|origin| is_allowed(origin, &allowed)).cloned();
    let Some(origin) = origin else { return next.run(request).await };
    let asks_first =
        request.method() == Method::OPTIONS && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = if asks_first {
        let wanted = headers.get(ACCESS_CONTROL_REQUEST_HEADERS).cloned();
        may_ask(wanted)
    } else {
        next.run(request).await
    };
    let told = response.headers_mut();
    told.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    told.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(READABLE));
    told.append(VARY, HeaderValue::from_static("origin"));
    response
}

/// The answer to a browser that asks first. Whatever headers the page wants to send: the protocol has more of them with every revision.
fn may_ask(wanted: Option<HeaderValue>) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let told = response.headers_mut();
    told.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, DELETE"));
    told.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(REMEMBERED));
    if let Some(wanted) = wanted {
        told.insert(ACCESS_CONTROL_ALLOW_HEADERS, wanted);
    }
    response
}

/// Whether an origin is one of these, as rmcp understands them: one without a port, or with `*` for it, is meant with any.
fn is_allowed(origin: &HeaderValue, allowed: &[String]) -> bool {
    let Some(origin) = origin.to_str().ok().and_then(Origin::of) else { return false };
    allowed.iter().any(|allowed| {
        let (any_port, text) = match allowed.trim().strip_suffix(":*") {
            Some(text) => (true, text),
            None => (false, allowed.trim()),
        };
        Origin::of(text).is_some_and(|allowed| {
            let is_port = any_port || allowed.port.is_none() || allowed.port() == origin.port();
            allowed.scheme == origin.scheme && allowed.host == origin.host && is_port
        })
    })
}

/// The origin of a page.
#[derive(Debug)]
struct Origin {
    scheme: String,
    host: String,
    port: Option<u16>,
}

impl Origin {
    fn of(text: &str) -> Option<Self> {
        let uri: Uri = text.parse().ok()?;
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'))?;
        Some(Self {
            scheme: uri.scheme_str()?.to_ascii_lowercase(),
            host: authority.host().to_ascii_lowercase(),
            port: authority.port_u16(),
        })
    }

    /// The one that is meant when none is named, too.
    fn port(&self) -> Option<u16> {
        self.port.or(match self.scheme.as_str() {
            "http" => Some(80),
            "https" => Some(443),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_allowed_by_scheme_host_and_port() {
        let allowed = ["http://localhost:*", "https://app.example:443", "http://any.example", "not one"];
        let allowed = allowed.map(str::to_owned);
        let is = |origin: &'static str| is_allowed(&HeaderValue::from_static(origin), &allowed);
        for origin in [
            "http://localhost",
            "http://localhost:3000",
            "https://app.example",
            "https://APP.example:443",
            "http://any.example:8080",
        ] {
            assert!(is(origin), "{origin}");
        }
        for origin in [
            "https://localhost:3000",
            "http://localhost.evil.example",
            "http://localhost:80@evil.example",
            "https://app.example:8443",
            "http://app.example",
            "null",
            "not one",
            "",
        ] {
            assert!(!is(origin), "{origin}");
        }
    }
}
