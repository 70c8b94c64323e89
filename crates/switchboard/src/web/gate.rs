//! Who may come in, and what every answer says to the browser.
//!
//! Three questions to a request: is this server meant (`Host`, against names that somebody else's DNS made up), does a page of ours
//! ask (`Origin`, and what the browser itself says), and has the browser been let in (the cookie). Whoever listens on another port
//! of this machine has the same host, so `SameSite` alone is not enough.

use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, COOKIE, HOST, HeaderName, ORIGIN, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;

use switchboard::listener::{Admission, HttpPeer, retry_later};

use super::Web;
use super::login::Visitor;
use super::refusal::refuse;

/// Nothing from elsewhere, nothing inline, nothing that frames or is framed.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// What every answer says, whatever it is.
const ALWAYS: [(HeaderName, &str); 7] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
    // Not `no-referrer`: with that, a browser says `Origin: null` of our own forms.
    (REFERRER_POLICY, "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("permissions-policy"), "camera=(), geolocation=(), microphone=()"),
];

/// Says it. What an answer has said of its own about being kept stays.
pub async fn with_headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    for (name, value) in ALWAYS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// Lets through what is meant for this server and does not come from another page.
pub async fn from_our_pages(request: Request, next: Next) -> Response {
    let host = header(request.headers(), &HOST).unwrap_or_default();
    if !is_loopback(host) {
        let hint = "address it as 127.0.0.1 or localhost, as the link of `switchboard open` does";
        return refuse(StatusCode::FORBIDDEN, "This is not a name of this server", hint);
    }
    if is_foreign(request.method(), request.headers(), host) {
        let hint = "only its own pages may ask this server for anything";
        return refuse(StatusCode::FORBIDDEN, "This came from another page", hint);
    }
    next.run(request).await
}

/// The names of this machine for itself, with any port: who comes through a tunnel has another one.
fn is_loopback(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    ["127.0.0.1", "localhost", "[::1]"].contains(&name)
}

/// Whether another page asks. A change must prove that it comes from ours; a look must only not be seen to come from another.
fn is_foreign(method: &Method, headers: &HeaderMap, host: &str) -> bool {
    let origin = header(headers, &ORIGIN);
    let ours = origin.map(|origin| origin.strip_prefix("http://") == Some(host));
    let fetched = |name| header(headers, &HeaderName::from_static(name));
    let site = fetched("sec-fetch-site");
    let from_elsewhere = site.is_some_and(|site| !["same-origin", "none"].contains(&site));
    if [Method::GET, Method::HEAD].contains(method) {
        // A link on another page may lead here; what it finds is behind the cookie.
        let navigates = fetched("sec-fetch-mode").is_some_and(|mode| mode == "navigate");
        return ours == Some(false) || (from_elsewhere && !navigates);
    }
    ours != Some(true) || from_elsewhere
}

/// Lets through who has been let in, and tells the page who it is.
pub async fn only_visitors(State(web): State<Web>, mut request: Request, next: Next) -> Response {
    let Some(visitor) = visitor(&web, request.headers()) else {
        return refuse(
            StatusCode::UNAUTHORIZED,
            "You are not logged in",
            "run `switchboard open` in a terminal; the link that it prints lets this browser in",
        );
    };
    match HttpPeer::authenticate(&request).await {
        Admission::Admitted => {
            request.extensions_mut().insert(visitor);
            next.run(request).await
        }
        Admission::Full => retry_later(refuse(
            StatusCode::SERVICE_UNAVAILABLE,
            "Too many pages are open",
            "close some of them; this one then loads",
        )),
        Admission::Confined => refuse(
            StatusCode::FORBIDDEN,
            "This came from inside a confined call",
            "open the page in a browser outside",
        ),
    }
}

/// The visitor whose cookie a request brings.
pub fn visitor(web: &Web, headers: &HeaderMap) -> Option<Visitor> {
    web.doors().visitor(cookie(headers, &web.cookie_name())?, Instant::now())
}

/// The value of a cookie.
pub fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
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
    fn only_this_machine_is_meant() {
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
    fn a_change_must_come_from_our_own_page() {
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
    fn a_look_must_not_come_from_another_page_but_a_link_may_lead_here() {
        assert!(!foreign(&Method::GET, &[]));
        assert!(!foreign(&Method::GET, &[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")]));
        assert!(foreign(&Method::GET, &[("sec-fetch-site", "same-site"), ("sec-fetch-mode", "no-cors")]));
        assert!(foreign(&Method::GET, &[("origin", "http://127.0.0.1:81")]));
    }

    #[test]
    fn a_cookie_is_found_by_its_whole_name() {
        let mut headers = HeaderMap::new();
        headers.insert(COOKIE, HeaderValue::from_static("xa=1; a=2; ab=3"));
        assert_eq!(
            (cookie(&headers, "a"), cookie(&headers, "ab"), cookie(&headers, "b")),
            (Some("2"), Some("3"), None)
        );
    }
}
