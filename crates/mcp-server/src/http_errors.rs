//! JSON responses to rejected HTTP requests.

use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// Returns an error with a remedy.
pub(crate) fn error_with_hint(status: StatusCode, message: &str, hint: &str) -> Response {
    error(status, &format!("{message}\nhint: {hint}"))
}

/// Returns a JSON-RPC error without a request id.
pub(crate) fn error(status: StatusCode, message: &str) -> Response {
    let body = json!({ "jsonrpc": "2.0", "id": null, "error": { "code": -32600, "message": message } });
    (status, [(CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}
