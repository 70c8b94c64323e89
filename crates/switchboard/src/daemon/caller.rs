//! Identifies the process at the other end of a connection by facts of the kernel.
//!
//! A greeting contains whatever its sender likes. An agent that is led astray may connect from inside its run and ask for a call with
//! fewer bounds than it has. It cannot change its ancestors, nor drop the bit that forbids new privileges.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use switchboard::listener::TcpEnds;
use tokio::net::UnixStream;

use crate::front;

/// How often the ancestors are listed anew when one of them exits meanwhile.
const TRIES: usize = 20;
/// No honest process has more ancestors. One that hides behind a longer chain is not outside.
const MOST_ANCESTORS: usize = 256;

/// A process that asks for something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// A process of the user's that belongs to no run.
    Outside,
    /// A process inside a run without a policy: it has the user's rights already.
    Unconfined {
        /// The process and those above it, the nearest first. A supervisor is among them.
        ancestors: Vec<u32>,
    },
    /// A process inside a confined run, or one that cannot be identified.
    Confined,
}

impl Caller {
    /// Identifies the process that has made a connection.
    pub fn identify(stream: &UnixStream) -> Self {
        let Ok(peer) = stream.peer_cred() else { return Self::Confined };
        let Some(pid) = peer.pid().and_then(|pid| u32::try_from(pid).ok()) else { return Self::Confined };
        // Held until the end: while it lives, nobody else has its number.
        let Ok(process) = peer_process(stream, pid) else { return Self::Confined };
        let caller = (0..TRIES).find_map(|_| look_up(pid).ok());
        // One that has exited leaves its socket to an unknown process.
        if is_gone(&process) { Self::Confined } else { caller.unwrap_or(Self::Confined) }
    }
}

/// Opens the process at the other end (`SO_PEERPIDFD`, from Linux 6.5 on), or the one that has its number now.
#[expect(unsafe_code, reason = "there is no safe wrapper for SO_PEERPIDFD")]
fn peer_process(stream: &UnixStream, pid: u32) -> io::Result<OwnedFd> {
    let mut number: libc::c_int = -1;
    let mut length = libc::socklen_t::try_from(size_of::<libc::c_int>()).map_err(io::Error::other)?;
    // SAFETY: the kernel writes one number of the length that is given.
    let answer = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERPIDFD,
            (&raw mut number).cast(),
            &raw mut length,
        )
    };
    if answer == 0 {
        // SAFETY: the kernel has opened it for this process, and nothing else here knows the number.
        return Ok(unsafe { OwnedFd::from_raw_fd(number) });
    }
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::ENOPROTOOPT) => {
            let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
            let pid = pid.ok_or(io::ErrorKind::NotFound)?;
            Ok(rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?)
        }
        error => Err(error),
    }
}

fn is_gone(process: &OwnedFd) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(process.as_fd(), PollFlags::IN)];
    !matches!(poll(&mut polled, Some(&Timespec::default())), Ok(0))
}

/// Looks at a process and its ancestors. An error: one of them has exited meanwhile, and its children have another parent now.
fn look_up(pid: u32) -> io::Result<Caller> {
    let mut ancestors = vec![pid];
    let mut is_inside = front::belongs_to_a_run(pid);
    let mut next = pid;
    loop {
        next = match front::parent(next)? {
            0 | 1 => break,
            parent => parent,
        };
        is_inside |= front::belongs_to_a_run(next);
        ancestors.push(next);
        if ancestors.len() > MOST_ANCESTORS {
            return Ok(Caller::Confined);
        }
    }
    Ok(match is_inside {
        false => Caller::Outside,
        true if front::may_gain_privileges(pid)? => Caller::Unconfined { ancestors },
        true => Caller::Confined,
    })
}

/// Tells whether a client of the HTTP server is a process inside a confined call.
///
/// TCP does not name the process at the other end, so the processes that are confined are asked whether they have its socket open. A
/// client on another machine is not, and neither is one in a namespace of its own: it has no way to this server.
pub fn is_confined_client(ends: TcpEnds) -> bool {
    match socket_of(ends) {
        // One that nobody has open any more may have been a confined process's.
        Some(0) => true,
        Some(inode) => processes().any(|pid| may_be_confined(pid) && holds(pid, inode) && is_confined(pid)),
        None => false,
    }
}

/// Returns the inode of the client's socket, if it is one of this machine.
fn socket_of(ends: TcpEnds) -> Option<u64> {
    let ends = [ends.client, ends.server].map(canonical);
    ["/proc/self/net/tcp", "/proc/self/net/tcp6"].into_iter().find_map(|table| {
        let table = fs::read_to_string(table).ok()?;
        table.lines().skip(1).find_map(|line| socket_in(line, ends))
    })
}

/// Returns the inode in a line of the kernel's table of TCP sockets, if it is that of a connection between these addresses.
fn socket_in(line: &str, ends: [SocketAddr; 2]) -> Option<u64> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let is_it = ends.iter().all(|end| fields.next().and_then(address) == Some(*end));
    is_it.then(|| fields.nth(6)?.parse().ok())?
}

/// Reads an address of that table: the words of the address in the order of this machine, each in hexadecimal, and the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let words: Option<Vec<u32>> = (0..address.len() / 8)
        .map(|word| u32::from_str_radix(address.get(8 * word..8 * (word + 1))?, 16).ok())
        .collect();
    let bytes: Vec<u8> = words?.into_iter().flat_map(u32::to_ne_bytes).collect();
    let address = <[u8; 4]>::try_from(&*bytes).map(IpAddr::from);
    let address = address.or_else(|_| <[u8; 16]>::try_from(&*bytes).map(IpAddr::from)).ok()?;
    Some(canonical(SocketAddr::new(address, u16::from_str_radix(port, 16).ok()?)))
}

/// Returns an address without what only one end knows: the form of IPv4 within IPv6, and the scope.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Whether a process has the bit of every sandbox, or is a supervisor, whose proxy connects for its agent.
fn may_be_confined(pid: u32) -> bool {
    front::is_supervisor(pid) || front::may_gain_privileges(pid).is_ok_and(|may_gain| !may_gain)
}

/// Whether a process has a socket open. One whose open files cannot be seen has not: bubblewrap itself is such a process in every sandbox of
/// an ordinary user, and an agent inside its namespaces cannot become one.
fn holds(pid: u32, inode: u64) -> bool {
    let name = PathBuf::from(format!("socket:[{inode}]"));
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    files.into_iter().any(|file| fs::read_link(file.path()).is_ok_and(|link| link == name))
}

fn is_confined(pid: u32) -> bool {
    let caller = (0..TRIES).find_map(|_| look_up(pid).ok());
    front::is_supervisor(pid) || caller.is_some_and(|caller| caller == Caller::Confined)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream as StdStream;

    use super::*;

    #[tokio::test]
    async fn process_that_has_exited_is_not_taken_for_an_outside_one() {
        let (ours, theirs) = StdStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let ours = UnixStream::from_std(ours).unwrap();
        // The socket pair was made by this process, which is alive.
        assert_ne!(Caller::identify(&ours), Caller::Confined);
        drop(theirs);
        assert!(look_up(u32::MAX).is_err());
    }
}
