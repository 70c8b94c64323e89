//! A process from which supervisors are forked.
//!
//! Starting a program takes longer than all the rest of starting a run: the kernel maps it, the loader binds it, the runtime
//! begins. A program that starts many runs (a daemon) keeps one process that has all this behind it, at the other end of a
//! socket. From it a supervisor is forked ahead of time, which waits for a directory at the same socket, gets setup as far as that
//! goes without one, and goes on as if it had just been started with it. Once it has one it says so, and the next is forked; some
//! wait when many are wanted at once. A fork_server whose starter goes away ends by itself, as do those that wait; those that have a
//! directory live on, as they do without a fork_server.

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

/// The argument of a supervisor that is to be a fork_server.
pub(crate) const FORK_SERVER_ARG: &str = "--fork_server";

/// How long the path of a directory can be.
const MAX_PATH_BYTES: usize = 4096;

/// How soon another fork is tried.
const FORK_RETRY_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// How many supervisors in a row may be lost before they have a directory. Then something is wrong, and the starter is better off
/// without a fork_server.
const MAX_LOST: usize = 5;

/// How many wait at most, when more are wanted than one after the other.
const MAX_IDLE: usize = 4;

/// A fork_server, as its starter holds it.
#[derive(Debug)]
pub(crate) struct ForkServer {
    socket: OwnedFd,
    /// Reaped by the runtime, once it has ended.
    process: Child,
}

impl ForkServer {
    /// Starts one; `spawn` is given its end of the socket, which is to be its stdin.
    pub fn start(spawn: impl FnOnce(OwnedFd) -> io::Result<Child>) -> io::Result<Self> {
        let kind = SocketType::SEQPACKET;
        let (socket, peer) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
        Ok(Self { process: spawn(peer)?, socket })
    }

    /// Asks for a supervisor of that directory, which is to speak to `status_pipe`. One that is no longer there, or is too busy to
    /// listen, is an error, and nothing has happened.
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

    /// Returns whether it is suspended, and so would fork no supervisor.
    pub fn is_suspended(&self) -> bool {
        let pid = self.process.id().and_then(|id| i32::try_from(id).ok());
        pid.is_some_and(|pid| os::is_suspended(pid).unwrap_or(false))
    }

    /// Continues it and the supervisors that wait, if they are suspended.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Ends it and the supervisors that wait, with the orders that nobody has heard. Those that have a directory have left its process
    /// group, and live on.
    pub fn kill(self) {
        self.signal(Signal::KILL);
    }

    fn signal(&self, signal: Signal) {
        // Not waited for yet, so the pid is that of its group and of no other.
        let group = self.process.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        if let Some(group) = group {
            // One that has ended already is as good.
            let _ = kill_process_group(group, signal);
        }
    }
}

/// A supervisor that has its directory, which is its stdin.
pub(crate) struct ForkedSupervisor {
    pub directory: OsString,
    pub setup: ProcessSetup,
}

/// In the fork_server: bears supervisors, until its starter has gone away. In each of those: its directory, once it has one; none when
/// there will be none.
///
/// Must be the first thing that a process does: nothing but this may have opened a file or started a thread.
pub(crate) fn serve_forks() -> io::Result<Option<ForkedSupervisor>> {
    os::close_inherited_files()?;
    // A terminal's signals are not for it.
    setsid()?;
    let signals = SignalReader::block()?;
    // What every supervisor needs is then there for all of them.
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
                // There may be room for another process in a moment; who wants a supervisor waits for it.
                Err(_) => break,
            }
        }
        let socket = io::stdin();
        let mut files = [
            PollFd::new(&signals, PollFlags::IN),
            PollFd::new(&assigned, PollFlags::IN),
            // Whoever waits for a directory hears what comes. Here it is only heard that nothing will.
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
            // When there is more to be assigned, one that waits is not enough.
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
            // They were killed or suspended before they had a directory, or could not get setup.
            lost += before - idle.len();
        }
        if by_socket {
            return Ok(None);
        }
    }
    Ok(None)
}

/// Returns the children that take no directory any more: those that have ended, whose processor time then counts as that of the program
/// they worked for, and suspended ones among the idle, which are killed. A suspended one could swallow the wake-up for a directory.
fn reap(idle: &[i32]) -> Vec<i32> {
    let changed = std::iter::from_fn(|| wait(WaitOptions::NOHANG | WaitOptions::UNTRACED).ok().flatten());
    let is_gone = |(child, status): (Pid, WaitStatus)| {
        let pid = child.as_raw_pid();
        if status.stopped() && idle.contains(&pid) {
            // Not waited for yet, so the pid is still its own.
            let _ = kill_process(child, Signal::KILL);
            return Some(pid);
        }
        (!status.stopped()).then_some(pid)
    };
    changed.filter_map(is_gone).collect()
}

/// A supervisor that is wanted.
struct ForkRequest {
    path: OsString,
    directory: OwnedFd,
    status_pipe: OwnedFd,
}

/// In a supervisor without a directory. Until it has one, a signal ends it as it would any process: there is nothing to be seen to.
fn wait_for_spool(report_assigned: &OwnedFd) -> io::Result<Option<ForkedSupervisor>> {
    let prefork = PreforkSetup::new()?;
    RunManifest::warm_up_parser();
    os::unblock_signals()?;
    // One at a time is woken up, however many wait.
    let Some(ForkRequest { path: directory, directory: open, status_pipe }) = receive_request()? else {
        return Ok(None);
    };
    let setup = prefork.block_signals()?;
    dup2_stdin(&open)?;
    dup2_stdout(&status_pipe)?;
    // A fork_server that is gone needs no other one to wait.
    let _ = rustix::io::write(report_assigned, &getpid().as_raw_pid().to_ne_bytes());
    Ok(Some(ForkedSupervisor { directory, setup }))
}

/// Takes the next; none when nobody can want one any more.
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
        return Err(io::Error::other("the directory was not handed over"));
    };
    path.truncate(received.bytes);
    Ok(Some(ForkRequest { path: OsString::from_vec(path), directory, status_pipe }))
}
