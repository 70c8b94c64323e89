//! Answers to an output schema: where they are, and whether they match.

use model::AgentKind;
use serde_json::Value;

use super::FinishedRun;
use super::answer_schema::find_violations;
use crate::driver::ReportedResult;

/// Returns the answer to the schema, as JSON. Claude has a field for it; the answer of any other agent is JSON as a whole, or in a fence.
pub(super) fn answer(run: &FinishedRun<'_>) -> Option<String> {
    let is_done = run.summary.reported == Some(ReportedResult::Done) || run.summary.exit_rule.is_some();
    match run.agent {
        AgentKind::Claude | AgentKind::Rehearsal => run.summary.structured_output.clone(),
        _ if run.schema.is_some() && is_done => {
            let text = run.summary.text();
            let json = without_fence(text.trim());
            serde_json::from_str::<serde::de::IgnoredAny>(json).is_ok().then(|| json.to_owned())
        }
        _ => None,
    }
}

/// Returns the reason why the answer of a successful run does not match the schema.
pub(super) fn find_mismatch(run: &FinishedRun<'_>) -> Option<String> {
    let schema = run.schema?;
    let Some(answer) = answer(run) else {
        return Some("the answer does not match the output schema: there is no JSON".to_owned());
    };
    let answer: Value = match serde_json::from_str(&answer) {
        Ok(answer) => answer,
        Err(error) => return Some(format!("the answer does not match the output schema: {error}")),
    };
    match find_violations(schema, &answer) {
        Ok(violations) if violations.is_empty() => None,
        Ok(violations) => {
            Some(format!("the answer does not match the output schema: {}", violations.join("; ")))
        }
        // Depends on the answer, too: the schema itself was checked when the call was submitted.
        Err(problem) => Some(format!("the answer cannot be checked against the output schema: {problem}")),
    }
}

/// Returns the text in a Markdown fence that encloses all of it.
fn without_fence(text: &str) -> &str {
    let inside = text.strip_prefix("```").and_then(|rest| rest.strip_suffix("```"));
    let body = inside.and_then(|inside| inside.split_once('\n')).filter(|(info, _)| !info.contains('`'));
    body.map_or(text, |(_, body)| body.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_enclosing_fence_is_removed() {
        assert_eq!(without_fence("```json\n{\"a\": 1}\n```"), "{\"a\": 1}");
        assert_eq!(without_fence("{\"a\": 1}"), "{\"a\": 1}");
        assert_eq!(without_fence("Here:\n```\n1\n```"), "Here:\n```\n1\n```");
    }
}
