//! Suppresses the `^C` echo of a terminal (ECHOCTL) while a progress line is drawn.
//!
//! The progress line ends at the right margin, so the echo would wrap to a new row and shift the next redraw by one row.

use std::io;

use rustix::process::getpgrp;
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcgetpgrp, tcsetattr};

/// Clears ECHOCTL until it is dropped.
#[derive(Debug)]
pub struct EchoGuard(());

impl EchoGuard {
    /// Clears ECHOCTL on stderr; `None` if stderr is not a terminal, ECHOCTL is not set, or this process is in the background.
    pub fn for_stderr() -> Option<Self> {
        let is_set = tcgetattr(io::stderr()).ok()?.local_modes.contains(LocalModes::ECHOCTL);
        (is_set && set_echoctl(false)).then_some(Self(()))
    }
}

impl Drop for EchoGuard {
    fn drop(&mut self) {
        set_echoctl(true);
    }
}

/// Sets or clears ECHOCTL and returns whether that succeeded.
fn set_echoctl(enabled: bool) -> bool {
    let stderr = io::stderr();
    // The kernel stops a background process that changes the terminal (SIGTTOU).
    if tcgetpgrp(&stderr) != Ok(getpgrp()) {
        return false;
    }
    let Ok(mut modes) = tcgetattr(&stderr) else { return false };
    modes.local_modes.set(LocalModes::ECHOCTL, enabled);
    tcsetattr(&stderr, OptionalActions::Now, &modes).is_ok()
}
