//! A process from which supervisors are forked.
//!
//! Starting a program takes longer than all the rest of starting a run: the kernel maps it, the loader binds it, the runtime
//! begins. A program that starts many runs (a daemon) keeps one process that has all this behind it, at the other end of a
//! socket. From it a supervisor is forked ahead of time, which waits for a folder at the same socket, gets ready as far as that
//! goes without one, and goes on as if it had just been started with it. Once it has one it says so, and the next is forked. A
//! nursery whose starter goes away ends by itself, as does the supervisor that waits; those that have a folder live on, as they do
//! without a nursery.

use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitOptions, kill_process_group, setsid, wait};
use rustix::stdio::{dup2_stdin, dup2_stdout};
use tokio::process::Child;

use crate::held::{HeldSpool, Order};
use crate::os::{self, Forked, Signals};
use crate::program::Ready;

/// The argument of a supervisor that is to be a nursery.
pub(crate) const NURSERY: &str = "--nursery";

/// How long the path of a folder can be.
const LONGEST_PATH: usize = 4096;

/// A nursery, as its starter holds it.
#[derive(Debug)]
pub(crate) struct Nursery {
    line: OwnedFd,
    /// Reaped by the runtime, once it has ended.
    process: Child,
}

impl Nursery {
    /// Starts one; `spawn` is given its end of the line, which is to be its stdin.
    pub fn start(spawn: impl FnOnce(OwnedFd) -> io::Result<Child>) -> io::Result<Self> {
        let kind = SocketType::SEQPACKET;
        let (line, its_end) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
        Ok(Self { process: spawn(its_end)?, line })
    }

    /// Asks for a supervisor of that folder, which is to speak to `voice`. One that is no longer there, or is too busy to
    /// listen, is an error, and nothing has happened.
    pub fn bear(&self, held: &HeldSpool, folder: &Path, voice: BorrowedFd<'_>) -> io::Result<()> {
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

    /// Ends it and the supervisor that waits, with the orders that nobody has heard. Those that have a folder have left its process
    /// group, and live on.
    pub fn end(self) {
        // Not waited for yet, so the number is that of its group and of no other.
        let group = self.process.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        if let Some(group) = group {
            // One that has ended already is as good.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// A supervisor that has its folder, which is its stdin.
pub(crate) struct Born {
    pub folder: OsString,
    pub ready: Ready,
}

/// In the nursery: bears supervisors, until its starter has gone away. In each of those: its folder, once it has one; none when
/// there will be none.
///
/// Must be the first thing that a process does: nothing but this may have opened a file or started a thread.
pub(crate) fn bear_supervisors() -> io::Result<Option<Born>> {
    os::close_inherited_files()?;
    // A terminal's signals are not for it.
    setsid()?;
    let signals = Signals::listen()?;
    // What every supervisor asks for is then known to all of them.
    os::boot_id()?;
    let (taken, has_taken) = pipe_with(PipeFlags::CLOEXEC)?;
    let mut waiting = None;
    loop {
        if waiting.is_none() {
            match os::fork()? {
                Forked::Child => {
                    drop((signals, taken));
                    return wait_for_a_folder(&has_taken);
                }
                Forked::Parent(child) => waiting = Some(child),
            }
        }
        let line = io::stdin();
        let mut files = [
            PollFd::new(&signals, PollFlags::IN),
            PollFd::new(&taken, PollFlags::IN),
            // Whoever waits for a folder hears what comes. Here it is only heard that nothing will.
            PollFd::new(&line, PollFlags::empty()),
        ];
        match poll(&mut files, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let [by_signal, by_child, by_line] = files.map(|file| !file.revents().is_empty());
        if by_child {
            rustix::io::read(&taken, &mut [0_u8])?;
            waiting = None;
        }
        if by_signal {
            if signals.take()?.stop {
                return Ok(None);
            }
            // One that was ended by somebody before it had a folder is replaced.
            waiting = waiting.filter(|child| !reaped().contains(child));
        }
        if by_line {
            return Ok(None);
        }
    }
}

/// Waits for those that have ended: their processor time then counts as that of the program which they worked for.
fn reaped() -> Vec<Pid> {
    std::iter::from_fn(|| wait(WaitOptions::NOHANG).ok().flatten()).map(|(child, _)| child).collect()
}

/// A supervisor that is wanted.
struct Wanted {
    path: OsString,
    folder: OwnedFd,
    voice: OwnedFd,
}

/// In a supervisor without a folder.
fn wait_for_a_folder(has_taken: &OwnedFd) -> io::Result<Option<Born>> {
    let ready = Ready::get()?;
    Order::practise();
    let line = io::stdin();
    let mut files = [PollFd::new(&ready.signals, PollFlags::IN), PollFd::new(&line, PollFlags::IN)];
    loop {
        match poll(&mut files, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if !files[0].revents().is_empty() && ready.signals.take()?.stop {
            return Ok(None);
        }
        if !files[1].revents().is_empty() {
            break;
        }
    }
    let Some(Wanted { path: folder, folder: open, voice }) = next()? else { return Ok(None) };
    dup2_stdin(&open)?;
    dup2_stdout(&voice)?;
    // A nursery that is gone needs no other one to wait.
    let _ = rustix::io::write(has_taken, &[0]);
    Ok(Some(Born { folder, ready }))
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
