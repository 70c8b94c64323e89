//! CORS: preflight responses and headers for web pages of allowed origins.
//!
//! Grants no access by itself: each request after a preflight still needs the bearer token.

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

/// Response headers that a page may read.
const EXPOSED_HEADERS: &str = "mcp-session-id, www-authenticate";
/// Cache lifetime of a preflight response, in seconds.
const MAX_AGE: &str = "600";

/// Answers preflight requests and adds CORS headers for the allowed origins.
pub(crate) async fn apply_cors(
    State(allowed): State<Arc<[String]>>,
    request: Request,
    next: Next,
) -> Response {
    let headers = request.headers();
    let origin = headers.get(ORIGIN).filter(|origin| is_allowed(origin, &allowed)).cloned();
    let Some(origin) = origin else { return next.run(request).await };
    let is_preflight =
        request.method() == Method::OPTIONS && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = if is_preflight {
        preflight_response(headers.get(ACCESS_CONTROL_REQUEST_HEADERS).cloned())
    } else {
        next.run(request).await
    };
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED_HEADERS));
    headers.append(VARY, HeaderValue::from_static("origin"));
    response
}

/// Returns the response to a preflight request. Allows any header: each revision of MCP adds some.
fn preflight_response(requested: Option<HeaderValue>) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, DELETE"));
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(MAX_AGE));
    if let Some(requested) = requested {
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, requested);
    }
    response
}

/// Returns whether an origin is allowed, by the same rules as rmcp: an entry without a port, or with `*`, matches any port.
fn is_allowed(origin: &HeaderValue, allowed: &[String]) -> bool {
    let Some(origin) = origin.to_str().ok().and_then(Origin::parse) else { return false };
    allowed.iter().any(|allowed| {
        let (any_port, text) = match allowed.trim().strip_suffix(":*") {
            Some(text) => (true, text),
            None => (false, allowed.trim()),
        };
        Origin::parse(text).is_some_and(|allowed| {
            let port_matches =
                any_port || allowed.port.is_none() || allowed.effective_port() == origin.effective_port();
            allowed.scheme == origin.scheme && allowed.host == origin.host && port_matches
        })
    })
}

/// The origin of a web page.
#[derive(Debug)]
struct Origin {
    scheme: String,
    host: String,
    port: Option<u16>,
}

impl Origin {
    fn parse(text: &str) -> Option<Self> {
        let uri: Uri = text.parse().ok()?;
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'))?;
        Some(Self {
            scheme: uri.scheme_str()?.to_ascii_lowercase(),
            host: authority.host().to_ascii_lowercase(),
            port: authority.port_u16(),
        })
    }

    /// Returns the port, or the default port of the scheme.
    fn effective_port(&self) -> Option<u16> {
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
    fn origin_is_matched_by_scheme_host_and_port() {
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
