//! Environment checks, with scripts in place of programs.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use agents::AgentProfiles;
use agents::doctor::{
    KnownWorkspaces, Login, Lookup, check, check_agent, find_agent, find_in_path, find_installed,
    find_program, validate_environment,
};
use agents::{Capability, Version, VersionSupport};
use model::AgentKind;

/// A temporary directory, removed on drop.
struct Harness(PathBuf);

impl Harness {
    fn new(name: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("agents-doctor-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(directory.join("bin")).unwrap();
        Self(directory)
    }

    fn script(&self, path: &str, body: &str) -> PathBuf {
        let file = self.0.join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, format!("#!/bin/sh\n{body}\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        file
    }

    fn lookup(&self) -> Lookup {
        let path = self.0.join("bin").display().to_string();
        let inherited = [("PATH", path.as_str()), ("HOME", self.0.to_str().unwrap()), ("SECRET", "s")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
        Lookup {
            inherited: inherited.into(),
            cache_file: Some(self.0.join("cache.json")),
            excluded: Vec::new(),
            workspaces: KnownWorkspaces::default(),
            profiles: AgentProfiles::default(),
            programs: BTreeMap::new(),
            own_directory: None,
            only: None,
        }
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Prints a version and a help text, counts its calls, and prints the secrets in its environment.
const CODEX: &str = r#"echo "asked $SECRET" >> "$HOME/asked"
case "$1" in
  --version) echo "codex-cli 0.166.0" ;;
  *) echo "  resume  x"; echo "  fork    x"; echo "      --output-schema <FILE>" ;;
esac"#;

#[test]
fn missing_agent_error_has_a_remedy() {
    let harness = Harness::new("missing");
    let error = validate_environment(AgentKind::Claude, &harness.lookup()).unwrap_err();
    assert_eq!(error.to_string(), "claude CLI not found in PATH");
    assert_eq!(error.hint(), "install it with `npm install -g @anthropic-ai/claude-code`");
    let checkup = check(&harness.lookup(), None);
    assert!(!checkup.any_ready());
    let findings = checkup.agents.iter().flat_map(|agent| &agent.findings).chain(&checkup.findings);
    for finding in findings {
        assert!(!finding.remedy.is_empty() && !finding.remedy.contains('\n'), "{finding:?}");
    }
}

#[test]
fn missing_file_tools_has_a_remedy() {
    let harness = Harness::new("file-tools");
    let missing = |checkup: &agents::doctor::DoctorReport| {
        checkup.findings.iter().find(|finding| finding.problem.contains("`file-tools`")).cloned()
    };
    let finding = missing(&check(&harness.lookup(), None)).unwrap();
    assert!(finding.remedy.starts_with("install all of Switchboard (`cargo install"), "{finding:?}");
    assert!(finding.remedy.contains("`switchboard stop --now`"), "{finding:?}");
    harness.script("bin/file-tools", "true");
    assert_eq!(missing(&check(&harness.lookup(), None)), None);
}

#[test]
fn probe_is_cached_until_file_changes() {
    let harness = Harness::new("cache");
    harness.script("bin/codex", CODEX);
    fs::create_dir_all(harness.0.join(".codex")).unwrap();
    fs::write(harness.0.join(".codex/auth.json"), "{}").unwrap();
    for _ in 0..3 {
        let check = validate_environment(AgentKind::Codex, &harness.lookup()).unwrap();
        assert_eq!(check.version, Some(Version(0, 166, 0)));
        assert_eq!(check.standing, Some(VersionSupport::Tested));
        assert_eq!(check.login, Login::ByFile);
        assert!(check.capabilities.has(Capability::ForkSession));
        assert!(!check.capabilities.has(Capability::Restricted));
    }
    let asked = || fs::read_to_string(harness.0.join("asked")).unwrap();
    assert_eq!(asked(), "asked \nasked \n");
    harness.script("bin/codex", &CODEX.replace("0.166.0", "0.170.1"));
    let check = check_agent(AgentKind::Codex, &harness.lookup());
    assert_eq!(check.standing, Some(VersionSupport::Newer));
    assert!(check.is_ready(), "a newer version is a notice, no obstacle: {:?}", check.findings);
    assert_eq!(asked().lines().count(), 4);
}

#[test]
fn missing_capabilities_are_reported() {
    let harness = Harness::new("lacks");
    let said = |agent: AgentKind| {
        let findings = check_agent(agent, &harness.lookup()).findings;
        findings
            .into_iter()
            .filter(|finding| !finding.blocks)
            .map(|finding| finding.problem)
            .collect::<Vec<_>>()
    };
    harness.script("bin/codex", CODEX);
    assert_eq!(said(AgentKind::Codex), Vec::<String>::new());
    harness.script("bin/codex", &CODEX.replace("fork", "sing"));
    let lacks = said(AgentKind::Codex).join("");
    assert!(lacks.contains("does not list `fork` (a fork of a session)"), "{lacks}");
    // A program with unreadable help.
    harness.script(
        "bin/claude",
        "case \"$1\" in --version) echo 2.1.325;; auth) echo '{\"loggedIn\": true}';; esac",
    );
    let lacks = said(AgentKind::Claude).join("");
    assert!(lacks.contains("`--tools` (mode `observe`") && lacks.contains("`--setting-sources`"), "{lacks}");
    assert!(check_agent(AgentKind::Claude, &harness.lookup()).is_ready());
}

#[test]
fn agent_without_login_is_not_ready() {
    let harness = Harness::new("login");
    harness.script("bin/codex", CODEX);
    let error = validate_environment(AgentKind::Codex, &harness.lookup()).unwrap_err();
    assert_eq!(error.to_string(), "codex is not logged in");
    assert!(error.hint().contains("codex login"));
}

#[test]
fn claude_login_is_queried() {
    let harness = Harness::new("auth");
    let script = |logged_in: bool, code: u8| {
        format!(
            "case \"$1\" in --version) echo 2.1.325;; auth) echo '{{\"loggedIn\": {logged_in}}}'; exit {code};; esac"
        )
    };
    harness.script("bin/claude", &script(true, 0));
    assert_eq!(check_agent(AgentKind::Claude, &harness.lookup()).login, Login::Reported);
    harness.script("bin/claude", &script(false, 1));
    assert_eq!(check_agent(AgentKind::Claude, &harness.lookup()).login, Login::LoggedOut);
}

#[test]
fn failed_probe_reports_program_output() {
    let harness = Harness::new("fails");
    harness.script("bin/gemini", "echo 'SyntaxError: old node' >&2; exit 3");
    let error = validate_environment(AgentKind::Gemini, &harness.lookup()).unwrap_err();
    assert!(error.to_string().contains("SyntaxError: old node"), "{error}");
}

#[test]
fn gemini_probe_leaves_home_untouched() {
    let harness = Harness::new("gemini-home");
    let leave = r#"home="${GEMINI_CLI_HOME:-$HOME}"; : > "$home/projects.json.tmp"; echo "$home" > "$PATH/seen"; echo 0.61.0"#;
    harness.script("bin/gemini", leave);
    let check = check_agent(AgentKind::Gemini, &harness.lookup());
    assert_eq!(check.version, Some(Version(0, 61, 0)));
    assert!(!harness.0.join("projects.json.tmp").exists());
    let scratch = fs::read_to_string(harness.0.join("bin/seen")).unwrap();
    assert!(scratch.contains("switchboard-probe-") && !Path::new(scratch.trim()).exists(), "{scratch}");
}

#[test]
fn native_program_is_found_behind_npm_launcher() {
    let harness = Harness::new("native");
    let arch = match std::env::consts::ARCH {
        "x86_64" => "x64",
        "aarch64" => "arm64",
        other => other,
    };
    let os = if std::env::consts::OS == "macos" { "darwin" } else { std::env::consts::OS };
    let wrapper = harness.script("node_modules/@openai/codex/bin/codex.js", "");
    std::os::unix::fs::symlink(&wrapper, harness.0.join("bin/codex")).unwrap();
    let path = harness.0.join("bin").display().to_string();
    let profiles = AgentProfiles::default();
    let codex = profiles.get(AgentKind::Codex).unwrap();
    assert_eq!(find_agent(codex, &path), Some(harness.0.join("bin/codex")));
    let target = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
    let native =
        harness.script(&format!("node_modules/@openai/codex-{os}-{arch}/vendor/{target}/bin/codex"), "");
    let found = find_agent(codex, &path).unwrap();
    assert_eq!(found, native.canonicalize().unwrap());
}

#[test]
fn path_search_skips_relative_entries_and_plain_files() {
    let harness = Harness::new("path");
    fs::write(harness.0.join("bin/claude"), "not executable").unwrap();
    assert_eq!(find_in_path("claude", &format!(".:bin:{}", harness.0.join("bin").display())), None);
    assert!(find_in_path("sh", "/bin").is_some_and(|found| found == Path::new("/bin/sh")));
}

#[test]
fn program_of_a_call_is_outside_of_all_workspaces() {
    let harness = Harness::new("workspaces");
    let [work, earlier, links] = ["home/work", "home/earlier", "home/links"].map(|name| harness.0.join(name));
    for directory in [&work, &earlier] {
        harness.script(directory.join("codex").to_str().unwrap(), CODEX);
    }
    fs::create_dir(&links).unwrap();
    let mut lookup = harness.lookup();
    lookup.remember_workspaces([&earlier]);
    let mut find = |directories: &[&Path]| {
        let path = directories.iter().map(|directory| directory.to_str().unwrap()).collect::<Vec<_>>();
        lookup.inherited.insert("PATH".to_owned(), path.join(":"));
        let found = find_program(AgentKind::Codex, &lookup, [&work]);
        let installed = find_installed(AgentKind::Codex, &lookup.clone().excluding_workspaces([&work]));
        assert_eq!(found, installed.program);
        found
    };
    let bin = harness.0.join("bin");
    assert_eq!(find(&[&work, &earlier, &bin]), None);
    let program = harness.script("bin/codex", CODEX);
    assert_eq!(find(&[&work, &earlier, Path::new("bin"), &links, &bin]), Some(program));
    std::os::unix::fs::symlink(earlier.join("codex"), links.join("codex")).unwrap();
    assert_eq!(find(&[&links, &bin]), None, "the link is the program of the user");
}
