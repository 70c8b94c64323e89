//! `call_codex`: calls Codex.

use model::AgentKind;

use super::call::CallTool;

pub(super) const NAME: &str = "call_codex";

pub(super) const CALL: CallTool = CallTool {
    name: NAME,
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
};
