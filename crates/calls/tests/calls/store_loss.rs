//! A store that is lost while the service has it open.

use std::fs;
use std::time::Duration;

use calls::{CallError, JobStatus, recover_store};
use store::{JobFilter, Loss, PageRequest, StoreError};

use crate::harness::{Harness, answered, close, ended, wait_for_line};
use testkit::tests;

tests![
    calls_are_refused_after_the_database_is_removed,
    calls_are_refused_after_the_records_are_deleted,
    queued_calls_are_refused_after_the_records_are_deleted,
    queries_report_deleted_records,
    dropped_tables_are_reported_as_a_loss,
    answer_is_recovered_after_the_records_are_deleted,
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
        let service = harness.open().await;
        let first = service.submit(harness.request("answer one")).await.unwrap().job;
        ended(&service, first).await;
        delete_records(harness);
        // Without any wait: the submit itself notices.
        let refused = service.submit(harness.request("answer two")).await;
        assert!(is_lost(&refused), "{refused:?}");
        assert!(service.store_loss().is_some());
        close(&service).await;
    });
}

fn queued_calls_are_refused_after_the_records_are_deleted() {
    Harness::run(async |harness| {
        let service = harness.open_with(|settings| settings.at_once = 1).await;
        let job = service.submit(harness.request("say here\nhang")).await.unwrap().job;
        wait_for_line(&service, job, "here").await;
        delete_records(harness);
        let refused = service.submit(harness.request("answer two")).await;
        assert!(is_lost(&refused), "{refused:?}");
        service.cancel_all().await;
        close(&service).await;
    });
}

fn queries_report_deleted_records() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let job = service.submit(harness.request("say here\nhang")).await.unwrap().job;
        wait_for_line(&service, job, "here").await;
        delete_records(harness);
        let answer = service.answer(job).await;
        assert!(is_lost(&answer), "{answer:?}");
        let list = service.list(&JobFilter::default(), PageRequest::default()).await;
        assert!(is_lost(&list), "{list:?}");
        service.cancel_all().await;
        close(&service).await;
    });
}

fn dropped_tables_are_reported_as_a_loss() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let job = service.submit(harness.request("answer one")).await.unwrap().job;
        ended(&service, job).await;
        let drop = TABLES.map(|table| format!("DROP TABLE {table};")).concat();
        harness.database().execute_batch(&format!("PRAGMA foreign_keys = OFF; {drop}")).unwrap();
        let list = service.list(&JobFilter::default(), PageRequest::default()).await;
        assert_eq!(loss(&list), Some(Loss::TablesDropped), "{list:?}");
        assert_eq!(service.store_loss().map(|lost| lost.loss), Some(Loss::TablesDropped));
        let refused = service.submit(harness.request("answer two")).await;
        assert_eq!(loss(&refused), Some(Loss::TablesDropped), "{refused:?}");
        assert!(refused.unwrap_err().hint().contains("switchboard recover"));
        close(&service).await;
    });
}

fn answer_is_recovered_after_the_records_are_deleted() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let job = service.submit(harness.request("say here\ndelay 1s\nanswer done")).await.unwrap().job;
        wait_for_line(&service, job, "here").await;
        harness.database().execute_batch("DELETE FROM agent_jobs").unwrap();
        let waited = service.wait_for_answer(job, Duration::from_mins(1)).await;
        assert!(is_lost(&waited), "{waited:?}");
        close(&service).await;
        drop(service);
        let settings = harness.settings();
        let report = recover_store(&settings.state, &settings.store, false).unwrap();
        assert_eq!((report.restored, report.skipped.len()), (1, 0), "{report:?}");
        let service = harness.open().await;
        let answer = ended(&service, job).await;
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Completed, "done"));
        close(&service).await;
    });
}

const TABLES: [&str; 4] = ["agent_exchanges", "tool_sessions", "agent_jobs", "agent_workers"];

fn delete_records(harness: &Harness) {
    let database = harness.database();
    for table in TABLES {
        database.execute(&format!("DELETE FROM {table}"), []).unwrap();
    }
}

fn is_lost<T>(result: &Result<T, CallError>) -> bool {
    loss(result) == Some(Loss::RecordsDeleted)
}

fn loss<T>(result: &Result<T, CallError>) -> Option<Loss> {
    match result {
        Err(CallError::Store(StoreError::Lost(lost))) => Some(lost.loss),
        _ => None,
    }
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
