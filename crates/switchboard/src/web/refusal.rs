//! What a browser is shown instead of a page: what is wrong, and what to do.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use calls::CallError;
use maud::html;

use super::page;

/// A page that says what is wrong. It knows nobody, so it shows nothing of anybody.
pub fn refuse(status: StatusCode, message: &str, hint: &str) -> Response {
    let main = html! {
        section.blank {
            h1 { (message) }
            p { (page::words(hint)) }
        }
    };
    (status, page::bare(message, &main)).into_response()
}

/// Why a page cannot be shown.
#[derive(Debug)]
pub struct Refusal {
    status: StatusCode,
    message: String,
    hint: String,
}

impl Refusal {
    /// There is no such thing.
    pub fn not_found(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { status: StatusCode::NOT_FOUND, message: message.into(), hint: hint.into() }
    }

    /// It may not be asked for by this one.
    pub fn forbidden(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { status: StatusCode::FORBIDDEN, message: message.into(), hint: hint.into() }
    }

    /// It does not fit how things stand.
    pub fn conflict(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { status: StatusCode::CONFLICT, message: message.into(), hint: hint.into() }
    }

    /// It cannot be asked for like that.
    pub fn bad(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, message: message.into(), hint: hint.into() }
    }
}

impl From<CallError> for Refusal {
    fn from(error: CallError) -> Self {
        let status = match &error {
            CallError::NoSuchJob { .. } => StatusCode::NOT_FOUND,
            CallError::AlreadyEnded { .. } => StatusCode::CONFLICT,
            CallError::Closing => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let hint = match &error {
            CallError::AlreadyEnded { .. } => "its page shows the result".to_owned(),
            CallError::NoSuchJob { .. } => {
                "the list shows all jobs; old ones are removed after a while".to_owned()
            }
            error => error.hint(),
        };
        Self { status, message: error.to_string(), hint }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        refuse(self.status, &self.message, &self.hint)
    }
}
