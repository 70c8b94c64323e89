//! A session with an agent, and its record on disk.
//!
//! The record contains the id, the workspace and the access of the agent, but no message; the agent stores those. A resumed
//! session is as confined as before because of this record.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::{SessionId, Totals};
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::sync::OwnedMutexGuard;
use tokio::task::JoinSet;

use crate::agent_spec::AgentSpec;
use crate::config::{ProviderConfig, state_folder};

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
    turn: Arc<tokio::sync::Mutex<JoinSet<()>>>,
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
        let turn = Arc::default();
        Self(Arc::new(Inner {
            provider: provider.to_owned(),
            workspace,
            agent,
            state: Mutex::new(state),
            turn,
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
    pub(crate) async fn take_turn(&self) -> SessionLock {
        let mut turn = SessionLock(Arc::clone(&self.0.turn).lock_owned().await);
        while turn.0.join_next().await.is_some() {}
        turn
    }

    /// Records the agent's session id. Returns whether it changed.
    pub(crate) fn speaks_as(&self, id: &SessionId) -> bool {
        let mut state = self.state();
        let is_news = state.id.as_ref() != Some(id);
        state.id = Some(id.clone());
        is_news
    }

    pub(crate) fn counted(&self, totals: Option<Totals>) {
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
    /// Hands over an abandoned run for the next message to wait for.
    pub fn give_up(&mut self, ending: impl Future<Output = ()> + Send + 'static) {
        // Without a runtime nothing can wait for it, nor send another message.
        if let Ok(runtime) = Handle::try_current() {
            self.0.spawn_on(ending, &runtime);
        }
    }
}

/// The record of a session.
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
pub(crate) struct Records(Option<PathBuf>);

impl Records {
    pub fn of(config: &ProviderConfig, surroundings: &BTreeMap<String, String>) -> Self {
        let folder = config.sessions.clone();
        Self(folder.or_else(|| Some(state_folder(surroundings)?.join("sessions"))))
    }

    /// Writes the record of a session atomically.
    pub fn keep(&self, session: &Session) -> io::Result<()> {
        let Some(id) = session.id() else { return Ok(()) };
        let folder = self.folder(session.provider()).ok_or(io::ErrorKind::NotFound)?;
        DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        let record = Record {
            provider: session.provider().to_owned(),
            id,
            workspace: session.workspace().to_owned(),
            agent: session.agent().clone(),
            totals: session.totals(),
        };
        let mut fresh = tempfile::NamedTempFile::new_in(&folder)?;
        fresh.write_all(&serde_json::to_vec(&record)?)?;
        fresh.persist(folder.join(file_name(&record.id)))?;
        Ok(())
    }

    /// Finds a session; `None` without a readable record.
    pub fn find(&self, provider: &str, id: &SessionId) -> io::Result<Option<Session>> {
        let Some(folder) = self.folder(provider) else { return Ok(None) };
        let bytes = match fs::read(folder.join(file_name(id))) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read?,
        };
        let record: Record = serde_json::from_slice(&bytes)?;
        let state = State { id: Some(record.id), totals: record.totals };
        Ok(Some(Session::with(&record.provider, record.agent, record.workspace, state)))
    }

    fn folder(&self, provider: &str) -> Option<PathBuf> {
        self.0.as_ref().map(|folder| folder.join(provider))
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
    use std::os::unix::fs::PermissionsExt;

    fn records() -> (tempfile::TempDir, Records) {
        let folder = tempfile::tempdir().unwrap();
        let config =
            ProviderConfig { sessions: Some(folder.path().join("kept")), ..ProviderConfig::default() };
        (folder, Records::of(&config, &BTreeMap::new()))
    }

    fn confined() -> AgentSpec {
        AgentSpec { access: Access::Files(vec![FileVerb::Read]), ..AgentSpec::new("Read.") }
    }

    #[test]
    fn a_session_is_found_again_as_confined_as_it_was() {
        let (folder, records) = records();
        let id: SessionId = "0000abcd-0000-4000-8000-00000000000a".parse().unwrap();
        let session = Session::new("claude-code", confined(), "/ws".into());
        records.keep(&session).unwrap();
        assert!(!folder.path().join("kept").exists(), "it has not begun");
        assert!(session.speaks_as(&id) && !session.speaks_as(&id));
        session.counted(Some(Totals { usage: None, cost_usd: Some(0.5) }));
        records.keep(&session).unwrap();

        let capitals = "0000ABCD-0000-4000-8000-00000000000A".parse().unwrap();
        let found = records.find("claude-code", &capitals).unwrap().unwrap();
        assert_eq!(
            (found.id(), found.agent(), found.workspace()),
            (Some(id.clone()), &confined(), Path::new("/ws"))
        );
        assert_eq!(found.totals().unwrap().cost_usd, Some(0.5));
        assert!(records.find("codex", &id).unwrap().is_none(), "it is another provider's");

        let file = folder.path().join("kept/claude-code").join(file_name(&id));
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(file.parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn damaged_session_record_is_an_error() {
        let (folder, records) = records();
        let id: SessionId = "abc".parse().unwrap();
        let session = Session::adopt("claude-code", id.clone(), confined(), "/ws");
        records.keep(&session).unwrap();
        let file = folder.path().join("kept/claude-code/abc.json");
        let text = fs::read_to_string(&file).unwrap().replace("files", "fairies");
        fs::write(&file, text).unwrap();
        assert!(records.find("claude-code", &id).is_err());
    }

    #[test]
    fn session_records_default_to_the_state_directory() {
        let config = ProviderConfig::default();
        let of = |name: &str, value: &str| {
            Records::of(&config, &BTreeMap::from([(name.to_owned(), value.to_owned())])).0
        };
        assert_eq!(of("XDG_STATE_HOME", "/s"), Some("/s/switchboard/sessions".into()));
        assert_eq!(of("HOME", "/home/ana"), Some("/home/ana/.local/state/switchboard/sessions".into()));
        assert_eq!(of("HOME", "relative"), None);
    }
}
