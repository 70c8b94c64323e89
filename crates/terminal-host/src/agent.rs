//! The agent's process and its streams.

use std::ffi::{OsStr, OsString};
use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Command;

use crate::child_process::ChildProcess;

/// A running agent.
#[derive(Debug)]
pub(crate) struct HostedAgent {
    pub(crate) process: ChildProcess,
    /// A second handle on our end of its stdout.
    output: UnixStream,
}

/// Our ends of the agent's stdin and stdout.
#[derive(Debug)]
pub(crate) struct AgentStreams {
    pub(crate) input: UnixStream,
    pub(crate) output: OwnedFd,
}

impl HostedAgent {
    /// Starts an agent in our own process group: the supervisor signals the group as a whole.
    pub(crate) fn spawn(
        program: &OsStr,
        args: impl IntoIterator<Item = OsString>,
    ) -> io::Result<(Self, AgentStreams)> {
        let (input, agent_input) = UnixStream::pair()?;
        let (output, agent_output) = UnixStream::pair()?;
        // Each has one direction, like a pipe. Unread bytes in the other would turn its end into ECONNRESET.
        agent_input.shutdown(Shutdown::Write)?;
        agent_output.shutdown(Shutdown::Read)?;
        #[expect(
            clippy::disallowed_methods,
            reason = "the supervisor started this program to start the agent"
        )]
        let mut command = Command::new(program);
        command.args(args).stdin(OwnedFd::from(agent_input)).stdout(OwnedFd::from(agent_output));
        let process = ChildProcess::spawn(&mut command)?;
        let agent = Self { process, output: output.try_clone()? };
        // The command holds the agent's ends until it is dropped here.
        drop(command);
        Ok((agent, AgentStreams { input, output: output.into() }))
    }

    /// Lets the agent's next write to its stdout fail.
    pub(crate) fn shutdown_output(&self) {
        let _ = self.output.shutdown(Shutdown::Both);
    }
}
