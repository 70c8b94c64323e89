//! Records one scenario with one CLI: the earlier run, the run itself, and its transcript.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use model_api::ModelApi;
use model_api::cli::{Agent, Cli, Ended, Invocation, Running};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::launch::Desk;
use crate::normalise::Normaliser;
use crate::scenarios::{SESSION, Scenario};

/// The time limit of a scenario on a slow machine.
const LIMIT: Duration = Duration::from_mins(3);
/// The time between the first model request and SIGTERM: enough to print the pending output.
const BEFORE_STOP: Duration = Duration::from_secs(2);

/// The stored files of a run.
pub struct Transcript {
    argv: String,
    stdout: String,
    stderr: String,
    exit: i32,
}

impl Transcript {
    /// Replaces the directory by this transcript.
    pub fn write(&self, directory: &Path) -> io::Result<()> {
        if directory.exists() {
            fs::remove_dir_all(directory)?;
        }
        fs::create_dir_all(directory)?;
        fs::write(directory.join("argv.json"), &self.argv)?;
        fs::write(directory.join("stdout"), &self.stdout)?;
        fs::write(directory.join("stderr"), &self.stderr)?;
        fs::write(directory.join("exit"), format!("{}\n", self.exit))
    }
}

/// Runs `scenario` with `cli` in a new directory.
pub async fn record(
    cli: &Cli,
    scenario: &Scenario,
    tools: &Path,
    directory: &Path,
) -> io::Result<Transcript> {
    if directory.exists() {
        fs::remove_dir_all(directory)?;
    }
    let api = ModelApi::start(scenario.script.clone()).await;
    let desk = Desk { cli, api: &api, directory };
    let mut session = SESSION.to_owned();
    if let Some(before) = &scenario.before {
        let ended = desk.invocation(before, &session)?.run(LIMIT).await?;
        if cli.agent == Agent::Codex {
            session = thread_id(&ended).ok_or_else(|| io::Error::other("codex started no thread"))?;
        }
    }
    let invocation = desk.invocation(&scenario.ask, &session)?;
    let ended = if scenario.stop { stopped(&invocation, &api).await? } else { invocation.run(LIMIT).await? };
    let mut normaliser = Normaliser::new(directory, tools, &api.url())?;
    Ok(Transcript {
        argv: normaliser.text(&format!("{:#}\n", described(&invocation, cli))),
        stdout: normaliser.text(&ended.stdout),
        stderr: normaliser.stderr(&ended.stderr),
        exit: ended.exit,
    })
}

/// Runs until SIGTERM after the first model request.
async fn stopped(invocation: &Invocation, api: &ModelApi) -> io::Result<Ended> {
    let running = invocation.start()?;
    let pid = running.pid();
    let stop = async {
        api.turn(0).await;
        sleep(BEFORE_STOP).await;
        Running::terminate(pid)
    };
    let both = async { tokio::try_join!(running.end(), stop) };
    let (ended, ()) = timeout(LIMIT, both).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
    Ok(ended)
}

fn thread_id(ended: &Ended) -> Option<String> {
    let started: Value = serde_json::from_str(ended.stdout.lines().next()?).ok()?;
    Some(started["thread_id"].as_str()?.to_owned())
}

/// Returns the command for `argv.json`, without the home and PATH of this machine.
fn described(invocation: &Invocation, cli: &Cli) -> Value {
    let environment: serde_json::Map<String, Value> = invocation
        .environment
        .iter()
        .filter(|(name, _)| name != "PATH" && name != "HOME")
        .map(|(name, value)| (name.clone(), json!(value)))
        .collect();
    json!({
        "program": cli.agent.name(), "argv": invocation.arguments, "environment": environment,
        "stdin": String::from_utf8_lossy(&invocation.stdin),
    })
}
