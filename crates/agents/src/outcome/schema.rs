//! Answers to an output schema: where they are, and whether they match.

use jsonschema::Validator;
use model::AgentKind;
use serde_json::Value;

use super::FinishedRun;
use crate::driver::ReportedResult;

/// The number of violations in a message.
const MAX_LISTED: usize = 3;
/// The length of a violation in a message: it can quote the whole answer.
const VIOLATION_CHARS: usize = 300;

/// Compiles a schema. References to other documents are not loaded.
pub(crate) fn compile(schema: &str) -> Result<Validator, String> {
    let schema: Value = serde_json::from_str(schema).map_err(|error| error.to_string())?;
    // `true` is a schema, too, but the agents take none.
    if !schema.is_object() {
        return Err("it is not a JSON object".to_owned());
    }
    jsonschema::validator_for(&schema).map_err(|error| error.to_string())
}

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
    let validator = match compile(schema) {
        Ok(validator) => validator,
        // Checked when the call was submitted, by another version.
        Err(error) => return Some(format!("the output schema is invalid: {error}")),
    };
    let violations = validator.iter_errors(&answer).take(MAX_LISTED).map(|error| {
        let (place, problem) = (error.instance_path().to_string(), error.to_string());
        let problem: String = problem.chars().take(VIOLATION_CHARS).collect();
        if place.is_empty() { problem } else { format!("at `{place}`: {problem}") }
    });
    let violations: Vec<String> = violations.collect();
    (!violations.is_empty())
        .then(|| format!("the answer does not match the output schema: {}", violations.join("; ")))
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

    #[test]
    fn invalid_schema_does_not_compile() {
        assert!(compile(r#"{"type": "object"}"#).is_ok());
        assert!(compile(r#"{"type": "objekt"}"#).is_err());
        assert!(compile("[").is_err());
    }
}
