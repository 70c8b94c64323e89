//! `call_cc`: a call to Claude Code.

use model::AgentKind;

use super::call::CallTool;

pub(super) const NAME: &str = "call_cc";

pub(super) const CALL: CallTool = CallTool {
    name: NAME,
    title: "Call Claude Code",
    agent: AgentKind::Claude,
    about: "Hand a task to Claude Code (the `claude` CLI on this machine) and get its answer. Use it to delegate work, to get a \
        second opinion, or to work in another folder. It starts with no knowledge of your conversation, so put everything it \
        needs into `prompt`. It may change files and run commands unless `mode` is `observe`. When the answer says `running`, \
        the job goes on: call call_wait with its job_id in job_ids, do not place the call again. To follow up, give the answer's session_id \
        as resume_session_id. Runs for up to `timeout_ms`.",
    models: "An alias that Claude Code knows (haiku, sonnet, opus), one of the operator, or the full name of a model. Default: as the operator set it, else Claude Code's own choice.",
    needs_cwd: false,
    howto: "Examples:\n\
        - {\"prompt\": \"Find out why tests/login.rs fails and say what to change. Change nothing.\", \"mode\": \"observe\"}\n\
        - {\"prompt\": \"Apply the change you proposed.\", \"resume_session_id\": \"<session_id of the answer>\"}\n\
        - {\"prompt\": \"Write docs/api.md from src/.\", \"model\": \"opus\", \"cwd\": \"~/shop\", \"fire_and_forget\": true}\n\
        A session belongs to the folder it was made in: resume it with the same cwd.",
};
