//! Finds the programs of agents, and remembers them for a moment.

use std::path::PathBuf;
use std::time::Duration;

use agents::Setup;
use agents::doctor::{self, AgentCheck, Lookup, NotReady};
use model::{AgentKind, CallSpec};
use tokio::time::Instant;

use super::Inner;
use crate::caller_environment::CallerEnvironment;

/// How long what is known about an agent's program is believed without another look.
const PROGRAM_KNOWN_FOR: Duration = Duration::from_secs(5);

/// An agent's program, as it was found in a search path a moment ago.
#[derive(Debug)]
pub(super) struct KnownProgram {
    agent: AgentKind,
    path: String,
    at: Instant,
    check: AgentCheck,
}

impl Inner {
    /// What is to be known about an agent to launch it.
    pub async fn setup(
        &self,
        spec: &CallSpec,
        environment: Option<&CallerEnvironment>,
        private_folder: PathBuf,
    ) -> Result<Setup, NotReady> {
        let mut lookup = self.settings.lookup.clone();
        if let Some(environment) = environment {
            lookup.inherited = environment.applied_to(&lookup.inherited, &self.settings.pass_on);
        }
        let inherited = lookup.inherited.clone();
        let AgentCheck { program, version, capabilities, findings, agent, .. } =
            self.program(spec.agent, lookup).await;
        let Some(program) = program else { return Err(NotReady { agent, findings }) };
        Ok(Setup {
            program,
            version,
            capabilities,
            models: self.settings.models.clone(),
            inherited,
            pass_on: self.settings.pass_on.clone(),
            private_folder,
            workspace: agents::inspect_workspace(spec, &self.settings.lookup.inherited),
            tool_timeout: self.settings.tool_timeout,
            new_session: uuid::Uuid::new_v4().into(),
            premises: self.settings.premises(),
        })
    }

    /// An agent's program, looked for again from time to time: it may be installed or replaced while the desk is open.
    async fn program(&self, kind: AgentKind, lookup: Lookup) -> AgentCheck {
        let path = lookup.inherited.get("PATH").cloned().unwrap_or_default();
        let known = |programs: &Vec<KnownProgram>| {
            let is_this = |known: &&KnownProgram| known.agent == kind && known.path == path;
            let found = programs.iter().find(is_this).filter(|known| known.at.elapsed() < PROGRAM_KNOWN_FOR);
            found.map(|known| known.check.clone())
        };
        if let Some(check) = known(&self.lock_programs()) {
            return check;
        }
        let looked = tokio::task::spawn_blocking(move || doctor::look_up(kind, &lookup)).await;
        // The look itself does not panic; were it to, the agent counts as not found, and the next call looks again.
        let Ok(check) = looked else {
            return doctor::look_up(kind, &Lookup::default());
        };
        let mut programs = self.lock_programs();
        programs.retain(|known| {
            known.at.elapsed() < PROGRAM_KNOWN_FOR && (known.agent != kind || known.path != path)
        });
        // One that is missing is looked for every time: it may be installed any moment.
        if check.program.is_some() {
            programs.push(KnownProgram { agent: kind, path, at: Instant::now(), check: check.clone() });
        }
        check
    }

    fn lock_programs(&self) -> std::sync::MutexGuard<'_, Vec<KnownProgram>> {
        self.programs.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
