//! Keeps a terminal from writing `^C` into what is drawn on it.
//!
//! The line of progress ends at the right margin, so that mark would begin a row of its own, and what is drawn next would be drawn
//! one row too low. Every other key is shown as before.

use std::io;

use rustix::process::getpgrp;
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcgetpgrp, tcsetattr};

/// Holds the mark back for as long as it lives.
#[derive(Debug)]
pub struct NoMark(());

impl NoMark {
    /// None where stderr is no terminal, does not write such a mark, or is not ours at the moment.
    pub fn on_stderr() -> Option<Self> {
        let marks = tcgetattr(io::stderr()).ok()?.local_modes.contains(LocalModes::ECHOCTL);
        (marks && set(false)).then_some(Self(()))
    }
}

impl Drop for NoMark {
    fn drop(&mut self) {
        set(true);
    }
}

/// Whether it was done.
fn set(marks: bool) -> bool {
    let stderr = io::stderr();
    // Whoever is in the background and changes the terminal is stopped by the kernel.
    if tcgetpgrp(&stderr) != Ok(getpgrp()) {
        return false;
    }
    let Ok(mut modes) = tcgetattr(&stderr) else { return false };
    modes.local_modes.set(LocalModes::ECHOCTL, marks);
    tcsetattr(&stderr, OptionalActions::Now, &modes).is_ok()
}
