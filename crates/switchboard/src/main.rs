//! `switchboard`: place a call to any coding agent.
//!
//! Owns the command line. The one program that looks at the user's environment and writes to the user's terminal; what it
//! asks for is done by the other crates.

mod bridge;
mod call;
mod closing;
mod config;
mod daemon;
mod direct;
mod doctor;
mod echo;
mod environment;
mod failure;
mod front;
mod home;
mod jobs;
mod open;
mod output;
mod paint;
mod recover;
mod reference;
mod setup;
mod stats;
mod stdio;
mod tool_lines;
mod view;
mod web;
mod wire;

use std::env;
use std::process::ExitCode;

use clap::Parser;
use switchboard::{cli, exit_status, text};

use crate::cli::{Cli, Command, Look};
use crate::failure::{Failure, Kept};

fn main() -> ExitCode {
    // Before anything else is built: every host starts a bridge of its own.
    let mut args = env::args_os().skip(1);
    if args.next().is_some_and(|first| first == "mcp") && args.next().is_none() {
        return done(bridge::run());
    }
    let Cli { command, color } = match Cli::try_parse() {
        Ok(words) => words,
        Err(said) => {
            output::about_the_words(&said);
            return done(Ok(ExitCode::from(u8::try_from(said.exit_code()).unwrap_or(2))));
        }
    };
    paint::set(color);
    let result = match command {
        Command::Call(order) => call::place(&order),
        Command::Jobs(order) => jobs::list(&order),
        Command::Logs(order) => jobs::logs(&order),
        Command::Wait(order) => jobs::wait(&order),
        Command::Cancel(order) => jobs::cancel(&order),
        Command::Retry(order) => jobs::retry(&order),
        Command::Stats(order) => stats::print(&order),
        Command::Open(order) => open::page(&order),
        Command::Agents(order) => doctor::agents(&order),
        Command::Doctor(order) => doctor::check(&order),
        Command::Setup(order) => setup::run(&order),
        Command::Completions(order) => Ok(reference::completions(&order)),
        Command::Man(order) => reference::man(&order),
        Command::Config(order) => config::print(&order),
        Command::Mcp => bridge::run(),
        Command::Serve(order) if order.background => front::serve_in_background(&order),
        Command::Serve(order) => daemon::serve(&order).map_err(Failure::from),
        Command::Status(Look { id: Some(id), json }) => jobs::status(&id, json),
        Command::Status(order) => front::status(&order),
        Command::Stop(order) => front::stop(&order),
        Command::Recover(order) => recover::run(&order),
    };
    done(result)
}

fn done(result: Result<ExitCode, Failure>) -> ExitCode {
    let told =
        |code| output::written().map(|()| code).map_err(|error| Failure::unwritten(error, Kept::Nowhere));
    result.and_then(told).unwrap_or_else(|failure| {
        output::complain(&failure);
        failure.exit_code()
    })
}
