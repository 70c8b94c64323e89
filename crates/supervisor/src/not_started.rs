//! Converts errors of a start to [`NotStarted`], with a reason and a message for the user.

use std::fs;
use std::io;
use std::path::Path;

use model::{NotStarted, NotStartedReason, RunPlan};
use rustix::fs::{Access, access};
use rustix::io::Errno;
use sandbox::{LaunchStep, SandboxRejection};

/// Checks the working directory before the spawn, because the kernel reports the same errors for it and for the
/// program.
pub fn check_working_directory(cwd: &Path) -> Result<(), NotStarted> {
    let (reason, why) = match fs::metadata(cwd) {
        Ok(metadata) if !metadata.is_dir() => {
            (NotStartedReason::CwdNotADirectory, "it is not a directory".to_owned())
        }
        Ok(_) => match access(cwd, Access::EXEC_OK) {
            Ok(()) => return Ok(()),
            Err(error) => (NotStartedReason::CwdForbidden, io::Error::from(error).to_string()),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            (NotStartedReason::CwdMissing, "it does not exist".to_owned())
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            (NotStartedReason::CwdForbidden, error.to_string())
        }
        Err(error) => (NotStartedReason::Other, error.to_string()),
    };
    Err(NotStarted { reason, message: format!("cannot work in `{}`: {why}", cwd.display()) })
}

pub fn spawn_failure(plan: &RunPlan, error: &io::Error) -> NotStarted {
    let exists = plan.program.exists();
    let (reason, why) = match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOENT) if exists => (
            NotStartedReason::ProgramMissing,
            "the interpreter or loader that it needs does not exist".to_owned(),
        ),
        Some(Errno::NOENT | Errno::NOTDIR) => {
            (NotStartedReason::ProgramMissing, "it does not exist".to_owned())
        }
        Some(Errno::ACCESS | Errno::NOEXEC) => {
            (NotStartedReason::ProgramNotExecutable, "it is not executable".to_owned())
        }
        _ => (NotStartedReason::Other, error.to_string()),
    };
    NotStarted {
        reason,
        message: format!("cannot start `{}` in `{}`: {why}", plan.program.display(), plan.cwd.display()),
    }
}

pub fn step_failure(step: LaunchStep, errno: Option<i32>, message: &str, plan: &RunPlan) -> NotStarted {
    let error = errno.map_or_else(|| io::Error::other(message.to_owned()), io::Error::from_raw_os_error);
    match step {
        LaunchStep::Mounts | LaunchStep::Rules => not_confined(message),
        LaunchStep::Program => spawn_failure(plan, &error),
        LaunchStep::WorkingDirectory => {
            let reason = match error.kind() {
                io::ErrorKind::NotFound => NotStartedReason::CwdMissing,
                io::ErrorKind::NotADirectory => NotStartedReason::CwdNotADirectory,
                io::ErrorKind::PermissionDenied => NotStartedReason::CwdForbidden,
                _ => NotStartedReason::Other,
            };
            let cwd = plan.cwd.display();
            NotStarted { reason, message: format!("cannot work in `{cwd}` inside the sandbox: {error}") }
        }
    }
}

pub fn sandbox_rejection(refusal: &SandboxRejection) -> NotStarted {
    let mut text = refusal.to_string();
    if let Some(cause) = std::error::Error::source(refusal) {
        text = format!("{text}: {cause}");
    }
    let hint = regular_file::path_hint(refusal).unwrap_or_else(|| refusal.hint().to_owned());
    not_confined(&format!("{text}; {hint}"))
}

pub fn not_confined(why: &str) -> NotStarted {
    NotStarted { reason: NotStartedReason::NotConfined, message: format!("cannot confine the agent: {why}") }
}
