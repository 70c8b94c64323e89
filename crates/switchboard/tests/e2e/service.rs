//! `switchboard setup service`: the service managers accept the printed files.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};

use crate::harness::{Harness, stderr, stdout};

const PROGRAM: &str = env!("CARGO_BIN_EXE_switchboard");

/// Returns the output of `switchboard setup service` for a user with these programs.
fn printed(harness: &Harness, flags: &[&str]) -> String {
    let output = harness
        .command(&[&["setup", "service"], flags].concat())
        .env("PATH", "/opt/agents:/bin")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    stdout(&output)
}

/// Parses the `[Service]` section. Repeated keys are joined.
fn service(unit: &str) -> BTreeMap<&str, String> {
    let section = unit.split("[Service]\n").nth(1).unwrap().split("\n[").next().unwrap();
    let mut keys: BTreeMap<&str, String> = BTreeMap::new();
    for line in section.lines().filter(|line| !line.starts_with('#')) {
        let Some((key, value)) = line.split_once('=') else { continue };
        keys.entry(key).and_modify(|all| *all += " ").or_default().push_str(value);
    }
    keys
}

#[test]
fn systemd_unit_keeps_runs_on_restart() {
    let harness = Harness::new();
    let unit = printed(&harness, &[]);
    assert_eq!(unit, printed(&harness, &["--systemd"]), "systemd is what is meant where nothing is said");
    let service = service(&unit);
    assert_eq!(service["ExecStart"], format!("\"{PROGRAM}\" serve"));
    assert_eq!(service["KillMode"], "process", "anything else ends the supervisors with the daemon");
    assert_eq!(service["Restart"], "on-failure");
    assert_eq!(
        service["RestartPreventExitStatus"], "6",
        "as `switchboard serve` says that there is one already"
    );
    let home = harness.home.display();
    assert_eq!(
        service["Environment"],
        format!("\"PATH=/opt/agents:/bin\" \"SWITCHBOARD_HOME={home}\""),
        "the daemon looks for agents and for its state where the front-ends do"
    );
}

#[test]
fn systemd_accepts_the_unit() {
    let harness = Harness::new();
    let file = harness.scratch().join("switchboard.service");
    fs::write(&file, printed(&harness, &["--systemd"])).unwrap();
    let verify = Command::new("systemd-analyze")
        .args(["verify", "--user", "--man=no", "--recursive-errors=no"])
        .arg(&file)
        .env("XDG_RUNTIME_DIR", harness.scratch())
        .stdin(Stdio::null())
        .output();
    let Ok(verify) = verify else {
        println!("skipped: systemd-analyze is not here");
        return;
    };
    let said = stderr(&verify);
    let about_it: Vec<&str> = said.lines().filter(|line| line.contains("switchboard.service")).collect();
    assert!(verify.status.success() && about_it.is_empty(), "{said}");
}

#[test]
fn launchd_plist_keeps_runs_on_restart() {
    let harness = Harness::new();
    let read = plist::Value::from_reader_xml(printed(&harness, &["--launchd"]).as_bytes()).unwrap();
    let read = read.as_dictionary().unwrap();
    let words: Vec<_> =
        read["ProgramArguments"].as_array().unwrap().iter().map(|word| word.as_string().unwrap()).collect();
    assert_eq!(words, [PROGRAM, "serve"]);
    assert_eq!(read["AbandonProcessGroup"].as_boolean(), Some(true));
    assert_eq!(read["KeepAlive"].as_dictionary().unwrap()["SuccessfulExit"].as_boolean(), Some(false));
    let variables = read["EnvironmentVariables"].as_dictionary().unwrap();
    assert_eq!(variables["SWITCHBOARD_HOME"].as_string(), harness.home.to_str());
}

#[test]
fn service_options_are_exclusive() {
    let harness = Harness::new();
    for wrong in
        [&["setup", "service", "--systemd", "--launchd"][..], &["setup"], &["setup", "claude", "service"]]
    {
        assert_eq!(harness.run(wrong).status.code(), Some(2), "{wrong:?}");
    }
}
