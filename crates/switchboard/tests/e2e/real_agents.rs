//! The daemon with the real claude, codex and gemini: logins, sessions, installation and waits.
//!
//! The model is a scripted API on loopback. Agents that are not installed (`scripts/agents-install`) are reported as skipped.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use testkit::eventually;

use model::{RunState, RunStatus};
use model_api::cli::{Agent, Cli};
use model_api::{ConversationRole, ModelApi, ModelTurn, Script};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::harness::{Harness, newest, stderr, stdout};

/// A user with one agent in `PATH`, which uses a scripted model.
struct User {
    harness: Harness,
    cli: Cli,
    environment: Vec<(String, String)>,
    api: ModelApi,
    // Serves the API.
    _runtime: Runtime,
}

impl User {
    /// Returns `None` if the agent is not installed.
    fn new(agent: Agent, script: Script) -> Option<Self> {
        let cli = newest(agent)?;
        let harness = Harness::new();
        harness.configure("pass_env = [\"SCRIPTED_KEY\"]\n\n[limits]\nat_once = 1\n");
        let person = harness.scratch().join("person");
        fs::create_dir(&person).unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let api = runtime.block_on(ModelApi::start(script));
        let mut environment = cli.environment(&api, &person).unwrap();
        environment.retain(|(name, _)| name != "PATH");
        environment
            .push(("PATH".to_owned(), format!("{}:/usr/bin:/bin", harness.scratch().join("bin").display())));
        Some(Self { harness, cli, environment, api, _runtime: runtime })
    }

    fn install_agent(&self) {
        let bin = self.harness.scratch().join("bin");
        fs::create_dir(&bin).unwrap();
        std::os::unix::fs::symlink(&self.cli.program, bin.join(self.cli.agent.name())).unwrap();
    }

    fn command(&self, prompt: &str, more: &[&str]) -> Command {
        let work = self.harness.work();
        let args = ["call", self.cli.agent.name(), prompt, "--cwd", work.to_str().unwrap()];
        let mut command = self.harness.command(&[&args, more].concat());
        command.envs(self.environment.iter().cloned());
        command
    }

    fn call(&self, prompt: &str, more: &[&str]) -> (Value, Output) {
        let output = self.command(prompt, &[&["--json"], more].concat()).output().unwrap();
        (answer(&stdout(&output)), output)
    }

    /// Returns the texts of the user in the newest request to the model.
    fn heard(&self) -> String {
        self.api.turns().pop().unwrap().says(ConversationRole::User).join("\n")
    }

    /// Enables the agent's own retries, which the test configuration disables.
    fn allow_retries(&mut self) {
        self.environment.retain(|(name, _)| name != "CLAUDE_CODE_MAX_RETRIES");
        let person = self.harness.scratch().join("person");
        let edits = [
            (".codex/config.toml", "request_max_retries = 0\nstream_max_retries = 0\n", ""),
            (".gemini/settings.json", "\"maxAttempts\": 1", "\"maxAttempts\": 10"),
        ];
        for (file, old, new) in edits {
            if let Ok(text) = fs::read_to_string(person.join(file)) {
                assert!(text.contains(old), "{text}");
                fs::write(person.join(file), text.replace(old, new)).unwrap();
            }
        }
    }

    /// Submits a call that has to wait, releases the agent that it waits for once the reason is printed, and returns the answer.
    fn wait_and_release(&self, prompt: &str, more: &[&str], reason: &str) -> Value {
        let mut command = self.command(prompt, more);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        assert!(lines.any(|line| line.contains(reason)), "no line with `{reason}`");
        fs::write(self.harness.work().join("release"), "").unwrap();
        let job = lines.find_map(|line| Some(line.strip_prefix("job: ")?.to_owned())).unwrap();
        assert!(child.wait().unwrap().success());
        answer(&stdout(&self.harness.run(&["status", &job, "--json"])))
    }
}

fn answer(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Rejects prompts that request it, and answers all others.
fn refuse_on_demand() -> Script {
    Script::by(|request, _| {
        let is_refused = request.prompt().is_some_and(|prompt| prompt.contains("Refuse this"));
        if is_refused { ModelTurn::refuse(401) } else { ModelTurn::text("Answered.") }
    })
}

fn continue_skips_a_refused_session(agent: Agent) {
    let Some(user) = User::new(agent, refuse_on_demand()) else { return };
    user.install_agent();
    let (refused, _) = user.call("Refuse this.", &[]);
    assert_eq!(refused["error"]["kind"], "auth", "{refused}");

    let output = user.command("First question.", &["--continue"]).output().unwrap();
    assert!(stderr(&output).contains("there is no earlier session"), "{output:?}");
    let (first, _) = user.call("First question.", &[]);
    assert_eq!((&first["status"], &first["output"]), (&"completed".into(), &"Answered.".into()), "{first}");

    let (second, _) = user.call("Second question.", &["--continue"]);
    assert_eq!(
        (&second["status"], &second["session_id"]),
        (&first["status"], &first["session_id"]),
        "{second}"
    );
    assert!(user.heard().contains("First question."), "{}", user.heard());
    // A refusal in the session does not make it one that cannot be continued.
    user.call("Refuse this.", &["--continue"]);
    let (third, _) = user.call("Third question.", &["--continue"]);
    assert_eq!((&third["status"], &third["session_id"]), (&first["status"], &first["session_id"]), "{third}");
}

#[test]
fn continue_skips_rejected_session_of_claude() {
    continue_skips_a_refused_session(Agent::Claude);
}

#[test]
fn continue_skips_rejected_session_of_codex() {
    continue_skips_a_refused_session(Agent::Codex);
}

#[test]
fn continue_skips_rejected_session_of_gemini() {
    continue_skips_a_refused_session(Agent::Gemini);
}

#[test]
fn logs_print_tools_of_lost_run_first() {
    let script = Script::by(|_, number| match number {
        0 => ModelTurn::shell("touch started; while ! [ -e never ]; do sleep 0.1; done"),
        _ => ModelTurn::text("Answered."),
    });
    let Some(user) = User::new(Agent::Claude, script) else { return };
    user.install_agent();
    let output = user.command("Work.", &["--background"]).output().unwrap();
    let id = stdout(&output).trim().to_owned();
    eventually("the command runs", || user.harness.work().join("started").exists());
    let run = user.harness.state().join("jobs").join(&id).join("runs/1/status.json");
    let status: RunStatus = serde_json::from_slice(&fs::read(run).unwrap()).unwrap();
    kill_process(Pid::from_raw(status.supervisor.pid).unwrap(), Signal::KILL).unwrap();

    let waited = answer(&stdout(&user.harness.run(&["wait", &id, "--json"])));
    let note = waited[0]["note"].as_str().unwrap_or_default();
    assert!(note.contains("time, tokens, turns and cost of lost runs are not included"), "{waited}");
    let logs = user.harness.scratch().join("logs");
    let file = fs::File::create(&logs).unwrap();
    let mut command = user.harness.command(&["logs", &id]);
    command.stdout(file.try_clone().unwrap()).stderr(file);
    assert!(command.status().unwrap().success());
    let logs = fs::read_to_string(logs).unwrap();
    let (lost, answered) = (logs.find("no result").unwrap(), logs.find("Answered.").unwrap());
    assert!(lost < answered, "{logs}");
}

#[test]
fn claude_commits_in_a_private_checkout() {
    let script = Script::by(|_, number| match number {
        0 => ModelTurn::shell(
            "echo claude >> a.txt && git add a.txt && git commit -q -m work && git log --format=%s",
        ),
        _ => ModelTurn::text("Committed."),
    });
    let Some(user) = User::new(Agent::Claude, script) else { return };
    user.install_agent();
    let work = user.harness.work();
    let git = |args: &[&str]| {
        let output = Command::new("git").current_dir(&work).args(args).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        stdout(&output)
    };
    fs::write(work.join("a.txt"), "first\n").unwrap();
    git(&["init", "-q"]);
    git(&["config", "user.name", "Ana"]);
    git(&["config", "user.email", "ana@example.org"]);
    git(&["add", "-A"]);
    git(&["commit", "-q", "-m", "first"]);
    let (answer, output) = user.call("Append a line to a.txt and commit it.", &["--worktree"]);
    assert_eq!(answer["status"], "completed", "{output:?}");
    let branch = answer["changes"]["checkout"]["branch"].as_str().unwrap_or_else(|| panic!("{answer}"));
    assert_eq!(git(&["show", &format!("{branch}:a.txt")]), "first\nclaude\n");
    assert_eq!(git(&["log", "--format=%s", branch]), "work\nfirst\n");
    assert_eq!(
        (git(&["log", "--format=%s"]), git(&["status", "--porcelain"])),
        ("first\n".into(), String::new())
    );
    let applied = user.harness.run(&["apply", answer["job_id"].as_str().unwrap()]);
    assert!(applied.status.success(), "{applied:?}");
    assert_eq!(fs::read_to_string(work.join("a.txt")).unwrap(), "first\nclaude\n");
}

#[test]
fn unstarted_session_is_not_offered() {
    let script = Script::by(|_, _| ModelTurn::text("Answered."));
    let Some(user) = User::new(Agent::Gemini, script) else { return };
    user.install_agent();
    let (answer, _) = user.call("First question.", &["--start", "50ms"]);
    assert_eq!((&answer["status"], &answer["session_id"]), (&"timeout".into(), &Value::Null), "{answer}");
}

#[test]
fn removed_agent_is_not_restarted() {
    let script = Script::by(|_, _| ModelTurn::text("Answered."));
    let Some(user) = User::new(Agent::Claude, script) else { return };
    user.install_agent();
    let (first, _) = user.call("First question.", &[]);
    assert_eq!(first["status"], "completed", "{first}");
    fs::remove_file(user.harness.scratch().join("bin/claude")).unwrap();
    let output = user.command("Second question.", &[]).output().unwrap();
    assert!(stderr(&output).contains("claude CLI not found"), "{output:?}");
}

fn refused_login_is_reported_early(agent: Agent, login: &str) {
    let Some(mut user) = User::new(agent, Script::always(ModelTurn::refuse(401))) else { return };
    user.install_agent();
    user.allow_retries();
    let (answer, output) = user.call("Say hello.", &[]);
    assert_eq!((&answer["status"], &answer["error"]["kind"]), (&"failed".into(), &"auth".into()), "{answer}");
    assert!(answer["error"]["hint"].as_str().unwrap().contains(login), "{answer}");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    // All retries together would be ten requests or more, over minutes.
    let requests = user.api.turns().len();
    assert!((1..5).contains(&requests), "{requests} requests: {answer}");
}

#[test]
fn rejected_login_of_claude_is_reported_early() {
    refused_login_is_reported_early(Agent::Claude, "`/login`");
}

#[test]
fn rejected_login_of_codex_is_reported_early() {
    refused_login_is_reported_early(Agent::Codex, "`codex login`");
}

#[test]
fn rejected_login_of_gemini_is_reported_early() {
    refused_login_is_reported_early(Agent::Gemini, "`gemini`");
}

#[test]
fn agent_installed_after_first_call_is_found() {
    for agent in Agent::OWN_FORMAT {
        let Some(user) = User::new(agent, Script::text("Answered.")) else { continue };
        assert!(user.harness.run(&["call", "rehearsal", "Hello"]).status.success());
        let daemon = user.harness.running_daemon().unwrap().pid;
        let output = user.command("Say hello.", &[]).output().unwrap();
        assert_eq!(output.status.code(), Some(5), "{output:?}");
        user.install_agent();
        let (answer, output) = user.call("Say hello.", &[]);
        assert_eq!(
            (&answer["status"], &answer["output"]),
            (&"completed".into(), &"Answered.".into()),
            "{output:?}"
        );
        assert_eq!(user.harness.running_daemon().unwrap().pid, daemon, "the same daemon");
    }
}

/// Returns the time that the supervisor measured for the only run of a job.
fn run_time(answer: &Value) -> u64 {
    let output_file = PathBuf::from(answer["output_file"].as_str().unwrap());
    let file = output_file.with_file_name("runs").join("1/status.json");
    let status: RunStatus = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let RunState::Ended(report) = &status.state else { panic!("{status:?}") };
    report.duration_ms
}

/// Keeps an agent busy until the file `release` exists.
const BUSY: &str = "Working.\n$ while [ ! -e release ]; do sleep 0.1; done";

#[test]
fn session_wait_is_reported_and_not_counted() {
    let Some(user) = User::new(Agent::Claude, Script::obey()) else { return };
    user.harness.configure("[limits]\nat_once = 2\n");
    user.install_agent();
    let (first, _) = user.call("Hello.", &[]);
    let session = first["session_id"].as_str().unwrap();
    let background = user.command(BUSY, &["--continue", "--background"]).output().unwrap();
    assert!(background.status.success(), "{background:?}");
    let reason = format!("waiting for session {session}, used by job {}", stdout(&background).trim());
    let answer = user.wait_and_release("And now?", &["--continue"], &reason);
    assert_eq!(
        (&answer["status"], &answer["session_id"]),
        (&"completed".into(), &session.into()),
        "{answer}"
    );
    assert_eq!(answer["duration_ms"], run_time(&answer), "{answer}");
}

#[test]
fn slot_wait_is_reported_and_not_counted() {
    let Some(user) = User::new(Agent::Claude, Script::obey()) else { return };
    user.install_agent();
    let background = user.command(BUSY, &["--background"]).output().unwrap();
    assert!(background.status.success(), "{background:?}");
    let answer = user.wait_and_release("Hello.", &[], "queued: 1 of 1 slots in use");
    assert_eq!((&answer["status"], &answer["output"]), (&"completed".into(), &"Hello.".into()), "{answer}");
    assert_eq!(answer["duration_ms"], run_time(&answer), "{answer}");
}
