//! Error pages: the problem and the remedy.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use calls::CallError;
use maud::html;

use crate::page;

/// Returns an error page. It contains no data of a visitor, who may not be logged in.
pub(crate) fn error_page(status: StatusCode, message: &str, hint: &str) -> Response {
    let main = html! {
        section.blank {
            h1 { (message) }
            p { (page::inline_code(hint)) }
        }
    };
    (status, page::bare_page(message, &main)).into_response()
}

/// The reason why a page cannot be shown.
#[derive(Debug)]
pub(crate) struct PageRejection {
    status: StatusCode,
    pub message: String,
    pub hint: String,
}

impl PageRejection {
    /// Creates a 404.
    pub fn not_found(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { status: StatusCode::NOT_FOUND, message: message.into(), hint: hint.into() }
    }

    /// Creates a 403.
    pub fn forbidden(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { status: StatusCode::FORBIDDEN, message: message.into(), hint: hint.into() }
    }

    /// Creates a 409.
    pub fn conflict(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { status: StatusCode::CONFLICT, message: message.into(), hint: hint.into() }
    }

    /// Creates a 400.
    pub fn bad_request(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, message: message.into(), hint: hint.into() }
    }
}

impl From<CallError> for PageRejection {
    fn from(error: CallError) -> Self {
        let status = match &error {
            CallError::NoSuchJob { .. } | CallError::ChangesMissing { .. } => StatusCode::NOT_FOUND,
            CallError::AlreadyEnded { .. }
            | CallError::Checkout(_)
            | CallError::Group(_)
            | CallError::NoCheckout { .. }
            | CallError::ChangesState { .. }
            | CallError::Continued { .. }
            | CallError::StillRunning { .. }
            | CallError::WorktreeInUse { .. } => StatusCode::CONFLICT,
            CallError::Closing => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let hint = match &error {
            // The hints of `calls` name no page.
            CallError::AlreadyEnded { .. } => "see its page for the outcome".to_owned(),
            CallError::NoSuchJob { .. } => {
                "all jobs are at `/`; old jobs are removed after a while".to_owned()
            }
            CallError::StoppedUnkept { source, .. } => {
                format!("see its page for the outcome; {}", source.hint())
            }
            CallError::NoEarlierSession { .. } | CallError::SessionElsewhere { .. } => {
                "resume a session with `switchboard call --session ID`".to_owned()
            }
            error => error.hint(),
        };
        Self { status, message: error.to_string(), hint }
    }
}

impl IntoResponse for PageRejection {
    fn into_response(self) -> Response {
        error_page(self.status, &self.message, &self.hint)
    }
}
