//! A store that is lost while the service has it open.

use std::fs;
use std::time::Duration;

use calls::{CallError, JobStatus};
use store::StoreError;

use crate::harness::{Harness, answered, close, ended, wait_for_line};
use testkit::{eventually, tests};

tests![
    calls_are_refused_after_the_database_is_removed,
    calls_are_refused_after_the_records_are_deleted,
    running_job_ends_after_the_database_is_removed,
];

fn calls_are_refused_after_the_database_is_removed() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        answered(&service, harness.request("answer one")).await;
        fs::remove_file(harness.state().join("switchboard.db")).unwrap();
        let refused = service.submit(harness.request("answer two")).await;
        assert!(matches!(refused, Err(CallError::Store(StoreError::Lost(_)))), "{refused:?}");
        assert!(service.store_loss().is_some());
        close(&service).await;
    });
}

fn calls_are_refused_after_the_records_are_deleted() {
    Harness::run(async |harness| {
        let service = harness.open_with(|settings| settings.lease = Duration::from_millis(300)).await;
        answered(&service, harness.request("answer one")).await;
        let rows = || {
            let count = "SELECT count(*) FROM agent_workers";
            harness.database().query_row(count, [], |row| row.get::<_, i64>(0)).unwrap()
        };
        // The heartbeat writes its row again, so it is deleted until a check comes in between.
        eventually("the heartbeat is there", || rows() > 0);
        eventually("the loss is noticed", || {
            harness.database().execute_batch("DELETE FROM agent_workers").unwrap();
            service.store_loss().is_some()
        });
        let refused = service.submit(harness.request("answer two")).await;
        assert!(matches!(refused, Err(CallError::Store(StoreError::Lost(_)))), "{refused:?}");
        close(&service).await;
    });
}

fn running_job_ends_after_the_database_is_removed() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let job = service.submit(harness.request("say here\ndelay 300ms\nanswer done")).await.unwrap().job;
        wait_for_line(&service, job, "here").await;
        fs::remove_file(harness.state().join("switchboard.db")).unwrap();
        assert_eq!(ended(&service, job).await.status, JobStatus::Completed);
        assert!(service.files(job).result().exists());
        close(&service).await;
    });
}
