//! The scripted model API with the real CLIs, as `scripts/agents-install` pins them.
//!
//! Every test runs for every installed CLI; without any it prints that and passes.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use model_api::cli::{Agent, Cli, Ended, Invocation};
use model_api::{Call, ConversationRole, ModelApi, ModelTurn, Script};

const SESSION: &str = "5ee1ec7e-d000-4000-8000-000000000001";

/// A CLI with its own home and working directory.
struct Desk {
    cli: Cli,
    directory: PathBuf,
}

impl Desk {
    async fn ask(&self, api: &ModelApi, session: &[&str], prompt: &str) -> Ended {
        let cwd = self.directory.join("work");
        fs::create_dir_all(&cwd).unwrap();
        let mut arguments: Vec<&str> = match self.cli.agent {
            Agent::Claude => vec![
                "-p",
                "--output-format",
                "stream-json",
                "--verbose",
                "--model",
                "haiku",
                "--dangerously-skip-permissions",
            ],
            Agent::Codex => vec![
                "exec",
                "--json",
                "--color",
                "never",
                "--sandbox",
                "workspace-write",
                "--skip-git-repo-check",
            ],
            Agent::Gemini => vec!["--output-format", "stream-json", "--approval-mode", "yolo"],
            Agent::OpenCode | Agent::Qwen | Agent::Kimi => unreachable!("see `desks`"),
        };
        arguments.extend(session);
        if self.cli.agent == Agent::Codex {
            arguments.push("-");
        }
        let environment = self.cli.environment(api, &self.directory.join("home")).unwrap();
        let invocation = Invocation {
            program: self.cli.program.clone(),
            arguments: arguments.into_iter().map(str::to_owned).collect(),
            environment,
            cwd,
            stdin: prompt.as_bytes().to_vec(),
        };
        invocation.run(Duration::from_mins(2)).await.unwrap()
    }

    fn new_session(&self) -> Vec<&'static str> {
        // Codex picks its id itself.
        if self.cli.agent == Agent::Codex { vec![] } else { vec!["--session-id", SESSION] }
    }

    fn resume(&self, first: &Ended) -> Vec<String> {
        if self.cli.agent != Agent::Codex {
            return vec!["--resume".to_owned(), SESSION.to_owned()];
        }
        let started: serde_json::Value = serde_json::from_str(first.stdout.lines().next().unwrap()).unwrap();
        vec!["resume".to_owned(), started["thread_id"].as_str().unwrap().to_owned()]
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Returns a harness for each installed CLI.
#[expect(clippy::print_stderr, reason = "a skipped test says why")]
#[expect(clippy::disallowed_methods, reason = "where the CLIs are is the environment's to say")]
fn desks(test: &str) -> Vec<Desk> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().map(|directory| directory.join(".tools"));
    let tools = std::env::var_os("SWITCHBOARD_TOOLS").map(PathBuf::from);
    let tools = tools.or_else(|| beside.into_iter().find(|directory| directory.is_dir()));
    let installed = tools.as_deref().map(Cli::installed).unwrap_or_default();
    if installed.is_empty() {
        eprintln!(
            "skipped: no agent CLI is installed; run scripts/agents-install (and set SWITCHBOARD_TOOLS)"
        );
    }
    installed
        .into_iter()
        // The others need a client; the crate `agents` tests them.
        .filter(|cli| Agent::OWN_FORMAT.contains(&cli.agent))
        .map(|cli| {
            let name = format!("{test}-{}-{}", cli.agent.name(), cli.version);
            let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
            let _ = fs::remove_dir_all(&directory);
            Desk { cli, directory }
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn prompt_reaches_the_model_and_text_returns() {
    for desk in desks("text") {
        let api = ModelApi::start(Script::text("hello from the script")).await;
        let ended = desk.ask(&api, &[], "say hello").await;
        assert_eq!(ended.exit, 0, "{:?}: {ended:?}", desk.cli);
        let said: String = ended.stdout.lines().filter_map(spoken).collect();
        assert!(said.contains("hello from the script"), "{:?}: {ended:?}", desk.cli);
        let turns = api.turns();
        assert_eq!(turns.len(), 1, "{:?}", desk.cli);
        assert_eq!(turns[0].prompt().as_deref(), Some("say hello"), "{:?}", desk.cli);
        assert!(!turns[0].tools().is_empty(), "{:?}", desk.cli);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tool_result_reaches_the_model() {
    for desk in desks("tool") {
        let call = Call::Shell { command: "echo from-the-tool > made; cat made".to_owned() };
        let api = ModelApi::start(Script::call_then_text(call, "all done")).await;
        let ended = desk.ask(&api, &[], "make a file").await;
        assert_eq!(ended.exit, 0, "{:?}: {ended:?}", desk.cli);
        let said: String = ended.stdout.lines().filter_map(spoken).collect();
        assert!(said.ends_with("all done"), "{:?}: {ended:?}", desk.cli);
        assert_eq!(
            fs::read_to_string(desk.directory.join("work/made")).unwrap(),
            "from-the-tool\n",
            "{:?}",
            desk.cli
        );
        let turns = api.turns();
        assert_eq!(turns.len(), 2, "{:?}", desk.cli);
        let results = turns[1].tool_results();
        assert!(results.iter().any(|result| result.contains("from-the-tool")), "{:?}: {results:?}", desk.cli);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rejected_request_fails_without_retry() {
    for status in [401, 429] {
        for desk in desks(&format!("refusal-{status}")) {
            let api = ModelApi::start(Script::always(ModelTurn::refuse(status))).await;
            let ended = desk.ask(&api, &[], "say hello").await;
            assert_ne!(ended.exit, 0, "{:?} {status}: {ended:?}", desk.cli);
            assert_eq!(api.turns().len(), 1, "{:?} {status}", desk.cli);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn resumed_session_contains_earlier_messages() {
    for desk in desks("resume") {
        let api =
            ModelApi::start(Script::turns(vec![ModelTurn::text("noted"), ModelTurn::text("heron")])).await;
        let first = desk.ask(&api, &desk.new_session(), "the word is heron").await;
        assert_eq!(first.exit, 0, "{:?}: {first:?}", desk.cli);
        let resume = desk.resume(&first);
        let resume: Vec<&str> = resume.iter().map(String::as_str).collect();
        let second = desk.ask(&api, &resume, "which word?").await;
        assert_eq!(second.exit, 0, "{:?}: {second:?}", desk.cli);
        let asked = api.turns().pop().unwrap();
        let (user, model) = (asked.says(ConversationRole::User), asked.says(ConversationRole::Model));
        assert!(user.iter().any(|text| text.contains("the word is heron")), "{:?}: {user:?}", desk.cli);
        assert!(model.iter().any(|text| text == "noted"), "{:?}: {model:?}", desk.cli);
        assert_eq!(asked.prompt().as_deref(), Some("which word?"), "{:?}", desk.cli);
    }
}

/// The model's text in a line of any of the three streams.
fn spoken(line: &str) -> Option<String> {
    let event: serde_json::Value = serde_json::from_str(line).ok()?;
    let text = match event["type"].as_str()? {
        "assistant" => &event["message"]["content"][0]["text"],
        "item.completed" => &event["item"]["text"],
        "message" if event["role"] == "assistant" => &event["content"],
        _ => return None,
    };
    text.as_str().map(str::to_owned)
}
