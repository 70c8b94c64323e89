//! `switchboard open`: the web page in a browser.

use std::process::{Command, ExitCode, Stdio};

use crate::environment::Environment;
use crate::failure::Failure;
use crate::wire::{Reply, Request};
use crate::{cli, front, jobs, output};

/// What opens a page in the user's browser, the best first.
const OPENERS: [&str; 2] = ["xdg-open", "open"];

/// Asks the daemon for a link, prints it, and opens it where there is a display.
pub fn page(order: &cli::OpenPage) -> Result<ExitCode, Failure> {
    // Asked twice, there are two links, of which one is never used.
    let reply = front::ask(&mut jobs::starter()?, &Request::Open)?;
    let Reply::Link { url } = reply else { return Err(Failure::UnexpectedReply) };
    output::line(&url);
    let environment = Environment::of_this_process();
    let display = ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| environment.get(name).is_some());
    if !order.print && (display || cfg!(target_os = "macos")) && !start_browser(&url) {
        output::aside("no browser could be started; open the link yourself");
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether somebody took the link. The browser goes on without this program.
#[expect(clippy::disallowed_methods, reason = "a browser is no agent; nothing is awaited of it")]
fn start_browser(url: &str) -> bool {
    OPENERS.iter().any(|opener| {
        let (stdin, stdout) = (Stdio::null(), Stdio::null());
        let opened = Command::new(opener).arg(url).stdin(stdin).stdout(stdout).stderr(Stdio::null()).status();
        opened.is_ok_and(|status| status.success())
    })
}
