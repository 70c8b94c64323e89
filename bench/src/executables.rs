//! The executables that are measured: the ones that were built together with this program.

use std::path::{Path, PathBuf};
use std::{env, fmt};

use crate::Failure;

/// The paths of the executables.
#[derive(Debug)]
pub struct Executables {
    directory: PathBuf,
    /// The owner of a run's process tree.
    pub supervisor: PathBuf,
    /// The scripted agent.
    pub rehearsal: PathBuf,
    /// The confined file verbs.
    pub file_tools: PathBuf,
    /// The daemon and its front-ends.
    pub switchboard: PathBuf,
    /// The agent that costs nothing.
    pub stub: PathBuf,
}

/// An executable that was not built.
#[derive(Debug)]
struct NotBuilt {
    program: PathBuf,
}

impl Executables {
    /// Finds them in the directory of the running program.
    pub fn beside_this_program() -> Result<Self, Failure> {
        let this = env::current_exe()?;
        let directory = this.parent().ok_or("cannot determine the directory of this program")?.to_owned();
        Ok(Self {
            supervisor: built(directory.join("switchboard-supervisor"))?,
            rehearsal: built(directory.join("rehearsal"))?,
            file_tools: built(directory.join("file-tools"))?,
            switchboard: built(directory.join("switchboard"))?,
            stub: built(directory.join("stub-agent"))?,
            directory,
        })
    }

    /// Returns their directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

fn built(program: PathBuf) -> Result<PathBuf, NotBuilt> {
    if program.is_file() { Ok(program) } else { Err(NotBuilt { program }) }
}

impl fmt::Display for NotBuilt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let release = if cfg!(debug_assertions) { "" } else { " --release" };
        write!(
            f,
            "`{}` does not exist\n  hint: build everything that is measured: `cargo build{release} -p switchboard -p bench`",
            self.program.display()
        )
    }
}

impl std::error::Error for NotBuilt {}
