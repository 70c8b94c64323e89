//! A process that forks supervisors.
//!
//! Executing a program takes longer than the rest of the start of a run: the kernel maps it, the loader binds it, the
//! runtime initializes. A program that starts many runs (the daemon) keeps one process that has done all this,
//! connected by a socket. It forks supervisors ahead of time. An idle supervisor completes its setup as far as
//! possible, waits for a spool on the shared socket, and then continues as if it had been executed with it. It reports
//! the assignment, and the fork server forks the next one; under load, several idle supervisors are kept. When the
//! starter exits, so do the fork server and the idle supervisors. Supervisors with a spool are not affected.

use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, kill_process_group, setsid, wait,
};
use rustix::stdio::{dup2_stdin, dup2_stdout};
use tokio::process::Child;

use crate::locked_spool::LockedSpool;
use crate::manifest::RunManifest;
use crate::os::{self, Forked, SignalReader};
use crate::readiness::is_readable;
use crate::setup::{PreforkSetup, ProcessSetup};

/// The argument that starts a fork server instead of a supervisor.
pub(crate) const FORK_SERVER_ARG: &str = "--fork-server";

/// The maximum length of a spool path.
const MAX_PATH_BYTES: usize = 4096;

/// The delay before a failed fork is retried.
const FORK_RETRY_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// The maximum number of supervisors in a row that may die idle. More mean a systematic failure, and the starter is
/// better off without a fork server.
const MAX_LOST: usize = 5;

/// The maximum number of idle supervisors, reached only under concurrent requests.
const MAX_IDLE: usize = 4;

/// The starter's end of a fork server.
#[derive(Debug)]
pub(crate) struct ForkServer {
    socket: OwnedFd,
    /// Reaped by the runtime.
    process: Child,
}

impl ForkServer {
    /// Starts a fork server. `spawn` receives the socket that becomes its stdin.
    pub fn start(spawn: impl FnOnce(OwnedFd) -> io::Result<Child>) -> io::Result<Self> {
        let kind = SocketType::SEQPACKET;
        let (socket, peer) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
        Ok(Self { process: spawn(peer)?, socket })
    }

    /// Requests a supervisor for a spool, with `status_pipe` as its stdout. Fails without any effect if the fork server
    /// has exited or its socket buffer is full.
    pub fn fork_supervisor(
        &self,
        spool: &LockedSpool,
        directory: &Path,
        status_pipe: BorrowedFd<'_>,
    ) -> io::Result<()> {
        let files = [spool.as_fd(), status_pipe];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut attached = SendAncillaryBuffer::new(&mut space);
        attached.push(SendAncillaryMessage::ScmRights(&files));
        sendmsg(
            &self.socket,
            &[IoSlice::new(directory.as_os_str().as_bytes())],
            &mut attached,
            SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
        )?;
        Ok(())
    }

    /// Returns whether the fork server is suspended and therefore cannot fork.
    pub fn is_suspended(&self) -> bool {
        let pid = self.process.id().and_then(|id| i32::try_from(id).ok());
        pid.is_some_and(|pid| os::is_suspended(pid).unwrap_or(false))
    }

    /// Continues the fork server and the idle supervisors.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Kills the fork server and the idle supervisors, with all unread requests. Supervisors with a spool have left the
    /// process group and continue.
    pub fn kill(self) {
        self.signal(Signal::KILL);
    }

    fn signal(&self, signal: Signal) {
        // The child has not been reaped yet, so its pid cannot have been reused.
        let group = self.process.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        if let Some(group) = group {
            // ESRCH: it has already exited.
            let _ = kill_process_group(group, signal);
        }
    }
}

/// A forked supervisor with its spool, which is its stdin.
pub(crate) struct ForkedSupervisor {
    pub directory: OsString,
    pub setup: ProcessSetup,
}

/// Runs the main loop of the fork server until its starter exits, and then returns `None`. Also returns in each forked
/// supervisor: with its spool, or with `None` if the starter exits before it gets one.
///
/// Must come first in a process, before anything opens a file or starts a thread.
pub(crate) fn serve_forks() -> io::Result<Option<ForkedSupervisor>> {
    os::close_inherited_files()?;
    // Detach from the terminal and its signals.
    setsid()?;
    let signals = SignalReader::block()?;
    // Inherited by all supervisors.
    os::reset_ignored_signals();
    os::boot_id()?;
    let (assigned, report_assigned) = pipe_with(PipeFlags::CLOEXEC)?;
    let (mut idle, mut wanted, mut lost) = (Vec::new(), 1, 0);
    while lost < MAX_LOST {
        while idle.len() < wanted {
            match os::fork() {
                Ok(Forked::Child) => {
                    drop((signals, assigned));
                    return wait_for_spool(&report_assigned);
                }
                Ok(Forked::Parent(child)) => idle.push(child.as_raw_pid()),
                // Out of processes or memory: requests wait in the socket until a later fork succeeds.
                Err(_) => break,
            }
        }
        let socket = io::stdin();
        let mut files = [
            PollFd::new(&signals, PollFlags::IN),
            PollFd::new(&assigned, PollFlags::IN),
            // Only for hang-ups: the idle supervisors receive the requests.
            PollFd::new(&socket, PollFlags::empty()),
        ];
        match poll(&mut files, idle.is_empty().then_some(&FORK_RETRY_INTERVAL)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let [by_signal, by_child, by_socket] = files.map(|file| !file.revents().is_empty());
        if by_child {
            let mut pid = [0; size_of::<i32>()];
            rustix::io::read(&assigned, &mut pid)?;
            idle.retain(|child| *child != i32::from_ne_bytes(pid));
            // Another request is waiting, so one idle supervisor is not enough.
            wanted = if is_readable(&socket)? { MAX_IDLE.min(wanted + 1) } else { 1 };
            lost = 0;
        }
        if by_signal {
            if signals.read_pending()?.stop {
                return Ok(None);
            }
            let exited = reap(&idle);
            let before = idle.len();
            idle.retain(|child| !exited.contains(child));
            // They were killed or suspended while idle, or their setup failed.
            lost += before - idle.len();
        }
        if by_socket {
            return Ok(None);
        }
    }
    Ok(None)
}

/// Reaps children and returns the pids of those that accept no spool any more. Reaping also adds their CPU time to this
/// process and so to the starter. Idle supervisors that are suspended are killed: they could consume the wake-up for a
/// request.
fn reap(idle: &[i32]) -> Vec<i32> {
    let changed = std::iter::from_fn(|| wait(WaitOptions::NOHANG | WaitOptions::UNTRACED).ok().flatten());
    let is_gone = |(child, status): (Pid, WaitStatus)| {
        let pid = child.as_raw_pid();
        if status.stopped() && idle.contains(&pid) {
            // Not reaped yet, so the pid cannot have been reused.
            let _ = kill_process(child, Signal::KILL);
            return Some(pid);
        }
        (!status.stopped()).then_some(pid)
    };
    changed.filter_map(is_gone).collect()
}

/// A request for a supervisor.
struct ForkRequest {
    path: OsString,
    directory: OwnedFd,
    status_pipe: OwnedFd,
}

/// Waits in an idle supervisor for a spool. Signals keep their default action until there is one: an idle supervisor
/// needs no cleanup.
fn wait_for_spool(report_assigned: &OwnedFd) -> io::Result<Option<ForkedSupervisor>> {
    let prefork = PreforkSetup::new()?;
    RunManifest::warm_up_parser();
    os::unblock_signals()?;
    // The kernel wakes one idle supervisor per request.
    let Some(ForkRequest { path: directory, directory: open, status_pipe }) = receive_request()? else {
        return Ok(None);
    };
    let setup = prefork.block_signals()?;
    dup2_stdin(&open)?;
    dup2_stdout(&status_pipe)?;
    // If the fork server is gone, no process needs the report.
    let _ = rustix::io::write(report_assigned, &getpid().as_raw_pid().to_ne_bytes());
    Ok(Some(ForkedSupervisor { directory, setup }))
}

/// Receives the next request, or `None` if the starter has exited.
fn receive_request() -> io::Result<Option<ForkRequest>> {
    let mut path = vec![0; MAX_PATH_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut attached = RecvAncillaryBuffer::new(&mut space);
    let socket = io::stdin();
    let received = loop {
        let into = &mut [IoSliceMut::new(&mut path)];
        match recvmsg(socket.as_fd(), into, &mut attached, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            received => break received?,
        }
    };
    if received.bytes == 0 {
        return Ok(None);
    }
    let mut files = attached.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => files.collect::<Vec<_>>(),
        _ => Vec::new(),
    });
    let (Some(directory), Some(status_pipe)) = (files.next(), files.next()) else {
        return Err(io::Error::other("the request contains no descriptors"));
    };
    path.truncate(received.bytes);
    Ok(Some(ForkRequest { path: OsString::from_vec(path), directory, status_pipe }))
}
