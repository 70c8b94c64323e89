//! `call_codex`: a call to Codex.

use model::AgentKind;

use super::call::CallTool;

pub(super) const NAME: &str = "call_codex";

pub(super) const CALL: CallTool = CallTool {
    name: NAME,
    title: "Call Codex",
    agent: AgentKind::Codex,
    about: "Hand a task to Codex (OpenAI's `codex` CLI on this machine) and get its answer. Use it to delegate coding work or to \
        get another model's opinion. `cwd` must be given. It starts with no knowledge of your conversation, so put everything it \
        needs into `prompt`. It may change files and run commands unless `mode` is `observe`. When the answer says `running`, \
        the job goes on: call call_wait with its job_id in job_ids, do not place the call again. To follow up, give the answer's session_id \
        as resume_session_id. Codex has no turn limit, choice of tools or named agents: leave max_turns, allowed_tools and agent_name out.",
    models: "The name of a model that Codex knows, or an alias of the operator. Default: as the operator set it, else Codex's own choice.",
    needs_cwd: true,
    howto: "Examples:\n\
        - {\"prompt\": \"Review the last commit for races.\", \"cwd\": \"/home/ana/shop\", \"mode\": \"observe\"}\n\
        - {\"prompt\": \"Now fix the first one.\", \"cwd\": \"/home/ana/shop\", \"resume_session_id\": \"<session_id of the answer>\"}",
};
