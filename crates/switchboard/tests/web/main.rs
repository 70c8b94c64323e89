//! The web page of a real daemon: over plain HTTP, and in a real browser if one is installed.
#![expect(clippy::disallowed_methods, clippy::print_stdout, clippy::unwrap_used, reason = "a test may")]

#[path = "../e2e/harness.rs"]
#[expect(dead_code, reason = "the bed has more than this suite needs")]
mod bed;
mod changes;
mod chromium;
mod groups;
mod live;
mod login;
mod pages;
mod visitor;
