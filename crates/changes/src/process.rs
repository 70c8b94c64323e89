//! Exchanges data with a child process until it exits or a deadline passes.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// The output of a process that has exited.
#[derive(Debug)]
pub(crate) struct ProcessOutput {
    pub(crate) cause: ExitCause,
    pub(crate) status: ExitStatus,
    /// The part of the standard output that the receiver has left.
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

/// The reason why a process has exited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExitCause {
    /// It has closed its outputs.
    Finished,
    /// The receiver has stopped it.
    Stopped,
    /// It was killed at the deadline.
    TimedOut,
}

/// Writes the input, reads both outputs and reaps the child. A receiver looks at the standard output whenever it grows, and can remove a part
/// of it. The child is killed if the receiver returns false, and at the deadline.
pub(crate) fn communicate(
    mut child: Child,
    input: &[u8],
    deadline: Instant,
    receive: &mut dyn FnMut(&mut Vec<u8>) -> bool,
) -> io::Result<ProcessOutput> {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let cause = exchange(&mut child, input, deadline, (&mut stdout, &mut stderr), receive);
    if !matches!(cause, Ok(ExitCause::Finished)) {
        let _ = child.kill();
    }
    let status = child.wait()?;
    Ok(ProcessOutput { cause: cause?, status, stdout, stderr })
}

fn exchange(
    child: &mut Child,
    input: &[u8],
    deadline: Instant,
    (out, err): (&mut Vec<u8>, &mut Vec<u8>),
    receive: &mut dyn FnMut(&mut Vec<u8>) -> bool,
) -> io::Result<ExitCause> {
    let mut stdin = child.stdin.take().filter(|_| !input.is_empty());
    if let Some(stdin) = &stdin {
        rustix::io::ioctl_fionbio(stdin, true)?;
    }
    let (mut stdout, mut stderr) = (child.stdout.take(), child.stderr.take());
    let mut unwritten = input;
    while stdin.is_some() || stdout.is_some() || stderr.is_some() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(ExitCause::TimedOut);
        }
        let ready = wait_ready(
            [
                (stdin.as_ref().map(AsFd::as_fd), PollFlags::OUT),
                (stdout.as_ref().map(AsFd::as_fd), PollFlags::IN),
                (stderr.as_ref().map(AsFd::as_fd), PollFlags::IN),
            ],
            left,
        )?;
        if ready[0] && !write_some(&mut stdin, &mut unwritten)? {
            stdin = None;
        }
        if ready[1] {
            if !read_some(&mut stdout, out)? {
                stdout = None;
            } else if !receive(out) {
                return Ok(ExitCause::Stopped);
            }
        }
        if ready[2] && !read_some(&mut stderr, err)? {
            stderr = None;
        }
    }
    Ok(ExitCause::Finished)
}

fn wait_ready(
    streams: [(Option<std::os::fd::BorrowedFd<'_>>, PollFlags); 3],
    timeout: Duration,
) -> io::Result<[bool; 3]> {
    let open = streams.iter().filter_map(|(fd, flags)| fd.map(|fd| PollFd::from_borrowed_fd(fd, *flags)));
    let mut open: Vec<PollFd<'_>> = open.collect();
    let timeout = Timespec::try_from(timeout).map_err(|_| ErrorKind::InvalidInput)?;
    match poll(&mut open, Some(&timeout)) {
        Ok(_) => {}
        Err(Errno::INTR) => return Ok([false; 3]),
        Err(errno) => return Err(errno.into()),
    }
    let mut polled = open.iter().map(|fd| !fd.revents().is_empty());
    Ok(streams.map(|(fd, _)| fd.is_some() && polled.next().unwrap_or(false)))
}

/// Writes a part of the input. Returns false when all of it is written, or when the child has closed its end.
fn write_some(stdin: &mut Option<ChildStdin>, unwritten: &mut &[u8]) -> io::Result<bool> {
    let Some(stdin) = stdin else { return Ok(false) };
    match stdin.write(unwritten) {
        Ok(count) => *unwritten = &unwritten[count..],
        Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(false),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
        Err(error) => return Err(error),
    }
    Ok(!unwritten.is_empty())
}

/// Reads the available bytes. Returns false at the end of the stream.
fn read_some(stream: &mut Option<impl Read>, bytes: &mut Vec<u8>) -> io::Result<bool> {
    let Some(stream) = stream else { return Ok(false) };
    let start = bytes.len();
    bytes.resize(start + 65_536, 0);
    let count = stream.read(&mut bytes[start..]);
    bytes.truncate(start + *count.as_ref().unwrap_or(&0));
    match count {
        Ok(count) => Ok(count > 0),
        Err(error) if error.kind() == ErrorKind::Interrupted => Ok(true),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test of child processes")]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    fn spawn(program: &str, args: &[&str]) -> Child {
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    }

    fn run(program: &str, args: &[&str], input: &[u8]) -> ProcessOutput {
        let deadline = Instant::now() + Duration::from_mins(1);
        communicate(spawn(program, args), input, deadline, &mut |_| true).unwrap()
    }

    #[test]
    fn input_larger_than_pipe_is_echoed() {
        let input: Vec<u8> = (0..3_000_000_u32).map(|i| u8::try_from(i % 251).unwrap()).collect();
        let output = run("cat", &[], &input);
        assert!(output.status.success() && output.cause == ExitCause::Finished);
        assert!(output.stdout == input);
    }

    #[test]
    fn process_is_killed_at_deadline() {
        let deadline = Instant::now() + Duration::from_millis(20);
        let child = spawn("sleep", &["1000"]);
        let id = rustix::process::Pid::from_child(&child);
        let output = communicate(child, b"", deadline, &mut |_| true).unwrap();
        assert_eq!(output.cause, ExitCause::TimedOut);
        assert!(rustix::process::test_kill_process(id).is_err());
    }

    #[test]
    fn receiver_takes_the_output_and_stops_the_process() {
        let deadline = Instant::now() + Duration::from_mins(1);
        let mut received = 0;
        let mut receive = |output: &mut Vec<u8>| {
            received += output.drain(..).len();
            received < 1_000_000
        };
        let output = communicate(spawn("yes", &[]), b"", deadline, &mut receive).unwrap();
        assert_eq!(output.cause, ExitCause::Stopped);
        assert!(received >= 1_000_000 && output.stdout.is_empty());
    }

    #[test]
    fn early_exit_of_reader_is_no_error() {
        assert!(run("true", &[], &vec![0; 1_000_000]).status.success());
    }
}
