//! Builds the specification of a call from the arguments of `switchboard call`.

use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};

use agents::{LaunchError, PromptLimit};
use model::{AgentKind, CallPolicy, CallSpec, Limits, Mode, Preset, Requirement, SessionChoice, VerifySpec};

use crate::cli::CallArgs;
use crate::config::Config;
use crate::exit_status::ExitStatus;
use crate::failure::CommandError;
use crate::output;
use crate::view::OutputMode;

/// Builds the specification. Reads the prompt from stdin if the arguments name none.
pub fn build(args: &CallArgs, config: &Config) -> Result<CallSpec, CallSpecError> {
    let cwd = resolve_directory("--cwd", &args.cwd)?;
    let add_dirs = args.add_dir.iter().map(|directory| resolve_directory("--add-dir", directory));
    let add_dirs = add_dirs.collect::<Result<_, _>>()?;
    if let Some(policy) = args.policy.filter(|policy| args.observe && policy.contradicts_observe()) {
        return Err(CallSpecError::ObserveWrites { policy });
    }
    if args.worktree && args.direct {
        return Err(CallSpecError::DirectCheckout);
    }
    let session = match (&args.session, args.go_on) {
        (Some(id), _) => SessionChoice::Resume(id.clone()),
        (None, true) => SessionChoice::ContinueLatest,
        (None, false) => SessionChoice::New,
    };
    let worktree = match (args.worktree, args.no_worktree) {
        (false, false) => configured_worktree(args, config, &cwd, &session),
        (worktree, _) => Some(worktree),
    };
    let call = CallSpec {
        add_dirs,
        worktree,
        verify: args.verify.as_ref().map(|command| VerifySpec {
            command: command.clone(),
            repairs: args.repair,
            protect: args.verify_protect.clone(),
        }),
        expect_changes: args.expect_changes,
        model: args.model.clone(),
        session,
        mode: if args.observe { Mode::Observe } else { Mode::Execute },
        max_turns: args.max_turns,
        watched: !args.background && OutputMode::from_args(args).is_watched(),
        policy: policy(args, config),
        limits: Limits {
            wall: Some(args.timeout.unwrap_or(config.limits.timeout)),
            idle: args.idle.or(config.limits.idle),
            start: args.start.or(config.limits.start),
            ..Limits::default()
        },
        ..CallSpec::new(args.agent, read_prompt(args)?, cwd)
    };
    let trusted = args.trust_workspace || config.sandbox.trust_workspaces;
    Ok(if trusted { call.with_trusted_workspace() } else { call })
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
    (repository.worktree && policy(args, config).preset.writes()).then_some(true)
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
fn policy(args: &CallArgs, config: &Config) -> CallPolicy {
    let default = config.sandbox.policy.clone();
    let requirement = match (args.require, args.best_effort) {
        (true, _) => Requirement::Require,
        (false, true) => Requirement::BestEffort,
        (false, false) => default.requirement,
    };
    CallPolicy {
        preset: args.policy.unwrap_or(default.preset),
        network: args.network.clone().unwrap_or(default.network),
        requirement,
        ..default
    }
}

fn read_prompt(args: &CallArgs) -> Result<String, CallSpecError> {
    match args.prompt.as_deref() {
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
                return Err(CallSpecError::PromptTooLong { agent: args.agent });
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
    #[error("the prompt has more than {} bytes, and {agent} takes {}", agents::MAX_PROMPT_BYTES, PromptLimit::for_agent(*agent))]
    PromptTooLong { agent: AgentKind },
    #[error("cannot use directory `{}`", directory.display())]
    Directory { option: &'static str, directory: PathBuf, source: io::Error },
    #[error("`--observe` conflicts with `--policy {policy}`, which lets the agent write")]
    ObserveWrites { policy: Preset },
    #[error("`--direct` has no daemon that keeps a private checkout, so it conflicts with `--worktree`")]
    DirectCheckout,
    #[error(transparent)]
    Launch(#[from] LaunchError),
}

impl CommandError for CallSpecError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Prompt(_) => return None,
            Self::PromptNotUtf8 => "convert it to UTF-8, for example with `iconv`".to_owned(),
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
            Self::Launch(error) => error.hint(),
        })
    }

    fn exit_status(&self) -> ExitStatus {
        match self {
            Self::Directory { .. } => ExitStatus::BadDirectory,
            Self::Launch(error) => error.exit_status(),
            Self::Prompt(_)
            | Self::PromptNotUtf8
            | Self::PromptTooLong { .. }
            | Self::ObserveWrites { .. }
            | Self::DirectCheckout => ExitStatus::BadInput,
        }
    }
}
