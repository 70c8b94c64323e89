//! Text deltas of the real claude with a scripted model: streamed if watched, and never duplicated.
//!
//! Reported as skipped if claude is not installed (`scripts/agents-install`).

use std::fs;

use model_api::cli::Agent;
use model_api::{ModelApi, ModelTurn, Script};
use serde_json::Value;

use crate::harness::{Harness, newest, stdout};

/// Long enough for several deltas.
const STORY: &str = "A heron stood in the shallow water and waited.\n\nThen it flew away.";

#[test]
fn streamed_text_is_not_duplicated() {
    let Some(claude) = newest(Agent::Claude) else { return };
    let harness = Harness::new();
    let (person, work) = (harness.scratch().join("person"), harness.scratch().join("work"));
    for directory in [&person, &work] {
        fs::create_dir(directory).unwrap();
    }
    harness.configure(&format!("[programs]\nclaude = \"{}\"\n", claude.program.display()));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let api = runtime.block_on(ModelApi::start(Script::always(ModelTurn::text(STORY))));
    let call = |more: &[&str]| {
        let args = [&["call", "claude", "Tell.", "--cwd", work.to_str().unwrap()], more].concat();
        let output =
            harness.command(&args).envs(claude.environment(&api, &person).unwrap()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        stdout(&output)
    };
    let told = call(&["--events"]);
    let lines: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let words = |part: &str| -> Vec<&str> {
        let texts = lines.iter().filter(|line| line["event"] == "text" && line["part"] == part);
        texts.map(|line| line["text"].as_str().unwrap()).collect()
    };
    assert!(words("partial").len() > 1 && words("partial").concat() == STORY, "{told}");
    assert_eq!(words("whole"), [STORY], "{told}");
    let watched = lines.last().unwrap();
    assert_eq!(watched["output"], STORY, "{told}");
    assert_eq!(stdout(&harness.run(&["logs", watched["job_id"].as_str().unwrap()])), format!("{STORY}\n"));

    assert_eq!(call(&[]), format!("{STORY}\n"), "a pipe has the words once");
    let jobs = stdout(&harness.run(&["jobs", "--json", "--limit", "1"]));
    let unwatched = serde_json::from_str::<Value>(&jobs).unwrap()["jobs"][0]["job_id"].clone();
    let raw = stdout(&harness.run(&["logs", "--raw", unwatched.as_str().unwrap()]));
    assert!(raw.contains("\"result\"") && !raw.contains("stream_event"), "nobody watched: {raw}");
}
