//! Access checks and security headers.
//!
//! Three checks per request: the `Host` header names this server (against DNS rebinding), the request comes from our own page (`Origin`
//! and the browser's `Sec-Fetch-*` headers), and the browser is logged in (the cookie). `SameSite` alone is not enough, because a server
//! on another port of this machine has the same host.

use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, COOKIE, HOST, HeaderName, ORIGIN, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;

use http_listener::{Admission, HttpPeer, retry_later};

use crate::context::PageContext;
use crate::login::WebVisitor;
use crate::rejection::error_page;

/// Content security policy: no other origins, no inline code, no frames.
const CONTENT_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Headers of every response.
const SECURITY_HEADERS: [(HeaderName, &str); 7] = [
    (CONTENT_SECURITY_POLICY, CONTENT_POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
    // Not `no-referrer`: browsers would send `Origin: null` for our own forms.
    (REFERRER_POLICY, "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("permissions-policy"), "camera=(), geolocation=(), microphone=()"),
];

/// Adds the security headers, and `no-store` unless the response has its own `Cache-Control`.
pub(crate) async fn add_security_headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    for (name, value) in SECURITY_HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// Rejects requests with a foreign host, and requests from pages of other origins.
pub(crate) async fn reject_foreign_requests(request: Request, next: Next) -> Response {
    let host = header(request.headers(), &HOST).unwrap_or_default();
    if !is_loopback(host) {
        let hint = "use 127.0.0.1 or localhost, as in the link of `switchboard open`";
        return error_page(StatusCode::FORBIDDEN, "Unknown host name", hint);
    }
    if is_foreign(request.method(), request.headers(), host) {
        let hint = "this server accepts requests only from its own pages";
        return error_page(StatusCode::FORBIDDEN, "Request from another site", hint);
    }
    next.run(request).await
}

/// Returns whether a host is loopback. Accepts any port: a tunnel uses its own.
fn is_loopback(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    ["127.0.0.1", "localhost", "[::1]"].contains(&name)
}

/// Returns whether a request comes from another site. A change must prove that it comes from our page; a read is rejected only if the
/// headers name another site.
fn is_foreign(method: &Method, headers: &HeaderMap, host: &str) -> bool {
    let origin = header(headers, &ORIGIN);
    let ours = origin.map(|origin| origin.strip_prefix("http://") == Some(host));
    let fetched = |name| header(headers, &HeaderName::from_static(name));
    let site = fetched("sec-fetch-site");
    let from_elsewhere = site.is_some_and(|site| !["same-origin", "none"].contains(&site));
    if [Method::GET, Method::HEAD].contains(method) {
        // Other sites may link here: the page behind the link still requires the cookie.
        let navigates = fetched("sec-fetch-mode").is_some_and(|mode| mode == "navigate");
        return ours == Some(false) || (from_elsewhere && !navigates);
    }
    ours != Some(true) || from_elsewhere
}

/// Rejects browsers that are not logged in, and adds the visitor to the request.
pub(crate) async fn require_login(
    State(context): State<PageContext>,
    mut request: Request,
    next: Next,
) -> Response {
    let Some(visitor) = find_visitor(&context, request.headers()) else {
        return error_page(
            StatusCode::UNAUTHORIZED,
            "You are not logged in",
            "run `switchboard open` in a terminal and open the link that it prints",
        );
    };
    match HttpPeer::authenticate(&request).await {
        Admission::Admitted => {
            request.extensions_mut().insert(visitor);
            next.run(request).await
        }
        Admission::Full => retry_later(error_page(
            StatusCode::SERVICE_UNAVAILABLE,
            "Too many pages are open",
            "close some of them and reload this one",
        )),
    }
}

/// Returns the visitor whose cookie a request carries.
pub(crate) fn find_visitor(context: &PageContext, headers: &HeaderMap) -> Option<WebVisitor> {
    context.logins().find_visitor(cookie(headers, &context.cookie_name())?, Instant::now())
}

/// Returns the value of a cookie.
pub(crate) fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let lines = headers.get_all(COOKIE).iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(';')).find_map(|pair| pair.trim().strip_prefix(name)?.strip_prefix('='))
}

fn header<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_hosts_are_accepted() {
        for host in ["127.0.0.1", "127.0.0.1:8080", "localhost:1", "[::1]:9"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in
            ["", "evil.example", "127.0.0.1.evil.example:80", "localhost.:80", "127.0.0.1:80:x", "0.0.0.0:1"]
        {
            assert!(!is_loopback(host), "{host}");
        }
    }

    fn foreign(method: &Method, headers: &[(&'static str, &'static str)]) -> bool {
        let headers = headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        is_foreign(method, &headers.collect(), "127.0.0.1:80")
    }

    #[test]
    fn change_requires_own_origin() {
        assert!(!foreign(&Method::POST, &[("origin", "http://127.0.0.1:80")]));
        for headers in [
            &[][..],
            &[("origin", "null")],
            &[("origin", "http://127.0.0.1:81")],
            &[("origin", "https://127.0.0.1:80")],
            &[("origin", "http://127.0.0.1:80"), ("sec-fetch-site", "same-site")],
        ] {
            assert!(foreign(&Method::POST, headers), "{headers:?}");
        }
    }

    #[test]
    fn read_from_another_site_requires_navigation() {
        assert!(!foreign(&Method::GET, &[]));
        assert!(!foreign(&Method::GET, &[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")]));
        assert!(foreign(&Method::GET, &[("sec-fetch-site", "same-site"), ("sec-fetch-mode", "no-cors")]));
        assert!(foreign(&Method::GET, &[("origin", "http://127.0.0.1:81")]));
    }

    #[test]
    fn cookie_is_found_by_its_exact_name() {
        let mut headers = HeaderMap::new();
        headers.insert(COOKIE, HeaderValue::from_static("xa=1; a=2; ab=3"));
        assert_eq!(
            (cookie(&headers, "a"), cookie(&headers, "ab"), cookie(&headers, "b")),
            (Some("2"), Some("3"), None)
        );
    }
}
