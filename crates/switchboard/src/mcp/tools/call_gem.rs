//! `call_gem`: a call to the Gemini CLI.

use model::AgentKind;

use super::call::CallTool;

pub(super) const NAME: &str = "call_gem";

pub(super) const CALL: CallTool = CallTool {
    name: NAME,
    title: "Call Gemini",
    agent: AgentKind::Gemini,
    about: "Hand a task to Gemini (Google's `gemini` CLI on this machine) and get its answer. Use it for reading much at once or \
        to get another model's opinion. It starts with no knowledge of your conversation, so put everything it needs into \
        `prompt`. It may change files and run commands unless `mode` is `observe`. When the answer says `running`, the job goes \
        on: call call_wait with its job_id in job_ids, do not place the call again. To follow up, give the answer's session_id as \
        resume_session_id. Gemini has no turn limit: leave `max_turns` out.",
    models: "An alias that Gemini CLI knows (auto, pro, flash, flash-lite), one of the operator, or the full name of a model. Default: as the operator set it, else Gemini CLI's own choice.",
    needs_cwd: false,
    howto: "Examples:\n\
        - {\"prompt\": \"Read all of src/ and list the public functions that nothing calls.\", \"mode\": \"observe\"}\n\
        - {\"prompt\": \"Which of them are safe to remove?\", \"continue_latest\": true}",
};
