//! `call_rehearsal`: calls the scripted agent, for demos and tests. Listed only if the operator enables it.

use model::AgentKind;

use super::call::CallTool;

pub(super) const NAME: &str = "call_rehearsal";

pub(super) const CALL: CallTool = CallTool {
    name: NAME,
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
};
