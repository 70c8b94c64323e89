//! What only Linux has: the process tree of a subreaper, identities through `/proc`, pidfds, signals as a file.
//!
//! A port to another system gives these functions a sibling module; nothing outside this folder names a Linux interface.

mod copying;
mod forking;
mod identity;
mod inherited;
mod scaffold;
mod seen;
mod signals;
mod spawning;
mod starter;
mod survivors;
mod tree;
mod watch;

pub use copying::{CHUNK, Moved, copy_bytes};
pub use forking::{Forked, fork};
pub use identity::{ProcessHandle, boot_id, is_alive, is_suspended, monotonic_ms, this_process};
pub use inherited::close_inherited_files;
pub use seen::{SeenProcess, processes_below};
pub use signals::{Signals, heed_what_was_ignored, let_signals_act};
pub use starter::Starter;
pub use survivors::{Former, Found, Survivors, find_whose_stdin_is, kill_below, resume_supervisor};
pub use tree::{Children, Pipes, Tree, count_alive, leave_the_caller, usage};
pub use watch::Watch;

/// The running program's own executable, also when its file has been replaced or removed since.
pub const THIS_PROGRAM: &str = "/proc/self/exe";
