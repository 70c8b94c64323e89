//! `switchboard`: place a call to any coding agent.
//!
//! Parses the command line and dispatches to one module per command. The only program that reads the user's environment and writes to
//! the user's terminal.

mod agent_list;
mod bridge;
mod call;
mod call_files;
mod call_spec;
mod caller;
mod changes;
mod checkouts;
mod client;
mod closing;
mod config;
mod daemon;
mod daemon_commands;
mod direct;
mod doctor;
mod drift;
mod failure;
mod follow;
mod groups;
mod jobs;
mod keep;
mod machine;
mod open;
mod output;
mod progress_row;
mod race;
mod recover;
mod reference;
mod setup;
mod show_config;
mod stats;
mod stdio;
mod style;
mod view;

use std::env;
use std::process::ExitCode;

use clap::Parser;
use model::GroupId;
use switchboard::{cli, exit_status};

use crate::cli::{Command, CommandLine, Look};
use crate::failure::CommandFailure;
use crate::output::ResultCopy;

fn main() -> ExitCode {
    // Before clap builds its tables: every MCP host starts its own bridge, which has to stay small.
    let mut args = env::args_os().skip(1);
    if args.next().is_some_and(|first| first == "mcp") && args.next().is_none() {
        return exit_code(bridge::run());
    }
    let CommandLine { command, color } = match CommandLine::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            output::clap_message(&error);
            return exit_code(Ok(ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))));
        }
    };
    style::set_color_choice(color);
    exit_code(run(command))
}

fn run(command: Command) -> Result<ExitCode, CommandFailure> {
    match command {
        Command::Call(args) if args.direct => direct::run(&args),
        Command::Call(args) => call::run(&args),
        Command::Jobs(args) if args.open_changes => checkouts::list(&args),
        Command::Jobs(args) => jobs::list(&args),
        Command::Logs(args) => jobs::logs(&args),
        Command::Diff(args) => changes::diff(&args),
        Command::Undo(args) => changes::undo(&args),
        Command::Apply(args) => checkouts::apply(&args),
        Command::Discard(args) => checkouts::discard(&args),
        Command::Race(args) => race::run(&args),
        Command::Keep(args) => keep::run(&args),
        Command::Wait(args) => jobs::wait(&args),
        Command::Cancel(args) => jobs::cancel(&args),
        Command::Retry(args) => jobs::retry(&args),
        Command::Stats(args) => stats::run(&args),
        Command::Open(args) => open::run(&args),
        Command::Agents(args) => agent_list::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Setup(args) => setup::run(&args),
        Command::Completions(args) => Ok(reference::print_completions(&args)),
        Command::Man(args) => reference::print_manual(&args),
        Command::Config(args) => show_config::run(&args),
        Command::Mcp => bridge::run(),
        Command::Serve(args) if args.background => daemon_commands::serve_in_background(&args),
        Command::Serve(args) => Ok(daemon::serve(&args)?),
        Command::Status(Look { id: Some(id), json }) if is_group(&id) => groups::status(&id, json),
        Command::Status(Look { id: Some(id), json }) => jobs::status(&id, json),
        Command::Status(args) => daemon_commands::status(&args),
        Command::Stop(args) => daemon_commands::stop(&args),
        Command::Recover(args) => recover::run(&args),
    }
}

fn is_group(id: &str) -> bool {
    GroupId::strip_prefix(id).is_some()
}

fn exit_code(result: Result<ExitCode, CommandFailure>) -> ExitCode {
    let checked = result.and_then(|code| Ok(output::check_written(ResultCopy::None).map(|()| code)?));
    checked.unwrap_or_else(|failure| {
        output::error(failure.error(), failure.hint().as_deref());
        failure.exit_code()
    })
}
