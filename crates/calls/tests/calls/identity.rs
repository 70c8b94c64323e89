//! One state directory is one identity, however its path is spelled and whatever the machine is called.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::Duration;

use calls::{CallError, JobService, JobStatus, ShutdownMode};
use store::StoreSetting;

use crate::scene::{Scene, close, ended, settings, until_it_says};
use crate::tests;

tests![
    job_is_taken_over_under_every_spelling_of_the_directory,
    jobs_outlive_a_change_of_the_host_name,
    copy_of_a_directory_in_use_is_refused,
    directory_that_was_moved_is_opened_when_its_lease_is_over,
];

fn job_is_taken_over_under_every_spelling_of_the_directory() {
    Scene::play(async |scene| {
        let state = scene.state();
        fs::create_dir_all(&state).unwrap();
        let link = scene.workspace().join("link");
        symlink(&state, &link).unwrap();
        let spelled = |text: &str| PathBuf::from(format!("{}{text}", state.display()));
        let desk = scene.open().await;
        let job = desk.submit(scene.order("say here\nhang")).await.unwrap().job;
        until_it_says(&desk, job, "here").await;
        desk.close(ShutdownMode::Detach).await;
        for spelling in [spelled("//"), spelled("/."), spelled("/../state"), link] {
            let desk = JobService::open(settings(&spelling)).await.unwrap();
            until_it_says(&desk, job, "here").await;
            assert_eq!(scene.runs(job).len(), 1, "no second agent beside the first: {}", spelling.display());
            desk.close(ShutdownMode::Detach).await;
        }
        let desk = scene.open().await;
        desk.cancel(job).await.unwrap();
        assert_eq!(ended(&desk, job).await.status, JobStatus::Cancelled);
        close(&desk).await;
    });
}

fn jobs_outlive_a_change_of_the_host_name() {
    Scene::play(async |scene| {
        let named = |name: &str, at_once| {
            let name = name.to_owned();
            move |settings: &mut calls::Settings| (settings.host, settings.at_once) = (Some(name), at_once)
        };
        let desk = scene.open_with(named("old", 1)).await;
        let running = desk.submit(scene.order("say here\ndelay 500ms\nanswer one")).await.unwrap().job;
        let queued = desk.submit(scene.order("answer two")).await.unwrap().job;
        until_it_says(&desk, running, "here").await;
        desk.close(ShutdownMode::Detach).await;
        let desk = scene.open_with(named("new", 1)).await;
        assert_eq!(ended(&desk, running).await.output, "one");
        assert_eq!(scene.runs(running).len(), 1);
        assert_eq!(ended(&desk, queued).await.output, "two");
        close(&desk).await;
    });
}

/// A store that several state directories share.
fn shared(scene: &Scene) -> impl Fn(&mut calls::Settings) {
    let path = scene.workspace().join("shared.db");
    move |settings: &mut calls::Settings| {
        settings.host = None;
        settings.lease = Duration::from_secs(1);
        settings.store.setting = StoreSetting::Sqlite { path: Some(path.clone()) };
    }
}

fn copy_of_a_directory_in_use_is_refused() {
    Scene::play(async |scene| {
        let desk = scene.open_with(shared(scene)).await;
        let copy = scene.workspace().join("copy");
        fs::create_dir(&copy).unwrap();
        fs::copy(scene.state().join("identity.json"), copy.join("identity.json")).unwrap();
        let mut of_copy = settings(&copy);
        shared(scene)(&mut of_copy);
        // It is refused for as long as the original is alive, and with an identity of its own it is another directory.
        for _ in 0..2 {
            let error = JobService::open(of_copy.clone()).await.unwrap_err();
            assert!(matches!(error, CallError::Copied { .. }), "{error:?}");
            assert!(error.hint().contains("identity.json"), "{}", error.hint());
        }
        fs::remove_file(copy.join("identity.json")).unwrap();
        close(&JobService::open(of_copy).await.unwrap()).await;
        close(&desk).await;
    });
}

fn directory_that_was_moved_is_opened_when_its_lease_is_over() {
    Scene::play(async |scene| {
        let desk = scene.open_with(shared(scene)).await;
        let job = desk.submit(scene.order("say here\ndelay 300ms\nanswer moved")).await.unwrap().job;
        until_it_says(&desk, job, "here").await;
        desk.close(ShutdownMode::Detach).await;
        // As a restart of the machine makes it another place.
        let identity = scene.state().join("identity.json");
        let text = fs::read_to_string(&identity).unwrap();
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        fs::write(&identity, text.replace(boot.trim(), "an earlier one")).unwrap();
        let desk = scene.open_with(shared(scene)).await;
        assert_eq!(ended(&desk, job).await.output, "moved");
        close(&desk).await;
    });
}
