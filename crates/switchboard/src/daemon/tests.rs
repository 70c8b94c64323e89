//! The phases of a daemon, with work that ends when it is told to.

use super::connection::{Client, Connection};
use super::work::{Load, Turn};
use super::*;
use model::Owner;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Notify;

/// Work of which a test says when it ends.
#[derive(Default)]
struct Scripted {
    running: AtomicU64,
    cancelled: AtomicU64,
    ended: Notify,
    looked_at: Notify,
}

impl Work for Scripted {
    fn load(&self) -> Turn<'_, Load> {
        Box::pin(async {
            self.looked_at.notify_one();
            Load { running: self.running.load(Ordering::SeqCst), queued: 0 }
        })
    }

    fn drain(&self) -> Turn<'_> {
        Box::pin(async {
            while self.running.load(Ordering::SeqCst) > 0 {
                self.ended.notified().await;
            }
        })
    }

    fn cancel(&self) -> Turn<'_> {
        Box::pin(async {
            self.cancelled.fetch_add(self.running.swap(0, Ordering::SeqCst), Ordering::SeqCst);
            self.ended.notify_one();
        })
    }

    fn let_go(&self) -> Turn<'_> {
        Box::pin(async {})
    }

    fn ask<'a>(&'a self, _: crate::wire::Request, _: &'a mut Connection) -> Turn<'a, io::Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn converse(&self, _: Connection, _: Client, _: CancellationToken) -> Turn<'_, io::Result<()>> {
        Box::pin(async { Ok(()) })
    }
}

fn desk(text: &str, work: Arc<Scripted>) -> (tempfile::TempDir, DaemonState) {
    let root = tempfile::tempdir().unwrap();
    let home = Home::find(&[("SWITCHBOARD_HOME", root.path().to_str().unwrap())].into()).unwrap();
    std::fs::write(home.config_file(), text).unwrap();
    let settings = Settings::read(Some(&home), &Environment::default(), &[]).unwrap();
    let desk = DaemonState::new(home, &settings, Owner::new("test"), work);
    (root, desk)
}

#[tokio::test]
async fn a_drain_waits_for_what_runs_and_no_longer() {
    let work = Arc::new(Scripted { running: 1.into(), ..Scripted::default() });
    let (_root, desk) = desk("", work.clone());
    desk.go_on_to(Phase::Draining);
    let mut drained = Box::pin(drained(&desk));
    tokio::select! {
        biased;
        () = &mut drained => panic!("a job runs"),
        () = tokio::task::yield_now() => {}
    }
    work.running.store(0, Ordering::SeqCst);
    work.ended.notify_one();
    drained.await;
}

#[tokio::test]
async fn there_is_no_way_back_from_a_phase() {
    let (_root, desk) = desk("", Arc::default());
    desk.go_on_to(Phase::Ending);
    desk.go_on_to(Phase::Draining);
    assert_eq!(desk.phase(), Phase::Ending);
    desk.reached(Phase::Draining).await;
}

#[tokio::test]
async fn a_daemon_with_work_is_not_idle_however_long_nobody_asks() {
    let work = Arc::new(Scripted { running: 1.into(), ..Scripted::default() });
    let (_root, desk) = desk("idle_stop = \"10ms\"", work.clone());
    let mut idle = Box::pin(idle_for_too_long(&desk));
    for _ in 0..3 {
        tokio::select! {
            biased;
            () = &mut idle => panic!("a job runs"),
            () = work.looked_at.notified() => {}
        }
    }
    work.running.store(0, Ordering::SeqCst);
    idle.await;
}
