//! Redaction: no secret is stored.

use std::fs;

use model::{
    AgentKind, BackgroundStatus, BackgroundTask, CallSpec, Failure, FailureKind, JobEnd, McpServer, Network,
    NewJob, PermissionDenial, RefusedAction, RefusedKind, SessionChoice, SessionMismatch, ToolChoice,
    Verdict,
};
use store::{Redactor, Store, StoreError, StoreOptions};

use crate::conformance;
use crate::fixtures::{claimed, here, new_job, outcome, session};
use crate::harness::Harness;

conformance![no_secret_reaches_the_store, name_with_secret_is_rejected, mcp_server_with_secret_is_rejected,];

const CANARY: &str = "canary-5e1f-\"quoted\"";
/// A secret that can be part of a name.
const PLAIN_CANARY: &str = "canary-5e1f-plain";

async fn open_with_redactor(harness: &Harness) -> Store {
    let redactor = Redactor::usual().with_values(&[CANARY, PLAIN_CANARY]);
    Store::open(StoreOptions { redactor, ..harness.options() }).await.unwrap()
}

fn text_with_secrets() -> String {
    format!("before {CANARY} between sk-ant-{} after", "k".repeat(40))
}

async fn no_secret_reaches_the_store(harness: Harness) {
    let store = open_with_redactor(&harness).await;
    let call = CallSpec {
        system_prompt: Some(text_with_secrets()),
        append_system_prompt: Some(text_with_secrets()),
        output_schema: Some(text_with_secrets()),
        ..CallSpec::new(AgentKind::Claude, text_with_secrets(), "/w")
    };
    let submitted = store.submit(NewJob::new(call, "call_cc", here())).await.unwrap();
    assert_eq!(submitted.redactions, 8);
    assert_eq!(submitted.job.order.call.prompt, "before [redacted] between [redacted] after");

    let (job, claim) = claimed(&store, "a").await;
    let failure = Failure { kind: FailureKind::AgentError, message: text_with_secrets() };
    let mut outcome = outcome(&text_with_secrets());
    outcome.verdict = Verdict::Failed(failure);
    outcome.structured_output = Some(serde_json::to_string(&text_with_secrets()).unwrap());
    outcome.permission_denials = vec![PermissionDenial {
        tool: text_with_secrets(),
        tool_use_id: Some(text_with_secrets()),
        detail: Some(text_with_secrets()),
    }];
    outcome.background =
        vec![BackgroundTask { description: text_with_secrets(), status: BackgroundStatus::Killed }];
    let (kind, count) = (RefusedKind::Write, 1);
    outcome.refusals = vec![RefusedAction {
        kind,
        subject: text_with_secrets(),
        detail: Some(text_with_secrets()),
        count,
        by_agent: false,
    }];
    outcome.model = Some(text_with_secrets());
    outcome.session = Some(session(PLAIN_CANARY));
    let asked = session("asked-for");
    outcome.session_mismatch = Some(SessionMismatch { asked, got: text_with_secrets() });
    let end = JobEnd {
        metadata: Some(serde_json::to_string(&[text_with_secrets()]).unwrap()),
        ..JobEnd::from(outcome)
    };
    let found =
        store.finish(&claim, end.with_exchange(text_with_secrets(), text_with_secrets())).await.unwrap();
    assert_eq!(found.redactions, 31, "two in each text, and the session");

    let stored =
        format!("{:?} {:?}", store.get(job.id).await.unwrap(), store.exchange(job.id).await.unwrap());
    assert!(!stored.contains("canary-5e1f") && !stored.contains("sk-ant-"), "{stored}");
    drop(store);
    for file in harness.files() {
        let bytes = fs::read(&file).unwrap();
        assert!(!bytes.windows(11).any(|window| window == b"canary-5e1f"), "{}", file.display());
    }
}

async fn name_with_secret_is_rejected(harness: Harness) {
    let store = open_with_redactor(&harness).await;
    let named = |change: fn(&mut NewJob)| {
        let mut job = new_job("x");
        change(&mut job);
        job
    };
    for (field, job) in [
        ("task name", named(|job| job.task = CANARY.into())),
        ("idempotency key", named(|job| job.idempotency_key = Some(CANARY.into()))),
        ("working directory", named(|job| job.call.cwd = format!("/w/{CANARY}").into())),
        ("agent name", named(|job| job.call.agent_name = PLAIN_CANARY.parse().ok())),
        ("model", named(|job| job.call.model = Some(CANARY.into()))),
        ("added directory", named(|job| job.call.add_dirs = vec![format!("/w/{CANARY}").into()])),
        ("list of tools", named(|job| job.call.tools = ToolChoice::Only(vec![CANARY.into()]))),
        ("list of tools", named(|job| job.call.available_tools = Some(vec![CANARY.into()]))),
        ("list of hosts", named(|job| job.call.policy.network = Network::Hosts(vec![CANARY.into()]))),
        ("hidden path", named(|job| job.call.policy.hide = vec![format!("/w/{CANARY}").into()])),
        ("session", named(|job| job.call.session = SessionChoice::Resume(session(PLAIN_CANARY)))),
        ("session", named(|job| job.call.session = SessionChoice::Fork(session(PLAIN_CANARY)))),
    ] {
        let error = store.submit(job).await.unwrap_err();
        assert!(matches!(error, StoreError::SecretInName { field: named } if named == field), "{error}");
        assert!(!format!("{error:?}").contains("canary"));
    }
    assert_eq!(store.count(&store::JobFilter::default()).await.unwrap(), 0);
    store.submit(new_job("x")).await.unwrap();
    let (_, claim) = claimed(&store, "a").await;
    let error = store.note_session(&claim, &session(PLAIN_CANARY)).await.unwrap_err();
    assert!(matches!(error, StoreError::SecretInName { field: "session" }), "{error}");
}

async fn mcp_server_with_secret_is_rejected(harness: Harness) {
    let store = open_with_redactor(&harness).await;
    let plain = McpServer {
        name: "tickets".into(),
        command: "/bin/tickets".into(),
        args: vec!["--quiet".into()],
        env: [("LANG".to_owned(), "C".to_owned())].into(),
    };
    let with = |change: fn(&mut McpServer)| {
        let mut server = plain.clone();
        change(&mut server);
        let call = CallSpec { mcp_servers: vec![plain.clone(), server], ..new_job("x").call };
        NewJob::new(call, "call_cc", here())
    };
    for (job, item) in [
        (with(|server| drop(server.env.insert("TOKEN".into(), text_with_secrets()))), "variable TOKEN"),
        (with(|server| server.args.push(format!("--token={CANARY}"))), "argument 2"),
    ] {
        let error = store.submit(job).await.unwrap_err();
        let expected =
            format!("the {item} of the MCP server `tickets` appears to contain a secret and is not stored");
        assert_eq!(error.to_string(), expected);
        assert!(error.hint().contains("the agent's own configuration"));
        assert!(!format!("{error:?}").contains("canary"));
    }
    assert_eq!(store.count(&store::JobFilter::default()).await.unwrap(), 0);
    let stored = store.submit(with(|_| ())).await.unwrap().job;
    assert_eq!(stored.order.call.mcp_servers[1], plain, "a server without a secret is stored unchanged");
}
