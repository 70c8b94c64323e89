//! Other MCP servers that call the same agents, with the same stub under the agent's name.
//!
//! They are what `scripts/peers-install` has installed. One that is missing, or does not answer as it should, is left out and
//! named with the reason; it fails nothing.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::Instant;
use std::{env, fs};

use serde_json::{Value, json};

use crate::peers::installed;
use crate::process;
use crate::report::{Baseline, Row, Target, Unit};
use crate::spread::Spread;
use crate::{Failure, output};

use super::calling::call;
use crate::client::Client;

use super::crowd::rate;
use crate::house::{AT_ONCE, PROMPT, check};

use super::{Bench, millis};

/// A server of others.
struct Peer {
    name: &'static str,
    tool: &'static str,
    /// What its tool is given.
    arguments: fn(&Path) -> Value,
}

const PEERS: [Peer; 4] = [
    Peer {
        name: "claude-code-mcp",
        tool: "claude_code",
        arguments: |folder| json!({ "prompt": PROMPT, "workFolder": folder }),
    },
    Peer { name: "codex-mcp-server", tool: "codex", arguments: |_| json!({ "prompt": PROMPT }) },
    Peer { name: "gemini-mcp-tool", tool: "ask-gemini", arguments: |_| json!({ "prompt": PROMPT }) },
    Peer {
        name: "pal-mcp-server",
        tool: "clink",
        arguments: |_| json!({ "prompt": PROMPT, "cli_name": "claude", "role": "default" }),
    },
];

/// What one server came to, round by round.
#[derive(Debug, Default)]
struct Samples {
    start: Vec<f64>,
    memory: Vec<f64>,
    median: Vec<f64>,
    p95: Vec<f64>,
    rate: Vec<f64>,
}

/// Takes the figures of every peer that is there, each in turn with ours.
pub async fn measure(bench: &mut Bench<'_>, stub: &Path) -> Result<Vec<Row>, Failure> {
    let folder = installed();
    let agents = bench.house.workspace().join("bin");
    fs::create_dir_all(&agents)?;
    // `agy` is what gemini-mcp-tool asks for since its version 1.1.
    for agent in ["claude", "codex", "gemini", "agy"] {
        symlink(stub, agents.join(agent))?;
    }
    let mut rows = Vec::new();
    for peer in &PEERS {
        bench.check().await?;
        output::progress(&format!("measuring: {}", peer.name));
        let program = folder.join(peer.name).join("program");
        if !program.exists() {
            let reason = format!("left out: {} is not there; `scripts/peers-install` installs it", peer.name);
            output::progress(&reason);
            continue;
        }
        match in_turn(bench, peer, &program, &agents).await {
            Ok((theirs, ours)) => rows.extend(compared(peer.name, &theirs, &ours)),
            Err(failure) => output::progress(&format!("left out: {}: {failure}", peer.name)),
        }
    }
    Ok(rows)
}

async fn in_turn(
    bench: &mut Bench<'_>,
    peer: &Peer,
    program: &Path,
    agents: &Path,
) -> Result<(Samples, Samples), Failure> {
    let (mut theirs, mut ours) = (Samples::default(), Samples::default());
    let arguments = (peer.arguments)(bench.house.workspace());
    let params = json!({ "name": peer.tool, "arguments": arguments });
    let hello = bench.house.hello();
    for _ in 0..bench.scale.rounds {
        bench.check().await?;
        let command = command(bench, program, agents);
        theirs.take(bench, command, &params, answers_hello)?;
        ours.take(bench, bench.house.bridge(), &hello, check)?;
    }
    Ok((theirs, ours))
}

fn command(bench: &Bench<'_>, program: &Path, agents: &Path) -> Command {
    let inherited = env::var("PATH").unwrap_or_default();
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("HOME", bench.house.workspace())
        .env("PATH", format!("{}:{inherited}", agents.display()))
        // PAL does not start without a key of some vendor; nothing is ever sent with it.
        .env("GEMINI_API_KEY", "none")
        .current_dir(bench.house.workspace());
    command
}

impl Samples {
    fn take(
        &mut self,
        bench: &Bench<'_>,
        command: Command,
        params: &Value,
        check: fn(&Value) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let began = Instant::now();
        let mut host = Client::start(command)?;
        host.initialize()?;
        self.start.push(millis(began.elapsed()));
        call(&mut host, params, 2, check)?;
        let round = call(&mut host, params, bench.scale.calls, check)?;
        self.median.push(round.median);
        self.p95.push(round.p95);
        self.memory.extend(process::memory(host.pid()));
        self.rate.push(rate(&mut host, params, bench.scale.crowd_calls, check)?);
        Ok(())
    }
}

fn compared(name: &'static str, theirs: &Samples, ours: &Samples) -> Vec<Row> {
    let row = |what: &str, unit, of: fn(&Samples) -> &Vec<f64>, target| Row {
        what: what.to_owned(),
        unit,
        baseline: Some(Baseline::of(name, of(theirs), of(ours))),
        ours: Spread::of(of(ours).iter().copied()),
        target,
    };
    vec![
        row("start → `initialize`", Unit::Milliseconds, |of| &of.start, None),
        row("memory of the process that the host starts", Unit::Megabytes, |of| &of.memory, None),
        row("one call: p50", Unit::Milliseconds, |of| &of.median, None),
        row("one call: p95", Unit::Milliseconds, |of| &of.p95, None),
        row(
            &format!("calls per second, {AT_ONCE} at once"),
            Unit::PerSecond,
            |of| &of.rate,
            Some(Target::RatioAtLeast(1.0)),
        ),
    ]
}

/// Each has its own form; what the agent said is in all of them.
fn answers_hello(result: &Value) -> Result<(), Failure> {
    let text = result["content"].to_string();
    if result["isError"] != true && text.contains("Hello.") {
        Ok(())
    } else {
        let shown: String = text.chars().take(300).collect();
        Err(format!("a call was answered otherwise than expected: {shown}").into())
    }
}
