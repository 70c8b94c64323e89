//! The environment of a transcript: a home, a working directory and an empty PATH. Stops the daemon afterwards.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;
use trycmd::schema::Bin;

use crate::person;

/// The real program.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_switchboard");

pub struct Scene {
    root: TempDir,
}

impl Scene {
    pub fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        for directory in ["bin", "home", "switchboard", "project", "types"] {
            fs::create_dir(root.path().join(directory)).unwrap();
        }
        for name in person::COMMANDS {
            symlink(std::env::current_exe().unwrap(), root.path().join("types").join(name)).unwrap();
        }
        Self { root }
    }

    pub fn directory(&self) -> &Path {
        self.root.path()
    }

    /// Returns the commands of a transcript.
    pub fn commands(&self) -> Vec<(&'static str, Bin)> {
        let place = |name: &str| -> PathBuf { self.directory().join("types").join(name) };
        person::COMMANDS.iter().map(|name| (*name, Bin::Path(place(name)))).collect()
    }

    /// Stops the daemon, if there is one, and cancels its jobs.
    pub fn end(&self) {
        if run(self.directory(), &["status"]).status.success() {
            let stopped = run(self.directory(), &["stop", "--cancel"]);
            assert!(stopped.status.success(), "{stopped:?}");
        }
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        // Also of a transcript that has failed nothing is left.
        if std::thread::panicking() {
            run(self.directory(), &["stop", "--cancel"]);
        }
    }
}

/// Creates a command without a terminal, a locale and the variables of the user who runs the tests.
pub fn program(directory: &Path) -> Command {
    let mut command = Command::new(PROGRAM);
    command
        .env_clear()
        .env("HOME", directory.join("home"))
        .env("PATH", directory.join("bin"))
        .env("SWITCHBOARD_HOME", directory.join("switchboard"))
        .current_dir(directory.join("project"))
        .stdin(Stdio::null());
    command
}

fn run(directory: &Path, args: &[&str]) -> Output {
    program(directory).args(args).output().unwrap()
}
