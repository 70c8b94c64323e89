//! Jobs in private checkouts.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use calls::{
    Answer, ApplyRequest, CallError, CallRequest, ChangesState, FileSelection, JobService, JobStatus,
    PrepareError, PrivateCheckout, RepositoryOptions, ShutdownMode,
};
use model::{JobId, Mode, SessionChoice};
use testkit::{eventually, tests};

use crate::harness::{Harness, LONG, answered, close, ended, wait_for_line};

tests![
    job_in_a_checkout_leaves_the_worktree_untouched,
    checkout_contains_the_uncommitted_files_of_the_user,
    job_works_in_the_same_subdirectory,
    configured_repository_has_checkouts_by_default,
    caller_overrides_the_configured_default,
    jobs_at_once_do_not_see_each_other,
    job_without_changes_leaves_no_checkout,
    job_that_cannot_start_leaves_no_checkout,
    failed_job_keeps_its_changes,
    follow_up_continues_the_changes,
    follow_up_after_apply_gets_a_new_checkout_at_the_same_path,
    read_only_follow_up_sees_the_changes,
    unpublished_branch_of_another_is_not_replaced,
    checkout_outside_of_git_is_refused,
    checkout_for_a_read_only_call_is_refused,
    checkout_for_a_session_from_outside_is_refused,
    follow_up_in_another_directory_is_refused,
    collisions_name_other_jobs_and_edits_of_the_user,
    recovered_job_continues_in_its_checkout,
    lost_run_continues_in_its_checkout,
    leftover_checkouts_are_removed_by_the_next_service,
    diff_selects_files_by_the_directory_of_the_user,
    expired_checkout_is_removed_and_its_branch_stays,
    unpublished_changes_outlive_their_job,
];

/// Creates a repository with a commit, a modified and an untracked file.
pub fn create_repository(harness: &Harness) -> PathBuf {
    let root = harness.workspace().canonicalize().unwrap();
    fs::create_dir(root.join("src")).unwrap();
    for (name, text) in
        [("a.txt", "one\ntwo\nthree\nfour\nfive\n"), ("src/b.txt", "b\n"), ("mine.txt", "committed\n")]
    {
        fs::write(root.join(name), text).unwrap();
    }
    git(&root, &["init", "-q", "-b", "main"]);
    git(&root, &["config", "user.name", "Ana"]);
    git(&root, &["config", "user.email", "ana@example.org"]);
    git(&root, &["add", "-A"]);
    git(&root, &["commit", "-q", "-m", "first"]);
    fs::write(root.join("mine.txt"), "edited\n").unwrap();
    fs::write(root.join("untracked.txt"), "untracked\n").unwrap();
    root
}

pub fn git(directory: &Path, args: &[&str]) -> String {
    let output = Command::new("git").current_dir(directory).args(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

pub fn request(harness: &Harness, script: &str) -> CallRequest {
    let mut request = harness.request(script);
    request.call.worktree = Some(true);
    request
}

pub fn checkout(answer: &Answer) -> &PrivateCheckout {
    let checkout = answer.changes.as_ref().and_then(|changes| changes.checkout.as_ref());
    checkout.unwrap_or_else(|| panic!("{answer:?}"))
}

pub fn id(answer: &Answer) -> JobId {
    answer.job_id.parse().unwrap()
}

pub fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap()
}

pub fn places(harness: &Harness) -> usize {
    fs::read_dir(harness.state().join("checkouts")).map_or(0, Iterator::count)
}

pub async fn apply(service: &JobService, answer: &Answer) -> Result<calls::Applied, CallError> {
    service.apply(id(answer), ApplyRequest::default()).await
}

/// Returns a call that resumes the session of another one.
fn follow_up(harness: &Harness, first: &Answer, script: &str) -> CallRequest {
    let mut request = harness.request(script);
    let session = first.session_id.as_ref().unwrap().parse().unwrap();
    request.call.session = SessionChoice::Resume(session);
    request
}

fn job_in_a_checkout_leaves_the_worktree_untouched() {
    Harness::run(async |harness| {
        let root = create_repository(harness);
        let status = git(&root, &["status", "--porcelain"]);
        let service = harness.open().await;
        let script = "write a.txt changed\nwrite new.txt new\nanswer done";
        let answer = answered(&service, request(harness, script)).await;
        assert_eq!(answer.status, JobStatus::Completed, "{answer:?}");
        assert_eq!(git(&root, &["status", "--porcelain"]), status);
        assert!(!root.join("new.txt").exists());
        let found = checkout(&answer);
        assert_eq!(found.state, ChangesState::Open);
        assert_eq!(read(Path::new(&found.directory).join("new.txt")), "new");
        let branch = found.branch.clone().unwrap();
        assert!(branch.starts_with("switchboard/"), "{branch}");
        assert_eq!(git(&root, &["show", &format!("{branch}:a.txt")]), "changed");
        assert_eq!(git(&root, &["diff", "--name-only", &format!("{branch}~"), &branch]), "a.txt\nnew.txt\n");
        assert_eq!(git(&root, &["worktree", "list"]).lines().count(), 1);
        let changes = answer.changes.unwrap();
        assert_eq!((changes.files_changed, answer.cwd), (2, Some(root.display().to_string())));
        close(&service).await;
    });
}

fn checkout_contains_the_uncommitted_files_of_the_user() {
    Harness::run(async |harness| {
        let root = create_repository(harness);
        let service = harness.open().await;
        let answer = answered(&service, request(harness, "write new.txt new\nanswer done")).await;
        let directory = PathBuf::from(&checkout(&answer).directory);
        assert_eq!(read(directory.join("mine.txt")), "edited\n");
        assert_eq!(read(directory.join("untracked.txt")), "untracked\n");
        assert_eq!(directory.file_name(), root.file_name());
        close(&service).await;
    });
}

fn job_works_in_the_same_subdirectory() {
    Harness::run(async |harness| {
        let root = create_repository(harness);
        let service = harness.open().await;
        let mut request = request(harness, "write b.txt changed\nanswer done");
        request.call.cwd = root.join("src");
        let answer = answered(&service, request).await;
        assert_eq!(answer.changes.as_ref().unwrap().files[0].path, "src/b.txt");
        assert_eq!(read(root.join("src/b.txt")), "b\n");
        apply(&service, &answer).await.unwrap();
        assert_eq!(read(root.join("src/b.txt")), "changed");
        close(&service).await;
    });
}

fn configure(path: &Path) -> impl FnOnce(&mut calls::Settings) {
    let options = RepositoryOptions { path: path.to_owned(), worktree: true, worktree_setup: None };
    move |settings| settings.repositories = vec![options]
}

fn configured_repository_has_checkouts_by_default() {
    Harness::run(async |harness| {
        let root = create_repository(harness);
        let service = harness.open_with(configure(&root)).await;
        let answer = answered(&service, harness.request("write a.txt changed\nanswer done")).await;
        assert_eq!(checkout(&answer).state, ChangesState::Open);
        let mut observing = harness.request("answer done");
        observing.call.mode = Mode::Observe;
        observing.call.policy = model::CallPolicy::from(model::Preset::Observe);
        observing.call.policy.requirement = model::Requirement::BestEffort;
        assert_eq!(answered(&service, observing).await.changes, None);
        close(&service).await;
    });
}

fn caller_overrides_the_configured_default() {
    Harness::run(async |harness| {
        let root = create_repository(harness);
        let service = harness.open_with(configure(&root)).await;
        let mut request = harness.request("write a.txt changed\nanswer done");
        request.call.worktree = Some(false);
        let answer = answered(&service, request).await;
        assert_eq!(answer.changes.unwrap().checkout, None);
        assert_eq!(read(root.join("a.txt")), "changed");
        close(&service).await;
    });
}

fn jobs_at_once_do_not_see_each_other() {
    Harness::run(async |harness| {
        let root = create_repository(harness);
        let service = harness.open().await;
        let mut jobs = Vec::new();
        for number in 1..=3 {
            let script =
                format!("write a.txt job-{number}\nwrite {number}.txt x\nsay here\ndelay 200ms\nanswer done");
            jobs.push(service.submit(request(harness, &script)).await.unwrap().job);
        }
        let mut branches = Vec::new();
        for (number, job) in (1..).zip(jobs) {
            let answer = ended(&service, job).await;
            let changes = answer.changes.as_ref().unwrap();
            let files: Vec<&str> = changes.files.iter().map(|file| file.path.as_str()).collect();
            assert_eq!(files, [&format!("{number}.txt"), "a.txt"]);
            assert_eq!(changes.files_shared, 0);
            let branch = checkout(&answer).branch.clone().unwrap();
            assert_eq!(git(&root, &["show", &format!("{branch}:a.txt")]), format!("job-{number}"));
            branches.push(branch);
        }
        branches.dedup();
        assert_eq!(branches.len(), 3);
        git(&root, &["fsck", "--strict"]);
        close(&service).await;
    });
}

fn job_without_changes_leaves_no_checkout() {
    Harness::run(async |harness| {
        let root = create_repository(harness);
        let service = harness.open().await;
        let answer = answered(&service, request(harness, "answer done")).await;
        assert_eq!(checkout(&answer).state, ChangesState::Unchanged);
        assert_eq!((places(harness), git(&root, &["branch", "--list", "switchboard/*"])), (0, String::new()));
        close(&service).await;
    });
}

fn job_that_cannot_start_leaves_no_checkout() {
    Harness::run(async |harness| {
        create_repository(harness);
        let service = harness.open().await;
        let mut first = request(harness, "say here\nhang");
        first.call.worktree = None;
        let first = service.submit(first).await.unwrap().job;
        wait_for_line(&service, first, "here").await;
        // It is cancelled while it is queued or waits to start.
        let job = service.submit(request(harness, "answer done")).await.unwrap().job;
        let _ = service.cancel(job).await;
        service.cancel(first).await.unwrap();
        ended(&service, job).await;
        ended(&service, first).await;
        eventually("the checkout is removed", || places(harness) == 0);
        close(&service).await;
    });
}

fn failed_job_keeps_its_changes() {
    Harness::run(async |harness| {
        let root = create_repository(harness);
        let service = harness.open().await;
        let answer = answered(&service, request(harness, "write a.txt half\nfail other broken")).await;
        assert_eq!(answer.status, JobStatus::Failed);
        apply(&service, &answer).await.unwrap();
        assert_eq!(read(root.join("a.txt")), "half");
        close(&service).await;
    });
}

fn follow_up_continues_the_changes() {
    Harness::run(async |harness| {
        let root = create_repository(harness);
        let service = harness.open().await;
        let first = answered(&service, request(harness, "write 1.txt one\nanswer done")).await;
        let script = "write 2.txt two\nanswer done";
        let second = answered(&service, follow_up(harness, &first, script)).await;
        assert_eq!(checkout(&second).directory, checkout(&first).directory);
        assert_eq!(second.changes.as_ref().unwrap().files_changed, 2);
        let first = service.answer(id(&first)).await.unwrap();
        assert_eq!((checkout(&first).state, &checkout(&first).branch), (ChangesState::Continued, &None));
        let branches = git(&root, &["branch", "--list", "switchboard/*"]);
        assert_eq!(branches.trim(), checkout(&second).branch.as_deref().unwrap());
        let error = apply(&service, &first).await.unwrap_err();
        assert!(matches!(error, CallError::Continued { by, .. } if by == id(&second)), "{error:?}");
        apply(&service, &second).await.unwrap();
        assert_eq!((read(root.join("1.txt")), read(root.join("2.txt"))), ("one".into(), "two".into()));
        assert_eq!(places(harness), 0);
        close(&service).await;
    });
}

fn follow_up_after_apply_gets_a_new_checkout_at_the_same_path() {
    Harness::run(async |harness| {
        let root = create_repository(harness);
        let service = harness.open().await;
        let first = answered(&service, request(harness, "write 1.txt one\nanswer done")).await;
        apply(&service, &first).await.unwrap();
        let second = answered(&service, follow_up(harness, &first, "write 2.txt two\nanswer done")).await;
        assert_eq!(checkout(&second).directory, checkout(&first).directory);
        assert_eq!(second.changes.as_ref().unwrap().files[0].path, "2.txt");
        let first = service.answer(id(&first)).await.unwrap();
        assert_eq!(checkout(&first).state, ChangesState::Applied);
        apply(&service, &second).await.unwrap();
        assert_eq!(read(root.join("2.txt")), "two");
        close(&service).await;
    });
}

fn read_only_follow_up_sees_the_changes() {
    Harness::run(async |harness| {
        create_repository(harness);
        let service = harness.open().await;
        let first = answered(&service, request(harness, "write 1.txt one\nanswer done")).await;
        let mut request = follow_up(harness, &first, "answer done");
        request.call.mode = Mode::Observe;
        request.call.policy = model::CallPolicy::from(model::Preset::Observe);
        let second = answered(&service, request).await;
        assert_eq!(second.status, JobStatus::Completed, "{second:?}");
        let first = service.answer(id(&first)).await.unwrap();
        assert_eq!(checkout(&first).state, ChangesState::Open);
        let error = apply(&service, &second).await.unwrap_err();
        assert!(matches!(error, CallError::ChangesMissing { .. }), "{error:?}");
        apply(&service, &first).await.unwrap();
        close(&service).await;
    });
}

fn unpublished_branch_of_another_is_not_replaced() {
    Harness::run(async |harness| {
        let root = create_repository(harness);
        let service = harness.open().await;
        let script = "write a.txt changed\nsay here\ndelay 300ms\nanswer done";
        let job = service.submit(request(harness, script)).await.unwrap().job;
        let short = format!("switchboard/{}", &job.to_string()[..13]);
        git(&root, &["branch", &short]);
        let answer = ended(&service, job).await;
        assert_eq!(checkout(&answer).branch.as_deref().map(str::len), Some(short.len() + 5));
        assert_eq!(git(&root, &["rev-parse", &short]), git(&root, &["rev-parse", "main"]));
        close(&service).await;
    });
}

async fn refusal(harness: &Harness, change: impl FnOnce(&mut CallRequest)) -> PrepareError {
    let service = harness.open().await;
    let mut request = request(harness, "answer done");
    change(&mut request);
    let error = service.submit(request).await.unwrap_err();
    assert_eq!(error.field(), Some("worktree"));
    assert!(!error.hint().is_empty());
    close(&service).await;
    match error {
        CallError::Checkout(error) => error,
        error => panic!("{error:?}"),
    }
}

fn checkout_outside_of_git_is_refused() {
    Harness::run(async |harness| {
        let error = refusal(harness, |_| {}).await;
        assert!(matches!(error, PrepareError::NoRepository { .. }), "{error:?}");
    });
}

fn checkout_for_a_read_only_call_is_refused() {
    Harness::run(async |harness| {
        create_repository(harness);
        let error = refusal(harness, |request| {
            request.call.policy = model::CallPolicy::from(model::Preset::Observe);
        })
        .await;
        assert!(matches!(error, PrepareError::ReadOnly), "{error:?}");
    });
}

fn checkout_for_a_session_from_outside_is_refused() {
    Harness::run(async |harness| {
        create_repository(harness);
        let error = refusal(harness, |request| {
            request.call.session =
                SessionChoice::Resume("c5ea3b71-5a5c-4f31-a2c4-7f6b9b0d1f11".parse().unwrap());
        })
        .await;
        assert!(matches!(error, PrepareError::SessionOutside { .. }), "{error:?}");
    });
}

fn follow_up_in_another_directory_is_refused() {
    Harness::run(async |harness| {
        create_repository(harness);
        let service = harness.open().await;
        let first = answered(&service, request(harness, "write 1.txt one\nanswer done")).await;
        let mut elsewhere = follow_up(harness, &first, "answer done");
        elsewhere.call.cwd = harness.state().parent().unwrap().join("elsewhere");
        fs::create_dir(&elsewhere.call.cwd).unwrap();
        let error = service.submit(elsewhere).await.unwrap_err();
        assert!(matches!(error, CallError::Checkout(PrepareError::SessionElsewhere { .. })), "{error:?}");
        close(&service).await;
    });
}

fn collisions_name_other_jobs_and_edits_of_the_user() {
    Harness::run(async |harness| {
        let root = create_repository(harness);
        let service = harness.open().await;
        let first =
            answered(&service, request(harness, "write a.txt first\nwrite 1.txt 1\nanswer done")).await;
        assert_eq!(checkout(&first).collisions, []);
        let script = "write a.txt second\nwrite src/b.txt job\nsay here\ndelay 300ms\nanswer done";
        let job = service.submit(request(harness, script)).await.unwrap().job;
        wait_for_line(&service, job, "here").await;
        fs::write(root.join("src/b.txt"), "user\n").unwrap();
        let second = ended(&service, job).await;
        let collisions = &checkout(&second).collisions;
        let found: Vec<_> = collisions
            .iter()
            .map(|collision| (&*collision.path, collision.job_id.as_deref(), collision.conflict.is_some()))
            .collect();
        assert_eq!(found, [("src/b.txt", None, true), ("a.txt", Some(&*first.job_id), false)]);
        close(&service).await;
    });
}

fn recovered_job_continues_in_its_checkout() {
    Harness::run(async |harness| {
        let root = create_repository(harness);
        let service = harness.open().await;
        let job = service.submit(request(harness, "write a.txt job\nsay here\nhang")).await.unwrap().job;
        wait_for_line(&service, job, "here").await;
        service.close(ShutdownMode::Detach).await;
        let service = harness.open().await;
        wait_for_line(&service, job, "here").await;
        service.cancel(job).await.unwrap();
        let answer = ended(&service, job).await;
        assert_eq!(read(root.join("a.txt")).lines().next(), Some("one"));
        let branch = checkout(&answer).branch.clone().unwrap();
        assert_eq!(git(&root, &["show", &format!("{branch}:a.txt")]), "job");
        assert_eq!(places(harness), 1);
        close(&service).await;
    });
}

fn lost_run_continues_in_its_checkout() {
    Harness::run(async |harness| {
        let root = create_repository(harness);
        let service = harness.open().await;
        let job = service.submit(request(harness, "write a.txt job\nsay here\nhang")).await.unwrap().job;
        wait_for_line(&service, job, "here").await;
        let supervisor = rustix::process::Pid::from_raw(harness.runs(job)[0].supervisor.pid).unwrap();
        rustix::process::kill_process(supervisor, rustix::process::Signal::KILL).unwrap();
        eventually("the job is started again", || harness.runs(job).len() == 2);
        wait_for_line(&service, job, "here").await;
        service.cancel(job).await.unwrap();
        let answer = ended(&service, job).await;
        assert_eq!((places(harness), answer.changes.as_ref().unwrap().files_changed), (1, 1));
        assert_eq!(git(&root, &["status", "--porcelain"]), " M mine.txt\n?? untracked.txt\n");
        close(&service).await;
    });
}

fn leftover_checkouts_are_removed_by_the_next_service() {
    Harness::run(async |harness| {
        create_repository(harness);
        let service = harness.open().await;
        let kept = answered(&service, request(harness, "write a.txt job\nanswer done")).await;
        let in_place = answered(&service, harness.request("answer done")).await;
        close(&service).await;
        // A daemon was killed while it created one, and while it removed another one.
        let incomplete = harness.state().join("checkouts").join(&in_place.job_id);
        fs::create_dir_all(incomplete.join("workspace/.git")).unwrap();
        let service = harness.open().await;
        eventually("the incomplete checkout is removed", || !incomplete.exists());
        assert!(Path::new(&checkout(&kept).directory).exists());
        close(&service).await;
    });
}

fn diff_selects_files_by_the_directory_of_the_user() {
    Harness::run(async |harness| {
        let root = create_repository(harness);
        let service = harness.open().await;
        let answer =
            answered(&service, request(harness, "write src/b.txt job\nwrite 1.txt 1\nanswer done")).await;
        let selected = |paths: Vec<PathBuf>, base: Option<PathBuf>| {
            service.change_set(id(&answer), FileSelection { paths, base })
        };
        let by_base = selected(vec!["b.txt".into()], Some(root.join("src"))).await.unwrap();
        assert_eq!(by_base.files.len(), 1);
        let absolute = selected(vec![root.join("src/b.txt")], None).await.unwrap();
        assert_eq!(absolute.files, by_base.files);
        assert_eq!(answer.error.map(|error| error.kind), None::<String>);
        close(&service).await;
    });
}

/// Runs two jobs in checkouts, of which the first expires, and waits until it is removed. Returns its answer.
async fn expire(harness: &Harness) -> Answer {
    let service = harness.open_with(|settings| settings.retention.max_count = Some(1)).await;
    let first = answered(&service, request(harness, "write 1.txt 1\nanswer done")).await;
    answered(&service, request(harness, "answer done")).await;
    // The first sweep comes a minute after the start, so the clock is advanced.
    tokio::time::timeout(LONG, async {
        while harness.state().join("jobs").join(&first.job_id).exists() {
            tokio::time::pause();
            tokio::time::advance(Duration::from_secs(1)).await;
            tokio::time::resume();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .expect("the job is still there");
    service.close(ShutdownMode::Detach).await;
    first
}

fn expired_checkout_is_removed_and_its_branch_stays() {
    Harness::run_with_own_clock(async |harness| {
        let root = create_repository(harness);
        let expired = expire(harness).await;
        let branch = checkout(&expired).branch.clone().unwrap();
        assert_eq!(git(&root, &["show", &format!("{branch}:1.txt")]), "1");
        assert_eq!(places(harness), 0);
    });
}

fn unpublished_changes_outlive_their_job() {
    Harness::run_with_own_clock(async |harness| {
        let root = create_repository(harness);
        // No branch can be below this one.
        git(&root, &["branch", "switchboard"]);
        let expired = expire(harness).await;
        let checkout = checkout(&expired);
        assert!(checkout.branch.is_none() && checkout.not_published.is_some(), "{checkout:?}");
        assert_eq!(read(Path::new(&checkout.directory).join("1.txt")), "1");
    });
}
