//! Executes one hot path repeatedly, for `bench instructions`: a program that does nothing else, so that its instructions can
//! be counted.
//!
//! usage: `hot-path NAME TIMES`. The difference between two counts cancels the startup out.

use std::error::Error;
use std::hint::black_box;
use std::time::Duration;

use agents::{Driver, DriverSpec, ParseLimits};
use model::{AgentKind, CallSpec, JobEnd, NewJob, Owner, Placement};
use rmcp::model::{CallToolResult, ClientJsonRpcMessage, RequestId, ServerJsonRpcMessage, ServerResult};
use store::{Capacity, ClaimRequest, Store, StoreOptions};

const CLAUDE: &[u8] = include_bytes!("../../../crates/agents/transcripts/claude-2.1.325/tool-call/stdout");
const CODEX: &[u8] = include_bytes!("../../../crates/agents/transcripts/codex-0.166.0/tool-call/stdout");
const GEMINI: &[u8] = include_bytes!("../../../crates/agents/transcripts/gemini-0.61.0/tool-call/stdout");

/// The size of a read from a pipe when an agent prints slowly.
const PIECE: usize = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(name), Some(times)) = (arguments.next(), arguments.next()) else {
        return Err("usage: hot-path NAME TIMES".into());
    };
    let times: u32 = times.parse()?;
    match name.as_str() {
        "parse-claude" => parse(&DriverSpec::Claude, CLAUDE, CLAUDE.len(), times),
        "parse-codex" => parse(&DriverSpec::CodexExec, CODEX, CODEX.len(), times),
        "parse-gemini" => parse(&DriverSpec::Gemini, GEMINI, GEMINI.len(), times),
        "framing" => parse(&DriverSpec::Claude, CLAUDE, PIECE, times),
        "store-cycle" => {
            tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(cycle(times))?;
        }
        "mcp-call" => round_trip(times)?,
        other => return Err(format!("there is no hot path `{other}`").into()),
    }
    Ok(())
}

/// A short session with a tool call, from its bytes to its events.
fn parse(spec: &DriverSpec, transcript: &[u8], piece: usize, times: u32) {
    for _ in 0..times {
        let mut driver = Driver::new(spec, ParseLimits::default());
        let mut heard = 0_u32;
        let mut count = |event: model::AgentEvent<'_>| {
            black_box(&event);
            heard += 1;
        };
        for piece in transcript.chunks(piece) {
            driver.feed(piece, &mut count);
        }
        black_box(driver.finish(&mut count));
        black_box(heard);
    }
}

/// Place, claim and finish, in memory.
async fn cycle(times: u32) -> Result<(), Box<dyn Error>> {
    let store = Store::open(StoreOptions::new("sqlite::memory:".parse()?, "unused")).await?;
    let here = Placement::Host("this-machine".into());
    for _ in 0..times {
        let call = CallSpec::new(AgentKind::Rehearsal, "What is 2 + 2?", "/tmp");
        store.submit(NewJob::new(call, "call", here.clone())).await?;
        let request = ClaimRequest {
            owner: Owner::new("daemon-1"),
            homes: vec![here.clone()],
            agents: vec![Capacity { agent: AgentKind::Rehearsal, at_once: 4 }],
            lease: Duration::from_secs(30),
        };
        let job = store.claim(request).await?.ok_or("nothing to do")?;
        store.finish(&job.claim().ok_or("not ours")?, JobEnd::cancelled()).await?;
    }
    Ok(())
}

/// A `tools/call` from its line to the message, and an answer of the usual size from the message to its line.
fn round_trip(times: u32) -> Result<(), Box<dyn Error>> {
    let line = br#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"call_cc","arguments":{"prompt":"What does this project do?","cwd":"/home/ana/shop","timeout_ms":60000},"_meta":{"progressToken":7}}}"#;
    let answer = serde_json::json!({
        "agent": "claude", "duration_ms": 2400, "job_id": "01a1dde2-642d-7027-95b7-67d9f29d1836", "num_turns": 1,
        "output": "It sells flowers. ".repeat(50), "status": "completed", "task_name": "call_cc", "exit_code": 0,
        "output_file": "/home/ana/.local/state/switchboard/jobs/01a1dde2-642d-7027-95b7-67d9f29d1836/output",
        "session_id": "5b0ae6cb-8b3f-4c3a-9d3f-5f6a3b8f2c11", "usage": {"input_tokens": 1200, "output_tokens": 80}
    });
    for _ in 0..times {
        let message: ClientJsonRpcMessage = serde_json::from_slice(black_box(line))?;
        black_box(&message);
        let result = ServerResult::CallToolResult(CallToolResult::structured(answer.clone()));
        let message = ServerJsonRpcMessage::response(result, RequestId::Number(7));
        black_box(serde_json::to_vec(&message)?);
    }
    Ok(())
}
