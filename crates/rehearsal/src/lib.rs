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
mod measure;
mod mistake;
mod offspring;
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
use crate::mistake::{Mishap, Mistake};
use crate::stage::RehearsalStage;
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
        Ok(RehearsalRequest::Play(options)) => play(options),
        Err(mistake) => confess(&mistake),
    }
}

fn print(text: &str) -> ExitCode {
    end(StandardStream::Stdout.write(text.as_bytes()).map(|()| 0).map_err(Mishap::refused("stdout")))
}

fn play(options: RehearsalOptions) -> ExitCode {
    match rehearse(options) {
        Ok((stage, steps)) => end(stage.play(steps)),
        Err(mistake) => confess(&mistake),
    }
}

/// Reads all input, so that a mistake is reported before the first event.
fn rehearse(options: RehearsalOptions) -> Result<(RehearsalStage, Vec<script::ScriptStep>), Mistake> {
    let prompt = if options.ignore_stdin { Vec::new() } else { read_prompt()? };
    let text = String::from_utf8_lossy(&prompt);
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
    if steps.contains(&script::ScriptStep::MaxTurns) && !options.vendor.has_turn_limit() {
        return Err(Mistake::new(
            format!(
                "step `max-turns` cannot be played as `{}`, which has no turn limit",
                options.vendor.name()
            ),
            "use `fail KIND`, or `--as claude`",
        ));
    }
    let plain = plain.trim_end();
    let echo = if plain.is_empty() { "You said nothing.".to_owned() } else { format!("You said: {plain}") };
    let session = VoiceSession::new(SessionOpening {
        id: options.session,
        model: options.model,
        turn_limit: options.turn_limit,
        cwd: sight::working_directory(),
        prompt: plain.to_owned(),
        prompt_bytes: prompt.len(),
    });
    Ok((RehearsalStage::new(options.vendor.voice(session), echo, prompt.len()), steps))
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
