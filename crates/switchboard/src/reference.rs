//! `switchboard completions` and `switchboard man`: what is made of the command line itself.

use std::process::ExitCode;

use clap::CommandFactory;

use crate::cli::{Cli, Completions, Man};
use crate::failure::Failure;
use crate::output;

const NAME: &str = "switchboard";

/// Prints the completions of a shell.
pub fn completions(order: &Completions) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(order.shell, &mut Cli::command(), NAME, &mut script);
    output::raw(&script);
    ExitCode::SUCCESS
}

/// Prints the manual page, or writes one for every command.
pub fn man(order: &Man) -> Result<ExitCode, Failure> {
    if let Some(folder) = &order.out {
        std::fs::create_dir_all(folder)
            .and_then(|()| clap_mangen::generate_to(Cli::command(), folder))
            .map_err(|source| Failure::Manual { folder: folder.clone(), source })?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(Cli::command()).render(&mut page).map_err(Failure::Runtime)?;
    output::raw(&page);
    Ok(ExitCode::SUCCESS)
}
