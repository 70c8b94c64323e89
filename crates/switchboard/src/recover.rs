//! `switchboard recover`: rebuilds the database from the job directories.
//!
//! Owns the lock of the state directory meanwhile, and the words of the report. `calls` does the work.

use std::process::ExitCode;

use calls::{CallError, Opening, RecoveryReport, SettingError, recover_store};

use crate::config::Config;
use crate::daemon::{self, DaemonError};
use crate::environment::Environment;
use crate::exit_status::ExitStatus;
use crate::failure::Failure;
use crate::home::Home;
use crate::wire::Complaint;
use crate::{cli, output};

/// Rebuilds the database and prints the recovered jobs.
pub fn run(order: &cli::Recover) -> Result<ExitCode, Failure> {
    let environment = Environment::of_this_process();
    let home = Home::find(&environment)?;
    let config = Config::read(Some(&home), &environment, &[])?;
    let opening = opening(&home, &config).map_err(RecoverError::Setting)?;
    home.make()?;
    let _lock = daemon::take_lock(&home).map_err(RecoverError::Locked)?;
    let report = recover_store(home.state(), &opening, order.dry_run).map_err(RecoverError::Calls)?;
    if order.json {
        output::line(&serde_json::to_string_pretty(&report)?);
    } else {
        print(&report, order.dry_run);
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns what keeps the next daemon from starting: a database that was lost or damaged.
pub fn store_problem(home: &Home, config: &Config) -> Option<Complaint> {
    let opening = opening(home, config).ok()?;
    let error = match calls::find_lost_jobs(home.state(), &opening) {
        Ok(None) => return None,
        Ok(Some(lost)) => CallError::JobsLost { folder: home.state().to_owned(), lost },
        Err(error) => CallError::Store(error),
    };
    Some(Complaint { message: error.to_string(), hint: error.hint() })
}

fn opening(home: &Home, config: &Config) -> Result<Opening, SettingError> {
    Ok(Opening::new(config.store.parse()?, home.database()))
}

fn jobs(count: u64) -> String {
    render::text::format_count(u32::try_from(count).unwrap_or(u32::MAX), "job", "jobs")
}

fn print(report: &RecoveryReport, dry_run: bool) {
    let RecoveryReport { restored, ended, running, waiting, unchanged, direct_runs, skipped, .. } = report;
    let verb = if dry_run { "would recover" } else { "recovered" };
    output::line(&format!(
        "{verb} {}: {ended} finished, {running} running, {waiting} waiting",
        jobs(*restored)
    ));
    output::line(&format!("database: {}", report.database.display()));
    if *unchanged > 0 {
        output::line(&format!("unchanged: {}", jobs(*unchanged)));
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

/// Why the database could not be rebuilt.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    #[error(transparent)]
    Locked(DaemonError),
    #[error("`store` in the configuration is invalid")]
    Setting(#[source] SettingError),
    #[error(transparent)]
    Calls(CallError),
}

impl RecoverError {
    /// Returns the remedy, as an imperative.
    pub fn hint(&self) -> String {
        match self {
            Self::Locked(DaemonError::Taken { .. }) => {
                "stop it with `switchboard stop`, or with `switchboard stop --now` if jobs are running; then retry"
                    .to_owned()
            }
            Self::Locked(error) => error.hint(),
            Self::Setting(error) => error.hint().to_owned(),
            Self::Calls(error) => error.hint(),
        }
    }

    /// Returns the exit status of `switchboard recover`.
    pub fn exit_status(&self) -> ExitStatus {
        match self {
            Self::Locked(error) => error.exit_status(),
            Self::Setting(_) | Self::Calls(CallError::NotEmbedded) => ExitStatus::BadInput,
            Self::Calls(error) if error.is_storage_failure() => ExitStatus::NotWritten,
            Self::Calls(_) => ExitStatus::Failed,
        }
    }
}
