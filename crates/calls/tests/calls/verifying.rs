//! The verification of an agent's work, and the setup of a private checkout.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use calls::{
    Answer, CallError, CallRequest, Changes, JobStatus, RepositoryOptions, ShutdownMode, Verification,
    VerificationState,
};
use model::{JobId, Preset, VerifySpec};
use supervisor::Spool;
use testkit::{eventually, tests};

use crate::harness::{Harness, answered, close, ended, runs};
use crate::private_checkouts::git;

tests![
    passed_verification_is_in_the_answer,
    failed_verification_fails_the_job,
    verification_sees_the_changes_of_the_agent,
    failed_agent_is_not_verified,
    failure_is_repaired_in_the_session,
    repairs_end_after_their_number,
    protected_files_are_restored_before_the_command,
    verification_of_a_checkout_leaves_the_worktree_alone,
    files_hidden_from_git_are_protected,
    glob_that_protects_nothing_is_refused,
    follow_up_does_not_protect_tampered_files,
    verification_beyond_its_limit_fails,
    cancelled_verification_leaves_no_process,
    next_service_follows_the_verification,
    killed_supervisor_of_a_verification_is_replaced,
    confined_verification_cannot_write_outside,
    invalid_verification_is_refused,
    success_without_expected_changes_fails,
    expected_changes_need_a_repository,
    expected_changes_are_not_those_of_the_command,
    files_restored_before_a_repair_are_reported,
    changes_of_an_earlier_call_are_not_expected_ones,
    setup_prepares_the_checkout_of_the_agent,
    files_of_the_setup_are_no_changes,
    failed_setup_leaves_no_checkout,
    setup_of_a_killed_service_is_followed,
    follow_up_is_not_set_up_again,
];

fn create_repository(harness: &Harness) -> PathBuf {
    let root = harness.workspace().canonicalize().unwrap();
    fs::create_dir(root.join("tests")).unwrap();
    fs::write(root.join("a.txt"), "bad\n").unwrap();
    fs::write(root.join("tests/check"), "grep -q good a.txt\n").unwrap();
    git(&root, &["init", "-q"]);
    git(&root, &["add", "-A"]);
    git(&root, &["-c", "user.name=Ana", "-c", "user.email=ana@example.org", "commit", "-q", "-m", "a"]);
    root
}

fn verified(harness: &Harness, script: &str, command: &str) -> CallRequest {
    let mut request = harness.request(script);
    request.call.verify = Some(VerifySpec::new(command));
    request
}

fn verification(answer: &Answer) -> &Verification {
    answer.verified.as_ref().unwrap_or_else(|| panic!("{answer:?}"))
}

fn kind(answer: &Answer) -> Option<&str> {
    answer.error.as_ref().map(|error| error.kind.as_str())
}

/// Waits until a command has created a file.
fn wait_for(path: &Path) {
    eventually("the command creates its file", || path.exists());
}

fn passed_verification_is_in_the_answer() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let answer = answered(&service, verified(harness, "answer done", "echo out; echo err >&2")).await;
        assert_eq!((answer.status, &*answer.output), (JobStatus::Completed, "done"));
        let verification = verification(&answer);
        assert_eq!((verification.state, verification.exit_code), (VerificationState::Passed, Some(0)));
        assert_eq!(verification.output.as_deref(), Some("out\nerr"));
        assert!(verification.duration_ms.is_some() && verification.reason.is_none());
        close(&service).await;
    });
}

fn failed_verification_fails_the_job() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let command = "seq 1 5000; echo last; exit 3";
        let answer = answered(&service, verified(harness, "answer done", command)).await;
        assert_eq!((answer.status, &*answer.output), (JobStatus::Failed, "done"));
        assert_eq!(kind(&answer), Some("verification_failed"));
        let verification = verification(&answer);
        assert_eq!((verification.state, verification.exit_code), (VerificationState::Failed, Some(3)));
        let output = verification.output.as_deref().unwrap();
        assert!(output.len() <= 4096 && output.ends_with("5000\nlast"), "{output}");
        close(&service).await;
    });
}

fn verification_sees_the_changes_of_the_agent() {
    Harness::run(async |harness| {
        let root = create_repository(harness);
        let service = harness.open().await;
        let request = verified(harness, "write a.txt good\nanswer done", "sh tests/check");
        let answer = answered(&service, request).await;
        assert_eq!(answer.status, JobStatus::Completed, "{answer:?}");
        assert_eq!(fs::read_to_string(root.join("a.txt")).unwrap(), "good");
        close(&service).await;
    });
}

fn failed_agent_is_not_verified() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let marker = harness.workspace().join("verified");
        let request = verified(harness, "fail auth", &format!("touch {}", marker.display()));
        let answer = answered(&service, request).await;
        assert_eq!(kind(&answer), Some("auth"));
        assert_eq!(verification(&answer).state, VerificationState::NotRun);
        assert!(!marker.exists());
        close(&service).await;
    });
}

/// Returns a command that tells the scripted agent how to repair its work.
fn instructive_check() -> &'static str {
    "sh tests/check || { echo '@rehearse write a.txt good'; echo '@rehearse answer repaired'; exit 1; }"
}

fn failure_is_repaired_in_the_session() {
    Harness::run(async |harness| {
        create_repository(harness);
        let service = harness.open().await;
        let mut request = verified(harness, "answer done", instructive_check());
        request.call.verify.as_mut().unwrap().repairs = 2;
        let answer = answered(&service, request).await;
        assert_eq!((answer.status, &*answer.output), (JobStatus::Completed, "done\n\nrepaired"));
        let verification = verification(&answer);
        assert_eq!((verification.state, verification.repairs), (VerificationState::Passed, 1));
        assert_eq!(answer.changes.map(|changes| changes.files_changed), Some(1));
        assert_eq!(answer.output_files.len(), 2);
        close(&service).await;
    });
}

fn repairs_end_after_their_number() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let mut request = verified(harness, "answer done", "echo '@rehearse answer again'; exit 1");
        request.call.verify.as_mut().unwrap().repairs = 2;
        let answer = answered(&service, request).await;
        assert_eq!(kind(&answer), Some("verification_failed"));
        assert_eq!((verification(&answer).repairs, &*answer.output), (2, "done\n\nagain\n\nagain"));
        close(&service).await;
    });
}

fn protected_files_are_restored_before_the_command() {
    Harness::run(async |harness| {
        let root = create_repository(harness);
        let service = harness.open().await;
        // The agent makes the check succeed instead of the work.
        let script = "write tests/check true\nwrite tests/new x\nwrite b.txt b\nanswer done";
        let mut request = verified(harness, script, "sh tests/check");
        request.call.verify.as_mut().unwrap().protect = vec!["tests/**".to_owned()];
        let answer = answered(&service, request).await;
        assert_eq!(kind(&answer), Some("verification_failed"));
        assert_eq!(verification(&answer).restored, ["tests/check", "tests/new"]);
        assert_eq!(git(&root, &["status", "--porcelain"]), "?? b.txt\n");
        assert_eq!(answer.changes.unwrap().files_changed, 1);
        close(&service).await;
    });
}

fn verification_of_a_checkout_leaves_the_worktree_alone() {
    Harness::run(async |harness| {
        let root = create_repository(harness);
        let service = harness.open().await;
        let script = "write a.txt good\nwrite tests/check true\nanswer done";
        let mut request = verified(harness, script, "sh tests/check && touch product");
        request.call.worktree = Some(true);
        request.call.verify.as_mut().unwrap().protect = vec!["tests".to_owned()];
        let answer = answered(&service, request).await;
        assert_eq!(answer.status, JobStatus::Completed, "{answer:?}");
        assert_eq!(git(&root, &["status", "--porcelain"]), "");
        let changed: Vec<_> = answer.changes.iter().flat_map(|changes: &Changes| &changes.files).collect();
        assert_eq!(changed.iter().map(|file| &*file.path).collect::<Vec<_>>(), ["a.txt", "product"]);
        close(&service).await;
    });
}

fn files_hidden_from_git_are_protected() {
    Harness::run(async |harness| {
        let root = create_repository(harness);
        fs::write(root.join("tests/check"), "[ ! -e tests/cheat ]\n").unwrap();
        let service = harness.open().await;
        let script = "write tests/.gitignore *\nwrite tests/cheat x\nanswer done";
        for worktree in [true, false] {
            let mut request = verified(harness, script, "sh tests/check");
            request.call.worktree = Some(worktree);
            request.call.verify.as_mut().unwrap().protect = vec!["tests".to_owned()];
            let answer = answered(&service, request).await;
            assert_eq!(answer.status, JobStatus::Completed, "{answer:?}");
            assert_eq!(verification(&answer).restored, ["tests/.gitignore", "tests/cheat"]);
        }
        close(&service).await;
    });
}

fn glob_that_protects_nothing_is_refused() {
    Harness::run(async |harness| {
        create_repository(harness);
        let service = harness.open().await;
        for glob in ["test", "/tests", "tests/none", " tests"] {
            let mut request = verified(harness, "answer done", "true");
            request.call.verify.as_mut().unwrap().protect = vec!["tests".to_owned(), glob.to_owned()];
            let error = service.submit(request).await.unwrap_err();
            assert_eq!(error.field(), Some("verify_protect"), "{glob}");
        }
        close(&service).await;
    });
}

fn follow_up_does_not_protect_tampered_files() {
    Harness::run(async |harness| {
        create_repository(harness);
        let service = harness.open().await;
        let mut first = harness.request("write tests/check true\nanswer done");
        first.call.worktree = Some(true);
        let first = answered(&service, first).await;
        let mut second = verified(harness, "answer done", "sh tests/check");
        second.call.session = model::SessionChoice::Resume(first.session_id.unwrap().parse().unwrap());
        second.call.verify.as_mut().unwrap().protect = vec!["tests".to_owned()];
        assert_eq!(kind(&answered(&service, second).await), Some("verification_failed"));
        close(&service).await;
    });
}

fn verification_beyond_its_limit_fails() {
    Harness::run(async |harness| {
        let limit = Duration::from_millis(300);
        let service = harness.open_with(|settings| settings.command_limit = limit).await;
        let answer = answered(&service, verified(harness, "answer done", "sleep 600")).await;
        assert_eq!(kind(&answer), Some("verification_failed"));
        let verification = verification(&answer);
        assert_eq!((verification.state, verification.exit_code), (VerificationState::Failed, None));
        assert!(verification.reason.as_deref().unwrap().starts_with("did not end within"));
        close(&service).await;
    });
}

fn cancelled_verification_leaves_no_process() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let begun = harness.workspace().join("begun");
        let command = format!("touch {}; sleep 600", begun.display());
        let job = service.submit(verified(harness, "answer done", &command)).await.unwrap().job;
        wait_for(&begun);
        service.cancel(job).await.unwrap();
        let answer = ended(&service, job).await;
        assert_eq!((answer.status, &*answer.output), (JobStatus::Cancelled, "done"));
        close(&service).await;
    });
}

fn next_service_follows_the_verification() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let (begun, go_on) = (harness.workspace().join("begun"), harness.workspace().join("go-on"));
        let command = format!(
            "echo begun >>{}; while [ ! -e {} ]; do sleep 0.02; done; echo verified",
            begun.display(),
            go_on.display()
        );
        let job = service.submit(verified(harness, "answer done", &command)).await.unwrap().job;
        wait_for(&begun);
        service.close(ShutdownMode::Detach).await;
        let service = harness.open().await;
        fs::write(&go_on, "").unwrap();
        let answer = ended(&service, job).await;
        assert_eq!(answer.status, JobStatus::Completed, "{answer:?}");
        assert_eq!(verification(&answer).output.as_deref(), Some("verified"));
        assert_eq!(fs::read_to_string(&begun).unwrap(), "begun\n");
        close(&service).await;
    });
}

/// Kills the supervisor of a command of a job.
fn kill_supervisor(harness: &Harness, job: JobId, command: &str) {
    let directory = harness.state().join("jobs").join(job.to_string()).join("runs").join(command);
    let status = Spool::at(directory).status().unwrap().unwrap();
    let supervisor = rustix::process::Pid::from_raw(status.supervisor.pid).unwrap();
    rustix::process::kill_process(supervisor, rustix::process::Signal::KILL).unwrap();
}

fn killed_supervisor_of_a_verification_is_replaced() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let begun = harness.workspace().join("begun");
        let command = format!("[ -e {0} ] || {{ touch {0}; sleep 600; }}", begun.display());
        let job = service.submit(verified(harness, "answer done", &command)).await.unwrap().job;
        wait_for(&begun);
        kill_supervisor(harness, job, "verify-1");
        let answer = ended(&service, job).await;
        assert_eq!(answer.status, JobStatus::Completed, "{answer:?}");
        assert_eq!(runs(&harness.state(), job).len(), 1);
        close(&service).await;
    });
}

fn confined_verification_cannot_write_outside() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let outside = harness.state().join("outside");
        let command = format!("touch inside; touch {}", outside.display());
        let mut request = verified(harness, "answer done", &command);
        request.call.policy = Preset::Workspace.into();
        let answer = answered(&service, request).await;
        assert!(harness.workspace().join("inside").exists() && !outside.exists(), "{answer:?}");
        close(&service).await;
    });
}

fn invalid_verification_is_refused() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let error = service.submit(verified(harness, "answer done", " ")).await.unwrap_err();
        assert!(matches!(error, CallError::Verify(_)), "{error:?}");
        assert_eq!((error.field(), error.hint().is_empty()), (Some("verify"), false));
        close(&service).await;
    });
}

fn success_without_expected_changes_fails() {
    Harness::run(async |harness| {
        create_repository(harness);
        let service = harness.open().await;
        for (script, expected) in [
            ("answer done", Some("no_changes")),
            ("write a.txt good\nanswer done", None),
            ("fail auth", Some("auth")),
        ] {
            let mut request = harness.request(script);
            request.call.expect_changes = true;
            let answer = answered(&service, request).await;
            assert_eq!(kind(&answer), expected, "{script}");
        }
        close(&service).await;
    });
}

fn expected_changes_need_a_repository() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let mut request = harness.request("answer done");
        request.call.expect_changes = true;
        let error = service.submit(request).await.unwrap_err();
        assert_eq!(error.field(), Some("expect_changes"));
        close(&service).await;
    });
}

fn expected_changes_are_not_those_of_the_command() {
    Harness::run(async |harness| {
        let root = create_repository(harness);
        let service = harness.open().await;
        let mut request = verified(harness, "answer done", "touch coverage");
        request.call.expect_changes = true;
        assert_eq!(kind(&answered(&service, request).await), Some("no_changes"));
        assert!(!root.join("coverage").exists());
        close(&service).await;
    });
}

fn changes_of_an_earlier_call_are_not_expected_ones() {
    Harness::run(async |harness| {
        create_repository(harness);
        let service = harness.open().await;
        let mut first = harness.request("write b.txt b\nanswer done");
        first.call.worktree = Some(true);
        let session = answered(&service, first).await.session_id.unwrap();
        for (script, expected) in [("answer done", Some("no_changes")), ("write b.txt c\nanswer done", None)]
        {
            let mut second = harness.request(script);
            second.call.session = model::SessionChoice::Resume(session.parse().unwrap());
            second.call.expect_changes = true;
            assert_eq!(kind(&answered(&service, second).await), expected, "{script}");
        }
        close(&service).await;
    });
}

fn files_restored_before_a_repair_are_reported() {
    Harness::run(async |harness| {
        create_repository(harness);
        let service = harness.open().await;
        let script = "write tests/check true\nanswer done";
        let mut request = verified(harness, script, instructive_check());
        let verify = request.call.verify.as_mut().unwrap();
        (verify.repairs, verify.protect) = (1, vec!["tests".to_owned()]);
        let answer = answered(&service, request).await;
        assert_eq!(answer.status, JobStatus::Completed, "{answer:?}");
        assert_eq!(verification(&answer).restored, ["tests/check"]);
        close(&service).await;
    });
}

/// Returns a call in a checkout that a command prepares.
fn prepared(harness: &Harness, script: &str) -> CallRequest {
    let mut request = harness.request(script);
    request.call.worktree = Some(true);
    request
}

async fn open_with_setup(harness: &Harness, command: &str) -> calls::JobService {
    let path = harness.workspace().canonicalize().unwrap();
    let worktree_setup = Some(command.to_owned());
    let options = RepositoryOptions { path, worktree: false, worktree_setup };
    harness.open_with(|settings| settings.repositories = vec![options]).await
}

fn setup_prepares_the_checkout_of_the_agent() {
    Harness::run(async |harness| {
        let root = create_repository(harness);
        let service = open_with_setup(harness, "cp a.txt prepared.txt").await;
        let answer = answered(&service, prepared(harness, "write prepared.txt edited\nanswer done")).await;
        let changes = answer.changes.unwrap();
        assert_eq!((&*changes.files[0].path, &*changes.files[0].kind), ("prepared.txt", "modified"));
        assert!(!root.join("prepared.txt").exists());
        close(&service).await;
    });
}

fn files_of_the_setup_are_no_changes() {
    Harness::run(async |harness| {
        create_repository(harness);
        let service = open_with_setup(harness, "touch prepared.txt").await;
        let answer = answered(&service, prepared(harness, "answer done")).await;
        assert_eq!(answer.changes.map(|changes| changes.files_changed), Some(0));
        close(&service).await;
    });
}

fn failed_setup_leaves_no_checkout() {
    Harness::run(async |harness| {
        create_repository(harness);
        let service = open_with_setup(harness, "echo no network; exit 7").await;
        let answer = answered(&service, prepared(harness, "answer done")).await;
        assert_eq!((answer.status, kind(&answer)), (JobStatus::Failed, Some("setup_failed")));
        let message = answer.error.unwrap().message;
        assert!(message.contains("exit code 7") && message.ends_with("no network"), "{message}");
        assert_eq!(fs::read_dir(harness.state().join("checkouts")).unwrap().count(), 0);
        close(&service).await;
    });
}

fn setup_of_a_killed_service_is_followed() {
    Harness::run(async |harness| {
        create_repository(harness);
        let (begun, go_on) = (harness.state().join("begun"), harness.state().join("go-on"));
        let command = format!(
            "echo begun >>{}; while [ ! -e {} ]; do sleep 0.02; done",
            begun.display(),
            go_on.display()
        );
        let service = open_with_setup(harness, &command).await;
        let job = service.submit(prepared(harness, "write b.txt b\nanswer done")).await.unwrap().job;
        wait_for(&begun);
        service.close(ShutdownMode::Detach).await;
        let service = open_with_setup(harness, &command).await;
        fs::write(&go_on, "").unwrap();
        let answer = ended(&service, job).await;
        assert_eq!(answer.status, JobStatus::Completed, "{answer:?}");
        assert_eq!(fs::read_to_string(&begun).unwrap(), "begun\n");
        close(&service).await;
    });
}

fn follow_up_is_not_set_up_again() {
    Harness::run(async |harness| {
        create_repository(harness);
        let begun = harness.state().join("begun");
        let service = open_with_setup(harness, &format!("echo begun >>{}", begun.display())).await;
        let first = answered(&service, prepared(harness, "write b.txt b\nanswer done")).await;
        let mut second = harness.request("write c.txt c\nanswer done");
        let session = first.session_id.unwrap().parse().unwrap();
        second.call.session = model::SessionChoice::Resume(session);
        assert_eq!(answered(&service, second).await.changes.unwrap().files_changed, 2);
        assert_eq!(fs::read_to_string(&begun).unwrap(), "begun\n");
        close(&service).await;
    });
}
