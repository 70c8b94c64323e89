//! Finds the programs of agents, and remembers them for a moment.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agents::LaunchSetup;
use agents::doctor::{self, AgentCheck, Lookup, NotReady};
use model::{AgentKind, CallSpec};
use tokio::time::Instant;

use super::Inner;
use crate::caller_environment::CallerEnvironment;

/// How long the answers of a program are believed: other files of its package may change while its own does not.
const PROGRAM_KNOWN_FOR: Duration = Duration::from_secs(5);

/// An agent's program, as it answered a moment ago.
#[derive(Debug)]
pub(super) struct KnownProgram {
    agent: AgentKind,
    file: ProgramFile,
    at: Instant,
    check: AgentCheck,
}

/// The file of a program. A link that points to another file, a file that was replaced and one that was changed are not equal.
#[derive(Debug, PartialEq, Eq)]
struct ProgramFile {
    path: PathBuf,
    device: u64,
    inode: u64,
    modified: (i64, i64),
    bytes: u64,
}

impl ProgramFile {
    fn find(kind: AgentKind, lookup: &Lookup) -> Option<Self> {
        let path = doctor::find_program(kind, lookup)?;
        let file = std::fs::metadata(&path).ok()?;
        let modified = (file.mtime(), file.mtime_nsec());
        Some(Self { path, device: file.dev(), inode: file.ino(), modified, bytes: file.len() })
    }
}

impl Inner {
    /// What is to be known about an agent to launch it.
    pub async fn setup(
        &self,
        spec: &CallSpec,
        environment: Option<&CallerEnvironment>,
        private_directory: PathBuf,
    ) -> Result<LaunchSetup, NotReady> {
        let mut lookup = self.settings.lookup.clone();
        if let Some(environment) = environment {
            lookup.inherited = environment.applied_to(&lookup.inherited, &self.settings.pass_on);
        }
        let inherited = lookup.inherited.clone();
        let workspaces = || [&spec.cwd].into_iter().chain(&spec.add_dirs);
        let outside = lookup.clone().excluding_workspaces(workspaces());
        let AgentCheck { program, version, capabilities, findings, agent, .. } =
            self.program(spec.agent, outside).await;
        let Some(program) = program else { return Err(NotReady { agent, findings }) };
        if spec.writes_confined() {
            lookup.remember_workspaces(workspaces());
        }
        Ok(LaunchSetup {
            program,
            version,
            capabilities,
            models: self.settings.models.clone(),
            inherited,
            pass_on: self.settings.pass_on.clone(),
            private_directory,
            workspace: agents::inspect_workspace(spec, &self.settings.lookup.inherited),
            tool_timeout: self.settings.tool_timeout,
            new_session: uuid::Uuid::new_v4().into(),
            host: self.settings.premises(),
        })
    }

    /// Checks an agent's program. `PATH` is searched for every call, since the program may be installed, replaced or
    /// removed at any moment; only the answers of the same file are remembered.
    async fn program(&self, kind: AgentKind, lookup: Lookup) -> AgentCheck {
        let lookup = Arc::new(lookup);
        let found = {
            let lookup = Arc::clone(&lookup);
            tokio::task::spawn_blocking(move || ProgramFile::find(kind, &lookup)).await.ok().flatten()
        };
        let known = |programs: &Vec<KnownProgram>| {
            let is_this = |known: &&KnownProgram| known.agent == kind && Some(&known.file) == found.as_ref();
            let known = programs.iter().find(is_this).filter(|known| known.at.elapsed() < PROGRAM_KNOWN_FOR);
            known.map(|known| known.check.clone())
        };
        if let Some(check) = known(&self.lock_programs()) {
            return check;
        }
        let looked = tokio::task::spawn_blocking(move || doctor::find_installed(kind, &lookup)).await;
        // The look itself does not panic; were it to, the agent counts as not found, and the next call looks again.
        let Ok(check) = looked else {
            return doctor::find_installed(kind, &Lookup::default());
        };
        let mut programs = self.lock_programs();
        programs
            .retain(|known| known.at.elapsed() < PROGRAM_KNOWN_FOR && Some(&known.file) != found.as_ref());
        if let Some(file) = found.filter(|file| check.program.as_ref() == Some(&file.path)) {
            programs.push(KnownProgram { agent: kind, file, at: Instant::now(), check: check.clone() });
        }
        check
    }

    fn lock_programs(&self) -> std::sync::MutexGuard<'_, Vec<KnownProgram>> {
        self.programs.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
