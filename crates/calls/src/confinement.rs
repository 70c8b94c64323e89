//! The sandbox report of a call in short form. The job's record has the full report.

use std::path::{Path, PathBuf};

use model::{
    AgentKind, CallSpec, Enforcement, Mode, Preset, Proof, Quarantined, Safeguard, SafeguardName,
    SandboxReport, exact_path,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The confinement of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Sandbox {
    /// The policy; `off` means that the agent was not confined.
    pub policy: String,
    /// Safeguards that were not fully enforced on this machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gaps: Vec<Gap>,
    /// Is true if the agent ran without a sandbox in its own read-only mode.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub agent_read_only: bool,
    /// The number of escape attempts that the self-test of the sandbox blocked, before the agent started.
    #[serde(default, alias = "ways_out_stopped")]
    pub self_test_blocked: usize,
    /// Hosts that the agent tried to reach and that the network policy refuses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused_hosts: Vec<String>,
    /// Files created by the call that could run commands later, and that were moved away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quarantined: Vec<QuarantinedPath>,
    /// Why the git repository around the working directory was read-only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_read_only: Option<String>,
    /// The number of commits made without the hooks of their repository.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub commits_without_hooks: u32,
    /// The number of unsigned commits, though the user's git configuration asks for signatures.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unsigned_commits: u32,
}

/// A path that a call created and that was moved away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QuarantinedPath {
    /// The original path.
    #[serde(with = "exact_path")]
    #[schemars(with = "PathBuf")]
    pub path: PathBuf,
    /// The current path; left out if it could not be moved.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "exact_path")]
    #[schemars(with = "Option<PathBuf>")]
    pub moved_to: Option<PathBuf>,
    /// Is true for a directory that could not be examined.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unexamined: bool,
}

impl From<&Quarantined> for QuarantinedPath {
    fn from(entry: &Quarantined) -> Self {
        Self { path: entry.path.clone(), moved_to: entry.moved_to.clone(), unexamined: entry.unexamined }
    }
}

/// A safeguard that was not fully enforced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Gap {
    /// Its name.
    pub safeguard: String,
    /// Is true if nothing of it was enforced.
    pub open: bool,
    /// The reason.
    pub why: String,
}

impl Sandbox {
    /// Reads the report in a job's record; none if it is missing or of another version.
    pub(crate) fn read(report: &Value) -> Option<Self> {
        Some(Self::from(&SandboxReport::deserialize(report).ok()?))
    }

    /// Adds the restriction that the agent itself applied to the call. The rehearsal agent has no read-only mode.
    #[must_use]
    pub fn for_call(mut self, call: &CallSpec) -> Self {
        let restricts_itself = call.mode == Mode::Observe && call.agent != AgentKind::Rehearsal;
        self.agent_read_only = self.is_off() && restricts_itself;
        self
    }

    /// Returns whether the agent ran without a sandbox.
    pub fn is_off(&self) -> bool {
        self.policy == Preset::Off.name()
    }

    /// Returns one line for people. A missing sandbox is always stated.
    pub fn describe(&self) -> String {
        let is_unrestricted = self.is_off() && !self.agent_read_only;
        let policy = if is_unrestricted { "OFF" } else { self.policy.as_str() };
        format!("policy: {policy} ({})", self.enforcement())
    }
}

impl Sandbox {
    /// Returns how much of the policy was enforced, in the same words for every front end. Limits that a safeguard always has on this
    /// kernel are in `gaps` and in the documentation, and not listed here.
    pub fn enforcement(&self) -> String {
        if self.is_off() {
            let own = "no sandbox by Switchboard; the agent's own read-only mode applied";
            let none = "no sandbox: the agent had all of your permissions";
            return if self.agent_read_only { own } else { none }.to_owned();
        }
        let open: Vec<&str> =
            self.gaps.iter().filter(|gap| gap.open).map(|gap| gap.safeguard.as_str()).collect();
        match open.as_slice() {
            [] if self.has_unprotected_paths() => "enforced in part: protected paths".to_owned(),
            [] => "fully enforced".to_owned(),
            open => format!("NOT enforced: {}", open.join(", ")),
        }
    }

    /// Returns whether a protected path was a link, a path could not be quarantined, or a directory could not be examined.
    pub fn has_unprotected_paths(&self) -> bool {
        let protected = SafeguardName::ProtectedPaths.to_string();
        self.gaps.iter().any(|gap| gap.safeguard == protected)
            || self.quarantined.iter().any(|path| path.moved_to.is_none())
    }

    /// Returns notes for the user, one per line: quarantined paths, protected paths that are links, a read-only repository, and commits
    /// without hooks or signatures.
    pub fn notes(&self) -> Vec<String> {
        let quarantined = self.quarantined.iter().map(|QuarantinedPath { path, moved_to, unexamined }| match moved_to {
            _ if *unexamined => {
                format!("NOT examined: {}, where files that run commands later may have been created; inspect it", shell_word(path))
            }
            Some(moved_to) => {
                let (from, to) = (shell_word(moved_to), shell_word(path));
                format!(
                    "quarantined: {to}, which could run commands later; restore it with `mv -nT {from} {to}`"
                )
            }
            None => {
                format!("NOT quarantined: {}, which could run commands later; inspect it", shell_word(path))
            }
        });
        // The policy line lists unenforced safeguards. A link in the workspace is for the user to replace.
        let protected = SafeguardName::ProtectedPaths.to_string();
        let links = self.gaps.iter().filter(|gap| !gap.open && gap.safeguard == protected);
        let links = links.map(|gap| format!("protected paths: {}", one_line(&gap.why)));
        let git = self.git_read_only.iter().map(|why| format!("git: read-only, {}", one_line(why)));
        let commits =
            |number: u32| if number == 1 { "1 commit".to_owned() } else { format!("{number} commits") };
        let hooks = (self.commits_without_hooks > 0).then(|| {
            let number = commits(self.commits_without_hooks);
            format!("git: hooks did not run for {number}; they run only in a trusted workspace")
        });
        let unsigned = (self.unsigned_commits > 0).then(|| {
            format!("git: {} not signed, since the sandbox hides your keys", commits(self.unsigned_commits))
        });
        quarantined.chain(links).chain(git).chain(hooks).chain(unsigned).collect()
    }
}

/// Returns a note about a policy that is stricter than the requested one.
pub fn ceiling_note(asked: Preset, policy: &str) -> Option<String> {
    (asked.name() != policy).then(|| {
        format!(
            "the policy is `{policy}`, not `{asked}`: `sandbox.ceiling` of the configuration allows no more"
        )
    })
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature serde asks for")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Quotes a path for a shell if necessary.
fn shell_word(path: &Path) -> String {
    let text = exact_path::show_path(path);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+@,:=".contains(c);
    if text.chars().all(is_plain) || Path::new(&text) != path {
        text
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// Escapes control characters: a path in a message may contain a newline.
fn one_line(text: &str) -> String {
    let shown = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(shown).collect()
}

impl From<&SandboxReport> for Sandbox {
    fn from(report: &SandboxReport) -> Self {
        let SandboxReport::Confined(confined) = report else {
            let policy = Preset::Off.to_string();
            return Self {
                policy,
                gaps: Vec::new(),
                agent_read_only: false,
                self_test_blocked: 0,
                refused_hosts: Vec::new(),
                quarantined: Vec::new(),
                git_read_only: None,
                commits_without_hooks: 0,
                unsigned_commits: 0,
            };
        };
        let gap = |gap: &Safeguard| Gap {
            safeguard: gap.name.to_string(),
            open: gap.enforcement == Enforcement::None,
            why: gap.why.clone(),
        };
        let stopped = |proof: &Proof| proof.escapes.iter().filter(|way| way.stopped).count();
        Self {
            policy: confined.policy.preset.to_string(),
            gaps: confined.gaps().map(gap).collect(),
            agent_read_only: false,
            self_test_blocked: confined.proof.as_ref().map(stopped).unwrap_or_default(),
            refused_hosts: confined.refused_hosts.clone(),
            quarantined: confined.quarantined.iter().map(QuarantinedPath::from).collect(),
            git_read_only: confined.git_read_only.clone(),
            commits_without_hooks: confined.commits_without_hooks,
            unsigned_commits: confined.unsigned_commits,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn quarantined_path_is_named_with_the_command_that_restores_it() {
        let moved = |path: &str, to: Option<&str>| QuarantinedPath {
            path: path.into(),
            moved_to: to.map(PathBuf::from),
            unexamined: false,
        };
        let locked = QuarantinedPath { unexamined: true, ..moved("/ws/locked", None) };
        let sandbox = Sandbox {
            quarantined: vec![
                moved("/ws/.envrc", Some("/jobs/1/a b/it's")),
                moved("/ws/.claude", None),
                locked,
            ],
            git_read_only: Some("it belongs to another user".to_owned()),
            commits_without_hooks: 2,
            unsigned_commits: 1,
            ..Sandbox::from(&SandboxReport::Off)
        };
        let expected = [
            r"quarantined: /ws/.envrc, which could run commands later; restore it with `mv -nT '/jobs/1/a b/it'\''s' /ws/.envrc`",
            "NOT quarantined: /ws/.claude, which could run commands later; inspect it",
            "NOT examined: /ws/locked, where files that run commands later may have been created; inspect it",
            "git: read-only, it belongs to another user",
            "git: hooks did not run for 2 commits; they run only in a trusted workspace",
            "git: 1 commit not signed, since the sandbox hides your keys",
        ];
        assert_eq!(sandbox.notes(), expected);
    }

    #[test]
    fn control_characters_in_a_path_forge_no_note() {
        let path = PathBuf::from(OsStr::from_bytes(b"/ws/a\nnote: all is well\x1b[2K\xff/.git"));
        let moved = QuarantinedPath { path: path.clone(), moved_to: Some(path), unexamined: false };
        let sandbox = Sandbox {
            quarantined: vec![moved],
            git_read_only: Some("`/ws/a\nnote: b` is hidden".to_owned()),
            ..Sandbox::from(&SandboxReport::Off)
        };
        let shown = r"$'/ws/a\x0anote: all is well\x1b[2K\xff/.git'";
        let expected = [
            format!(
                "quarantined: {shown}, which could run commands later; restore it with `mv -nT {shown} {shown}`"
            ),
            r"git: read-only, `/ws/a\nnote: b` is hidden".to_owned(),
        ];
        assert_eq!(sandbox.notes(), expected);
        let json = serde_json::to_string(&sandbox).unwrap();
        assert_eq!(serde_json::from_str::<Sandbox>(&json).unwrap(), sandbox);
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test may")]
    fn bash_reads_a_quoted_path_as_it_is() {
        for name in ["a b", "it's", "$'x'", "a\nb\\x41\u{1b}", "\u{e4}\u{202e}"]
            .map(str::as_bytes)
            .into_iter()
            .chain([b"\xff\n\xfe'1".as_slice()])
        {
            let path = Path::new(OsStr::from_bytes(name));
            let script = format!("printf %s {}", shell_word(path));
            let printed = Command::new("bash").args(["-c", &script]).output().unwrap();
            assert_eq!(printed.stdout, name, "{script}");
        }
    }

    #[test]
    fn unexamined_directory_is_not_full_enforcement() {
        let mut sandbox = Sandbox { policy: "workspace".to_owned(), ..Sandbox::from(&SandboxReport::Off) };
        assert_eq!(sandbox.describe(), "policy: workspace (fully enforced)");
        sandbox.quarantined = vec![QuarantinedPath { path: "/ws".into(), moved_to: None, unexamined: true }];
        assert_eq!(sandbox.describe(), "policy: workspace (enforced in part: protected paths)");
    }

    #[test]
    fn agents_own_read_only_mode_is_stated_without_a_sandbox() {
        let line = |agent, mode| {
            let call = CallSpec { mode, ..CallSpec::new(agent, "look", "/ws") };
            Sandbox::from(&SandboxReport::Off).for_call(&call).describe()
        };
        let unrestricted = "policy: OFF (no sandbox: the agent had all of your permissions)";
        assert_eq!(line(AgentKind::Claude, Mode::Execute), unrestricted);
        assert_eq!(line(AgentKind::Rehearsal, Mode::Observe), unrestricted);
        assert_eq!(
            line(AgentKind::Claude, Mode::Observe),
            "policy: off (no sandbox by Switchboard; the agent's own read-only mode applied)"
        );
    }

    #[test]
    fn self_test_count_of_an_older_record_is_read() {
        let old = r#"{"policy":"workspace","ways_out_stopped":15}"#;
        assert_eq!(serde_json::from_str::<Sandbox>(old).unwrap().self_test_blocked, 15);
    }
}
