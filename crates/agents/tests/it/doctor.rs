//! The check of the machine, with programs that are scripts.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use agents::doctor::{
    KnownWorkspaces, Login, Lookup, check, check_agent, find_agent, find_in_path, validate_environment,
};
use agents::{Capability, Version, VersionSupport};
use model::AgentKind;

/// A folder of the test's own, gone when the test is.
struct Desk(PathBuf);

impl Desk {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("agents-doctor-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("bin")).unwrap();
        Self(folder)
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
            programs: BTreeMap::new(),
            own_directory: None,
        }
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Says a version and a help, counts how often it was asked, and shows the secrets it was given.
const CODEX: &str = r#"echo "asked $SECRET" >> "$HOME/asked"
case "$1" in
  --version) echo "codex-cli 0.166.0" ;;
  *) echo "  resume  x"; echo "  fork    x"; echo "      --output-schema <FILE>" ;;
esac"#;

#[test]
fn a_missing_agent_has_a_remedy_and_is_named_in_the_error() {
    let desk = Desk::new("missing");
    let error = validate_environment(AgentKind::Claude, &desk.lookup()).unwrap_err();
    assert_eq!(error.to_string(), "claude CLI not found in PATH");
    assert_eq!(error.hint(), "install it with `npm install -g @anthropic-ai/claude-code`");
    let checkup = check(&desk.lookup(), None);
    assert!(!checkup.any_ready());
    let findings = checkup.agents.iter().flat_map(|agent| &agent.findings).chain(&checkup.findings);
    for finding in findings {
        assert!(!finding.remedy.is_empty() && !finding.remedy.contains('\n'), "{finding:?}");
    }
}

#[test]
fn where_file_tools_is_missing_it_is_said_how_it_comes_there_and_is_found() {
    let desk = Desk::new("file-tools");
    let missing = |checkup: &agents::doctor::DoctorReport| {
        checkup.findings.iter().find(|finding| finding.problem.contains("`file-tools`")).cloned()
    };
    let finding = missing(&check(&desk.lookup(), None)).unwrap();
    assert!(finding.remedy.starts_with("install all of Switchboard (`cargo install"), "{finding:?}");
    assert!(finding.remedy.contains("`switchboard stop --now`"), "{finding:?}");
    desk.script("bin/file-tools", "true");
    assert_eq!(missing(&check(&desk.lookup(), None)), None);
}

#[test]
fn an_agent_is_asked_once_until_its_file_changes_and_sees_no_secret() {
    let desk = Desk::new("cache");
    desk.script("bin/codex", CODEX);
    fs::create_dir_all(desk.0.join(".codex")).unwrap();
    fs::write(desk.0.join(".codex/auth.json"), "{}").unwrap();
    for _ in 0..3 {
        let check = validate_environment(AgentKind::Codex, &desk.lookup()).unwrap();
        assert_eq!(check.version, Some(Version(0, 166, 0)));
        assert_eq!(check.standing, Some(VersionSupport::Tested));
        assert_eq!(check.login, Login::ByFile);
        assert!(check.capabilities.has(Capability::ForkSession));
        assert!(!check.capabilities.has(Capability::Restricted));
    }
    let asked = || fs::read_to_string(desk.0.join("asked")).unwrap();
    assert_eq!(asked(), "asked \nasked \n");
    desk.script("bin/codex", &CODEX.replace("0.166.0", "0.170.1"));
    let check = check_agent(AgentKind::Codex, &desk.lookup());
    assert_eq!(check.standing, Some(VersionSupport::Newer));
    assert!(check.is_ready(), "a newer version is a notice, no obstacle: {:?}", check.findings);
    assert_eq!(asked().lines().count(), 4);
}

#[test]
fn what_the_installed_version_lacks_is_told_before_a_call_needs_it() {
    let desk = Desk::new("lacks");
    let said = |agent: AgentKind| {
        let findings = check_agent(agent, &desk.lookup()).findings;
        findings
            .into_iter()
            .filter(|finding| !finding.blocks)
            .map(|finding| finding.problem)
            .collect::<Vec<_>>()
    };
    desk.script("bin/codex", CODEX);
    assert_eq!(said(AgentKind::Codex), Vec::<String>::new());
    desk.script("bin/codex", &CODEX.replace("fork", "sing"));
    let lacks = said(AgentKind::Codex).join("");
    assert!(lacks.contains("does not name `fork` (a fork of a session)"), "{lacks}");
    // One whose help cannot be read at all.
    desk.script(
        "bin/claude",
        "case \"$1\" in --version) echo 2.1.325;; auth) echo '{\"loggedIn\": true}';; esac",
    );
    let lacks = said(AgentKind::Claude).join("");
    assert!(lacks.contains("`--tools` (mode `observe`") && lacks.contains("`--setting-sources`"), "{lacks}");
    assert!(check_agent(AgentKind::Claude, &desk.lookup()).is_ready());
}

#[test]
fn an_agent_without_a_login_is_not_ready() {
    let desk = Desk::new("login");
    desk.script("bin/codex", CODEX);
    let error = validate_environment(AgentKind::Codex, &desk.lookup()).unwrap_err();
    assert_eq!(error.to_string(), "codex is not logged in");
    assert!(error.hint().contains("codex login"));
}

#[test]
fn claude_is_asked_whether_it_is_logged_in() {
    let desk = Desk::new("auth");
    let script = |logged_in: bool, code: u8| {
        format!(
            "case \"$1\" in --version) echo 2.1.325;; auth) echo '{{\"loggedIn\": {logged_in}}}'; exit {code};; esac"
        )
    };
    desk.script("bin/claude", &script(true, 0));
    assert_eq!(check_agent(AgentKind::Claude, &desk.lookup()).login, Login::Reported);
    desk.script("bin/claude", &script(false, 1));
    assert_eq!(check_agent(AgentKind::Claude, &desk.lookup()).login, Login::LoggedOut);
}

#[test]
fn a_program_that_fails_says_so_in_its_own_words() {
    let desk = Desk::new("fails");
    desk.script("bin/gemini", "echo 'SyntaxError: old node' >&2; exit 3");
    let error = validate_environment(AgentKind::Gemini, &desk.lookup()).unwrap_err();
    assert!(error.to_string().contains("SyntaxError: old node"), "{error}");
}

#[test]
fn version_of_gemini_leaves_nothing_in_the_home() {
    let desk = Desk::new("gemini-home");
    let leave = r#"home="${GEMINI_CLI_HOME:-$HOME}"; : > "$home/projects.json.tmp"; echo "$home" > "$PATH/seen"; echo 0.61.0"#;
    desk.script("bin/gemini", leave);
    let check = check_agent(AgentKind::Gemini, &desk.lookup());
    assert_eq!(check.version, Some(Version(0, 61, 0)));
    assert!(!desk.0.join("projects.json.tmp").exists());
    let scratch = fs::read_to_string(desk.0.join("bin/seen")).unwrap();
    assert!(scratch.contains("switchboard-probe-") && !Path::new(scratch.trim()).exists(), "{scratch}");
}

#[test]
fn the_native_program_is_found_behind_the_wrapper_of_npm() {
    let desk = Desk::new("native");
    let arch = match std::env::consts::ARCH {
        "x86_64" => "x64",
        "aarch64" => "arm64",
        other => other,
    };
    let os = if std::env::consts::OS == "macos" { "darwin" } else { std::env::consts::OS };
    let wrapper = desk.script("node_modules/@openai/codex/bin/codex.js", "");
    std::os::unix::fs::symlink(&wrapper, desk.0.join("bin/codex")).unwrap();
    let path = desk.0.join("bin").display().to_string();
    assert_eq!(find_agent(AgentKind::Codex, &path), Some(desk.0.join("bin/codex")));
    let target = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
    let native =
        desk.script(&format!("node_modules/@openai/codex-{os}-{arch}/vendor/{target}/bin/codex"), "");
    let found = find_agent(AgentKind::Codex, &path).unwrap();
    assert_eq!(found, native.canonicalize().unwrap());
}

#[test]
fn relative_entries_and_plain_files_are_passed_over() {
    let desk = Desk::new("path");
    fs::write(desk.0.join("bin/claude"), "not executable").unwrap();
    assert_eq!(find_in_path("claude", &format!(".:bin:{}", desk.0.join("bin").display())), None);
    assert!(find_in_path("sh", "/bin").is_some_and(|found| found == Path::new("/bin/sh")));
}
