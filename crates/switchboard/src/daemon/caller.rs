//! Identifies the process at the other end of a connection by facts of the kernel.
//!
//! A greeting contains whatever its sender likes. An agent that is led astray may connect from inside its run and ask for a call with
//! fewer bounds than it has. It cannot change its ancestors, nor drop the bit that forbids new privileges.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
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
        true if may_gain_privileges(pid)? => Caller::Unconfined { ancestors },
        true => Caller::Confined,
    })
}

/// Whether a process is without the bit that every sandbox sets and that no descendant gets rid of.
fn may_gain_privileges(pid: u32) -> io::Result<bool> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    Ok(status.lines().any(|line| line.strip_prefix("NoNewPrivs:").is_some_and(|bit| bit.trim() == "0")))
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
