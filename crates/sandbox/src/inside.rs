//! The one inside: a small process that puts the rules on itself and then starts the agent, or becomes it.
//!
//! As the first process of a pid namespace it stays: it says how the agent ended, collects orphans, and is the last to
//! leave. The kernel ends everything in the namespace with it.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use model::Exit;
use rustix::process::{Pid, WaitOptions, wait};

use crate::description::{Applied, Description, Step, Word};
use crate::mounts::make_mounts;
use crate::{door, landlock, limits, seccomp};

/// The first argument with which a program is asked to be the one inside.
pub const INSIDE: &str = "--switchboard-sandbox";

/// Arguments: the open file with the description, and the pipe for words, as numbers.
pub(crate) fn main(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    let mut number = || args.next()?.to_str()?.parse::<RawFd>().ok().filter(|number| *number > 2);
    let (Some(description), Some(words)) = (number(), number()) else { return ExitCode::from(2) };
    let (description, words) = (adopt(description), adopt(words));
    let mut words = Words(File::from(words));
    match carry_out(description, &mut words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failed { step, error }) => {
            let (errno, message) = (error.raw_os_error(), error.to_string());
            words.say(&Word::Failed { step, errno, message: message.chars().take(500).collect() });
            ExitCode::FAILURE
        }
    }
}

#[expect(unsafe_code, reason = "an open file that was handed over has only a number")]
fn adopt(number: RawFd) -> OwnedFd {
    // SAFETY: the one who started this process opened it for this purpose, and nothing else here knows the number.
    unsafe { OwnedFd::from_raw_fd(number) }
}

struct Words(File);

impl Words {
    fn say(&mut self, word: &Word) {
        // Who does not listen any more has killed us, or is about to.
        let _ = self.0.write_all(&word.to_line());
    }
}

struct Failed {
    step: Step,
    error: io::Error,
}

fn at<E: Into<io::Error>>(step: Step) -> impl FnOnce(E) -> Failed {
    move |error| Failed { step, error: error.into() }
}

fn carry_out(description: OwnedFd, words: &mut Words) -> Result<(), Failed> {
    let mut description = Description::read(description).map_err(at(Step::Rules))?;
    if let Some(plan) = &description.mounts {
        make_mounts(plan, &description.rules.roots).map_err(at(Step::Mounts))?;
    }
    if let Some(line) = description.door.take() {
        door::open(adopt(line).as_fd(), &mut description.env).map_err(at(Step::Rules))?;
    }
    limits::keep_files_back().map_err(at(Step::Rules))?;
    std::env::set_current_dir(&description.cwd).map_err(at(Step::Folder))?;
    let applied = put_on_rules(&description)?;
    words.say(&Word::Applied(applied));
    if description.mounts.is_some() {
        stay(&description, words)
    } else {
        let error = command(&description).exec();
        Err(Failed { step: Step::Program, error })
    }
}

fn put_on_rules(description: &Description) -> Result<Applied, Failed> {
    let rules = &description.rules;
    let is_init = description.mounts.is_some();
    limits::bound(rules.bounds, is_init).map_err(at(Step::Rules))?;
    limits::give_up_privileges().map_err(at(Step::Rules))?;
    if is_init {
        limits::be_private().map_err(at(Step::Rules))?;
    }
    let refused = |message: String| Failed { step: Step::Rules, error: io::Error::other(message) };
    let (files, scopes) = landlock::apply(rules).map_err(refused)?;
    let seccomp = match seccomp::apply(rules.unix_sockets, rules.internet) {
        Err(error) if rules.required => return Err(refused(error.to_string())),
        applied => applied.is_ok(),
    };
    Ok(Applied { files, scopes, seccomp, privileges: true })
}

#[expect(clippy::disallowed_methods, reason = "the one place where an agent is started inside a sandbox")]
fn command(description: &Description) -> Command {
    let mut command = Command::new(&description.program);
    command.args(&description.args).env_clear().envs(&description.env);
    command
}

fn stay(description: &Description, words: &mut Words) -> Result<(), Failed> {
    // A group of its own, as without a sandbox; the session is this process's.
    let child = command(description).process_group(0).spawn().map_err(at(Step::Program))?;
    let agent = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    words.say(&Word::Started);
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if Some(pid) == agent => {
                let exit = status
                    .exit_status()
                    .map(Exit::Code)
                    .or_else(|| status.terminating_signal().map(Exit::Signal));
                if let Some(exit) = exit {
                    words.say(&Word::Ended(exit));
                }
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            // Nobody is left.
            Err(_) => return Ok(()),
        }
    }
}
