//! Measures the driver, from bytes to events, against common alternatives.
//!
//! Builds 200 MB of each stream from recorded lines, with the sizes of real sessions (tool results of a few kB, texts of a few
//! hundred bytes), in a temporary file, and reads it through a buffer of 64 KiB. Prints the median of five rounds and the peak
//! memory. Usage: `cargo bench -p agents [-- PART_OF_A_READER'S_NAME]`; `SIZE_MB` at build time sets another size.
#![expect(clippy::print_stdout, reason = "a bench prints its table")]

use std::fs::{self, File};
use std::hint::black_box;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::Path;
use std::time::Instant;

use agents::{
    AcpSession, AcpSpec, AppServerSpec, AppServerThread, Driver, DriverSpec, ModelErrorReport, ParseLimits,
    PermissionRule, UsageReport,
};
use model::AgentEvent;
use serde::Deserialize;
use serde_json::Value;

const ROUNDS: usize = 5;
const BUFFER: usize = 64 * 1024;

fn main() -> io::Result<()> {
    let size = option_env!("SIZE_MB").and_then(|mb| mb.parse().ok()).unwrap_or(200_usize) * 1_000_000;
    println!(
        "{:<10} {:<34} {:>8} {:>11} {:>8} {:>12}",
        "stream", "reader", "MB/s", "MB/CPU-s", "items", "peak RSS MB"
    );
    for stream in streams()? {
        let name = format!("agents-bench-{}-{}.jsonl", std::process::id(), stream.name);
        let path = std::env::temp_dir().join(name);
        write_stream(&stream, size, &path)?;
        let result = measure(&stream, &path);
        fs::remove_file(&path)?;
        result?;
    }
    Ok(())
}

/// The output of an agent.
struct AgentStream {
    name: &'static str,
    driver: DriverSpec,
    /// The replies before the prompt.
    opening: &'static [&'static str],
    /// The lines that are repeated.
    turn: Vec<String>,
}

fn streams() -> io::Result<Vec<AgentStream>> {
    let one_shot = |name, driver, version: &str| {
        let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("transcripts").join(version);
        let mut turn = Vec::new();
        for scenario in ["thinking", "tool-call"] {
            turn.extend(recorded_lines(&recorded.join(scenario))?);
        }
        io::Result::Ok(AgentStream { name, driver, opening: &[], turn })
    };
    let live = |name, driver, opening, turn: &[&str]| {
        let turn = turn.iter().map(|line| (*line).to_owned()).collect();
        AgentStream { name, driver, opening, turn }
    };
    let acp = DriverSpec::Acp(AcpSpec {
        cwd: "/work".to_owned(),
        add_dirs: Vec::new(),
        session: AcpSession::New,
        prompt: "a".to_owned(),
        images: Vec::new(),
        mcp_servers: Vec::new(),
        model: None,
        effort: None,
        mode: None,
        permissions: PermissionRule::Allow,
        has_terminals: false,
        usage: UsageReport::Unknown,
        errors: ModelErrorReport::default(),
    });
    let app_server = DriverSpec::CodexAppServer(AppServerSpec {
        thread: AppServerThread::New,
        options: serde_json::Map::new(),
        prompt: "a".to_owned(),
        images: Vec::new(),
        turn: serde_json::Map::new(),
    });
    Ok(vec![
        one_shot("claude", DriverSpec::Claude, "claude-2.1.325")?,
        one_shot("codex", DriverSpec::CodexExec, "codex-0.166.0")?,
        one_shot("gemini", DriverSpec::Gemini, "gemini-0.61.0")?,
        live("acp", acp, &ACP_OPENING, &ACP_TURN),
        live("app-server", app_server, &APP_SERVER_OPENING, &APP_SERVER_TURN),
    ])
}

/// The shapes of what agents print over the Agent Client Protocol.
const ACP_OPENING: [&str; 2] = [
    r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1,"agentCapabilities":{"loadSession":true}}}"#,
    r#"{"jsonrpc":"2.0","id":2,"result":{"sessionId":"ses_1"}}"#,
];
const ACP_TURN: [&str; 6] = [
    r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"ses_1","update":{"sessionUpdate":"agent_thought_chunk","messageId":"msg_1","content":{"type":"text","text":"Words."}}}}"#,
    r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"ses_1","update":{"sessionUpdate":"agent_message_chunk","messageId":"msg_1","content":{"type":"text","text":"Words."}}}}"#,
    r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"ses_1","update":{"sessionUpdate":"tool_call","toolCallId":"call_1","title":"bash","kind":"execute","status":"pending","locations":[{"path":"/work"}],"rawInput":{"cwd":"/work"}}}}"#,
    r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"ses_1","update":{"sessionUpdate":"tool_call_update","toolCallId":"call_1","status":"in_progress","kind":"execute","title":"just test","locations":[{"path":"/work"}],"rawInput":{"command":"just test","description":"Tests","cwd":"/work"}}}}"#,
    r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"ses_1","update":{"sessionUpdate":"tool_call_update","toolCallId":"call_1","status":"completed","kind":"execute","title":"just test","rawInput":{"command":"just test","cwd":"/work"},"content":[{"type":"content","content":{"type":"text","text":"Words."}}],"rawOutput":{"stdout":"Words.","metadata":{"exit":0}}}}}"#,
    r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"ses_1","update":{"sessionUpdate":"usage_update","used":1000,"size":200000}}}"#,
];

/// The shapes of what `codex app-server` prints.
const APP_SERVER_OPENING: [&str; 3] = [
    r#"{"id":1,"result":{"userAgent":"switchboard/0.166.0"}}"#,
    r#"{"id":2,"result":{"thread":{"id":"t-1"},"model":"gpt-5.5"}}"#,
    r#"{"id":3,"result":{"turn":{"id":"turn-1","status":"inProgress"}}}"#,
];
const APP_SERVER_TURN: [&str; 5] = [
    r#"{"method":"item/started","params":{"item":{"type":"commandExecution","id":"item-1","command":"/bin/bash -lc 'just test'","cwd":"/work","status":"inProgress"},"threadId":"t-1","turnId":"turn-1","startedAtMs":1794802131254},"emittedAtMs":1794802131254}"#,
    r#"{"method":"item/completed","params":{"item":{"type":"commandExecution","id":"item-1","command":"/bin/bash -lc 'just test'","cwd":"/work","status":"completed","aggregatedOutput":"Words.","exitCode":0},"threadId":"t-1","turnId":"turn-1","completedAtMs":1794802131254},"emittedAtMs":1794802131254}"#,
    r#"{"method":"item/agentMessage/delta","params":{"threadId":"t-1","turnId":"turn-1","itemId":"msg-1","delta":"Words."},"emittedAtMs":1794802131254}"#,
    r#"{"method":"item/completed","params":{"item":{"type":"agentMessage","id":"msg-1","text":"Words.","phase":null},"threadId":"t-1","turnId":"turn-1","completedAtMs":1794802131254},"emittedAtMs":1794802131256}"#,
    r#"{"method":"thread/tokenUsage/updated","params":{"threadId":"t-1","turnId":"turn-1","tokenUsage":{"total":{"totalTokens":107,"inputTokens":100,"cachedInputTokens":0,"outputTokens":7,"reasoningOutputTokens":0},"last":{"totalTokens":107,"inputTokens":100,"cachedInputTokens":0,"outputTokens":7,"reasoningOutputTokens":0}}},"emittedAtMs":1794802131256}"#,
];

type Reader = fn(&AgentStream, &Path) -> io::Result<u64>;

fn measure(stream: &AgentStream, path: &Path) -> io::Result<()> {
    let megabytes = f64::from(u32::try_from(fs::metadata(path)?.len() / 1000).unwrap_or(u32::MAX)) / 1e3;
    // Ours first, or its peak memory would be that of another reader.
    let readers: [(&str, Reader); 6] = [
        ("ours: bytes to events", ours),
        ("ours: every text decoded as well", ours_decoded),
        ("reading the file alone", bytes_alone),
        ("lines alone (memchr)", lines_alone),
        ("serde_json, typed", typed),
        ("serde_json, Value", value),
    ];
    let wanted = std::env::args().skip(1).find(|arg| !arg.starts_with('-')).unwrap_or_default();
    for (name, read) in readers.into_iter().filter(|(name, _)| name.contains(&wanted)) {
        let (mut seconds, mut cpu_seconds) = (Vec::new(), Vec::new());
        let mut items = 0;
        for _ in 0..ROUNDS {
            let (start, cpu_start) = (Instant::now(), cpu_time());
            items = black_box(read(stream, path)?);
            seconds.push(start.elapsed().as_secs_f64());
            cpu_seconds.push(cpu_time() - cpu_start);
        }
        let [speed, cpu_speed] = [seconds, cpu_seconds].map(|mut taken| {
            taken.sort_by(f64::total_cmp);
            megabytes / taken[ROUNDS / 2]
        });
        let peak = peak_rss_mb();
        let kind = stream.name;
        println!("{kind:<10} {name:<34} {speed:>8.0} {cpu_speed:>11.0} {items:>8} {peak:>12.1}");
    }
    Ok(())
}

fn pieces(path: &Path, mut on_piece: impl FnMut(&[u8])) -> io::Result<()> {
    let mut file = File::open(path)?;
    let mut buffer = vec![0; BUFFER];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(()),
            read => on_piece(&buffer[..read]),
        }
    }
}

fn bytes_alone(_: &AgentStream, path: &Path) -> io::Result<u64> {
    let mut count = 0;
    pieces(path, |piece| count += u64::from(!piece.is_empty()))?;
    Ok(count)
}

fn lines_alone(_: &AgentStream, path: &Path) -> io::Result<u64> {
    let mut count = 0;
    pieces(path, |piece| count += memchr::memchr_iter(b'\n', piece).count() as u64)?;
    Ok(count)
}

fn driver(stream: &AgentStream) -> Driver {
    Driver::new(&stream.driver, ParseLimits::default())
}

fn ours(stream: &AgentStream, path: &Path) -> io::Result<u64> {
    let mut events = 0;
    let mut driver = driver(stream);
    let mut count = |event: AgentEvent<'_>| {
        black_box(&event);
        events += 1;
    };
    pieces(path, |piece| driver.feed(piece, &mut count))?;
    black_box(driver.finish(&mut count));
    Ok(events)
}

fn ours_decoded(stream: &AgentStream, path: &Path) -> io::Result<u64> {
    let mut events = 0;
    let mut driver = driver(stream);
    let mut count = |event: AgentEvent<'_>| {
        if let AgentEvent::Text { text, .. }
        | AgentEvent::Thinking { text, .. }
        | AgentEvent::ToolResult { output: model::ToolOutput::Text(text), .. } = &event
        {
            drop(black_box(text.decode()));
        }
        events += 1;
    };
    pieces(path, |piece| driver.feed(piece, &mut count))?;
    black_box(driver.finish(&mut count));
    Ok(events)
}

fn json_lines(path: &Path, mut on_line: impl FnMut(&[u8])) -> io::Result<()> {
    let mut reader = BufReader::with_capacity(BUFFER, File::open(path)?);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line)? > 0 {
        on_line(&line);
        line.clear();
    }
    Ok(())
}

fn value(_: &AgentStream, path: &Path) -> io::Result<u64> {
    let mut count = 0;
    json_lines(path, |line| count += u64::from(black_box(serde_json::from_slice::<Value>(line)).is_ok()))?;
    Ok(count)
}

fn typed(stream: &AgentStream, path: &Path) -> io::Result<u64> {
    let mut count = 0;
    json_lines(path, |line| {
        count += u64::from(match stream.driver {
            DriverSpec::CodexExec => black_box(serde_json::from_slice::<CodexLine>(line)).is_ok(),
            DriverSpec::Claude => black_box(serde_json::from_slice::<ClaudeLine>(line)).is_ok(),
            _ => black_box(serde_json::from_slice::<RpcLine>(line)).is_ok(),
        });
    })?;
    Ok(count)
}

/// The types of the events, as one would write them with derives.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[expect(dead_code, reason = "read, and thrown away")]
enum ClaudeLine {
    Assistant {
        message: ClaudeMessage,
        parent_tool_use_id: Option<String>,
    },
    User {
        message: ClaudeMessage,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "read, and thrown away")]
struct ClaudeMessage {
    content: Vec<ClaudeBlock>,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[expect(dead_code, reason = "read, and thrown away")]
enum ClaudeBlock {
    Text {
        text: String,
    },
    Thinking {
        thinking: String,
    },
    ToolUse {
        id: String,
        name: String,
        input: Value,
    },
    ToolResult {
        tool_use_id: String,
        content: Value,
        is_error: Option<bool>,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "read, and thrown away")]
struct CodexLine {
    #[serde(rename = "type")]
    kind: String,
    item: Option<CodexItem>,
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "read, and thrown away")]
struct CodexItem {
    id: Option<String>,
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
    command: Option<String>,
    aggregated_output: Option<String>,
    exit_code: Option<i32>,
    status: Option<String>,
}

#[derive(Deserialize)]
#[expect(dead_code, reason = "read, and thrown away")]
struct RpcLine {
    method: Option<String>,
    params: Option<Value>,
}

/// Repeats lines with unique ids and texts as long as in real sessions.
fn write_stream(stream: &AgentStream, size: usize, path: &Path) -> io::Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    for line in stream.opening {
        writeln!(out, "{line}")?;
    }
    let mut written = 0;
    let mut round = 0_usize;
    while written < size {
        for line in &stream.turn {
            round += 1;
            let line = grown(line, round);
            debug_assert!(serde_json::from_str::<Value>(&line).is_ok());
            written += line.len() + 1;
            writeln!(out, "{line}")?;
        }
    }
    out.flush()
}

fn recorded_lines(directory: &Path) -> io::Result<Vec<String>> {
    // Lines that occur once per run do not represent a long stream.
    let once = ["init", "thinking_tokens", "success"].map(|subtype| format!("\"subtype\":\"{subtype}\""));
    let text = fs::read_to_string(directory.join("stdout"))?;
    let lines = text.lines().filter(|line| !once.iter().any(|subtype| line.contains(subtype)));
    Ok(lines.map(str::to_owned).collect())
}

/// Returns a recorded line with other texts and its keys in order.
fn grown(line: &str, round: usize) -> String {
    let output = json_of(&code_of(1000 + (round * 7919) % 6000));
    let words = json_of(&code_of(100 + (round * 104_729) % 900));
    // Agents stream their texts in pieces of a few words.
    let piece = json_of(&code_of(20));
    let words = if line.contains("_chunk\"") { piece.clone() } else { words };
    let id = json_of(&format!("00000000-0000-4000-8000-{round:012}"));
    let texts = [
        ("content", &output),
        ("stdout", &output),
        ("aggregated_output", &output),
        ("aggregatedOutput", &output),
        ("delta", &piece),
        ("text", &words),
        ("thinking", &words),
        ("uuid", &id),
    ];
    texts.iter().fold(line.to_owned(), |line, (key, text)| with_text(&line, key, text))
}

fn json_of(text: &str) -> String {
    Value::from(text).to_string()
}

/// Replaces the first JSON string of a key, unless it is empty.
fn with_text(line: &str, key: &str, json: &str) -> String {
    let before = format!("\"{key}\":\"");
    let Some(start) = line.find(&before).map(|at| at + before.len()) else { return line.to_owned() };
    match line[start..].find('"') {
        None | Some(0) => line.to_owned(),
        Some(length) => format!("{}{json}{}", &line[..start - 1], &line[start + length + 1..]),
    }
}

/// Returns text such as tools print: short lines, quotes and a few non-ASCII characters.
fn code_of(bytes: usize) -> String {
    let line = "    let name = \"switchboard\"; // the agent's own words, père et fils\n\tif count > 0 { return Ok(()) }\n";
    line.chars().cycle().take(bytes).collect()
}

/// Returns the CPU time of this thread in seconds: on a busy machine the wall clock measures other processes.
fn cpu_time() -> f64 {
    let stat = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = stat.split_whitespace().next().and_then(|nanos| nanos.parse::<f64>().ok());
    nanos.unwrap_or(f64::NAN) / 1e9
}

fn peak_rss_mb() -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap_or_default();
    let kilobytes = line.split_whitespace().nth(1).and_then(|number| number.parse::<f64>().ok());
    kilobytes.unwrap_or(f64::NAN) / 1024.0
}
