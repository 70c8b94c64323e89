//! The phases of a daemon, with a scripted job backend.

use super::backend::{BoxFuture, JobBackend, Load};
use super::connection::{ClientConnection, ConnectedClient};
use super::*;
use model::Owner;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Notify;

/// A backend whose jobs end when the test says so.
#[derive(Default)]
struct ScriptedBackend {
    running: AtomicU64,
    cancelled: AtomicU64,
    ended: Notify,
    polled: Notify,
}

impl JobBackend for ScriptedBackend {
    fn load(&self) -> BoxFuture<'_, Load> {
        Box::pin(async {
            self.polled.notify_one();
            Load { running: self.running.load(Ordering::SeqCst), queued: 0 }
        })
    }

    fn drain(&self) -> BoxFuture<'_> {
        Box::pin(async {
            while self.running.load(Ordering::SeqCst) > 0 {
                self.ended.notified().await;
            }
        })
    }

    fn cancel(&self) -> BoxFuture<'_> {
        Box::pin(async {
            self.cancelled.fetch_add(self.running.swap(0, Ordering::SeqCst), Ordering::SeqCst);
            self.ended.notify_one();
        })
    }

    fn detach(&self) -> BoxFuture<'_> {
        Box::pin(async {})
    }

    fn handle_control<'a>(
        &'a self,
        _: protocol::DaemonRequest,
        _: &'a mut ClientConnection,
    ) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn serve_mcp(
        &self,
        _: ClientConnection,
        _: ConnectedClient,
        _: CancellationToken,
    ) -> BoxFuture<'_, io::Result<()>> {
        Box::pin(async { Ok(()) })
    }
}

fn daemon_state(text: &str, backend: Arc<ScriptedBackend>) -> (tempfile::TempDir, DaemonState) {
    let root = tempfile::tempdir().unwrap();
    let home =
        SwitchboardHome::from_environment(&[("SWITCHBOARD_HOME", root.path().to_str().unwrap())].into())
            .unwrap();
    std::fs::write(home.config_file(), text).unwrap();
    let settings = EffectiveSettings::read(Some(&home), &ProcessEnvironment::default(), &[]).unwrap();
    let state = DaemonState::new(home, &settings, Owner::new("test"), backend);
    (root, state)
}

#[tokio::test]
async fn drain_waits_for_running_jobs() {
    let backend = Arc::new(ScriptedBackend { running: 1.into(), ..ScriptedBackend::default() });
    let (_root, state) = daemon_state("", backend.clone());
    state.enter_phase(DaemonPhase::Draining);
    let mut drained = Box::pin(drain(&state));
    tokio::select! {
        biased;
        () = &mut drained => panic!("a job runs"),
        () = tokio::task::yield_now() => {}
    }
    backend.running.store(0, Ordering::SeqCst);
    backend.ended.notify_one();
    drained.await;
}

#[tokio::test]
async fn phase_never_goes_back() {
    let (_root, state) = daemon_state("", Arc::default());
    state.enter_phase(DaemonPhase::Stopping);
    state.enter_phase(DaemonPhase::Draining);
    assert_eq!(state.phase(), DaemonPhase::Stopping);
    state.wait_for_phase(DaemonPhase::Draining).await;
}

#[tokio::test]
async fn daemon_with_running_job_is_not_idle() {
    let backend = Arc::new(ScriptedBackend { running: 1.into(), ..ScriptedBackend::default() });
    let (_root, state) = daemon_state("idle_stop = \"10ms\"", backend.clone());
    let mut idle = Box::pin(idle_timeout(&state));
    for _ in 0..3 {
        tokio::select! {
            biased;
            () = &mut idle => panic!("a job runs"),
            () = backend.polled.notified() => {}
        }
    }
    backend.running.store(0, Ordering::SeqCst);
    idle.await;
}
