//! Supervises one run from the start of the agent to the exit of the last process of its tree.
//!
//! Owns the only blocking wait of the supervisor, and the precedence of concurrent events: completion first, then
//! failures, then requests, then deadlines.

use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use model::{End, Limits, RunReport, TreeEnd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::clock::now_ms;
use crate::deadlines::Deadlines;
use crate::input_pump::InputPump;
use crate::launch::Launched;
use crate::log::log_error;
use crate::os::{Children, ProcessTree, SignalReader, StarterProcess, count_descendants, usage};
use crate::path_guard::PathGuard;
use crate::run_command::RunCommand;
use crate::spooled_stream::{Budget, Copied, SpooledStream};

/// The interval at which the spool is checked: deleting it makes no open file unwritable.
const SPOOL_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum wait for processes to die after SIGKILL.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// The interval at which the kill is repeated, for processes forked during the previous one.
const KILL_INTERVAL: Duration = Duration::from_millis(10);

/// The maximum number of reads after the end; each copies up to a megabyte per stream.
const MAX_DRAIN_ROUNDS: u32 = 64;

/// The progress of the shutdown of the tree.
#[derive(Debug, Clone, Copy)]
enum Phase {
    Running,
    /// SIGTERM was sent to all processes.
    Terminating {
        kill_at: Instant,
    },
    /// SIGKILL is sent to all processes repeatedly.
    Killing {
        give_up_at: Instant,
    },
}

/// The events that ended a wait.
#[derive(Debug, Clone, Copy)]
struct WakeSources {
    /// A signal, a new name in a watched directory, or a timeout: a process may have exited or a path may have
    /// appeared.
    by_signal: bool,
    /// Set for stdout and for stderr.
    ready_streams: [bool; 2],
    /// The open input or a command has grown, or the agent has room for more bytes.
    by_input: bool,
}

impl WakeSources {
    /// Unknown source: check everything.
    fn all() -> Self {
        Self { by_signal: true, ready_streams: [true; 2], by_input: true }
    }
}

/// The parts of a run that hold inotify watches. They outlive the supervision, since closing a watch blocks.
#[derive(Debug)]
pub struct Watches<'a> {
    /// The guard of missing protected paths, if there are any.
    pub guard: Option<&'a mut PathGuard>,
    /// The pump of an open input.
    pub input: Option<&'a mut InputPump>,
}

/// A run in progress.
#[derive(Debug)]
pub struct Supervision<'a> {
    signals: &'a SignalReader,
    starter: StarterProcess,
    tree: ProcessTree,
    watches: Watches<'a>,
    output: SpooledStream,
    error: SpooledStream,
    budget: Budget,
    grace: Duration,
    deadlines: Deadlines,
    started: Instant,
    spool_checked: Instant,
    phase: Phase,
    end: Option<End>,
}

impl<'a> Supervision<'a> {
    /// Takes over an agent that has just been started.
    pub fn new(
        launched: Launched,
        limits: &Limits,
        signals: &'a SignalReader,
        starter: StarterProcess,
        watches: Watches<'a>,
        since: Instant,
    ) -> Self {
        Self {
            signals,
            starter,
            tree: launched.tree,
            watches,
            output: launched.output,
            error: launched.error,
            budget: Budget::new(limits.output_bytes),
            grace: limits.grace,
            deadlines: Deadlines::start(limits.clone(), since),
            started: since,
            spool_checked: since,
            phase: Phase::Running,
            end: None,
        }
    }

    /// Ends the run because its spool cannot be written.
    pub fn spool_failed(&mut self, error: &io::Error) {
        self.end = Some(End::SpoolFailed { message: error.to_string() });
    }

    /// Waits until no process of the tree is left, and returns the report. An error of the operating system (EMFILE,
    /// ENOMEM) must not leave the tree unsupervised: it is logged and retried in the next iteration.
    pub fn run_to_end(mut self) -> RunReport {
        let tree = loop {
            let woken = self.wait().unwrap_or_else(|error| {
                log_error(&format!("cannot wait: {error}"));
                std::thread::sleep(KILL_INTERVAL);
                WakeSources::all()
            });
            // Output is the only frequent wake-up, and changes neither children nor signals.
            let stop_requested =
                woken.by_signal && self.signals.read_pending().is_ok_and(|pending| pending.stop);
            let children = if woken.by_signal { self.tree.reap().ok() } else { None };
            let guard = self.watches.guard.as_deref_mut();
            let violation = guard.filter(|_| woken.by_signal).and_then(PathGuard::check);
            let now = Instant::now();
            let copied = self.copy(woken, now);
            let failed = copied.or(self.feed(woken, now));
            self.decide_end(stop_requested, failed, violation, now);
            if children == Some(Children::None) {
                break TreeEnd::ProvenEmpty;
            }
            if let Some(left) = self.advance_shutdown(now) {
                break left;
            }
        };
        self.drain();
        self.report(tree)
    }

    /// Waits for a stream, a signal or a timeout.
    fn wait(&mut self) -> io::Result<WakeSources> {
        // A closed pipe is replaced by the signalfd, so that the indices stay fixed.
        let signals = self.signals.as_fd();
        let input = self.watches.input.as_deref();
        let stdin = input.and_then(InputPump::stdin_fd);
        let is_open = |stream: &'_ SpooledStream| stream.pipe().is_some();
        let watched = |file| PollFd::from_borrowed_fd(file, PollFlags::IN);
        let mut files = [
            watched(signals),
            watched(self.output.pipe().unwrap_or(signals)),
            watched(self.error.pipe().unwrap_or(signals)),
            watched(self.tree.status_fd().unwrap_or(signals)),
            watched(self.starter.exit_fd().unwrap_or(signals)),
            watched(self.watches.guard.as_deref().and_then(PathGuard::as_fd).unwrap_or(signals)),
            watched(input.and_then(InputPump::watch_fd).unwrap_or(signals)),
            stdin.map_or(watched(signals), |stdin| PollFd::from_borrowed_fd(stdin, PollFlags::OUT)),
        ];
        // The last two are those of an open input.
        let used = if input.is_some() { files.len() } else { files.len() - 2 };
        let pause = self.wake_at().saturating_duration_since(Instant::now());
        let pause = Timespec::try_from(pause).map_err(io::Error::other)?;
        match poll(&mut files[..used], Some(&pause)) {
            Ok(count) => {
                let ready = |index: usize| !files[index].revents().is_empty();
                let woken = WakeSources {
                    by_signal: ready(0) || ready(3) || ready(5) || count == 0,
                    ready_streams: [ready(1) && is_open(&self.output), ready(2) && is_open(&self.error)],
                    by_input: input.is_some_and(|input| ready(6) || ready(7) || input.is_due(Instant::now())),
                };
                if ready(4) && self.starter.exit_fd().is_some() {
                    // Stop polling it, or it would wake this loop until the tree is gone.
                    self.starter = StarterProcess::Exited;
                }
                Ok(woken)
            }
            Err(rustix::io::Errno::INTR) => Ok(WakeSources::all()),
            Err(error) => Err(error.into()),
        }
    }

    fn wake_at(&self) -> Instant {
        match self.phase {
            Phase::Running if self.end.is_some() => self.started,
            Phase::Running => {
                let check = self.spool_checked + SPOOL_CHECK_INTERVAL;
                let deadline = self.deadlines.next().map(|(at, _)| at);
                let input = self.watches.input.as_deref().and_then(InputPump::check_at);
                [deadline, input].into_iter().flatten().fold(check, Instant::min)
            }
            Phase::Terminating { kill_at } => kill_at,
            Phase::Killing { .. } => Instant::now() + KILL_INTERVAL,
        }
    }

    /// Copies the agent's output to the spool, also after the end has been decided.
    fn copy(&mut self, woken: WakeSources, now: Instant) -> Option<End> {
        let mut verdict = None;
        let streams = [&mut self.output, &mut self.error].into_iter().zip(woken.ready_streams);
        for stream in streams.filter_map(|(stream, ready)| ready.then_some(stream)) {
            match stream.copy(&mut self.budget) {
                Ok(Copied::Bytes) => self.deadlines.byte_seen(now),
                Ok(Copied::Nothing) => {}
                Ok(Copied::OverBudget) => verdict = Some(End::OutputLimit),
                Err(error) => verdict = Some(End::SpoolFailed { message: error.to_string() }),
            }
            if verdict.is_some() {
                break;
            }
        }
        if verdict.is_some() {
            self.output.close();
            self.error.close();
        }
        verdict
    }

    /// Feeds the agent its input and executes the commands beside it, also after the end has been decided: the agent may
    /// read while it shuts down.
    fn feed(&mut self, woken: WakeSources, now: Instant) -> Option<End> {
        let input = self.watches.input.as_deref_mut().filter(|_| woken.by_input)?;
        match input.pump(now) {
            Ok(commands) => {
                for command in commands {
                    match command {
                        RunCommand::CloseInput => input.close_at_end(),
                    }
                }
                None
            }
            Err(error) => Some(End::SpoolFailed { message: format!("cannot read the input: {error}") }),
        }
    }

    /// Decides the outcome of the run, once. A run that has finished keeps its own outcome.
    fn decide_end(
        &mut self,
        stop_requested: bool,
        failed: Option<End>,
        violation: Option<PathBuf>,
        now: Instant,
    ) {
        if self.end.is_some() {
            return;
        }
        self.end = if failed.is_some() {
            failed
        } else if self.tree.exit().is_some() {
            Some(End::Exited)
        } else if let Some(path) = violation {
            Some(End::PolicyViolation { path })
        } else if stop_requested {
            Some(End::Stopped)
        } else if self.starter.has_exited() {
            Some(End::StarterGone)
        } else if let Some(which) = self.deadlines.passed(now) {
            Some(End::Deadline { which })
        } else {
            self.spool_is_gone(now).then(|| End::SpoolFailed { message: "the spool was removed".to_owned() })
        };
    }

    fn spool_is_gone(&mut self, now: Instant) -> bool {
        if now < self.spool_checked + SPOOL_CHECK_INTERVAL {
            return false;
        }
        self.spool_checked = now;
        ![&self.output, &self.error].into_iter().all(|stream| stream.is_on_disk().unwrap_or(false))
    }

    /// Advances the shutdown of the tree by one step. Returns the number of survivors if it has to give up.
    fn advance_shutdown(&mut self, now: Instant) -> Option<TreeEnd> {
        match self.phase {
            Phase::Running if self.end.is_none() => {}
            Phase::Running => {
                match self.tree.terminate() {
                    Ok(true)
                        if matches!(
                            self.end,
                            Some(End::Stopped | End::StarterGone | End::Deadline { .. })
                        ) =>
                    {
                        self.end = Some(End::Exited);
                    }
                    Ok(_) => {}
                    Err(error) => log_error(&format!("cannot terminate the tree: {error}")),
                }
                self.phase = Phase::Terminating { kill_at: now + self.grace };
            }
            Phase::Terminating { kill_at } if now < kill_at => {}
            Phase::Terminating { .. } => {
                self.kill();
                self.phase = Phase::Killing { give_up_at: now + KILL_TIMEOUT };
            }
            Phase::Killing { give_up_at } if now < give_up_at => self.kill(),
            Phase::Killing { .. } => {
                return Some(TreeEnd::LeftAlive { processes: count_descendants().unwrap_or(1) });
            }
        }
        None
    }

    fn kill(&mut self) {
        if let Err(error) = self.tree.kill() {
            log_error(&format!("cannot kill the tree: {error}"));
        }
    }

    /// Copies the rest of the output. The tree is gone, so this does not block; a pipe that was passed to a process
    /// outside the tree is abandoned after a number of rounds.
    fn drain(&mut self) {
        let now = Instant::now();
        for _ in 0..MAX_DRAIN_ROUNDS {
            let before = self.output.bytes() + self.error.bytes();
            if let Some(end) = self.copy(WakeSources::all(), now) {
                // Output of a finished agent was lost, so its answer is incomplete, whatever its exit status.
                if matches!(self.end, None | Some(End::Exited)) {
                    self.end = Some(end);
                }
            }
            if self.output.bytes() + self.error.bytes() == before {
                break;
            }
        }
    }

    fn report(self, tree: TreeEnd) -> RunReport {
        RunReport {
            // Without any other reason, the tree has exited by itself.
            end: self.end.unwrap_or(End::Exited),
            exit: self.tree.exit(),
            ended_at_ms: now_ms(),
            duration_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            output_bytes: self.output.bytes(),
            error_bytes: self.error.bytes(),
            usage: usage().unwrap_or_default(),
            descendants_ended: self.tree.descendants_signaled(),
            was_suspended: self.tree.was_suspended(),
            tree,
            sandbox: None,
        }
    }
}
