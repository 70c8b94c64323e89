//! A scripted coding agent: it replaces `claude`, `codex` or `gemini`, prints their stream formats, and follows a script,
//! including faults.
//!
//! The whole program is [`main`]. The script language is described below and in `rehearsal --help`.
//!
//! # In a test binary
//! A test binary can be the agent of its own tests, so that it depends on no other executable: it starts itself
//! with [`CUE`] as the first argument, and its `main` begins with
//! ```no_run
//! # fn run_the_tests() -> std::process::ExitCode { std::process::ExitCode::SUCCESS }
//! fn main() -> std::process::ExitCode {
//!     if rehearsal::is_cued() {
//!         return rehearsal::main();
//!     }
//!     run_the_tests()
//! }
//! ```
//! The agent starts its descendants the same way, whatever their environment, so a binary that calls [`main`]
//! for another reason must still check for the cue.
#![doc = ""]
#![doc = include_str!("../README.md")]

mod args;
mod help;
mod json;
mod live;
mod measure;
mod mistake;
mod offspring;
mod opening;
mod script;
mod sight;
mod signals;
mod stage;
mod voice;
mod wire;
mod words;

use std::ffi::OsString;
use std::io::{self, Read};
use std::process::ExitCode;

use crate::args::{RehearsalOptions, RehearsalRequest};
use crate::live::LiveClient;
use crate::mistake::{Mishap, Mistake};
use crate::stage::{RehearsalStage, StageEnd};
use crate::voice::{SessionOpening, VoiceSession};
use crate::wire::StandardStream;

/// The first argument of a process that is the scripted agent, or a descendant of one, although its executable has another name.
pub const CUE: &str = "--rehearsal";

/// The exit code for an invalid flag or step.
const MISTAKE: u8 = 2;

/// Returns whether this process was started as the agent, with [`CUE`] as its first argument.
pub fn is_cued() -> bool {
    std::env::args_os().nth(1).is_some_and(|arg| arg == CUE)
}

/// Runs the program: reads the command line and stdin, plays the script, and returns the exit code.
///
/// [`CUE`] may precede the other arguments.
pub fn main() -> ExitCode {
    let mut args: Vec<OsString> = std::env::args_os().skip(1).collect();
    if args.first().is_some_and(|arg| arg == CUE) {
        args.remove(0);
        if let Some(code) = offspring::play(&args) {
            return code;
        }
    }
    match args::parse(args) {
        Ok(RehearsalRequest::Help) => print(&help::text()),
        Ok(RehearsalRequest::Version) => print(concat!("rehearsal ", env!("CARGO_PKG_VERSION"), "\n")),
        Ok(RehearsalRequest::Play(options)) => play(&options),
        Err(mistake) => confess(&mistake),
    }
}

fn print(text: &str) -> ExitCode {
    end(StandardStream::Stdout.write(text.as_bytes()).map(|()| 0).map_err(Mishap::refused("stdout")))
}

fn play(options: &RehearsalOptions) -> ExitCode {
    if options.is_live {
        return converse(options);
    }
    let prompt = if options.ignore_stdin { Ok(Vec::new()) } else { read_prompt() };
    // All input is read first, so that a mistake is reported before the first event.
    match prompt.and_then(|prompt| Part::read(options, &prompt)) {
        Ok(part) => {
            let voice = options.vendor.voice(part.session(options, None, None));
            let stage = RehearsalStage::new(voice, part.echo(), part.prompt_bytes, None);
            end(stage.play(part.steps).map(|(StageEnd::Turn(code) | StageEnd::Exit(code))| code))
        }
        Err(mistake) => confess(&mistake),
    }
}

/// Serves the prompts of a live client until it closes stdin.
fn converse(options: &RehearsalOptions) -> ExitCode {
    let mut client = LiveClient::new(options);
    let mut last = 0;
    loop {
        let prompt = match client.next_prompt() {
            Ok(Some(prompt)) => prompt,
            Ok(None) => return ExitCode::from(last),
            Err(mishap) => return end(Err(mishap)),
        };
        let part = match Part::read(options, prompt.text.as_bytes()) {
            Ok(part) => part,
            Err(mistake) => return confess(&mistake),
        };
        let session = part.session(options, client.session.clone(), client.model.clone());
        let voice = options.vendor.live_voice(session, prompt.id);
        let stage = RehearsalStage::new(voice, part.echo(), part.prompt_bytes, Some(&mut client));
        match stage.play(part.steps) {
            Ok(StageEnd::Turn(code)) => last = code,
            Ok(StageEnd::Exit(code)) => return ExitCode::from(code),
            Err(mishap) => return end(Err(mishap)),
        }
    }
}

/// A prompt: the steps to play, and the rest of it.
struct Part {
    steps: Vec<script::ScriptStep>,
    plain: String,
    prompt_bytes: usize,
}

impl Part {
    fn read(options: &RehearsalOptions, prompt: &[u8]) -> Result<Self, Mistake> {
        let text = String::from_utf8_lossy(prompt);
        let (steps, plain) = match &options.script {
            None => script::parse_prompt(&text)?,
            Some(path) => {
                let script = std::fs::read_to_string(path).map_err(|refusal| {
                    Mistake::new(
                        format!("cannot read the script `{}`: {refusal}", path.display()),
                        "pass a text file with one step per line",
                    )
                })?;
                (script::parse_file(&script)?, text.into_owned())
            }
        };
        let steps = script::select(steps, options.model.as_deref(), &plain);
        let vendor = options.vendor;
        if steps.contains(&script::ScriptStep::MaxTurns) && !vendor.has_turn_limit() {
            return Err(Mistake::new(
                format!("step `max-turns` cannot be played as `{}`, which has no turn limit", vendor.name()),
                "use `fail KIND`, or `--as claude`",
            ));
        }
        let needs_terminal = |step: &script::ScriptStep| matches!(step, script::ScriptStep::Terminal(_));
        if vendor != voice::VoiceVendor::Acp && steps.iter().any(needs_terminal) {
            return Err(Mistake::new(
                format!("step `terminal` cannot be played as `{}`, whose client has none", vendor.name()),
                "use `--as acp`",
            ));
        }
        if !options.is_live && steps.iter().any(script::ScriptStep::is_live) {
            return Err(Mistake::new(
                "steps `ask` and `request` need a client that answers",
                "use `--as acp`, `--input-format stream-json` or `app-server`",
            ));
        }
        Ok(Self { steps, plain: plain.trim_end().to_owned(), prompt_bytes: prompt.len() })
    }

    fn echo(&self) -> String {
        if self.plain.is_empty() {
            "You said nothing.".to_owned()
        } else {
            format!("You said: {}", self.plain)
        }
    }

    fn session(&self, options: &RehearsalOptions, id: Option<String>, model: Option<String>) -> VoiceSession {
        VoiceSession::new(SessionOpening {
            id: id.or_else(|| options.session.clone()),
            model: model.or_else(|| options.model.clone()),
            turn_limit: options.turn_limit,
            cwd: sight::working_directory(),
            prompt: self.plain.clone(),
            prompt_bytes: self.prompt_bytes,
        })
    }
}

fn read_prompt() -> Result<Vec<u8>, Mistake> {
    let mut prompt = Vec::new();
    match io::stdin().lock().read_to_end(&mut prompt) {
        Ok(_) => Ok(prompt),
        Err(refusal) => Err(Mistake::new(
            format!("cannot read the prompt from stdin: {refusal}"),
            "pass the prompt on stdin, or `--script FILE --ignore-stdin`",
        )),
    }
}

fn confess(mistake: &Mistake) -> ExitCode {
    let _ = StandardStream::Stderr.write(format!("{mistake}\n").as_bytes());
    ExitCode::from(MISTAKE)
}

fn end(played: Result<u8, Mishap>) -> ExitCode {
    ExitCode::from(match played {
        Ok(code) => code,
        Err(Mishap::NobodyListens) => Mishap::NOBODY_LISTENS,
        Err(Mishap::Refused { what, source }) => {
            let _ = StandardStream::Stderr.write(format!("error: cannot play {what}: {source}\n").as_bytes());
            Mishap::REFUSED
        }
    })
}
