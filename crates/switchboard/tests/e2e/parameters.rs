//! Errors for invalid and unsupported parameters.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use crate::harness::{Harness, TestHost, stdout};

/// Creates an installed and logged-in claude without its newer options.
fn an_old_claude(harness: &Harness) {
    let program = harness.scratch().join("claude");
    let says = "case \"$1\" in --version) echo 2.1.100;; auth) echo '{\"loggedIn\": true}';; \
                *) echo '  --setting-sources <x>'; echo '  --strict-mcp-config';; esac";
    fs::write(&program, format!("#!/bin/sh\n{says}\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    harness.configure(&format!("[programs]\nclaude = \"{}\"\n", program.display()));
}

/// Returns the error of a tool call with these arguments.
fn told(host: &mut TestHost, tool: &str, arguments: &Value) -> String {
    host.request(7, "tools/call", &json!({ "name": tool, "arguments": arguments }));
    loop {
        let message = host.receive();
        if message["id"] == 7 {
            assert_eq!(message["result"]["isError"], true, "{message}");
            return message["result"]["content"][0]["text"].as_str().unwrap().to_owned();
        }
    }
}

#[test]
fn unsupported_parameter_of_old_agent_is_named() {
    let harness = Harness::new();
    an_old_claude(&harness);
    let work = harness.scratch().join("work");
    fs::create_dir(&work).unwrap();
    let mut host = harness.bridge();
    host.initialize();
    let mut call = |field: &str, value: Value| {
        let mut arguments = json!({ "prompt": "x", "cwd": work });
        arguments[field] = value;
        let told = told(&mut host, "call_cc", &arguments);
        assert!(
            told.starts_with(&format!("error in `{field}`: the installed claude 2.1.100 does not support `")),
            "{told}"
        );
    };
    call("allowed_tools", json!([]));
    call("mode", json!("observe"));
    let doctor = stdout(&harness.run(&["doctor"]));
    assert!(
        doctor.contains("its `--help` does not list") && doctor.contains("`--tools` (mode `observe`"),
        "{doctor}"
    );
}

#[test]
fn invalid_parameter_is_named() {
    let harness = Harness::new();
    an_old_claude(&harness);
    let person = harness.scratch().join("person");
    for directory in ["work", ".ssh"] {
        fs::create_dir_all(person.join(directory)).unwrap();
    }
    let mut bridge = harness.command(&["mcp"]);
    bridge.env("HOME", &person);
    let mut host = TestHost::start(bridge);
    host.initialize();
    let mut call = |more: Value| {
        let mut arguments = json!({ "prompt": "x", "cwd": person.join("work") });
        arguments.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        told(&mut host, "call_cc", &arguments)
    };
    let nul = call(json!({ "system_prompt": "be\0brief" }));
    assert!(
        nul.starts_with("error in `system_prompt`: ") && nul.contains("contains a NUL character"),
        "{nul}"
    );
    let home = call(json!({ "cwd": "~/" }));
    assert!(home.starts_with("error in `cwd`: ") && home.contains("your home directory"), "{home}");
    let hidden = call(json!({ "cwd": person.join(".ssh") }));
    assert!(hidden.starts_with("error in `cwd`: ") && hidden.contains("is hidden from agents"), "{hidden}");
    let added = call(json!({ "add_dirs": [person] }));
    assert!(added.starts_with("error in `add_dirs`: ") && added.contains("your home directory"), "{added}");
}
