//! A process from which supervisors are forked.
//!
//! Starting a program takes longer than all the rest of starting a run: the kernel maps it, the loader binds it, the runtime
//! begins. A program that starts many runs (a daemon) keeps one process that has all this behind it, at the other end of a
//! socket. From it a supervisor is forked ahead of time, which waits for a folder at the same socket, gets ready as far as that
//! goes without one, and goes on as if it had just been started with it. Once it has one it says so, and the next is forked; some
//! wait when many are wanted at once. A fork_server whose starter goes away ends by itself, as do those that wait; those that have a
//! folder live on, as they do without a fork_server.

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
use crate::os::{self, Forked, Signals};
use crate::readiness::is_readable;
use crate::setup::{HalfReady, Ready};

/// The argument of a supervisor that is to be a fork_server.
pub(crate) const NURSERY: &str = "--fork_server";

/// How long the path of a folder can be.
const LONGEST_PATH: usize = 4096;

/// How soon another fork is tried.
const TRY_AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// How many supervisors in a row may be lost before they have a folder. Then something is wrong, and the starter is better off
/// without a fork_server.
const MOST_LOST: usize = 5;

/// How many wait at most, when more are wanted than one after the other.
const MOST_WAITING: usize = 4;

/// A fork_server, as its starter holds it.
#[derive(Debug)]
pub(crate) struct ForkServer {
    line: OwnedFd,
    /// Reaped by the runtime, once it has ended.
    process: Child,
}

impl ForkServer {
    /// Starts one; `spawn` is given its end of the line, which is to be its stdin.
    pub fn start(spawn: impl FnOnce(OwnedFd) -> io::Result<Child>) -> io::Result<Self> {
        let kind = SocketType::SEQPACKET;
        let (line, its_end) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
        Ok(Self { process: spawn(its_end)?, line })
    }

    /// Asks for a supervisor of that folder, which is to speak to `voice`. One that is no longer there, or is too busy to
    /// listen, is an error, and nothing has happened.
    pub fn fork_supervisor(
        &self,
        held: &LockedSpool,
        folder: &Path,
        voice: BorrowedFd<'_>,
    ) -> io::Result<()> {
        let handles = [held.as_fd(), voice];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut attached = SendAncillaryBuffer::new(&mut space);
        attached.push(SendAncillaryMessage::ScmRights(&handles));
        sendmsg(
            &self.line,
            &[IoSlice::new(folder.as_os_str().as_bytes())],
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

    /// Ends it and the supervisors that wait, with the orders that nobody has heard. Those that have a folder have left its process
    /// group, and live on.
    pub fn end(self) {
        self.signal(Signal::KILL);
    }

    fn signal(&self, signal: Signal) {
        // Not waited for yet, so the number is that of its group and of no other.
        let group = self.process.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        if let Some(group) = group {
            // One that has ended already is as good.
            let _ = kill_process_group(group, signal);
        }
    }
}

/// A supervisor that has its folder, which is its stdin.
pub(crate) struct ForkedSupervisor {
    pub folder: OsString,
    pub ready: Ready,
}

/// In the fork_server: bears supervisors, until its starter has gone away. In each of those: its folder, once it has one; none when
/// there will be none.
///
/// Must be the first thing that a process does: nothing but this may have opened a file or started a thread.
pub(crate) fn bear_supervisors() -> io::Result<Option<ForkedSupervisor>> {
    os::close_inherited_files()?;
    // A terminal's signals are not for it.
    setsid()?;
    let signals = Signals::listen()?;
    // What every supervisor needs is then there for all of them.
    os::heed_what_was_ignored();
    os::boot_id()?;
    let (taken, has_taken) = pipe_with(PipeFlags::CLOEXEC)?;
    let (mut waiting, mut wanted, mut lost) = (Vec::new(), 1, 0);
    while lost < MOST_LOST {
        while waiting.len() < wanted {
            match os::fork() {
                Ok(Forked::Child) => {
                    drop((signals, taken));
                    return wait_for_a_folder(&has_taken);
                }
                Ok(Forked::Parent(child)) => waiting.push(child.as_raw_pid()),
                // There may be room for another process in a moment; who wants a supervisor waits for it.
                Err(_) => break,
            }
        }
        let line = io::stdin();
        let mut files = [
            PollFd::new(&signals, PollFlags::IN),
            PollFd::new(&taken, PollFlags::IN),
            // Whoever waits for a folder hears what comes. Here it is only heard that nothing will.
            PollFd::new(&line, PollFlags::empty()),
        ];
        match poll(&mut files, waiting.is_empty().then_some(&TRY_AGAIN)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let [by_signal, by_child, by_line] = files.map(|file| !file.revents().is_empty());
        if by_child {
            let mut number = [0; size_of::<i32>()];
            rustix::io::read(&taken, &mut number)?;
            waiting.retain(|child| *child != i32::from_ne_bytes(number));
            // When there is more to be taken, one that waits is not enough.
            wanted = if is_readable(&line)? { MOST_WAITING.min(wanted + 1) } else { 1 };
            lost = 0;
        }
        if by_signal {
            if signals.take()?.stop {
                return Ok(None);
            }
            let gone = gone(&waiting);
            let before = waiting.len();
            waiting.retain(|child| !gone.contains(child));
            // They were killed or suspended before they had a folder, or could not get ready.
            lost += before - waiting.len();
        }
        if by_line {
            return Ok(None);
        }
    }
    Ok(None)
}

/// Returns the children that take no folder any more: those that have ended, whose processor time then counts as that of the program
/// they worked for, and suspended ones among the waiting, which are killed. A suspended one could swallow the wake-up for a folder.
fn gone(waiting: &[i32]) -> Vec<i32> {
    let changed = std::iter::from_fn(|| wait(WaitOptions::NOHANG | WaitOptions::UNTRACED).ok().flatten());
    let is_gone = |(child, status): (Pid, WaitStatus)| {
        let pid = child.as_raw_pid();
        if status.stopped() && waiting.contains(&pid) {
            // Not waited for yet, so the pid is still its own.
            let _ = kill_process(child, Signal::KILL);
            return Some(pid);
        }
        (!status.stopped()).then_some(pid)
    };
    changed.filter_map(is_gone).collect()
}

/// A supervisor that is wanted.
struct Wanted {
    path: OsString,
    folder: OwnedFd,
    voice: OwnedFd,
}

/// In a supervisor without a folder. Until it has one, a signal ends it as it would any process: there is nothing to be seen to.
fn wait_for_a_folder(has_taken: &OwnedFd) -> io::Result<Option<ForkedSupervisor>> {
    let half_ready = HalfReady::get()?;
    RunManifest::practise();
    os::let_signals_act()?;
    // One at a time is woken up, however many wait.
    let Some(Wanted { path: folder, folder: open, voice }) = next()? else { return Ok(None) };
    let ready = half_ready.listens()?;
    dup2_stdin(&open)?;
    dup2_stdout(&voice)?;
    // A fork_server that is gone needs no other one to wait.
    let _ = rustix::io::write(has_taken, &getpid().as_raw_pid().to_ne_bytes());
    Ok(Some(ForkedSupervisor { folder, ready }))
}

/// Takes the next; none when nobody can want one any more.
fn next() -> io::Result<Option<Wanted>> {
    let mut path = vec![0; LONGEST_PATH];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut attached = RecvAncillaryBuffer::new(&mut space);
    let line = io::stdin();
    let received = loop {
        let into = &mut [IoSliceMut::new(&mut path)];
        match recvmsg(line.as_fd(), into, &mut attached, RecvFlags::CMSG_CLOEXEC) {
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
    let (Some(folder), Some(voice)) = (files.next(), files.next()) else {
        return Err(io::Error::other("the folder was not handed over"));
    };
    path.truncate(received.bytes);
    Ok(Some(Wanted { path: OsString::from_vec(path), folder, voice }))
}
