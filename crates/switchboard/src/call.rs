//! One call from a terminal: the agent under a supervisor, its words passed on as they come.

use std::env;
use std::io::{self, Read};
use std::process::ExitCode;

use model::{End, Exit, Limits, RunPlan, RunReport};
use supervisor::{Offsets, Run, RunEvent, Supervisor};
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::{Agent, Order};
use crate::failure::Failure;
use crate::{output, state};

/// Places the call, stays until it is over, and turns its end into an exit code.
pub fn place(order: &Order) -> Result<ExitCode, Failure> {
    let plan = plan(order)?;
    let folder = state::new_job()?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::Runtime)?;
    runtime.block_on(async {
        let run = Supervisor::beside_this_program()?.start(&folder, &plan).await?;
        let report = follow(&run).await?;
        output::summary(&report, run.spool());
        Ok(exit_code(&report))
    })
}

fn plan(order: &Order) -> Result<RunPlan, Failure> {
    let cwd =
        order.cwd.canonicalize().map_err(|source| Failure::Cwd { folder: order.cwd.clone(), source })?;
    let Agent::Rehearsal = order.agent;
    let program = env::current_exe().map_err(Failure::ThisProgram)?.with_file_name("rehearsal");
    if !program.exists() {
        return Err(Failure::NoAgent { program });
    }
    Ok(RunPlan {
        args: vec!["--as".into(), "plain".into()],
        stdin: prompt(order)?,
        limits: Limits { wall: Some(order.timeout), idle: order.idle, ..Limits::default() },
        ..RunPlan::new(program, cwd)
    })
}

fn prompt(order: &Order) -> Result<Vec<u8>, Failure> {
    let prompt = match order.prompt.as_deref() {
        None | Some("-") => {
            let mut bytes = Vec::new();
            io::stdin().read_to_end(&mut bytes).map_err(Failure::Prompt)?;
            bytes
        }
        Some(text) => text.as_bytes().to_vec(),
    };
    if prompt.trim_ascii().is_empty() { Err(Failure::EmptyPrompt) } else { Ok(prompt) }
}

/// Passes on what the agent prints until the run is over. Ctrl-C asks it to stop; the end is waited for all the same.
async fn follow(run: &Run) -> Result<RunReport, Failure> {
    // Made once: a signal that comes between two looks is kept.
    let mut interrupted = signal(SignalKind::interrupt()).map_err(Failure::Runtime)?;
    let mut terminated = signal(SignalKind::terminate()).map_err(Failure::Runtime)?;
    let mut events = run.events(Offsets::default()).map_err(Failure::Runtime)?;
    loop {
        let event = tokio::select! {
            biased; // an agent that never stops talking must not talk over Ctrl-C
            _ = interrupted.recv() => None,
            _ = terminated.recv() => None,
            event = events.next() => Some(event?),
        };
        let Some(event) = event else {
            run.stop().map_err(Failure::Runtime)?;
            continue;
        };
        match event {
            Some(RunEvent::Output(bytes)) => output::answer(&bytes),
            Some(RunEvent::Error(bytes)) => output::aside(&bytes),
            Some(RunEvent::Ended(report)) => return Ok(report),
            None => return Ok(run.wait().await?),
        }
    }
}

fn exit_code(report: &RunReport) -> ExitCode {
    ExitCode::from(match (&report.end, report.exit) {
        (End::Exited, Some(Exit::Code(0))) => 0,
        (End::Deadline { .. }, _) => 3,
        (End::Stopped, _) => 4,
        (End::NotStarted(_), _) => 5,
        _ => 1,
    })
}
