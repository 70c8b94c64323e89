//! What is kept is kept as it was given, and read back.

use std::time::Duration;

use model::{
    AgentKind, CallSpec, Deadline, Failure, FailureKind, JobEnd, JobId, Limits, McpServer, Mode, NewJob,
    Placement, SessionChoice, StateName, TerminalState, Timestamp, ToolChoice, Verdict,
};
use store::{Found, StoreError};

use crate::bed::{Bed, Engine};
use crate::calls::{claimed, here, order, order_for, outcome, session, success};
use crate::conformance;

conformance![
    a_placed_job_reads_back_with_every_field,
    any_text_survives_byte_for_byte,
    what_looks_like_a_query_is_a_text,
    the_same_key_gives_the_same_job,
    a_key_names_a_job_of_its_home_alone,
    one_key_asked_by_many_at_once_is_one_job,
    an_end_is_kept_with_all_that_belongs_to_it,
    a_deadline_ends_as_timeout_and_keeps_the_failure,
    what_is_closed_is_there_when_it_is_opened_again,
    the_last_session_is_known_per_task_agent_and_home,
    session_without_an_answer_is_not_the_last_one,
    a_session_is_kept_as_soon_as_it_is_known,
    a_job_is_found_by_the_beginning_of_its_id,
    an_ended_job_is_placed_again_as_its_child,
    an_id_that_is_nobodys_is_said_to_be,
    a_name_that_is_empty_is_refused,
];

/// A call with nothing left at its default.
fn full_order() -> NewJob {
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

async fn a_placed_job_reads_back_with_every_field(bed: Bed) {
    let store = bed.open().await;
    let placed = store.submit(full_order()).await.unwrap();
    assert!(placed.is_new);
    assert_eq!(placed.redactions, 0);
    let read = store.get(placed.job.id).await.unwrap().unwrap();
    assert_eq!(read, placed.job);
    assert_eq!(read.order, full_order());
    assert_eq!(read.created_at, bed.clock.now());
}

async fn any_text_survives_byte_for_byte(bed: Bed) {
    let store = bed.open().await;
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
        let placed = store.submit(order(text)).await.unwrap();
        let (job, claim) = claimed(&store, "a").await;
        assert_eq!(job.id, placed.job.id);
        assert!(job.order.call.prompt == *text, "{:?}…", text.chars().take(10).collect::<String>());
        let end = JobEnd { metadata: Some(format!("{text:?}")), ..JobEnd::from(outcome(text)) };
        store.finish(&claim, end.clone().with_exchange(text, text)).await.unwrap();
        let ended = store.get(job.id).await.unwrap().unwrap();
        assert!(ended.outcome.unwrap().text == *text);
        assert!(ended.metadata == end.metadata);
        let said = store.exchange(job.id).await.unwrap().unwrap().said;
        assert!(said.prompt == *text && said.response == *text);
    }
}

async fn what_looks_like_a_query_is_a_text(bed: Bed) {
    let store = bed.open().await;
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
        let placed = store.submit(hostile.clone()).await.unwrap();
        assert_eq!(store.get(placed.job.id).await.unwrap().unwrap().order, hostile);
        assert!(!store.submit(hostile.clone()).await.unwrap().is_new);
        let filter =
            store::JobFilter { tool: Some(text.into()), task: Some(text.into()), ..Default::default() };
        assert_eq!(store.count(&filter).await.unwrap(), 1, "{text}");
        let mut request = crate::calls::request(text);
        request.homes = vec![hostile.home.clone()];
        let job = store.claim(request).await.unwrap().unwrap();
        store.finish(&job.claim().unwrap(), success(text)).await.unwrap();
        let last = store.last_session(AgentKind::Claude, text, &hostile.home).await.unwrap();
        assert_eq!(last.unwrap().job, job.id);
    }
}

async fn the_same_key_gives_the_same_job(bed: Bed) {
    let store = bed.open().await;
    let keyed = |prompt: &str, key: &str| NewJob { idempotency_key: Some(key.into()), ..order(prompt) };
    let first = store.submit(keyed("one", "k")).await.unwrap();
    let again = store.submit(keyed("other words", "k")).await.unwrap();
    assert!(!again.is_new);
    assert_eq!(again.job, first.job);
    let home = &first.job.order.home;
    assert_eq!(store.keyed(home, "k").await.unwrap(), Some(first.job.clone()));
    assert_eq!(store.keyed(home, "none").await.unwrap(), None);
    assert_ne!(store.submit(keyed("one", "K")).await.unwrap().job.id, first.job.id);
    // Without a key, nothing is the same.
    let (a, b) = (store.submit(order("x")).await.unwrap(), store.submit(order("x")).await.unwrap());
    assert_ne!(a.job.id, b.job.id);
    assert_eq!(store.count(&store::JobFilter::default()).await.unwrap(), 4);
}

async fn a_key_names_a_job_of_its_home_alone(bed: Bed) {
    let store = bed.open().await;
    let at = |home: Placement, key: &str| NewJob {
        idempotency_key: Some(key.into()),
        ..order_for(AgentKind::Claude, home)
    };
    // However homes and keys are put together, no two of these are the same.
    let orders = || {
        [
            at(Placement::Host("a".into()), "k"),
            at(Placement::Label("a".into()), "k"),
            at(Placement::Host("ab".into()), "c"),
            at(Placement::Host("a".into()), "bc"),
        ]
    };
    let mut placed = Vec::new();
    for order in orders() {
        let new = store.submit(order).await.unwrap();
        assert!(new.is_new);
        placed.push(new.job.id);
    }
    for (order, first) in orders().into_iter().zip(placed) {
        assert_eq!(store.submit(order).await.unwrap().job.id, first);
    }
}

async fn one_key_asked_by_many_at_once_is_one_job(bed: Bed) {
    let store = bed.open().await;
    let mut racers = tokio::task::JoinSet::new();
    for racer in 0..64 {
        let store = store.clone();
        racers.spawn(async move {
            let key = format!("key {}", racer % 8);
            let placed = store.submit(NewJob { idempotency_key: Some(key), ..order("race") }).await.unwrap();
            (racer % 8, placed.job.id, placed.is_new)
        });
    }
    let answers = racers.join_all().await;
    for key in 0..8 {
        let of_key: Vec<_> = answers.iter().filter(|answer| answer.0 == key).collect();
        assert!(of_key.iter().all(|answer| answer.1 == of_key[0].1));
        assert_eq!(of_key.iter().filter(|answer| answer.2).count(), 1);
    }
    assert_eq!(store.count(&store::JobFilter::default()).await.unwrap(), 8);
}

async fn an_end_is_kept_with_all_that_belongs_to_it(bed: Bed) {
    let store = bed.open().await;
    store.submit(order("do it")).await.unwrap();
    bed.clock.advance(Duration::from_secs(1));
    let (job, claim) = claimed(&store, "a").await;
    assert_eq!(job.started_at, Some(bed.clock.now()));
    bed.clock.advance(Duration::from_secs(2));
    let end = JobEnd { metadata: Some("[1]".into()), ..success("done") };
    store.finish(&claim, end).await.unwrap();

    let ended = store.get(job.id).await.unwrap().unwrap();
    assert_eq!(ended.progress.state.name(), StateName::Completed);
    assert_eq!(ended.started_at, job.started_at);
    assert_eq!(ended.completed_at, Some(bed.clock.now()));
    assert_eq!(ended.outcome, Some(outcome("done")));
    assert_eq!(ended.session, outcome("").session);
    assert_eq!(ended.metadata.as_deref(), Some("[1]"));
    assert_eq!((ended.failure, ended.lease), (None, None));
    let exchange = store.exchange(job.id).await.unwrap().unwrap();
    assert_eq!(Some(exchange.id), ended.exchange);
    assert_eq!((exchange.job, exchange.created_at), (job.id, bed.clock.now()));
    assert_eq!((exchange.said.prompt.as_str(), exchange.said.response.as_str()), ("do it", "done"));
}

async fn a_deadline_ends_as_timeout_and_keeps_the_failure(bed: Bed) {
    let store = bed.open().await;
    let failure =
        Failure { kind: FailureKind::Deadline { which: Deadline::Idle }, message: "silence".into() };
    store.submit(order("do it")).await.unwrap();
    let (job, claim) = claimed(&store, "a").await;
    let late = model::Outcome { verdict: Verdict::Failed(failure.clone()), ..outcome("so far") };
    store.finish(&claim, late.into()).await.unwrap();
    let ended = store.get(job.id).await.unwrap().unwrap();
    assert_eq!(ended.progress.state, model::JobState::Ended { how: TerminalState::Timeout });
    assert_eq!(ended.failure, Some(failure));
    assert!(store.exchange(job.id).await.unwrap().is_none());
}

async fn what_is_closed_is_there_when_it_is_opened_again(bed: Bed) {
    let store = bed.open().await;
    let placed = store.submit(full_order()).await.unwrap();
    let waiting = store.submit(order("second")).await.unwrap().job;
    let (job, _) = claimed(&store, "a").await;
    assert_eq!(job.id, placed.job.id);
    drop(store);
    if bed.engine != Engine::SqliteMemory {
        let store = bed.open().await;
        assert_eq!(store.get(job.id).await.unwrap(), Some(job));
        assert_eq!(store.get(waiting.id).await.unwrap(), Some(waiting));
        store.check().await.unwrap();
    }
}

async fn the_last_session_is_known_per_task_agent_and_home(bed: Bed) {
    let store = bed.open().await;
    let gpu = Placement::Label("gpu".into());
    for (task, home, id) in
        [("a", here(), "s-1"), ("b", here(), "s-2"), ("a", gpu.clone(), "s-3"), ("a", here(), "s-4")]
    {
        store
            .submit(NewJob { task: task.into(), ..order_for(AgentKind::Claude, home.clone()) })
            .await
            .unwrap();
        let mut request = crate::calls::request("o");
        request.homes = vec![home];
        let claim = store.claim(request).await.unwrap().unwrap().claim().unwrap();
        let named = model::Outcome { session: Some(session(id)), ..outcome("x") };
        bed.clock.advance(Duration::from_secs(1));
        store.finish(&claim, named.into()).await.unwrap();
    }
    let last =
        async |agent, task: &str, home: &Placement| store.last_session(agent, task, home).await.unwrap();
    let known = last(AgentKind::Claude, "a", &here()).await.unwrap();
    assert_eq!(
        (known.session, known.cwd.as_str(), known.at),
        (session("s-4"), "/home/ana/shop", bed.clock.now())
    );
    assert_eq!(last(AgentKind::Claude, "b", &here()).await.unwrap().session, session("s-2"));
    assert_eq!(last(AgentKind::Claude, "a", &gpu).await.unwrap().session, session("s-3"));
    assert_eq!(last(AgentKind::Codex, "a", &here()).await, None);
}

async fn session_without_an_answer_is_not_the_last_one(bed: Bed) {
    let store = bed.open().await;
    let refused = Failure { kind: FailureKind::Auth, message: "401".into() };
    let silent = |id| model::Outcome {
        session: Some(session(id)),
        verdict: Verdict::Failed(refused.clone()),
        usage: None,
        ..outcome("")
    };
    let end = async |outcome: model::Outcome| {
        store.submit(order("do it")).await.unwrap();
        let (job, claim) = claimed(&store, "a").await;
        store.finish(&claim, outcome.into()).await.unwrap();
        job.id
    };
    let last = async || store.last_session(AgentKind::Claude, "call_cc", &here()).await.unwrap();
    let job = end(silent("refused")).await;
    assert_eq!(last().await, None);
    // The job itself still names it.
    assert_eq!(store.get(job).await.unwrap().unwrap().session, Some(session("refused")));
    end(model::Outcome { session: Some(session("answered")), ..outcome("x") }).await;
    end(silent("refused-again")).await;
    assert_eq!(last().await.unwrap().session, session("answered"));
    // A call that was cut short after the model's first words can be resumed.
    end(model::Outcome { text: "so far".into(), ..silent("cut-short") }).await;
    assert_eq!(last().await.unwrap().session, session("cut-short"));
}

async fn a_session_is_kept_as_soon_as_it_is_known(bed: Bed) {
    let store = bed.open().await;
    store.submit(order("do it")).await.unwrap();
    let (job, claim) = claimed(&store, "a").await;
    store.note_session(&claim, &session("early")).await.unwrap();
    assert_eq!(store.get(job.id).await.unwrap().unwrap().session, Some(session("early")));
    let last = store.last_session(AgentKind::Claude, "call_cc", &here()).await.unwrap();
    assert_eq!(last.unwrap().session, session("early"));
    // An end that knows of none leaves it.
    store.finish(&claim, JobEnd::cancelled()).await.unwrap();
    assert_eq!(store.get(job.id).await.unwrap().unwrap().session, Some(session("early")));
    let late = store.note_session(&claim, &session("late")).await.unwrap_err();
    assert!(late.refusal().is_some(), "{late}");
}

async fn a_job_is_found_by_the_beginning_of_its_id(bed: Bed) {
    let store = bed.open().await;
    let first = store.submit(order("one")).await.unwrap().job;
    bed.clock.advance(Duration::from_hours(1));
    let second = store.submit(order("two")).await.unwrap().job;
    let find = async |text: &str| store.find(text.parse().unwrap()).await.unwrap();
    assert_eq!(find(&first.id.to_string()).await, Found::One(Box::new(first.clone())));
    assert_eq!(find(&second.id.to_string()[..8]).await, Found::One(Box::new(second.clone())));
    assert_eq!(find(&first.id.to_string()[..4]).await, Found::Several(vec![first.id, second.id]));
    assert_eq!(find("ffff").await, Found::Nothing);
}

async fn an_ended_job_is_placed_again_as_its_child(bed: Bed) {
    let store = bed.open().await;
    let old = store.submit(full_order()).await.unwrap().job;
    let early = store.retry(old.id).await.unwrap_err();
    assert_eq!(early.to_string(), format!("job {}: cannot retry a job that is queued", old.id));
    store.request_cancel(old.id).await.unwrap();
    let new = store.retry(old.id).await.unwrap().job;
    assert_eq!(new.order, NewJob { parent: Some(old.id), idempotency_key: None, ..full_order() });
    assert_eq!(new.progress.state.name(), StateName::Queued);
    let children = store::JobFilter { parent: Some(old.id), ..Default::default() };
    assert_eq!(store.list(&children, store::PageRequest::default()).await.unwrap().jobs[0].id, new.id);
}

async fn an_id_that_is_nobodys_is_said_to_be(bed: Bed) {
    let store = bed.open().await;
    let nobody = JobId::first_of(Timestamp::from_millis(9));
    assert_eq!(store.get(nobody).await.unwrap(), None);
    assert_eq!(store.exchange(nobody).await.unwrap(), None);
    let error = store.request_cancel(nobody).await.unwrap_err();
    assert!(matches!(error, StoreError::NoSuchJob { job } if job == nobody), "{error}");
}

async fn a_name_that_is_empty_is_refused(bed: Bed) {
    let store = bed.open().await;
    let bad = [
        (NewJob { home: Placement::Host(String::new()), ..order("x") }, "the home is empty"),
        (NewJob { home: Placement::Label(String::new()), ..order("x") }, "the home is empty"),
        (NewJob { idempotency_key: Some(String::new()), ..order("x") }, "the idempotency key is empty"),
    ];
    for (order, says) in bad {
        assert_eq!(store.submit(order).await.unwrap_err().to_string(), says);
    }
    assert_eq!(store.count(&store::JobFilter::default()).await.unwrap(), 0);
}
