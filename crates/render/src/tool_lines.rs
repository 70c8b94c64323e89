//! Formats one line per tool call: the tool, its most descriptive argument, and its outcome.
//!
//! Pairs tool uses with their results, selects the argument and fits the line into a width. Tools are matched by the names that the
//! agents use; the input of an unknown tool is shown as JSON. All text is sanitized.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::duration::format_millis;
use crate::text::to_one_line;

/// The width of a line if the output is not a terminal.
const DEFAULT_WIDTH: usize = 120;
/// The maximum length of an argument. No terminal is wider.
const MAX_ARGUMENT_CHARS: usize = 500;
/// The minimum room for an argument; in less it is omitted.
const MIN_ARGUMENT_WIDTH: usize = 8;
/// The descriptive parameters, best first: a search is identified by its pattern rather than its directory.
const DESCRIPTIVE_PARAMETERS: [&str; 17] = [
    "command",
    "pattern",
    "file_path",
    "notebook_path",
    "absolute_path",
    "path",
    "dir_path",
    "url",
    "query",
    "description",
    "subject",
    "skill",
    "title",
    "objective",
    "prompt",
    "task_id",
    "shell_id",
];

/// The source of the events, which decides whether tool durations are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timing {
    /// A running agent: the time between two events is the duration of the tool call.
    Live,
    /// The recorded output of a run, which has no timestamps.
    Replayed,
}

/// Pairs the tool uses of one job with their results.
#[derive(Debug)]
pub struct ToolLog {
    directory: PathBuf,
    timing: Timing,
    open: Vec<OpenTool>,
}

/// The shortest duration that is shown. Agents report the start of a call late, so shorter ones are noise.
const MIN_SHOWN_DURATION: Duration = Duration::from_millis(100);

/// A tool call without a result yet.
#[derive(Debug)]
struct OpenTool {
    id: String,
    name: String,
    argument: String,
    is_nested: bool,
    /// The outcome that is already known before the result: a refusal, or a background command.
    early_outcome: Option<ToolOutcome>,
    /// Is true if its line was printed ahead of the lines of its sub-agent.
    is_announced: bool,
    started: Instant,
}

/// The outcome of a tool call.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ToolOutcome {
    Succeeded,
    Failed(String),
    Refused,
    /// It returned, but the agent does not report whether the command succeeded.
    Finished,
    /// A sub-agent was started.
    Started,
    /// A command was started in the background.
    StartedInBackground,
    /// No result yet.
    Running,
    /// The run exited before the result.
    NoResult,
}

/// A line about a tool call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolLine {
    is_nested: bool,
    label: String,
    argument: String,
    outcome: ToolOutcome,
    took: Option<Duration>,
}

impl ToolLog {
    /// Creates the log of a job in `directory`, to which paths are shown relative.
    pub fn new(directory: PathBuf, timing: Timing) -> Self {
        Self { directory, timing, open: Vec::new() }
    }

    /// Replaces the directory.
    pub fn set_directory(&mut self, directory: PathBuf) {
        self.directory = directory;
    }

    /// Records a `tool_use` event. For the first tool of a sub-agent, returns the line that announces the sub-agent.
    pub fn start(&mut self, event: &Value) -> Option<ToolLine> {
        let text = |name: &str| event[name].as_str().unwrap_or_default().to_owned();
        let parent = event["within"].as_str();
        let announced = parent.and_then(|parent| self.announce(parent));
        let name = text("name");
        let input = parse_embedded(&event["input"]);
        let argument = argument(&name, &input, &self.directory);
        let is_background = ["run_in_background", "is_background"].iter().any(|flag| input[*flag] == true);
        let early_outcome = is_background.then_some(ToolOutcome::StartedInBackground);
        self.open.push(OpenTool {
            id: text("id"),
            name,
            argument,
            is_nested: parent.is_some(),
            early_outcome,
            is_announced: false,
            started: Instant::now(),
        });
        announced
    }

    fn announce(&mut self, id: &str) -> Option<ToolLine> {
        let tool = self.open.iter_mut().find(|tool| tool.id == id && !tool.is_announced)?;
        tool.is_announced = true;
        Some(tool.line(ToolOutcome::Started, None))
    }

    /// Records a `permission_denied` event; the result that follows it is the refusal.
    pub fn refuse(&mut self, event: &Value) {
        let id = event["tool_use_id"].as_str();
        if let Some(tool) = self.open.iter_mut().find(|tool| Some(tool.id.as_str()) == id) {
            tool.early_outcome = Some(ToolOutcome::Refused);
        }
    }

    /// Records a `tool_result` event and returns the line of the call; `None` if its use was never seen.
    pub fn finish(&mut self, event: &Value) -> Option<ToolLine> {
        let id = event["id"].as_str()?;
        let at = self.open.iter().position(|tool| tool.id == id)?;
        let tool = self.open.remove(at);
        let duration = (self.timing == Timing::Live).then(|| tool.started.elapsed());
        Some(tool.line(outcome(&tool, event), duration))
    }

    /// Returns the newest call without a result, for the progress line.
    pub fn current(&self) -> Option<String> {
        let tool = self.open.last()?;
        let others = match self.open.len() - 1 {
            0 => String::new(),
            others => format!(" (+{others})"),
        };
        let argument = if tool.argument.is_empty() { String::new() } else { format!(" {}", tool.argument) };
        Some(format!("{}{others}{argument}", label(&tool.name)))
    }

    /// Removes the calls that have no result and returns their lines.
    pub fn drain(&mut self, is_over: bool) -> Vec<ToolLine> {
        let outcome = if is_over { ToolOutcome::NoResult } else { ToolOutcome::Running };
        self.open.drain(..).map(|tool| tool.line(outcome.clone(), None)).collect()
    }
}

impl OpenTool {
    fn line(&self, outcome: ToolOutcome, took: Option<Duration>) -> ToolLine {
        ToolLine {
            is_nested: self.is_nested,
            label: label(&self.name).into_owned(),
            argument: self.argument.clone(),
            outcome,
            took,
        }
    }
}

fn outcome(tool: &OpenTool, event: &Value) -> ToolOutcome {
    let output = &event["output"];
    let is_error = event["is_error"] == true;
    match event["exit_code"].as_i64() {
        _ if tool.early_outcome == Some(ToolOutcome::Refused) => ToolOutcome::Refused,
        Some(code) if is_error => ToolOutcome::Failed(format!("exit {code}")),
        None if is_error => ToolOutcome::Failed(error_summary(output)),
        _ if tool.early_outcome.is_some() || event["in_background"] == true => {
            ToolOutcome::StartedInBackground
        }
        // Gemini reports the failure of a command only when the command printed nothing.
        None if tool.name == "run_shell_command" && has_text(output) => ToolOutcome::Finished,
        _ => ToolOutcome::Succeeded,
    }
}

/// Parses JSON that an event carries as text.
fn parse_embedded(json: &Value) -> Value {
    json.as_str().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_else(|| json.clone())
}

fn has_text(output: &Value) -> bool {
    output["text"].as_str().is_some_and(|text| !text.trim().is_empty())
}

/// Returns the first line of a tool's error message.
fn error_summary(output: &Value) -> String {
    let json = parse_embedded(&output["json"]);
    let blocks = || json.as_array()?.iter().find_map(|block| block["text"].as_str());
    let text = output["text"].as_str().or_else(blocks).or(json["message"].as_str()).unwrap_or_default();
    // `file-tools` returns errors as JSON.
    let answer: Option<Value> = text.starts_with('{').then(|| serde_json::from_str(text).ok()).flatten();
    let text = answer.as_ref().and_then(|answer| answer["error"]["message"].as_str()).unwrap_or(text);
    let text = text.trim_start().trim_start_matches("<tool_use_error>").trim_start_matches("Error: ");
    let line = text.lines().next().unwrap_or_default().trim_end_matches("</tool_use_error>");
    let line = line.trim_end().trim_end_matches('.');
    if line.trim().is_empty() { "failed".to_owned() } else { to_one_line(line, MAX_ARGUMENT_CHARS) }
}

/// Returns the name of a tool as it is shown. Codex names the kind of an item, not a tool.
pub fn label(name: &str) -> Cow<'_, str> {
    match name {
        "command_execution" | "run_shell_command" => "shell".into(),
        "file_change" => "edit".into(),
        name => match name.strip_prefix("mcp__").and_then(|rest| rest.split_once("__")) {
            Some((server, tool)) => to_one_line(&format!("{server}:{tool}"), 100).into(),
            None => to_one_line(name, 100).into(),
        },
    }
}

/// Returns the most descriptive argument of a call, in one line.
pub fn argument(name: &str, input: &Value, directory: &Path) -> String {
    let text = match input {
        Value::Null => String::new(),
        Value::String(text) if name == "command_execution" => first_line(&unwrap_shell(text)),
        Value::String(text) => first_line(text),
        Value::Array(changes) => changed_files(changes, directory).unwrap_or_else(|| input.to_string()),
        Value::Object(fields) if fields.is_empty() => String::new(),
        Value::Object(_) if name.starts_with("mcp_") => input.to_string(),
        Value::Object(fields) => {
            let telling =
                DESCRIPTIVE_PARAMETERS.iter().find_map(|name| Some((name, fields.get(*name)?.as_str()?)));
            match telling {
                Some((name, path)) if name.ends_with("path") => relative(path, directory).into_owned(),
                Some((_, text)) => first_line(text),
                None => input.to_string(),
            }
        }
        other => other.to_string(),
    };
    to_one_line(&text, MAX_ARGUMENT_CHARS)
}

fn first_line(text: &str) -> String {
    let mut lines = text.trim().lines();
    let first = lines.next().unwrap_or_default();
    if lines.next().is_some() { format!("{first} …") } else { first.to_owned() }
}

fn relative<'a>(path: &'a str, directory: &Path) -> Cow<'a, str> {
    match Path::new(path).strip_prefix(directory) {
        Ok(rest) if rest.as_os_str().is_empty() => ".".into(),
        Ok(rest) => rest.to_string_lossy().into_owned().into(),
        Err(_) => path.into(),
    }
}

/// Formats the files of a `file_change` item of codex.
fn changed_files(changes: &[Value], directory: &Path) -> Option<String> {
    let path = changes.first()?["path"].as_str()?;
    let more = match changes.len() - 1 {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(format!("{}{more}", relative(path, directory)))
}

/// Unwraps a command from `/bin/bash -lc '…'`, which codex adds.
fn unwrap_shell(command: &str) -> Cow<'_, str> {
    let Some((shell, rest)) = command.split_once(" -lc ").or_else(|| command.split_once(" -c ")) else {
        return command.into();
    };
    if !matches!(shell.rsplit('/').next(), Some("bash" | "zsh" | "sh")) {
        return command.into();
    }
    let inside = |quote: char| rest.strip_prefix(quote)?.strip_suffix(quote);
    match (inside('\''), inside('"')) {
        (Some(script), _) if !script.contains('\'') => script.into(),
        (_, Some(script)) => ["\\\"", "\\$", "\\`", "\\\\"]
            .iter()
            .fold(script.to_owned(), |text, escaped| text.replace(escaped, &escaped[1..]))
            .into(),
        (None, None) => rest.into(),
        _ => command.into(),
    }
}

impl ToolLine {
    /// Formats the line, no wider than `width` columns. `is_colored` adds SGR sequences to the outcome.
    pub fn render(&self, width: Option<usize>, is_colored: bool) -> String {
        let width = width.unwrap_or(DEFAULT_WIDTH);
        let head = format!("{}· {}", if self.is_nested { "  " } else { "" }, self.label);
        let took = self
            .took
            .filter(|took| *took >= MIN_SHOWN_DURATION && self.outcome != ToolOutcome::StartedInBackground);
        let took = took.map(|took| format_millis(u64::try_from(took.as_millis()).unwrap_or(u64::MAX)));
        let room = |tail: &str| {
            let gaps = if tail.is_empty() { 2 } else { 4 };
            width.saturating_sub(head.width() + gaps + tail.width())
        };
        let wanted = self.argument.width().min(MIN_ARGUMENT_WIDTH);
        let detail = self.detail((width / 2).max(12).min(room("  ")));
        let timed = join(&detail, took.as_deref());
        let tail = if room(&timed) >= wanted { timed } else { detail };
        let room = room(&tail);
        let argument = if room < wanted { String::new() } else { shorten(&self.argument, room) };
        let argument = if argument.is_empty() { argument } else { format!("  {argument}") };
        let tail = if tail.is_empty() { tail } else { format!("  {}", self.colored(&tail, is_colored)) };
        format!("{head}{argument}{tail}")
    }

    fn detail(&self, width: usize) -> String {
        match &self.outcome {
            ToolOutcome::Succeeded => "✓".to_owned(),
            ToolOutcome::Failed(why) => format!("✗ {}", shorten(why, width)),
            ToolOutcome::Refused => "✗ refused".to_owned(),
            ToolOutcome::Finished => "finished".to_owned(),
            ToolOutcome::Started => String::new(),
            ToolOutcome::StartedInBackground => "started in the background".to_owned(),
            ToolOutcome::Running => "running".to_owned(),
            ToolOutcome::NoResult => "no result".to_owned(),
        }
    }

    fn colored(&self, tail: &str, is_colored: bool) -> String {
        match self.outcome {
            ToolOutcome::Succeeded if is_colored => format!("\x1b[32m{tail}\x1b[0m"),
            ToolOutcome::Failed(_) | ToolOutcome::Refused if is_colored => format!("\x1b[31m{tail}\x1b[0m"),
            _ => tail.to_owned(),
        }
    }
}

/// Appends the duration: directly after a check mark, after a comma otherwise.
fn join(detail: &str, took: Option<&str>) -> String {
    match took {
        None => detail.to_owned(),
        Some(took) if detail == "✓" => format!("{detail} {took}"),
        Some(took) => format!("{detail}, {took}"),
    }
}

/// Shortens a text to a width. A path loses its start, other text its end.
fn shorten(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let fits = |text: &mut dyn Iterator<Item = char>| -> String {
        let mut left = width.saturating_sub(1);
        text.take_while(|c| {
            let columns = c.width().unwrap_or(0);
            let fits = columns <= left;
            left = left.saturating_sub(columns);
            fits
        })
        .collect()
    };
    if text.contains('/') && !text.contains([' ', ':', '{']) {
        let end: String = fits(&mut text.chars().rev());
        return format!("…{}", end.chars().rev().collect::<String>());
    }
    format!("{}…", fits(&mut text.chars()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn line(label: &str, argument: &str, outcome: ToolOutcome, millis: u64) -> ToolLine {
        let took = Some(Duration::from_millis(millis));
        ToolLine { is_nested: false, label: label.to_owned(), argument: argument.to_owned(), outcome, took }
    }

    fn log(timing: Timing) -> ToolLog {
        ToolLog::new("/home/ana/shop".into(), timing)
    }

    fn bash(id: &str, command: &str) -> Value {
        let input = json!({ "command": command }).to_string();
        json!({ "event": "tool_use", "id": id, "name": "Bash", "input": input })
    }

    fn result(id: &str, exit_code: Option<i32>) -> Value {
        json!({ "event": "tool_result", "id": id, "output": { "text": "…" }, "is_error": exit_code.is_some(), "exit_code": exit_code })
    }

    #[test]
    fn argument_is_the_most_descriptive_parameter() {
        let shop = Path::new("/home/ana/shop");
        for (tool, input, expected) in [
            ("Bash", json!({ "command": "cargo test", "description": "Run the tests" }), "cargo test"),
            ("Bash", json!({ "command": "cat <<E\nx\nE" }), "cat <<E …"),
            ("Edit", json!({ "file_path": "/home/ana/shop/src/lib.rs", "old_string": "a" }), "src/lib.rs"),
            ("Read", json!({ "file_path": "/etc/hosts" }), "/etc/hosts"),
            ("Grep", json!({ "path": "/home/ana/shop", "pattern": "fn main" }), "fn main"),
            (
                "WebFetch",
                json!({ "prompt": "Sum it up", "url": "https://example.com" }),
                "https://example.com",
            ),
            ("Task", json!({ "prompt": "Long …", "description": "Find callers" }), "Find callers"),
            ("TodoWrite", json!({ "todos": [] }), r#"{"todos":[]}"#),
            ("ExitPlanMode", json!({}), ""),
            ("mcp__echo__say", json!({ "text": "hi" }), r#"{"text":"hi"}"#),
            ("command_execution", json!("/bin/bash -lc 'cargo test'"), "cargo test"),
            ("command_execution", json!(r#"/bin/zsh -lc "echo \"it's\"""#), r#"echo "it's""#),
            ("command_execution", json!("/bin/bash -lc ls"), "ls"),
            ("command_execution", json!("python3 -c 'print(1)'"), "python3 -c 'print(1)'"),
            (
                "file_change",
                json!([{ "path": "/home/ana/shop/a.rs", "kind": "add" }, { "path": "b" }]),
                "a.rs and 1 more",
            ),
            ("run_shell_command", json!({ "command": "npm test" }), "npm test"),
            ("read_file", json!({ "absolute_path": "/home/ana/shop/a.rs" }), "a.rs"),
            ("list_directory", json!({ "dir_path": "/home/ana/shop" }), "."),
        ] {
            assert_eq!(argument(tool, &input, shop), expected, "{tool} {input}");
        }
    }

    #[test]
    fn labels_and_arguments_are_sanitized() {
        let input = json!({ "command": "echo \u{1b}[2J\u{1b}]0;t\u{7}\u{202e}x" });
        assert_eq!(argument("Bash", &input, Path::new("/")), "echo ⟨U+202E⟩x");
        assert_eq!(label("Ba\u{1b}[31msh"), "Bash");
        let error = json!({ "text": "\u{1b}[31mno such file\u{1b}[0m\nmore" });
        assert_eq!(error_summary(&error), "no such file");
        let blocks = json!({ "json": r#"[{"type":"text","text":"Error: bad key."}]"# });
        assert_eq!(error_summary(&blocks), "bad key");
    }

    #[test]
    fn line_shows_how_a_tool_failed() {
        let failed = |why: &str| ToolOutcome::Failed(why.to_owned());
        for (outcome, expected) in [
            (ToolOutcome::Succeeded, "· Bash  cargo test  ✓ 4.2 s"),
            (failed("exit 101"), "· Bash  cargo test  ✗ exit 101, 4.2 s"),
            (failed("no such file"), "· Bash  cargo test  ✗ no such file, 4.2 s"),
            (ToolOutcome::Refused, "· Bash  cargo test  ✗ refused, 4.2 s"),
            (ToolOutcome::Finished, "· Bash  cargo test  finished, 4.2 s"),
            (ToolOutcome::StartedInBackground, "· Bash  cargo test  started in the background"),
        ] {
            assert_eq!(line("Bash", "cargo test", outcome, 4200).render(Some(80), false), expected);
        }
        let quiet = line("ExitPlanMode", "", ToolOutcome::Succeeded, 7);
        assert_eq!(quiet.render(None, false), "· ExitPlanMode  ✓");
    }

    #[test]
    fn line_is_never_wider_than_the_terminal() {
        let exit = || ToolOutcome::Failed("exit 101".to_owned());
        let command = "cargo test --workspace --all-targets";
        assert_eq!(
            line("Bash", command, exit(), 4200).render(Some(40), false),
            "· Bash  cargo test -…  ✗ exit 101, 4.2 s"
        );
        let path = "crates/switchboard/src/tool_lines.rs";
        assert_eq!(
            line("Edit", path, ToolOutcome::Succeeded, 100).render(Some(40), false),
            "· Edit  …ard/src/tool_lines.rs  ✓ 100 ms"
        );
        let long = "the string to replace was not found in the file";
        for width in [20, 40, 80] {
            for (tool, argument) in
                [("Bash", command), ("WebSearch", "日本語の検索語をここに書く"), ("Edit", path)]
            {
                for outcome in [exit(), ToolOutcome::Succeeded, ToolOutcome::Failed(long.to_owned())] {
                    let shown = line(tool, argument, outcome, 62_000).render(Some(width), false);
                    assert!(shown.width() <= width, "{width}: {shown}");
                }
            }
        }
    }

    #[test]
    fn results_are_matched_to_calls_in_flight() {
        let mut log = log(Timing::Replayed);
        assert_eq!(log.start(&bash("1", "make")), None);
        assert_eq!(log.start(&bash("2", "ls")), None);
        assert_eq!(log.current().unwrap(), "Bash (+1) ls");
        let first = log.finish(&result("1", Some(2))).unwrap();
        assert_eq!(first.render(None, false), "· Bash  make  ✗ exit 2");
        assert_eq!(log.finish(&result("9", None)), None, "its use was never seen");
        let open = log.drain(true);
        assert_eq!(open[0].render(None, false), "· Bash  ls  no result");
        assert_eq!(log.current(), None);
    }

    #[test]
    fn tools_of_a_subagent_are_indented_below_it() {
        let mut log = log(Timing::Replayed);
        log.start(&json!({ "id": "1", "name": "Task", "input": { "description": "Find callers" } }));
        let mut inner = bash("2", "rg place");
        inner["within"] = json!("1");
        assert_eq!(log.start(&inner).unwrap().render(None, false), "· Task  Find callers");
        assert_eq!(log.finish(&result("2", None)).unwrap().render(None, false), "  · Bash  rg place  ✓");
        assert_eq!(log.start(&inner), None, "the sub-agent is announced once");
    }

    #[test]
    fn refusal_is_not_shown_as_an_exit_code() {
        let mut log = log(Timing::Replayed);
        log.start(&bash("1", "curl example.com"));
        log.refuse(&json!({ "event": "permission_denied", "tool": "Bash", "tool_use_id": "1" }));
        let shown = log.finish(&result("1", Some(-1))).unwrap().render(None, false);
        assert_eq!(shown, "· Bash  curl example.com  ✗ refused");
    }

    #[test]
    fn gemini_shell_result_claims_no_success() {
        let mut log = log(Timing::Replayed);
        let tool = json!({ "id": "1", "name": "run_shell_command", "input": { "command": "make" } });
        for (output, expected) in [
            (json!({ "text": "error: no rule" }), "· shell  make  finished"),
            (json!("nothing"), "· shell  make  ✓"),
        ] {
            log.start(&tool);
            let event = json!({ "id": "1", "output": output, "is_error": false });
            assert_eq!(log.finish(&event).unwrap().render(None, false), expected);
        }
    }
}
