//! Defines the command line: commands, options and their help texts.

mod changes;

use std::ffi::OsStr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use agents::AgentProfiles;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, Args, Parser, Subcommand, ValueEnum};
use model::{AgentChoice, AgentKind, BadName, EffortName, Network, Preset, SessionId, StateName};

pub use changes::{ApplyChanges, DiscardChanges, KeepChanges, ShowDiff, UndoChanges};

use crate::exit_status::ExitStatus;
use render::duration;

/// Place a call to any coding agent
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
pub struct CommandLine {
    /// When to use colors
    #[arg(long, global = true, value_enum, default_value_t = ColorChoice::Auto, value_name = "WHEN")]
    pub color: ColorChoice,
    #[command(subcommand)]
    pub command: Command,
}

/// When to use colors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ColorChoice {
    /// On a terminal, unless `NO_COLOR` is set
    Auto,
    /// Even when the output is not a terminal
    Always,
    /// Never
    Never,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Send a prompt to an agent and stream its answer
    Call(Box<CallArgs>),
    /// List jobs, newest first
    Jobs(ListJobs),
    /// Show the status of a job or of the daemon
    Status(Look),
    /// Print a job's output
    Logs(Logs),
    /// Show the changes of a job in its git repository
    Diff(ShowDiff),
    /// Restore the files that a job changed
    Undo(UndoChanges),
    /// Apply the changes of a job in a private checkout
    Apply(ApplyChanges),
    /// Discard the changes of jobs in private checkouts
    Discard(DiscardChanges),
    /// Give one task to several agents and compare the results
    Race(Box<RaceArgs>),
    /// Apply the changes of one agent of a race and discard the others
    Keep(KeepChanges),
    /// Wait for jobs to finish
    Wait(Wait),
    /// Cancel jobs and kill their process trees
    Cancel(Cancel),
    /// Rerun a finished job as a new job
    Retry(Retry),
    /// Show usage statistics
    Stats(Statistics),
    /// Open the web dashboard
    Open(OpenPage),
    /// List the agents with their versions, logins and features
    Agents(AgentList),
    /// Check installed agents and the sandbox, and suggest fixes
    Doctor(Checkup),
    /// Register the MCP server in a host's configuration
    Setup(Setup),
    /// Print the effective configuration and the source of each value
    Config(ShowConfig),
    /// Run the MCP server over stdio (started by an MCP host)
    Mcp,
    /// Run the daemon (started automatically when needed)
    Serve(Serve),
    /// Stop the daemon after running jobs finish
    Stop(Stop),
    /// Rebuild a lost or damaged database from the job directories
    Recover(Recover),
    /// Print a shell completion script
    Completions(Completions),
    /// Print the manual page, or write all manual pages to a directory
    Man(Man),
}

#[derive(Debug, Args)]
#[command(
    after_help = format!(
        "The configuration can change the defaults of --policy, --network, --trust-workspace, --best-effort and --worktree.\n\
         Press Ctrl-C to cancel the call and wait for cleanup; press it again to detach.\n\n{}",
        ExitStatus::table()
    )
)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub struct CallArgs {
    /// Agent: claude, codex, gemini, rehearsal (scripted), or any that `agents` lists
    #[arg(value_parser = AgentParser, hide_possible_values = true)]
    pub agent: AgentKind,
    #[command(flatten)]
    pub options: CallOptions,
    /// Work in a private checkout of the repository; `apply` brings the changes back
    ///
    /// The checkout has the files of your worktree, uncommitted and untracked ones included.
    #[arg(long, conflicts_with = "no_worktree")]
    pub worktree: bool,
    /// Work in the directory itself, even if the configuration sets `worktree`
    #[arg(long)]
    pub no_worktree: bool,
    /// Model: an alias such as opus, or a full name [default: the agent's choice]
    #[arg(long)]
    pub model: Option<String>,
    /// Effort of the model as the agent names it, such as low [default: the agent's]
    #[arg(long, value_name = "LEVEL")]
    pub effort: Option<EffortName>,
    /// JSON Schema of the answer, in a file; another answer fails the call
    #[arg(long, value_name = "FILE")]
    pub schema: Option<PathBuf>,
    /// Resume this session
    #[arg(long, value_name = "ID", conflicts_with = "go_on")]
    pub session: Option<SessionId>,
    /// Continue a copy of this session, which itself stays as it is
    #[arg(long, value_name = "ID", conflicts_with_all = ["go_on", "session"])]
    pub fork: Option<SessionId>,
    /// Resume the task's most recent session
    #[arg(long = "continue")]
    pub go_on: bool,
    /// Read-only: the agent cannot change anything; claude and gemini get no shell
    ///
    /// Conflicts with the policies workspace and restricted. `--policy observe` is also read-only, but claude and gemini keep their shell.
    #[arg(long)]
    pub observe: bool,
    /// Stop waiting after this long; the job keeps running
    #[arg(long, value_name = "TIME", value_parser = duration::parse, allow_hyphen_values = true)]
    pub wait: Option<Duration>,
    /// Print the job id and its file paths, and return immediately
    #[arg(long, conflicts_with = "wait")]
    pub background: bool,
    /// Run without the daemon; no job is recorded
    ///
    /// With --continue, the agent itself chooses the session.
    #[arg(long, conflicts_with_all = ["background", "wait", "task", "verify", "expect_changes"])]
    pub direct: bool,
    /// Print the result as JSON
    #[arg(long, conflicts_with = "events")]
    pub json: bool,
    /// Stream events as JSON lines; the last line is the result
    #[arg(long)]
    pub events: bool,
}

/// The options of a call that do not depend on the agent.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub struct CallOptions {
    /// Prompt; reads stdin if omitted or `-`
    pub prompt: Option<String>,
    /// Working directory of the agent
    #[arg(long, value_name = "DIRECTORY", default_value = ".")]
    pub cwd: PathBuf,
    /// Additional directory the agent may work in; repeatable
    #[arg(long, value_name = "DIRECTORY")]
    pub add_dir: Vec<PathBuf>,
    /// Image for the prompt: a PNG, JPEG, GIF or WebP file; repeatable
    #[arg(long, value_name = "FILE")]
    pub image: Vec<PathBuf>,
    /// MCP servers for the agent, from a file with `mcpServers`; repeatable
    ///
    /// `${NAME}` in their environment is replaced by the variable of your shell. The value is stored only while the call runs.
    #[arg(long, value_name = "FILE")]
    pub mcp_config: Vec<PathBuf>,
    /// Command that verifies the work afterwards, such as `just test`
    ///
    /// It runs with `sh -c` in the same sandbox and directory, after the agent has reported success. The call is completed only if it exits with 0.
    #[arg(long, value_name = "COMMAND")]
    pub verify: Option<String>,
    /// Send a failed verification back to the agent, at most N times
    #[arg(long, value_name = "N", requires = "verify", default_value_t = 0, hide_default_value = true)]
    pub repair: u32,
    /// Restore changed files that match this glob before each verification; repeatable
    #[arg(long, value_name = "GLOB", requires = "verify")]
    pub verify_protect: Vec<String>,
    /// Fail if the agent reports success without changing a file
    #[arg(long)]
    pub expect_changes: bool,
    /// Sandbox policy: off, workspace, observe, restricted, sealed [default: workspace]
    #[arg(long, value_name = "POLICY", value_parser = one_of::<Preset>(&Preset::ALL.map(Preset::name)), hide_possible_values = true)]
    pub policy: Option<Preset>,
    /// Network access: full, none, or a comma-separated list of hosts [default: full]
    ///
    /// A list always includes the hosts of the agent's vendor.
    #[arg(long, value_name = "NETWORK")]
    pub network: Option<Network>,
    /// Load the workspace's hooks (including git hooks), MCP servers and settings
    #[arg(long)]
    pub trust_workspace: bool,
    /// Run even if the policy cannot be fully enforced, and report the gaps (default)
    #[arg(long, conflicts_with = "require")]
    pub best_effort: bool,
    /// Refuse to run unless the policy can be fully enforced
    ///
    /// Exception: without a cgroup the process limit does not apply to root, unless the configuration sets it.
    #[arg(long)]
    pub require: bool,
    /// Maximum number of model turns
    #[arg(long, value_name = "N", value_parser = parse_positive, allow_hyphen_values = true)]
    pub max_turns: Option<u32>,
    /// Total time limit, such as 90s, 10m or 1h [default: `limits.timeout`]
    #[arg(long, value_name = "TIME", value_parser = duration::parse, allow_hyphen_values = true)]
    pub timeout: Option<Duration>,
    /// Idle timeout: max time without output [default: `limits.idle`, else none]
    #[arg(long, value_name = "TIME", value_parser = duration::parse, allow_hyphen_values = true)]
    pub idle: Option<Duration>,
    /// Startup timeout: max time until the first output [default: `limits.start`]
    ///
    /// If neither is set, the idle timeout applies.
    #[arg(long, value_name = "TIME", value_parser = duration::parse, allow_hyphen_values = true)]
    pub start: Option<Duration>,
    /// Task name, for lists and --continue [default: the working directory]
    #[arg(long, value_name = "NAME")]
    pub task: Option<String>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Each agent works in a private checkout of the same files; nothing changes in your worktree until you run `switchboard keep ID`. \
                        --verify runs in each checkout.\n\
                        The judge sees the patches of the completed calls without the names of the agents, once in a shuffled order and once in the \
                        reversed order. Its verdict counts only if both agree.\n\
                        `status`, `wait`, `cancel` and `discard` accept the id of the group. Press Ctrl-C to cancel all its calls and wait for cleanup; \
                        press it again to stop waiting.\n\
                        Exit codes: 0 an agent completed the task, 7 still running, otherwise that of the first agent (see `switchboard call --help`). \
                        With --observe: that of the call that combines the answers."
)]
pub struct RaceArgs {
    /// Two to eight agents, separated by commas: claude,codex,codex:MODEL
    ///
    /// claude, codex, gemini or rehearsal, each with or without a model. An agent can occur several times.
    #[arg(long, value_name = "AGENTS", value_delimiter = ',', required = true, value_parser = parse_agent_choice)]
    pub with: Vec<AgentChoice>,
    /// Agent that compares the results, with or without a model
    ///
    /// With --observe it combines the answers; the default is then the first agent.
    #[arg(long, value_name = "AGENT", value_parser = parse_agent_choice)]
    pub judge: Option<AgentChoice>,
    /// Read-only: ask for independent answers, then combine them into one
    ///
    /// The combined answer starts with the disagreements.
    #[arg(long, conflicts_with_all = ["verify", "expect_changes"])]
    pub observe: bool,
    #[command(flatten)]
    pub options: CallOptions,
    /// Stop waiting after this long; the jobs keep running
    #[arg(long, value_name = "TIME", value_parser = duration::parse, allow_hyphen_values = true)]
    pub wait: Option<Duration>,
    /// Print the id of the group, and return immediately
    #[arg(long, conflicts_with = "wait")]
    pub background: bool,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Exit codes: 0 at least one of the agents is ready, 1 none is.")]
pub struct AgentList {
    /// Only this agent, whether it is installed or not
    #[arg(value_parser = AgentParser, hide_possible_values = true)]
    pub agent: Option<AgentKind>,
    /// Print the list as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 at least one of the agents is ready, 1 none is. With `--call`, that of the call."
)]
pub struct Checkup {
    /// Only this agent, whether it is installed or not
    #[arg(value_parser = AgentParser, hide_possible_values = true)]
    pub agent: Option<AgentKind>,
    /// Send the agent a harmless prompt as well, in an empty directory
    ///
    /// The agent runs with policy `observe` and without the daemon. The prompt asks for one word, and costs as many tokens as the agent sends for it.
    #[arg(long, requires = "agent", conflicts_with = "json")]
    pub call: bool,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ShowConfig {
    /// Print the configuration as JSON
    #[arg(long, conflicts_with = "reference")]
    pub json: bool,
    /// Print the reference of all keys, in Markdown
    #[arg(long)]
    pub reference: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Stops on Ctrl-C or SIGTERM. Running jobs continue and are recovered by the next daemon.\n\
                        Exit codes: 0 clean shutdown, 1 startup failed, 6 already running."
)]
pub struct Serve {
    /// Also serve MCP over HTTP on this address, such as 127.0.0.1:7878
    #[arg(long, value_name = "ADDRESS")]
    pub http: Option<String>,
    /// Run in the background; return once the daemon accepts connections
    #[arg(long)]
    pub background: bool,
    /// Run detached from the client that started the daemon and reads its stdout
    #[arg(long, hide = true, conflicts_with = "background")]
    pub detached: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes for a job: see `switchboard call --help`; for a group: see `switchboard race --help`; 2 no such job.\n\
                        Exit codes for the daemon: 0 running, 1 not running."
)]
pub struct Look {
    /// Id of a job or a group, or a unique prefix; omit to show the daemon
    pub id: Option<String>,
    /// Print the status as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ListJobs {
    /// Only jobs in this state; repeatable
    #[arg(long, value_name = "STATE", value_parser = state())]
    pub status: Vec<StateName>,
    /// Only jobs of this agent
    #[arg(long, value_parser = AgentParser, hide_possible_values = true)]
    pub agent: Option<AgentKind>,
    /// Only jobs submitted through this tool: `cli` or the name of an MCP tool
    #[arg(long)]
    pub tool: Option<String>,
    /// Only jobs of this task
    #[arg(long)]
    pub task: Option<String>,
    /// Maximum number of jobs to list
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub limit: u32,
    /// Refresh every second until Ctrl-C
    #[arg(long, conflicts_with = "json")]
    pub watch: bool,
    /// List the changes in private checkouts that are neither applied nor discarded
    #[arg(long, conflicts_with_all = ["status", "agent", "tool", "task", "limit", "watch"])]
    pub open_changes: bool,
    /// Print the list as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Ctrl-C stops following; the job keeps running.\n\
                        Exit codes: with -f that of the job, otherwise 0; 2 no such job.")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub struct Logs {
    /// Job id or unique prefix
    pub id: String,
    /// Follow the output until the job finishes
    #[arg(long, short)]
    pub follow: bool,
    /// Print the agent's raw stdout
    #[arg(long, conflicts_with = "error")]
    pub raw: bool,
    /// Print the agent's stderr
    #[arg(long)]
    pub error: bool,
    /// Print events as JSON lines; the last line is the result
    #[arg(long, conflicts_with_all = ["raw", "error"])]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 if all finished jobs completed, otherwise the exit code of the first that did not \
                        (see `switchboard call --help`; for a group, `switchboard race --help`); 7 timed out while jobs were running; \
                        2 no such job."
)]
pub struct Wait {
    /// Ids of jobs or groups, or unique prefixes
    #[arg(required = true)]
    pub ids: Vec<String>,
    /// Return as soon as one job has finished
    #[arg(long)]
    pub any: bool,
    /// Stop waiting after this long
    #[arg(long, value_name = "TIME", value_parser = duration::parse, allow_hyphen_values = true)]
    pub timeout: Option<Duration>,
    /// Print the results as a JSON array
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 all jobs are cancelled or being stopped, 2 a job does not exist or had already finished."
)]
pub struct Cancel {
    /// Ids of jobs or groups, or unique prefixes
    #[arg(required = true)]
    pub ids: Vec<String>,
    /// Print the result for each job as a line of JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Prints the id of the new job. Follow it with `switchboard logs -f ID`.")]
pub struct Retry {
    /// Job id or unique prefix
    pub id: String,
    /// Print the new job and its files as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Statistics {
    /// Only jobs submitted within this time, such as 7d or 24h
    #[arg(long, value_name = "TIME", value_parser = duration::parse, allow_hyphen_values = true)]
    pub since: Option<Duration>,
    /// Print the statistics as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "The link is valid once, for five minutes. Anyone who has it can view and cancel your jobs.\n\
                        Exit codes: 0 the link was printed, 1 the dashboard is not available."
)]
pub struct OpenPage {
    /// Print the link without starting a browser
    #[arg(long)]
    pub print: bool,
}

#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    disable_help_subcommand = true,
    after_help = "Modified files are backed up to `*.switchboard-backup`. The command is idempotent.\n\
                        Exit codes: 0 done, 1 the host's command failed, 2 not supported, 5 host not installed."
)]
pub struct Setup {
    #[command(subcommand)]
    pub other: Option<SetupOther>,
    /// Host to configure; `all` for every installed host
    #[arg(value_enum, required = true)]
    pub host: Option<HostChoice>,
    /// Configure the user's hosts, or only the project in the current directory
    #[arg(long, value_enum, default_value_t = Scope::User)]
    pub scope: Scope,
    /// Print the changes without applying them
    #[arg(long)]
    pub print: bool,
    /// Unregister the server
    #[arg(long)]
    pub remove: bool,
}

/// The targets of `setup` that are not hosts.
#[derive(Debug, Subcommand)]
pub enum SetupOther {
    /// Print a service file that starts the daemon at login
    Service(Service),
}

#[derive(Debug, Args)]
#[command(
    after_help = "Installs nothing: the first lines of the file say where to save it and how to start it. The file contains the \
                  path of this program and your PATH, which the daemon uses to find agents.\n\
                  A service is optional: commands and MCP hosts start the daemon when needed."
)]
pub struct Service {
    /// Print a systemd unit, for Linux (default)
    #[arg(long)]
    pub systemd: bool,
    /// Print a launchd property list, for macOS
    #[arg(long, conflicts_with = "systemd")]
    pub launchd: bool,
}

/// The host to configure.
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

/// The scope of a registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Scope {
    User,
    Project,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Requires the embedded store and a stopped daemon. Adds missing jobs to an intact database; moves a damaged \
                        one aside and never overwrites it. The next daemon adopts jobs that are still running.\n\
                        Exit codes: 0 every readable job is in the database, 1 the database could not be rebuilt, 2 the store is not \
                        the embedded one, 6 a daemon is running, 10 the state directory is not writable."
)]
pub struct Recover {
    /// Print the jobs that would be recovered, without changing anything
    #[arg(long)]
    pub dry_run: bool,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Completions {
    /// Shell to complete for
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub struct Man {
    /// Write a page for each command to this directory; created if missing
    #[arg(long, value_name = "DIRECTORY")]
    pub out: Option<PathBuf>,
}

/// Parses the name of an agent. Only the configuration knows which exist; shells complete the built-in ones.
#[derive(Debug, Clone, Copy)]
struct AgentParser;

impl TypedValueParser for AgentParser {
    type Value = AgentKind;

    fn parse_ref(
        &self,
        command: &clap::Command,
        _: Option<&Arg>,
        value: &OsStr,
    ) -> Result<AgentKind, clap::Error> {
        let text = value.to_string_lossy();
        let parsed = text.parse::<AgentKind>();
        parsed.map_err(|error| {
            let message = format!("{error}\n\n  tip: {}\n", error.hint());
            command.clone().error(ErrorKind::ValueValidation, message)
        })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let profiles = AgentProfiles::default();
        let names: Vec<String> = profiles.iter().map(|profile| profile.agent.name().to_owned()).collect();
        Some(Box::new(names.into_iter().map(PossibleValue::new)))
    }
}

/// Parses one of these words. Errors list them, and shells complete them.
fn one_of<T>(words: &[&'static str]) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err = BadName> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(words.iter().copied()).try_map(|word| word.parse())
}

/// Parses an agent with or without a model.
fn parse_agent_choice(text: &str) -> Result<AgentChoice, String> {
    let names = "claude, codex, gemini or rehearsal, with a model if wanted, such as codex:MODEL";
    match text.trim() {
        "" => Err(format!("an agent is missing beside a comma: {names}")),
        text if text.ends_with(':') => Err("the model after the colon is missing".to_owned()),
        text => text.parse().map_err(|error: BadName| format!("{error}: {names}")),
    }
}

/// Parses a number greater than zero.
fn parse_positive(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(0) => Err("must be greater than 0".to_owned()),
        Ok(number) => Ok(number),
        Err(_) => Err("must be a whole number greater than 0".to_owned()),
    }
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
#[command(after_help = "Queued jobs stay in the queue for the next daemon.")]
pub struct Stop {
    /// Exit immediately; running jobs continue and the next daemon adopts them
    #[arg(long, conflicts_with = "cancel")]
    pub now: bool,
    /// Cancel running jobs first
    #[arg(long)]
    pub cancel: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        CommandLine::command().debug_assert();
    }
}
