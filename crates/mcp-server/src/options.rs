//! The operator's options, and the facts about a connected client.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use calls::CallerEnvironment;
use model::{CallPolicy, JobId};

use crate::capacity::RequestCapacity;

/// The operator's options for the tools.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
pub struct McpOptions {
    /// Short names of directories, accepted as `cwd`.
    pub cwd_aliases: BTreeMap<String, PathBuf>,
    /// Expansion of `~`.
    pub home: Option<PathBuf>,
    /// Lists the scripted agent (`call_rehearsal`).
    pub rehearsal: bool,
    /// Policy of a call that names none. Its enforcement level also applies to the policies that calls name.
    pub policy: CallPolicy,
    /// Lets sandboxed agents load the settings of their workspace.
    pub trust_workspaces: bool,
    /// Lists the tools that change the user's files without a review (`call_apply`, `call_discard`).
    pub apply_changes: bool,
    /// Cancels a call when its client disconnects.
    pub cancel_on_disconnect: bool,
    /// Maximum interval between two progress notifications.
    pub heartbeat: Duration,
    /// Defaults of calls.
    pub defaults: CallDefaults,
    /// Limits that all clients share.
    pub capacity: Arc<RequestCapacity>,
}

impl Default for McpOptions {
    /// Returns options without aliases and home, with real agents only, the default policy, no tools that apply changes, and jobs that
    /// outlive their clients.
    fn default() -> Self {
        Self {
            policy: CallPolicy::default(),
            trust_workspaces: false,
            cwd_aliases: BTreeMap::new(),
            home: None,
            rehearsal: false,
            apply_changes: false,
            cancel_on_disconnect: false,
            heartbeat: Duration::from_secs(15),
            defaults: CallDefaults::default(),
            capacity: Arc::default(),
        }
    }
}

/// Defaults of a call's parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallDefaults {
    /// Wall-clock limit of the agent.
    pub timeout: Duration,
    /// Idle timeout of the agent.
    pub idle: Option<Duration>,
    /// Timeout for the agent's first output; defaults to the idle timeout.
    pub start: Option<Duration>,
    /// Time after which a call returns `running`.
    pub wait: Duration,
    /// Maximum number of characters of the agent's answer.
    pub max_response_chars: usize,
}

impl Default for CallDefaults {
    /// Returns a timeout of one hour, no idle timeout and a wait of 50 s, because many hosts time out after 60 s.
    fn default() -> Self {
        Self {
            timeout: Duration::from_hours(1),
            idle: None,
            start: None,
            wait: Duration::from_secs(50),
            max_response_chars: calls::MAX_RESPONSE_CHARS,
        }
    }
}

/// A connected client.
#[derive(Debug, Clone, Default)]
pub struct McpClient {
    /// Working directory of the client: the default `cwd` of its calls.
    pub cwd: Option<PathBuf>,
    /// Environment of the client for agents; none to use the daemon's.
    pub environment: Option<CallerEnvironment>,
    /// Job that the client is part of; none outside of calls.
    pub parent: Option<JobId>,
    /// Is true for a process inside of a run, also of one without a job.
    pub is_inside_run: bool,
}
