//! The script: its syntax and its steps.
//!
//! Owns the language and its table, from which the help is rendered. Pure: `stage` plays the steps, and `voice` knows the
//! vendors.

use std::path::PathBuf;
use std::time::Duration;

use crate::json;
use crate::mistake::Mistake;
use crate::offspring::{Kinship, Offspring};
use crate::signals::Signal;
use crate::voice::{ScriptedFailure, ScriptedFailureKind, TaskChange, ToolCall, ToolInput};
use crate::wire::StandardStream;
use crate::words::Words;

/// The prefix of a step in a prompt.
pub(crate) const DIRECTIVE: &str = "@rehearse";

/// A step of the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ScriptStep {
    Answer(String),
    /// Chooses the candidate of a review that contains this text.
    Choose(String),
    /// A step for the model of this name.
    Only {
        model: String,
        step: Box<ScriptStep>,
    },
    Say(String),
    Think(String),
    Tool(ToolCall),
    Deny(String),
    /// Asks the client for the permission to use a tool.
    Ask(ToolCall),
    /// Sends a request of this method to the client.
    Request(String),
    /// Runs a command in a terminal of the client.
    Terminal(String),
    StandardStream {
        pieces: u64,
        bytes: usize,
        every: Duration,
    },
    RetryNotice {
        status: Option<u16>,
    },
    Background {
        change: TaskChange,
        task: String,
    },
    Fail(ScriptedFailure),
    MaxTurns,
    Delay(Duration),
    Hang,
    Exit(u8),
    Signal(Signal),
    Cut,
    Raw(String),
    Garbage(Garbage),
    Flood {
        target: FloodTarget,
        bytes: u64,
    },
    Close(StandardStream),
    Ignore(Vec<Signal>),
    PidFile(PathBuf),
    Spawn(Offspring),
    ForkBomb {
        width: u64,
        life: Duration,
    },
    Write {
        path: PathBuf,
        text: String,
    },
    Env(Option<String>),
    Args,
    Cwd,
    Fds,
    StdinBytes,
    Burn(Duration),
    Alloc(usize),
}

impl ScriptStep {
    /// Returns whether the step needs a client that answers.
    pub(crate) fn is_live(&self) -> bool {
        matches!(self, Self::Ask(_) | Self::Request(_) | Self::Terminal(_))
    }
}

/// Output that is not an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Garbage {
    /// A line that starts like an event and breaks off.
    Json,
    /// A line with bytes that are not UTF-8.
    Utf8,
    /// A line with NUL bytes.
    Nul,
    /// Valid JSON of an unknown type.
    Event,
    /// One line of this many bytes.
    Line(u64),
    /// This many bytes without a newline: the next output continues the line.
    Unended(u64),
}

/// The target of a flood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FloodTarget {
    /// Lines of noise.
    Noise(StandardStream),
    /// Valid events of the voice.
    Events,
}

/// A row of the table of steps.
pub(crate) struct StepEntry {
    pub(crate) name: &'static str,
    pub(crate) usage: &'static str,
    pub(crate) does: &'static str,
    parse: fn(&mut Words) -> Result<ScriptStep, Mistake>,
}

/// All steps.
pub(crate) const STEPS: &[StepEntry] = &[
    row("answer", "answer TEXT", "print TEXT and end the turn with it: the final result, success", |w| {
        Ok(ScriptStep::Answer(w.text()))
    }),
    row("choose", "choose TEXT", "end the turn with a verdict for the candidate that contains TEXT", |w| {
        Ok(ScriptStep::Choose(w.some_text("TEXT")?))
    }),
    row("only", "only MODEL STEP", "play STEP if `--model` is MODEL", only),
    row("say", "say TEXT", "print TEXT before the final answer", |w| Ok(ScriptStep::Say(w.text()))),
    row("think", "think TEXT", "print TEXT as a thought", |w| Ok(ScriptStep::Think(w.text()))),
    row("tool", "tool NAME INPUT [=> RESULT]", "use a tool; INPUT is a JSON object or a command", |w| {
        tool(w, false)
    }),
    row("tool-error", "tool-error NAME INPUT [=> RESULT]", "use a tool that fails", |w| tool(w, true)),
    row("deny", "deny NAME", "request a tool and report that it was denied", |w| {
        Ok(ScriptStep::Deny(w.word("NAME")?))
    }),
    row("ask", "ask NAME INPUT [=> RESULT]", "use a tool if the client permits it (live only)", |w| {
        Ok(ScriptStep::Ask(tool_call(w, false)?))
    }),
    row("request", "request METHOD", "send a request to the client and print the reply (live only)", |w| {
        Ok(ScriptStep::Request(w.word("METHOD")?))
    }),
    row("terminal", "terminal COMMAND", "run COMMAND in a terminal of the client (acp only)", |w| {
        Ok(ScriptStep::Terminal(w.some_text("COMMAND")?))
    }),
    row("stream", "stream N BYTES EVERY", "print N chunks of BYTES each, one per EVERY", |w| {
        let pieces = w.number("N", 1_000_000)?;
        let bytes = size_in_memory(w, "BYTES")?;
        Ok(ScriptStep::StandardStream { pieces, bytes, every: w.duration("EVERY")? })
    }),
    row(
        "retry-notice",
        "retry-notice [STATUS]",
        "report that a request is retried, after an HTTP status",
        |w| {
            let status = w
                .next()?
                .map(|word| word.parse().map_err(|_| w.mistake(format!("STATUS `{word}` is not a number"))));
            Ok(ScriptStep::RetryNotice { status: status.transpose()? })
        },
    ),
    row(
        "background",
        "background start|completed|failed|stopped TASK",
        "report that a background task has started or ended (claude only)",
        background,
    ),
    row("fail", "fail KIND [TEXT]", "end the turn with an error (kinds below)", fail),
    row("max-turns", "max-turns", "end the turn because the turn limit is reached (not codex)", |_| {
        Ok(ScriptStep::MaxTurns)
    }),
    row("delay", "delay TIME", "do nothing for TIME", |w| Ok(ScriptStep::Delay(w.duration("TIME")?))),
    row("hang", "hang", "do nothing forever; as the first step: before the first byte", |_| {
        Ok(ScriptStep::Hang)
    }),
    row("exit", "exit CODE", "exit immediately with CODE; no result unless one was printed", |w| {
        Ok(ScriptStep::Exit(u8::try_from(w.number("CODE", 255)?).unwrap_or(u8::MAX)))
    }),
    row("signal", "signal NAME|NUMBER", "terminate by a signal, even an ignored one", |w| {
        Ok(ScriptStep::Signal(signal(w)?))
    }),
    row("cut", "cut", "exit immediately with code 0 and no result", |_| Ok(ScriptStep::Cut)),
    row("raw", "raw TEXT", "print TEXT as a separate line", |w| Ok(ScriptStep::Raw(w.text()))),
    row("garbage", "garbage json|utf8|nul|event|line SIZE|unended SIZE", "print malformed output", garbage),
    row("flood", "flood stdout|stderr|events SIZE", "print SIZE of noise lines, or of valid events", flood),
    row("close", "close stdin|stdout|stderr", "close a stream and keep running", |w| {
        Ok(ScriptStep::Close(match w.word("stream")?.as_str() {
            "stdin" => StandardStream::Stdin,
            "stdout" => StandardStream::Stdout,
            "stderr" => StandardStream::Stderr,
            other => return Err(w.mistake(format!("unknown stream `{other}`"))),
        }))
    }),
    row("ignore", "ignore SIGNAL…", "ignore signals from now on, such as TERM", ignore),
    row("pidfile", "pidfile PATH", "descendants started from now on append their pid to PATH", |w| {
        Ok(ScriptStep::PidFile(w.path("PATH")?))
    }),
    row("spawn", "spawn same-group|setsid|daemon [OPTION…]", "start a descendant (options below)", spawn),
    row(
        "fork-bomb",
        "fork-bomb N [for TIME]",
        "start N processes that replace themselves every 5 ms, for 5s",
        |w| {
            let width = w.number("N", 256)?;
            let life = match w.next()?.as_deref() {
                None => Duration::from_secs(5),
                Some("for") => w.duration("TIME")?,
                Some(other) => return Err(w.mistake(format!("unknown option `{other}`"))),
            };
            if life > Duration::from_mins(1) {
                return Err(w.mistake("TIME must be at most 60s"));
            }
            Ok(ScriptStep::ForkBomb { width, life })
        },
    ),
    row("write", "write PATH TEXT", "write a file, reported as a use of the tool `Write`", |w| {
        Ok(ScriptStep::Write { path: w.path("PATH")?, text: w.text() })
    }),
    row("env", "env [NAME]", "print an environment variable, or all of them", |w| {
        Ok(ScriptStep::Env(w.next()?))
    }),
    row("args", "args", "print the command line as a JSON array", |_| Ok(ScriptStep::Args)),
    row("cwd", "cwd", "print the working directory", |_| Ok(ScriptStep::Cwd)),
    row("fds", "fds", "print the open file descriptors and their targets", |_| Ok(ScriptStep::Fds)),
    row("stdin-bytes", "stdin-bytes", "print the size of the prompt in bytes", |_| {
        Ok(ScriptStep::StdinBytes)
    }),
    row("burn", "burn TIME", "use TIME of CPU", |w| Ok(ScriptStep::Burn(w.duration("TIME")?))),
    row("alloc", "alloc SIZE", "use SIZE of memory until the exit", |w| {
        Ok(ScriptStep::Alloc(size_in_memory(w, "SIZE")?))
    }),
];

const fn row(
    name: &'static str,
    usage: &'static str,
    does: &'static str,
    parse: fn(&mut Words) -> Result<ScriptStep, Mistake>,
) -> StepEntry {
    StepEntry { name, usage, does, parse }
}

/// Parses a script file: every line except empty ones and `#` comments.
pub(crate) fn parse_file(text: &str) -> Result<Vec<ScriptStep>, Mistake> {
    text.lines()
        .enumerate()
        .filter(|(_, line)| !matches!(line.trim_start().chars().next(), None | Some('#')))
        .map(|(at, line)| parse_line(line, at + 1))
        .collect()
}

/// Splits a prompt into its steps and the rest.
pub(crate) fn parse_prompt(text: &str) -> Result<(Vec<ScriptStep>, String), Mistake> {
    let mut steps = Vec::new();
    let mut plain = String::new();
    for (at, line) in text.split_inclusive('\n').enumerate() {
        match line.strip_prefix(DIRECTIVE) {
            Some(step) if step.is_empty() || step.starts_with(char::is_whitespace) => {
                steps.push(parse_line(step, at + 1)?);
            }
            _ => plain.push_str(line),
        }
    }
    Ok((steps, plain))
}

fn parse_line(line: &str, number: usize) -> Result<ScriptStep, Mistake> {
    let mut words = Words::new(line);
    parse_step(&mut words)
        .map_err(|mistake| Mistake { what: format!("line {number}: {}", mistake.what), ..mistake })
}

fn parse_step(words: &mut Words) -> Result<ScriptStep, Mistake> {
    let all = "list the steps with `rehearsal --help`";
    let Some(name) = words.next()? else {
        return Err(Mistake::new(format!("no step after `{DIRECTIVE}`"), all));
    };
    let Some(entry) = STEPS.iter().find(|entry| entry.name == name) else {
        return Err(Mistake::new(format!("unknown step `{name}`"), all));
    };
    words.expect_usage(entry.usage);
    let step = (entry.parse)(words)
        .and_then(|step| words.end().map(|()| step))
        .map_err(|mistake| Mistake { what: format!("step `{name}`: {}", mistake.what), ..mistake })?;
    Ok(step)
}

fn only(words: &mut Words) -> Result<ScriptStep, Mistake> {
    let model = words.word("MODEL")?;
    Ok(ScriptStep::Only { model, step: Box::new(parse_step(words)?) })
}

/// Returns the steps that a model plays. Choices become verdicts on the candidates in the prompt.
pub(crate) fn select(steps: Vec<ScriptStep>, model: Option<&str>, prompt: &str) -> Vec<ScriptStep> {
    let mut selected = Vec::new();
    for step in steps {
        match step {
            ScriptStep::Only { model: wanted, step } => {
                let steps = if Some(wanted.as_str()) == model { vec![*step] } else { Vec::new() };
                selected.extend(select(steps, model, prompt));
            }
            ScriptStep::Choose(text) => selected.push(ScriptStep::Answer(verdict(prompt, &text))),
            step => selected.push(step),
        }
    }
    selected
}

/// Returns the verdict for the candidate that contains a text.
fn verdict(prompt: &str, text: &str) -> String {
    let mut candidate = "NONE";
    for line in prompt.lines() {
        if let Some(head) = line.strip_prefix("Candidate ") {
            candidate = head.split([':', ' ']).next().unwrap_or(candidate);
        } else if candidate != "NONE" && line.contains(text) {
            return format!("VERDICT: {candidate}");
        }
    }
    "VERDICT: NONE".to_owned()
}

fn tool(words: &mut Words, failed: bool) -> Result<ScriptStep, Mistake> {
    Ok(ScriptStep::Tool(tool_call(words, failed)?))
}

fn tool_call(words: &mut Words, failed: bool) -> Result<ToolCall, Mistake> {
    let name = words.word("NAME")?;
    let result = words.split_at_arrow().map_or_else(|| "ok".to_owned(), |mut after| after.text());
    let input = words.some_text("INPUT")?;
    let input = if !input.starts_with('{') {
        ToolInput::Command(input)
    } else if json::is_object(&input) {
        ToolInput::Json(input)
    } else {
        return Err(words.mistake(format!("INPUT `{input}` is not valid JSON")));
    };
    Ok(ToolCall { name, input, result, failed })
}

fn background(words: &mut Words) -> Result<ScriptStep, Mistake> {
    let word = words.word("change")?;
    let Some(change) = TaskChange::parse(&word) else {
        return Err(words.mistake(format!("unknown change `{word}`")));
    };
    Ok(ScriptStep::Background { change, task: words.some_text("TASK")? })
}

fn fail(words: &mut Words) -> Result<ScriptStep, Mistake> {
    let word = words.word("KIND")?;
    let Some(kind) = ScriptedFailureKind::parse(&word) else {
        let known = ScriptedFailureKind::ALL.map(ScriptedFailureKind::name).join(", ");
        return Err(Mistake::new(format!("unknown KIND `{word}`"), format!("use one of {known}")));
    };
    let text = words.text();
    Ok(ScriptStep::Fail(ScriptedFailure { kind, text: (!text.is_empty()).then_some(text) }))
}

fn garbage(words: &mut Words) -> Result<ScriptStep, Mistake> {
    Ok(ScriptStep::Garbage(match words.word("kind")?.as_str() {
        "json" => Garbage::Json,
        "utf8" => Garbage::Utf8,
        "nul" => Garbage::Nul,
        "event" => Garbage::Event,
        "line" => Garbage::Line(words.size("SIZE")?),
        "unended" => Garbage::Unended(words.size("SIZE")?),
        other => return Err(words.mistake(format!("unknown kind `{other}`"))),
    }))
}

fn flood(words: &mut Words) -> Result<ScriptStep, Mistake> {
    let target = match words.word("target")?.as_str() {
        "stdout" => FloodTarget::Noise(StandardStream::Stdout),
        "stderr" => FloodTarget::Noise(StandardStream::Stderr),
        "events" => FloodTarget::Events,
        other => return Err(words.mistake(format!("unknown target `{other}`"))),
    };
    Ok(ScriptStep::Flood { target, bytes: words.size("SIZE")? })
}

fn ignore(words: &mut Words) -> Result<ScriptStep, Mistake> {
    let mut signals = vec![signal(words)?];
    while words.end().is_err() {
        signals.push(signal(words)?);
    }
    if signals.iter().all(|signal| signal.can_be_ignored()) {
        Ok(ScriptStep::Ignore(signals))
    } else {
        Err(words.mistake("KILL and STOP cannot be ignored"))
    }
}

fn signal(words: &mut Words) -> Result<Signal, Mistake> {
    let word = words.word("signal")?;
    Signal::parse(&word).ok_or_else(|| {
        Mistake::new(
            format!("unknown signal `{word}`"),
            format!("use a number or one of {}", Signal::names()),
        )
    })
}

fn spawn(words: &mut Words) -> Result<ScriptStep, Mistake> {
    let word = words.word("kind")?;
    let kinship = Kinship::parse(&word).ok_or_else(|| words.mistake(format!("unknown kind `{word}`")))?;
    let mut offspring = Offspring::new(kinship);
    while let Some(option) = words.next()? {
        match option.as_str() {
            "ignore-term" => offspring.ignore_term = true,
            "keep-stdout" => offspring.keep_stdout = true,
            "no-stdout" => offspring.keep_stdout = false,
            "clear-env" => offspring.clear_env = true,
            "for" => offspring.life = words.duration("TIME")?,
            other => match other.strip_prefix("pid=") {
                Some(path) if !path.is_empty() => offspring.pid_file = Some(PathBuf::from(path)),
                _ => {
                    return Err(Mistake::new(
                        format!("unknown option `{other}`"),
                        "use ignore-term, keep-stdout, no-stdout, clear-env, for TIME or pid=PATH",
                    ));
                }
            },
        }
    }
    Ok(ScriptStep::Spawn(offspring))
}

fn size_in_memory(words: &mut Words, what: &str) -> Result<usize, Mistake> {
    let size = words.size(what)?;
    usize::try_from(size).map_err(|_| words.mistake(format!("{what} exceeds the address space")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(line: &str) -> ScriptStep {
        parse_line(line, 1).unwrap_or_else(|mistake| panic!("{line}: {mistake}"))
    }

    fn mistake(line: &str) -> Mistake {
        parse_line(line, 1).expect_err(line)
    }

    #[test]
    fn prompt_is_split_into_steps_and_text() {
        let (steps, plain) =
            parse_prompt("hello\n@rehearse say hi\n@rehearsed is a word\r\n@rehearse\tcut\r\nend").unwrap();
        assert_eq!(steps, [ScriptStep::Say("hi".into()), ScriptStep::Cut]);
        assert_eq!(plain, "hello\n@rehearsed is a word\r\nend");
    }

    #[test]
    fn only_the_named_model_plays_a_step() {
        let (steps, plain) = parse_prompt("@rehearse only fast say f\n@rehearse only slow say s\n").unwrap();
        assert_eq!(select(steps.clone(), Some("fast"), &plain), [ScriptStep::Say("f".into())]);
        assert_eq!(select(steps, None, &plain), []);
    }

    #[test]
    fn choice_names_the_candidate_with_the_text() {
        let prompt = "+x\nCandidate A (verified):\n+one\nCandidate B:\n+two\n";
        for (text, letter) in [("+one", "A"), ("+two", "B"), ("+x", "NONE")] {
            assert_eq!(verdict(prompt, text), format!("VERDICT: {letter}"));
        }
    }

    #[test]
    fn script_skips_comments_and_blank_lines() {
        let steps = parse_file("# a comment\n\n  say hi\n   # more\nexit 3\n").unwrap();
        assert_eq!(steps, [ScriptStep::Say("hi".into()), ScriptStep::Exit(3)]);
    }

    #[test]
    fn tool_step_accepts_a_command_or_json() {
        let ScriptStep::Tool(call) = step("tool Bash ls -l => a b") else { panic!() };
        assert_eq!((call.input, call.result), (ToolInput::Command("ls -l".into()), "a b".into()));
        let ScriptStep::Tool(call) = step(r#"tool Read {"path":"a"}"#) else { panic!() };
        assert_eq!((call.input, call.result), (ToolInput::Json(r#"{"path":"a"}"#.into()), "ok".into()));
        assert!(mistake(r#"tool Read {"path":"#).what.contains("not valid JSON"));
    }

    #[test]
    fn spawn_options_may_be_in_any_order() {
        let ScriptStep::Spawn(offspring) =
            step("spawn daemon for 3s clear-env pid=/p ignore-term keep-stdout")
        else {
            panic!()
        };
        assert_eq!(
            offspring,
            Offspring {
                kinship: Kinship::Daemon,
                ignore_term: true,
                keep_stdout: true,
                clear_env: true,
                life: Duration::from_secs(3),
                pid_file: Some("/p".into()),
            }
        );
        assert!(mistake("spawn setsid forever").hint.contains("keep-stdout"));
    }

    #[test]
    fn script_error_names_line_step_and_usage() {
        let found = parse_file("say hi\nexit 300\n").unwrap_err();
        assert_eq!(found.what, "line 2: step `exit`: CODE `300` is not a number from 0 to 255");
        assert_eq!(found.hint, "write `exit CODE`");
        assert_eq!(mistake("slep 1s").what, "line 1: unknown step `slep`");
        assert_eq!(mistake("").what, "line 1: no step after `@rehearse`");
    }

    #[test]
    fn invalid_step_is_rejected() {
        for line in [
            "delay 5",
            "delay",
            "signal FOO",
            "ignore KILL",
            "ignore",
            "garbage",
            "garbage line",
            "garbage x",
            "flood stdout",
            "flood stdin 1MB",
            "close",
            "close door",
            "fail",
            "fail badly",
            "spawn",
            "cut now",
            "fork-bomb 9999",
            "fork-bomb 1 for 2m",
            "exit -1",
            "pidfile",
            "write",
            "stream 1 2",
            "tool Bash",
        ] {
            mistake(line);
        }
    }

    #[test]
    fn every_step_parses_as_documented() {
        for entry in STEPS {
            assert!(entry.usage.starts_with(entry.name), "{}", entry.name);
            assert!(!entry.does.ends_with('.'), "{}", entry.name);
        }
    }
}
