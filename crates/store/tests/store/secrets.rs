//! Redaction: no secret is stored.

use std::fs;

use model::{
    AgentKind, BackgroundStatus, BackgroundTask, CallSpec, Failure, FailureKind, JobEnd, McpServer, NewJob,
    PermissionDenial, RefusedAction, RefusedKind, SessionChoice, SessionMismatch, Verdict,
};
use store::{Opening, Redactor, Store, StoreError};

use crate::bed::Bed;
use crate::calls::{claimed, here, order, outcome, session};
use crate::conformance;

conformance![
    no_secret_reaches_the_store,
    a_name_with_a_secret_is_refused,
    an_mcp_server_with_a_secret_is_refused_and_named,
];

const CANARY: &str = "canary-5e1f-\"quoted\"";
/// A secret that can be part of a name.
const PLAIN_CANARY: &str = "canary-5e1f-plain";

async fn guarded(bed: &Bed) -> Store {
    let redactor = Redactor::usual().with_values(&[CANARY, PLAIN_CANARY]);
    Store::open(Opening { redactor, ..bed.opening() }).await.unwrap()
}

fn laden() -> String {
    format!("before {CANARY} between sk-ant-{} after", "k".repeat(40))
}

async fn no_secret_reaches_the_store(bed: Bed) {
    let store = guarded(&bed).await;
    let call = CallSpec {
        system_prompt: Some(laden()),
        append_system_prompt: Some(laden()),
        output_schema: Some(laden()),
        ..CallSpec::new(AgentKind::Claude, laden(), "/w")
    };
    let placed = store.submit(NewJob::new(call, "call_cc", here())).await.unwrap();
    assert_eq!(placed.redactions, 8);
    assert_eq!(placed.job.order.call.prompt, "before [redacted] between [redacted] after");

    let (job, claim) = claimed(&store, "a").await;
    let failure = Failure { kind: FailureKind::AgentError, message: laden() };
    let mut said = outcome(&laden());
    said.verdict = Verdict::Failed(failure);
    said.structured_output = Some(serde_json::to_string(&laden()).unwrap());
    said.permission_denials =
        vec![PermissionDenial { tool: laden(), tool_use_id: Some(laden()), detail: Some(laden()) }];
    said.background = vec![BackgroundTask { description: laden(), status: BackgroundStatus::Killed }];
    let (kind, count) = (RefusedKind::Write, 1);
    said.refusals =
        vec![RefusedAction { kind, subject: laden(), detail: Some(laden()), count, by_agent: false }];
    said.model = Some(laden());
    said.session = Some(session(PLAIN_CANARY));
    let asked = session("asked-for");
    said.session_mismatch = Some(SessionMismatch { asked, got: laden() });
    let end = JobEnd { metadata: Some(serde_json::to_string(&[laden()]).unwrap()), ..JobEnd::from(said) };
    let found = store.finish(&claim, end.with_exchange(laden(), laden())).await.unwrap();
    assert_eq!(found.redactions, 31, "two in each text, and the session");

    let told = format!("{:?} {:?}", store.get(job.id).await.unwrap(), store.exchange(job.id).await.unwrap());
    assert!(!told.contains("canary-5e1f") && !told.contains("sk-ant-"), "{told}");
    drop(store);
    for file in bed.files() {
        let bytes = fs::read(&file).unwrap();
        assert!(!bytes.windows(11).any(|window| window == b"canary-5e1f"), "{}", file.display());
    }
}

async fn a_name_with_a_secret_is_refused(bed: Bed) {
    let store = guarded(&bed).await;
    let named = |change: fn(&mut NewJob)| {
        let mut order = order("x");
        change(&mut order);
        order
    };
    for (field, order) in [
        ("task name", named(|order| order.task = CANARY.into())),
        ("idempotency key", named(|order| order.idempotency_key = Some(CANARY.into()))),
        ("folder", named(|order| order.call.cwd = format!("/w/{CANARY}").into())),
        ("agent name", named(|order| order.call.agent_name = PLAIN_CANARY.parse().ok())),
        ("session", named(|order| order.call.session = SessionChoice::Resume(session(PLAIN_CANARY)))),
    ] {
        let error = store.submit(order).await.unwrap_err();
        assert!(matches!(error, StoreError::SecretInName { field: named } if named == field), "{error}");
        assert!(!format!("{error:?}").contains("canary"));
    }
    assert_eq!(store.count(&store::JobFilter::default()).await.unwrap(), 0);
    store.submit(order("x")).await.unwrap();
    let (_, claim) = claimed(&store, "a").await;
    let error = store.note_session(&claim, &session(PLAIN_CANARY)).await.unwrap_err();
    assert!(matches!(error, StoreError::SecretInName { field: "session" }), "{error}");
}

async fn an_mcp_server_with_a_secret_is_refused_and_named(bed: Bed) {
    let store = guarded(&bed).await;
    let plain = McpServer {
        name: "tickets".into(),
        command: "/bin/tickets".into(),
        args: vec!["--quiet".into()],
        env: [("LANG".to_owned(), "C".to_owned())].into(),
    };
    let with = |change: fn(&mut McpServer)| {
        let mut server = plain.clone();
        change(&mut server);
        let call = CallSpec { mcp_servers: vec![plain.clone(), server], ..order("x").call };
        NewJob::new(call, "call_cc", here())
    };
    for (order, what) in [
        (with(|server| drop(server.env.insert("TOKEN".into(), laden()))), "variable TOKEN"),
        (with(|server| server.args.push(format!("--token={CANARY}"))), "argument 2"),
    ] {
        let error = store.submit(order).await.unwrap_err();
        let told = format!(
            "the {what} of the MCP server `tickets` holds what looks like a secret, and is not stored"
        );
        assert_eq!(error.to_string(), told);
        assert!(error.hint().contains("the agent's own configuration"));
        assert!(!format!("{error:?}").contains("canary"));
    }
    assert_eq!(store.count(&store::JobFilter::default()).await.unwrap(), 0);
    let kept = store.submit(with(|_| ())).await.unwrap().job;
    assert_eq!(kept.order.call.mcp_servers[1], plain, "one without a secret is kept as it is");
}
