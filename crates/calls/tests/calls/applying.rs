//! The changes of jobs in private checkouts: apply, undo, discard.

use std::fs;
use std::path::{Path, PathBuf};

use calls::{
    Answer, ApplyRequest, CallError, ChangesState, Direction, FileSelection, JobService, RestoreAction,
    RestoreError,
};
use model::ApplyTarget;
use testkit::tests;

use crate::harness::{Harness, answered, close, ended, wait_for_line};
use crate::private_checkouts::{apply, checkout, create_repository, git, id, places, read, request};

tests![
    apply_merges_into_the_worktree_and_removes_the_checkout,
    apply_of_some_files_keeps_the_rest_open,
    apply_as_a_commit_has_the_message_of_the_branch,
    apply_into_the_index_stages_only_the_files_of_the_job,
    commit_over_an_edit_of_the_user_keeps_the_checkout,
    changes_applied_at_once_wait_for_the_index,
    dry_run_of_apply_changes_nothing,
    apply_with_a_conflict_writes_nothing,
    apply_with_markers_writes_the_conflict,
    applied_changes_can_be_undone_and_redone,
    open_changes_cannot_be_undone,
    files_applied_by_name_can_be_undone_by_name,
    discard_removes_checkout_and_branch,
    closed_changes_cannot_be_applied_or_discarded,
    apply_and_discard_need_a_checkout,
    apply_of_a_running_job_is_refused,
];

fn apply_merges_into_the_worktree_and_removes_the_checkout() {
    Harness::run(async |harness| {
        let root = create_repository(harness);
        let service = harness.open().await;
        let script = "write a.txt \"ONE\\ntwo\\nthree\\nfour\\nfive\\n\"\nanswer done";
        let answer = answered(&service, request(harness, script)).await;
        fs::write(root.join("a.txt"), "one\ntwo\nthree\nfour\nFIVE\n").unwrap();
        let applied = apply(&service, &answer).await.unwrap();
        assert_eq!(applied.restored.files[0].what, RestoreAction::Merged);
        assert_eq!((applied.state, &applied.worktree), (ChangesState::Applied, &root));
        assert_eq!(read(root.join("a.txt")), "ONE\ntwo\nthree\nfour\nFIVE\n");
        assert_eq!((places(harness), git(&root, &["branch", "--list", "switchboard/*"])), (0, String::new()));
        let answer = service.answer(id(&answer)).await.unwrap();
        assert_eq!((checkout(&answer).state, &checkout(&answer).branch), (ChangesState::Applied, &None));
        assert!(
            service.patch(id(&answer), FileSelection::default()).await.unwrap().starts_with(b"diff --git")
        );
        close(&service).await;
    });
}

fn apply_of_some_files_keeps_the_rest_open() {
    Harness::run(async |harness| {
        let root = create_repository(harness);
        let service = harness.open().await;
        let answer =
            answered(&service, request(harness, "write 1.txt 1\nwrite src/2.txt 2\nanswer done")).await;
        let files = FileSelection { paths: vec!["2.txt".into()], base: Some(root.join("src")) };
        let request = ApplyRequest { files, ..ApplyRequest::default() };
        assert_eq!(service.apply(id(&answer), request).await.unwrap().state, ChangesState::Open);
        assert!(root.join("src/2.txt").exists() && !root.join("1.txt").exists());
        apply(&service, &answer).await.unwrap();
        assert!(root.join("1.txt").exists());
        close(&service).await;
    });
}

fn apply_as_a_commit_has_the_message_of_the_branch() {
    Harness::run(async |harness| {
        let root = create_repository(harness);
        let service = harness.open().await;
        let answer = answered(&service, request(harness, "write a.txt job\nanswer done")).await;
        let branch = checkout(&answer).branch.clone().unwrap();
        let log = ["log", "-1", "--format=%an%n%B", &branch];
        let message = git(&root, &log);
        let request = ApplyRequest { target: ApplyTarget::Commit, ..ApplyRequest::default() };
        let applied = service.apply(id(&answer), request).await.unwrap();
        assert_eq!(applied.state, ChangesState::Applied);
        assert_eq!(git(&root, &["rev-parse", "main"]).trim(), applied.restored.commit.unwrap());
        assert_eq!(git(&root, &[log[0], log[1], log[2], "main"]), message);
        assert_eq!(git(&root, &["status", "--porcelain"]), " M mine.txt\n?? untracked.txt\n");
        close(&service).await;
    });
}

fn apply_into_the_index_stages_only_the_files_of_the_job() {
    Harness::run(async |harness| {
        let root = create_repository(harness);
        let service = harness.open().await;
        let answer = answered(&service, request(harness, "write src/new.txt job\nanswer done")).await;
        let request = ApplyRequest { target: ApplyTarget::Index, ..ApplyRequest::default() };
        service.apply(id(&answer), request).await.unwrap();
        let status = git(&root, &["status", "--porcelain"]);
        assert_eq!(status, " M mine.txt\nA  src/new.txt\n?? untracked.txt\n");
        close(&service).await;
    });
}

fn commit_over_an_edit_of_the_user_keeps_the_checkout() {
    Harness::run(async |harness| {
        let root = create_repository(harness);
        let service = harness.open().await;
        let answer =
            answered(&service, request(harness, "write mine.txt job\nwrite a.txt job\nanswer done")).await;
        let request = ApplyRequest { target: ApplyTarget::Commit, ..ApplyRequest::default() };
        let error = service.apply(id(&answer), request).await.unwrap_err();
        let CallError::Restore(RestoreError::Conflicts(refused)) = &error else { panic!("{error:?}") };
        assert_eq!((refused.len(), &*refused[0].path), (1, Path::new("mine.txt")));
        assert_eq!(read(root.join("mine.txt")), "edited\n");
        assert_eq!(git(&root, &["log", "--format=%s", "main"]), "first\n");
        apply(&service, &answer).await.unwrap();
        close(&service).await;
    });
}

fn changes_applied_at_once_wait_for_the_index() {
    Harness::run(async |harness| {
        let root = create_repository(harness);
        let service = harness.open().await;
        let mut applied = Vec::new();
        for number in 0..4 {
            let script = format!("write {number}.txt x\nanswer done");
            let answer = answered(&service, request(harness, &script)).await;
            let (service, job) = (service.clone(), id(&answer));
            applied.push(async move {
                service
                    .apply(job, ApplyRequest { target: ApplyTarget::Index, ..ApplyRequest::default() })
                    .await
            });
        }
        let tasks: Vec<_> = applied.into_iter().map(tokio::spawn).collect();
        for task in tasks {
            task.await.unwrap().unwrap();
        }
        let staged = git(&root, &["diff", "--cached", "--name-only"]);
        assert_eq!(staged, "0.txt\n1.txt\n2.txt\n3.txt\n");
        close(&service).await;
    });
}

fn dry_run_of_apply_changes_nothing() {
    Harness::run(async |harness| {
        let root = create_repository(harness);
        let service = harness.open().await;
        let answer = answered(&service, request(harness, "write 1.txt 1\nanswer done")).await;
        let request = ApplyRequest { dry_run: true, ..ApplyRequest::default() };
        let applied = service.apply(id(&answer), request).await.unwrap();
        assert_eq!((applied.state, applied.restored.files.len()), (ChangesState::Open, 1));
        assert!(!root.join("1.txt").exists());
        close(&service).await;
    });
}

/// Runs a job whose change conflicts with a later edit of the user.
async fn conflicting(harness: &Harness, service: &JobService) -> (PathBuf, Answer) {
    let root = create_repository(harness);
    let answer = answered(service, request(harness, "write a.txt job\nwrite b.txt job\nanswer done")).await;
    fs::write(root.join("a.txt"), "user\n").unwrap();
    (root, answer)
}

fn apply_with_a_conflict_writes_nothing() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let (root, answer) = conflicting(harness, &service).await;
        let error = apply(&service, &answer).await.unwrap_err();
        assert!(
            matches!(&error, CallError::Restore(RestoreError::Conflicts(list)) if list.len() == 1),
            "{error:?}"
        );
        assert_eq!((read(root.join("a.txt")), root.join("b.txt").exists()), ("user\n".into(), false));
        assert_eq!(checkout(&service.answer(id(&answer)).await.unwrap()).state, ChangesState::Open);
        close(&service).await;
    });
}

fn apply_with_markers_writes_the_conflict() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let (root, answer) = conflicting(harness, &service).await;
        let request = ApplyRequest { markers: true, ..ApplyRequest::default() };
        let applied = service.apply(id(&answer), request).await.unwrap();
        assert_eq!(applied.restored.files[0].what, RestoreAction::Conflicted);
        assert!(read(root.join("a.txt")).contains("<<<<<<<"));
        close(&service).await;
    });
}

fn applied_changes_can_be_undone_and_redone() {
    Harness::run(async |harness| {
        let root = create_repository(harness);
        let service = harness.open().await;
        let answer = answered(&service, request(harness, "write a.txt job\nanswer done")).await;
        apply(&service, &answer).await.unwrap();
        let restore = |direction| service.restore(id(&answer), direction, FileSelection::default());
        restore(Direction::Undo).await.unwrap();
        assert_eq!(read(root.join("a.txt")), "one\ntwo\nthree\nfour\nfive\n");
        assert_eq!(checkout(&service.answer(id(&answer)).await.unwrap()).state, ChangesState::Undone);
        restore(Direction::Redo).await.unwrap();
        assert_eq!(read(root.join("a.txt")), "job");
        assert_eq!(checkout(&service.answer(id(&answer)).await.unwrap()).state, ChangesState::Applied);
        close(&service).await;
    });
}

fn open_changes_cannot_be_undone() {
    Harness::run(async |harness| {
        create_repository(harness);
        let service = harness.open().await;
        let answer = answered(&service, request(harness, "write a.txt job\nanswer done")).await;
        let error =
            service.restore(id(&answer), Direction::Undo, FileSelection::default()).await.unwrap_err();
        assert!(matches!(error, CallError::ChangesState { state: ChangesState::Open, .. }), "{error:?}");
        close(&service).await;
    });
}

fn files_applied_by_name_can_be_undone_by_name() {
    Harness::run(async |harness| {
        let root = create_repository(harness);
        let service = harness.open().await;
        let answer = answered(&service, request(harness, "write 1.txt 1\nwrite 2.txt 2\nanswer done")).await;
        let selected = || FileSelection { paths: vec!["1.txt".into()], base: None };
        let undo = async || service.restore(id(&answer), Direction::Undo, selected()).await.unwrap();
        service
            .apply(id(&answer), ApplyRequest { files: selected(), ..ApplyRequest::default() })
            .await
            .unwrap();
        assert!(root.join("1.txt").exists());
        undo().await;
        assert!(!root.join("1.txt").exists());
        assert_eq!(checkout(&service.answer(id(&answer)).await.unwrap()).state, ChangesState::Open);
        service.discard(id(&answer)).await.unwrap();
        assert_eq!(undo().await.files[0].what, RestoreAction::AlreadySo);
        close(&service).await;
    });
}

fn discard_removes_checkout_and_branch() {
    Harness::run(async |harness| {
        let root = create_repository(harness);
        let service = harness.open().await;
        let answer = answered(&service, request(harness, "write a.txt job\nanswer done")).await;
        let open = service.open_changes().await.unwrap();
        assert_eq!((open.len(), open[0].job, open[0].extent), (1, id(&answer), Some((1, 1, 5))));
        assert!(open[0].has_ended && service.checkout_bytes(open[0].job).await.unwrap() > 0);
        service.discard(id(&answer)).await.unwrap();
        assert_eq!((places(harness), git(&root, &["branch", "--list", "switchboard/*"])), (0, String::new()));
        assert!(service.open_changes().await.unwrap().is_empty());
        assert_eq!(checkout(&service.answer(id(&answer)).await.unwrap()).state, ChangesState::Discarded);
        assert!(!service.patch(id(&answer), FileSelection::default()).await.unwrap().is_empty());
        close(&service).await;
    });
}

fn closed_changes_cannot_be_applied_or_discarded() {
    Harness::run(async |harness| {
        create_repository(harness);
        let service = harness.open().await;
        let answer = answered(&service, request(harness, "write a.txt job\nanswer done")).await;
        service.discard(id(&answer)).await.unwrap();
        let errors = [apply(&service, &answer).await.err(), service.discard(id(&answer)).await.err()];
        for error in errors {
            assert!(
                matches!(error, Some(CallError::ChangesState { state: ChangesState::Discarded, .. })),
                "{error:?}"
            );
        }
        close(&service).await;
    });
}

fn apply_and_discard_need_a_checkout() {
    Harness::run(async |harness| {
        create_repository(harness);
        let service = harness.open().await;
        let answer = answered(&service, harness.request("write a.txt job\nanswer done")).await;
        let errors = [apply(&service, &answer).await.err(), service.discard(id(&answer)).await.err()];
        for error in errors {
            assert!(matches!(error, Some(CallError::NoCheckout { .. })), "{error:?}");
        }
        close(&service).await;
    });
}

fn apply_of_a_running_job_is_refused() {
    Harness::run(async |harness| {
        create_repository(harness);
        let service = harness.open().await;
        let job = service.submit(request(harness, "write a.txt job\nsay here\nhang")).await.unwrap().job;
        wait_for_line(&service, job, "here").await;
        let error = service.apply(job, ApplyRequest::default()).await.unwrap_err();
        assert!(matches!(error, CallError::StillRunning { .. }), "{error:?}");
        service.cancel(job).await.unwrap();
        ended(&service, job).await;
        close(&service).await;
    });
}
