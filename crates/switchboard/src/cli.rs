//! The command line: every word that a person can type.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use model::{AgentKind, BadName, Network, Preset, SessionId, StateName};

use crate::duration;
use crate::exit_status::ExitStatus;

/// Place a call to any coding agent
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
pub struct Cli {
    /// Whether to paint; a colour never says more than the word
    #[arg(long, global = true, value_enum, default_value_t = Colour::Auto, value_name = "WHEN")]
    pub color: Colour,
    #[command(subcommand)]
    pub command: Command,
}

/// When to paint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Colour {
    /// On a terminal, unless `NO_COLOR` is set
    Auto,
    /// Also in a pipe
    Always,
    /// Not at all
    Never,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Hand a prompt to an agent and print its answer as it comes
    Call(Box<Order>),
    /// List the jobs, the newest first
    Jobs(ListJobs),
    /// Say how a job is, or how the daemon is
    Status(Look),
    /// Print what a job's agent said
    Logs(Logs),
    /// Wait until jobs have ended
    Wait(Wait),
    /// End jobs, and everything that they have started
    Cancel(Cancel),
    /// Place an ended job again, as a new one
    Retry(Retry),
    /// Add up what the jobs came to
    Stats(Statistics),
    /// Open the web page: the jobs, live, and what they came to
    Open(OpenPage),
    /// Say in a line each which agents are here
    Agents(Checkup),
    /// Say which agents are here, whether they are ready, and what to do about what is missing
    Doctor(Checkup),
    /// Register the MCP server with a host, in the host's own configuration
    Setup(Setup),
    /// Print the configuration that holds, and where each value came from
    Config(ShowConfig),
    /// Speak MCP on stdin and stdout, for a host that starts this; the daemon does the work
    Mcp,
    /// Be the daemon, which runs the jobs and answers every front-end; they start it themselves when there is none
    Serve(Serve),
    /// End the daemon when what runs has ended
    Stop(Stop),
    /// Rebuild a lost or damaged database from the job directories
    Recover(Recover),
    /// Print the completions of a shell
    Completions(Completions),
    /// Print the manual page, or write all of them into a folder
    Man(Man),
}

#[derive(Debug, Args)]
#[command(
    after_help = format!(
        "Press Ctrl-C to cancel the call and wait for cleanup; press it again to detach.\n\n{}",
        ExitStatus::table()
    )
)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub struct Order {
    /// The agent to call: claude, codex, gemini, or rehearsal, the scripted one that needs no account
    #[arg(value_parser = one_of::<AgentKind>(&AgentKind::ALL.map(AgentKind::name)), ignore_case = true, hide_possible_values = true)]
    pub agent: AgentKind,
    /// What to ask it; `-` or nothing reads stdin
    pub prompt: Option<String>,
    /// The folder it works in
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    pub cwd: PathBuf,
    /// A further directory that it may work in; may be given several times
    #[arg(long, value_name = "DIRECTORY")]
    pub add_dir: Vec<PathBuf>,
    /// A model, by the vendor's alias (opus) or its full name; default: the agent's own choice
    #[arg(long)]
    pub model: Option<String>,
    /// Go on with this session
    #[arg(long, value_name = "ID", conflicts_with = "go_on")]
    pub session: Option<SessionId>,
    /// Go on with the last session of the task
    #[arg(long = "continue")]
    pub go_on: bool,
    /// Read-only, and for claude and gemini without a shell, which `--policy observe` leaves them. Excludes the policies workspace and
    /// restricted
    #[arg(long)]
    pub observe: bool,
    /// What it may touch: off, workspace, observe, restricted or sealed [default: as configured, else workspace]
    #[arg(long, value_name = "POLICY", value_parser = one_of::<Preset>(&Preset::ALL.map(Preset::name)), hide_possible_values = true)]
    pub policy: Option<Preset>,
    /// Whom it may reach: full, none, or hosts with commas between them, beside its own vendor [default: as configured, else full]
    #[arg(long, value_name = "NETWORK")]
    pub network: Option<Network>,
    /// Load hooks (git hooks, too), MCP servers and settings of the workspace [default: as configured, else not]
    #[arg(long)]
    pub trust_workspace: bool,
    /// Run also where the machine cannot enforce all of the policy, and say what held [default: as configured, else so]
    #[arg(long, conflicts_with = "require")]
    pub best_effort: bool,
    /// Run nothing where the machine cannot enforce all of the policy, and say what is missing. The one exception: root, whom the
    /// kernel holds to no number of processes without a cgroup, unless the configuration names that number
    #[arg(long)]
    pub require: bool,
    /// How many turns the model may take
    #[arg(long, value_name = "N")]
    pub max_turns: Option<u32>,
    /// How long it may take: 90s, 10m, 1h [default: `limits.timeout` of the configuration]
    #[arg(long, value_name = "TIME", value_parser = duration::read)]
    pub timeout: Option<Duration>,
    /// How long it may stay silent, before its first word too unless --start says otherwise [default: `limits.idle`, else for ever]
    #[arg(long, value_name = "TIME", value_parser = duration::read)]
    pub idle: Option<Duration>,
    /// How long it may take until its first word [default: `limits.start`, else as long as it may stay silent]
    #[arg(long, value_name = "TIME", value_parser = duration::read)]
    pub start: Option<Duration>,
    /// What to call the task, in lists and for --continue [default: the folder]
    #[arg(long, value_name = "NAME")]
    pub task: Option<String>,
    /// Stay no longer than that; the job goes on
    #[arg(long, value_name = "TIME", value_parser = duration::read)]
    pub wait: Option<Duration>,
    /// Print the job's id and the names of its files, and do not wait
    #[arg(long, conflicts_with = "wait")]
    pub background: bool,
    /// Run it without the daemon: there is no job of it, and --continue is up to the agent
    #[arg(long, conflicts_with_all = ["background", "wait", "task"])]
    pub direct: bool,
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
#[command(after_help = "Exit codes, of a job: those of `switchboard call --help`; 2 there is no such job.\n\
                        Of the daemon: 0 it is running, 1 it is not.")]
pub struct Look {
    /// The job, or as much of the beginning of its id as is enough; the daemon, when it is left out
    pub id: Option<String>,
    /// Print everything as one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ListJobs {
    /// Only jobs in this state; may be given several times
    #[arg(long, value_name = "STATE", value_parser = state())]
    pub status: Vec<StateName>,
    /// Only jobs of this agent
    #[arg(long, value_parser = one_of::<AgentKind>(&AgentKind::ALL.map(AgentKind::name)), ignore_case = true)]
    pub agent: Option<AgentKind>,
    /// Only jobs that were placed through this tool: `cli`, `call_cc`, `call_codex` …
    #[arg(long)]
    pub tool: Option<String>,
    /// Only jobs of this task
    #[arg(long)]
    pub task: Option<String>,
    /// How many at most
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub limit: u32,
    /// Look again every second, until Ctrl-C
    #[arg(long, conflicts_with = "json")]
    pub watch: bool,
    /// Print them as one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Ctrl-C leaves the job alone.\n\
                        Exit codes: those of the job with -f, else 0; 2 there is no such job.")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub struct Logs {
    /// The job, or as much of the beginning of its id as is enough
    pub id: String,
    /// Go on until the job has ended
    #[arg(long, short)]
    pub follow: bool,
    /// Print what the agent printed, byte for byte
    #[arg(long, conflicts_with = "error")]
    pub raw: bool,
    /// Print what the agent wrote to stderr
    #[arg(long)]
    pub error: bool,
    /// Print every event as a line of JSON, and the answer as the last
    #[arg(long, conflicts_with_all = ["raw", "error"])]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 all that ended were completed, otherwise that of the first which was not, as in \
                        `switchboard call --help`; 7 the time was over first; 2 there is no such job."
)]
pub struct Wait {
    /// The jobs, or as much of the beginnings of their ids as is enough
    #[arg(required = true)]
    pub ids: Vec<String>,
    /// One is enough
    #[arg(long)]
    pub any: bool,
    /// How long at most
    #[arg(long, value_name = "TIME", value_parser = duration::read)]
    pub timeout: Option<Duration>,
    /// Print their answers as a JSON array
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 all are cancelled or being stopped, 2 one was not there or had ended already."
)]
pub struct Cancel {
    /// The jobs, or as much of the beginnings of their ids as is enough
    #[arg(required = true)]
    pub ids: Vec<String>,
    /// Print what became of each as a line of JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Prints the id of the new job; `switchboard logs -f ID` follows it.")]
pub struct Retry {
    /// The job, or as much of the beginning of its id as is enough
    pub id: String,
    /// Print the new job and its files as one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Statistics {
    /// Only jobs that were placed within that time: 7d, 24h
    #[arg(long, value_name = "TIME", value_parser = duration::read)]
    pub since: Option<Duration>,
    /// Print them as one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "The link lets one browser in, once, within five minutes; who has it can see and end your jobs.\n\
                        Exit codes: 0 the link is printed, 1 there is none."
)]
pub struct OpenPage {
    /// Print the link, and start no browser
    #[arg(long)]
    pub print: bool,
}

#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    disable_help_subcommand = true,
    after_help = "A file that is changed is copied first, with the ending `.switchboard-backup`. Done twice, it is the same.\n\
                        Exit codes: 0 done, 1 the host failed, 2 it cannot be done like that, 5 the host is not installed."
)]
pub struct Setup {
    #[command(subcommand)]
    pub other: Option<SetupOther>,
    /// The host; `all` is every one that is here
    #[arg(value_enum, required = true)]
    pub host: Option<HostChoice>,
    /// For the user, or for the project in the current folder
    #[arg(long, value_enum, default_value_t = Scope::User)]
    pub scope: Scope,
    /// Only show what would be done
    #[arg(long)]
    pub print: bool,
    /// Take the registration back
    #[arg(long)]
    pub remove: bool,
}

/// What is set up besides hosts.
#[derive(Debug, Subcommand)]
pub enum SetupOther {
    /// Print a file that makes the daemon a service of your session
    Service(Service),
}

#[derive(Debug, Args)]
#[command(
    after_help = "Nothing is installed: the first lines of the file say where it belongs and how it is started. It has the path of \
                  this program and your PATH, with which the daemon finds the agents.\n\
                  Front-ends start a daemon by themselves when there is none; a service is for those who want it at login."
)]
pub struct Service {
    /// A unit of systemd, for Linux [default]
    #[arg(long)]
    pub systemd: bool,
    /// A property list of launchd, for macOS
    #[arg(long, conflicts_with = "systemd")]
    pub launchd: bool,
}

/// Which host is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum HostChoice {
    Claude,
    Codex,
    Gemini,
    Cursor,
    Vscode,
    ClaudeDesktop,
    All,
}

/// For whom a host is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Scope {
    User,
    Project,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Works on the embedded store, while no daemon runs. A database that is sound gets the jobs that it lacks. Any other \
                        is moved aside, never overwritten. Jobs that still run are adopted by the next daemon.\n\
                        Exit codes: 0 the database holds every job that could be read, 1 it could not be rebuilt, 2 the store is not the \
                        embedded one, 6 a daemon is running, 10 the state directory cannot be written."
)]
pub struct Recover {
    /// Only print what would be recovered
    #[arg(long)]
    pub dry_run: bool,
    /// Print the report as one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Completions {
    /// The shell
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub struct Man {
    /// Write a page for every command to this directory, which is created if it does not exist
    #[arg(long, value_name = "DIRECTORY")]
    pub out: Option<PathBuf>,
}

/// One of these words: they are listed in errors, and shells complete them.
fn one_of<T>(words: &[&'static str]) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err = BadName> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(words.iter().copied()).try_map(|word| word.parse())
}

fn state() -> impl TypedValueParser<Value = StateName> {
    const ALL: [StateName; 8] = [
        StateName::Queued,
        StateName::Running,
        StateName::Paused,
        StateName::Interrupted,
        StateName::Completed,
        StateName::Failed,
        StateName::Timeout,
        StateName::Cancelled,
    ];
    let read = |word: String| ALL.into_iter().find(|state| state.as_str() == word).ok_or("no such state");
    PossibleValuesParser::new(ALL.map(StateName::as_str)).try_map(read)
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
