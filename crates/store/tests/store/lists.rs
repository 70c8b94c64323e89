//! Lists, statistics, change notifications and retention.

use std::time::Duration;

use model::{AgentKind, JobEnd, JobId, NewJob, Outcome, Placement, StateName, Usage};
use store::{JobFilter, PageRequest, Retention, StatsRange, Store, WatchEvent};

use crate::bed::Bed;
use crate::calls::{claimed, here, order, order_for, outcome, request, success};
use crate::conformance;

conformance![
    pages_show_every_job_once_the_newest_first,
    a_job_placed_between_two_pages_moves_nothing,
    every_filter_leaves_out_what_does_not_fit,
    words_are_found_in_tasks_and_prompts_as_they_are,
    a_summary_has_what_fits_in_a_line,
    sums_are_by_agent_model_day_and_end,
    figures_that_cannot_be_true_spoil_no_sum,
    old_ended_jobs_are_removed_and_no_others,
    more_than_the_newest_so_many_are_removed,
    a_job_of_a_clock_that_was_ahead_is_removed_like_any_other,
    the_newest_are_those_that_ended_last,
    the_last_session_of_a_task_goes_with_its_job,
    a_removed_key_is_free_again,
    a_watcher_sees_every_change_after_it_was_written,
];

async fn place_many(store: &Store, bed: &Bed, count: usize) -> Vec<JobId> {
    let mut ids = Vec::new();
    for number in 0..count {
        bed.clock.advance(Duration::from_millis(number as u64 % 2));
        ids.push(store.submit(order(&format!("job {number}"))).await.unwrap().job.id);
    }
    ids
}

async fn pages_show_every_job_once_the_newest_first(bed: Bed) {
    let store = bed.open().await;
    let mut placed = place_many(&store, &bed, 25).await;
    placed.reverse();
    let mut page = PageRequest { limit: 10, before: None };
    let mut seen = Vec::new();
    loop {
        let answer = store.list(&JobFilter::default(), page).await.unwrap();
        assert!(answer.jobs.len() <= 10);
        seen.extend(answer.jobs.iter().map(|job| job.id));
        page.before = answer.next;
        if answer.next.is_none() {
            break;
        }
    }
    assert_eq!(seen, placed);
    let exact = PageRequest { limit: 25, before: None };
    assert_eq!(
        store.list(&JobFilter::default(), exact).await.unwrap().next,
        None,
        "no empty page at the end"
    );
}

async fn a_job_placed_between_two_pages_moves_nothing(bed: Bed) {
    let store = bed.open().await;
    let placed = place_many(&store, &bed, 4).await;
    let first = store.list(&JobFilter::default(), PageRequest { limit: 2, before: None }).await.unwrap();
    store.submit(order("late")).await.unwrap();
    let second =
        store.list(&JobFilter::default(), PageRequest { limit: 2, before: first.next }).await.unwrap();
    assert_eq!(second.jobs.iter().map(|job| job.id).collect::<Vec<_>>(), [placed[1], placed[0]]);
}

async fn every_filter_leaves_out_what_does_not_fit(bed: Bed) {
    let store = bed.open().await;
    let parent = store.submit(order("parent")).await.unwrap().job.id;
    let (_, claim) = claimed(&store, "a").await;
    store.finish(&claim, success("x")).await.unwrap();
    bed.clock.advance(Duration::from_secs(10));
    let later = bed.clock.now();
    let gpu = Placement::Label("gpu".into());
    let child =
        NewJob { parent: Some(parent), task: "t".into(), ..order_for(AgentKind::Gemini, gpu.clone()) };
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

async fn words_are_found_in_tasks_and_prompts_as_they_are(bed: Bed) {
    let store = bed.open().await;
    let mut placed = Vec::new();
    for (task, prompt) in [("shop", "Mend the\nBasket"), (r"100%_\o/", "x"), ("1000 o", "x")] {
        let order = NewJob { task: task.into(), ..order(prompt) };
        placed.push(store.submit(order).await.unwrap().job.id);
        bed.clock.advance(Duration::from_millis(1));
    }
    let found = async |words: &str| {
        let filter = JobFilter { words: Some(words.to_owned()), ..JobFilter::default() };
        let page = store.list(&filter, PageRequest::default()).await.unwrap();
        assert_eq!(store.count(&filter).await.unwrap(), page.jobs.len() as u64);
        page.jobs.iter().map(|job| job.id).collect::<Vec<_>>()
    };
    assert_eq!(found("the\nbASKet").await, [placed[0]], "in a prompt, in capitals or not");
    assert_eq!(found("shop").await, [placed[0]], "in the name of a task");
    // No character is a wildcard.
    for words in ["%", "_", r"\", r"100%_\o"] {
        assert_eq!(found(words).await, [placed[1]], "{words}");
    }
    assert_eq!(found("nowhere").await, []);
}

async fn a_summary_has_what_fits_in_a_line(bed: Bed) {
    let store = bed.open().await;
    let placed =
        store.submit(order(&format!("first line\nsecond {}", "x".repeat(10_000)))).await.unwrap().job;
    let (_, claim) = claimed(&store, "a").await;
    store.finish(&claim, success("done")).await.unwrap();
    let line = store.list(&JobFilter::default(), PageRequest::default()).await.unwrap().jobs.remove(0);
    assert_eq!((line.id, line.state, line.attempt), (placed.id, StateName::Completed, 1));
    assert_eq!(line.model.as_deref(), Some("claude-haiku-4-5"), "the model that answered");
    assert_eq!(line.usage, Some(Usage { input: 100, output: 20, cached: 60, reasoning: 5 }));
    assert_eq!(line.cost_usd, Some(0.25));
    assert_eq!(line.duration, Some(Duration::from_millis(1_200)), "the time of its runs");
    assert_eq!((line.cwd.as_str(), line.home), ("/home/ana/shop", here()));
    assert!(line.prompt_head.starts_with("first line second x"));
    assert!(line.prompt_head.len() < 200);
}

async fn sums_are_by_agent_model_day_and_end(bed: Bed) {
    let store = bed.open().await;
    for (agent, days) in [(AgentKind::Claude, 0), (AgentKind::Claude, 0), (AgentKind::Codex, 1)] {
        bed.clock.advance(Duration::from_hours(24 * days));
        store.submit(order_for(agent, here())).await.unwrap();
        let (_, claim) = claimed(&store, "a").await;
        bed.clock.advance(Duration::from_secs(3));
        store.finish(&claim, success("x")).await.unwrap();
    }
    store.submit(order("waits")).await.unwrap();
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

async fn figures_that_cannot_be_true_spoil_no_sum(bed: Bed) {
    let store = bed.open().await;
    let most = u64::MAX;
    let absurd = Usage { input: most, output: most, cached: most, reasoning: most };
    for (cost_usd, usage) in [(Some(0.25), None), (Some(1e308), Some(absurd)), (Some(1e308), None)] {
        store.submit(order("x")).await.unwrap();
        let (_, claim) = claimed(&store, "a").await;
        store.finish(&claim, JobEnd::from(Outcome { cost_usd, usage, ..outcome("x") })).await.unwrap();
    }
    let sums = store.stats(StatsRange::default()).await.unwrap().ended.remove(0);
    assert_eq!((sums.jobs, sums.usage.input), (3, 0));
    assert!((sums.cost_usd - 0.25).abs() < 1e-9, "{}", sums.cost_usd);
}

async fn end_all(store: &Store) {
    while let Some(job) = store.claim(request("a")).await.unwrap() {
        store.finish(&job.claim().unwrap(), success("x")).await.unwrap();
    }
}

async fn old_ended_jobs_are_removed_and_no_others(bed: Bed) {
    let store = bed.open().await;
    let old = place_many(&store, &bed, 3).await;
    end_all(&store).await;
    let waiting =
        store.submit(order_for(AgentKind::Claude, Placement::Label("nobody".into()))).await.unwrap().job.id;
    let slow = store.submit(order("slow")).await.unwrap().job.id;
    let (_, claim) = claimed(&store, "a").await;
    bed.clock.advance(Duration::from_hours(48));
    store.finish(&claim, JobEnd::cancelled()).await.unwrap();

    let keep_all = store.sweep(Retention::default()).await.unwrap();
    assert_eq!(keep_all, []);
    let day = Retention { max_age: Some(Duration::from_hours(24)), max_count: None };
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

async fn more_than_the_newest_so_many_are_removed(bed: Bed) {
    let store = bed.open().await;
    let placed = place_many(&store, &bed, 8).await;
    end_all(&store).await;
    let waiting = store.submit(order("waits")).await.unwrap().job.id;
    let five = Retention { max_age: None, max_count: Some(5) };
    let mut removed = store.sweep(five).await.unwrap();
    removed.sort();
    assert_eq!(removed, placed[..3]);
    assert_eq!(store.count(&JobFilter::default()).await.unwrap(), 6);
    assert!(store.get(waiting).await.unwrap().is_some());
}

async fn a_job_of_a_clock_that_was_ahead_is_removed_like_any_other(bed: Bed) {
    let store = bed.open().await;
    let right = bed.clock.now();
    bed.clock.advance(Duration::from_hours(24 * 365));
    let job = store.submit(order("from the future")).await.unwrap().job.id;
    bed.clock.set(right);
    end_all(&store).await;
    bed.clock.advance(Duration::from_hours(48));
    let day = Retention { max_age: Some(Duration::from_hours(24)), max_count: None };
    assert_eq!(store.sweep(day).await.unwrap(), [job]);
}

async fn the_newest_are_those_that_ended_last(bed: Bed) {
    let store = bed.open().await;
    let right = bed.clock.now();
    bed.clock.advance(Duration::from_hours(24 * 365));
    let future = store.submit(order("of a clock that was ahead")).await.unwrap().job.id;
    bed.clock.set(right);
    let slow = store.submit(order("takes long")).await.unwrap().job.id;
    let quick = store.submit(order("quick")).await.unwrap().job.id;
    for job in [future, quick, slow] {
        bed.clock.advance(Duration::from_secs(1));
        store.request_cancel(job).await.unwrap();
    }
    let keep = |count| Retention { max_age: None, max_count: Some(count) };
    assert_eq!(store.sweep(keep(2)).await.unwrap(), [future]);
    assert_eq!(store.sweep(keep(1)).await.unwrap(), [quick]);
    assert!(store.get(slow).await.unwrap().is_some());
}

async fn the_last_session_of_a_task_goes_with_its_job(bed: Bed) {
    let store = bed.open().await;
    for task in ["old", "new"] {
        store.submit(NewJob { task: task.into(), ..order("x") }).await.unwrap();
        let (_, claim) = claimed(&store, "a").await;
        bed.clock.advance(Duration::from_secs(1));
        store.finish(&claim, success("x")).await.unwrap();
    }
    store.sweep(Retention { max_age: None, max_count: Some(1) }).await.unwrap();
    let last = async |task| store.last_session(AgentKind::Claude, task, &here()).await.unwrap();
    assert_eq!(last("old").await, None);
    assert!(last("new").await.is_some());
}

async fn a_removed_key_is_free_again(bed: Bed) {
    let store = bed.open().await;
    let keyed = || NewJob { idempotency_key: Some("k".into()), ..order("x") };
    let first = store.submit(keyed()).await.unwrap().job.id;
    end_all(&store).await;
    store.sweep(Retention { max_age: None, max_count: Some(0) }).await.unwrap();
    let second = store.submit(keyed()).await.unwrap();
    assert!(second.is_new && second.job.id != first);
}

async fn a_watcher_sees_every_change_after_it_was_written(bed: Bed) {
    let store = bed.open().await;
    let mut watch = store.watch().await.unwrap();
    let job = store.submit(order("x")).await.unwrap().job.id;
    let (_, claim) = claimed(&store, "a").await;
    store.finish(&claim, success("x")).await.unwrap();
    let (mut states, mut last) = (Vec::new(), 0);
    while states.last() != Some(&StateName::Completed) {
        let event =
            tokio::time::timeout(Duration::from_secs(20), watch.next()).await.expect("a change in time");
        let Some(WatchEvent::Changed(change)) = event else { panic!("{event:?}") };
        assert_eq!(change.job, job);
        // A shared store reports the home, so that other daemons can ignore the change.
        assert_eq!(change.home, store.is_shared().then(|| order("x").home));
        assert!(change.revision > last);
        last = change.revision;
        let known = store.get(job).await.unwrap().unwrap();
        assert!(known.revision >= change.revision, "told before it was written");
        states.push(change.state);
    }
    assert_eq!(states, [StateName::Queued, StateName::Running, StateName::Completed]);
}
