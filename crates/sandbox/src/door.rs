//! The door of a network of named hosts: a listener on the loopback of the namespace, opened by the one inside and handed out.
//!
//! A socket belongs to the network it was made in, whoever holds it. So what comes to this door is taken outside, and no process
//! has to stand between.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

/// The variables by which programs find their proxy.
const PROXY_VARIABLES: [&str; 6] =
    ["HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "https_proxy", "http_proxy", "all_proxy"];
/// Those by which they pass it over.
const EXCEPTIONS: [&str; 2] = ["NO_PROXY", "no_proxy"];

/// Two ends of a line over which the door is handed: outside, inside.
pub(crate) fn line() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Inside: opens the door, hands it out, and says to the agent where it is.
pub(crate) fn open(line: BorrowedFd<'_>, env: &mut BTreeMap<String, String>) -> io::Result<()> {
    let door = TcpListener::bind("127.0.0.1:0")?;
    let address = format!("http://{}", door.local_addr()?);
    let doors = [door.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut attached = SendAncillaryBuffer::new(&mut space);
    attached.push(SendAncillaryMessage::ScmRights(&doors));
    sendmsg(line, &[IoSlice::new(b"door")], &mut attached, SendFlags::NOSIGNAL)?;
    env.extend(PROXY_VARIABLES.map(|name| (name.to_owned(), address.clone())));
    env.extend(EXCEPTIONS.map(|name| (name.to_owned(), String::new())));
    Ok(())
}

/// Outside: the door, once the one inside has said that all is ready.
pub(crate) fn take(line: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut attached = RecvAncillaryBuffer::new(&mut space);
    let mut word = [0; 8];
    let into = &mut [IoSliceMut::new(&mut word)];
    recvmsg(line, into, &mut attached, RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT)?;
    let handed = attached.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    handed.ok_or_else(|| io::Error::other("the door was not handed out"))
}
