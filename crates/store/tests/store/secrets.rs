//! No secret is written, and none is missed.

use std::fs;

use model::{
    AgentKind, CallSpec, Failure, FailureKind, JobEnd, McpServer, NewJob, PermissionDenial, Verdict,
};
use store::{Opening, Redactor, Store, StoreError};

use crate::bed::{Bed, Engine};
use crate::calls::{claimed, here, order, outcome};
use crate::conformance;

conformance![no_secret_reaches_the_store, a_name_with_a_secret_is_refused];

const CANARY: &str = "canary-5e1f-\"quoted\"";

async fn guarded(bed: &Bed) -> Store {
    let redactor = Redactor::usual().with_values(&[CANARY]);
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
        mcp_servers: vec![McpServer {
            name: "files".into(),
            command: "files".into(),
            args: vec![laden()],
            env: [("TOKEN".to_owned(), laden())].into(),
        }],
        ..CallSpec::new(AgentKind::Claude, laden(), "/w")
    };
    let placed = store.place(NewJob::new(call, "call_cc", here())).await.unwrap();
    assert_eq!(placed.redactions, 12);
    assert_eq!(placed.job.order.call.prompt, "before [redacted] between [redacted] after");

    let (job, claim) = claimed(&store, "a").await;
    let failure = Failure { kind: FailureKind::AgentError, message: laden() };
    let mut said = outcome(&laden());
    said.verdict = Verdict::Failed(failure);
    said.structured_output = Some(serde_json::to_string(&laden()).unwrap());
    said.permission_denials =
        vec![PermissionDenial { tool: "Bash".into(), tool_use_id: None, detail: Some(laden()) }];
    let end = JobEnd { metadata: Some(serde_json::to_string(&[laden()]).unwrap()), ..JobEnd::from(said) };
    let found = store.finish(&claim, end.with_exchange(laden(), laden())).await.unwrap();
    assert_eq!(found, 16);

    let told = format!("{:?} {:?}", store.get(job.id).await.unwrap(), store.exchange(job.id).await.unwrap());
    assert!(!told.contains("canary-5e1f") && !told.contains("sk-ant-"), "{told}");
    drop(store);
    if bed.engine == Engine::SqliteFile {
        for entry in fs::read_dir(bed.file().parent().unwrap()).unwrap() {
            let bytes = fs::read(entry.unwrap().path()).unwrap();
            assert!(!bytes.windows(11).any(|window| window == b"canary-5e1f"));
        }
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
    ] {
        let error = store.place(order).await.unwrap_err();
        assert!(matches!(error, StoreError::SecretInName { field: named } if named == field), "{error}");
        assert!(!format!("{error:?}").contains("canary"));
    }
    assert_eq!(store.count(&store::JobFilter::default()).await.unwrap(), 0);
}
