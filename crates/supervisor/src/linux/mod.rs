//! The Linux interfaces: subreaper, process table, pidfd, signalfd, inotify.
//!
//! A port to another system adds a sibling module with the same functions. No Linux interface is named outside this
//! directory.

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
mod stdin_socket;
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
pub use stdin_socket::{SendStep, StdinSocket};
pub use survivors::{DeadSupervisor, KillPass, Survivors, find_supervisors, kill_below, resume_supervisor};
pub use tree::{Children, Pipes, ProcessTree, count_descendants, detach_from_caller, usage};

/// The running program's executable, even if its file has been replaced or deleted since.
pub const THIS_PROGRAM: &str = "/proc/self/exe";
