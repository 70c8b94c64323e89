//! `switchboard setup`: registers the MCP server with a host, in the host's own configuration; prints the daemon as a service.
//!
//! Where a host has a command for that, the command is asked; elsewhere its file is edited (see `json`). Everything that somebody
//! else has written stays as it is, and a copy of the file is kept beside it. A file that cannot be understood is left alone.

mod host;
mod json;
mod service;

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use crate::cli::{Scope, Setup, SetupOther};
use protocol::ProcessEnvironment;

use crate::exit_status::ExitStatus;
use crate::failure::{CommandError, CommandFailure};
use crate::output;
use host::{Change, Host, Means};

/// The name under which the server is registered.
const NAME: &str = "switchboard";

/// Sets a host up, or every host that is here, or says how the daemon becomes a service.
pub fn run(args: &Setup) -> Result<ExitCode, CommandFailure> {
    if let Some(SetupOther::Service(args)) = &args.other {
        return service::print(args);
    }
    let environment = ProcessEnvironment::current();
    let bench = Bench {
        home: environment.directory("HOME").ok_or(SetupError::NoHome)?,
        folder: env::current_dir().map_err(SetupError::Folder)?,
        program: env::current_exe().map_err(SetupError::Folder)?,
        environment,
        scope: args.scope,
        remove: args.remove,
        print: args.print,
    };
    let Some(host) = args.host.and_then(Host::of) else { return all(&bench) };
    bench.set_up(host)?;
    Ok(ExitCode::SUCCESS)
}

/// One that fails does not keep the others from it.
fn all(bench: &Bench) -> Result<ExitCode, CommandFailure> {
    let (mut found, mut failed) = (false, None);
    for host in Host::ALL {
        if !bench.is_here(host) || host.file(bench).is_none() {
            output::line(&format!("{}: not here, passed over", host.name()));
            continue;
        }
        found = true;
        if let Err(error) = bench.set_up(host) {
            output::error(&error, error.hint().as_deref());
            failed = Some(error.exit_status().into());
        }
    }
    if found { Ok(failed.unwrap_or(ExitCode::SUCCESS)) } else { Err(SetupError::NoHost.into()) }
}

/// Everything that a host is set up with.
pub(crate) struct Bench {
    environment: ProcessEnvironment,
    home: PathBuf,
    folder: PathBuf,
    program: PathBuf,
    scope: Scope,
    remove: bool,
    print: bool,
}

impl Bench {
    fn set_up(&self, host: Host) -> Result<(), SetupError> {
        let file = host.file(self).ok_or(SetupError::NoSuchScope { host: host.name() })?;
        let text = match fs::read_to_string(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            text => text.map_err(|source| SetupError::Read { file: file.clone(), source })?,
        };
        let change = host.change(self, &file, &text)?;
        match &change {
            Change::None if self.remove => output::line(&format!("{}: it is not registered", host.name())),
            Change::None => {
                output::line(&format!("{}: registered already in {}", host.name(), file.display()));
            }
            _ if self.print => self.show(host, &file, &change),
            Change::Run(commands) => {
                let program = self.program_of(host).ok_or(SetupError::NotHere { host: host.name() })?;
                keep_copy(&file)?;
                for arguments in commands {
                    Self::ask(host, &program, arguments)?;
                }
                self.finish(host, &file)?;
                self.tell(host, &file);
            }
            Change::Write(text) if self.remove && is_ours(&file, text) => {
                let cannot = |source| SetupError::Write { file: file.clone(), source };
                fs::remove_file(&file).map_err(cannot)?;
                self.tell(host, &file);
            }
            Change::Write(text) => {
                keep_copy(&file)?;
                replace(&file, text)?;
                self.tell(host, &file);
            }
        }
        Ok(())
    }

    fn show(&self, host: Host, file: &Path, change: &Change) {
        match change {
            Change::None => {}
            Change::Run(commands) => {
                for arguments in commands {
                    output::line(&format!("{} {}", host.name(), arguments.join(" ")));
                }
                if let Some(then) = host.then(self) {
                    output::line(&format!("# then in {}: {then}", file.display()));
                }
            }
            Change::Write(text) => output::line(&format!("# {}\n{}", file.display(), text.trim_end())),
        }
    }

    fn tell(&self, host: Host, file: &Path) {
        let done = if self.remove { "taken out of" } else { "registered in" };
        output::line(&format!("{}: {done} {}", host.name(), file.display()));
    }

    /// What the host's own command has no flag for.
    fn finish(&self, host: Host, file: &Path) -> Result<(), SetupError> {
        if self.remove {
            return Ok(());
        }
        let read = |source| SetupError::Read { file: file.to_owned(), source };
        let text = fs::read_to_string(file).map_err(read)?;
        match host.finished(&text).map_err(|why| SetupError::NotUnderstood { file: file.to_owned(), why })? {
            Some(text) => replace(file, &text),
            None => Ok(()),
        }
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the one place where a host's own command is run, as the user would"
    )]
    fn ask(host: Host, program: &Path, arguments: &[String]) -> Result<(), SetupError> {
        let failed =
            |said: String| SetupError::HostFailed { host: host.name(), arguments: arguments.join(" "), said };
        let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
        let output = output.map_err(|error| failed(error.to_string()))?;
        if output.status.success() {
            return Ok(());
        }
        let said = [&output.stderr[..], &output.stdout[..]]
            .map(|bytes| String::from_utf8_lossy(bytes).trim().to_owned());
        Err(failed(said.join(" ").trim().to_owned()))
    }

    /// Whether there is such a host.
    fn is_here(&self, host: Host) -> bool {
        match host.means() {
            Means::OwnCommand => self.program_of(host).is_some(),
            Means::File => host.folder(self).is_dir(),
        }
    }

    fn program_of(&self, host: Host) -> Option<PathBuf> {
        let path = self.environment.get("PATH")?;
        env::split_paths(path).map(|folder| folder.join(host.name())).find(|program| program.is_file())
    }
}

/// Returns whether a file that has nothing left in it was created by an earlier setup: there was nothing to copy then.
fn is_ours(file: &Path, left: &str) -> bool {
    json::is_blank(left) && !backup(file).exists() && !file.is_symlink()
}

fn backup(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".switchboard-backup");
    PathBuf::from(name)
}

/// Copies a file that is going to be changed. The first copy is the one that counts: it is as the user had it.
fn keep_copy(file: &Path) -> Result<(), SetupError> {
    let copy = backup(file);
    if copy.exists() || !file.exists() {
        return Ok(());
    }
    fs::copy(file, &copy).map(drop).map_err(|source| SetupError::Write { file: copy, source })
}

/// Replaces a file as a whole, through a link when it is one, with the rights it had.
fn replace(file: &Path, text: &str) -> Result<(), SetupError> {
    let cannot = |source| SetupError::Write { file: file.to_owned(), source };
    let target = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    if let Some(folder) = target.parent() {
        fs::create_dir_all(folder).map_err(cannot)?;
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

/// Why a host was not set up.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    #[error("HOME is not set")]
    NoHome,
    #[error("cannot tell where this program or the current folder is")]
    Folder(#[source] io::Error),
    #[error("no service can start `{}`: its path has quotes, backslashes or what is no text", path.display())]
    OddPath { path: PathBuf },
    #[error("no host is here")]
    NoHost,
    #[error("{host} is not in PATH")]
    NotHere { host: &'static str },
    #[error("{host} has no configuration of a project")]
    NoSuchScope { host: &'static str },
    #[error("cannot read `{}`", file.display())]
    Read { file: PathBuf, source: io::Error },
    #[error("cannot write `{}`", file.display())]
    Write { file: PathBuf, source: io::Error },
    #[error("`{}` is not understood, and was left as it is: {why}", file.display())]
    NotUnderstood { file: PathBuf, why: String },
    #[error("`{host} {arguments}` failed: {said}")]
    HostFailed { host: &'static str, arguments: String, said: String },
}

impl CommandError for SetupError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NoHome => "set HOME to your home folder".to_owned(),
            Self::Folder(_) => "go to a folder that exists".to_owned(),
            Self::OddPath { .. } => "install Switchboard in a folder with a plain name".to_owned(),
            Self::NoHost => "install a host, or name the one you mean: `switchboard setup cursor`".to_owned(),
            Self::NotHere { .. } => {
                "install it, or add its folder to PATH; `--print` shows what would be done".to_owned()
            }
            Self::NoSuchScope { .. } => "leave `--scope project` out".to_owned(),
            Self::Read { .. } | Self::Write { .. } => {
                "check that it belongs to you and that the disk has room".to_owned()
            }
            Self::NotUnderstood { .. } => {
                "mend the file, or add what `--print` shows on an empty one by hand".to_owned()
            }
            Self::HostFailed { .. } => {
                "run that command yourself to see more; the copy with `.switchboard-backup` is as it was"
                    .to_owned()
            }
        })
    }

    fn exit_status(&self) -> ExitStatus {
        match self {
            Self::NoHome | Self::OddPath { .. } | Self::NoSuchScope { .. } | Self::NotUnderstood { .. } => {
                ExitStatus::BadInput
            }
            Self::NoHost | Self::NotHere { .. } => ExitStatus::NotInstalled,
            _ => ExitStatus::Failed,
        }
    }
}
