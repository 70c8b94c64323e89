//! `switchboard setup`: registers the MCP server with a host, and prints service files for the daemon.
//!
//! Uses the host's own command if it has one, and edits its configuration file otherwise (see `json`). Foreign content is preserved, and
//! a backup is kept beside the file. A file that cannot be parsed is not changed.

mod host;
mod json;
mod service;

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use agents::doctor::{Lookup, ProgramInWorkspace};
use protocol::ProcessEnvironment;
use regular_file::open_linked;

use crate::cli::{Scope, Setup, SetupOther};
use crate::exit_status::ExitStatus;
use crate::failure::{CommandError, CommandFailure};
use crate::{machine, output};
use host::{HostChange, McpHost, RegistrationMethod};

/// The name of the registered server.
const NAME: &str = "switchboard";

/// Configures one host or all installed hosts, or prints a service file.
pub fn run(args: &Setup) -> Result<ExitCode, CommandFailure> {
    if let Some(SetupOther::Service(args)) = &args.other {
        return service::print(args);
    }
    let environment = ProcessEnvironment::current();
    let installer = HostInstaller {
        home: environment.directory("HOME").ok_or(SetupError::NoHome)?,
        directory: env::current_dir().map_err(SetupError::CurrentPaths)?,
        program: env::current_exe().map_err(SetupError::CurrentPaths)?,
        lookup: machine::program_lookup(&environment),
        environment,
        scope: args.scope,
        remove: args.remove,
        print: args.print,
    };
    let Some(host) = args.host.and_then(McpHost::from_choice) else { return set_up_all(&installer) };
    installer.set_up(host)?;
    Ok(ExitCode::SUCCESS)
}

/// Configures all installed hosts. A failure does not affect the others.
fn set_up_all(installer: &HostInstaller) -> Result<ExitCode, CommandFailure> {
    let (mut found, mut failed) = (false, None);
    for host in McpHost::ALL {
        if !installer.is_installed(host) || host.file(installer).is_none() {
            output::line(&format!("{}: not installed, skipped", host.name()));
            continue;
        }
        found = true;
        if let Err(error) = installer.set_up(host) {
            output::error(&error, error.hint().as_deref());
            failed = Some(error.exit_status().into());
        }
    }
    if found { Ok(failed.unwrap_or(ExitCode::SUCCESS)) } else { Err(SetupError::NoHost.into()) }
}

/// Configures hosts with the options of the command.
pub(crate) struct HostInstaller {
    environment: ProcessEnvironment,
    lookup: Lookup,
    home: PathBuf,
    directory: PathBuf,
    program: PathBuf,
    scope: Scope,
    remove: bool,
    print: bool,
}

impl HostInstaller {
    fn set_up(&self, host: McpHost) -> Result<(), SetupError> {
        let file = host.file(self).ok_or(SetupError::NoSuchScope { host: host.name() })?;
        let text = match open_linked(&file).and_then(io::read_to_string) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            text => text.map_err(|source| SetupError::Read { file: file.clone(), source })?,
        };
        let change = host.plan_change(self, &file, &text)?;
        match &change {
            HostChange::None if self.remove => output::line(&format!("{}: not registered", host.name())),
            HostChange::None => {
                output::line(&format!("{}: already registered in {}", host.name(), file.display()));
            }
            _ if self.print => self.print_change(host, &file, &change),
            HostChange::Run(commands) => {
                let program =
                    self.find_program(host)?.ok_or(SetupError::NotInstalled { host: host.name() })?;
                create_backup(&file)?;
                for arguments in commands {
                    self.run_host_command(host, &program, arguments)?;
                }
                self.complete_file(host, &file)?;
                self.print_done(host, &file);
            }
            HostChange::Write(text) if self.remove && was_created_by_setup(&file, text) => {
                let cannot = |source| SetupError::Write { file: file.clone(), source };
                fs::remove_file(&file).map_err(cannot)?;
                self.print_done(host, &file);
            }
            HostChange::Write(text) => {
                create_backup(&file)?;
                replace(&file, text)?;
                self.print_done(host, &file);
            }
        }
        Ok(())
    }

    fn print_change(&self, host: McpHost, file: &Path, change: &HostChange) {
        match change {
            HostChange::None => {}
            HostChange::Run(commands) => {
                for arguments in commands {
                    output::line(&format!("{} {}", host.name(), arguments.join(" ")));
                }
                if let Some(completion) = host.describe_completion(self) {
                    output::line(&format!("# then in {}: {completion}", file.display()));
                }
            }
            HostChange::Write(text) => output::line(&format!("# {}\n{}", file.display(), text.trim_end())),
        }
    }

    fn print_done(&self, host: McpHost, file: &Path) {
        let done = if self.remove { "removed from" } else { "registered in" };
        output::line(&format!("{}: {done} {}", host.name(), file.display()));
    }

    /// Adds the settings that the host's own command has no flag for.
    fn complete_file(&self, host: McpHost, file: &Path) -> Result<(), SetupError> {
        if self.remove {
            return Ok(());
        }
        let read = |source| SetupError::Read { file: file.to_owned(), source };
        let text = open_linked(file).and_then(io::read_to_string).map_err(read)?;
        match host
            .complete_file(&text)
            .map_err(|why| SetupError::NotUnderstood { file: file.to_owned(), why })?
        {
            Some(text) => replace(file, &text),
            None => Ok(()),
        }
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the only place that runs a host's own command, as the user would"
    )]
    fn run_host_command(
        &self,
        host: McpHost,
        program: &Path,
        arguments: &[String],
    ) -> Result<(), SetupError> {
        let failed =
            |said: String| SetupError::HostFailed { host: host.name(), arguments: arguments.join(" "), said };
        let mut command = Command::new(program);
        command.args(arguments).env("PATH", self.lookup.path_outside()).stdin(Stdio::null());
        let output = command.output().map_err(|error| failed(error.to_string()))?;
        if output.status.success() {
            return Ok(());
        }
        let said = [&output.stderr[..], &output.stdout[..]]
            .map(|bytes| String::from_utf8_lossy(bytes).trim().to_owned());
        Err(failed(said.join(" ").trim().to_owned()))
    }

    /// Returns whether a host is installed.
    fn is_installed(&self, host: McpHost) -> bool {
        match host.method() {
            RegistrationMethod::OwnCommand => !matches!(self.find_program(host), Ok(None)),
            RegistrationMethod::File => host.config_directory(self).is_dir(),
        }
    }

    fn find_program(&self, host: McpHost) -> Result<Option<PathBuf>, ProgramInWorkspace> {
        self.lookup.find_outside(host.name())
    }
}

/// Returns whether an empty file was created by an earlier setup, which then had nothing to back up.
fn was_created_by_setup(file: &Path, left: &str) -> bool {
    json::is_blank(left) && !backup_path(file).exists() && !file.is_symlink()
}

fn backup_path(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".switchboard-backup");
    PathBuf::from(name)
}

/// Backs up a file before a change. The first backup is kept: it has the user's original content.
fn create_backup(file: &Path) -> Result<(), SetupError> {
    let copy = backup_path(file);
    if copy.exists() || !file.exists() {
        return Ok(());
    }
    fs::copy(file, &copy).map(drop).map_err(|source| SetupError::Write { file: copy, source })
}

/// Replaces a file atomically, following a symbolic link, and keeps its permissions.
fn replace(file: &Path, text: &str) -> Result<(), SetupError> {
    let cannot = |source| SetupError::Write { file: file.to_owned(), source };
    let target = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    if let Some(directory) = target.parent() {
        fs::create_dir_all(directory).map_err(cannot)?;
    }
    let mut name = target.as_os_str().to_owned();
    name.push(".switchboard-new");
    let new = PathBuf::from(name);
    fs::write(&new, text).map_err(cannot)?;
    if let Ok(found) = target.metadata() {
        fs::set_permissions(&new, found.permissions()).map_err(cannot)?;
    }
    fs::rename(&new, &target).map_err(cannot)
}

/// A host was not configured.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    #[error("HOME is not set")]
    NoHome,
    #[error("cannot determine the path of this program or the current directory")]
    CurrentPaths(#[source] io::Error),
    #[error("a service cannot start `{}`: the path contains quotes, backslashes or invalid UTF-8", path.display())]
    UnsupportedPath { path: PathBuf },
    #[error("no MCP host is installed")]
    NoHost,
    #[error("{host} is not in PATH")]
    NotInstalled { host: &'static str },
    #[error(transparent)]
    InWorkspace(#[from] ProgramInWorkspace),
    #[error("{host} has no project configuration")]
    NoSuchScope { host: &'static str },
    #[error("cannot read `{}`", file.display())]
    Read { file: PathBuf, source: io::Error },
    #[error("cannot write `{}`", file.display())]
    Write { file: PathBuf, source: io::Error },
    #[error("cannot parse `{}`, which was not changed: {why}", file.display())]
    NotUnderstood { file: PathBuf, why: String },
    #[error("`{host} {arguments}` failed: {said}")]
    HostFailed { host: &'static str, arguments: String, said: String },
}

impl CommandError for SetupError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NoHome => "set HOME to your home directory".to_owned(),
            Self::CurrentPaths(_) => "change to an existing directory".to_owned(),
            Self::UnsupportedPath { .. } => "install Switchboard in a directory with a plain name".to_owned(),
            Self::NoHost => "install one, or name it explicitly: `switchboard setup cursor`".to_owned(),
            Self::NotInstalled { .. } => {
                "install it, or add its directory to PATH; `--print` shows the changes".to_owned()
            }
            Self::InWorkspace(_) => {
                "install it elsewhere, or run the command that `--print` shows yourself".to_owned()
            }
            Self::NoSuchScope { .. } => "omit `--scope project`".to_owned(),
            Self::Read { .. } | Self::Write { .. } => {
                "check that you own it and that the disk has free space".to_owned()
            }
            Self::NotUnderstood { .. } => {
                "fix the file, or add the entry by hand".to_owned()
            }
            Self::HostFailed { .. } => {
                "run that command yourself to see more; the file with `.switchboard-backup` has the original content"
                    .to_owned()
            }
        })
    }

    fn exit_status(&self) -> ExitStatus {
        match self {
            Self::NoHome
            | Self::UnsupportedPath { .. }
            | Self::NoSuchScope { .. }
            | Self::NotUnderstood { .. } => ExitStatus::BadInput,
            Self::NoHost | Self::NotInstalled { .. } | Self::InWorkspace(_) => ExitStatus::NotInstalled,
            _ => ExitStatus::Failed,
        }
    }
}
