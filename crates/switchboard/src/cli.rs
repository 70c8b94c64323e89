//! The command line: every word that a person can type.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use model::{AgentKind, Preset, SessionId};

use crate::duration;

/// Place a call to any coding agent
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Hand a prompt to an agent and print its answer as it comes
    Call(Box<Order>),
    /// Say which agents are here, whether they are ready, and what to do about what is missing
    Doctor(Checkup),
    /// Print the configuration that holds, and where each value came from
    Config(ShowConfig),
    /// Speak MCP on stdin and stdout, for a host that starts this; the daemon does the work
    Mcp,
    /// Be the daemon, which runs the jobs and answers every front-end; they start it themselves when there is none
    Serve(Serve),
    /// Say how the daemon is
    Status(Look),
    /// End the daemon when what runs has ended
    Stop(Stop),
}

#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 completed, 1 failed, 2 bad input, 3 timed out, 4 cancelled, 5 no such agent here.\n\
                        Ctrl-C cancels the call and waits until nothing of it is left running."
)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub struct Order {
    /// The agent to call: claude, codex, gemini, or rehearsal, the scripted one that needs no account
    pub agent: AgentKind,
    /// What to ask it; `-` or nothing reads stdin
    pub prompt: Option<String>,
    /// The folder it works in
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    pub cwd: PathBuf,
    /// An alias (haiku, sonnet, opus) or the full name of a model
    #[arg(long)]
    pub model: Option<String>,
    /// Go on with this session
    #[arg(long, value_name = "ID", conflicts_with = "go_on")]
    pub session: Option<SessionId>,
    /// Go on with the newest session of the folder
    #[arg(long = "continue")]
    pub go_on: bool,
    /// The agent may look at everything and change nothing
    #[arg(long)]
    pub observe: bool,
    /// What it may touch: off, workspace, observe, restricted or sealed
    #[arg(long, value_name = "POLICY", default_value = "off")]
    pub policy: Preset,
    /// Run also where the machine cannot enforce all of the policy, and say what held
    #[arg(long, requires = "policy")]
    pub best_effort: bool,
    /// How many turns the model may take
    #[arg(long, value_name = "N")]
    pub max_turns: Option<u32>,
    /// How long it may take: 90s, 10m, 1h [default: `limits.timeout` of the configuration]
    #[arg(long, value_name = "TIME", value_parser = duration::read)]
    pub timeout: Option<Duration>,
    /// How long it may stay silent
    #[arg(long, value_name = "TIME", value_parser = duration::read)]
    pub idle: Option<Duration>,
    /// Print what the call came to as one JSON object
    #[arg(long, conflicts_with = "events")]
    pub json: bool,
    /// Print every event as a line of JSON, and what the call came to as the last
    #[arg(long)]
    pub events: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Exit codes: 0 at least one agent is ready, 1 none is.")]
pub struct Checkup {
    /// Print everything as one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ShowConfig {
    /// Print it as one JSON object
    #[arg(long, conflicts_with = "reference")]
    pub json: bool,
    /// Print the reference of all keys instead, in Markdown
    #[arg(long)]
    pub reference: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Ctrl-C or SIGTERM ends it; what runs goes on, and the next daemon takes it up.\n\
                        Exit codes: 0 it has ended in order, 1 it could not begin, 6 there is one already.")]
pub struct Serve {
    /// Serve MCP over HTTP, too: 127.0.0.1:7878
    #[arg(long, value_name = "ADDRESS")]
    pub http: Option<String>,
    /// Start it in a session of its own, and return when it answers
    #[arg(long)]
    pub background: bool,
    /// Started by a front-end, which listens on stdout
    #[arg(long, hide = true, conflicts_with = "background")]
    pub detached: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Exit codes: 0 it runs, 1 it does not.")]
pub struct Look {
    /// Print everything as one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Whatever waits in the queue stays there for the next daemon.")]
pub struct Stop {
    /// Do not wait: what runs goes on, and the next daemon takes it up
    #[arg(long, conflicts_with = "cancel")]
    pub now: bool,
    /// Cancel what runs first
    #[arg(long)]
    pub cancel: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
