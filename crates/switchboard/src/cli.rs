//! The command line: every word that a person can type.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use model::{AgentKind, SessionId};

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
    /// How many turns the model may take
    #[arg(long, value_name = "N")]
    pub max_turns: Option<u32>,
    /// How long it may take: 90s, 10m, 1h
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = duration)]
    pub timeout: Duration,
    /// How long it may stay silent
    #[arg(long, value_name = "TIME", value_parser = duration)]
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

/// Reads `500ms`, `90s`, `10m` or `1h`.
fn duration(text: &str) -> Result<Duration, String> {
    let unit_at = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let millis = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err("a time is a number and a unit: 500ms, 90s, 10m or 1h".to_owned()),
    };
    match number.parse::<u64>().ok().and_then(|number| number.checked_mul(millis)) {
        None => Err(format!("`{number}` is not a number of {unit} that can be counted")),
        Some(0) => Err("a limit of nothing would end the call before it begins".to_owned()),
        Some(millis) => Ok(Duration::from_millis(millis)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn times_are_read_in_their_units() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("10m"), Ok(Duration::from_mins(10)));
        assert_eq!(duration("1h"), Ok(Duration::from_hours(1)));
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in
            ["", "10", "s", "-1s", "1.5h", "0s", "10 m", "99999999999999999999h", "18446744073709551615h"]
        {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
