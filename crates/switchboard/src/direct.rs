//! `switchboard call --direct`: runs a call without the daemon, under its own supervisor.
//!
//! For places where no daemon can be started, such as inside a call with policy `off`. The run has no job: it is not listed, awaited or
//! recovered. It is stopped when this program exits; its files stay.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use agent_run::{Expectation, RunFollower, RunStep};
use agents::doctor::{self, AgentCheck, Lookup, NotReady};
use agents::{HostConfig, Launch, LaunchSetup, Patience};
use model::{AgentEvent, CallSpec, Outcome, RunReport};
use protocol::{ProcessEnvironment, SwitchboardHome, event_to_json};
use render::tool_lines::Timing;
use supervisor::{Run, SpoolError, StartError, Supervisor, WaitError};
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::CallArgs;
use crate::closing::ClosingLines;
use crate::config::Config;
use crate::exit_status::ExitStatus;
use crate::failure::{CommandError, CommandFailure, RuntimeError};
use crate::output::{self, ResultCopy};
use crate::view::{OutputMode, View, redraw_timer};
use crate::{call_spec, machine};

/// Runs the call and derives the exit code from its outcome.
pub fn run(args: &CallArgs) -> Result<ExitCode, CommandFailure> {
    run_in(args, None)
}

/// Runs a call whose session and files are of no use afterwards, and removes its files.
pub fn test(args: &CallArgs, scratch: &Path) -> Result<ExitCode, CommandFailure> {
    run_in(args, Some(scratch))
}

/// Runs the call with its files in a scratch directory, or in that of a new job.
fn run_in(args: &CallArgs, scratch: Option<&Path>) -> Result<ExitCode, CommandFailure> {
    let environment = ProcessEnvironment::current();
    let home = SwitchboardHome::from_environment(&environment)?;
    let config = Config::read(Some(&home), &environment, &[])?;
    let spec = call_spec::build(args, &config)?;
    if spec.worktree.is_none()
        && config.repository_around(&spec.cwd).is_some_and(|repository| repository.worktree)
    {
        output::aside(
            "note: with `--direct`, the agent works in the directory itself and not in a private checkout",
        );
    }
    let directory = scratch.map_or_else(|| home.new_job_directory(), Path::to_owned);
    let lookup = machine::agent_lookup(&environment, Some(&home), &config);
    call_spec::check_links(&args.options, &lookup, &environment)?;
    let private_directory = supervisor::Spool::at(&directory).private();
    let premises = machine::premises(&home, &config);
    let setup = setup(&spec, lookup, config, private_directory, premises)?;
    home.create()?;
    // Not fatal: without the login, the agent reports the missing login.
    if let Err(error) = agents::seed_private_state(&spec, &setup) {
        output::aside(&format!("note: cannot copy the login into the policy's private state: {error}"));
    }
    let variables = call_spec::server_variables(&spec, &environment);
    let resolved = agents::resolve_variables(&spec, |name| variables.get(name).cloned())?;
    let launch = agents::launch(&resolved, &setup)?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(RuntimeError::from)?;
    runtime.block_on(async {
        let supervisor = Supervisor::beside_this_program().map_err(DirectError::Start)?;
        let run = agent_run::start(&supervisor, &directory, launch.plan.clone())
            .await
            .map_err(DirectError::Start)?;
        let (outcome, report) = follow(&run, &spec, &launch, args).await?;
        print_outcome(args, &outcome)?;
        let closing = ClosingLines::from_outcome(&outcome, &report, &spec, run.spool().directory());
        if scratch.is_some() { closing.without_files() } else { closing }.print();
        output::check_written(ResultCopy::Directory(directory.clone()))?;
        Ok(ExitStatus::from_failure(outcome.failure().map(|failure| &failure.kind)).into())
    })
}

fn setup(
    spec: &CallSpec,
    lookup: Lookup,
    config: Config,
    private_directory: PathBuf,
    premises: HostConfig,
) -> Result<LaunchSetup, CommandFailure> {
    // A call without a policy is confined by the ceiling.
    let spec = &*spec.within(&premises.ceiling);
    // The login is not checked: that takes longer than the agent's own rejection.
    let workspaces = || [&spec.cwd].into_iter().chain(&spec.add_dirs);
    let outside = lookup.clone().excluding_workspaces(workspaces());
    let AgentCheck { profile, program, version, capabilities, findings, agent, .. } =
        doctor::find_installed(spec.agent, &outside);
    let (Some(profile), Some(program)) = (profile, program) else {
        return Err(NotReady { agent, findings }.into());
    };
    let images = agents::read_images(&spec.images)?;
    if spec.writes_confined() {
        lookup.remember_workspaces(workspaces());
    }
    Ok(LaunchSetup {
        profile,
        images,
        program,
        version,
        capabilities,
        models: config.models,
        workspace: agents::inspect_workspace(spec, &lookup.inherited),
        inherited: lookup.inherited,
        pass_on: config.pass_env,
        private_directory,
        tool_timeout: Some(config.limits.tool_timeout),
        checkout: None,
        new_session: uuid::Uuid::new_v4().into(),
        host: premises,
    })
}

/// Shows the agent's events until the run ends. Ctrl-C stops the run; its end is awaited nevertheless.
async fn follow(
    run: &Run,
    spec: &CallSpec,
    launch: &Launch,
    args: &CallArgs,
) -> Result<(Outcome, RunReport), DirectError> {
    // Registered once: a signal between two polls is not lost.
    let mut interrupted = signal(SignalKind::interrupt()).map_err(DirectError::Runtime)?;
    let mut terminated = signal(SignalKind::terminate()).map_err(DirectError::Runtime)?;
    let mut follower =
        RunFollower::new(run, spec.agent, Some(Patience::default())).map_err(DirectError::Follow)?;
    let mut view = View::new(OutputMode::from_args(args), spec.agent, spec.cwd.clone(), Timing::Live);
    let mut timer = redraw_timer();
    loop {
        let mut show = |event: AgentEvent<'_>| view.show_event(&event_to_json(&event));
        let step = tokio::select! {
            biased; // a busy agent must not starve Ctrl-C
            _ = interrupted.recv() => None,
            _ = terminated.recv() => None,
            step = follower.next(&mut show) => Some(step?),
            _ = timer.tick() => { view.redraw(); continue }
        };
        match step {
            None => drop(follower.stop().map_err(DirectError::StopRun)?),
            Some(RunStep::StoppedEarly(_, stopped)) => drop(stopped.map_err(DirectError::StopRun)?),
            Some(RunStep::Output | RunStep::Error(_)) => {}
            Some(RunStep::Ended(end)) => {
                view.close(true);
                let outcome = end.judge(Expectation::from_launch(spec.agent, launch));
                return Ok((outcome, end.report));
            }
        }
    }
}

fn print_outcome(args: &CallArgs, outcome: &Outcome) -> serde_json::Result<()> {
    if args.json || args.events {
        output::line(&serde_json::to_string(outcome)?);
    }
    Ok(())
}

/// A run without the daemon failed.
#[derive(Debug, thiserror::Error)]
enum DirectError {
    #[error("cannot start the call")]
    Start(#[source] StartError),
    #[error("lost track of the run")]
    Wait(#[from] WaitError),
    #[error("cannot follow the run")]
    Follow(#[source] io::Error),
    #[error("cannot stop the run")]
    StopRun(#[source] io::Error),
    #[error("cannot start the async runtime")]
    Runtime(#[source] io::Error),
}

impl CommandError for DirectError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Start(error) => Some(error.hint().to_owned()),
            Self::Wait(error) => Some(error.hint().to_owned()),
            Self::Follow(_) | Self::StopRun(_) | Self::Runtime(_) => None,
        }
    }

    fn exit_status(&self) -> ExitStatus {
        match self {
            Self::Start(StartError::Spool(SpoolError::CannotWrite { .. })) => ExitStatus::NotWritten,
            _ => ExitStatus::Failed,
        }
    }
}
