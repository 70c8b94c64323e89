//! The supervisor as a program: reads the order in a spool, carries it out, writes down how it ended.

use std::env;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::panic;
use std::process::ExitCode;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use model::{
    End, LimitClock, Policy, ProcessIdentity, RunPlan, RunReport, RunState, RunStatus, STATUS_VERSION,
    SandboxReport, TreeEnd, TreeUsage,
};
use sandbox::{CommitWatch, CountedCommits};

use crate::active_runs::Publication;
use crate::confine::release_caches;
use crate::fork_server::{ForkedSupervisor, NURSERY, bear_supervisors};
use crate::held::{ERROR, LockedSpool, OUTPUT, RunManifest, StatusSlot};
use crate::launch::{Launched, StreamFiles, launch};
use crate::line::tell;
use crate::os::{self, Signals, Starter};
use crate::spool::SpoolError;
use crate::supervision::Supervision;

/// The first argument with which a program is asked to be a supervisor instead of itself.
pub(crate) const ASKED: &str = "--switchboard-supervisor";

/// The whole of the supervisor's program: `switchboard-supervisor <spool>`, with the held folder as its stdin.
///
/// Must be the first thing that a process does: it closes every other file it was handed.
pub fn main() -> ExitCode {
    if let Some(code) = sandbox::run_if_requested() {
        return code;
    }
    supervise(env::args_os().nth(1).as_deref())
}

/// Lets a program that embeds this library be its own supervisor (see [`crate::Supervisor::this_program`]).
///
/// Call it first in `main`, before anything opens a file or starts a thread, and return the code when there is one:
///
/// ```no_run
/// fn main() -> std::process::ExitCode {
///     if let Some(code) = supervisor::run_if_asked() {
///         return code;
///     }
///     // the program itself
/// #   std::process::ExitCode::SUCCESS
/// }
/// ```
pub fn run_if_asked() -> Option<ExitCode> {
    if let Some(code) = sandbox::run_if_requested() {
        return Some(code);
    }
    let mut args = env::args_os().skip(1);
    (args.next()? == ASKED).then(|| supervise(args.next().as_deref()))
}

fn supervise(folder: Option<&OsStr>) -> ExitCode {
    let Some(folder) = folder else {
        let usage = "the spool is missing\nhint: this program is started by Switchboard: `switchboard-supervisor <spool>`";
        let _ = writeln!(io::stderr(), "switchboard-supervisor: {usage}");
        return ExitCode::from(2);
    };
    panic::set_hook(Box::new(|defect| complain(&defect.to_string())));
    let done = if folder == NURSERY {
        match bear_supervisors() {
            Ok(Some(ForkedSupervisor { folder, ready })) => execute(&folder, &ready),
            Ok(None) => Ok(()),
            Err(error) => Err(GaveUp::Setup(error)),
        }
    } else {
        let ready = os::close_inherited_files().and_then(|()| Ready::get());
        ready.map_err(GaveUp::Setup).and_then(|ready| execute(folder, &ready))
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let mut text = error.to_string();
            let mut cause = std::error::Error::source(&error);
            while let Some(deeper) = cause {
                text = format!("{text}: {deeper}");
                cause = deeper.source();
            }
            // Before the agent has started, the starter hears it on stdout; afterwards it stands in the log.
            let _ = io::stdout().write_all(text.as_bytes());
            complain(&text);
            ExitCode::FAILURE
        }
    }
}

/// Writes to the log in the spool, which is this process's stdin; it is made for the first complaint.
pub(crate) fn complain(text: &str) {
    let told =
        LockedSpool::log_of(io::stdin()).and_then(|mut log| writeln!(log, "switchboard-supervisor: {text}"));
    if told.is_err() {
        let _ = writeln!(io::stderr(), "switchboard-supervisor: {text}");
    }
}

/// Why a supervisor gave up.
#[derive(Debug, thiserror::Error)]
enum GaveUp {
    #[error("cannot become a supervisor")]
    Setup(#[source] io::Error),
    #[error(transparent)]
    Spool(#[from] SpoolError),
    #[error("there is no plan in the spool `{0}`")]
    NoPlan(String),
    #[error("another supervisor holds the spool `{0}`")]
    Held(String),
    #[error("cannot write to the spool")]
    Write(#[source] io::Error),
}

/// What a supervisor is before it knows what is to be run.
#[derive(Debug)]
pub(crate) struct Ready {
    signals: Signals,
    this: ProcessIdentity,
}

impl Ready {
    pub fn get() -> io::Result<Self> {
        // First of all: a signal that was ignored until now must not end it.
        let signals = Signals::listen()?;
        os::heed_what_was_ignored();
        let HalfReady { this } = HalfReady::get()?;
        Ok(Self { signals, this })
    }
}

/// The same, as far as it can be had without listening to signals, in a process that heeds them all.
pub(crate) struct HalfReady {
    this: ProcessIdentity,
}

impl HalfReady {
    pub fn get() -> io::Result<Self> {
        os::boot_id()?;
        Ok(Self { this: os::this_process()? })
    }

    pub fn listens(self) -> io::Result<Ready> {
        Ok(Ready { signals: Signals::listen()?, this: self.this })
    }
}

fn execute(folder: &OsStr, ready: &Ready) -> Result<(), GaveUp> {
    let signals = &ready.signals;
    os::leave_the_caller().map_err(GaveUp::Setup)?;
    let name = || folder.display().to_string();
    let spool = LockedSpool::handed_over().map_err(GaveUp::Setup)?.ok_or_else(|| GaveUp::Held(name()))?;
    let RunManifest { run_id, plan, starter, .. } = spool.order()?.ok_or_else(|| GaveUp::NoPlan(name()))?;
    let files = open_streams(&spool).map_err(GaveUp::Write)?;
    // Its room was taken before the agent can fill the disk.
    let last_slot = spool.last_status(plan.status_durability).map_err(GaveUp::Write)?;

    let status = RunStatus {
        version: STATUS_VERSION,
        run_id,
        boot_id: os::boot_id().map_err(GaveUp::Setup)?.to_owned(),
        supervisor: ready.this,
        started_at_ms: now_ms(),
        sandbox: None,
        limits: Some(LimitClock { limits: plan.limits.clone(), started_monotonic_ms: os::monotonic_ms() }),
        state: RunState::Ended(never_started(End::Stopped)),
    };
    let since = Instant::now();
    let stopped = signals.take().map_err(GaveUp::Setup)?.stop;
    let starter = Starter::hold(starter).map_err(GaveUp::Setup)?;
    let commits = match &plan.policy {
        Policy::Confined(_) => CommitWatch::start(&plan.cwd, &plan.env),
        Policy::Off => None,
    };
    let launched = if stopped {
        Err(End::Stopped)
    } else if starter.is_gone() {
        Err(End::StarterGone)
    } else {
        launch(&spool, folder.as_ref(), &plan, run_id, files).map_err(End::NotStarted)
    };
    let mut guard;
    let (report, sandbox) = match launched {
        Err(end) => (never_started(end), None),
        Ok(mut launched) => {
            let mut sandbox = launched.sandbox.clone();
            let proxy = launched.proxy.take();
            // Closed with the process: whoever closes a watch waits for the kernel.
            guard = launched.guard.take();
            let publication = launched.publication.take();
            let status = RunStatus { sandbox: Some(sandbox.clone()), ..status.clone() };
            let announced = announce(&spool, &plan, &status, &launched);
            let mut supervision =
                Supervision::new(launched, &plan.limits, signals, starter, guard.as_mut(), since);
            match announced {
                Ok(told) => tell(&told),
                // A run that nobody can find again is not to be.
                Err(error) => supervision.spool_failed(&error),
            }
            let report = supervision.until_the_end();
            if let (Some(proxy), SandboxReport::Confined(confined)) = (proxy, &mut sandbox) {
                confined.refused_hosts = proxy.close();
            }
            if let (Some(guard), SandboxReport::Confined(confined)) = (&guard, &mut sandbox) {
                confined.quarantined.extend(guard.sweep(&spool));
            }
            if let (Some(commits), SandboxReport::Confined(confined)) = (&commits, &mut sandbox) {
                let CountedCommits { without_hooks, unsigned } = commits.count();
                (confined.commits_without_hooks, confined.unsigned_commits) = (without_hooks, unsigned);
            }
            if !matches!(report.tree, TreeEnd::LeftAlive { .. }) {
                publication.iter().for_each(Publication::withdraw);
            }
            (report, Some(sandbox))
        }
    };
    let report = RunReport { sandbox: sandbox.clone(), ..report };
    let status = RunStatus { sandbox, state: RunState::Ended(report), ..status };
    release_caches();
    let told = finish(&spool, last_slot, &status).map_err(GaveUp::Write)?;
    tell(&told);
    // Whoever has waited for it goes first; what is left to do here is to end.
    std::thread::yield_now();
    Ok(())
}

/// From here on the run can be found without the plan. Answers what was written down.
fn announce(
    spool: &LockedSpool,
    plan: &RunPlan,
    status: &RunStatus,
    launched: &Launched,
) -> io::Result<Vec<u8>> {
    let status = RunStatus { state: RunState::Running { agent: launched.tree.agent() }, ..status.clone() };
    let told = spool.first_status(&status, plan.status_durability)?;
    spool.forget_plan()?;
    Ok(told)
}

fn finish(spool: &LockedSpool, slot: StatusSlot<'_>, status: &RunStatus) -> io::Result<Vec<u8>> {
    // Secrets first: a status that says "ended" must be true of them too.
    let cleared = spool.clear_private().and_then(|()| spool.forget_plan());
    let told = slot.publish(status)?;
    // After the status: killed in between, the recovery would report nothing of it.
    let is_over =
        matches!(&status.state, RunState::Ended(report) if !matches!(report.tree, TreeEnd::LeftAlive { .. }));
    if is_over {
        spool.forget_quarantine()?;
    }
    cleared?;
    Ok(told)
}

fn open_streams(spool: &LockedSpool) -> io::Result<StreamFiles> {
    Ok(StreamFiles { output: spool.stream(OUTPUT)?, error: spool.stream(ERROR)? })
}

fn never_started(end: End) -> RunReport {
    RunReport {
        end,
        exit: None,
        ended_at_ms: now_ms(),
        duration_ms: 0,
        output_bytes: 0,
        error_bytes: 0,
        usage: TreeUsage::default(),
        descendants_ended: 0,
        tree: TreeEnd::ProvenEmpty,
        sandbox: None,
    }
}

pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
