//! The listener of the proxy: bound to the loopback of the network namespace by the launcher, and sent to the supervisor.
//!
//! A socket belongs to the network namespace that it was created in, whichever process holds it. The supervisor can therefore accept the
//! agent's connections outside of the namespace, and no process has to relay between the two.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

/// The variables that programs read the address of their proxy from.
const PROXY_VARIABLES: [&str; 6] =
    ["HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "https_proxy", "http_proxy", "all_proxy"];
/// The variables that exempt hosts from the proxy.
const EXCEPTIONS: [&str; 2] = ["NO_PROXY", "no_proxy"];

/// Creates the socket pair over which the listener is sent: the supervisor's end and the launcher's end.
pub(crate) fn create_channel() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Binds the listener in the launcher, sends it to the supervisor and adds its address to the agent's environment.
pub(crate) fn bind_and_send(channel: BorrowedFd<'_>, env: &mut BTreeMap<String, String>) -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = format!("http://{}", listener.local_addr()?);
    let listeners = [listener.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut attached = SendAncillaryBuffer::new(&mut space);
    attached.push(SendAncillaryMessage::ScmRights(&listeners));
    sendmsg(channel, &[IoSlice::new(b"door")], &mut attached, SendFlags::NOSIGNAL)?;
    env.extend(PROXY_VARIABLES.map(|name| (name.to_owned(), address.clone())));
    env.extend(EXCEPTIONS.map(|name| (name.to_owned(), String::new())));
    Ok(())
}

/// Receives the listener in the supervisor. Does not block: the launcher has sent it before it reports that the rules are applied.
pub(crate) fn receive(channel: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut attached = RecvAncillaryBuffer::new(&mut space);
    let mut payload = [0; 8];
    let into = &mut [IoSliceMut::new(&mut payload)];
    recvmsg(channel, into, &mut attached, RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT)?;
    let listener = attached.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    listener.ok_or_else(|| io::Error::other("the launcher did not send the listener of the proxy"))
}
