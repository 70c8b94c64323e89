//! A child process that is observed and signaled without being reaped, so that its pid cannot be reused meanwhile.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Command;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open, waitid,
};

/// A child process.
#[derive(Debug)]
pub(crate) struct ChildProcess {
    pid: Pid,
    pidfd: OwnedFd,
}

/// The exit of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChildExit {
    /// It exited with this code.
    Code(i32),
    /// It was terminated by this signal.
    Signal(i32),
}

impl ChildProcess {
    pub(crate) fn spawn(command: &mut Command) -> io::Result<Self> {
        let mut child = command.spawn()?;
        let pid = Pid::from_child(&child);
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => Ok(Self { pid, pidfd }),
            Err(error) => {
                child.kill()?;
                child.wait()?;
                Err(error.into())
            }
        }
    }

    /// Returns the exit, if the process has exited.
    pub(crate) fn exit(&self) -> Option<ChildExit> {
        let peek = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = retry_on_intr(|| waitid(WaitId::PidFd(self.pidfd.as_fd()), peek)).ok().flatten()?;
        let code = status.exit_status().map(ChildExit::Code);
        code.or_else(|| status.terminating_signal().map(ChildExit::Signal))
    }

    /// Kills the process group that the process leads. The group outlives its leader.
    pub(crate) fn kill_group(&self) {
        // An error means that no process is left.
        let _ = kill_process_group(self.pid, Signal::KILL);
    }

    /// Blocks until the process has exited.
    pub(crate) fn wait(&self) {
        let _ = retry_on_intr(|| poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], None));
    }

    /// Removes the process from the process table after its exit.
    pub(crate) fn reap(&self) {
        let _ = retry_on_intr(|| waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED));
    }
}

impl AsFd for ChildProcess {
    /// Returns the pidfd, which is readable once the process has exited.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}
