//! Redacts secrets before anything is stored.
//!
//! In a *text* (a prompt, a response) each secret is replaced by `[redacted]`. A *name* (a path, a task) with a
//! secret is rejected, because a changed name would have another meaning; so are the arguments and variables of an
//! MCP server, because it would not work. The agent gets the stored prompt, so that a secret in a prompt does not
//! reach the agent either.

use std::borrow::Cow;
use std::fmt;
use std::sync::{LazyLock, OnceLock};

use model::{
    AgentName, CallSpec, JobEnd, Network, NewJob, Outcome, PermissionDenial, RefusedAction, SessionChoice,
    SessionId, ToolChoice, Verdict,
};
use regex::{Captures, Regex};

use crate::StoreError;
use crate::token_formats::{TOKEN_FORMATS, TokenFormat, secret};

/// The replacement for a secret.
pub const REPLACEMENT: &str = "[redacted]";

/// The minimum length of a secret. A shorter value would match unrelated texts.
const MIN_SECRET_LEN: usize = 6;

/// Finds and replaces secrets.
#[derive(Clone, Default)]
pub struct Redactor {
    /// Known secrets, longest first.
    values: Vec<String>,
    /// Patterns of the operator.
    patterns: Vec<Regex>,
    /// Token formats of common vendors.
    formats: Option<&'static Formats>,
}

/// The known formats.
struct Formats {
    /// Matches the markers of all formats: most texts contain none.
    marker: Option<Regex>,
    /// The patterns, each compiled when the first text contains one of its markers.
    patterns: Vec<(&'static TokenFormat, OnceLock<Option<Regex>>)>,
}

static FORMATS: LazyLock<Formats> = LazyLock::new(|| {
    let markers: Vec<String> =
        TOKEN_FORMATS.iter().flat_map(|format| format.markers).map(|marker| regex::escape(marker)).collect();
    Formats {
        marker: Regex::new(&markers.join("|")).ok(),
        patterns: TOKEN_FORMATS.iter().map(|format| (format, OnceLock::new())).collect(),
    }
});

impl Formats {
    /// Returns the formats whose secrets a text may contain.
    fn possible(&self, text: &str) -> impl Iterator<Item = (&'static TokenFormat, &Regex)> {
        let has_marker = self.marker.as_ref().is_none_or(|marker| marker.is_match(text));
        let formats = if has_marker { self.patterns.as_slice() } else { &[] };
        let possible = formats.iter().filter(|(format, _)| format.may_be_in(text));
        // The patterns are constants, and a test compiles all of them.
        possible.filter_map(|(format, compiled)| {
            Some((*format, compiled.get_or_init(|| format.compile().ok()).as_ref()?))
        })
    }

    /// Replaces the secrets of the known formats and returns their number.
    fn redact(&self, text: &mut String) -> usize {
        let mut found = 0;
        let possible: Vec<_> = self.possible(text).collect();
        for (format, pattern) in possible {
            let replaced = pattern.replace_all(text, |captures: &Captures<'_>| {
                if !(format.is_secret)(captures) {
                    return captures[0].to_owned();
                }
                found += 1;
                captures[0].replace(secret(captures), REPLACEMENT)
            });
            if let Cow::Owned(replaced) = replaced {
                *text = replaced;
            }
        }
        found
    }

    fn contains_secret(&self, text: &str) -> bool {
        self.possible(text)
            .any(|(format, pattern)| pattern.captures_iter(text).any(|found| (format.is_secret)(&found)))
    }
}

/// Prints the number of secrets, never their values.
impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = format_args!("{} values", self.values.len());
        f.debug_struct("Redactor")
            .field("values", &values)
            .field("patterns", &self.patterns)
            .finish_non_exhaustive()
    }
}

impl Redactor {
    /// Returns a redactor that finds nothing.
    pub fn none() -> Self {
        Self::default()
    }

    /// Returns a redactor for the token formats of common vendors.
    pub fn usual() -> Self {
        Self { formats: Some(&FORMATS), ..Self::default() }
    }

    /// Adds regular expressions whose matches are redacted.
    pub fn with_patterns<P: AsRef<str>>(mut self, patterns: &[P]) -> Result<Self, BadPattern> {
        for pattern in patterns {
            let pattern = pattern.as_ref();
            let compiled = Regex::new(pattern)
                .map_err(|source| BadPattern { pattern: pattern.to_owned(), source: Box::new(source) })?;
            self.patterns.push(compiled);
        }
        Ok(self)
    }

    /// Adds values to redact, verbatim and as escaped in JSON. Blank values and those shorter than six bytes are
    /// ignored.
    #[must_use]
    pub fn with_values<V: AsRef<str>>(mut self, values: &[V]) -> Self {
        let forms = values
            .iter()
            .map(|value| value.as_ref().trim())
            .filter(|value| value.len() >= MIN_SECRET_LEN)
            .flat_map(|value| [value.to_owned(), as_json(value)]);
        self.values.extend(forms);
        // Longest first, or a secret that is a prefix of another would leave the rest of it in the text.
        self.values.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        self.values.dedup();
        self
    }

    /// Returns whether a value is already redacted, or too short for that.
    pub(crate) fn has_value(&self, value: &str) -> bool {
        let value = value.trim();
        value.len() < MIN_SECRET_LEN || self.values.iter().any(|known| known == value)
    }

    /// Replaces the secrets in a text and returns their number.
    pub fn redact(&self, text: &mut String) -> usize {
        let mut found = 0;
        for value in &self.values {
            let count = text.matches(value.as_str()).count();
            if count > 0 {
                *text = text.replace(value.as_str(), REPLACEMENT);
                found += count;
            }
        }
        for pattern in &self.patterns {
            let count = pattern.find_iter(text).count();
            if count > 0 {
                *text = pattern.replace_all(text, REPLACEMENT).into_owned();
                found += count;
            }
        }
        found + self.formats.map_or(0, |formats| formats.redact(text))
    }

    fn contains_secret(&self, text: &str) -> bool {
        self.values.iter().any(|value| text.contains(value.as_str()))
            || self.patterns.iter().any(|pattern| pattern.is_match(text))
            || self.formats.is_some_and(|formats| formats.contains_secret(text))
    }

    /// Redacts the texts of a job. Rejects a job with secrets in its names.
    pub(crate) fn redact_job(&self, job: &mut NewJob) -> Result<usize, StoreError> {
        self.check_names(job)?;
        self.check_servers(&job.call)?;
        let call = &mut job.call;
        let texts = [Some(&mut call.prompt)]
            .into_iter()
            .chain(
                [&mut call.system_prompt, &mut call.append_system_prompt, &mut call.output_schema]
                    .map(Option::as_mut),
            )
            .flatten();
        Ok(texts.map(|text| self.redact(text)).sum())
    }

    fn check_names(&self, job: &NewJob) -> Result<(), StoreError> {
        let NewJob { call, tool, task, home, idempotency_key, .. } = job;
        let path = |path: &std::path::PathBuf| path.to_string_lossy().into_owned();
        let mut names = vec![
            ("tool name", tool.clone()),
            ("task name", task.clone()),
            ("home", home.to_string()),
            ("idempotency key", idempotency_key.clone().unwrap_or_default()),
            ("working directory", path(&call.cwd)),
            ("model", call.model.clone().unwrap_or_default()),
            ("verification", call.verify.as_ref().map(|verify| verify.command.clone()).unwrap_or_default()),
            ("agent name", call.agent_name.as_ref().map(AgentName::to_string).unwrap_or_default()),
        ];
        if let SessionChoice::Resume(session) | SessionChoice::Fork(session) = &call.session {
            names.push(("session", session.as_str().to_owned()));
        }
        names.extend(call.add_dirs.iter().map(|dir| ("added directory", path(dir))));
        names.extend(tool_names(call).map(|name| ("list of tools", name.clone())));
        if let Network::Hosts(hosts) = &call.policy.network {
            names.extend(hosts.iter().map(|host| ("list of hosts", host.clone())));
        }
        names.extend(call.policy.hide.iter().map(|hidden| ("hidden path", path(hidden))));
        for server in &call.mcp_servers {
            names.push(("MCP server", server.name.clone()));
            names.push(("MCP server's command", server.command.clone()));
            names.extend(server.env.keys().map(|key| ("MCP server's environment", key.clone())));
        }
        match names.into_iter().find(|(_, name)| self.contains_secret(name)) {
            Some((field, _)) => Err(StoreError::SecretInName { field }),
            None => Ok(()),
        }
    }

    /// Rejects a server with a secret in its variables or arguments: with `[redacted]` instead it would fail or act
    /// differently.
    fn check_servers(&self, call: &CallSpec) -> Result<(), StoreError> {
        for server in &call.mcp_servers {
            let secret = |item: String| StoreError::SecretForServer { server: server.name.clone(), item };
            if let Some((variable, _)) = server.env.iter().find(|(_, value)| self.contains_secret(value)) {
                return Err(secret(format!("variable {variable}")));
            }
            if let Some(position) = server.args.iter().position(|argument| self.contains_secret(argument)) {
                return Err(secret(format!("argument {}", position + 1)));
            }
        }
        Ok(())
    }

    /// Rejects a session id that contains a secret.
    pub(crate) fn check_session(&self, session: &SessionId) -> Result<(), StoreError> {
        if self.contains_secret(session.as_str()) {
            return Err(StoreError::SecretInName { field: "session" });
        }
        Ok(())
    }

    /// Redacts the outputs of an agent.
    pub(crate) fn redact_end(&self, end: &mut JobEnd) -> usize {
        let exchange = end.exchange.as_mut().map(|texts| [&mut texts.prompt, &mut texts.response]);
        let texts = exchange.into_iter().flatten().chain(&mut end.metadata);
        let message = end.failure.as_mut().map(|failure| &mut failure.message);
        let found: usize = texts.chain(message).map(|text| self.redact(text)).sum();
        found + end.outcome.as_mut().map_or(0, |outcome| self.redact_outcome(outcome))
    }

    fn redact_outcome(&self, outcome: &mut Outcome) -> usize {
        let denials = outcome.permission_denials.iter_mut();
        let details = denials.flat_map(|PermissionDenial { tool, tool_use_id, detail }| {
            [tool].into_iter().chain(tool_use_id).chain(detail)
        });
        let tasks = outcome.background.iter_mut().map(|task| &mut task.description);
        let refusals = outcome.refusals.iter_mut();
        let refused =
            refusals.flat_map(|RefusedAction { subject, detail, .. }| [subject].into_iter().chain(detail));
        let failure = match &mut outcome.verdict {
            Verdict::Success => None,
            Verdict::Failed(failure) => Some(&mut failure.message),
        };
        let found: usize = [&mut outcome.text]
            .into_iter()
            .chain(&mut outcome.structured_output)
            .chain(&mut outcome.model)
            .chain(outcome.session_mismatch.as_mut().map(|mismatch| &mut mismatch.got))
            .chain(failure)
            .chain(details)
            .chain(tasks)
            .chain(refused)
            .map(|text| self.redact(text))
            .sum();
        // A session id cannot be redacted: another id is another session. Without it the session cannot be resumed.
        let named = outcome.session.take_if(|session| self.contains_secret(session.as_str()));
        let asked = outcome.session_mismatch.take_if(|other| self.contains_secret(other.asked.as_str()));
        found + usize::from(named.is_some()) + usize::from(asked.is_some())
    }
}

fn tool_names(call: &CallSpec) -> impl Iterator<Item = &String> {
    let allowed = match &call.tools {
        ToolChoice::Only(names) => names.as_slice(),
        ToolChoice::Full | ToolChoice::None => &[],
    };
    allowed.iter().chain(call.available_tools.iter().flatten())
}

/// Returns a value as escaped in JSON: quotes and line breaks look different there.
fn as_json(value: &str) -> String {
    let quoted = serde_json::Value::from(value).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// A pattern that is not a valid regular expression.
#[derive(Debug, thiserror::Error)]
#[error("`{pattern}` is not a regular expression")]
pub struct BadPattern {
    pattern: String,
    #[source]
    source: Box<regex::Error>,
}

impl BadPattern {
    /// Returns a remedy for the user.
    pub fn hint(&self) -> &'static str {
        "see the cause for the position of the error; to match a literal text, list it as a value"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redacted(redactor: &Redactor, text: &str) -> String {
        let mut text = text.to_owned();
        redactor.redact(&mut text);
        text
    }

    #[test]
    fn every_format_compiles() {
        for format in TOKEN_FORMATS {
            format.compile().unwrap();
        }
    }

    #[test]
    fn value_is_redacted_verbatim_and_in_json() {
        let redactor = Redactor::none().with_values(&["pass\"word\n1", "", "abc"]);
        assert_eq!(redacted(&redactor, "x pass\"word\n1 y"), "x [redacted] y");
        assert_eq!(redacted(&redactor, r#"{"k":"pass\"word\n1"}"#), r#"{"k":"[redacted]"}"#);
        assert_eq!(redacted(&redactor, "abc"), "abc", "too short to be distinguished from other texts");
    }

    #[test]
    fn longest_secret_is_redacted_first() {
        let redactor = Redactor::none().with_values(&["secret", "secret-and-more"]);
        assert_eq!(redacted(&redactor, "secret-and-more"), "[redacted]");
    }

    #[test]
    fn debug_output_hides_secrets() {
        let redactor = Redactor::none().with_values(&["hunter2hunter2"]);
        assert!(!format!("{redactor:?}").contains("hunter2"));
    }

    #[test]
    fn invalid_pattern_is_named_in_error() {
        let error = Redactor::none().with_patterns(&["(oops"]).unwrap_err();
        assert_eq!(error.to_string(), "`(oops` is not a regular expression");
    }
}
