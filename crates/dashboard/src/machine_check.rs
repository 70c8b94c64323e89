//! The check of the agents and the sandbox, cached because it runs programs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use agents::doctor::{DoctorReport, Finding};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Lifetime of a cached check.
const CACHE_LIFETIME: Duration = Duration::from_secs(30);
/// Maximum wait of a page for the first check.
const MAX_WAIT: Duration = Duration::from_secs(2);

/// The result of a check.
#[derive(Debug)]
pub struct MachineHealth {
    /// The agents, and findings about the machine.
    pub checkup: DoctorReport,
    /// The self-test of the sandbox.
    pub sandbox: Result<SandboxCheck, Finding>,
}

/// A passed self-test of the sandbox.
#[derive(Debug)]
pub struct SandboxCheck {
    /// The mechanisms, such as `bubblewrap, Landlock 5`.
    pub mechanisms: String,
    /// Number of blocked escape attempts.
    pub blocked_escapes: usize,
}

/// Checks the machine. Blocks, and returns none as soon as its argument returns false.
pub type RunCheck = Arc<dyn Fn(&dyn Fn() -> bool) -> Option<MachineHealth> + Send + Sync>;

/// The last check, and whether another one is running.
pub(crate) struct CheckCache {
    run_check: RunCheck,
    last: Arc<watch::Sender<Option<Arc<CachedCheck>>>>,
    is_running: Arc<AtomicBool>,
}

/// A check with its time.
pub(crate) struct CachedCheck {
    finished_at: Instant,
    /// Start of the check, in milliseconds since 1970.
    pub millis: u64,
    pub check: MachineHealth,
}

impl CheckCache {
    pub fn new(run_check: RunCheck) -> Self {
        Self { run_check, last: Arc::new(watch::Sender::new(None)), is_running: Arc::default() }
    }

    /// Returns the last check; none if the first one takes too long. Starts a new check in the background if it is outdated.
    pub async fn get(&self, now: u64, shutdown: &CancellationToken) -> Option<Arc<CachedCheck>> {
        let last = self.last.borrow().clone();
        if last.as_ref().is_none_or(|last| last.finished_at.elapsed() > CACHE_LIFETIME) {
            self.start(now, shutdown.clone());
        }
        if last.is_some() {
            return last;
        }
        let mut last = self.last.subscribe();
        let waited = timeout(MAX_WAIT, last.wait_for(Option::is_some)).await;
        waited.ok()?.ok()?.clone()
    }

    fn start(&self, now: u64, shutdown: CancellationToken) {
        if self.is_running.swap(true, Ordering::AcqRel) {
            return;
        }
        let (run_check, last, is_running) =
            (Arc::clone(&self.run_check), Arc::clone(&self.last), Arc::clone(&self.is_running));
        // Detached: each program has a deadline, and the check stops before the next program at shutdown.
        drop(tokio::task::spawn_blocking(move || {
            if let Some(check) = run_check(&|| !shutdown.is_cancelled()) {
                last.send_replace(Some(Arc::new(CachedCheck {
                    finished_at: Instant::now(),
                    millis: now,
                    check,
                })));
            }
            is_running.store(false, Ordering::Release);
        }));
    }
}
