//! `call_rehearsal`: a call to the scripted agent, for trying out and for tests. Listed only where the operator wants it.

use model::AgentKind;

use super::call::CallTool;

pub(super) const NAME: &str = "call_rehearsal";

pub(super) const CALL: CallTool = CallTool {
    name: NAME,
    title: "Call the scripted agent",
    agent: AgentKind::Rehearsal,
    about: "Call `rehearsal`, a scripted agent that needs no account and spends no tokens, to try out how calls, waiting and \
        cancelling work. It repeats what it is told; a line of the prompt that begins with `@rehearse ` is a step, such as \
        `@rehearse delay 2s` or `@rehearse fail auth` (`rehearsal --help` lists them). Everything else is as in call_cc.",
    models: "Any name of a model: only repeated.",
    needs_cwd: false,
    howto: "Examples:\n\
        - {\"prompt\": \"Hello\"}\n\
        - {\"prompt\": \"@rehearse say working\\n@rehearse hang\", \"wait_ms\": 2000}",
};
