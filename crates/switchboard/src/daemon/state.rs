//! What every connection of the daemon shares: configuration, work, the phase it is in, and when somebody last asked.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use model::Owner;
use tokio::sync::watch;

use super::work::Work;
use crate::config::{Config, Settings};
use crate::home::Home;
use crate::wire::{HttpStatus, PROTOCOL, Phase, Status, VERSION};

/// The daemon, seen from a connection. Copies are the same desk.
#[derive(Clone)]
pub struct DaemonState(Arc<Inner>);

struct Inner {
    home: Home,
    config: Config,
    /// The settings at startup, to be compared with the current ones.
    settings: BTreeMap<String, Option<String>>,
    owner: Owner,
    work: Arc<dyn Work>,
    phase: watch::Sender<Phase>,
    began: Instant,
    /// Milliseconds after the beginning.
    last_asked: AtomicU64,
    connections: AtomicU64,
    socket: Mutex<PathBuf>,
    http: OnceLock<SocketAddr>,
}

impl DaemonState {
    /// A desk that is open.
    pub fn new(home: Home, settings: &Settings, owner: Owner, work: Arc<dyn Work>) -> Self {
        Self(Arc::new(Inner {
            home,
            config: Config::of(settings),
            settings: settings.texts(),
            owner,
            work,
            phase: watch::Sender::new(Phase::Open),
            began: Instant::now(),
            last_asked: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            socket: Mutex::default(),
            http: OnceLock::new(),
        }))
    }

    /// Where everything is.
    pub fn home(&self) -> &Home {
        &self.0.home
    }

    /// How everything is to be.
    pub fn config(&self) -> &Config {
        &self.0.config
    }

    /// Returns every setting that it started with, as TOML.
    pub fn settings(&self) -> &BTreeMap<String, Option<String>> {
        &self.0.settings
    }

    /// The name under which this daemon owns jobs, which no other ever had.
    pub fn owner(&self) -> &Owner {
        &self.0.owner
    }

    /// Whoever runs the jobs.
    pub fn work(&self) -> &dyn Work {
        &*self.0.work
    }

    /// Where the daemon is between its first and its last moment.
    pub fn phase(&self) -> Phase {
        *self.0.phase.borrow()
    }

    /// Goes on to a phase; there is no way back.
    pub fn go_on_to(&self, phase: Phase) {
        self.0.phase.send_if_modified(|now| {
            let later = phase > *now;
            if later {
                tracing::info!(?phase, "going on");
                *now = phase;
            }
            later
        });
    }

    /// Waits until the daemon is in that phase, or a later one.
    pub async fn reached(&self, phase: Phase) {
        // It ends only with the desk itself, which is held here.
        let _ = self.0.phase.subscribe().wait_for(|now| *now >= phase).await;
    }

    /// Somebody has asked for something.
    pub fn asked(&self) {
        self.0.last_asked.store(millis(self.0.began.elapsed()), Ordering::Relaxed);
    }

    /// For how long nobody has asked for anything.
    pub fn unasked_for(&self) -> Duration {
        let last = Duration::from_millis(self.0.last_asked.load(Ordering::Relaxed));
        self.0.began.elapsed().saturating_sub(last)
    }

    /// Where the daemon listens.
    pub fn listens_at(&self, socket: PathBuf) {
        *self.0.socket.lock().unwrap_or_else(PoisonError::into_inner) = socket;
    }

    /// Counts a connection for as long as the value lives.
    pub fn count_connection(&self) -> Counted {
        self.0.connections.fetch_add(1, Ordering::Relaxed);
        Counted(self.clone())
    }

    /// Notes the address of HTTP, for `switchboard status`.
    pub fn note_http(&self, address: SocketAddr) {
        let _ = self.0.http.set(address);
    }

    /// How the daemon is.
    pub async fn status(&self) -> Status {
        let load = self.work().load().await;
        Status {
            version: VERSION.to_owned(),
            protocol: PROTOCOL,
            pid: std::process::id(),
            owner: self.owner().as_str().to_owned(),
            uptime_ms: millis(self.0.began.elapsed()),
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
            problem: self.work().problem(),
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A connection that is being counted.
pub struct Counted(DaemonState);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}
