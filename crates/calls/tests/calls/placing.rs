//! What is refused before anything is placed, and what is one job.

use std::fs;

use calls::{CallError, CallRequest, JobStatus};
use model::{CallSpec, SessionChoice};
use store::JobFilter;

use crate::scene::{Scene, answered, close};
use crate::tests;

tests![
    what_cannot_be_launched_is_refused_and_not_placed,
    the_same_key_is_the_same_job,
    the_key_of_another_call_is_refused,
    a_call_that_was_placed_is_found_by_its_key_though_its_folder_is_gone,
    a_closing_desk_takes_no_calls,
];

fn what_cannot_be_launched_is_refused_and_not_placed() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        let file = scene.workspace().join("file");
        fs::write(&file, "").unwrap();
        let good = scene.call("answer yes");
        for (field, call) in [
            ("prompt", CallSpec { prompt: " \n".to_owned(), ..good.clone() }),
            ("prompt", CallSpec { prompt: "x".repeat(50 << 20), ..good.clone() }),
            ("cwd", CallSpec { cwd: "relative".into(), ..good.clone() }),
            ("cwd", CallSpec { cwd: scene.workspace().join("missing"), ..good.clone() }),
            ("cwd", CallSpec { cwd: file, ..good.clone() }),
            ("model", CallSpec { model: Some("--x".to_owned()), ..good.clone() }),
            ("continue_latest", CallSpec { session: SessionChoice::ContinueLatest, ..good.clone() }),
            (
                "resume_session_id",
                CallSpec { session: SessionChoice::Resume("no-uuid".parse().unwrap()), ..good.clone() },
            ),
        ] {
            let error = desk.submit(CallRequest::new(call, "call_cc")).await.unwrap_err();
            assert_eq!(error.field(), Some(field), "{error:?}");
            assert!(!error.hint().is_empty());
        }
        assert_eq!(desk.count(&JobFilter::default()).await.unwrap(), 0);
        assert_eq!(fs::read_dir(scene.state().join("jobs")).unwrap().count(), 0);
        close(&desk).await;
    });
}

fn the_same_key_is_the_same_job() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        let order = CallRequest { idempotency_key: Some("k".to_owned()), ..scene.order("answer once") };
        let first = desk.submit(order.clone()).await.unwrap();
        let second = desk.submit(order.clone()).await.unwrap();
        assert_eq!((first.job, first.is_new, second.is_new), (second.job, true, false));
        assert_eq!(answered(&desk, order).await.status, JobStatus::Completed);
        assert_eq!(scene.runs(first.job).len(), 1);
        close(&desk).await;
    });
}

fn the_key_of_another_call_is_refused() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        let order = CallRequest { idempotency_key: Some("k".to_owned()), ..scene.order("answer once") };
        answered(&desk, order.clone()).await;
        let other_prompt = CallSpec { prompt: "Something else.".to_owned(), ..order.call.clone() };
        for other in [
            CallRequest { tool: "call_gem".to_owned(), ..order.clone() },
            CallRequest { call: other_prompt, ..order.clone() },
            CallRequest { call: CallSpec { cwd: "/usr".into(), ..order.call.clone() }, ..order },
        ] {
            let error = desk.submit(other).await.unwrap_err();
            assert!(matches!(error, CallError::KeyOfAnother { .. }), "{error:?}");
        }
        close(&desk).await;
    });
}

fn a_call_that_was_placed_is_found_by_its_key_though_its_folder_is_gone() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        let folder = scene.workspace().join("short-lived");
        fs::create_dir(&folder).unwrap();
        let call = CallSpec { cwd: folder.clone(), ..scene.call("answer once") };
        let order =
            CallRequest { idempotency_key: Some("k".to_owned()), ..CallRequest::new(call, "call_cc") };
        let first = answered(&desk, order.clone()).await;
        fs::remove_dir(&folder).unwrap();
        assert_eq!(answered(&desk, order.clone()).await.job_id, first.job_id);
        close(&desk).await;
        // Nor does it need a desk that takes new calls.
        assert_eq!(desk.submit(order).await.unwrap().job.to_string(), first.job_id);
    });
}

fn a_closing_desk_takes_no_calls() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        close(&desk).await;
        let error = desk.submit(scene.order("answer late")).await.unwrap_err();
        assert!(matches!(error, CallError::Closing), "{error:?}");
    });
}
