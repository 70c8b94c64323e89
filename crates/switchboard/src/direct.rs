//! `switchboard call --direct`: one call without the daemon, the agent under a supervisor of this program's own.
//!
//! For places where no daemon may be started, such as inside a call with policy `off`. There is no job of the run: nothing lists it, waits for
//! it or takes it up again. So it ends with this program, however that ends; its files stay.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use agents::doctor::{self, AgentCheck, Lookup, NotReady};
use agents::{
    FinishedRun, HostConfig, LINGER, Launch, LaunchSetup, ParseLimits, Parser, StderrTail, early_stop, judge,
};
use model::{CallSpec, Outcome, RunLifetime, RunPlan, RunReport};
use supervisor::{Offsets, Run, RunEvent, Supervisor};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep_until};

use crate::cli::CallArgs;
use crate::closing::Closing;
use crate::config::Config;
use crate::environment::Environment;
use crate::exit_status::ExitStatus;
use crate::failure::{Failure, Kept};
use crate::home::Home;
use crate::view::{How, View};
use crate::{call, doctor as here, output, wire};
use render::tool_lines::Timing;

/// Places the call, stays until it is over, and turns its outcome into an exit code.
pub fn place(order: &CallArgs) -> Result<ExitCode, Failure> {
    let environment = Environment::of_this_process();
    let home = Home::find(&environment)?;
    let config = Config::read(Some(&home), &environment, &[])?;
    let spec = call::spec(order, &config)?;
    let folder = home.new_job();
    let lookup = here::lookup(&environment, Some(&home), &config);
    let private_folder = supervisor::Spool::at(&folder).private();
    let premises = here::premises(&home, &config);
    let setup = setup(&spec, lookup, config, private_folder, premises)?;
    home.make()?;
    // Without the login there, the agent itself says what is missing.
    if let Err(error) = agents::seed_private_state(&spec, &setup) {
        output::aside(&format!("note: cannot copy the login into the policy's private state: {error}"));
    }
    let launch = agents::launch(&spec, &setup)?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::Runtime)?;
    runtime.block_on(async {
        let plan = RunPlan { lifetime: RunLifetime::BoundToStarter, ..launch.plan.clone() };
        let run = Supervisor::beside_this_program()?.start(&folder, &plan).await?;
        let (outcome, report) = Call { spec: &spec, launch: &launch }.follow(&run, order).await?;
        tell(order, &outcome)?;
        Closing::from_outcome(&outcome, &report, &spec, run.spool().folder()).print();
        output::written().map_err(|error| Failure::unwritten(error, Kept::Folder(folder.clone())))?;
        Ok(ExitStatus::from_failure(outcome.failure().map(|failure| &failure.kind)).into())
    })
}

fn setup(
    spec: &CallSpec,
    lookup: Lookup,
    config: Config,
    private_folder: PathBuf,
    premises: HostConfig,
) -> Result<LaunchSetup, Failure> {
    // Whether it is logged in is left to the agent itself: asking first would cost more than its own refusal.
    let workspaces = || [&spec.cwd].into_iter().chain(&spec.add_dirs);
    let outside = lookup.clone().outside_of(workspaces());
    let AgentCheck { program, version, capabilities, findings, agent, .. } =
        doctor::look_up(spec.agent, &outside);
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
        private_folder,
        tool_timeout: Some(config.limits.tool_timeout),
        new_session: uuid::Uuid::new_v4().into(),
        host: premises,
    })
}

/// A call that has been placed.
struct Call<'a> {
    spec: &'a CallSpec,
    launch: &'a Launch,
}

impl Call<'_> {
    /// Passes on what the agent says until the run is over. Ctrl-C asks it to stop; the end is waited for all the same.
    async fn follow(&self, run: &Run, order: &CallArgs) -> Result<(Outcome, RunReport), Failure> {
        // Made once: a signal that comes between two looks is kept.
        let mut interrupted = signal(SignalKind::interrupt()).map_err(Failure::Runtime)?;
        let mut terminated = signal(SignalKind::terminate()).map_err(Failure::Runtime)?;
        let mut events = run.events(Offsets::default()).map_err(Failure::Follow)?;
        let mut parser = Parser::new(self.spec.agent, ParseLimits::default());
        let mut stderr = StderrTail::default();
        let mut view = View::new(How::of(order), self.spec.agent, self.spec.cwd.clone(), Timing::Live);
        let mut tick = call::ticks();
        let (mut heard, mut stopped) = (Instant::now(), false);
        loop {
            let over = early_stop(parser.summary(), LINGER).filter(|_| !stopped);
            let silence = over.map_or(Duration::ZERO, |(_, silence)| silence);
            let event = tokio::select! {
                biased; // an agent that never stops talking must not talk over Ctrl-C
                _ = interrupted.recv() => None,
                _ = terminated.recv() => None,
                event = events.next() => Some(event?),
                () = sleep_until(heard + silence), if over.is_some() => {
                    stopped = true;
                    None
                }
                _ = tick.tick() => { view.tick(); continue }
            };
            let report = match event {
                None => {
                    run.stop().map_err(Failure::StopRun)?;
                    continue;
                }
                Some(Some(RunEvent::Output(bytes))) => {
                    heard = Instant::now();
                    parser.feed(&bytes, &mut |event| view.event(&wire::said(&event)));
                    continue;
                }
                Some(Some(RunEvent::Error(bytes))) => {
                    stderr.push(&bytes);
                    continue;
                }
                Some(Some(RunEvent::Ended(report))) => report,
                Some(None) => run.wait().await?,
            };
            let summary = parser.finish(&mut |event| view.event(&wire::said(&event)));
            view.close(true);
            let stderr = stderr.text();
            let ended = FinishedRun::new(self.spec.agent, self.launch, &summary, &report, &stderr);
            return Ok((judge(&ended), report));
        }
    }
}

fn tell(order: &CallArgs, outcome: &Outcome) -> Result<(), Failure> {
    if order.json || order.events {
        output::line(&serde_json::to_string(outcome)?);
    }
    Ok(())
}
