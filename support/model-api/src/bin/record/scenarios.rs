//! The scenarios as data: requests, and the replies of the model.

use std::time::Duration;

use model_api::cli::Agent::{self, Claude, Codex, Gemini};
use model_api::{ApiVendor, Block, Call, ModelTurn, Script};
use serde_json::json;

/// The id of new sessions for CLIs that let the caller choose.
pub const SESSION: &str = "11111111-1111-4111-8111-111111111111";
/// An id that no session has.
pub const NO_SESSION: &str = "99999999-9999-4999-8999-999999999999";

/// One recording.
pub struct Scenario {
    /// The name, and that of its directory.
    pub name: &'static str,
    /// The agents that support it.
    pub agents: &'static [Agent],
    /// The replies of the model in all runs together.
    pub script: Script,
    /// An earlier run, which starts the session of the recorded one.
    pub before: Option<Ask>,
    /// The recorded run.
    pub ask: Ask,
    /// Stops the run with SIGTERM after the first model request.
    pub stop: bool,
}

/// One run.
#[derive(Clone, Debug)]
pub struct Ask {
    pub prompt: &'static str,
    pub session: ScenarioSession,
    pub access: ScenarioAccess,
    pub max_turns: Option<u32>,
    /// Further arguments of this scenario.
    pub extra: &'static [&'static str],
    /// Pass in the MCP server `echo`.
    pub mcp: bool,
    /// Ask for an answer of this shape: `{"answer": string}`.
    pub schema: bool,
    /// The number of retries of a rejected request.
    pub retries: u32,
    /// Provides a key to log in with.
    pub key: bool,
}

/// The session of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScenarioSession {
    New,
    Resume,
    Latest,
    Unknown,
    UnknownName,
}

/// The permissions of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScenarioAccess {
    /// All.
    Full,
    /// Those that need no permission prompt.
    Default,
    /// Reading only.
    Observe,
    /// The CLI's own planning mode: read-only.
    Plan,
}

impl Default for Ask {
    fn default() -> Self {
        Self {
            prompt: "Say hello.",
            session: ScenarioSession::New,
            access: ScenarioAccess::Full,
            max_turns: None,
            extra: &[],
            mcp: false,
            schema: false,
            retries: 0,
            key: true,
        }
    }
}

const ALL: &[Agent] = &[Claude, Codex, Gemini];

/// Returns all scenarios in the order of recording.
pub fn all() -> Vec<Scenario> {
    let mut all = sessions();
    all.extend(tools());
    all.extend(background());
    all.extend(limits());
    all.extend(refusals());
    all.extend(prompts());
    all
}

fn sessions() -> Vec<Scenario> {
    let told = || Script::turns(vec![ModelTurn::text("Noted."), ModelTurn::text("The word is heron.")]);
    let tell = || Some(Ask { prompt: "The word is heron.", ..Ask::default() });
    let which = |session| Ask { prompt: "Which word?", session, ..Ask::default() };
    vec![
        scenario("new-session", Script::text("Hello from the model."), Ask::default()),
        Scenario { before: tell(), ..scenario("resume", told(), which(ScenarioSession::Resume)) },
        Scenario { before: tell(), ..scenario("continue-latest", told(), which(ScenarioSession::Latest)) },
        scenario("continue-nothing", Script::text("Hello from the model."), which(ScenarioSession::Latest)),
        Scenario { before: tell(), ..scenario("unknown-session", told(), which(ScenarioSession::Unknown)) },
        scenario(
            "unknown-session-name",
            Script::text("Hello from the model."),
            which(ScenarioSession::UnknownName),
        ),
        Scenario {
            agents: &[Claude, Gemini],
            before: tell(),
            ..scenario("session-in-use", told(), which(ScenarioSession::New))
        },
        Scenario {
            agents: &[Claude],
            before: tell(),
            ..scenario("fork", told(), Ask { extra: &["--fork-session"], ..which(ScenarioSession::Resume) })
        },
    ]
}

fn tools() -> Vec<Scenario> {
    let write = || Call::Shell { command: "echo heron > word.txt && cat word.txt".to_owned() };
    let late = || Call::Shell { command: "sleep 1; echo heron > word.txt && cat word.txt".to_owned() };
    let fails = || Call::Shell { command: "echo broken >&2; exit 3".to_owned() };
    let say =
        || Call::Mcp { server: "echo".to_owned(), tool: "say".to_owned(), input: json!({"text": "heron"}) };
    let make = |access| Ask { prompt: "Write the word to a file.", access, ..Ask::default() };
    let thinking = ModelTurn::blocks(vec![
        Block::Thinking("The user wants the word. I will write it.".to_owned()),
        Block::Text("I will write it.".to_owned()),
        Block::Call(write()),
    ]);
    vec![
        scenario("tool-call", Script::call_then_text(write(), "It is written."), make(ScenarioAccess::Full)),
        scenario("tool-failure", Script::call_then_text(fails(), "It failed."), make(ScenarioAccess::Full)),
        scenario(
            "denied-tool",
            Script::call_then_text(write(), "I was not allowed to."),
            make(ScenarioAccess::Default),
        ),
        Scenario {
            agents: &[Codex],
            // An immediate denial leaves no trace in the stream; a later one does.
            ..scenario(
                "denied-tool-later",
                Script::call_then_text(late(), "I was not allowed to."),
                make(ScenarioAccess::Default),
            )
        },
        scenario(
            "observe",
            Script::call_then_text(write(), "I may only read."),
            make(ScenarioAccess::Observe),
        ),
        Scenario {
            agents: &[Gemini],
            ..scenario("observe-escape", Script::turns(escape(None)), make(ScenarioAccess::Observe))
        },
        Scenario {
            agents: &[Gemini],
            ..scenario("plan-escape", Script::turns(escape(None)), make(ScenarioAccess::Plan))
        },
        Scenario {
            agents: &[Gemini],
            ..scenario(
                "denied-tool-escape",
                Script::turns(escape(Some(ModelTurn::tool(
                    "enter_plan_mode",
                    json!({"reason": "to write"}),
                )))),
                make(ScenarioAccess::Default),
            )
        },
        scenario(
            "mcp-server",
            Script::call_then_text(say(), "It said heron."),
            Ask { prompt: "Let the server say heron.", mcp: true, ..Ask::default() },
        ),
        scenario(
            "thinking",
            Script::turns(vec![thinking, ModelTurn::text("It is written.")]),
            make(ScenarioAccess::Full),
        ),
        Scenario {
            agents: &[Codex],
            ..scenario(
                "catalogued-model",
                Script::call_then_text(write(), "It is written."),
                Ask { extra: &["--model", "gpt-6.1-sol"], ..make(ScenarioAccess::Full) },
            )
        },
    ]
}

/// Returns scenarios with work that continues after its tool call has returned.
fn background() -> Vec<Scenario> {
    let asked = |name, agents, script| Scenario {
        agents,
        ..scenario(
            name,
            script,
            Ask { prompt: "Build it, and look for the bug meanwhile.", ..Ask::default() },
        )
    };
    let bash = |command: &str| {
        ModelTurn::tool(
            "Bash",
            json!({"command": command, "description": "the build", "run_in_background": true}),
        )
    };
    let answers = |start| {
        Script::turns(vec![
            start,
            ModelTurn::text("The bug is in line 12."),
            ModelTurn::text("The build is done."),
        ])
    };
    // A subagent is recognized by its prompt; everything else is the main conversation.
    let subagent = |in_background| {
        let input = json!({
            "description": "the search", "prompt": "Search the sources.", "subagent_type": "general-purpose",
            "run_in_background": in_background,
        });
        Script::by(move |request, _| {
            let says = request.says(model_api::ConversationRole::User).join(" ");
            if says.contains("Search the sources.") && !says.contains("Build it") {
                ModelTurn::text("Found nothing.")
            } else if request.tool_results().is_empty() {
                ModelTurn::tool("Agent", input.clone())
            } else {
                ModelTurn::text("The bug is in line 12.")
            }
        })
    };
    let stopped_by_model = Script::by(move |request, number| match number {
        0 => bash("sleep 60; echo done > built.txt"),
        1 => {
            let started = request.tool_results().join(" ");
            let id = started.split("with ID: ").nth(1).unwrap_or_default();
            let id: String = id.chars().take_while(char::is_ascii_alphanumeric).collect();
            ModelTurn::tool("TaskStop", json!({"task_id": id}))
        }
        _ => ModelTurn::text("I do not need the build."),
    });
    let terminal = json!({"cmd": "sleep 60; echo done > built.txt", "yield_time_ms": 300});
    let shell = json!({"command": "sleep 60; echo done > built.txt", "is_background": true});
    vec![
        asked("background-task", &[Claude], answers(bash("sleep 2; echo done > built.txt"))),
        asked("background-task-failed", &[Claude], answers(bash("sleep 2; exit 3"))),
        asked("background-task-stopped-by-model", &[Claude], stopped_by_model),
        asked("background-agent", &[Claude], subagent(true)),
        asked("foreground-agent", &[Claude], subagent(false)),
        asked("background-terminal", &[Codex], answers(ModelTurn::tool("exec_command", terminal))),
        asked("background-shell", &[Gemini], answers(ModelTurn::tool("run_shell_command", shell))),
        asked("background-ampersand", &[Codex, Gemini], answers(ModelTurn::shell("sleep 60 & echo started"))),
    ]
}

/// Leaves the planning mode by its own tool, then tries to write by file tool and by shell.
fn escape(enter: Option<ModelTurn>) -> Vec<ModelTurn> {
    let plan = ModelTurn::tool("write_file", json!({"file_path": "plan.md", "content": "Write the word."}));
    let leave = ModelTurn::tool("exit_plan_mode", json!({"plan_filename": "plan.md"}));
    let file = ModelTurn::tool("write_file", json!({"file_path": "word.txt", "content": "heron"}));
    let shell = ModelTurn::shell("echo heron > word2.txt; ls");
    enter.into_iter().chain([plan, leave, file, shell, ModelTurn::text("Done.")]).collect()
}

fn limits() -> Vec<Scenario> {
    let endless = || Script::endless(Call::Shell { command: "echo again".to_owned() });
    // Exits by itself: some CLIs leave it running when they are stopped.
    let busy = || Call::Shell { command: "timeout 20 tail -f /dev/null".to_owned() };
    let stopped = |name, script, extra| Scenario {
        stop: true,
        ..scenario(name, script, Ask { prompt: "Take your time.", extra, ..Ask::default() })
    };
    vec![
        Scenario {
            agents: &[Claude, Gemini],
            ..scenario(
                "max-turns",
                endless(),
                Ask { prompt: "Go on for ever.", max_turns: Some(2), ..Ask::default() },
            )
        },
        Scenario {
            agents: &[Claude],
            ..scenario(
                "max-budget",
                endless(),
                Ask { prompt: "Go on for ever.", extra: &["--max-budget-usd", "0.0001"], ..Ask::default() },
            )
        },
        stopped("hang-first-byte", Script::always(ModelTurn::HangBeforeFirstByte), &[]),
        stopped("hang-midway", Script::always(ModelTurn::hang_after("Half of an answer")), &[]),
        stopped("hang-in-tool", Script::endless(busy()), &[]),
        Scenario {
            agents: &[Claude],
            ..stopped(
                "hang-midway-partial",
                Script::always(ModelTurn::hang_after("Half of an answer")),
                &["--include-partial-messages"],
            )
        },
        Scenario {
            agents: &[Claude],
            ..scenario(
                "partial-messages",
                Script::text("Hello from the model."),
                Ask { extra: &["--include-partial-messages"], ..Ask::default() },
            )
        },
    ]
}

fn refusals() -> Vec<Scenario> {
    let refused = |name, turn| scenario(name, Script::always(turn), Ask::default());
    let fallback = Script::by(|request, _| {
        if request.model().is_some_and(|model| model.contains("haiku")) {
            ModelTurn::Overloaded
        } else {
            ModelTurn::text("Hello from the other model.")
        }
    });
    vec![
        refused("error-401", ModelTurn::refuse(401)),
        refused("error-403", ModelTurn::refuse(403)),
        refused("error-404", ModelTurn::refuse(404)),
        refused("error-429", ModelTurn::rate_limited(None)),
        refused("error-429-retry-after", ModelTurn::rate_limited(Some(Duration::from_secs(30)))),
        refused("error-500", ModelTurn::refuse(500)),
        refused("overloaded", ModelTurn::Overloaded),
        refused("cut-connection", ModelTurn::cut_after("Half of an answer")),
        scenario(
            "retry-then-text",
            Script::turns(vec![ModelTurn::refuse(500), ModelTurn::text("Hello after all.")]),
            Ask { retries: 1, ..Ask::default() },
        ),
        scenario(
            "cut-then-text",
            Script::turns(vec![
                ModelTurn::cut_after("Half of an answer"),
                ModelTurn::text("Hello after all."),
            ]),
            Ask { retries: 1, ..Ask::default() },
        ),
        Scenario {
            agents: &[Claude],
            ..scenario(
                "retry-401",
                Script::always(ModelTurn::refuse(401)),
                Ask { retries: 3, ..Ask::default() },
            )
        },
        Scenario { agents: &[Gemini], ..refused("invalid-key", ModelTurn::refuse(400)) },
        scenario(
            "not-logged-in",
            Script::text("Hello from the model."),
            Ask { key: false, ..Ask::default() },
        ),
        Scenario {
            agents: &[Claude],
            ..scenario(
                "model-fallback",
                fallback,
                Ask { extra: &["--fallback-model", "claude-sonnet-4-5"], retries: 3, ..Ask::default() },
            )
        },
    ]
}

fn prompts() -> Vec<Scenario> {
    let said = |name, prompt| {
        scenario(name, Script::text("Hello from the model."), Ask { prompt, ..Ask::default() })
    };
    let shaped = Script::by(|request, _| match request.vendor {
        Some(ApiVendor::Anthropic) if !request.ends_with_tool_result() => {
            ModelTurn::tool("StructuredOutput", json!({"answer": "heron"}))
        }
        Some(ApiVendor::OpenAi) => ModelTurn::text(r#"{"answer":"heron"}"#),
        _ => ModelTurn::text("The answer is heron."),
    });
    let shape = Ask { prompt: "Which word?", schema: true, ..Ask::default() };
    let before = Some(Ask { prompt: "The word is heron.", ..Ask::default() });
    vec![
        said("prompt-help", "--help"),
        said("prompt-slash", "/cost"),
        said("prompt-slash-as-text", "\n/cost"),
        Scenario { agents: &[Claude, Codex], ..scenario("structured-output", shaped.clone(), shape.clone()) },
        Scenario {
            agents: &[Claude, Codex],
            before,
            ..scenario(
                "structured-output-resume",
                shaped,
                Ask { session: ScenarioSession::Resume, ..shape.clone() },
            )
        },
        Scenario {
            agents: &[Claude, Codex],
            ..scenario("structured-output-unmet", Script::text("Not what was asked for."), shape)
        },
    ]
}

fn scenario(name: &'static str, script: Script, ask: Ask) -> Scenario {
    Scenario { name, agents: ALL, script, before: None, ask, stop: false }
}
