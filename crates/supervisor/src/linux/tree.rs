//! The process tree of one agent, seen from its subreaper.
//!
//! Every orphan below a subreaper falls to it. So "no descendant is left" is not a guess from a listing: it is the kernel's
//! own answer that the subreaper has no child.

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

use super::identity::{Entry, ProcessHandle, Table, identity_of, table};
use super::scaffold::Scaffold;
use super::spawning::Program;

/// Makes this process one that its caller's terminal, session and death do not touch, and to which orphans below it fall.
pub fn leave_the_caller() -> io::Result<()> {
    setsid()?;
    set_child_subreaper(Some(getpid()))?;
    Ok(())
}

/// Whether any process of the tree is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Children {
    /// At least one.
    Left,
    /// None; the kernel said so.
    None,
}

/// An agent and everything below it.
#[derive(Debug)]
pub struct Tree {
    /// What was started here, until it has been waited for: the agent's own process, or the outermost of its sandbox. Until
    /// then its pid, which is also the id of its process group, cannot be given out again.
    child: Option<Pid>,
    /// What stands between this process and the agent, where it is confined in namespaces.
    scaffold: Option<Scaffold>,
    /// The agent's own process.
    identity: ProcessIdentity,
    exit: Option<Exit>,
    signalled: HashSet<ProcessIdentity>,
    /// What kills all of it at once, where there is one. It goes with the tree, when nobody is left in it.
    cgroup: Option<Cgroup>,
}

/// The ends of the agent's stdout and stderr that stay here.
#[derive(Debug)]
pub struct Pipes {
    pub output: OwnedFd,
    pub error: OwnedFd,
}

impl Tree {
    /// Starts the agent in a process group of its own, with exactly the environment of the plan and the run's id. When it
    /// fails, nothing runs.
    pub fn spawn(
        plan: &RunPlan,
        run_id: RunId,
        stdin: BorrowedFd<'_>,
        prepared: Option<&PreparedSandbox>,
    ) -> io::Result<(Self, Pipes)> {
        // A socket, because no process can open it a second time: any process of the same user may open the pipe of another by its name in
        // `/proc`, and the agent's tools could print a result in its place.
        let (output, its_output) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let (error, its_error) = pipe_with(PipeFlags::CLOEXEC)?;
        let streams = [stdin, its_output.as_fd(), its_error.as_fd()];
        let child = program(plan, run_id, prepared, streams)?.spawn()?;
        let pid = child.as_raw_pid();
        let unknown = ProcessIdentity { pid, start_ticks: 0 };
        let mut tree = Self {
            child: Some(child),
            scaffold: None,
            identity: unknown,
            exit: None,
            signalled: HashSet::new(),
            cgroup: None,
        };
        // Not waited for yet, so it is still in the process table even if it has ended.
        let Some(identity) = identity_of(pid) else {
            tree.abandon();
            return Err(io::Error::other("a process that was started cannot be watched"));
        };
        tree.identity = identity;
        Ok((tree, Pipes { output, error }))
    }

    /// Tells it that what was started here is the outermost of a sandbox, that the agent runs inside, and what was heard
    /// from there so far.
    pub fn stands_in_a_scaffold(&mut self, words: OwnedFd, heard: Vec<u8>) -> io::Result<()> {
        let scaffold = Scaffold::around(self.identity, words, heard)?;
        self.identity = scaffold.agent();
        self.scaffold = Some(scaffold);
        self.hear();
        Ok(())
    }

    /// Gives it the cgroup that its first process has entered.
    pub fn stands_in_a_cgroup(&mut self, cgroup: Option<Cgroup>) {
        self.cgroup = cgroup;
    }

    /// Where it is said that an agent in a sandbox has ended; none when there is nothing to be heard.
    pub fn words(&self) -> Option<BorrowedFd<'_>> {
        self.scaffold.as_ref().and_then(Scaffold::words)
    }

    fn hear(&mut self) {
        if let Some(exit) = self.scaffold.as_mut().and_then(Scaffold::hear) {
            self.exit.get_or_insert(exit);
        }
    }

    /// Kills a tree that nobody will supervise.
    pub fn abandon(mut self) {
        let give_up_at = Instant::now() + Duration::from_secs(10);
        while !matches!(self.reap(), Ok(Children::None)) && Instant::now() < give_up_at {
            // An error is tried again with the next turn.
            let _ = self.kill();
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The agent's own process.
    pub fn agent(&self) -> ProcessIdentity {
        self.identity
    }

    /// How the agent's own process ended, once it has.
    pub fn exit(&self) -> Option<Exit> {
        self.exit
    }

    /// How many processes besides the agent's own were alive when they were signalled.
    pub fn descendants_signalled(&self) -> u32 {
        let is_other = |identity: &&ProcessIdentity| {
            **identity != self.identity
                && !self.scaffold.as_ref().is_some_and(|scaffold| scaffold.has(**identity))
        };
        let others = self.signalled.iter().filter(is_other).count();
        u32::try_from(others).unwrap_or(u32::MAX)
    }

    /// Waits for everything that has ended, without blocking.
    pub fn reap(&mut self) -> io::Result<Children> {
        self.hear();
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if Some(pid) == self.child => {
                    self.child = None;
                    let own = status
                        .exit_status()
                        .map(Exit::Code)
                        .or_else(|| status.terminating_signal().map(Exit::Signal));
                    // What was said before the end is still in the pipe.
                    self.hear();
                    if self.scaffold.is_none() {
                        self.exit = own;
                    } else if self.exit.is_none() {
                        // The kernel has ended the agent with the namespace.
                        self.exit = Some(Exit::Signal(Signal::KILL.as_raw()));
                    }
                }
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return Ok(Children::Left),
                Err(Errno::CHILD) => return Ok(Children::None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Asks every process of the tree to end. True: the agent itself had ended before it could be asked.
    pub fn terminate(&mut self) -> io::Result<bool> {
        self.signal(Signal::TERM)
    }

    /// Makes every process of the tree end. A tree that forks while this runs needs it again.
    pub fn kill(&mut self) -> io::Result<()> {
        let signalled = self.signal(Signal::KILL).map(drop);
        // After the list, which says whom there was to kill. An older kernel has no such file.
        if let Some(cgroup) = &self.cgroup {
            let _ = cgroup.kill();
        }
        signalled
    }

    fn signal(&mut self, signal: Signal) -> io::Result<bool> {
        let table = table();
        let mut alive = table.as_ref().map(descendants).unwrap_or_default();
        if let Some(scaffold) = &mut self.scaffold {
            scaffold.spare(signal, &mut alive);
        }
        self.signalled.extend(alive.iter().map(|entry| entry.identity));
        let ended_first = self.has_ended()?;
        // A group is signalled as one, so none of its members can fork past it. Nobody else can have this group's id while
        // its leader has not been waited for.
        let group = self.group();
        if let Some(group) = group {
            ignore_missing(send(signal, |signal| Ok(kill_process_group(group, signal)?)))?;
        }
        for entry in alive {
            // Two TERMs are not one: some agents take the second for impatience.
            if group.is_some_and(|group| group.as_raw_pid() == entry.group) {
                continue;
            }
            if let Some(handle) = ProcessHandle::open(entry.identity)? {
                ignore_missing(send(signal, |signal| handle.signal(signal).map(drop)))?;
            }
        }
        table.map(|_| ended_first)
    }

    /// The agent's process group, as long as it is sure to be that. In a sandbox another process waits for the agent, so its
    /// identity is looked at; there, what forks past a signal cannot outlive the namespace.
    fn group(&self) -> Option<Pid> {
        if self.scaffold.is_none() {
            return self.child;
        }
        let is_the_agent = self.exit.is_none() && identity_of(self.identity.pid) == Some(self.identity);
        Pid::from_raw(self.identity.pid).filter(|_| is_the_agent)
    }

    /// Whether the agent's own process has ended, without waiting for it: its pid stays taken.
    fn has_ended(&mut self) -> io::Result<bool> {
        self.hear();
        if self.scaffold.is_some() {
            return Ok(self.exit.is_some());
        }
        let Some(agent) = self.child else { return Ok(true) };
        let peek = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        Ok(waitid(WaitId::Pid(agent), peek)?.is_some())
    }
}

/// A suspended process does not see a TERM before it goes on.
fn send(signal: Signal, to: impl Fn(Signal) -> io::Result<()>) -> io::Result<()> {
    to(signal)?;
    if signal == Signal::TERM { to(Signal::CONT) } else { Ok(()) }
}

/// A process that another user's program (setuid) turned into is not ours to signal; it is counted as left alive in the end.
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

/// The living processes below this one.
fn descendants(table: &Table) -> Vec<Entry> {
    below(HashSet::from([getpid().as_raw_pid()]), &table.entries)
}

/// How many processes of the tree are alive now.
pub fn count_alive() -> io::Result<u32> {
    Ok(u32::try_from(descendants(&table()?).len()).unwrap_or(u32::MAX))
}

/// The living processes below any of the given pids.
pub(super) fn below(roots: HashSet<i32>, table: &[Entry]) -> Vec<Entry> {
    let mut family = roots;
    loop {
        let before = family.len();
        family.extend(
            table
                .iter()
                .filter(|entry| family.contains(&entry.parent))
                .map(|entry| entry.identity.pid)
                .collect::<Vec<_>>(),
        );
        if family.len() == before {
            break;
        }
    }
    table.iter().filter(|entry| !entry.dead && family.contains(&entry.parent)).copied().collect()
}

/// What all processes that were waited for used together.
pub fn usage() -> io::Result<TreeUsage> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let whole = |number: i64| u64::try_from(number).unwrap_or_default();
    Ok(TreeUsage {
        cpu_user_ms: whole(usage.user_time().num_milliseconds()),
        cpu_system_ms: whole(usage.system_time().num_milliseconds()),
        largest_rss_bytes: whole(usage.max_rss()) * 1024,
    })
}

/// What is to be started: the agent, or its sandbox.
fn program<'a>(
    plan: &RunPlan,
    run_id: RunId,
    prepared: Option<&'a PreparedSandbox>,
    streams: [BorrowedFd<'a>; 3],
) -> io::Result<Program<'a>> {
    let mut program = match prepared {
        None => {
            let mut program = Program::new(plan.program.as_os_str(), plan.cwd.as_os_str(), streams)?;
            plan.args.iter().try_for_each(|arg| program.arg(arg))?;
            plan.env.iter().try_for_each(|(name, value)| program.env(name, value))?;
            program
        }
        // What it is to start, in which folder and with which environment, is told to it another way.
        Some(prepared) => {
            let mut program = Program::new(prepared.program.as_os_str(), "/".as_ref(), streams)?;
            prepared.args.iter().try_for_each(|arg| program.arg(arg))?;
            program.door(prepared.cgroup.as_ref().map(Cgroup::procs));
            program
        }
    };
    program.env(RunId::VARIABLE, &run_id.to_string())?;
    Ok(program)
}
