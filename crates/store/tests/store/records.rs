//! Stored values are read back unchanged.

use std::time::Duration;

use model::{
    AgentKind, CallSpec, Deadline, Failure, FailureKind, JobEnd, JobId, Limits, McpServer, Mode, NewJob,
    Placement, SessionChoice, StateName, TerminalState, Timestamp, ToolChoice, Verdict,
};
use store::{PrefixMatch, StoreError};

use crate::conformance;
use crate::fixtures::{claimed, here, new_job, new_job_for, outcome, session, success};
use crate::harness::{EngineKind, Harness};

conformance![
    submitted_job_reads_back_with_every_field,
    texts_are_stored_byte_for_byte,
    query_syntax_in_values_is_not_executed,
    same_key_returns_same_job,
    idempotency_key_is_scoped_to_home,
    concurrent_submits_with_one_key_create_one_job,
    finished_job_keeps_outcome_and_exchange,
    deadline_failure_ends_as_timeout,
    jobs_survive_reopening_the_store,
    last_session_is_per_task_agent_and_home,
    session_without_output_is_not_the_last_one,
    session_is_stored_while_job_runs,
    job_is_found_by_id_prefix,
    retry_submits_child_of_finished_job,
    unknown_job_id_is_reported,
    empty_names_are_rejected,
];

/// Returns a job without any default value.
fn full_job() -> NewJob {
    let call = CallSpec {
        model: Some("opus".into()),
        session: SessionChoice::Resume(session("abc-1")),
        mode: Mode::Observe,
        tools: ToolChoice::Only(vec!["Read".into(), "mcp__files__*".into()]),
        available_tools: Some(vec!["Read".into()]),
        system_prompt: Some("be brief".into()),
        append_system_prompt: Some("and kind".into()),
        add_dirs: vec!["/home/ana/other dir".into()],
        agent_name: Some("reviewer".parse().unwrap()),
        mcp_servers: vec![McpServer {
            name: "files".into(),
            command: "/bin/files".into(),
            args: vec!["--root".into(), "/".into()],
            env: [("A".to_owned(), "b".to_owned())].into(),
        }],
        output_schema: Some("{}".into()),
        partial_messages: true,
        tool_timeout: Some(Duration::from_millis(1_234)),
        max_turns: Some(7),
        max_budget_usd: Some(1.5),
        limits: Limits { wall: Some(Duration::from_secs(9)), ..Limits::default() },
        ..CallSpec::new(AgentKind::Codex, "prompt", "/home/ana/a b/ü")
    };
    NewJob {
        task: "review".into(),
        idempotency_key: Some("key 1".into()),
        parent: Some(JobId::first_of(Timestamp::from_millis(5))),
        fire_and_forget: true,
        expose_stream: true,
        max_attempts: 5,
        ..NewJob::new(call, "call_codex", here())
    }
}

async fn submitted_job_reads_back_with_every_field(harness: Harness) {
    let store = harness.open().await;
    let submitted = store.submit(full_job()).await.unwrap();
    assert!(submitted.is_new);
    assert_eq!(submitted.redactions, 0);
    let read = store.get(submitted.job.id).await.unwrap().unwrap();
    assert_eq!(read, submitted.job);
    assert_eq!(read.order, full_job());
    assert_eq!(read.created_at, harness.clock.now());
}

async fn texts_are_stored_byte_for_byte(harness: Harness) {
    let store = harness.open().await;
    let every_char: String = (0..0x3000).chain(0x1_f600..0x1_f700).filter_map(char::from_u32).collect();
    let texts = [
        "\0".to_owned(),
        "a\0b\0".to_owned(),
        "\u{feff}bom \u{10ffff} \u{fffd} \r\n\t\u{7f}".to_owned(),
        every_char,
        "line\n".repeat(400_000),
        " ".to_owned(),
    ];
    for text in &texts {
        let submitted = store.submit(new_job(text)).await.unwrap();
        let (job, claim) = claimed(&store, "a").await;
        assert_eq!(job.id, submitted.job.id);
        assert!(job.order.call.prompt == *text, "{:?}…", text.chars().take(10).collect::<String>());
        let end = JobEnd { metadata: Some(format!("{text:?}")), ..JobEnd::from(outcome(text)) };
        store.finish(&claim, end.clone().with_exchange(text, text)).await.unwrap();
        let ended = store.get(job.id).await.unwrap().unwrap();
        assert!(ended.outcome.unwrap().text == *text);
        assert!(ended.metadata == end.metadata);
        let texts = store.exchange(job.id).await.unwrap().unwrap().said;
        assert!(texts.prompt == *text && texts.response == *text);
    }
}

async fn query_syntax_in_values_is_not_executed(harness: Harness) {
    let store = harness.open().await;
    for text in [
        "'; DROP TABLE agent_jobs; --",
        "\"`⟩⟨ $owner; REMOVE TABLE agent_jobs;",
        "?1 :id @x $x",
        "%_",
        "type::record('x')",
    ] {
        let hostile = NewJob {
            task: text.into(),
            idempotency_key: Some(text.into()),
            ..NewJob::new(
                CallSpec::new(AgentKind::Claude, text, format!("/w/{text}")),
                text,
                Placement::Label(text.into()),
            )
        };
        let submitted = store.submit(hostile.clone()).await.unwrap();
        assert_eq!(store.get(submitted.job.id).await.unwrap().unwrap().order, hostile);
        assert!(!store.submit(hostile.clone()).await.unwrap().is_new);
        let filter =
            store::JobFilter { tool: Some(text.into()), task: Some(text.into()), ..Default::default() };
        assert_eq!(store.count(&filter).await.unwrap(), 1, "{text}");
        let mut request = crate::fixtures::request(text);
        request.homes = vec![hostile.home.clone()];
        let job = store.claim(request).await.unwrap().unwrap();
        store.finish(&job.claim().unwrap(), success(text)).await.unwrap();
        let last = store.last_session(AgentKind::Claude, text, &hostile.home).await.unwrap();
        assert_eq!(last.unwrap().job, job.id);
    }
}

async fn same_key_returns_same_job(harness: Harness) {
    let store = harness.open().await;
    let keyed = |prompt: &str, key: &str| NewJob { idempotency_key: Some(key.into()), ..new_job(prompt) };
    let first = store.submit(keyed("one", "k")).await.unwrap();
    let again = store.submit(keyed("other words", "k")).await.unwrap();
    assert!(!again.is_new);
    assert_eq!(again.job, first.job);
    let home = &first.job.order.home;
    assert_eq!(store.find_by_key(home, "k").await.unwrap(), Some(first.job.clone()));
    assert_eq!(store.find_by_key(home, "none").await.unwrap(), None);
    assert_ne!(store.submit(keyed("one", "K")).await.unwrap().job.id, first.job.id);
    // Without a key every job is new.
    let (a, b) = (store.submit(new_job("x")).await.unwrap(), store.submit(new_job("x")).await.unwrap());
    assert_ne!(a.job.id, b.job.id);
    assert_eq!(store.count(&store::JobFilter::default()).await.unwrap(), 4);
}

async fn idempotency_key_is_scoped_to_home(harness: Harness) {
    let store = harness.open().await;
    let at = |home: Placement, key: &str| NewJob {
        idempotency_key: Some(key.into()),
        ..new_job_for(AgentKind::Claude, home)
    };
    // No two of these combinations of home and key collide.
    let new_jobs = || {
        [
            at(Placement::Host("a".into()), "k"),
            at(Placement::Label("a".into()), "k"),
            at(Placement::Host("ab".into()), "c"),
            at(Placement::Host("a".into()), "bc"),
        ]
    };
    let mut submitted = Vec::new();
    for new_job in new_jobs() {
        let new = store.submit(new_job).await.unwrap();
        assert!(new.is_new);
        submitted.push(new.job.id);
    }
    for (new_job, first) in new_jobs().into_iter().zip(submitted) {
        assert_eq!(store.submit(new_job).await.unwrap().job.id, first);
    }
}

async fn concurrent_submits_with_one_key_create_one_job(harness: Harness) {
    let store = harness.open().await;
    let mut racers = tokio::task::JoinSet::new();
    for racer in 0..64 {
        let store = store.clone();
        racers.spawn(async move {
            let key = format!("key {}", racer % 8);
            let submitted =
                store.submit(NewJob { idempotency_key: Some(key), ..new_job("race") }).await.unwrap();
            (racer % 8, submitted.job.id, submitted.is_new)
        });
    }
    let results = racers.join_all().await;
    for key in 0..8 {
        let of_key: Vec<_> = results.iter().filter(|result| result.0 == key).collect();
        assert!(of_key.iter().all(|result| result.1 == of_key[0].1));
        assert_eq!(of_key.iter().filter(|result| result.2).count(), 1);
    }
    assert_eq!(store.count(&store::JobFilter::default()).await.unwrap(), 8);
}

async fn finished_job_keeps_outcome_and_exchange(harness: Harness) {
    let store = harness.open().await;
    store.submit(new_job("do it")).await.unwrap();
    harness.clock.advance(Duration::from_secs(1));
    let (job, claim) = claimed(&store, "a").await;
    assert_eq!(job.started_at, Some(harness.clock.now()));
    harness.clock.advance(Duration::from_secs(2));
    let end = JobEnd { metadata: Some("[1]".into()), ..success("done") };
    store.finish(&claim, end).await.unwrap();

    let ended = store.get(job.id).await.unwrap().unwrap();
    assert_eq!(ended.progress.state.name(), StateName::Completed);
    assert_eq!(ended.started_at, job.started_at);
    assert_eq!(ended.completed_at, Some(harness.clock.now()));
    assert_eq!(ended.outcome, Some(outcome("done")));
    assert_eq!(ended.session, outcome("").session);
    assert_eq!(ended.metadata.as_deref(), Some("[1]"));
    assert_eq!((ended.failure, ended.lease), (None, None));
    let exchange = store.exchange(job.id).await.unwrap().unwrap();
    assert_eq!(Some(exchange.id), ended.exchange);
    assert_eq!((exchange.job, exchange.created_at), (job.id, harness.clock.now()));
    assert_eq!((exchange.said.prompt.as_str(), exchange.said.response.as_str()), ("do it", "done"));
}

async fn deadline_failure_ends_as_timeout(harness: Harness) {
    let store = harness.open().await;
    let failure =
        Failure { kind: FailureKind::Deadline { which: Deadline::Idle }, message: "silence".into() };
    store.submit(new_job("do it")).await.unwrap();
    let (job, claim) = claimed(&store, "a").await;
    let late = model::Outcome { verdict: Verdict::Failed(failure.clone()), ..outcome("so far") };
    store.finish(&claim, late.into()).await.unwrap();
    let ended = store.get(job.id).await.unwrap().unwrap();
    assert_eq!(ended.progress.state, model::JobState::Ended { how: TerminalState::Timeout });
    assert_eq!(ended.failure, Some(failure));
    assert!(store.exchange(job.id).await.unwrap().is_none());
}

async fn jobs_survive_reopening_the_store(harness: Harness) {
    let store = harness.open().await;
    let submitted = store.submit(full_job()).await.unwrap();
    let waiting = store.submit(new_job("second")).await.unwrap().job;
    let (job, _) = claimed(&store, "a").await;
    assert_eq!(job.id, submitted.job.id);
    drop(store);
    if harness.engine != EngineKind::SqliteMemory {
        let store = harness.open().await;
        assert_eq!(store.get(job.id).await.unwrap(), Some(job));
        assert_eq!(store.get(waiting.id).await.unwrap(), Some(waiting));
        store.check().await.unwrap();
    }
}

async fn last_session_is_per_task_agent_and_home(harness: Harness) {
    let store = harness.open().await;
    let gpu = Placement::Label("gpu".into());
    for (task, home, id) in
        [("a", here(), "s-1"), ("b", here(), "s-2"), ("a", gpu.clone(), "s-3"), ("a", here(), "s-4")]
    {
        store
            .submit(NewJob { task: task.into(), ..new_job_for(AgentKind::Claude, home.clone()) })
            .await
            .unwrap();
        let mut request = crate::fixtures::request("o");
        request.homes = vec![home];
        let claim = store.claim(request).await.unwrap().unwrap().claim().unwrap();
        let named = model::Outcome { session: Some(session(id)), ..outcome("x") };
        harness.clock.advance(Duration::from_secs(1));
        store.finish(&claim, named.into()).await.unwrap();
    }
    let last =
        async |agent, task: &str, home: &Placement| store.last_session(agent, task, home).await.unwrap();
    let known = last(AgentKind::Claude, "a", &here()).await.unwrap();
    assert_eq!(
        (known.session, known.cwd.as_str(), known.at),
        (session("s-4"), "/home/ana/shop", harness.clock.now())
    );
    assert_eq!(last(AgentKind::Claude, "b", &here()).await.unwrap().session, session("s-2"));
    assert_eq!(last(AgentKind::Claude, "a", &gpu).await.unwrap().session, session("s-3"));
    assert_eq!(last(AgentKind::Codex, "a", &here()).await, None);
}

async fn session_without_output_is_not_the_last_one(harness: Harness) {
    let store = harness.open().await;
    let refused = Failure { kind: FailureKind::Auth, message: "401".into() };
    let silent = |id| model::Outcome {
        session: Some(session(id)),
        verdict: Verdict::Failed(refused.clone()),
        usage: None,
        ..outcome("")
    };
    let end = async |outcome: model::Outcome| {
        store.submit(new_job("do it")).await.unwrap();
        let (job, claim) = claimed(&store, "a").await;
        store.finish(&claim, outcome.into()).await.unwrap();
        job.id
    };
    let last = async || store.last_session(AgentKind::Claude, "call_cc", &here()).await.unwrap();
    let job = end(silent("refused")).await;
    assert_eq!(last().await, None);
    // The job still names its session.
    assert_eq!(store.get(job).await.unwrap().unwrap().session, Some(session("refused")));
    end(model::Outcome { session: Some(session("answered")), ..outcome("x") }).await;
    end(silent("refused-again")).await;
    assert_eq!(last().await.unwrap().session, session("answered"));
    // A call that was cut off after its first output can be resumed.
    end(model::Outcome { text: "so far".into(), ..silent("cut-short") }).await;
    assert_eq!(last().await.unwrap().session, session("cut-short"));
}

async fn session_is_stored_while_job_runs(harness: Harness) {
    let store = harness.open().await;
    store.submit(new_job("do it")).await.unwrap();
    let (job, claim) = claimed(&store, "a").await;
    store.note_session(&claim, &session("early")).await.unwrap();
    assert_eq!(store.get(job.id).await.unwrap().unwrap().session, Some(session("early")));
    let last = store.last_session(AgentKind::Claude, "call_cc", &here()).await.unwrap();
    assert_eq!(last.unwrap().session, session("early"));
    // An outcome without a session keeps it.
    store.finish(&claim, JobEnd::cancelled()).await.unwrap();
    assert_eq!(store.get(job.id).await.unwrap().unwrap().session, Some(session("early")));
    let late = store.note_session(&claim, &session("late")).await.unwrap_err();
    assert!(late.refusal().is_some(), "{late}");
}

async fn job_is_found_by_id_prefix(harness: Harness) {
    let store = harness.open().await;
    let first = store.submit(new_job("one")).await.unwrap().job;
    harness.clock.advance(Duration::from_hours(1));
    let second = store.submit(new_job("two")).await.unwrap().job;
    let find = async |text: &str| store.find(text.parse().unwrap()).await.unwrap();
    assert_eq!(find(&first.id.to_string()).await, PrefixMatch::One(Box::new(first.clone())));
    assert_eq!(find(&second.id.to_string()[..8]).await, PrefixMatch::One(Box::new(second.clone())));
    assert_eq!(find(&first.id.to_string()[..4]).await, PrefixMatch::Several(vec![first.id, second.id]));
    assert_eq!(find("ffff").await, PrefixMatch::Nothing);
}

async fn retry_submits_child_of_finished_job(harness: Harness) {
    let store = harness.open().await;
    let old = store.submit(full_job()).await.unwrap().job;
    let early = store.retry(old.id).await.unwrap_err();
    assert_eq!(early.to_string(), format!("job {}: cannot retry a job that is queued", old.id));
    store.request_cancel(old.id).await.unwrap();
    let new = store.retry(old.id).await.unwrap().job;
    assert_eq!(new.order, NewJob { parent: Some(old.id), idempotency_key: None, ..full_job() });
    assert_eq!(new.progress.state.name(), StateName::Queued);
    let children = store::JobFilter { parent: Some(old.id), ..Default::default() };
    assert_eq!(store.list(&children, store::PageRequest::default()).await.unwrap().jobs[0].id, new.id);
}

async fn unknown_job_id_is_reported(harness: Harness) {
    let store = harness.open().await;
    let unknown = JobId::first_of(Timestamp::from_millis(9));
    assert_eq!(store.get(unknown).await.unwrap(), None);
    assert_eq!(store.exchange(unknown).await.unwrap(), None);
    let error = store.request_cancel(unknown).await.unwrap_err();
    assert!(matches!(error, StoreError::NoSuchJob { job } if job == unknown), "{error}");
}

async fn empty_names_are_rejected(harness: Harness) {
    let store = harness.open().await;
    let bad = [
        (NewJob { home: Placement::Host(String::new()), ..new_job("x") }, "the home is empty"),
        (NewJob { home: Placement::Label(String::new()), ..new_job("x") }, "the home is empty"),
        (NewJob { idempotency_key: Some(String::new()), ..new_job("x") }, "the idempotency key is empty"),
    ];
    for (new_job, expected) in bad {
        assert_eq!(store.submit(new_job).await.unwrap_err().to_string(), expected);
    }
    assert_eq!(store.count(&store::JobFilter::default()).await.unwrap(), 0);
}
