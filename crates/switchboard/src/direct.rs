//! `switchboard call --direct`: one call without the daemon, the agent under a supervisor of this program's own.
//!
//! For places where no daemon may be started, such as inside a call with policy `off`. There is no job of the run: nothing lists it, waits for
//! it or takes it up again. So it ends with this program, however that ends; its files stay.

use std::path::PathBuf;
use std::process::ExitCode;

use agent_run::{Expectation, RunFollower, RunStep};
use agents::doctor::{self, AgentCheck, Lookup, NotReady};
use agents::{HostConfig, LINGER, Launch, LaunchSetup};
use model::{AgentEvent, CallSpec, Outcome, RunReport};
use supervisor::{Run, Supervisor};
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::CallArgs;
use crate::closing::Closing;
use crate::config::Config;
use crate::environment::Environment;
use crate::exit_status::ExitStatus;
use crate::failure::{Failure, Kept};
use crate::home::Home;
use crate::tool_lines::Timing;
use crate::view::{How, View};
use crate::{call, doctor as here, output, wire};

/// Places the call, stays until it is over, and turns its outcome into an exit code.
pub fn place(order: &CallArgs) -> Result<ExitCode, Failure> {
    let environment = Environment::of_this_process();
    let home = Home::find(&environment)?;
    let config = Config::read(Some(&home), &environment, &[])?;
    let spec = call::spec(order, &config)?;
    let folder = home.new_job();
    let lookup = here::lookup(&environment, Some(&home), &config);
    let private_directory = supervisor::Spool::at(&folder).private();
    let premises = here::premises(&home, &config);
    let setup = setup(&spec, lookup, config, private_directory, premises)?;
    home.make()?;
    // Without the login there, the agent itself says what is missing.
    if let Err(error) = agents::seed_private_state(&spec, &setup) {
        output::aside(&format!("note: cannot copy the login into the policy's private state: {error}"));
    }
    let launch = agents::launch(&spec, &setup)?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::Runtime)?;
    runtime.block_on(async {
        let supervisor = Supervisor::beside_this_program()?;
        let run = agent_run::start(&supervisor, &folder, launch.plan.clone()).await?;
        let (outcome, report) = follow(&run, &spec, &launch, order).await?;
        tell(order, &outcome)?;
        Closing::from_outcome(&outcome, &report, &spec, run.spool().directory()).print();
        output::written().map_err(|error| Failure::unwritten(error, Kept::Folder(folder.clone())))?;
        Ok(ExitStatus::from_failure(outcome.failure().map(|failure| &failure.kind)).into())
    })
}

fn setup(
    spec: &CallSpec,
    lookup: Lookup,
    config: Config,
    private_directory: PathBuf,
    premises: HostConfig,
) -> Result<LaunchSetup, Failure> {
    // Whether it is logged in is left to the agent itself: asking first would cost more than its own refusal.
    let workspaces = || [&spec.cwd].into_iter().chain(&spec.add_dirs);
    let outside = lookup.clone().excluding_workspaces(workspaces());
    let AgentCheck { program, version, capabilities, findings, agent, .. } =
        doctor::find_installed(spec.agent, &outside);
    let Some(program) = program else { return Err(NotReady { agent, findings }.into()) };
    if spec.writes_confined() {
        lookup.remember_workspaces(workspaces());
    }
    Ok(LaunchSetup {
        program,
        version,
        capabilities,
        models: config.models,
        workspace: agents::inspect_workspace(spec, &lookup.inherited),
        inherited: lookup.inherited,
        pass_on: config.pass_env,
        private_directory,
        tool_timeout: Some(config.limits.tool_timeout),
        new_session: uuid::Uuid::new_v4().into(),
        host: premises,
    })
}

/// Shows the run until it has ended. Ctrl-C asks it to stop, and its end is awaited all the same.
async fn follow(
    run: &Run,
    spec: &CallSpec,
    launch: &Launch,
    order: &CallArgs,
) -> Result<(Outcome, RunReport), Failure> {
    // Created once, so that a signal between two steps is not lost.
    let mut interrupted = signal(SignalKind::interrupt()).map_err(Failure::Runtime)?;
    let mut terminated = signal(SignalKind::terminate()).map_err(Failure::Runtime)?;
    let mut follower = RunFollower::new(run, spec.agent, Some(LINGER)).map_err(Failure::Follow)?;
    let mut view = View::new(How::of(order), spec.agent, spec.cwd.clone(), Timing::Live);
    let mut tick = call::ticks();
    loop {
        let mut show = |event: AgentEvent<'_>| view.event(&wire::said(&event));
        let step = tokio::select! {
            biased; // Ctrl-C must win over an agent that never stops printing
            _ = interrupted.recv() => None,
            _ = terminated.recv() => None,
            step = follower.next(&mut show) => Some(step?),
            _ = tick.tick() => { view.tick(); continue }
        };
        match step {
            None => drop(follower.stop().map_err(Failure::StopRun)?),
            Some(RunStep::StoppedEarly(_, stopped)) => drop(stopped.map_err(Failure::StopRun)?),
            Some(RunStep::Output | RunStep::Error(_)) => {}
            Some(RunStep::Ended(end)) => {
                view.close(true);
                let outcome = end.judge(Expectation::from_launch(spec.agent, launch));
                return Ok((outcome, end.report));
            }
        }
    }
}

fn tell(order: &CallArgs, outcome: &Outcome) -> Result<(), Failure> {
    if order.json || order.events {
        output::line(&serde_json::to_string(outcome)?);
    }
    Ok(())
}
