//! What only Linux has: the process tree of a subreaper, identities through `/proc`, pidfds, signals as a file.
//!
//! A port to another system gives these functions a sibling module; nothing outside this directory names a Linux interface.

mod copy;
mod fork;
mod identity;
mod inherited_files;
mod inotify;
mod process_info;
mod process_table;
mod sandbox_wrapper;
mod signals;
mod spawn;
mod starter;
mod survivors;
mod tree;

pub use copy::{CHUNK, CopyStep, copy_bytes};
pub use fork::{Forked, fork};
pub use identity::{ProcessHandle, boot_id, is_alive, is_suspended, monotonic_ms, this_process};
pub use inherited_files::close_inherited_files;
pub use inotify::InotifyWatch;
pub use process_info::{ProcessInfo, processes_below};
pub use signals::{SignalReader, reset_ignored_signals, unblock_signals};
pub use starter::StarterProcess;
pub use survivors::{DeadSupervisor, KillPass, Survivors, find_supervisors, kill_below, resume_supervisor};
pub use tree::{Children, Pipes, ProcessTree, count_descendants, detach_from_caller, usage};

/// The running program's own executable, also when its file has been replaced or removed since.
pub const THIS_PROGRAM: &str = "/proc/self/exe";
