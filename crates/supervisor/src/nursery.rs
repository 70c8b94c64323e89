//! A process from which supervisors are forked.
//!
//! Starting a program takes longer than all the rest of starting a run: the kernel maps it, the loader binds it, the runtime
//! begins. A program that starts many runs (a daemon) keeps one process that has all this behind it, at the other end of a
//! socket. It is handed a folder, forks, and the fork goes on as if it had just been started with that folder. A nursery whose
//! starter goes away ends by itself; the supervisors that it has borne live on, as they do without one.

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
use rustix::process::{WaitOptions, setsid, wait};
use rustix::stdio::{dup2_stdin, dup2_stdout};
use tokio::process::Child;

use crate::held::HeldSpool;
use crate::os::{self, Forked, Signals};

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

    /// Ends it, with the orders that it has not heard. What it has borne lives on.
    pub fn end(mut self) {
        // One that has ended already is as good.
        let _ = self.process.start_kill();
    }
}

/// In the nursery: bears a supervisor for each folder, until its starter has gone away. In each of those: its folder, which is
/// its stdin from now on, as if it had been started with it.
///
/// Must be the first thing that a process does: nothing but this may have opened a file or started a thread.
pub(crate) fn bear_supervisors() -> io::Result<Option<OsString>> {
    os::close_inherited_files()?;
    // A terminal's signals are not for it.
    setsid()?;
    let signals = Signals::listen()?;
    // What every supervisor asks for is then known to all of them.
    os::boot_id()?;
    loop {
        let line = io::stdin();
        let mut files = [PollFd::new(&signals, PollFlags::IN), PollFd::new(&line, PollFlags::IN)];
        match poll(&mut files, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let [by_signal, by_line] = files.map(|file| !file.revents().is_empty());
        if by_signal {
            if signals.take()?.stop {
                return Ok(None);
            }
            reap();
        }
        if by_line {
            let Some(wanted) = next()? else { return Ok(None) };
            // One that cannot be forked is seen by its starter: nobody speaks.
            if let Ok(Forked::Child) = os::fork() {
                drop(signals);
                return wanted.become_it().map(Some);
            }
        }
    }
}

/// Waits for those that have ended: their processor time then counts as that of the program which they worked for.
fn reap() {
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
}

/// A supervisor that is wanted.
struct Wanted {
    path: OsString,
    folder: OwnedFd,
    voice: OwnedFd,
}

impl Wanted {
    /// Goes on as if this process had been started for it.
    fn become_it(self) -> io::Result<OsString> {
        dup2_stdin(&self.folder)?;
        dup2_stdout(&self.voice)?;
        Ok(self.path)
    }
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
