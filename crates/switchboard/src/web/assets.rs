//! The files that every page uses. They are in the program itself; there is nothing to build and nothing to install.

use axum::extract::Path;
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};

use super::refusal::Refusal;
use protocol::VERSION;

/// A file, and under which name it is asked for. The name has the version in it, so a browser may keep it.
#[derive(Debug)]
pub struct Asset {
    pub path: &'static str,
    kind: &'static str,
    text: &'static str,
}

macro_rules! asset {
    ($file:literal, $kind:literal) => {
        Asset {
            path: concat!("/assets/", env!("CARGO_PKG_VERSION"), "/", $file),
            kind: $kind,
            text: include_str!(concat!("assets/", $file)),
        }
    };
}

pub const STYLE: Asset = asset!("page.css", "text/css; charset=utf-8");
pub const SCRIPT: Asset = asset!("page.js", "text/javascript; charset=utf-8");
pub const ICON: Asset = asset!("icon.svg", "image/svg+xml");

/// A file by its name. What is of another version is not there.
pub async fn file(Path((version, name)): Path<(String, String)>) -> Result<Response, Refusal> {
    let found = [STYLE, SCRIPT, ICON].into_iter().find(|asset| asset.path.rsplit('/').next() == Some(&name));
    let Some(asset) = found.filter(|_| version == VERSION) else {
        return Err(Refusal::not_found(
            "There is no such file",
            "load the page anew: the daemon is of another version",
        ));
    };
    // Not for long: while this is being worked on, the version stays and the file does not.
    let headers = [(CONTENT_TYPE, asset.kind), (CACHE_CONTROL, "private, max-age=60")];
    Ok((StatusCode::OK, headers, asset.text).into_response())
}
