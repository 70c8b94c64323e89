//! `switchboard completions` and `switchboard man`: generated from the command-line definition.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::CommandFactory;

use crate::cli::{CommandLine, Completions, Man};
use crate::exit_status::ExitStatus;
use crate::failure::{CommandError, CommandFailure, RuntimeError};
use crate::output;

const NAME: &str = "switchboard";

/// Prints the completions of a shell.
pub fn print_completions(args: &Completions) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut CommandLine::command(), NAME, &mut script);
    output::raw(&script);
    ExitCode::SUCCESS
}

/// Prints the manual page, or writes one for every command.
pub fn print_manual(args: &Man) -> Result<ExitCode, CommandFailure> {
    if let Some(directory) = &args.out {
        std::fs::create_dir_all(directory)
            .and_then(|()| clap_mangen::generate_to(CommandLine::command(), directory))
            .map_err(|source| ManualError { directory: directory.clone(), source })?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(CommandLine::command()).render(&mut page).map_err(RuntimeError::from)?;
    output::raw(&page);
    Ok(ExitCode::SUCCESS)
}

/// The manual pages could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the manual pages to `{}`", directory.display())]
struct ManualError {
    directory: PathBuf,
    source: io::Error,
}

impl CommandError for ManualError {
    fn hint(&self) -> Option<String> {
        Some("pass a directory you can write to".to_owned())
    }

    fn exit_status(&self) -> ExitStatus {
        ExitStatus::NotWritten
    }
}
