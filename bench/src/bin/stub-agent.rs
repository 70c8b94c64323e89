//! The agent of `bench serving`: it costs next to nothing, so that what is measured is everything around it.
//!
//! Reads its stdin to the end and answers in three lines as `claude` does with `stream-json`. Two words of the prompt make it do more:
//! `@lines N GAP` prints N lines, one every GAP milliseconds, each with the moment at which it was printed; `@flood MB` prints a
//! transcript of so many millions of bytes first. With `--input-format stream-json`, as the SDKs start it, it answers line by line until
//! its stdin ends, and with `--acp` it does so in the Agent Client Protocol. Knows nothing of whom it works for.

use std::io::{self, BufRead, BufWriter, Read, Write};
use std::time::{Duration, SystemTime};
use std::{env, thread};

const ANY_SESSION: &str = "5a1e5ca1-ab1e-4b1e-8b1e-c0ffee000000";
/// The size of a tool result; a long transcript consists mostly of them.
const TOOL_RESULT: usize = 8 * 1024;

fn main() -> io::Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    let has = |word: &str| arguments.iter().any(|argument| argument == word);
    if has("--version") {
        return writeln!(out, "2.1.325 (Claude Code)");
    }
    if has("--help") {
        return writeln!(
            out,
            "Usage: claude\n  -p, --print\n  --session-id <uuid>\n  --resume <id>\n  --setting-sources <sources>\n  --mcp-config <file>\n  --strict-mcp-config\n  --verbose"
        );
    }
    if has("--acp") {
        return converse_over_acp(&mut out);
    }
    if has("--input-format") || has("--input-format=stream-json") {
        return converse(&mut out);
    }
    let mut prompt = String::new();
    io::stdin().read_to_string(&mut prompt)?;
    // Some hand the prompt over as an argument.
    prompt = format!("{prompt}\n{}", arguments.join("\n"));
    let session = arguments.iter().find_map(|argument| argument.strip_prefix("--session-id="));
    let session = session.unwrap_or(ANY_SESSION);
    let result = success(session);
    // `--output-format json`: one object and nothing else.
    if has("json") {
        // Without a stream, a flood is a long answer.
        let Some([megabytes]) = numbers::<1>(&prompt, "@flood") else { return writeln!(out, "{result}") };
        let long = "Now the next file. ".repeat(usize::try_from(megabytes).unwrap_or(0) * 1_000_000 / 19);
        return writeln!(out, "{}", result.replace("Hello.", &format!("{long}Hello.")));
    }
    writeln!(
        out,
        r#"{{"type":"system","subtype":"init","session_id":"{session}","model":"stub","cwd":"/","tools":[]}}"#
    )?;
    if let Some([count, gap]) = numbers(&prompt, "@lines") {
        print_lines(&mut out, count, Duration::from_millis(gap))?;
    }
    if let Some([megabytes]) = numbers(&prompt, "@flood") {
        flood(&mut out, megabytes * 1_000_000, session)?;
    }
    writeln!(out, "{}", text("Hello.", session))?;
    writeln!(out, "{result}")?;
    out.flush()
}

/// Answers an SDK line by line: a control request, which has a number, or a user message.
fn converse(out: &mut impl Write) -> io::Result<()> {
    for line in io::stdin().lock().lines() {
        let line = line?;
        if line.contains(r#""control_request""#) {
            let id =
                line.split_once(r#""request_id""#).and_then(|(_, rest)| rest.split('"').nth(1)).unwrap_or("");
            writeln!(
                out,
                r#"{{"type":"control_response","response":{{"subtype":"success","request_id":"{id}","response":{{"commands":[],"output_style":"default","available_output_styles":[],"models":[],"account":{{}}}}}}}}"#
            )?;
        } else if line.contains(r#""type":"user""#) || line.contains(r#""type": "user""#) {
            writeln!(
                out,
                r#"{{"type":"system","subtype":"init","session_id":"{ANY_SESSION}","model":"stub","cwd":"/","tools":[]}}"#
            )?;
            if let Some([megabytes]) = numbers(&line, "@flood") {
                flood(out, megabytes * 1_000_000, ANY_SESSION)?;
            }
            writeln!(out, "{}", text("Hello.", ANY_SESSION))?;
            writeln!(out, "{}", success(ANY_SESSION))?;
        }
        out.flush()?;
    }
    Ok(())
}

/// Answers each request of a client; every turn is the same.
fn converse_over_acp(out: &mut impl Write) -> io::Result<()> {
    for line in io::stdin().lock().lines() {
        let line = line?;
        let value = |key: &str| line.split_once(&format!("\"{key}\":"))?.1.split([',', '}']).next();
        let (id, method) = (value("id").unwrap_or("null"), value("method").unwrap_or(""));
        let result = match method.trim_matches('"') {
            "initialize" => r#"{"protocolVersion":1,"agentCapabilities":{}}"#,
            "session/new" => r#"{"sessionId":"stub"}"#,
            "session/prompt" => {
                writeln!(
                    out,
                    r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"stub","update":{{"sessionUpdate":"agent_message_chunk","content":{{"type":"text","text":"Hello."}}}}}}}}"#
                )?;
                r#"{"stopReason":"end_turn"}"#
            }
            _ => "{}",
        };
        writeln!(out, r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)?;
        out.flush()?;
    }
    Ok(())
}

fn success(session: &str) -> String {
    format!(
        r#"{{"type":"result","subtype":"success","is_error":false,"result":"Hello.","session_id":"{session}","num_turns":1,"duration_ms":1,"duration_api_ms":1,"total_cost_usd":0,"usage":{{"input_tokens":3,"output_tokens":2}}}}"#
    )
}

/// The numbers that follow a word of the prompt.
fn numbers<const N: usize>(prompt: &str, word: &str) -> Option<[u64; N]> {
    let rest = prompt.split_once(word)?.1;
    let words = rest
        .split(|character: char| character.is_whitespace() || character == '"')
        .filter(|word| !word.is_empty());
    let numbers: Vec<u64> = words.take(N).map_while(|number| number.parse().ok()).collect();
    numbers.try_into().ok()
}

fn print_lines(out: &mut impl Write, count: u64, gap: Duration) -> io::Result<()> {
    for _ in 0..count {
        out.flush()?;
        thread::sleep(gap);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        writeln!(out, "{}", text(&format!("@printed {}", now.as_nanos()), ANY_SESSION))?;
    }
    out.flush()
}

fn flood(out: &mut impl Write, bytes: u64, session: &str) -> io::Result<()> {
    let said = text(&"Now the next file. ".repeat(20), session);
    let content = r"fn main() {}\n".repeat(TOOL_RESULT / 14);
    let tool = format!(
        r#"{{"type":"user","message":{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"toolu_1","content":"{content}"}}]}},"session_id":"{session}"}}"#
    );
    let block = format!("{said}\n{tool}\n");
    let mut printed = 0;
    while printed < bytes {
        out.write_all(block.as_bytes())?;
        printed += block.len() as u64;
    }
    Ok(())
}

fn text(text: &str, session: &str) -> String {
    format!(
        r#"{{"type":"assistant","message":{{"id":"msg_1","role":"assistant","model":"stub","content":[{{"type":"text","text":"{text}"}}]}},"session_id":"{session}"}}"#
    )
}
