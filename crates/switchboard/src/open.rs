//! `switchboard open`: the web page in a browser.

use std::process::{Command, ExitCode, Stdio};

use agents::doctor::Lookup;
use protocol::{DaemonRequest, ProcessEnvironment, RequestError};

use crate::client::{self, JobReply};
use crate::failure::CommandFailure;
use crate::{cli, machine, output};

/// The programs that open a link in the user's browser, best first.
const OPENERS: [&str; 2] = ["xdg-open", "open"];

/// Requests a link from the daemon, prints it, and opens it if there is a display.
pub fn run(args: &cli::OpenPage) -> Result<ExitCode, CommandFailure> {
    // Idempotent enough: a repeated request leaves an unused link.
    let reply = protocol::request(&mut client::connector()?, &DaemonRequest::Open)?;
    let JobReply::Link { url } = reply else { return Err(RequestError::UnexpectedReply.into()) };
    output::line(&url);
    let environment = ProcessEnvironment::current();
    let display = ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| environment.get(name).is_some());
    if !args.print && (display || cfg!(target_os = "macos")) {
        start_browser(&url, &machine::program_lookup(&environment));
    }
    Ok(ExitCode::SUCCESS)
}

/// Opens the link in a browser, which keeps running after this program exits. Programs inside of workspaces are not run.
#[expect(clippy::disallowed_methods, reason = "a browser is not an agent")]
fn start_browser(url: &str, lookup: &Lookup) {
    for opener in OPENERS {
        let program = match lookup.find_outside(opener) {
            Ok(Some(program)) => program,
            Ok(None) => continue,
            Err(error) => {
                output::aside(&format!("note: {error}"));
                continue;
            }
        };
        let (stdin, stdout) = (Stdio::null(), Stdio::null());
        let mut command = Command::new(program);
        command.arg(url).env("PATH", lookup.path_outside()).stdin(stdin).stdout(stdout).stderr(Stdio::null());
        if command.status().is_ok_and(|status| status.success()) {
            return;
        }
    }
    output::aside("no browser could be started; open the link yourself");
}
