//! Builds the specification of a call from the arguments of `switchboard call` and `switchboard race`.

use std::collections::BTreeMap;
use std::env;
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};

use agents::doctor::{EscapingLink, Lookup};
use agents::{AgentProfile, LaunchError, PromptLimit, UnknownAgent};
use model::{AgentKind, CallPolicy, CallSpec, Limits, Mode, Preset, Requirement, SessionChoice, VerifySpec};
use protocol::ProcessEnvironment;

use crate::call_files::{self, CallFileError};
use crate::cli::{CallArgs, CallOptions, RaceArgs};
use crate::config::Config;
use crate::exit_status::ExitStatus;
use crate::failure::CommandError;
use crate::output;
use crate::view::OutputMode;

/// The variable of the setting `sandbox.ceiling`.
const CEILING_VARIABLE: &str = "SWITCHBOARD_SANDBOX_CEILING";

/// Builds the specification of a call. Reads the prompt from stdin if the arguments name none.
pub fn build(args: &CallArgs, config: &Config) -> Result<CallSpec, CallSpecError> {
    if let Some(policy) = args.options.policy.filter(|policy| args.observe && policy.contradicts_observe()) {
        return Err(CallSpecError::ObserveWrites { policy });
    }
    if args.worktree && args.direct {
        return Err(CallSpecError::DirectCheckout);
    }
    let call = build_shared(&args.options, args.agent, config)?;
    let session = match (&args.session, &args.fork, args.go_on) {
        (Some(id), _, _) => SessionChoice::Resume(id.clone()),
        (None, Some(id), _) => SessionChoice::Fork(id.clone()),
        (None, None, true) => SessionChoice::ContinueLatest,
        (None, None, false) => SessionChoice::New,
    };
    let output_schema = args.schema.as_deref().map(call_files::read_schema).transpose()?;
    let worktree = match (args.worktree, args.no_worktree) {
        (false, false) => configured_worktree(args, config, &call.cwd, &session),
        (worktree, _) => Some(worktree),
    };
    Ok(CallSpec {
        worktree,
        model: args.model.clone(),
        effort: args.effort.clone(),
        output_schema,
        session,
        mode: if args.observe { Mode::Observe } else { Mode::Execute },
        watched: !args.background && OutputMode::from_args(args).is_watched(),
        ..call
    })
}

/// Builds the call that all agents of a race get. `agent` is one of them.
pub fn build_race(args: &RaceArgs, agent: AgentKind, config: &Config) -> Result<CallSpec, CallSpecError> {
    if let Some(policy) = args.options.policy.filter(|policy| args.observe && policy.contradicts_observe()) {
        return Err(CallSpecError::ObserveWrites { policy });
    }
    build_shared(&args.options, agent, config)
}

/// Builds a call from the options that do not depend on the agent.
fn build_shared(options: &CallOptions, agent: AgentKind, config: &Config) -> Result<CallSpec, CallSpecError> {
    let profile = config.profiles.require(agent)?;
    let cwd = resolve_directory("--cwd", &options.cwd)?;
    let add_dirs = options.add_dir.iter().map(|directory| resolve_directory("--add-dir", directory));
    let add_dirs = add_dirs.collect::<Result<_, _>>()?;
    let call = CallSpec {
        add_dirs,
        images: call_files::find_images(&options.image)?,
        mcp_servers: call_files::read_servers(&options.mcp_config)?,
        verify: options.verify.as_ref().map(|command| VerifySpec {
            command: command.clone(),
            repairs: options.repair,
            protect: options.verify_protect.clone(),
        }),
        expect_changes: options.expect_changes,
        max_turns: options.max_turns,
        policy: policy(options, config),
        limits: Limits {
            wall: Some(options.timeout.unwrap_or(config.limits.timeout)),
            idle: options.idle.or(config.limits.idle),
            start: options.start.or(config.limits.start),
            ..Limits::default()
        },
        ..CallSpec::new(agent, read_prompt(options.prompt.as_deref(), profile)?, cwd)
    };
    let trusted = options.trust_workspace || config.sandbox.trust_workspaces;
    Ok(if trusted { call.with_trusted_workspace() } else { call })
}

/// Returns the variables of this shell that MCP servers of a call refer to.
pub fn server_variables(call: &CallSpec, environment: &ProcessEnvironment) -> BTreeMap<String, String> {
    let values = environment.utf8_variables();
    let named = agents::named_variables(call).into_iter();
    named.filter_map(|name| values.get(&name).cloned().map(|value| (name, value))).collect()
}

/// Applies the ceiling of the environment. The daemon applies that of the configuration file, and does not see a variable of this shell.
pub fn apply_ceiling(call: &mut CallSpec, environment: &ProcessEnvironment, config: &Config) {
    if environment.get(CEILING_VARIABLE).is_none() {
        return;
    }
    let requested = call.requested_preset();
    call.policy = call.policy.within(&config.sandbox.ceiling);
    if let Some(note) = calls::ceiling_note(requested, call.requested_preset().name()) {
        output::aside(&format!("note: {note}"));
    }
}

/// Rejects a `--cwd` or `--add-dir` behind a link that an agent may have planted. The daemon receives resolved paths, so it cannot check
/// them.
pub fn check_links(
    options: &CallOptions,
    lookup: &Lookup,
    environment: &ProcessEnvironment,
) -> Result<(), EscapingLink> {
    let mut directories = [&options.cwd].into_iter().chain(&options.add_dir);
    directories.try_for_each(|directory| lookup.check_links(&unresolved(directory, environment)))
}

/// Returns an absolute path with its links. The kernel resolves the links of the current directory; a shell keeps them in `PWD`.
fn unresolved(directory: &Path, environment: &ProcessEnvironment) -> PathBuf {
    let current = env::current_dir().unwrap_or_default();
    let is_current = |path: &PathBuf| path.canonicalize().is_ok_and(|real| real == current);
    environment.directory("PWD").filter(is_current).unwrap_or(current).join(directory)
}

/// Returns the choice of the configuration for the repository around a directory. The daemon may have started before it was made.
fn configured_worktree(
    args: &CallArgs,
    config: &Config,
    cwd: &Path,
    session: &SessionChoice,
) -> Option<bool> {
    let may_have_one = !args.direct && !args.observe && *session == SessionChoice::New;
    let repository = config.repository_around(cwd).filter(|_| may_have_one)?;
    (repository.worktree && policy(&args.options, config).preset.writes()).then_some(true)
}

/// Resolves a directory that an option names.
fn resolve_directory(option: &'static str, directory: &Path) -> Result<PathBuf, CallSpecError> {
    let real = directory.canonicalize();
    let real =
        real.map_err(|source| CallSpecError::Directory { option, directory: directory.to_owned(), source })?;
    // The request to the daemon is JSON.
    if real.to_str().is_none() {
        return Err(LaunchError::NotUnicode { directory: real }.into());
    }
    Ok(real)
}

/// Returns the policy of the arguments, completed by the configuration.
fn policy(options: &CallOptions, config: &Config) -> CallPolicy {
    let default = config.sandbox.policy.clone();
    let requirement = match (options.require, options.best_effort) {
        (true, _) => Requirement::Require,
        (false, true) => Requirement::BestEffort,
        (false, false) => default.requirement,
    };
    CallPolicy {
        preset: options.policy.unwrap_or(default.preset),
        network: options.network.clone().unwrap_or(default.network),
        requirement,
        ..default
    }
}

fn read_prompt(prompt: Option<&str>, profile: &AgentProfile) -> Result<String, CallSpecError> {
    match prompt {
        None | Some("-") => {
            if io::stdin().is_terminal() {
                output::aside(
                    "reading the prompt from the terminal; press Ctrl-D on an empty line to send it",
                );
            }
            let mut bytes = Vec::new();
            let limit = agents::MAX_PROMPT_BYTES as u64 + 1;
            // Stdin may be endless, so the real size of an oversized prompt stays unknown.
            io::stdin().lock().take(limit).read_to_end(&mut bytes).map_err(CallSpecError::Prompt)?;
            if bytes.len() > agents::MAX_PROMPT_BYTES {
                return Err(CallSpecError::PromptTooLong {
                    agent: profile.agent,
                    limit: profile.prompt_limit,
                });
            }
            String::from_utf8(bytes).map_err(|_| CallSpecError::PromptNotUtf8)
        }
        Some(text) => Ok(text.to_owned()),
    }
}

/// The arguments do not specify a valid call.
#[derive(Debug, thiserror::Error)]
pub enum CallSpecError {
    #[error("cannot read the prompt from stdin")]
    Prompt(#[source] io::Error),
    #[error("the prompt is not valid UTF-8")]
    PromptNotUtf8,
    #[error("the prompt has more than {} bytes, and {agent} takes {limit}", agents::MAX_PROMPT_BYTES)]
    PromptTooLong { agent: AgentKind, limit: PromptLimit },
    #[error(transparent)]
    UnknownAgent(#[from] UnknownAgent),
    #[error("cannot use directory `{}`", directory.display())]
    Directory { option: &'static str, directory: PathBuf, source: io::Error },
    #[error("`--observe` conflicts with `--policy {policy}`, which lets the agent write")]
    ObserveWrites { policy: Preset },
    #[error("`--direct` has no daemon that keeps a private checkout, so it conflicts with `--worktree`")]
    DirectCheckout,
    #[error(transparent)]
    File(#[from] CallFileError),
    #[error(transparent)]
    Launch(#[from] LaunchError),
}

impl CommandError for CallSpecError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Prompt(_) => return None,
            Self::PromptNotUtf8 => "convert it to UTF-8, for example with `iconv`".to_owned(),
            Self::UnknownAgent(error) => error.hint(),
            Self::PromptTooLong { .. } => {
                "put the long part into a file in the working directory and refer to it in the prompt"
                    .to_owned()
            }
            Self::Directory { option, .. } => format!("pass an existing directory with `{option}`"),
            Self::ObserveWrites { .. } => {
                "omit one of them, or use `--policy observe` or `--policy sealed`".to_owned()
            }
            Self::DirectCheckout => {
                "omit `--direct`, or create a worktree with `git worktree add` and pass it with `--cwd`"
                    .to_owned()
            }
            Self::File(error) => return error.hint(),
            Self::Launch(error) => error.hint(),
        })
    }

    fn exit_status(&self) -> ExitStatus {
        match self {
            Self::Directory { .. } => ExitStatus::BadDirectory,
            Self::File(error) => error.exit_status(),
            Self::Launch(error) => error.exit_status(),
            Self::Prompt(_)
            | Self::PromptNotUtf8
            | Self::PromptTooLong { .. }
            | Self::UnknownAgent(_)
            | Self::ObserveWrites { .. }
            | Self::DirectCheckout => ExitStatus::BadInput,
        }
    }
}
