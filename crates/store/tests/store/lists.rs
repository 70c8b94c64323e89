//! Lists, statistics, change notifications and retention.

use std::time::Duration;

use model::{AgentKind, JobEnd, JobId, NewJob, Outcome, Placement, StateName, Usage};
use store::{JobFilter, PageRequest, RetentionLimits, StatsRange, Store, WatchEvent};

use crate::conformance;
use crate::fixtures::{claimed, here, new_job, new_job_for, outcome, request, success};
use crate::harness::Harness;

conformance![
    pages_list_every_job_once_newest_first,
    submit_between_pages_does_not_shift_them,
    every_filter_excludes_other_jobs,
    text_filter_matches_literally_in_task_and_prompt,
    summary_has_usage_cost_and_prompt_head,
    stats_are_grouped_by_agent_model_day_and_end,
    implausible_usage_is_excluded_from_stats,
    sweep_removes_only_old_finished_jobs,
    sweep_keeps_newest_jobs_up_to_max_count,
    sweep_removes_job_with_future_id,
    max_count_keeps_jobs_by_end_time,
    sweep_removes_last_session_with_its_job,
    key_of_removed_job_can_be_reused,
    watch_reports_changes_after_commit,
];

async fn submit_many(store: &Store, harness: &Harness, count: usize) -> Vec<JobId> {
    let mut ids = Vec::new();
    for number in 0..count {
        harness.clock.advance(Duration::from_millis(number as u64 % 2));
        ids.push(store.submit(new_job(&format!("job {number}"))).await.unwrap().job.id);
    }
    ids
}

async fn pages_list_every_job_once_newest_first(harness: Harness) {
    let store = harness.open().await;
    let mut submitted = submit_many(&store, &harness, 25).await;
    submitted.reverse();
    let mut page = PageRequest { limit: 10, before: None };
    let mut seen = Vec::new();
    loop {
        let result = store.list(&JobFilter::default(), page).await.unwrap();
        assert!(result.jobs.len() <= 10);
        seen.extend(result.jobs.iter().map(|job| job.id));
        page.before = result.next;
        if result.next.is_none() {
            break;
        }
    }
    assert_eq!(seen, submitted);
    let exact = PageRequest { limit: 25, before: None };
    assert_eq!(
        store.list(&JobFilter::default(), exact).await.unwrap().next,
        None,
        "no empty page at the end"
    );
}

async fn submit_between_pages_does_not_shift_them(harness: Harness) {
    let store = harness.open().await;
    let submitted = submit_many(&store, &harness, 4).await;
    let first = store.list(&JobFilter::default(), PageRequest { limit: 2, before: None }).await.unwrap();
    store.submit(new_job("late")).await.unwrap();
    let second =
        store.list(&JobFilter::default(), PageRequest { limit: 2, before: first.next }).await.unwrap();
    assert_eq!(second.jobs.iter().map(|job| job.id).collect::<Vec<_>>(), [submitted[1], submitted[0]]);
}

async fn every_filter_excludes_other_jobs(harness: Harness) {
    let store = harness.open().await;
    let parent = store.submit(new_job("parent")).await.unwrap().job.id;
    let (_, claim) = claimed(&store, "a").await;
    store.finish(&claim, success("x")).await.unwrap();
    harness.clock.advance(Duration::from_secs(10));
    let later = harness.clock.now();
    let gpu = Placement::Label("gpu".into());
    let child =
        NewJob { parent: Some(parent), task: "t".into(), ..new_job_for(AgentKind::Gemini, gpu.clone()) };
    let child = store.submit(child).await.unwrap().job.id;

    let ids = async |filter: JobFilter| {
        let page = store.list(&filter, PageRequest::default()).await.unwrap();
        let ids: Vec<_> = page.jobs.iter().map(|job| job.id).collect();
        assert_eq!(store.count(&filter).await.unwrap(), ids.len() as u64);
        ids
    };
    let all = JobFilter::default;
    assert_eq!(ids(all()).await, [child, parent]);
    assert_eq!(ids(JobFilter { states: vec![StateName::Queued], ..all() }).await, [child]);
    let ended = vec![StateName::Completed, StateName::Failed];
    assert_eq!(ids(JobFilter { states: ended, ..all() }).await, [parent]);
    let both = vec![StateName::Completed, StateName::Queued];
    assert_eq!(ids(JobFilter { states: both, ..all() }).await, [child, parent]);
    assert_eq!(ids(JobFilter { agent: Some(AgentKind::Gemini), ..all() }).await, [child]);
    assert_eq!(ids(JobFilter { tool: Some("call_cc".into()), ..all() }).await, [parent]);
    assert_eq!(ids(JobFilter { task: Some("t".into()), ..all() }).await, [child]);
    assert_eq!(ids(JobFilter { home: Some(gpu), ..all() }).await, [child]);
    assert_eq!(ids(JobFilter { parent: Some(parent), ..all() }).await, [child]);
    assert_eq!(ids(JobFilter { session: outcome("").session, ..all() }).await, [parent]);
    assert_eq!(ids(JobFilter { since: Some(later), ..all() }).await, [child]);
    assert_eq!(ids(JobFilter { until: Some(later), ..all() }).await, [parent]);
    let nothing = JobFilter { agent: Some(AgentKind::Gemini), tool: Some("call_cc".into()), ..all() };
    assert_eq!(ids(nothing).await, []);
}

async fn text_filter_matches_literally_in_task_and_prompt(harness: Harness) {
    let store = harness.open().await;
    let mut submitted = Vec::new();
    for (task, prompt) in [("shop", "Mend the\nBasket"), (r"100%_\o/", "x"), ("1000 o", "x")] {
        let new_job = NewJob { task: task.into(), ..new_job(prompt) };
        submitted.push(store.submit(new_job).await.unwrap().job.id);
        harness.clock.advance(Duration::from_millis(1));
    }
    let found = async |text: &str| {
        let filter = JobFilter { text: Some(text.to_owned()), ..JobFilter::default() };
        let page = store.list(&filter, PageRequest::default()).await.unwrap();
        assert_eq!(store.count(&filter).await.unwrap(), page.jobs.len() as u64);
        page.jobs.iter().map(|job| job.id).collect::<Vec<_>>()
    };
    assert_eq!(found("the\nbASKet").await, [submitted[0]], "in a prompt, in capitals or not");
    assert_eq!(found("shop").await, [submitted[0]], "in the name of a task");
    // No character is a wildcard.
    for text in ["%", "_", r"\", r"100%_\o"] {
        assert_eq!(found(text).await, [submitted[1]], "{text}");
    }
    assert_eq!(found("nowhere").await, []);
}

async fn summary_has_usage_cost_and_prompt_head(harness: Harness) {
    let store = harness.open().await;
    let submitted =
        store.submit(new_job(&format!("first line\nsecond {}", "x".repeat(10_000)))).await.unwrap().job;
    let (_, claim) = claimed(&store, "a").await;
    store.finish(&claim, success("done")).await.unwrap();
    let summary = store.list(&JobFilter::default(), PageRequest::default()).await.unwrap().jobs.remove(0);
    assert_eq!((summary.id, summary.state, summary.attempt), (submitted.id, StateName::Completed, 1));
    assert_eq!(summary.model.as_deref(), Some("claude-haiku-4-5"), "the model that answered");
    assert_eq!(summary.usage, Some(Usage { input: 100, output: 20, cached: 60, reasoning: 5 }));
    assert_eq!(summary.cost_usd, Some(0.25));
    assert_eq!(summary.duration, Some(Duration::from_millis(1_200)), "the time of its runs");
    assert_eq!((summary.cwd.as_str(), summary.home), ("/home/ana/shop", here()));
    assert!(summary.prompt_head.starts_with("first line second x"));
    assert!(summary.prompt_head.len() < 200);
}

async fn stats_are_grouped_by_agent_model_day_and_end(harness: Harness) {
    let store = harness.open().await;
    for (agent, days) in [(AgentKind::Claude, 0), (AgentKind::Claude, 0), (AgentKind::Codex, 1)] {
        harness.clock.advance(Duration::from_hours(24 * days));
        store.submit(new_job_for(agent, here())).await.unwrap();
        let (_, claim) = claimed(&store, "a").await;
        harness.clock.advance(Duration::from_secs(3));
        store.finish(&claim, success("x")).await.unwrap();
    }
    store.submit(new_job("waits")).await.unwrap();
    let stats = store.stats(StatsRange::default()).await.unwrap();
    assert_eq!(stats.in_state(StateName::Completed), 3);
    assert_eq!(stats.in_state(StateName::Queued), 1);
    assert_eq!(stats.in_state(StateName::Failed), 0);
    let rows: Vec<_> =
        stats.ended.iter().map(|row| (row.agent, row.jobs, row.duration_ms, row.usage.input)).collect();
    assert_eq!(rows, [(AgentKind::Claude, 2, 2_400, 200), (AgentKind::Codex, 1, 1_200, 100)]);
    assert_eq!(stats.ended[0].model.as_deref(), Some("claude-haiku-4-5"));
    assert!((stats.ended[0].cost_usd - 0.5).abs() < 1e-9);
    assert_eq!(stats.ended[1].day.since(stats.ended[0].day), Duration::from_hours(24));
    let today = StatsRange { since: Some(stats.ended[1].day), until: None };
    assert_eq!(store.stats(today).await.unwrap().ended, stats.ended[1..]);
}

async fn implausible_usage_is_excluded_from_stats(harness: Harness) {
    let store = harness.open().await;
    let most = u64::MAX;
    let absurd = Usage { input: most, output: most, cached: most, reasoning: most };
    for (cost_usd, usage) in [(Some(0.25), None), (Some(1e308), Some(absurd)), (Some(1e308), None)] {
        store.submit(new_job("x")).await.unwrap();
        let (_, claim) = claimed(&store, "a").await;
        store.finish(&claim, JobEnd::from(Outcome { cost_usd, usage, ..outcome("x") })).await.unwrap();
    }
    let sums = store.stats(StatsRange::default()).await.unwrap().ended.remove(0);
    assert_eq!((sums.jobs, sums.usage.input), (3, 0));
    assert!((sums.cost_usd - 0.25).abs() < 1e-9, "{}", sums.cost_usd);
}

async fn finish_all(store: &Store) {
    while let Some(job) = store.claim(request("a")).await.unwrap() {
        store.finish(&job.claim().unwrap(), success("x")).await.unwrap();
    }
}

async fn sweep_removes_only_old_finished_jobs(harness: Harness) {
    let store = harness.open().await;
    let old = submit_many(&store, &harness, 3).await;
    finish_all(&store).await;
    let waiting =
        store.submit(new_job_for(AgentKind::Claude, Placement::Label("nobody".into()))).await.unwrap().job.id;
    let slow = store.submit(new_job("slow")).await.unwrap().job.id;
    let (_, claim) = claimed(&store, "a").await;
    harness.clock.advance(Duration::from_hours(48));
    store.finish(&claim, JobEnd::cancelled()).await.unwrap();

    let keep_all = store.sweep(RetentionLimits::default()).await.unwrap();
    assert_eq!(keep_all, []);
    let day = RetentionLimits { max_age: Some(Duration::from_hours(24)), max_count: None };
    let mut removed = store.sweep(day).await.unwrap();
    removed.sort();
    assert_eq!(removed, old);
    for id in old {
        assert_eq!(store.get(id).await.unwrap(), None);
        assert_eq!(store.exchange(id).await.unwrap(), None);
    }
    assert!(store.get(waiting).await.unwrap().is_some(), "it has not ended");
    assert!(store.get(slow).await.unwrap().is_some(), "it ended just now");
    assert_eq!(store.sweep(day).await.unwrap(), []);
}

async fn sweep_keeps_newest_jobs_up_to_max_count(harness: Harness) {
    let store = harness.open().await;
    let submitted = submit_many(&store, &harness, 8).await;
    finish_all(&store).await;
    let waiting = store.submit(new_job("waits")).await.unwrap().job.id;
    let five = RetentionLimits { max_age: None, max_count: Some(5) };
    let mut removed = store.sweep(five).await.unwrap();
    removed.sort();
    assert_eq!(removed, submitted[..3]);
    assert_eq!(store.count(&JobFilter::default()).await.unwrap(), 6);
    assert!(store.get(waiting).await.unwrap().is_some());
}

async fn sweep_removes_job_with_future_id(harness: Harness) {
    let store = harness.open().await;
    let right = harness.clock.now();
    harness.clock.advance(Duration::from_hours(24 * 365));
    let job = store.submit(new_job("from the future")).await.unwrap().job.id;
    harness.clock.set(right);
    finish_all(&store).await;
    harness.clock.advance(Duration::from_hours(48));
    let day = RetentionLimits { max_age: Some(Duration::from_hours(24)), max_count: None };
    assert_eq!(store.sweep(day).await.unwrap(), [job]);
}

async fn max_count_keeps_jobs_by_end_time(harness: Harness) {
    let store = harness.open().await;
    let right = harness.clock.now();
    harness.clock.advance(Duration::from_hours(24 * 365));
    let future = store.submit(new_job("of a clock that was ahead")).await.unwrap().job.id;
    harness.clock.set(right);
    let slow = store.submit(new_job("takes long")).await.unwrap().job.id;
    let quick = store.submit(new_job("quick")).await.unwrap().job.id;
    for job in [future, quick, slow] {
        harness.clock.advance(Duration::from_secs(1));
        store.request_cancel(job).await.unwrap();
    }
    let keep = |count| RetentionLimits { max_age: None, max_count: Some(count) };
    assert_eq!(store.sweep(keep(2)).await.unwrap(), [future]);
    assert_eq!(store.sweep(keep(1)).await.unwrap(), [quick]);
    assert!(store.get(slow).await.unwrap().is_some());
}

async fn sweep_removes_last_session_with_its_job(harness: Harness) {
    let store = harness.open().await;
    for task in ["old", "new"] {
        store.submit(NewJob { task: task.into(), ..new_job("x") }).await.unwrap();
        let (_, claim) = claimed(&store, "a").await;
        harness.clock.advance(Duration::from_secs(1));
        store.finish(&claim, success("x")).await.unwrap();
    }
    store.sweep(RetentionLimits { max_age: None, max_count: Some(1) }).await.unwrap();
    let last = async |task| store.last_session(AgentKind::Claude, task, &here()).await.unwrap();
    assert_eq!(last("old").await, None);
    assert!(last("new").await.is_some());
}

async fn key_of_removed_job_can_be_reused(harness: Harness) {
    let store = harness.open().await;
    let keyed = || NewJob { idempotency_key: Some("k".into()), ..new_job("x") };
    let first = store.submit(keyed()).await.unwrap().job.id;
    finish_all(&store).await;
    store.sweep(RetentionLimits { max_age: None, max_count: Some(0) }).await.unwrap();
    let second = store.submit(keyed()).await.unwrap();
    assert!(second.is_new && second.job.id != first);
}

async fn watch_reports_changes_after_commit(harness: Harness) {
    let store = harness.open().await;
    let mut watch = store.watch().await.unwrap();
    let job = store.submit(new_job("x")).await.unwrap().job.id;
    let (_, claim) = claimed(&store, "a").await;
    store.finish(&claim, success("x")).await.unwrap();
    let (mut states, mut last) = (Vec::new(), 0);
    while states.last() != Some(&StateName::Completed) {
        let event =
            tokio::time::timeout(Duration::from_secs(20), watch.next()).await.expect("a change in time");
        let Some(WatchEvent::Changed(change)) = event else { panic!("{event:?}") };
        assert_eq!(change.job, job);
        // A shared store reports the home, so that other daemons can ignore the change.
        assert_eq!(change.home, store.is_shared().then(|| new_job("x").home));
        assert!(change.revision > last);
        last = change.revision;
        let known = store.get(job).await.unwrap().unwrap();
        assert!(known.revision >= change.revision, "reported before the commit");
        states.push(change.state);
    }
    assert_eq!(states, [StateName::Queued, StateName::Running, StateName::Completed]);
}
