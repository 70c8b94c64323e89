//! The state that the pages share.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use calls::JobService;
use model::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::login::Logins;
use crate::machine_check::CheckCache;

/// The state of the dashboard. Clones share it.
#[derive(Clone)]
pub(crate) struct PageContext(Arc<SharedState>);

struct SharedState {
    service: JobService,
    token_file: PathBuf,
    logins: Logins,
    checks: CheckCache,
    started_at: Timestamp,
    /// The address of the listener, once it is bound.
    address: Mutex<Option<SocketAddr>>,
    watchers: AtomicU64,
    /// Cancelled when the daemon stops: live streams end.
    shutdown: CancellationToken,
}

impl PageContext {
    pub fn new(service: JobService, token_file: PathBuf, checks: CheckCache) -> Self {
        Self(Arc::new(SharedState {
            started_at: service.now(),
            service,
            token_file,
            logins: Logins::default(),
            checks,
            address: Mutex::default(),
            watchers: AtomicU64::new(0),
            shutdown: CancellationToken::new(),
        }))
    }

    pub fn service(&self) -> &JobService {
        &self.0.service
    }

    pub fn logins(&self) -> &Logins {
        &self.0.logins
    }

    pub fn checks(&self) -> &CheckCache {
        &self.0.checks
    }

    pub fn token_file(&self) -> &PathBuf {
        &self.0.token_file
    }

    /// Returns when the daemon started.
    pub fn started_at(&self) -> Timestamp {
        self.0.started_at
    }

    pub fn shutdown(&self) -> &CancellationToken {
        &self.0.shutdown
    }

    pub fn set_address(&self, address: SocketAddr) {
        *self.0.address.lock().unwrap_or_else(PoisonError::into_inner) = Some(address);
    }

    /// Returns the name of the cookie. It contains the port: cookies ignore ports, and two daemons must not share one.
    pub fn cookie_name(&self) -> String {
        let address = *self.0.address.lock().unwrap_or_else(PoisonError::into_inner);
        format!("switchboard-{}", address.map_or(0, |address| address.port()))
    }

    /// Counts a live stream until the guard is dropped.
    pub fn count_watcher(&self) -> WatcherGuard {
        self.0.watchers.fetch_add(1, Ordering::Relaxed);
        WatcherGuard(self.clone())
    }

    /// Returns the number of live streams.
    pub fn watchers(&self) -> u64 {
        self.0.watchers.load(Ordering::Relaxed)
    }
}

/// An open live stream.
pub(crate) struct WatcherGuard(PageContext);

impl Drop for WatcherGuard {
    fn drop(&mut self) {
        self.0.0.watchers.fetch_sub(1, Ordering::Relaxed);
    }
}
