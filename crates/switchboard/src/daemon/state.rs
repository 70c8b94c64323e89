//! The state that all connections of the daemon share: configuration, job backend, phase and last activity.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use model::Owner;
use tokio::sync::watch;

use protocol::{DaemonPhase, DaemonStatus, HttpStatus, PROTOCOL_VERSION, SwitchboardHome, VERSION};

use super::backend::JobBackend;
use crate::config::{Config, EffectiveSettings};

/// A handle on the shared state. Clones share it.
#[derive(Clone)]
pub struct DaemonState(Arc<Inner>);

struct Inner {
    home: SwitchboardHome,
    config: Config,
    /// The settings at startup, for the comparison with the current ones.
    settings: BTreeMap<String, Option<String>>,
    owner: Owner,
    backend: Arc<dyn JobBackend>,
    phase: watch::Sender<DaemonPhase>,
    started: Instant,
    /// Milliseconds since `started`.
    last_activity: AtomicU64,
    connections: AtomicU64,
    socket: Mutex<PathBuf>,
    http: OnceLock<SocketAddr>,
}

impl DaemonState {
    /// Creates the state of a daemon that accepts calls.
    pub fn new(
        home: SwitchboardHome,
        settings: &EffectiveSettings,
        owner: Owner,
        backend: Arc<dyn JobBackend>,
    ) -> Self {
        Self(Arc::new(Inner {
            home,
            config: Config::from_settings(settings),
            settings: settings.to_toml_values(),
            owner,
            backend,
            phase: watch::Sender::new(DaemonPhase::Open),
            started: Instant::now(),
            last_activity: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            socket: Mutex::default(),
            http: OnceLock::new(),
        }))
    }

    /// Returns the paths of the installation.
    pub fn home(&self) -> &SwitchboardHome {
        &self.0.home
    }

    /// Returns the configuration.
    pub fn config(&self) -> &Config {
        &self.0.config
    }

    /// Returns every setting at startup, as TOML.
    pub fn settings(&self) -> &BTreeMap<String, Option<String>> {
        &self.0.settings
    }

    /// Returns the unique name under which this daemon owns jobs.
    pub fn owner(&self) -> &Owner {
        &self.0.owner
    }

    /// Returns the job backend.
    pub fn backend(&self) -> &dyn JobBackend {
        &*self.0.backend
    }

    /// Returns the current phase.
    pub fn phase(&self) -> DaemonPhase {
        *self.0.phase.borrow()
    }

    /// Enters a phase. Earlier phases are ignored.
    pub fn enter_phase(&self, phase: DaemonPhase) {
        self.0.phase.send_if_modified(|now| {
            let is_later = phase > *now;
            if is_later {
                tracing::info!(?phase, "entering phase");
                *now = phase;
            }
            is_later
        });
    }

    /// Waits until the daemon is in a phase or a later one.
    pub async fn wait_for_phase(&self, phase: DaemonPhase) {
        // The sender lives as long as `self`, so this does not fail.
        let _ = self.0.phase.subscribe().wait_for(|now| *now >= phase).await;
    }

    /// Records a request, which postpones `idle_stop`.
    pub fn record_activity(&self) {
        self.0.last_activity.store(millis(self.0.started.elapsed()), Ordering::Relaxed);
    }

    /// Returns the time since the last request.
    pub fn idle_time(&self) -> Duration {
        let last = Duration::from_millis(self.0.last_activity.load(Ordering::Relaxed));
        self.0.started.elapsed().saturating_sub(last)
    }

    /// Sets the path of the socket.
    pub fn set_socket(&self, socket: PathBuf) {
        *self.0.socket.lock().unwrap_or_else(PoisonError::into_inner) = socket;
    }

    /// Counts a connection until the guard is dropped.
    pub fn count_connection(&self) -> ConnectionGuard {
        self.0.connections.fetch_add(1, Ordering::Relaxed);
        ConnectionGuard(self.clone())
    }

    /// Sets the HTTP address for `switchboard status`.
    pub fn set_http_address(&self, address: SocketAddr) {
        let _ = self.0.http.set(address);
    }

    /// Returns the status of the daemon.
    pub async fn status(&self) -> DaemonStatus {
        let load = self.backend().load().await;
        DaemonStatus {
            version: VERSION.to_owned(),
            protocol: PROTOCOL_VERSION,
            pid: std::process::id(),
            owner: self.owner().as_str().to_owned(),
            uptime_ms: millis(self.0.started.elapsed()),
            state: self.home().state().to_owned(),
            socket: self.0.socket.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            log: self.home().log_file(),
            http: self.0.http.get().map(|address| HttpStatus {
                url: format!("http://{address}/mcp"),
                token_file: self.home().http_token(),
            }),
            connections: self.0.connections.load(Ordering::Relaxed),
            running: load.running,
            queued: load.queued,
            phase: self.phase(),
            problem: self.backend().problem(),
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Decrements the number of connections on drop.
pub struct ConnectionGuard(DaemonState);

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.0.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}
