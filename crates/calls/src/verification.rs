//! The verification of an agent's work: its result, and the files that the agent must not change.

use std::path::{Component, Path};

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use model::exact_path::show_path;
use model::{
    CallSpec, ChangeKind, ChangeSet, FileChange, MAX_COMMAND_BYTES, MAX_REPAIRS, VerifySpec, error_chain,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The result of a verification.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Verification {
    /// `passed`, `failed` or `not_run`.
    pub state: VerificationState,
    /// The command.
    pub command: String,
    /// Why it did not run, or how it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The exit code. Omitted if a signal or a time limit ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Its duration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// The end of its output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// The number of times that a failure was sent back to the agent.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub repairs: u32,
    /// Protected files that the agent had changed. They were restored before the command ran.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub restored: Vec<String>,
}

/// The state of a verification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum VerificationState {
    /// The command succeeded.
    Passed,
    /// The command failed.
    Failed,
    /// The command was not run.
    NotRun,
}

impl VerificationState {
    /// Returns the serialized name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::NotRun => "not_run",
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature serde asks for")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Verification {
    /// Returns a verification that did not run.
    pub(crate) fn not_run(spec: &VerifySpec, reason: impl Into<String>) -> Self {
        Self {
            state: VerificationState::NotRun,
            command: spec.command.clone(),
            reason: Some(reason.into()),
            exit_code: None,
            duration_ms: None,
            output: None,
            repairs: 0,
            restored: Vec::new(),
        }
    }
}

/// An invalid verification of a call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// The command is empty, too long or contains a NUL.
    #[error("the verification is not a command of 1 to {MAX_COMMAND_BYTES} bytes")]
    Command,
    /// Too many repairs.
    #[error("{0} repairs are more than {MAX_REPAIRS}")]
    Repairs(u32),
    /// A pattern cannot be parsed.
    #[error("`{pattern}` is not a valid glob: {cause}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// The reason.
        cause: String,
    },
    /// A pattern protects nothing.
    #[error("`{pattern}` protects nothing: {cause}")]
    Unmatched {
        /// The pattern.
        pattern: String,
        /// The reason.
        cause: String,
    },
    /// The policy permits no shell.
    #[error("the policy `{policy}` permits no command")]
    NoShell {
        /// The policy.
        policy: &'static str,
    },
    /// The changes of the call are not recorded.
    #[error("{what} needs the changes of the call, which are not recorded: {reason}")]
    NotRecorded {
        /// The option.
        what: &'static str,
        /// The reason.
        reason: String,
    },
}

impl VerifyError {
    /// Returns the remedy.
    pub fn hint(&self) -> String {
        match self {
            Self::Command => "pass a shell command, such as `just test`".to_owned(),
            Self::Repairs(_) => format!("pass at most {MAX_REPAIRS}"),
            Self::Pattern { .. } => "examples: `tests/**`, `*.lock`, `**/conftest.py`".to_owned(),
            Self::Unmatched { .. } => {
                "globs start at the top of the git worktree, such as `tests/**`; create the file, or omit the glob".to_owned()
            }
            Self::NoShell { .. } => "verify the work yourself, or use the policy `workspace`".to_owned(),
            Self::NotRecorded { .. } => "call an agent that may write, in a git repository".to_owned(),
        }
    }

    /// Returns the parameter at fault.
    pub fn field(&self) -> &'static str {
        match self {
            Self::Command | Self::NoShell { .. } => "verify",
            Self::Repairs(_) => "repair",
            Self::Pattern { .. } | Self::Unmatched { .. } => "verify_protect",
            Self::NotRecorded { what, .. } => what,
        }
    }
}

/// Checks the verification of a call. Whether its changes are recorded is checked where they are needed.
pub(crate) fn check(call: &CallSpec) -> Result<(), VerifyError> {
    let Some(verify) = &call.verify else { return Ok(()) };
    let command = verify.command.trim();
    if command.is_empty() || verify.command.len() > MAX_COMMAND_BYTES || command.contains('\0') {
        return Err(VerifyError::Command);
    }
    if verify.repairs > MAX_REPAIRS {
        return Err(VerifyError::Repairs(verify.repairs));
    }
    let preset = call.requested_preset();
    if !preset.has_shell() {
        return Err(VerifyError::NoShell { policy: preset.name() });
    }
    compile(&verify.protect).map(drop)
}

/// Returns the option of a call that needs its recorded changes.
pub(crate) fn needs_changes(call: &CallSpec) -> Option<&'static str> {
    call.expect_changes.then_some("expect_changes")
}

/// Rejects a pattern that matches no file: it would protect nothing. Blocks.
pub(crate) fn check_matches(verify: &VerifySpec, worktree: &Path) -> Result<(), VerifyError> {
    for pattern in &verify.protect {
        let globs = compile(std::slice::from_ref(pattern))?;
        let found = changes::find_files(worktree, &|path| globs.is_match(path));
        let cause = match found {
            Ok(found) if !found.is_empty() => continue,
            Ok(_) => format!("no file in `{}` matches", show_path(worktree)),
            Err(error) => error_chain(&error),
        };
        return Err(VerifyError::Unmatched { pattern: pattern.clone(), cause });
    }
    Ok(())
}

/// Returns the changed files that match a pattern. A rename matches with either name.
pub(crate) fn find_protected<'c>(
    changes: &'c ChangeSet,
    patterns: &[String],
) -> Result<Vec<&'c Path>, VerifyError> {
    let globs = compile(patterns)?;
    let is_protected = |change: &&FileChange| {
        let from = match &change.kind {
            ChangeKind::Renamed { from } => Some(from),
            _ => None,
        };
        from.into_iter().chain([&change.path]).any(|path| globs.is_match(path))
    };
    Ok(changes.files.iter().filter(is_protected).map(|change| change.path.as_path()).collect())
}

/// Compiles patterns. A star does not match a slash, and a directory matches with everything below it.
pub(crate) fn compile(patterns: &[String]) -> Result<GlobSet, VerifyError> {
    let mut set = GlobSetBuilder::new();
    for pattern in patterns {
        let path = Path::new(pattern);
        let leads_out = path.is_absolute() || path.components().any(|part| part == Component::ParentDir);
        if leads_out || pattern.trim_matches(['.', '/']).is_empty() {
            let cause = "it does not name files below the top of the worktree".to_owned();
            return Err(VerifyError::Pattern { pattern: pattern.clone(), cause });
        }
        let bare = pattern.strip_prefix("./").unwrap_or(pattern).trim_end_matches('/');
        for glob in [bare.to_owned(), format!("{bare}/**")] {
            let glob = GlobBuilder::new(&glob).literal_separator(true).backslash_escape(true).build();
            let invalid = |cause: &globset::Error| VerifyError::Pattern {
                pattern: pattern.clone(),
                cause: cause.kind().to_string(),
            };
            set.add(glob.map_err(|cause| invalid(&cause))?);
        }
    }
    set.build().map_err(|cause| VerifyError::Pattern {
        pattern: patterns.join(", "),
        cause: cause.kind().to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{AgentKind, ChangeExtent, Preset};

    fn changes(paths: &[(&str, Option<&str>)]) -> ChangeSet {
        let files = paths.iter().map(|(path, from)| FileChange {
            path: path.into(),
            kind: from.map_or(ChangeKind::Added, |from| ChangeKind::Renamed { from: from.into() }),
            extent: ChangeExtent::Text { added: 1, removed: 0 },
            shared: false,
        });
        ChangeSet { worktree: "/".into(), base: None, head: None, files: files.collect() }
    }

    #[test]
    fn protected_files_match_with_either_name() {
        let changes = changes(&[
            ("tests/a.rs", None),
            ("tests/deep/b.rs", None),
            ("moved.rs", Some("tests/c.rs")),
            ("src/tests.rs", None),
            ("Cargo.lock", None),
            ("sub/Cargo.lock", None),
        ]);
        let found = |patterns: &[&str]| -> Vec<String> {
            let patterns: Vec<String> = patterns.iter().map(|&pattern| pattern.to_owned()).collect();
            let found = find_protected(&changes, &patterns).unwrap();
            found.iter().map(|path| path.display().to_string()).collect()
        };
        assert_eq!(found(&["tests/**"]), ["tests/a.rs", "tests/deep/b.rs", "moved.rs"]);
        assert_eq!(found(&["./tests/"]), ["tests/a.rs", "tests/deep/b.rs", "moved.rs"]);
        assert_eq!(found(&["*.lock"]), ["Cargo.lock"]);
        assert_eq!(found(&["**/*.lock"]), ["Cargo.lock", "sub/Cargo.lock"]);
        assert!(found(&[]).is_empty());
    }

    #[test]
    fn invalid_verification_is_rejected_by_parameter() {
        let rejected = |verify: VerifySpec, preset: Preset| {
            let call = CallSpec {
                verify: Some(verify),
                policy: preset.into(),
                ..CallSpec::new(AgentKind::Rehearsal, "task", "/")
            };
            check(&call).map_err(|error| error.field())
        };
        let spec = VerifySpec::new("just test");
        assert_eq!(rejected(spec.clone(), Preset::Workspace), Ok(()));
        assert_eq!(rejected(VerifySpec::new(" "), Preset::Off), Err("verify"));
        assert_eq!(rejected(VerifySpec::new("a\0b"), Preset::Off), Err("verify"));
        assert_eq!(rejected(spec.clone(), Preset::Sealed), Err("verify"));
        assert_eq!(rejected(VerifySpec { repairs: 11, ..spec.clone() }, Preset::Off), Err("repair"));
        for pattern in ["[", "/etc/**", "../x", "", "./"] {
            let broken = VerifySpec { protect: vec![pattern.into()], ..spec.clone() };
            assert_eq!(rejected(broken, Preset::Off), Err("verify_protect"), "{pattern}");
        }
    }
}
