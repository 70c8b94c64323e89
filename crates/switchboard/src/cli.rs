//! The command line: every word that a person can type.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

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
    Call(Order),
}

/// Exit codes: 0 completed, 1 failed, 2 bad input, 3 timed out, 4 cancelled, 5 no such agent here.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 completed, 1 failed, 2 bad input, 3 timed out, 4 cancelled, 5 no such agent here.\n\
                        Ctrl-C cancels the call and waits until nothing of it is left running."
)]
pub struct Order {
    /// The agent to call
    pub agent: Agent,
    /// What to ask it; `-` or nothing reads stdin
    pub prompt: Option<String>,
    /// The folder it works in
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    pub cwd: PathBuf,
    /// How long it may take: 90s, 10m, 1h
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = duration)]
    pub timeout: Duration,
    /// How long it may stay silent
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub idle: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Agent {
    /// The scripted agent that comes with Switchboard: no account, no tokens
    Rehearsal,
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
