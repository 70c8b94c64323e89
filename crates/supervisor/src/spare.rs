//! A supervisor that is started before there is anything to supervise.
//!
//! Starting a process takes longer than all the rest of starting a run. A program that starts many (a daemon) has one
//! supervisor waiting at the other end of a socket; it is handed a folder and goes on as if it had just been started with it.
//! One whose starter goes away ends by itself, having done nothing.

use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::stdio::{dup2_stderr, dup2_stdin};
use tokio::process::Child;

use crate::held::HeldSpool;

/// The argument of a supervisor that is to wait for its folder.
pub(crate) const WAIT: &str = "--wait";

/// How long the path of a folder can be.
const LONGEST_PATH: usize = 4096;

/// A supervisor that waits.
#[derive(Debug)]
pub(crate) struct Spare {
    child: Child,
    line: OwnedFd,
}

impl Spare {
    /// Starts one; `spawn` is given its end of the line, which is to be its stdin.
    pub fn start(spawn: impl FnOnce(OwnedFd) -> io::Result<Child>) -> io::Result<Self> {
        let kind = SocketType::SEQPACKET;
        let (line, its_end) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
        Ok(Self { child: spawn(its_end)?, line })
    }

    /// Gives it the folder. One that is no longer there is an error, and nothing has happened.
    pub fn send(self, held: &HeldSpool, folder: &Path) -> io::Result<Child> {
        let files = [held.as_fd().try_clone_to_owned()?, held.log()?.into()];
        let handles = [files[0].as_fd(), files[1].as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut attached = SendAncillaryBuffer::new(&mut space);
        attached.push(SendAncillaryMessage::ScmRights(&handles));
        sendmsg(
            &self.line,
            &[IoSlice::new(folder.as_os_str().as_bytes())],
            &mut attached,
            SendFlags::NOSIGNAL,
        )?;
        Ok(self.child)
    }
}

/// In the waiting supervisor: the folder that it was given, which is its stdin from now on, as if it had been started with it;
/// none when its starter has gone away.
pub(crate) fn wait_for_folder() -> io::Result<Option<OsString>> {
    let mut path = vec![0; LONGEST_PATH];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut attached = RecvAncillaryBuffer::new(&mut space);
    let line = io::stdin();
    let received = loop {
        let into = &mut [IoSliceMut::new(&mut path)];
        match recvmsg(line.as_fd(), into, &mut attached, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
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
    let (Some(folder), Some(log)) = (files.next(), files.next()) else {
        return Err(io::Error::other("the folder was not handed over"));
    };
    dup2_stdin(&folder)?;
    dup2_stderr(&log)?;
    path.truncate(received.bytes);
    Ok(Some(OsString::from_vec(path)))
}
