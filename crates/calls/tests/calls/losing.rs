//! A store that is lost while the desk has it open.

use std::fs;
use std::time::Duration;

use calls::{CallError, JobStatus};
use store::StoreError;

use crate::scene::{Scene, answered, close, ended, eventually, until_it_says};
use crate::tests;

tests![
    no_call_is_accepted_after_the_database_was_removed,
    no_call_is_accepted_after_the_records_were_deleted,
    running_job_ends_although_the_database_was_removed,
];

fn no_call_is_accepted_after_the_database_was_removed() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        answered(&desk, scene.order("answer one")).await;
        fs::remove_file(scene.state().join("switchboard.db")).unwrap();
        let refused = desk.submit(scene.order("answer two")).await;
        assert!(matches!(refused, Err(CallError::Store(StoreError::Lost(_)))), "{refused:?}");
        assert!(desk.store_loss().is_some());
        close(&desk).await;
    });
}

fn no_call_is_accepted_after_the_records_were_deleted() {
    Scene::play(async |scene| {
        let desk = scene.open_with(|settings| settings.lease = Duration::from_millis(300)).await;
        answered(&desk, scene.order("answer one")).await;
        let rows = || {
            let count = "SELECT count(*) FROM agent_workers";
            scene.database().query_row(count, [], |row| row.get::<_, i64>(0)).unwrap()
        };
        // The heartbeat writes its row again, so it is deleted until one check comes in between.
        eventually("the heartbeat is there", || rows() > 0);
        eventually("the loss is noticed", || {
            scene.database().execute_batch("DELETE FROM agent_workers").unwrap();
            desk.store_loss().is_some()
        });
        let refused = desk.submit(scene.order("answer two")).await;
        assert!(matches!(refused, Err(CallError::Store(StoreError::Lost(_)))), "{refused:?}");
        close(&desk).await;
    });
}

fn running_job_ends_although_the_database_was_removed() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        let job = desk.submit(scene.order("say here\ndelay 300ms\nanswer done")).await.unwrap().job;
        until_it_says(&desk, job, "here").await;
        fs::remove_file(scene.state().join("switchboard.db")).unwrap();
        assert_eq!(ended(&desk, job).await.status, JobStatus::Completed);
        assert!(desk.files(job).result().exists());
        close(&desk).await;
    });
}
