//! The program that the trials restart: this binary, selected by an argument.

use std::path::Path;
use std::process::{Command, ExitCode};

use provider::{Access, AgentSpec, ProviderConfig};
use serde_json::{Value, json};

use crate::harness::{Harness, of_kind};

/// The first argument that turns this binary into the program; the second is its task as JSON.
const ASKED: &str = "--talk";

/// Runs the program: sends `text`, in the session `id` if there is one, and returns the answer.
pub async fn talk(harness: &Harness, text: &str, id: Option<&str>) -> Value {
    let config = harness.config();
    let order = json!({
        "kind": harness.kind(), "program": config.program, "environment": config.environment, "pass_on": config.pass_on,
        "spools": config.spools, "sessions": config.sessions, "workspace": harness.workspace(), "text": text, "id": id,
    });
    let this = std::env::current_exe().unwrap();
    // On another thread: the scripted model must answer meanwhile.
    let run = move || Command::new(this).args([ASKED, &order.to_string()]).output();
    let output = tokio::task::spawn_blocking(run).await.unwrap().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Runs the program, if this process was started as one.
pub fn talk_if_asked() -> Option<ExitCode> {
    let mut arguments = std::env::args().skip(1);
    if arguments.next()? != ASKED {
        return None;
    }
    let order: Value = serde_json::from_str(&arguments.next()?).unwrap();
    let config = ProviderConfig {
        program: serde_json::from_value(order["program"].clone()).unwrap(),
        environment: serde_json::from_value(order["environment"].clone()).unwrap(),
        pass_on: serde_json::from_value(order["pass_on"].clone()).unwrap(),
        spools: serde_json::from_value(order["spools"].clone()).unwrap(),
        sessions: serde_json::from_value(order["sessions"].clone()).unwrap(),
        policy: provider::CallPolicy::off(),
        ..ProviderConfig::default()
    };
    let provider = of_kind(serde_json::from_value(order["kind"].clone()).unwrap(), config);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let session = if let Some(id) = order["id"].as_str() {
            provider.resume_session(id).await.unwrap().expect("the session is known")
        } else {
            let agent = AgentSpec { access: Access::Full, ..AgentSpec::new("You are terse.") };
            let workspace = Path::new(order["workspace"].as_str().unwrap());
            provider.create_session(&agent, workspace).await.unwrap()
        };
        let response = provider.send_message(&session, order["text"].as_str().unwrap()).await.unwrap();
        println!("{}", json!({"text": response.text, "id": session.id()}));
    });
    Some(ExitCode::SUCCESS)
}
