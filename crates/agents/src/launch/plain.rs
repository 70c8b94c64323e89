//! Launches a command without a protocol.
//!
//! Its arguments come from the configuration, with placeholders for the values of the call. A value is never parsed as a flag: one that
//! stands alone and starts with a dash is rejected.

use model::{ExpectedSession, Mode, PermissionMode, SessionChoice, ToolChoice};

use super::{Draft, LaunchError, MAX_ARGUMENT_BYTES, path_text};
use crate::driver::{DriverSpec, PlainSpec};
use crate::profile::PlainRules;

/// The private file with the prompt.
const PROMPT_FILE: &str = "prompt.md";

pub(super) fn write(draft: &mut Draft<'_>, rules: &PlainRules) -> Result<(), LaunchError> {
    check(draft, rules)?;
    let prompt = draft.text_of_prompt();
    let mut templates = rules.args.clone();
    if draft.model.is_some() {
        templates.extend(rules.model.iter().cloned());
    }
    let session = match &draft.spec.session {
        SessionChoice::Resume(id) => {
            draft.session = ExpectedSession::Resumed(id.clone());
            templates.extend(rules.resume.iter().cloned());
            id.to_string()
        }
        _ => String::new(),
    };
    let has_prompt = templates.iter().any(|arg| arg.contains("{prompt}") || arg.contains("{prompt_file}"));
    let file = if templates.iter().any(|arg| arg.contains("{prompt_file}")) {
        draft.private_file(PROMPT_FILE, prompt.clone())?
    } else {
        String::new()
    };
    let values = [
        ("{prompt}", prompt.as_str()),
        ("{prompt_file}", file.as_str()),
        ("{model}", &draft.model.clone().unwrap_or_default()),
        ("{session}", &session),
        ("{cwd}", path_text(&draft.spec.cwd)?),
    ];
    for template in &templates {
        let argument = fill(template, &values)?;
        draft.plan.args.push(argument);
    }
    draft.plan.input = if has_prompt { Vec::new() } else { prompt.into_bytes() };
    let spec = DriverSpec::Plain(PlainSpec { answer: rules.answer.clone(), session: rules.session.clone() });
    draft.plan.driver = spec.to_bytes();
    Ok(())
}

fn check(draft: &Draft<'_>, rules: &PlainRules) -> Result<(), LaunchError> {
    let spec = draft.spec;
    let can_resume = !rules.resume.is_empty();
    draft.reject_if(spec.max_turns.is_some(), "max_turns")?;
    draft.reject_if(spec.max_budget_usd.is_some(), "max_budget_usd")?;
    draft.reject_if(spec.agent_name.is_some(), "agent_name")?;
    draft.reject_if(spec.tool_timeout.is_some(), "tool_timeout")?;
    draft.reject_if(spec.tools != ToolChoice::Full, "tools")?;
    draft.reject_if(spec.available_tools.is_some(), "available_tools")?;
    draft.reject_if(spec.system_prompt.is_some(), "system_prompt")?;
    draft.reject_if(spec.append_system_prompt.is_some(), "append_system_prompt")?;
    draft.reject_if(!spec.mcp_servers.is_empty(), "mcp_servers")?;
    draft.reject_if(!spec.add_dirs.is_empty(), "add_dirs")?;
    draft.reject_if(!spec.images.is_empty(), "images")?;
    draft.reject_if(spec.effort.is_some(), "effort")?;
    draft.reject_if(spec.live, "live")?;
    draft.reject_if(draft.model.is_some() && rules.model.is_empty(), "model")?;
    let asks = !matches!(spec.permission_mode, None | Some(PermissionMode::Bypass));
    draft.reject_if(asks, "permission_mode")?;
    draft.reject_if(spec.mode == Mode::Observe && spec.policy.is_off(), super::UNCONFINED_OBSERVE)?;
    match spec.session {
        SessionChoice::New => Ok(()),
        SessionChoice::Resume(_) => draft.reject_if(!can_resume, "session"),
        SessionChoice::Fork(_) => draft.reject_if(true, "session fork"),
        SessionChoice::ContinueLatest => draft.reject_if(true, "the latest session"),
    }
}

/// Replaces the placeholders of an argument, in one pass: a value may contain the text of a placeholder.
fn fill(template: &str, values: &[(&'static str, &str)]) -> Result<String, LaunchError> {
    let mut argument = String::new();
    let mut rest = template;
    while let Some(at) = rest.find('{') {
        let (before, tail) = rest.split_at(at);
        argument.push_str(before);
        if let Some((name, value)) = values.iter().find(|(name, _)| tail.starts_with(name)) {
            if value.contains('\0') {
                return Err(LaunchError::NulInValue { flag: name });
            }
            if argument.is_empty() && value.starts_with('-') {
                return Err(LaunchError::FlagInValue { placeholder: name });
            }
            argument.push_str(value);
            rest = &tail[name.len()..];
        } else {
            argument.push('{');
            rest = &tail[1..];
        }
    }
    argument.push_str(rest);
    if argument.len() > MAX_ARGUMENT_BYTES {
        let length = argument.len();
        return Err(LaunchError::ValueTooLong { flag: "{prompt}", length, limit: MAX_ARGUMENT_BYTES });
    }
    Ok(argument)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_replaced_once() {
        let values = [("{prompt}", "say {model}"), ("{model}", "m")];
        let filled = |template| fill(template, &values).unwrap();
        assert_eq!(filled("--message={prompt}"), "--message=say {model}");
        assert_eq!(filled("{model}/{x}/{prompt}"), "m/{x}/say {model}");
        assert_eq!(filled("plain"), "plain");
    }

    #[test]
    fn value_that_looks_like_a_flag_stands_only_after_a_text() {
        let values = [("{prompt}", "--yolo")];
        assert!(fill("{prompt}", &values).is_err());
        assert_eq!(fill("--message={prompt}", &values).unwrap(), "--message=--yolo");
    }
}
