//! Validation and idempotency of submissions.

use std::fs;

use calls::{CallError, CallRequest, JobStatus};
use model::{CallSpec, SessionChoice};
use store::JobFilter;

use crate::harness::{Harness, answered, close};
use testkit::tests;

tests![
    call_that_cannot_be_launched_is_not_stored,
    same_key_returns_the_same_job,
    key_of_another_call_is_refused,
    key_finds_the_job_after_its_directory_is_gone,
    draining_service_refuses_calls,
];

fn call_that_cannot_be_launched_is_not_stored() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let file = harness.workspace().join("file");
        fs::write(&file, "").unwrap();
        let good = harness.call("answer yes");
        for (field, call) in [
            ("prompt", CallSpec { prompt: " \n".to_owned(), ..good.clone() }),
            ("prompt", CallSpec { prompt: "x".repeat(50 << 20), ..good.clone() }),
            ("cwd", CallSpec { cwd: "relative".into(), ..good.clone() }),
            ("cwd", CallSpec { cwd: harness.workspace().join("missing"), ..good.clone() }),
            ("cwd", CallSpec { cwd: file, ..good.clone() }),
            ("model", CallSpec { model: Some("--x".to_owned()), ..good.clone() }),
            ("continue_latest", CallSpec { session: SessionChoice::ContinueLatest, ..good.clone() }),
            (
                "resume_session_id",
                CallSpec { session: SessionChoice::Resume("no-uuid".parse().unwrap()), ..good.clone() },
            ),
        ] {
            let error = service.submit(CallRequest::new(call, "call_cc")).await.unwrap_err();
            assert_eq!(error.field(), Some(field), "{error:?}");
            assert!(!error.hint().is_empty());
        }
        assert_eq!(service.count(&JobFilter::default()).await.unwrap(), 0);
        assert_eq!(fs::read_dir(harness.state().join("jobs")).unwrap().count(), 0);
        close(&service).await;
    });
}

fn same_key_returns_the_same_job() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let request = CallRequest { idempotency_key: Some("k".to_owned()), ..harness.request("answer once") };
        let first = service.submit(request.clone()).await.unwrap();
        let second = service.submit(request.clone()).await.unwrap();
        assert_eq!((first.job, first.is_new, second.is_new), (second.job, true, false));
        assert_eq!(answered(&service, request).await.status, JobStatus::Completed);
        assert_eq!(harness.runs(first.job).len(), 1);
        close(&service).await;
    });
}

fn key_of_another_call_is_refused() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let request = CallRequest { idempotency_key: Some("k".to_owned()), ..harness.request("answer once") };
        answered(&service, request.clone()).await;
        let other_prompt = CallSpec { prompt: "Something else.".to_owned(), ..request.call.clone() };
        for other in [
            CallRequest { tool: "call_gem".to_owned(), ..request.clone() },
            CallRequest { call: other_prompt, ..request.clone() },
            CallRequest { call: CallSpec { cwd: "/usr".into(), ..request.call.clone() }, ..request },
        ] {
            let error = service.submit(other).await.unwrap_err();
            assert!(matches!(error, CallError::KeyOfAnother { .. }), "{error:?}");
        }
        close(&service).await;
    });
}

fn key_finds_the_job_after_its_directory_is_gone() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let directory = harness.workspace().join("short-lived");
        fs::create_dir(&directory).unwrap();
        let call = CallSpec { cwd: directory.clone(), ..harness.call("answer once") };
        let request =
            CallRequest { idempotency_key: Some("k".to_owned()), ..CallRequest::new(call, "call_cc") };
        let first = answered(&service, request.clone()).await;
        fs::remove_dir(&directory).unwrap();
        assert_eq!(answered(&service, request.clone()).await.job_id, first.job_id);
        close(&service).await;
        // A draining service finds it, too.
        assert_eq!(service.submit(request).await.unwrap().job.to_string(), first.job_id);
    });
}

fn draining_service_refuses_calls() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        close(&service).await;
        let error = service.submit(harness.request("answer late")).await.unwrap_err();
        assert!(matches!(error, CallError::Closing), "{error:?}");
    });
}
