//! Other MCP servers that call the same agents, with the same stub under the agent's name.
//!
//! `scripts/peers-install` installs them. A missing or broken one is skipped with the reason; that is not a failure.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use std::{env, fs, iter};

use serde_json::{Value, json};

use crate::peers::installed;
use crate::plot::Series;
use crate::process;
use crate::report::{Baseline, Row, Target, Unit};
use crate::spread::Spread;
use crate::{Failure, output};

use super::calling::call;
use crate::client::BenchHost;

use super::crowd::rate;
use super::growth::GROWTH;
use crate::installation::{AT_ONCE, PROMPT, check};

use super::{Bench, millis};

/// Some need minutes for a long transcript, and some never answer.
const FLOOD_PATIENCE: Duration = Duration::from_mins(2);

/// A server of others.
struct Peer {
    name: &'static str,
    tool: &'static str,
    /// The arguments of its tool.
    arguments: fn(&Path) -> Value,
}

const PEERS: [Peer; 4] = [
    Peer {
        name: "claude-code-mcp",
        tool: "claude_code",
        arguments: |directory| json!({ "prompt": PROMPT, "workFolder": directory }),
    },
    Peer { name: "codex-mcp-server", tool: "codex", arguments: |_| json!({ "prompt": PROMPT }) },
    Peer { name: "gemini-mcp-tool", tool: "ask-gemini", arguments: |_| json!({ "prompt": PROMPT }) },
    Peer {
        name: "pal-mcp-server",
        tool: "clink",
        arguments: |_| json!({ "prompt": PROMPT, "cli_name": "claude", "role": "default" }),
    },
];

/// The figures of one server, round by round.
#[derive(Debug, Default)]
pub struct Samples {
    start: Vec<f64>,
    memory: Vec<f64>,
    median: Vec<f64>,
    p95: Vec<f64>,
    cpu: Vec<f64>,
    rate: Vec<f64>,
    /// Once, and not in every round: some need minutes for it.
    pub transcript: Vec<f64>,
    /// The most memory that was used for it.
    pub peak: Vec<f64>,
    /// Calls per second, by concurrency.
    growth: Vec<(f64, f64)>,
}

/// Takes the figures of every peer that is there, each in turn with ours.
pub async fn measure(bench: &mut Bench<'_>, stub: &Path) -> Result<(Vec<Row>, Vec<Series>), Failure> {
    let directory = installed();
    let agents = bench.installation.workspace().join("bin");
    fs::create_dir_all(&agents)?;
    for agent in ["claude", "codex", "gemini"] {
        symlink(stub, agents.join(agent))?;
    }
    let (mut rows, mut series) = (Vec::new(), Vec::new());
    for peer in &PEERS {
        bench.check().await?;
        output::progress(&format!("measuring: {}", peer.name));
        let program = directory.join(peer.name).join("program");
        if !program.exists() {
            let reason = format!("skipped: {} is not installed; run `scripts/peers-install`", peer.name);
            output::progress(&reason);
            continue;
        }
        match in_turn(bench, peer, &program, &agents).await {
            Ok((theirs, ours)) => {
                rows.extend(compared(bench, peer.name, &theirs, &ours));
                series.push(Series { name: peer.name.to_owned(), points: theirs.growth });
            }
            Err(failure) => output::progress(&format!("skipped: {}: {failure}", peer.name)),
        }
    }
    Ok((rows, series))
}

async fn in_turn(
    bench: &mut Bench<'_>,
    peer: &Peer,
    program: &Path,
    agents: &Path,
) -> Result<(Samples, Samples), Failure> {
    let (mut theirs, mut ours) = (Samples::default(), Samples::default());
    let arguments = (peer.arguments)(bench.installation.workspace());
    let params = json!({ "name": peer.tool, "arguments": arguments });
    let hello = bench.installation.hello();
    for _ in 0..bench.scale.rounds {
        bench.check().await?;
        theirs.take(bench, command(bench, program, agents), &params, answers_hello, false)?;
        ours.take(bench, bench.installation.bridge(), &hello, check, true)?;
    }
    bench.check().await?;
    theirs.grow(bench, command(bench, program, agents), &params)?;
    let flood = format!("@flood {}", bench.scale.megabytes);
    let mut arguments = (peer.arguments)(bench.installation.workspace());
    arguments["prompt"] = Value::from(flood.as_str());
    let params = json!({ "name": peer.tool, "arguments": arguments });
    theirs.flood(command(bench, program, agents), &params, None)?;
    ours.flood(
        bench.installation.bridge(),
        &bench.installation.call(&flood, None),
        bench.installation.daemon().ok(),
    )?;
    Ok((theirs, ours))
}

fn command(bench: &Bench<'_>, program: &Path, agents: &Path) -> Command {
    let inherited = env::var("PATH").unwrap_or_default();
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("HOME", bench.installation.workspace())
        .env("PATH", format!("{}:{inherited}", agents.display()))
        // PAL does not start without a key of some vendor; nothing is ever sent with it.
        .env("GEMINI_API_KEY", "none")
        .env("GEMINI_MCP_BACKEND", "gemini")
        .current_dir(bench.installation.workspace());
    command
}

impl Samples {
    fn take(
        &mut self,
        bench: &Bench<'_>,
        command: Command,
        params: &Value,
        check: fn(&Value) -> Result<(), Failure>,
        with_daemon: bool,
    ) -> Result<(), Failure> {
        let began = Instant::now();
        let mut host = BenchHost::start(command)?;
        host.initialize()?;
        self.start.push(millis(began.elapsed()));
        let host_pid = host.pid();
        call(&mut host, params, 2, check)?;
        let daemon = if with_daemon { Some(bench.installation.daemon()?) } else { None };
        // Includes the fork server.
        let pids =
            || iter::once(host_pid).chain(daemon).chain(daemon.into_iter().flat_map(process::children));
        let cpu = || pids().filter_map(process::cpu).sum::<Duration>();
        let before = cpu();
        let round = call(&mut host, params, bench.scale.calls, check)?;
        self.cpu.push(millis(cpu().saturating_sub(before) / bench.scale.calls));
        self.median.push(round.median);
        self.p95.push(round.p95);
        self.memory.push(pids().filter_map(process::memory).sum());
        self.rate.push(rate(&mut host, params, bench.scale.crowd_calls, AT_ONCE, check)?);
        Ok(())
    }

    fn grow(&mut self, bench: &Bench<'_>, command: Command, params: &Value) -> Result<(), Failure> {
        let mut host = BenchHost::start(command)?;
        host.initialize()?;
        call(&mut host, params, 2, answers_hello)?;
        for at_once in GROWTH {
            let rate = rate(&mut host, params, bench.scale.crowd_calls, at_once, answers_hello)?;
            #[expect(clippy::cast_precision_loss, reason = "there are few at once")]
            self.growth.push((at_once as f64, rate));
        }
        Ok(())
    }

    /// Sends a very long transcript; a server without a reply is not recorded.
    pub fn flood(&mut self, command: Command, params: &Value, beside: Option<u32>) -> Result<(), Failure> {
        let mut host = BenchHost::start(command)?;
        host.initialize()?;
        beside.into_iter().for_each(process::forget_peak);
        host.give_up_at(Instant::now() + FLOOD_PATIENCE);
        let began = Instant::now();
        let id = host.send("tools/call", params)?;
        if host.answer_to(id).is_ok() {
            self.transcript.push(millis(began.elapsed()));
        }
        let of = |pid| process::peak_memory(pid).unwrap_or(0.0);
        self.peak.push(of(host.pid()) + beside.map_or(0.0, of));
        Ok(())
    }
}

fn compared(bench: &Bench<'_>, name: &'static str, theirs: &Samples, ours: &Samples) -> Vec<Row> {
    let row = |what: &str, unit, of: fn(&Samples) -> &Vec<f64>, target| Row {
        what: what.to_owned(),
        unit,
        baseline: Some(Baseline::of(name, of(theirs), of(ours))),
        ours: Spread::of(of(ours).iter().copied()),
        target,
    };
    vec![
        row("start → `initialize`", Unit::Milliseconds, |of| &of.start, None),
        row("memory (ours: bridge and daemon)", Unit::Megabytes, |of| &of.memory, None),
        row("one call: p50", Unit::Milliseconds, |of| &of.median, None),
        row("one call: p95", Unit::Milliseconds, |of| &of.p95, None),
        row("one call: CPU time, all processes", Unit::Milliseconds, |of| &of.cpu, None),
        row(
            &format!("a transcript of {} MB, end to end", bench.scale.megabytes),
            Unit::Milliseconds,
            |of| &of.transcript,
            None,
        ),
        row("its peak memory (ours: bridge and daemon)", Unit::Megabytes, |of| &of.peak, None),
        row(
            &format!("calls per second, {AT_ONCE} at once"),
            Unit::PerSecond,
            |of| &of.rate,
            Some(Target::RatioAtLeast(1.0)),
        ),
    ]
}

/// Checks the reply: each server has its own form, and all contain the agent's text.
fn answers_hello(result: &Value) -> Result<(), Failure> {
    let text = result["content"].to_string();
    if result["isError"] != true && text.contains("Hello.") {
        Ok(())
    } else {
        let shown: String = text.chars().take(300).collect();
        Err(format!("unexpected result of a call: {shown}").into())
    }
}
