//! Identifies the process at the other end of a connection by kernel facts.
//!
//! The content of a greeting is not trustworthy. An agent misled by prompt injection may connect from inside its run and submit a call with
//! a weaker sandbox than its own. It can change neither its ancestors nor `no_new_privs`.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;

use http_listener::{HttpClient, TcpEnds};
use protocol::enclosing_run;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::net::UnixStream;

/// The number of attempts to list the ancestors, one of which may exit meanwhile.
const MAX_ATTEMPTS: usize = 20;
/// The maximum number of ancestors. A process with more counts as sandboxed.
const MAX_ANCESTORS: usize = 256;

/// The process at the other end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallerProcess {
    /// A process outside of all runs.
    Outside,
    /// A process in a run without a sandbox: it already has the user's permissions.
    Unsandboxed {
        /// The process and its ancestors, nearest first, including a supervisor.
        ancestors: Vec<u32>,
    },
    /// A process in a sandboxed run, or one that cannot be identified.
    Sandboxed,
}

impl CallerProcess {
    /// Identifies the peer of a connection.
    pub fn identify(stream: &UnixStream) -> Self {
        let Ok(peer) = stream.peer_cred() else { return Self::Sandboxed };
        let Some(pid) = peer.pid().and_then(|pid| u32::try_from(pid).ok()) else { return Self::Sandboxed };
        // Held until the end: while the pidfd's process lives, its pid is not reused.
        let Ok(process) = peer_process(stream, pid) else { return Self::Sandboxed };
        let caller = (0..MAX_ATTEMPTS).find_map(|_| inspect_process(pid).ok());
        // After its exit, an unknown process may hold its socket.
        if has_exited(&process) { Self::Sandboxed } else { caller.unwrap_or(Self::Sandboxed) }
    }
}

/// Opens a pidfd of the peer: `SO_PEERPIDFD` (Linux 6.5), else `pidfd_open` with its pid.
#[expect(unsafe_code, reason = "there is no safe wrapper for SO_PEERPIDFD")]
fn peer_process(stream: &UnixStream, pid: u32) -> io::Result<OwnedFd> {
    let mut number: libc::c_int = -1;
    let mut length = libc::socklen_t::try_from(size_of::<libc::c_int>()).map_err(io::Error::other)?;
    // SAFETY: the kernel writes one `c_int`, whose size is passed.
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
        // SAFETY: the kernel has just opened this descriptor, and nothing else owns it.
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

fn has_exited(process: &OwnedFd) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(process.as_fd(), PollFlags::IN)];
    !matches!(poll(&mut polled, Some(&Timespec::default())), Ok(0))
}

/// Classifies a process by its ancestors. Fails if one of them exits meanwhile and its children are reparented.
fn inspect_process(pid: u32) -> io::Result<CallerProcess> {
    let mut ancestors = vec![pid];
    let mut is_inside = enclosing_run::belongs_to_run(pid);
    let mut next = pid;
    loop {
        next = match enclosing_run::parent_pid(next)? {
            0 | 1 => break,
            parent => parent,
        };
        is_inside |= enclosing_run::belongs_to_run(next);
        ancestors.push(next);
        if ancestors.len() > MAX_ANCESTORS {
            return Ok(CallerProcess::Sandboxed);
        }
    }
    Ok(match is_inside {
        false => CallerProcess::Outside,
        true if enclosing_run::can_gain_privileges(pid)? => CallerProcess::Unsandboxed { ancestors },
        true => CallerProcess::Sandboxed,
    })
}

/// Identifies an HTTP client: outside, inside a sandboxed call, or unknown.
///
/// TCP does not name the peer process, so `/proc/PID/fd` is searched for the client's socket. A sandboxed process can hide its
/// descriptors: in a thread with its own descriptor table, in flight between two sockets (`SCM_RIGHTS`), or by not being dumpable. While
/// one exists, a client is therefore served only if a process outside visibly has its socket open.
pub fn identify_http_client(ends: TcpEnds) -> HttpClient {
    let Some(socket) = find_client_socket(ends) else { return HttpClient::Outside };
    // A sandboxed process has our user id: it has no capability to change it, and its user namespace maps no other.
    if socket.inode != 0 && socket.uid != rustix::process::geteuid().as_raw() {
        return HttpClient::Outside;
    }
    let suspects: Vec<u32> = processes().filter(|&pid| may_be_sandboxed(pid) && is_sandboxed(pid)).collect();
    // Read again after the processes: a suspect that exited before it was listed left a socket without an inode.
    let inode = find_client_socket(ends).map_or(0, |socket| socket.inode);
    if inode == 0 {
        return HttpClient::Sandboxed;
    }
    if suspects.is_empty() {
        return HttpClient::Outside;
    }
    let mut holders = processes().filter(|&pid| has_socket_open(pid, inode)).peekable();
    let is_found = holders.peek().is_some();
    let can_gain_privileges = |pid| enclosing_run::can_gain_privileges(pid).unwrap_or(false);
    if holders.any(is_sandboxed) {
        HttpClient::Sandboxed
    } else if is_found || suspects.into_iter().all(can_gain_privileges) {
        // Only supervisors, which hide nothing. Their name is not checked here: an agent can choose its own.
        HttpClient::Outside
    } else {
        HttpClient::Unidentified
    }
}

/// A TCP socket of this machine in `/proc/net/tcp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ListedSocket {
    /// The user that created it.
    uid: u32,
    /// Zero once no process has it open.
    inode: u64,
}

/// Returns the client's socket if it is on this machine.
fn find_client_socket(ends: TcpEnds) -> Option<ListedSocket> {
    let ends = [ends.client, ends.server].map(canonical);
    ["/proc/self/net/tcp", "/proc/self/net/tcp6"].into_iter().find_map(|table| {
        let table = fs::read_to_string(table).ok()?;
        table.lines().skip(1).find_map(|line| parse_socket(line, ends))
    })
}

/// Parses a line of `/proc/net/tcp` and returns the socket if the addresses match.
fn parse_socket(line: &str, ends: [SocketAddr; 2]) -> Option<ListedSocket> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let matches = ends.iter().all(|end| fields.next().and_then(parse_address) == Some(*end));
    if !matches {
        return None;
    }
    let uid = fields.nth(4)?.parse().ok()?;
    Some(ListedSocket { uid, inode: fields.nth(1)?.parse().ok()? })
}

/// Parses an address of `/proc/net/tcp`: 32-bit words in host byte order, in hexadecimal, and the port.
fn parse_address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let words: Option<Vec<u32>> = (0..address.len() / 8)
        .map(|word| u32::from_str_radix(address.get(8 * word..8 * (word + 1))?, 16).ok())
        .collect();
    let bytes: Vec<u8> = words?.into_iter().flat_map(u32::to_ne_bytes).collect();
    let address = <[u8; 4]>::try_from(&*bytes).map(IpAddr::from);
    let address = address.or_else(|_| <[u8; 16]>::try_from(&*bytes).map(IpAddr::from)).ok()?;
    Some(canonical(SocketAddr::new(address, u16::from_str_radix(port, 16).ok()?)))
}

/// Normalizes an address: IPv4-mapped IPv6 becomes IPv4, and the scope is dropped.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Returns whether a process has `no_new_privs`, or is a supervisor, whose proxy connects for its agent.
fn may_be_sandboxed(pid: u32) -> bool {
    enclosing_run::is_supervisor(pid)
        || enclosing_run::can_gain_privileges(pid).is_ok_and(|may_gain| !may_gain)
}

/// Returns whether a process visibly has a socket open. The open files of some processes are unreadable.
fn has_socket_open(pid: u32, inode: u64) -> bool {
    let name = PathBuf::from(format!("socket:[{inode}]"));
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    files.into_iter().any(|file| fs::read_link(file.path()).is_ok_and(|link| link == name))
}

fn is_sandboxed(pid: u32) -> bool {
    let caller = (0..MAX_ATTEMPTS).find_map(|_| inspect_process(pid).ok());
    enclosing_run::is_supervisor(pid) || caller.is_some_and(|caller| caller == CallerProcess::Sandboxed)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream as StdStream;

    use super::*;

    #[tokio::test]
    async fn exited_process_is_not_outside() {
        let (ours, theirs) = StdStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let ours = UnixStream::from_std(ours).unwrap();
        // This process created the socket pair and is alive.
        assert_ne!(CallerProcess::identify(&ours), CallerProcess::Sandboxed);
        drop(theirs);
        assert!(inspect_process(u32::MAX).is_err());
    }

    #[test]
    fn socket_of_client_is_parsed_from_proc_net_tcp() {
        let line = " 3: 0100007F:9C4A 0100007F:1E79 01 00000000:00000000 00:00000000 00000000  1001        0 48417 1 x";
        let ends = ["127.0.0.1:40010", "127.0.0.1:7801"].map(|end| end.parse().unwrap());
        assert_eq!(parse_socket(line, ends), Some(ListedSocket { uid: 1001, inode: 48417 }));
        assert_eq!(parse_socket(line, [ends[1], ends[0]]), None);
    }

    #[test]
    fn supervisor_executable_matches_protocol() {
        assert_eq!(enclosing_run::SUPERVISOR_EXECUTABLE, supervisor::Supervisor::EXECUTABLE);
    }
}
