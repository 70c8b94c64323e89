//! `call_cc`: calls Claude Code.

use model::AgentKind;

use super::call::CallTool;

pub(super) const NAME: &str = "call_cc";

pub(super) const CALL: CallTool = CallTool {
    name: NAME,
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
};
