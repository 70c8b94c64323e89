//! `switchboard recover`: rebuilds the database from the job directories.
//!
//! Holds the lock of the state directory meanwhile and prints the report; `calls` rebuilds the database.

use std::process::ExitCode;

use calls::{CallError, RecoveryReport, SettingError, StoreOptions, recover_store};

use protocol::{ErrorReply, ProcessEnvironment, SwitchboardHome};

use crate::config::Config;
use crate::daemon::{self, DaemonError};
use crate::exit_status::ExitStatus;
use crate::failure::{CommandError, CommandFailure};
use crate::{cli, output};

/// Rebuilds the database and prints the recovered jobs.
pub fn run(args: &cli::Recover) -> Result<ExitCode, CommandFailure> {
    let environment = ProcessEnvironment::current();
    let home = SwitchboardHome::from_environment(&environment)?;
    let config = Config::read(Some(&home), &environment, &[])?;
    let opening = opening(&home, &config).map_err(RecoverCommandError::Setting)?;
    home.create()?;
    let _lock = daemon::acquire_lock(&home).map_err(RecoverCommandError::Locked)?;
    let report = recover_store(home.state(), &opening, args.dry_run).map_err(RecoverCommandError::Calls)?;
    if args.json {
        output::line(&serde_json::to_string_pretty(&report)?);
    } else {
        print(&report, args.dry_run);
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the error that keeps the next daemon from starting: a lost or damaged database.
pub fn store_problem(home: &SwitchboardHome, config: &Config) -> Option<ErrorReply> {
    let opening = opening(home, config).ok()?;
    let error = match calls::find_lost_jobs(home.state(), &opening) {
        Ok(None) => return None,
        Ok(Some(lost)) => CallError::JobsLost { directory: home.state().to_owned(), lost },
        Err(error) => CallError::Store(error),
    };
    Some(ErrorReply { message: error.to_string(), hint: error.hint() })
}

fn opening(home: &SwitchboardHome, config: &Config) -> Result<StoreOptions, SettingError> {
    Ok(StoreOptions::new(config.store.parse()?, home.database()))
}

fn format_jobs(count: u64) -> String {
    render::text::format_count(u32::try_from(count).unwrap_or(u32::MAX), "job", "jobs")
}

fn print(report: &RecoveryReport, dry_run: bool) {
    let RecoveryReport { restored, ended, running, waiting, unchanged, direct_runs, skipped, .. } = report;
    let verb = if dry_run { "would recover" } else { "recovered" };
    output::line(&format!(
        "{verb} {}: {ended} finished, {running} running, {waiting} waiting",
        format_jobs(*restored)
    ));
    output::line(&format!("database: {}", report.database.display()));
    if *unchanged > 0 {
        output::line(&format!("unchanged: {}", format_jobs(*unchanged)));
    }
    if let Some(aside) = &report.set_aside {
        output::line(&format!("old database: {}", aside.display()));
    }
    if *direct_runs > 0 {
        let directories = if *direct_runs == 1 { "directory" } else { "directories" };
        output::line(&format!("not jobs: {direct_runs} {directories} of `switchboard call --direct`"));
    }
    for directory in skipped {
        output::line(&format!("skipped: {}: {}", directory.job, directory.reason));
    }
}

/// The database could not be rebuilt.
#[derive(Debug, thiserror::Error)]
pub enum RecoverCommandError {
    #[error(transparent)]
    Locked(DaemonError),
    #[error("`store` in the configuration is invalid")]
    Setting(#[source] SettingError),
    #[error(transparent)]
    Calls(CallError),
}

impl CommandError for RecoverCommandError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Locked(DaemonError::Taken { .. }) => {
                Some("stop it with `switchboard stop`, or with `switchboard stop --now` if jobs are running; then retry".to_owned())
            }
            Self::Locked(error) => error.hint(),
            Self::Setting(error) => Some(error.hint().to_owned()),
            Self::Calls(error) => Some(error.hint()),
        }
    }

    fn exit_status(&self) -> ExitStatus {
        match self {
            Self::Locked(error) => error.exit_status(),
            Self::Setting(_) | Self::Calls(CallError::NotEmbedded) => ExitStatus::BadInput,
            Self::Calls(error) if error.is_storage_failure() => ExitStatus::NotWritten,
            Self::Calls(_) => ExitStatus::Failed,
        }
    }
}
