//! The changes of jobs in git worktrees.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use calls::{
    Answer, CallError, Changes, Direction, FileSelection, JobService, JobStatus, RestoreError, ShutdownMode,
};
use model::{JobId, Mode};
use testkit::{eventually, tests};

use crate::harness::{Harness, answered, close, ended, wait_for_line};

tests![
    changes_of_completed_job_are_in_its_answer,
    changes_of_failed_job_are_in_its_answer,
    changes_of_timed_out_job_are_in_its_answer,
    changes_of_cancelled_job_are_in_its_answer,
    edits_before_the_job_are_not_its_changes,
    changes_span_all_runs_of_a_job,
    recovered_job_keeps_its_first_snapshot,
    lost_run_keeps_its_first_snapshot,
    job_outside_of_git_has_no_changes,
    job_in_observe_mode_is_recorded_without_sandbox,
    changes_are_not_recorded_if_switched_off,
    failed_snapshot_is_a_note_of_a_completed_job,
    repository_around_the_home_directory_is_not_recorded,
    git_in_a_workspace_is_not_run,
    file_changed_by_two_jobs_at_once_is_shared,
    undo_restores_the_files_of_an_ended_job,
    undo_selects_files_by_the_directory_of_the_caller,
    undo_of_a_running_job_is_refused,
    undo_is_refused_while_another_job_works_there,
    undo_with_conflicts_writes_nothing,
    record_is_beside_the_files_of_its_job,
];

/// Creates a repository with one committed file in the workspace.
fn create_repository(harness: &Harness) {
    fs::write(harness.workspace().join("a.txt"), "first\n").unwrap();
    git(&harness.workspace(), &["init", "-q"]);
    git(&harness.workspace(), &["add", "-A"]);
    git(
        &harness.workspace(),
        &["-c", "user.name=Ana", "-c", "user.email=ana@example.org", "commit", "-q", "-m", "a"],
    );
}

fn git(directory: &Path, args: &[&str]) {
    assert!(Command::new("git").current_dir(directory).args(args).status().unwrap().success());
}

/// Returns the changed files with their lines.
fn describe(changes: &Changes) -> Vec<String> {
    let lines = |number: Option<u64>| number.map_or("?".to_owned(), |number| number.to_string());
    let files = changes.files.iter();
    files
        .map(|file| format!("{} {} +{} -{}", file.kind, file.path, lines(file.added), lines(file.removed)))
        .collect()
}

fn changed(answer: &Answer) -> Vec<String> {
    describe(answer.changes.as_ref().unwrap_or_else(|| panic!("{answer:?}")))
}

fn id(answer: &Answer) -> JobId {
    answer.job_id.parse().unwrap()
}

async fn undo(service: &JobService, job: JobId) -> Result<calls::Restored, CallError> {
    service.restore(job, Direction::Undo, FileSelection::default()).await
}

/// Runs a script in the repository, and returns the answer.
async fn answer_of(harness: &Harness, script: &str) -> Answer {
    create_repository(harness);
    let service = harness.open().await;
    let answer = answered(&service, harness.request(script)).await;
    close(&service).await;
    answer
}

fn changes_of_completed_job_are_in_its_answer() {
    Harness::run(async |harness| {
        let answer = answer_of(harness, "write a.txt changed\nwrite b.txt new\nanswer done").await;
        assert_eq!(answer.status, JobStatus::Completed);
        assert_eq!(changed(&answer), ["modified a.txt +1 -1", "added b.txt +1 -0"]);
        let changes = answer.changes.unwrap();
        assert_eq!((changes.files_changed, changes.lines_added, changes.lines_removed), (2, 2, 1));
        assert!(changes.base.is_some_and(|base| base.len() == 40) && changes.head.is_none());
        assert!(fs::read_to_string(changes.patch_file.unwrap()).unwrap().contains("-first\n+changed\n"));
        let result = fs::read_to_string(answer.result_file.unwrap()).unwrap();
        let stored: Answer = serde_json::from_str(&result).unwrap();
        assert_eq!(stored.changes.unwrap().files_changed, 2);
    });
}

fn changes_of_failed_job_are_in_its_answer() {
    Harness::run(async |harness| {
        let answer = answer_of(harness, "write a.txt changed\nfail other broken").await;
        assert_eq!(
            (answer.status, changed(&answer)),
            (JobStatus::Failed, vec!["modified a.txt +1 -1".into()])
        );
    });
}

fn changes_of_timed_out_job_are_in_its_answer() {
    Harness::run(async |harness| {
        create_repository(harness);
        let service = harness.open().await;
        let mut request = harness.request("write a.txt changed\nsay here\nhang");
        request.call.limits.wall = Some(std::time::Duration::from_secs(2));
        let answer = answered(&service, request).await;
        assert_eq!(
            (answer.status, changed(&answer)),
            (JobStatus::Timeout, vec!["modified a.txt +1 -1".into()])
        );
        close(&service).await;
    });
}

fn changes_of_cancelled_job_are_in_its_answer() {
    Harness::run(async |harness| {
        create_repository(harness);
        let service = harness.open().await;
        let request = harness.request("write a.txt changed\nsay here\nhang");
        let job = service.submit(request).await.unwrap().job;
        wait_for_line(&service, job, "here").await;
        service.cancel(job).await.unwrap();
        let answer = ended(&service, job).await;
        assert_eq!(
            (answer.status, changed(&answer)),
            (JobStatus::Cancelled, vec!["modified a.txt +1 -1".into()])
        );
        close(&service).await;
    });
}

fn edits_before_the_job_are_not_its_changes() {
    Harness::run(async |harness| {
        fs::write(harness.workspace().join("mine.txt"), "mine\n").unwrap();
        create_repository(harness);
        fs::write(harness.workspace().join("a.txt"), "mine\n").unwrap();
        fs::write(harness.workspace().join("untracked.txt"), "mine\n").unwrap();
        let service = harness.open().await;
        let answer = answered(&service, harness.request("write mine.txt job\nanswer done")).await;
        assert_eq!(changed(&answer), ["modified mine.txt +1 -1"]);
        close(&service).await;
    });
}

fn changes_span_all_runs_of_a_job() {
    Harness::run(async |harness| {
        let answer = answer_of(harness, "write a.txt changed\nsay here\nmax-turns").await;
        assert!(harness.runs(id(&answer)).len() > 1, "{answer:?}");
        assert_eq!(changed(&answer), ["modified a.txt +1 -1"]);
    });
}

fn recovered_job_keeps_its_first_snapshot() {
    Harness::run(async |harness| {
        create_repository(harness);
        let service = harness.open().await;
        let request = harness.request("write a.txt changed\nsay here\nhang");
        let job = service.submit(request).await.unwrap().job;
        wait_for_line(&service, job, "here").await;
        service.close(ShutdownMode::Detach).await;
        let service = harness.open().await;
        wait_for_line(&service, job, "here").await;
        service.cancel(job).await.unwrap();
        assert_eq!(changed(&ended(&service, job).await), ["modified a.txt +1 -1"]);
        close(&service).await;
    });
}

fn lost_run_keeps_its_first_snapshot() {
    Harness::run(async |harness| {
        create_repository(harness);
        let service = harness.open().await;
        let request = harness.request("write a.txt changed\nsay here\nhang");
        let job = service.submit(request).await.unwrap().job;
        wait_for_line(&service, job, "here").await;
        let supervisor = rustix::process::Pid::from_raw(harness.runs(job)[0].supervisor.pid).unwrap();
        rustix::process::kill_process(supervisor, rustix::process::Signal::KILL).unwrap();
        eventually("the job is started again", || harness.runs(job).len() == 2);
        wait_for_line(&service, job, "here").await;
        service.cancel(job).await.unwrap();
        assert_eq!(changed(&ended(&service, job).await), ["modified a.txt +1 -1"]);
        close(&service).await;
    });
}

fn job_outside_of_git_has_no_changes() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let answer = answered(&service, harness.request("write a.txt new\nanswer done")).await;
        assert_eq!((&answer.changes, &answer.note), (&None, &None));
        let error = undo(&service, id(&answer)).await.unwrap_err();
        assert!(matches!(error, CallError::ChangesMissing { .. }), "{error:?}");
        close(&service).await;
    });
}

fn job_in_observe_mode_is_recorded_without_sandbox() {
    Harness::run(async |harness| {
        create_repository(harness);
        let service = harness.open().await;
        let mut request = harness.request("write a.txt changed\nanswer done");
        request.call.mode = Mode::Observe;
        assert_eq!(changed(&answered(&service, request).await), ["modified a.txt +1 -1"]);
        close(&service).await;
    });
}

fn changes_are_not_recorded_if_switched_off() {
    Harness::run(async |harness| {
        create_repository(harness);
        let service = harness.open_with(|settings| settings.record_changes = false).await;
        let answer = answered(&service, harness.request("write a.txt changed\nanswer done")).await;
        assert_eq!((answer.changes, answer.note), (None, None));
        close(&service).await;
    });
}

fn failed_snapshot_is_a_note_of_a_completed_job() {
    Harness::run(async |harness| {
        fs::write(harness.workspace().join(".git"), "gitdir: nowhere\n").unwrap();
        let service = harness.open().await;
        let answer = answered(&service, harness.request("write a.txt changed\nanswer done")).await;
        assert_eq!((answer.status, answer.changes), (JobStatus::Completed, None));
        let note = answer.note.unwrap();
        assert!(note.starts_with("changes were not recorded: ") && note.contains("/.git`"), "{note}");
        close(&service).await;
    });
}

fn git_in_a_workspace_is_not_run() {
    Harness::run(async |harness| {
        create_repository(harness);
        let (bin, ran) = (harness.workspace().join("bin"), harness.workspace().join("ran"));
        fs::create_dir(&bin).unwrap();
        fs::write(bin.join("git"), format!("#!/bin/sh\ntouch '{}'\n", ran.display())).unwrap();
        fs::set_permissions(bin.join("git"), fs::Permissions::from_mode(0o755)).unwrap();
        let planted = |settings: &mut calls::Settings| {
            let path = format!("{}:{}", bin.display(), settings.lookup.inherited["PATH"]);
            settings.lookup.inherited.insert("PATH".to_owned(), path);
        };
        let service = harness.open_with(planted).await;
        let answer = answered(&service, harness.request("write a.txt changed\nanswer done")).await;
        assert_eq!(changed(&answer), ["modified a.txt +1 -1"]);
        undo(&service, id(&answer)).await.unwrap();
        assert!(!ran.exists());
        close(&service).await;
    });
}

fn repository_around_the_home_directory_is_not_recorded() {
    Harness::run(async |harness| {
        create_repository(harness);
        let home = harness.workspace().join("home");
        fs::create_dir(&home).unwrap();
        let set_home = |settings: &mut calls::Settings| {
            settings.lookup.inherited.insert("HOME".into(), home.display().to_string());
        };
        let service = harness.open_with(set_home).await;
        let answer = answered(&service, harness.request("write a.txt changed\nanswer done")).await;
        let note = answer.note.unwrap();
        assert!(note.contains(&format!("contains `{}`", home.canonicalize().unwrap().display())), "{note}");
        close(&service).await;
    });
}

fn file_changed_by_two_jobs_at_once_is_shared() {
    Harness::run(async |harness| {
        create_repository(harness);
        let service = harness.open().await;
        let submit = async |script: &str| service.submit(harness.request(script)).await.unwrap().job;
        let long = submit("write long.txt early\nsay here\nhang").await;
        wait_for_line(&service, long, "here").await;
        let short = submit("write a.txt changed\nanswer done").await;
        let answer = ended(&service, short).await;
        let shared = |answer: &Answer| -> Vec<(String, bool)> {
            let files = &answer.changes.as_ref().unwrap().files;
            files.iter().map(|file| (file.path.clone(), file.shared)).collect()
        };
        assert_eq!(shared(&answer), [("a.txt".into(), true)]);
        service.cancel(long).await.unwrap();
        let answer = ended(&service, long).await;
        assert_eq!(shared(&answer), [("a.txt".into(), true), ("long.txt".into(), false)]);
        close(&service).await;
    });
}

fn undo_restores_the_files_of_an_ended_job() {
    Harness::run(async |harness| {
        create_repository(harness);
        let service = harness.open().await;
        let answer =
            answered(&service, harness.request("write a.txt changed\nwrite b.txt new\nanswer done")).await;
        assert_eq!(undo(&service, id(&answer)).await.unwrap().files.len(), 2);
        assert_eq!(fs::read_to_string(harness.workspace().join("a.txt")).unwrap(), "first\n");
        assert!(!harness.workspace().join("b.txt").exists());
        service.restore(id(&answer), Direction::Redo, FileSelection::default()).await.unwrap();
        assert_eq!(fs::read_to_string(harness.workspace().join("a.txt")).unwrap(), "changed");
        close(&service).await;
    });
}

fn undo_selects_files_by_the_directory_of_the_caller() {
    Harness::run(async |harness| {
        create_repository(harness);
        let below = harness.workspace().join("below");
        fs::create_dir(&below).unwrap();
        let service = harness.open().await;
        let script = "write a.txt changed\nwrite below/a.txt new\nanswer done";
        let answer = answered(&service, harness.request(script)).await;
        let base = Some(below.canonicalize().unwrap());
        let selection = FileSelection { paths: vec!["a.txt".into()], base };
        service.restore(id(&answer), Direction::Undo, selection).await.unwrap();
        assert!(!below.join("a.txt").exists());
        assert_eq!(fs::read_to_string(harness.workspace().join("a.txt")).unwrap(), "changed");
        close(&service).await;
    });
}

fn undo_of_a_running_job_is_refused() {
    Harness::run(async |harness| {
        create_repository(harness);
        let service = harness.open().await;
        let request = harness.request("write a.txt changed\nsay here\nhang");
        let job = service.submit(request).await.unwrap().job;
        wait_for_line(&service, job, "here").await;
        let so_far = service.change_set(job, FileSelection::default()).await.unwrap();
        assert_eq!(describe(&Changes::from(&so_far)), ["modified a.txt +1 -1"]);
        let error = undo(&service, job).await.unwrap_err();
        assert!(matches!(error, CallError::StillRunning { .. }), "{error:?}");
        service.cancel(job).await.unwrap();
        ended(&service, job).await;
        close(&service).await;
    });
}

fn undo_is_refused_while_another_job_works_there() {
    Harness::run(async |harness| {
        create_repository(harness);
        let service = harness.open().await;
        let answer = answered(&service, harness.request("write a.txt changed\nanswer done")).await;
        let other = service.submit(harness.request("say here\nhang")).await.unwrap().job;
        wait_for_line(&service, other, "here").await;
        let error = undo(&service, id(&answer)).await.unwrap_err();
        assert!(matches!(error, CallError::WorktreeInUse { user, .. } if user == other), "{error:?}");
        service.cancel(other).await.unwrap();
        ended(&service, other).await;
        undo(&service, id(&answer)).await.unwrap();
        close(&service).await;
    });
}

fn undo_with_conflicts_writes_nothing() {
    Harness::run(async |harness| {
        create_repository(harness);
        let service = harness.open().await;
        let answer =
            answered(&service, harness.request("write a.txt changed\nwrite b.txt new\nanswer done")).await;
        fs::write(harness.workspace().join("a.txt"), "mine\n").unwrap();
        let error = undo(&service, id(&answer)).await.unwrap_err();
        assert!(matches!(error, CallError::Restore(RestoreError::Conflicts(_))), "{error:?}");
        assert_eq!(fs::read_to_string(harness.workspace().join("b.txt")).unwrap(), "new");
        close(&service).await;
    });
}

fn record_is_beside_the_files_of_its_job() {
    Harness::run(async |harness| {
        let answer = answer_of(harness, "write a.txt changed\nanswer done").await;
        let patch = answer.changes.unwrap().patch_file.unwrap();
        let directory = Path::new(&answer.output_file).parent().unwrap().to_owned();
        assert!(Path::new(&patch).starts_with(&directory));
    });
}
