//! `call_gem`: calls Gemini CLI.

use model::AgentKind;

use super::call::CallTool;

pub(super) const NAME: &str = "call_gem";

pub(super) const CALL: CallTool = CallTool {
    name: NAME,
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
};
