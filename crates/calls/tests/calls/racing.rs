//! Groups of jobs: races with a judge, and independent answers with a synthesis.

use std::fs;
use std::path::Path;

use calls::{
    Answer, CallError, CallRequest, ChangesState, ClosedJobs, GroupError, GroupReport, GroupRequest,
    JobService, JobStatus, ShutdownMode, SubmittedGroup, Until, VerdictState,
};
use model::{AgentChoice, GroupKind, JobId, SessionChoice, VerifySpec};
use testkit::{eventually_async, tests};

use crate::harness::{Harness, LONG, close, ended, wait_for_line};
use crate::private_checkouts::{apply, checkout, create_repository, git, places, read};

tests![
    contenders_start_from_the_same_files,
    judge_decides_if_both_orders_agree,
    judge_that_prefers_a_position_does_not_decide,
    judge_needs_two_results,
    judge_waits_without_a_slot,
    judge_survives_a_restart,
    judge_waits_on_after_a_drain,
    cancelled_group_leaves_nothing,
    cancelled_contender_does_not_block_the_judge,
    failed_verification_excludes_a_contender,
    synthesis_reads_all_answers,
    repeated_request_is_the_same_group,
    invalid_group_is_rejected_before_a_job_exists,
    contenders_report_overlaps_in_place_of_collisions,
    kept_contender_is_applied_and_the_others_discarded,
    continued_changes_of_a_contender_stay_open,
    repeated_request_completes_an_incomplete_group,
    concurrent_requests_with_one_key_are_one_group,
    review_is_not_retried_alone,
    discarded_contender_is_not_judged,
    judge_is_told_of_files_without_text,
    retry_of_a_contender_leaves_the_group,
    client_cannot_claim_a_group,
];

fn choices(models: &[&str]) -> Vec<AgentChoice> {
    models.iter().map(|model| format!("rehearsal:{model}").parse().unwrap()).collect()
}

/// Returns a race of these models, and a judge of the model `judge`.
fn race(harness: &Harness, script: &str, models: &[&str]) -> GroupRequest {
    GroupRequest {
        base: harness.request(script),
        kind: GroupKind::Race,
        contenders: choices(models),
        judge: Some("rehearsal:judge".parse().unwrap()),
    }
}

const WRITING: &str = "only fast write a.txt one
only slow write a.txt two";

async fn submit(service: &JobService, request: GroupRequest) -> SubmittedGroup {
    service.submit_group(request).await.unwrap_or_else(|error| panic!("{error:?}"))
}

fn jobs(group: &SubmittedGroup) -> Vec<JobId> {
    group.contenders.iter().chain(&group.reviewers).map(|job| job.job).collect()
}

async fn report(service: &JobService, group: &SubmittedGroup) -> GroupReport {
    let group = service.group_of(group.id.first_job()).await.unwrap();
    service.group_report(&group).await.unwrap()
}

/// Waits for all jobs of a group.
async fn finished(service: &JobService, group: &SubmittedGroup) -> GroupReport {
    let jobs = jobs(group);
    assert_eq!(service.wait(&jobs, Until::All, LONG).await.unwrap(), jobs);
    let report = report(service, group).await;
    assert!(report.has_ended, "{report:?}");
    report
}

async fn raced(service: &JobService, request: GroupRequest) -> GroupReport {
    let group = submit(service, request).await;
    finished(service, &group).await
}

fn kind(answer: &Answer) -> Option<&str> {
    answer.error.as_ref().map(|error| error.kind.as_str())
}

/// The second contender starts after the user has edited a file.
fn contenders_start_from_the_same_files() {
    Harness::run(async |harness| {
        let root = create_repository(harness);
        let service = harness.open_with(|settings| settings.at_once = 1).await;
        let script = "only fast say working
            only fast delay 300ms
            write new.txt x";
        let request = GroupRequest { judge: None, ..race(harness, script, &["fast", "slow"]) };
        let group = submit(&service, request).await;
        wait_for_line(&service, group.contenders[0].job, "working").await;
        fs::write(root.join("mine.txt"), "later\n").unwrap();
        let report = finished(&service, &group).await;
        for contender in &report.contenders {
            assert_eq!(contender.answer.status, JobStatus::Completed, "{:?}", contender.answer);
            let directory = &checkout(&contender.answer).directory;
            assert_eq!(read(Path::new(directory).join("mine.txt")), "edited\n", "{}", contender.number);
        }
        assert_eq!(report.verdict, None, "there is no judge");
        close(&service).await;
    });
}

fn judge_decides_if_both_orders_agree() {
    Harness::run(async |harness| {
        create_repository(harness);
        let service = harness.open().await;
        let script = format!("{WRITING}\nonly judge choose +two");
        let report = raced(&service, race(harness, &script, &["fast", "slow", "idle"])).await;
        let verdict = report.verdict.unwrap();
        assert_eq!(verdict.state, VerdictState::Decided, "{verdict:?}");
        assert_eq!(verdict.winner.as_ref(), Some(&report.contenders[1].answer.job_id));
        assert_eq!(report.reviews.len(), 2);
        for review in &report.reviews {
            let changed = review.changes.as_ref().map_or(0, |changes| changes.files_changed);
            assert_eq!(changed, 0, "a judge writes nothing: {review:?}");
        }
        close(&service).await;
    });
}

fn judge_that_prefers_a_position_does_not_decide() {
    Harness::run(async |harness| {
        create_repository(harness);
        let service = harness.open().await;
        let script = format!("{WRITING}\nonly judge answer VERDICT: A");
        let report = raced(&service, race(harness, &script, &["fast", "slow"])).await;
        let verdict = report.verdict.unwrap();
        assert_eq!((verdict.state, verdict.winner), (VerdictState::Disagreed, None), "{}", verdict.reason);
        close(&service).await;
    });
}

fn judge_needs_two_results() {
    Harness::run(async |harness| {
        create_repository(harness);
        let service = harness.open().await;
        let script = "only fast write a.txt one\nonly slow fail other";
        let report = raced(&service, race(harness, script, &["fast", "slow", "idle"])).await;
        assert_eq!(report.verdict.unwrap().state, VerdictState::NotJudged);
        for review in &report.reviews {
            assert_eq!((review.status, kind(review)), (JobStatus::Failed, Some("nothing_to_review")));
        }
        close(&service).await;
    });
}

fn judge_waits_without_a_slot() {
    Harness::run(async |harness| {
        create_repository(harness);
        let service = harness.open_with(|settings| settings.at_once = 1).await;
        let script = format!("{WRITING}\nonly judge choose +one");
        let report = raced(&service, race(harness, &script, &["fast", "slow"])).await;
        assert_eq!(report.verdict.unwrap().winner.as_ref(), Some(&report.contenders[0].answer.job_id));
        close(&service).await;
    });
}

async fn wait_until_judge_waits(service: &JobService, group: &SubmittedGroup) {
    let judge = group.reviewers[0].job;
    eventually_async("the judge waits", async || {
        let waiting = service.answer(judge).await.unwrap().waiting;
        waiting.is_some_and(|waiting| waiting.starts_with("waiting for"))
    })
    .await;
}

fn judge_survives_a_restart() {
    Harness::run(async |harness| {
        create_repository(harness);
        let service = harness.open().await;
        let script = format!("only fast delay 1s\n{WRITING}\nonly judge choose +two");
        let group = submit(&service, race(harness, &script, &["fast", "slow"])).await;
        wait_until_judge_waits(&service, &group).await;
        service.close(ShutdownMode::Detach).await;
        let service = harness.open().await;
        let report = finished(&service, &group).await;
        assert_eq!(report.verdict.unwrap().winner.as_ref(), Some(&report.contenders[1].answer.job_id));
        close(&service).await;
    });
}

/// A drain waits for the running contender and leaves the judge to the next service.
fn judge_waits_on_after_a_drain() {
    Harness::run(async |harness| {
        create_repository(harness);
        let service = harness.open().await;
        let script = format!("only fast delay 1s\n{WRITING}\nonly judge choose +two");
        let group = submit(&service, race(harness, &script, &["fast", "slow"])).await;
        wait_until_judge_waits(&service, &group).await;
        close(&service).await;
        let service = harness.open().await;
        let report = finished(&service, &group).await;
        assert_eq!(report.verdict.unwrap().winner.as_ref(), Some(&report.contenders[1].answer.job_id));
        close(&service).await;
    });
}

fn cancelled_group_leaves_nothing() {
    Harness::run(async |harness| {
        let root = create_repository(harness);
        let before = git(&root, &["status", "--porcelain"]);
        let service = harness.open_with(|settings| settings.at_once = 1).await;
        let group = submit(&service, race(harness, "say working\nhang", &["fast", "slow"])).await;
        wait_for_line(&service, group.contenders[0].job, "working").await;
        let record = service.group_of(group.id.first_job()).await.unwrap();
        let cancelled = service.cancel_group(&record).await.unwrap();
        assert_eq!(cancelled.iter().map(|(job, _)| *job).collect::<Vec<_>>(), jobs(&group));
        let report = finished(&service, &group).await;
        for answer in report.contenders.iter().map(|contender| &contender.answer).chain(&report.reviews) {
            assert_eq!(answer.status, JobStatus::Cancelled, "{answer:?}");
        }
        assert_eq!(places(harness), 0, "also the checkout of the contender that never started is removed");
        assert_eq!(git(&root, &["status", "--porcelain"]), before);
        assert!(service.cancel_group(&record).await.unwrap().is_empty(), "all have ended");
        close(&service).await;
    });
}

fn cancelled_contender_does_not_block_the_judge() {
    Harness::run(async |harness| {
        create_repository(harness);
        let service = harness.open().await;
        let script = format!("{WRITING}\nonly stuck hang\nonly judge choose +two");
        let group = submit(&service, race(harness, &script, &["fast", "stuck", "slow"])).await;
        wait_until_judge_waits(&service, &group).await;
        service.cancel(group.contenders[1].job).await.unwrap();
        let report = finished(&service, &group).await;
        assert_eq!(report.verdict.unwrap().winner.as_ref(), Some(&report.contenders[2].answer.job_id));
        close(&service).await;
    });
}

fn failed_verification_excludes_a_contender() {
    Harness::run(async |harness| {
        create_repository(harness);
        let service = harness.open().await;
        let script = format!("{WRITING}\nonly third write a.txt two\nonly judge choose +one");
        let mut request = race(harness, &script, &["fast", "slow", "third"]);
        request.base.call.verify = Some(VerifySpec::new("grep -q two a.txt"));
        let report = raced(&service, request).await;
        let states: Vec<JobStatus> =
            report.contenders.iter().map(|contender| contender.answer.status).collect();
        assert_eq!(states, [JobStatus::Failed, JobStatus::Completed, JobStatus::Completed]);
        let verdict = report.verdict.unwrap();
        assert_eq!(verdict.state, VerdictState::NoneAccepted, "the judge does not see it: {verdict:?}");
        close(&service).await;
    });
}

fn synthesis_reads_all_answers() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        // Without a step for its model, the scripted agent repeats its prompt.
        let request = GroupRequest {
            kind: GroupKind::Answers,
            judge: Some("rehearsal:writer".parse().unwrap()),
            ..race(harness, "only one answer it is red\nonly two answer it is blue", &["one", "two"])
        };
        let report = raced(&service, request).await;
        assert_eq!((report.kind.as_str(), report.reviews.len(), report.verdict), ("answers", 1, None));
        let synthesis = &report.reviews[0];
        for part in ["it is red", "it is blue", "Start with the points on which the candidates disagree"] {
            assert!(synthesis.output.contains(part), "{part}: {}", synthesis.output);
        }
        assert!(report.contenders.iter().all(|contender| contender.answer.changes.is_none()));
        assert_eq!(places(harness), 0);
        close(&service).await;
    });
}

fn repeated_request_is_the_same_group() {
    Harness::run(async |harness| {
        create_repository(harness);
        let service = harness.open().await;
        let mut request = race(harness, WRITING, &["fast", "slow"]);
        request.base.idempotency_key = Some("once".to_owned());
        let first = submit(&service, request.clone()).await;
        let second = submit(&service, request.clone()).await;
        assert_eq!((jobs(&first), first.id), (jobs(&second), second.id));
        assert!(second.contenders.iter().all(|job| !job.is_new));
        let report = report(&service, &first).await;
        assert!(report.contenders.iter().all(|one| one.answer.status != JobStatus::Cancelled), "{report:?}");
        let mut other_prompt = request.clone();
        "something else".clone_into(&mut other_prompt.base.call.prompt);
        let other_agent = GroupRequest { contenders: choices(&["fast", "other"]), ..request.clone() };
        let another_agent =
            GroupRequest { contenders: choices(&["fast", "slow", "slow"]), ..request.clone() };
        let no_judge = GroupRequest { judge: None, ..request.clone() };
        let answers = GroupRequest { kind: GroupKind::Answers, ..request };
        for differing in [other_prompt, other_agent, another_agent, no_judge, answers] {
            let refused = service.submit_group(differing).await;
            assert!(matches!(refused, Err(CallError::KeyOfAnother { .. })), "{refused:?}");
        }
        finished(&service, &first).await;
        close(&service).await;
    });
}

fn repeated_request_completes_an_incomplete_group() {
    Harness::run(async |harness| {
        create_repository(harness);
        let service = harness.open().await;
        let mut request = race(harness, &format!("{WRITING}\nonly judge choose +one"), &["fast", "slow"]);
        request.base.call.prompt.push_str("\n@rehearse delay 3s");
        request.base.idempotency_key = Some("once".to_owned());
        let first = submit(&service, request.clone()).await;
        // As if the daemon had been killed before it stored the other contender.
        let missing = first.contenders[1].job;
        service.close(ShutdownMode::Detach).await;
        let delete = "DELETE FROM agent_jobs WHERE id = ?1";
        assert_eq!(harness.database().execute(delete, [missing.as_uuid().as_bytes()]).unwrap(), 1);
        let service = harness.open().await;
        let second = submit(&service, request).await;
        assert_eq!(jobs(&first), jobs(&second));
        assert!(second.contenders[1].is_new && !second.contenders[0].is_new);
        let report = finished(&service, &second).await;
        assert_eq!(report.status(), JobStatus::Completed);
        close(&service).await;
    });
}

fn concurrent_requests_with_one_key_are_one_group() {
    Harness::run(async |harness| {
        create_repository(harness);
        let service = harness.open().await;
        let mut request = race(harness, WRITING, &["fast", "slow"]);
        request.base.idempotency_key = Some("once".to_owned());
        let (first, second, third) = tokio::join!(
            Box::pin(submit(&service, request.clone())),
            Box::pin(submit(&service, request.clone())),
            Box::pin(submit(&service, request.clone())),
        );
        assert_eq!((jobs(&first), jobs(&first)), (jobs(&second), jobs(&third)));
        let report = finished(&service, &first).await;
        assert!(report.contenders.iter().all(|one| one.answer.status == JobStatus::Completed), "{report:?}");
        close(&service).await;
    });
}

fn review_is_not_retried_alone() {
    Harness::run(async |harness| {
        create_repository(harness);
        let service = harness.open().await;
        let report = raced(&service, race(harness, WRITING, &["fast", "slow"])).await;
        let judge = report.reviews[0].job_id.parse().unwrap();
        let refused = service.retry(judge, None).await;
        assert!(matches!(refused, Err(CallError::Group(GroupError::RepeatedReview { .. }))), "{refused:?}");
        close(&service).await;
    });
}

fn discarded_contender_is_not_judged() {
    Harness::run(async |harness| {
        create_repository(harness);
        let service = harness.open().await;
        let script =
            format!("{WRITING}\nonly slow delay 1s\nonly third write a.txt three\nonly judge choose +one");
        let group = submit(&service, race(harness, &script, &["fast", "slow", "third"])).await;
        let fast = group.contenders[0].job;
        assert_eq!(service.wait(&[fast], Until::All, LONG).await.unwrap(), [fast]);
        service.discard(fast).await.unwrap();
        let report = finished(&service, &group).await;
        let verdict = report.verdict.unwrap();
        assert_eq!((verdict.state, verdict.winner), (VerdictState::NoneAccepted, None), "{}", verdict.reason);
        close(&service).await;
    });
}

fn judge_is_told_of_files_without_text() {
    Harness::run(async |harness| {
        create_repository(harness);
        let service = harness.open().await;
        let script = format!(
            "{WRITING}\nonly fast write .gitattributes \"*.bin -diff\"\nonly fast write big.bin x\nonly judge choose big.bin (binary, "
        );
        let report = raced(&service, race(harness, &script, &["fast", "slow"])).await;
        let verdict = report.verdict.unwrap();
        assert_eq!(verdict.state, VerdictState::Decided, "{}", verdict.reason);
        assert!(verdict.reason.contains("1 of its files are not texts"), "{}", verdict.reason);
        close(&service).await;
    });
}

fn invalid_group_is_rejected_before_a_job_exists() {
    Harness::run(async |harness| {
        create_repository(harness);
        let service = harness.open().await;
        let valid = || race(harness, WRITING, &["fast", "slow"]);
        let one = GroupRequest { contenders: choices(&["fast"]), ..valid() };
        let many = GroupRequest { contenders: choices(&["x"; 9]), ..valid() };
        let mut resumed = valid();
        resumed.base.call.session =
            SessionChoice::Resume("5f6d0c3e-6b5e-4a7e-9a39-0d5d7f6f8a11".parse().unwrap());
        let mut verified = GroupRequest { kind: GroupKind::Answers, ..valid() };
        verified.base.call.verify = Some(VerifySpec::new("true"));
        let mut shared = valid();
        shared.base.call.add_dirs = vec!["/tmp".into()];
        for (request, expected) in [
            (one, GroupError::Size { given: 1 }),
            (many, GroupError::Size { given: 9 }),
            (resumed, GroupError::Session),
            (verified, GroupError::ReadOnly),
            (shared, GroupError::SharedDirectories),
        ] {
            match service.submit_group(request).await {
                Err(CallError::Group(error)) => assert_eq!(error, expected),
                other => panic!("{other:?}"),
            }
        }
        // The judge is not installed: nothing is stored, also not the contenders before it.
        let unknown = GroupRequest { judge: Some("claude".parse().unwrap()), ..valid() };
        assert!(matches!(service.submit_group(unknown).await, Err(CallError::NotReady(_))));
        assert_eq!(service.count(&calls::JobFilter::default()).await.unwrap(), 0);
        close(&service).await;
    });
}

fn contenders_report_overlaps_in_place_of_collisions() {
    Harness::run(async |harness| {
        create_repository(harness);
        let service = harness.open().await;
        let script = format!("{WRITING}\nonly slow write own.txt x");
        let request = GroupRequest { judge: None, ..race(harness, &script, &["fast", "slow"]) };
        let report = raced(&service, request).await;
        for contender in &report.contenders {
            assert_eq!(contender.overlaps, ["a.txt"], "{}", contender.number);
            assert_eq!(checkout(&contender.answer).collisions, []);
        }
        close(&service).await;
    });
}

fn kept_contender_is_applied_and_the_others_discarded() {
    Harness::run(async |harness| {
        let root = create_repository(harness);
        let service = harness.open().await;
        let script = format!("{WRITING}\nonly stuck say working\nonly stuck hang\nonly judge choose +two");
        let group = submit(&service, race(harness, &script, &["fast", "slow", "stuck", "idle"])).await;
        let id = |number: usize| group.contenders[number].job;
        wait_for_line(&service, id(2), "working").await;
        assert_eq!(service.wait(&[id(1)], Until::All, LONG).await.unwrap(), [id(1)]);
        apply(&service, &service.answer(id(1)).await.unwrap()).await.unwrap();
        let closed = service.discard_other_contenders(id(1)).await.unwrap();
        assert!(closed.discarded.contains(&id(0)) && !closed.discarded.contains(&id(1)), "{closed:?}");
        assert!(closed.cancelled.contains(&id(2)) && !closed.cancelled.contains(&id(1)), "{closed:?}");
        let report = finished(&service, &group).await;
        assert_eq!(report.contenders[2].answer.status, JobStatus::Cancelled, "the running one is stopped");
        assert!(report.reviews.iter().all(|review| review.status == JobStatus::Cancelled), "{report:?}");
        assert_eq!(read(root.join("a.txt")), "two");
        assert_eq!(places(harness), 0);
        assert_eq!(git(&root, &["branch", "--list", "switchboard/*"]), "");
        assert_eq!(
            service.discard_other_contenders(id(1)).await.unwrap(),
            ClosedJobs::default(),
            "it is idempotent"
        );
        let refused = service.discard_other_contenders(group.reviewers[0].job).await;
        assert!(matches!(refused, Err(CallError::Group(GroupError::NotAContender { .. }))), "{refused:?}");
        close(&service).await;
    });
}

fn continued_changes_of_a_contender_stay_open() {
    Harness::run(async |harness| {
        create_repository(harness);
        let service = harness.open().await;
        let script = format!("{WRITING}\nonly third write a.txt three");
        let request = GroupRequest { judge: None, ..race(harness, &script, &["fast", "slow", "third"]) };
        let report = raced(&service, request).await;
        let id = |number: usize| report.contenders[number].answer.job_id.parse::<JobId>().unwrap();
        let mut follow_up = harness.request("write b.txt more");
        let session = report.contenders[1].answer.session_id.clone().unwrap();
        follow_up.call.session = SessionChoice::Resume(session.parse().unwrap());
        let follow_up = service.submit(follow_up).await.unwrap().job;
        let answer = ended(&service, follow_up).await;
        apply(&service, &report.contenders[0].answer).await.unwrap();
        assert_eq!(service.discard_other_contenders(id(0)).await.unwrap().discarded, [id(2)]);
        assert_eq!(
            checkout(&service.answer(follow_up).await.unwrap()).state,
            ChangesState::Open,
            "{answer:?}"
        );
        close(&service).await;
    });
}

fn retry_of_a_contender_leaves_the_group() {
    Harness::run(async |harness| {
        create_repository(harness);
        let service = harness.open().await;
        let request = GroupRequest { judge: None, ..race(harness, WRITING, &["fast", "slow"]) };
        let report = raced(&service, request).await;
        let retried = service.retry(report.contenders[0].answer.job_id.parse().unwrap(), None).await.unwrap();
        let answer = ended(&service, retried.job).await;
        assert_eq!(checkout(&answer).state, ChangesState::Open);
        assert!(matches!(
            service.group_of(retried.job).await,
            Err(CallError::Group(GroupError::NotGrouped { .. }))
        ));
        close(&service).await;
    });
}

fn client_cannot_claim_a_group() {
    Harness::run(async |harness| {
        create_repository(harness);
        let service = harness.open().await;
        let request = GroupRequest { judge: None, ..race(harness, WRITING, &["fast", "slow"]) };
        let group = submit(&service, request).await;
        let mut call = harness.call("answer x");
        call.group = Some(service.group_of(group.id.first_job()).await.unwrap());
        let job = service.submit(CallRequest::new(call, "call_cc")).await.unwrap().job;
        assert!(matches!(service.group_of(job).await, Err(CallError::Group(GroupError::NotGrouped { .. }))));
        ended(&service, job).await;
        finished(&service, &group).await;
        close(&service).await;
    });
}
