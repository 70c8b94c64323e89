//! The style sheet, the script and the icon, embedded in the program.

use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};

/// A static file. Its path contains the version, so that browsers may cache it.
#[derive(Debug)]
pub(crate) struct Asset {
    pub path: &'static str,
    content_type: &'static str,
    text: &'static str,
}

macro_rules! asset {
    ($file:literal, $kind:literal) => {
        Asset {
            path: concat!("/assets/", env!("CARGO_PKG_VERSION"), "/", $file),
            content_type: $kind,
            text: include_str!(concat!("assets/", $file)),
        }
    };
}

pub(crate) const STYLE: Asset = asset!("page.css", "text/css; charset=utf-8");
pub(crate) const SCRIPT: Asset = asset!("page.js", "text/javascript; charset=utf-8");
pub(crate) const ICON: Asset = asset!("icon.svg", "image/svg+xml");

impl Asset {
    /// Returns the asset with this name. A request for another version finds none.
    pub fn find(version: &str, name: &str) -> Option<Self> {
        let is_named = |asset: &Self| asset.path.rsplit('/').next() == Some(name);
        [STYLE, SCRIPT, ICON].into_iter().find(is_named).filter(|_| version == env!("CARGO_PKG_VERSION"))
    }

    /// Returns the response. The cache lifetime is short: during development the file changes, but not the version.
    pub fn response(&self) -> Response {
        let headers = [(CONTENT_TYPE, self.content_type), (CACHE_CONTROL, "private, max-age=60")];
        (headers, self.text).into_response()
    }
}
