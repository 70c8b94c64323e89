//! The process tree of one agent, as seen by its subreaper.
//!
//! Every orphan below a subreaper is reparented to it. So the report that no descendant is left does not depend on a
//! process listing: it is the kernel's answer that the subreaper has no child.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use model::{Exit, ProcessIdentity, RunId, RunPlan, TreeUsage};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, getpid, kill_process_group, set_child_subreaper, setsid,
    wait, waitid,
};
use sandbox::{Cgroup, PreparedSandbox};

use super::identity::{ProcessHandle, identity_of};
use super::process_table::{ProcessEntry, ProcessTable};
use super::sandbox_wrapper::SandboxWrapper;
use super::spawn::AgentCommand;

/// Detaches this process from its caller's session and terminal, and makes it the subreaper of its descendants.
pub fn detach_from_caller() -> io::Result<()> {
    setsid()?;
    set_child_subreaper(Some(getpid()))?;
    Ok(())
}

/// The presence of processes in the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Children {
    /// At least one is left.
    Remaining,
    /// The tree is empty, according to the kernel.
    None,
}

/// An agent and all its descendants.
#[derive(Debug)]
pub struct ProcessTree {
    /// The spawned process until it is reaped: the agent's own, or the outer process of its sandbox. Until then its
    /// pid, which is also its process group id, cannot be reused.
    child: Option<Pid>,
    /// The processes between this one and the agent, if it is confined in namespaces.
    wrapper: Option<SandboxWrapper>,
    /// The agent's own process.
    agent: ProcessIdentity,
    exit: Option<Exit>,
    signaled: HashSet<ProcessIdentity>,
    was_suspended: bool,
    /// The cgroup of the tree, if any, to kill all processes at once. Removed with the tree.
    cgroup: Option<Cgroup>,
}

/// The supervisor's ends of the agent's stdout and stderr.
#[derive(Debug)]
pub struct Pipes {
    pub output: OwnedFd,
    pub error: OwnedFd,
}

impl ProcessTree {
    /// Spawns the agent in its own process group, with exactly the environment of the plan and the run id. On failure,
    /// no process is left.
    pub fn spawn(
        plan: &RunPlan,
        run_id: RunId,
        stdin: BorrowedFd<'_>,
        prepared: Option<&PreparedSandbox>,
    ) -> io::Result<(Self, Pipes)> {
        // A socket for stdout: any process of the same user can reopen a pipe through `/proc`, so that the agent's
        // tools could forge a result. A socket cannot be reopened.
        let (output, child_output) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let (error, child_error) = pipe_with(PipeFlags::CLOEXEC)?;
        let streams = [stdin, child_output.as_fd(), child_error.as_fd()];
        let child = build_command(plan, run_id, prepared, streams)?.spawn()?;
        let pid = child.as_raw_pid();
        let unknown = ProcessIdentity { pid, start_ticks: 0 };
        let mut tree = Self {
            child: Some(child),
            wrapper: None,
            agent: unknown,
            exit: None,
            signaled: HashSet::new(),
            was_suspended: false,
            cgroup: None,
        };
        // Not reaped yet, so it is still in the process table even if it has exited.
        let Some(agent) = identity_of(pid) else {
            tree.abandon();
            return Err(io::Error::other("a process that was started cannot be watched"));
        };
        tree.agent = agent;
        Ok((tree, Pipes { output, error }))
    }

    /// Records that the spawned process is the outer process of a sandbox with the agent inside. `received` are the
    /// bytes already read from its status pipe.
    pub fn enter_sandbox(&mut self, status_fd: OwnedFd, received: Vec<u8>) -> io::Result<()> {
        let wrapper = SandboxWrapper::new(self.agent, status_fd, received)?;
        self.agent = wrapper.agent();
        self.wrapper = Some(wrapper);
        self.read_status();
        Ok(())
    }

    /// Sets the cgroup that the first process has entered.
    pub fn set_cgroup(&mut self, cgroup: Option<Cgroup>) {
        self.cgroup = cgroup;
    }

    /// Returns the pipe on which the sandbox reports the exit of the agent, while it is open.
    pub fn status_fd(&self) -> Option<BorrowedFd<'_>> {
        self.wrapper.as_ref().and_then(SandboxWrapper::status_fd)
    }

    fn read_status(&mut self) {
        if let Some(exit) = self.wrapper.as_mut().and_then(SandboxWrapper::read_exit) {
            self.exit.get_or_insert(exit);
        }
    }

    /// Kills a tree that will not be supervised.
    pub fn abandon(mut self) {
        let give_up_at = Instant::now() + Duration::from_secs(10);
        while !matches!(self.reap(), Ok(Children::None)) && Instant::now() < give_up_at {
            // Errors are retried in the next iteration.
            let _ = self.kill();
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns the agent's own process.
    pub fn agent(&self) -> ProcessIdentity {
        self.agent
    }

    /// Returns the exit status of the agent's own process, once it has exited.
    pub fn exit(&self) -> Option<Exit> {
        self.exit
    }

    /// Returns the number of processes except the agent's own that were alive when they were signaled.
    pub fn descendants_signaled(&self) -> u32 {
        let is_other = |agent: &&ProcessIdentity| {
            **agent != self.agent && !self.wrapper.as_ref().is_some_and(|wrapper| wrapper.contains(**agent))
        };
        let others = self.signaled.iter().filter(is_other).count();
        u32::try_from(others).unwrap_or(u32::MAX)
    }

    /// Returns whether a process of the tree was suspended when the first signal was sent.
    pub fn was_suspended(&self) -> bool {
        self.was_suspended
    }

    /// Reaps all exited children without blocking.
    pub fn reap(&mut self) -> io::Result<Children> {
        self.read_status();
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if Some(pid) == self.child => {
                    self.child = None;
                    let own = status
                        .exit_status()
                        .map(Exit::Code)
                        .or_else(|| status.terminating_signal().map(Exit::Signal));
                    // The last message of the sandbox may still be in the pipe.
                    self.read_status();
                    if self.wrapper.is_none() {
                        self.exit = own;
                    } else if self.exit.is_none() {
                        // The kernel killed the agent with its namespace.
                        self.exit = Some(Exit::Signal(Signal::KILL.as_raw()));
                    }
                }
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return Ok(Children::Remaining),
                Err(Errno::CHILD) => return Ok(Children::None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends SIGTERM to all processes of the tree. Returns `true` if the agent had already exited.
    pub fn terminate(&mut self) -> io::Result<bool> {
        // The sandbox exits by itself, and to search the process table for others takes a millisecond.
        if self.wrapper.as_ref().is_some_and(SandboxWrapper::is_empty) {
            return Ok(true);
        }
        self.signal(Signal::TERM)
    }

    /// Sends SIGKILL to all processes of the tree. Must be repeated for a tree that forks meanwhile.
    pub fn kill(&mut self) -> io::Result<()> {
        let signaled = self.signal(Signal::KILL).map(drop);
        // After the signals, which count the processes. Older kernels have no `cgroup.kill`.
        if let Some(cgroup) = &self.cgroup {
            let _ = cgroup.kill();
        }
        signaled
    }

    fn signal(&mut self, signal: Signal) -> io::Result<bool> {
        let table = ProcessTable::read();
        let mut alive = table.as_ref().map(descendants).unwrap_or_default();
        if let Some(wrapper) = &mut self.wrapper {
            wrapper.exclude_from(signal, &mut alive);
        }
        self.was_suspended |= self.signaled.is_empty() && alive.iter().any(|entry| entry.suspended);
        self.signaled.extend(alive.iter().map(|entry| entry.identity));
        let ended_first = self.has_ended()?;
        // Signaling the group as a whole leaves no member a chance to fork past it. The group id cannot be reused while
        // its leader has not been reaped.
        let group = self.group();
        if let Some(group) = group {
            ignore_missing(send(signal, |signal| Ok(kill_process_group(group, signal)?)))?;
        }
        for entry in alive {
            // Not a second SIGTERM: some agents treat it as a request to exit immediately.
            if group.is_some_and(|group| group.as_raw_pid() == entry.group) {
                continue;
            }
            if let Some(handle) = ProcessHandle::open(entry.identity)? {
                ignore_missing(send(signal, |signal| handle.signal(signal).map(drop)))?;
            }
        }
        table.map(|_| ended_first)
    }

    /// Returns the agent's process group, if it certainly is that. In a sandbox another process reaps the agent, so its
    /// identity is checked; a process that forks past a signal there cannot outlive the namespace.
    fn group(&self) -> Option<Pid> {
        if self.wrapper.is_none() {
            return self.child;
        }
        let is_the_agent = self.exit.is_none() && identity_of(self.agent.pid) == Some(self.agent);
        Pid::from_raw(self.agent.pid).filter(|_| is_the_agent)
    }

    /// Returns whether the agent's own process has exited, without reaping it: its pid stays reserved.
    fn has_ended(&mut self) -> io::Result<bool> {
        self.read_status();
        if self.wrapper.is_some() {
            return Ok(self.exit.is_some());
        }
        let Some(agent) = self.child else { return Ok(true) };
        let peek = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        Ok(waitid(WaitId::Pid(agent), peek)?.is_some())
    }
}

/// Sends a signal, and SIGCONT after SIGTERM: a suspended process handles it only after it continues.
fn send(signal: Signal, to: impl Fn(Signal) -> io::Result<()>) -> io::Result<()> {
    to(signal)?;
    if signal == Signal::TERM { to(Signal::CONT) } else { Ok(()) }
}

/// Ignores a process that has exited, or that a setuid program has moved to another user. The latter is reported as
/// left alive.
fn ignore_missing<T>(result: io::Result<T>) -> io::Result<()> {
    match result {
        Err(error)
            if [Errno::SRCH, Errno::PERM]
                .map(Errno::raw_os_error)
                .contains(&error.raw_os_error().unwrap_or(0)) =>
        {
            Ok(())
        }
        other => other.map(drop),
    }
}

/// Returns the living descendants of this process.
fn descendants(table: &ProcessTable) -> Vec<ProcessEntry> {
    table.descendants_of(HashSet::from([getpid().as_raw_pid()]))
}

/// Returns the number of living processes in the tree.
pub fn count_descendants() -> io::Result<u32> {
    Ok(u32::try_from(descendants(&ProcessTable::read()?).len()).unwrap_or(u32::MAX))
}

/// Returns the total resource usage of all reaped processes.
pub fn usage() -> io::Result<TreeUsage> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let whole = |number: i64| u64::try_from(number).unwrap_or_default();
    Ok(TreeUsage {
        cpu_user_ms: whole(usage.user_time().num_milliseconds()),
        cpu_system_ms: whole(usage.system_time().num_milliseconds()),
        largest_rss_bytes: whole(usage.max_rss()) * 1024,
    })
}

/// Builds the command of the agent, or of its sandbox.
fn build_command<'a>(
    plan: &RunPlan,
    run_id: RunId,
    prepared: Option<&'a PreparedSandbox>,
    streams: [BorrowedFd<'a>; 3],
) -> io::Result<AgentCommand<'a>> {
    let mut command = match prepared {
        None => {
            let mut command = AgentCommand::new(plan.program.as_os_str(), plan.cwd.as_os_str(), streams)?;
            plan.args.iter().try_for_each(|arg| command.arg(arg))?;
            plan.env.iter().try_for_each(|(name, value)| command.env(name, value))?;
            command
        }
        // The sandbox receives the program, directory and environment of the agent through its own plan.
        Some(prepared) => {
            let mut command = AgentCommand::new(prepared.program.as_os_str(), "/".as_ref(), streams)?;
            prepared.args.iter().try_for_each(|arg| command.arg(arg))?;
            command.set_cgroup(prepared.cgroup.as_ref().map(Cgroup::procs));
            command
        }
    };
    command.env(RunId::VARIABLE, &run_id.to_string())?;
    Ok(command)
}
