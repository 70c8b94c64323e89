//! `record`: runs the pinned real CLIs through every scenario and stores their output as transcripts.
//!
//! A new CLI version is then a diff to read, and a parser test needs no process. `--check` records into a temporary directory
//! instead and reports differences.

mod drift;
mod launch;
mod normalise;
mod scenarios;
mod session;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use model_api::cli::{Agent, Cli};
use model_api::mcp_echo;

use crate::scenarios::Scenario;

const USAGE: &str = "\
usage: record [--check] [--tools DIR] [--out DIR] [--agent NAME[-VERSION]]... [--scenario NAME]...
       record --list

  --check     record aside and tell what differs from --out; exit code 1 when something does
  --tools     where scripts/agents-install put the CLIs (default: $SWITCHBOARD_TOOLS, then .tools)
  --out       the directory of the transcripts (default: transcripts)
";

/// The scenarios to record, and the destination.
#[derive(Debug, Default)]
struct Order {
    check: bool,
    list: bool,
    tools: Option<PathBuf>,
    out: Option<PathBuf>,
    agents: Vec<String>,
    scenarios: Vec<String>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.peek().is_some_and(|first| first == "--mcp-echo") {
        return finish(mcp_echo::serve(io::stdin().lock(), io::stdout().lock()).map(|()| true));
    }
    match order(arguments) {
        Some(order) if order.list => finish(list()),
        Some(order) => finish(record(&order).await),
        None => {
            // Stderr is gone: the error cannot be reported.
            let _ = io::stderr().write_all(USAGE.as_bytes());
            ExitCode::from(2)
        }
    }
}

fn order(mut arguments: impl Iterator<Item = String>) -> Option<Order> {
    let mut order = Order::default();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            // `just record -- --check` passes the separator on.
            "--" => {}
            "--check" => order.check = true,
            "--list" => order.list = true,
            "--tools" => order.tools = Some(arguments.next()?.into()),
            "--out" => order.out = Some(arguments.next()?.into()),
            "--agent" => order.agents.push(arguments.next()?),
            "--scenario" => order.scenarios.push(arguments.next()?),
            _ => return None,
        }
    }
    Some(order)
}

fn finish(done: io::Result<bool>) -> ExitCode {
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            // As above.
            let _ = writeln!(io::stderr(), "record: {error}");
            ExitCode::FAILURE
        }
    }
}

fn list() -> io::Result<bool> {
    let mut stdout = io::stdout().lock();
    for scenario in scenarios::all() {
        let agents: Vec<&str> = scenario.agents.iter().map(|agent| agent.name()).collect();
        writeln!(stdout, "{:<24} {}", scenario.name, agents.join(" "))?;
    }
    Ok(true)
}

/// Records the selected scenarios. Returns whether none differs.
#[expect(clippy::disallowed_methods, reason = "where the CLIs are is the environment's to say")]
async fn record(order: &Order) -> io::Result<bool> {
    let tools = order.tools.clone().or_else(|| std::env::var_os("SWITCHBOARD_TOOLS").map(PathBuf::from));
    let tools = fs::canonicalize(tools.unwrap_or_else(|| ".tools".into())).unwrap_or_default();
    let mut clis = Cli::installed(&tools);
    clis.retain(|cli| Agent::OWN_FORMAT.contains(&cli.agent) && order.wants_cli(cli));
    if clis.is_empty() {
        return Err(io::Error::other("no such agent CLI is installed\n  hint: run scripts/agents-install"));
    }
    let out = order.out.clone().unwrap_or_else(|| "transcripts".into());
    // Not below /tmp: codex prints other messages in a temporary home.
    let scratch =
        Scratch::new(Path::new("/var/tmp").join(format!("switchboard-record-{}", std::process::id())))?;
    let fresh = scratch.0.join("transcripts");
    let mut same = true;
    for cli in &clis {
        let version = format!("{}-{}", cli.agent.name(), cli.version);
        for scenario in scenarios::all().iter().filter(|scenario| order.wants(scenario, cli)) {
            let here = Path::new(&version).join(scenario.name);
            writeln!(io::stderr(), "{}", here.display())?;
            let transcript = session::record(cli, scenario, &tools, &scratch.0.join("desk")).await?;
            if order.check {
                transcript.write(&fresh.join(&here))?;
                same &= drift::tell(&out.join(&here), &fresh.join(&here), &here)?;
            } else {
                transcript.write(&out.join(&here))?;
            }
        }
    }
    Ok(same)
}

impl Order {
    fn wants_cli(&self, cli: &Cli) -> bool {
        let named = |name: &String| {
            *name == cli.agent.name() || *name == format!("{}-{}", cli.agent.name(), cli.version)
        };
        self.agents.is_empty() || self.agents.iter().any(named)
    }

    fn wants(&self, scenario: &Scenario, cli: &Cli) -> bool {
        let named = self.scenarios.is_empty() || self.scenarios.iter().any(|name| name == scenario.name);
        named && scenario.agents.contains(&cli.agent)
    }
}

/// A directory that is removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new(directory: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&directory)?;
        Ok(Self(directory))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A leftover is harmless.
        let _ = fs::remove_dir_all(&self.0);
    }
}
