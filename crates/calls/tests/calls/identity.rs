//! The identity of a state directory, independent of its path and of the host name.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::Duration;

use calls::{CallError, JobService, JobStatus, ShutdownMode};
use store::StoreSetting;

use crate::harness::{Harness, close, ended, settings, wait_for_line};
use testkit::tests;

tests![
    job_is_adopted_under_every_spelling_of_the_directory,
    jobs_survive_a_change_of_the_host_name,
    copy_of_a_directory_in_use_is_refused,
    moved_directory_opens_when_its_lease_expires,
];

fn job_is_adopted_under_every_spelling_of_the_directory() {
    Harness::run(async |harness| {
        let state = harness.state();
        fs::create_dir_all(&state).unwrap();
        let link = harness.workspace().join("link");
        symlink(&state, &link).unwrap();
        let spelled = |text: &str| PathBuf::from(format!("{}{text}", state.display()));
        let service = harness.open().await;
        let job = service.submit(harness.request("say here\nhang")).await.unwrap().job;
        wait_for_line(&service, job, "here").await;
        service.close(ShutdownMode::Detach).await;
        for spelling in [spelled("//"), spelled("/."), spelled("/../state"), link] {
            let service = JobService::open(settings(&spelling)).await.unwrap();
            wait_for_line(&service, job, "here").await;
            assert_eq!(
                harness.runs(job).len(),
                1,
                "no second agent beside the first: {}",
                spelling.display()
            );
            service.close(ShutdownMode::Detach).await;
        }
        let service = harness.open().await;
        service.cancel(job).await.unwrap();
        assert_eq!(ended(&service, job).await.status, JobStatus::Cancelled);
        close(&service).await;
    });
}

fn jobs_survive_a_change_of_the_host_name() {
    Harness::run(async |harness| {
        let named = |name: &str, at_once| {
            let name = name.to_owned();
            move |settings: &mut calls::Settings| (settings.host, settings.at_once) = (Some(name), at_once)
        };
        let service = harness.open_with(named("old", 1)).await;
        let running = service.submit(harness.request("say here\ndelay 500ms\nanswer one")).await.unwrap().job;
        let queued = service.submit(harness.request("answer two")).await.unwrap().job;
        wait_for_line(&service, running, "here").await;
        service.close(ShutdownMode::Detach).await;
        let service = harness.open_with(named("new", 1)).await;
        assert_eq!(ended(&service, running).await.output, "one");
        assert_eq!(harness.runs(running).len(), 1);
        assert_eq!(ended(&service, queued).await.output, "two");
        close(&service).await;
    });
}

/// A store that several state directories share.
fn shared(harness: &Harness) -> impl Fn(&mut calls::Settings) {
    let path = harness.workspace().join("shared.db");
    move |settings: &mut calls::Settings| {
        settings.host = None;
        settings.lease = Duration::from_secs(1);
        settings.store.setting = StoreSetting::Sqlite { path: Some(path.clone()) };
    }
}

fn copy_of_a_directory_in_use_is_refused() {
    Harness::run(async |harness| {
        let service = harness.open_with(shared(harness)).await;
        let copy = harness.workspace().join("copy");
        fs::create_dir(&copy).unwrap();
        fs::copy(harness.state().join("identity.json"), copy.join("identity.json")).unwrap();
        let mut of_copy = settings(&copy);
        shared(harness)(&mut of_copy);
        // It is refused while the original is alive. With an identity of its own it is another directory.
        for _ in 0..2 {
            let error = JobService::open(of_copy.clone()).await.unwrap_err();
            assert!(matches!(error, CallError::Copied { .. }), "{error:?}");
            assert!(error.hint().contains("identity.json"), "{}", error.hint());
        }
        fs::remove_file(copy.join("identity.json")).unwrap();
        close(&JobService::open(of_copy).await.unwrap()).await;
        close(&service).await;
    });
}

fn moved_directory_opens_when_its_lease_expires() {
    Harness::run(async |harness| {
        let service = harness.open_with(shared(harness)).await;
        let job = service.submit(harness.request("say here\ndelay 300ms\nanswer moved")).await.unwrap().job;
        wait_for_line(&service, job, "here").await;
        service.close(ShutdownMode::Detach).await;
        // A reboot changes the location, too.
        let identity = harness.state().join("identity.json");
        let text = fs::read_to_string(&identity).unwrap();
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        fs::write(&identity, text.replace(boot.trim(), "an earlier one")).unwrap();
        let service = harness.open_with(shared(harness)).await;
        assert_eq!(ended(&service, job).await.output, "moved");
        close(&service).await;
    });
}
