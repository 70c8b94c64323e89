//! The tools that call an agent, one entry each.

use model::AgentKind;

use super::call::CallTool;
use crate::context::ClientContext;
use crate::rejection::ToolRejection;

/// The tool of the scripted agent, for demos and tests. Listed only if the operator enables it.
pub(super) const REHEARSAL: &str = "call_rehearsal";

/// The tools in the order of `tools/list`.
pub(super) static AGENT_TOOLS: [CallTool; 4] = [
    CallTool {
        name: "call_cc",
        title: "Call Claude Code",
        agent: AgentKind::Claude,
        description: "Send a task to Claude Code (the `claude` CLI on this machine) and get its answer. Use it to delegate work, to get a \
            second opinion, or to work in another directory. It does not see your conversation, so put everything it needs into \
            `prompt`. It may change files and run commands unless `mode` is `observe`. If the status is `running`, the job continues in \
            the background: pass its job_id to call_wait and do not repeat the call. To follow up, pass the session_id of the answer as \
            resume_session_id. The agent is stopped after `timeout_ms`.",
        models: "Model: an alias of Claude Code (haiku, sonnet, opus), an alias set by the operator, or a full model name. Default: set by the operator, else Claude Code's default.",
        needs_cwd: false,
        howto: "Examples:\n\
            - {\"prompt\": \"Find out why tests/login.rs fails and explain what to change. Do not change anything.\", \"mode\": \"observe\"}\n\
            - {\"prompt\": \"Apply the change you proposed.\", \"resume_session_id\": \"<session_id of the answer>\"}\n\
            - {\"prompt\": \"Write docs/api.md from src/.\", \"model\": \"opus\", \"cwd\": \"~/shop\", \"fire_and_forget\": true}\n\
            A session belongs to its working directory: resume it with the same cwd.",
    },
    CallTool {
        name: "call_codex",
        title: "Call Codex",
        agent: AgentKind::Codex,
        description: "Send a task to Codex (OpenAI's `codex` CLI on this machine) and get its answer. Use it to delegate coding work or to \
            get another model's opinion. `cwd` is required. It does not see your conversation, so put everything it needs into \
            `prompt`. It may change files and run commands unless `mode` is `observe`. If the status is `running`, the job continues in \
            the background: pass its job_id to call_wait and do not repeat the call. To follow up, pass the session_id of the answer as \
            resume_session_id. Codex does not support max_turns, allowed_tools and agent_name: omit them.",
        models: "Model: a model name that Codex accepts, or an alias set by the operator. Default: set by the operator, else Codex's default.",
        needs_cwd: true,
        howto: "Examples:\n\
            - {\"prompt\": \"Review the last commit for races.\", \"cwd\": \"/home/ana/shop\", \"mode\": \"observe\"}\n\
            - {\"prompt\": \"Now fix the first one.\", \"cwd\": \"/home/ana/shop\", \"resume_session_id\": \"<session_id of the answer>\"}",
    },
    CallTool {
        name: "call_gem",
        title: "Call Gemini",
        agent: AgentKind::Gemini,
        description: "Send a task to Gemini (Google's `gemini` CLI on this machine) and get its answer. Use it to read large amounts of code or \
            to get another model's opinion. It does not see your conversation, so put everything it needs into `prompt`. It may change \
            files and run commands unless `mode` is `observe`. If the status is `running`, the job continues in the background: pass its \
            job_id to call_wait and do not repeat the call. To follow up, pass the session_id of the answer as resume_session_id. Gemini \
            does not support `max_turns`: omit it.",
        models: "Model: an alias of Gemini CLI (auto, pro, flash, flash-lite), an alias set by the operator, or a full model name. Default: set by the operator, else Gemini CLI's default.",
        needs_cwd: false,
        howto: "Examples:\n\
            - {\"prompt\": \"Read all of src/ and list the public functions that nothing calls.\", \"mode\": \"observe\"}\n\
            - {\"prompt\": \"Which of them are safe to remove?\", \"continue_latest\": true}",
    },
    CallTool {
        name: REHEARSAL,
        title: "Call the scripted agent",
        agent: AgentKind::Rehearsal,
        description: "Call `rehearsal`, a scripted agent that needs no account and uses no tokens, to try out calls, waiting and cancelling. \
            It echoes the prompt. A prompt line that starts with `@rehearse ` is a step, such as `@rehearse delay 2s` or \
            `@rehearse fail auth`. All other parameters work as in call_cc.",
        models: "Model: any name; it is only echoed.",
        needs_cwd: false,
        howto: "Examples:\n\
            - {\"prompt\": \"Hello\"}\n\
            - {\"prompt\": \"@rehearse say working\\n@rehearse hang\", \"wait_ms\": 2000}",
    },
];

/// Returns the tool of that name.
pub(super) fn find_agent_tool(name: &str) -> Option<&'static CallTool> {
    AGENT_TOOLS.iter().find(|tool| tool.name == name)
}

/// Rejects an agent that does not exist, and one that the operator has not enabled.
pub(super) fn check_agent(
    client: &ClientContext,
    field: &str,
    agent: AgentKind,
) -> Result<(), ToolRejection> {
    let known = client.service.profiles();
    let problem = match known.require(agent) {
        Err(unknown) => unknown.to_string(),
        Ok(_) if agent == AgentKind::Rehearsal && !client.options.rehearsal => {
            "the operator has not enabled the scripted agent".to_owned()
        }
        Ok(_) => return Ok(()),
    };
    let names = known.iter().map(|profile| profile.agent).filter(|agent| *agent != AgentKind::Rehearsal);
    let names = names.map(|agent| format!("`{agent}`")).collect::<Vec<_>>().join(", ");
    Err(ToolRejection::for_field(field, problem, format!("use one of {names}")))
}
