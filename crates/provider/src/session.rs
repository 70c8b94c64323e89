//! A session with an agent, and its record on disk.
//!
//! The record contains the id, the workspace and the access of the agent, but no message; the agent stores those. A resumed
//! session is as confined as before because of this record.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::{SessionId, Totals};
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::sync::OwnedMutexGuard;
use tokio::task::JoinSet;

use crate::agent_spec::AgentSpec;
use crate::config::{ProviderConfig, state_directory};

/// A session with one agent in one workspace. Clones share it.
///
/// Messages are serialized: a second message waits for the answer to the first.
#[derive(Debug, Clone)]
pub struct Session(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    provider: String,
    workspace: PathBuf,
    agent: AgentSpec,
    state: Mutex<State>,
    /// Locked by the message in progress. Contains abandoned runs that may not have stopped yet.
    abandoned: Arc<tokio::sync::Mutex<JoinSet<()>>>,
}

#[derive(Debug, Default)]
struct State {
    /// `None` before the agent's first output.
    id: Option<SessionId>,
    /// The agent's cumulative counts.
    totals: Option<Totals>,
}

impl Session {
    /// Creates a session that has not started.
    pub(crate) fn new(provider: &str, agent: AgentSpec, workspace: PathBuf) -> Self {
        Self::with(provider, agent, workspace, State::default())
    }

    /// Adopts a session that was started elsewhere, for example at a terminal, as `agent` in `workspace`.
    pub fn adopt(provider: &str, id: SessionId, agent: AgentSpec, workspace: impl Into<PathBuf>) -> Self {
        let workspace = workspace.into();
        // A path that cannot be made absolute is rejected with the first message.
        let workspace = std::path::absolute(&workspace).unwrap_or(workspace);
        Self::with(provider, agent, workspace, State { id: Some(id), ..State::default() })
    }

    fn with(provider: &str, agent: AgentSpec, workspace: PathBuf, state: State) -> Self {
        Self(Arc::new(Inner {
            provider: provider.to_owned(),
            workspace,
            agent,
            state: Mutex::new(state),
            abandoned: Arc::default(),
        }))
    }

    /// Returns the vendor's id, for [`crate::Provider::resume_session`]. `None` before the agent's first output: there is
    /// nothing to resume.
    pub fn id(&self) -> Option<SessionId> {
        self.state().id.clone()
    }

    /// Returns the provider's [`crate::Provider::name`].
    pub fn provider(&self) -> &str {
        &self.0.provider
    }

    /// Returns the working directory of the agent.
    pub fn workspace(&self) -> &Path {
        &self.0.workspace
    }

    /// Returns the spec of the agent.
    pub fn agent(&self) -> &AgentSpec {
        &self.0.agent
    }

    pub(crate) fn totals(&self) -> Option<Totals> {
        self.state().totals
    }

    /// Locks the session and waits until abandoned runs have stopped. If this future is dropped, the next caller continues to
    /// wait.
    pub(crate) async fn lock(&self) -> SessionLock {
        let mut lock = SessionLock(Arc::clone(&self.0.abandoned).lock_owned().await);
        while lock.0.join_next().await.is_some() {}
        lock
    }

    /// Records the agent's session id. Returns whether it changed.
    pub(crate) fn set_id(&self, id: &SessionId) -> bool {
        let mut state = self.state();
        let is_new = state.id.as_ref() != Some(id);
        state.id = Some(id.clone());
        is_new
    }

    /// Records the agent's cumulative counts. Keeps the previous ones if they are unknown.
    pub(crate) fn set_totals(&self, totals: Option<Totals>) {
        let mut state = self.state();
        state.totals = totals.or(state.totals);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The lock on a session, released on drop.
#[derive(Debug)]
pub(crate) struct SessionLock(OwnedMutexGuard<JoinSet<()>>);

impl SessionLock {
    /// Adopts an abandoned run, which the next message waits for.
    pub fn adopt_run(&mut self, stopped: impl Future<Output = ()> + Send + 'static) {
        // Without a runtime no message can be sent, so there is no waiter.
        if let Ok(runtime) = Handle::try_current() {
            self.0.spawn_on(stopped, &runtime);
        }
    }
}

/// The file format of a session record.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    provider: String,
    id: SessionId,
    workspace: PathBuf,
    agent: AgentSpec,
    totals: Option<Totals>,
}

/// The directory of records: `<directory>/<provider>/<session id>.json`, mode 0600.
#[derive(Debug, Clone)]
pub(crate) struct SessionRecords(Option<PathBuf>);

impl SessionRecords {
    pub fn new(config: &ProviderConfig, environment: &BTreeMap<String, String>) -> Self {
        let directory = config.sessions.clone();
        Self(directory.or_else(|| Some(state_directory(environment)?.join("sessions"))))
    }

    /// Writes the record of a session atomically.
    pub fn save(&self, session: &Session) -> io::Result<()> {
        let Some(id) = session.id() else { return Ok(()) };
        let directory = self.directory(session.provider()).ok_or(io::ErrorKind::NotFound)?;
        regular_file::create_private_directory(&directory)?;
        let record = Record {
            provider: session.provider().to_owned(),
            id,
            workspace: session.workspace().to_owned(),
            agent: session.agent().clone(),
            totals: session.totals(),
        };
        let mut fresh = tempfile::NamedTempFile::new_in(&directory)?;
        fresh.write_all(&serde_json::to_vec(&record)?)?;
        fresh.persist(directory.join(file_name(&record.id)))?;
        Ok(())
    }

    /// Finds a session; `None` without a readable record.
    pub fn find(&self, provider: &str, id: &SessionId) -> io::Result<Option<Session>> {
        let Some(directory) = self.directory(provider) else { return Ok(None) };
        let bytes = match regular_file::read_regular(&directory.join(file_name(id))) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read?,
        };
        let record: Record = serde_json::from_slice(&bytes)?;
        let state = State { id: Some(record.id), totals: record.totals };
        Ok(Some(Session::with(&record.provider, record.agent, record.workspace, state)))
    }

    fn directory(&self, provider: &str) -> Option<PathBuf> {
        self.0.as_ref().map(|directory| directory.join(provider))
    }
}

/// Returns the file name of an id. An id starts with a letter or digit and contains no slash, so it cannot leave the directory.
/// UUIDs are case-insensitive.
fn file_name(id: &SessionId) -> String {
    let name = id.as_uuid().map_or_else(|| id.to_string(), |uuid| uuid.to_string());
    format!("{name}.json")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent_spec::{Access, FileVerb};
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn records() -> (tempfile::TempDir, SessionRecords) {
        let directory = tempfile::tempdir().unwrap();
        let config =
            ProviderConfig { sessions: Some(directory.path().join("kept")), ..ProviderConfig::default() };
        (directory, SessionRecords::new(&config, &BTreeMap::new()))
    }

    fn confined() -> AgentSpec {
        AgentSpec { access: Access::Files(vec![FileVerb::Read]), ..AgentSpec::new("Read.") }
    }

    #[test]
    fn resumed_session_keeps_its_access() {
        let (directory, records) = records();
        let id: SessionId = "0000abcd-0000-4000-8000-00000000000a".parse().unwrap();
        let session = Session::new("claude-code", confined(), "/ws".into());
        records.save(&session).unwrap();
        assert!(!directory.path().join("kept").exists(), "it has not begun");
        assert!(session.set_id(&id) && !session.set_id(&id));
        session.set_totals(Some(Totals { usage: None, cost_usd: Some(0.5) }));
        records.save(&session).unwrap();

        let capitals = "0000ABCD-0000-4000-8000-00000000000A".parse().unwrap();
        let found = records.find("claude-code", &capitals).unwrap().unwrap();
        assert_eq!(
            (found.id(), found.agent(), found.workspace()),
            (Some(id.clone()), &confined(), Path::new("/ws"))
        );
        assert_eq!(found.totals().unwrap().cost_usd, Some(0.5));
        assert!(records.find("codex", &id).unwrap().is_none(), "it is another provider's");

        let file = directory.path().join("kept/claude-code").join(file_name(&id));
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(file.parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn damaged_session_record_is_an_error() {
        let (directory, records) = records();
        let id: SessionId = "abc".parse().unwrap();
        let session = Session::adopt("claude-code", id.clone(), confined(), "/ws");
        records.save(&session).unwrap();
        let file = directory.path().join("kept/claude-code/abc.json");
        let text = fs::read_to_string(&file).unwrap().replace("files", "fairies");
        fs::write(&file, text).unwrap();
        assert!(records.find("claude-code", &id).is_err());
    }

    #[test]
    fn session_records_default_to_the_state_directory() {
        let config = ProviderConfig::default();
        let records_in = |name: &str, value: &str| {
            SessionRecords::new(&config, &BTreeMap::from([(name.to_owned(), value.to_owned())])).0
        };
        assert_eq!(records_in("XDG_STATE_HOME", "/s"), Some("/s/switchboard/sessions".into()));
        assert_eq!(
            records_in("HOME", "/home/ana"),
            Some("/home/ana/.local/state/switchboard/sessions".into())
        );
        assert_eq!(records_in("HOME", "relative"), None);
    }
}
