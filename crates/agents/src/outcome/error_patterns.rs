//! Classifies an agent's error messages and HTTP statuses.
//!
//! Owns the phrases, collected from the real programs. A last resort: error codes and statuses take precedence.

use std::time::Duration;

use model::FailureKind;

/// Returns the failure kind of an HTTP status of a model's API. `None` if it is ambiguous.
pub(super) fn kind_from_status(status: u16) -> Option<FailureKind> {
    Some(match status {
        401 | 403 => FailureKind::Auth,
        408 => FailureKind::Network,
        429 => FailureKind::RateLimit { retry_after: None },
        502..=504 | 529 => FailureKind::Overloaded,
        400..=599 => FailureKind::AgentError,
        _ => return None,
    })
}

/// Phrases in lower case, most specific first.
const PHRASES: &[(&str, Phrase)] = &[
    // The sandbox proxy's reply, with status 403, if the policy does not list the API's host.
    ("switchboard: the policy does not list this host", Phrase::RefusedHost),
    ("switchboard: the host leads to an address that the policy does not list", Phrase::RefusedHost),
    ("no conversation found with session id", Phrase::SessionNotFound),
    ("no rollout found for", Phrase::SessionNotFound),
    ("requires a valid session id", Phrase::SessionNotFound),
    ("invalid session identifier", Phrase::SessionNotFound),
    ("no previous sessions found", Phrase::SessionNotFound),
    ("session not found", Phrase::SessionNotFound),
    ("is already in use", Phrase::SessionInUse),
    ("already exists. use --resume", Phrase::SessionInUse),
    ("reached maximum number of turns", Phrase::MaxTurns),
    ("reached max session turns", Phrase::MaxTurns),
    ("reached maximum budget", Phrase::MaxBudget),
    ("rate limit", Phrase::RateLimit),
    ("rate_limit", Phrase::RateLimit),
    ("too many requests", Phrase::RateLimit),
    ("usage limit", Phrase::RateLimit),
    ("hit your limit", Phrase::RateLimit),
    ("exceeded your current quota", Phrase::RateLimit),
    ("resource_exhausted", Phrase::RateLimit),
    ("overloaded", Phrase::Overloaded),
    ("at capacity", Phrase::Overloaded),
    ("high demand", Phrase::Overloaded),
    ("not logged in", Phrase::Auth),
    ("please run /login", Phrase::Auth),
    ("invalid api key", Phrase::Auth),
    ("api key not valid", Phrase::Auth),
    ("incorrect api key", Phrase::Auth),
    ("failed to authenticate", Phrase::Auth),
    ("unauthorized", Phrase::Auth),
    ("unauthenticated", Phrase::Auth),
    ("authentication", Phrase::Auth),
    ("missing environment variable", Phrase::Auth),
    ("must specify the gemini_api_key", Phrase::Auth),
    ("please set an auth method", Phrase::Auth),
    ("forbidden", Phrase::Auth),
    ("api cannot be reached", Phrase::Network),
    ("econnrefused", Phrase::Network),
    ("econnreset", Phrase::Network),
    ("enotfound", Phrase::Network),
    ("etimedout", Phrase::Network),
    ("eai_again", Phrase::Network),
    ("connection error", Phrase::Network),
    ("connection refused", Phrase::Network),
    ("connection reset", Phrase::Network),
    ("network error", Phrase::Network),
    ("stream disconnected", Phrase::Network),
    ("error sending request", Phrase::Network),
    ("fetch failed", Phrase::Network),
    ("api error: terminated", Phrase::Network),
    ("unable to connect", Phrase::Network),
    ("connection to the api was lost", Phrase::Network),
];

#[derive(Clone, Copy)]
enum Phrase {
    RefusedHost,
    Auth,
    MaxBudget,
    MaxTurns,
    Network,
    Overloaded,
    RateLimit,
    SessionInUse,
    SessionNotFound,
}

/// Returns the failure kind of a message.
pub(super) fn kind_from_message(message: &str) -> Option<FailureKind> {
    let message = message.to_lowercase();
    let found = PHRASES.iter().find(|(phrase, _)| message.contains(phrase));
    // A status in the message is more precise than the phrases, except for kinds without a status.
    let by_status = status_in(&message).and_then(kind_from_status);
    match found {
        Some((_, Phrase::SessionNotFound)) => Some(FailureKind::SessionNotFound),
        Some((_, Phrase::SessionInUse)) => Some(FailureKind::SessionInUse),
        Some((_, Phrase::MaxTurns)) => Some(FailureKind::MaxTurns),
        Some((_, Phrase::MaxBudget)) => Some(FailureKind::MaxBudget),
        Some((_, Phrase::RefusedHost)) => Some(FailureKind::Network),
        _ if by_status.as_ref().is_some_and(|kind| *kind != FailureKind::AgentError) => by_status,
        Some((_, Phrase::RateLimit)) => Some(FailureKind::RateLimit { retry_after: None }),
        Some((_, Phrase::Overloaded)) => Some(FailureKind::Overloaded),
        Some((_, Phrase::Auth)) => Some(FailureKind::Auth),
        Some((_, Phrase::Network)) => Some(FailureKind::Network),
        None => by_status,
    }
}

/// Returns the status in `last status: 429`, `unexpected status 401`, `"code":500`, `API Error: 529`, `(429)`.
fn status_in(message: &str) -> Option<u16> {
    ["status: ", "status ", "\"code\":", "code: ", "api error: ", "("].iter().find_map(|before| {
        message.match_indices(before).find_map(|(at, _)| {
            let rest = message[at + before.len()..].trim_start();
            let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            rest[..digits].parse().ok().filter(|status| digits == 3 && (400..600).contains(status))
        })
    })
}

/// Returns the reason of gemini's latest retry, which it prints only to stderr: `Attempt 2 failed with status 429. Retrying with
/// backoff... _ApiError: {…}`, `Attempt 2 failed: …`.
pub(super) fn retried_request(stderr: &str) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct ApiError {
        error: ApiErrorBody,
    }
    #[derive(serde::Deserialize)]
    struct ApiErrorBody {
        code: u16,
        message: String,
    }
    let is_retry = |line: &&str| line.starts_with("Attempt ") && line.contains(" failed");
    let (_, reason) = stderr.lines().rev().find(is_retry)?.split_once(" failed")?;
    let json = reason.find('{').and_then(|at| serde_json::from_str::<ApiError>(&reason[at..]).ok());
    if let Some(ApiError { error }) = json {
        return Some(format!("{} (HTTP {})", error.message, error.code));
    }
    let reason = reason.split("Retrying").next().unwrap_or_default();
    let reason = reason.trim_matches([':', ' ', '.']).trim_start_matches("with ");
    Some(reason.to_owned()).filter(|reason| !reason.is_empty())
}

/// Returns the waiting time in a message: `retry after 30s`, `try again in 3 days 2 hours`, `limit reached|1767225600`.
pub(super) fn retry_after(message: &str, now: u64) -> Option<Duration> {
    let message = message.to_lowercase();
    let phrases = ["retry after ", "try again in ", "retry in ", "retry-after: ", "retrydelay\":\""];
    let wait = phrases.iter().find_map(|before| {
        let (_, rest) = message.split_once(before)?;
        span(rest)
    });
    wait.or_else(|| {
        let (_, rest) = message.split_once("limit reached|")?;
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let until: u64 = rest[..digits].parse().ok()?;
        Some(Duration::from_secs(until.saturating_sub(now)))
    })
}

/// Parses a duration at the start of a text, in days to milliseconds. A number without a unit counts seconds.
fn span(mut text: &str) -> Option<Duration> {
    let mut sum = None;
    loop {
        text = text.trim_start_matches([' ', ',']).trim_start_matches("and ");
        let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
        let Ok(number) = text[..digits].trim_end_matches('.').parse::<f64>() else { return sum };
        text = text[digits..].trim_start();
        let letters = text.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(text.len());
        let seconds = match &text[..letters] {
            "ms" | "millisecond" | "milliseconds" => 0.001,
            "" | "s" | "sec" | "secs" | "second" | "seconds" => 1.0,
            "m" | "min" | "mins" | "minute" | "minutes" => 60.0,
            "h" | "hr" | "hrs" | "hour" | "hours" => 3600.0,
            "d" | "day" | "days" => 86_400.0,
            _ => return sum,
        };
        text = &text[letters..];
        let part = Duration::try_from_secs_f64(number * seconds).ok()?;
        sum = Some(sum.unwrap_or(Duration::ZERO).saturating_add(part));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn real_error_messages_are_classified() {
        let limited = FailureKind::RateLimit { retry_after: None };
        for (message, kind) in [
            ("Not logged in · Please run /login", FailureKind::Auth),
            ("Invalid API key · Fix external API key", FailureKind::Auth),
            ("Failed to authenticate. API Error: 403 Your API key does not have", FailureKind::Auth),
            (
                "unexpected status 403 Forbidden: switchboard: the policy does not list this host, url: http://127.0.0.1:45267/v1/responses",
                FailureKind::Network,
            ),
            ("unexpected status 401 Unauthorized: bad key, url: http://x/", FailureKind::Auth),
            ("exceeded retry limit, last status: 429 Too Many Requests", limited.clone()),
            ("API Error: Request rejected (429) · This request would exceed", limited.clone()),
            ("[API Error: You exceeded your current quota, please check]", limited.clone()),
            ("You've hit your usage limit. Upgrade to Pro", limited),
            ("API Error: 529 Overloaded. This is a server-side issue", FailureKind::Overloaded),
            ("Selected model is at capacity. Please try a different model.", FailureKind::Overloaded),
            ("API Error: Connection to the API was lost (ECONNRESET).", FailureKind::Network),
            ("stream disconnected before completion: Transport error", FailureKind::Network),
            ("[API Error: terminated]", FailureKind::Network),
            ("Session ID 0 is already in use.", FailureKind::SessionInUse),
            ("No conversation found with session ID: 0", FailureKind::SessionNotFound),
            (
                "thread/resume failed: no rollout found for thread id 0 (code -32600)",
                FailureKind::SessionNotFound,
            ),
            (r#"[API Error: {"error":{"code":500,"message":"internal"}}]"#, FailureKind::AgentError),
        ] {
            assert_eq!(kind_from_message(message), Some(kind), "{message}");
        }
        assert_eq!(kind_from_message("TypeError: x is not a function"), None);
    }

    #[test]
    fn latest_gemini_retry_reason_is_parsed() {
        let notice = |status: u16| {
            format!(
                "Attempt 1 failed with status {status}. Retrying with backoff... _ApiError: \
                 {{\"error\":{{\"code\":{status},\"message\":\"no quota\",\"status\":\"X\"}}}}\n    at x (y.js:1:2)"
            )
        };
        let both = format!("Warning: x\n{}\n{}\n", notice(503), notice(429));
        assert_eq!(retried_request(&both).as_deref(), Some("no quota (HTTP 429)"));
        assert_eq!(retried_request("Attempt 3 failed: You exceeded it").as_deref(), Some("You exceeded it"));
        assert_eq!(
            retried_request("Attempt 1 failed with status 500. Retrying with backoff... Error").as_deref(),
            Some("status 500")
        );
        assert_eq!(retried_request("Warning: x\n"), None);
    }

    #[test]
    fn retry_delay_is_parsed_from_message() {
        for (message, seconds) in [
            ("Suggested retry after 30s.]", Some(30.0)),
            ("Please retry in 34.5s.", Some(34.5)),
            ("try again in 3 days 2 hours 5 minutes.", Some(266_700.0)),
            ("Try again in 1 hour and 1 minute", Some(3660.0)),
            ("retry-after: 7", Some(7.0)),
            ("Claude AI usage limit reached|1100", Some(100.0)),
            ("try again in a moment", None),
            ("try again later", None),
            ("retry after 99999999999999999999999999s", None),
        ] {
            assert_eq!(retry_after(message, 1000).map(|wait| wait.as_secs_f64()), seconds, "{message}");
        }
    }

    #[test]
    fn oversized_retry_delay_saturates() {
        let message = "retry after 18446744073709549568s 18446744073709549568s 18446744073709549568s";
        assert_eq!(retry_after(message, 1000), Some(Duration::MAX));
    }
}
