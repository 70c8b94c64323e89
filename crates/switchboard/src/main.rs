//! `switchboard`: place a call to any coding agent.
//!
//! Owns the command line. The one program that looks at the user's environment and writes to the user's terminal; what it
//! asks for is done by the other crates.

mod call;
mod cli;
mod config;
mod doctor;
mod duration;
mod environment;
mod failure;
mod home;
mod output;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command};

fn main() -> ExitCode {
    let Cli { command } = Cli::parse();
    let done = match command {
        Command::Call(order) => call::place(&order),
        Command::Doctor(order) => doctor::check(&order),
        Command::Config(order) => config::print(&order),
    };
    done.unwrap_or_else(|failure| {
        output::complain(&failure);
        failure.exit_code()
    })
}
