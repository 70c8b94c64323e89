//! All known ways out of the workspace, and all irregular files.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::json;

use crate::harness::{Harness, SECRET};

crate::tests![
    path_out_of_workspace_is_rejected_by_every_verb,
    link_out_of_workspace_is_rejected_by_every_verb,
    links_within_workspace_are_followed,
    link_cycle_is_rejected,
    hard_linked_file_is_neither_read_nor_written,
    hard_links_can_be_allowed,
    fifo_socket_and_device_are_rejected,
    sparse_20_gb_file_is_rejected_immediately,
    path_length_is_limited,
    nul_in_a_path_is_rejected,
    other_file_system_is_rejected,
    rejection_reveals_nothing_about_the_outside,
];

/// Applies every verb to a path. None may succeed.
#[track_caller]
fn refuse_all(harness: &Harness, path: &str, code: &str) {
    let before = harness.inventory();
    for request in [
        json!({"verb": "read", "path": path}),
        json!({"verb": "write", "path": path, "content": "x"}),
        json!({"verb": "create", "path": format!("{path}/below"), "content": "x"}),
        json!({"verb": "patch", "path": path, "edits": [{"find": "s", "replace": "x"}]}),
        json!({"verb": "delete", "path": format!("{path}/below")}),
        json!({"verb": "move", "from": format!("{path}/below"), "to": "stolen.txt"}),
        json!({"verb": "move", "from": "a.txt", "to": format!("{path}/below")}),
        json!({"verb": "list", "path": path}),
        json!({"verb": "search", "regex": ".", "path": path}),
        json!({"verb": "stat", "path": format!("{path}/below")}),
    ] {
        let told = harness.json(&request);
        assert_eq!(told.refused(), code, "{request}: {told}");
    }
    assert_eq!(harness.inventory(), before);
    assert_eq!(fs::read_to_string(harness.secret()).unwrap(), SECRET);
    assert_eq!(fs::read_dir(harness.outside()).unwrap().count(), 1, "nothing new outside");
}

fn path_out_of_workspace_is_rejected_by_every_verb() {
    let harness = Harness::new();
    fs::create_dir(harness.at("sub")).unwrap();
    let sibling = format!("{}-other/x", harness.workspace().display());
    let secret = harness.secret();
    for path in [
        "../outside/secret.txt",
        "sub/../../outside/secret.txt",
        "sub/../sub/../../outside/secret.txt",
        "./../outside/secret.txt",
        "sub//..//../outside/secret.txt",
        "/etc/passwd",
        "/proc/self/root/etc/passwd",
        "//etc/passwd",
        secret.to_str().unwrap(),
        &sibling,
    ] {
        refuse_all(&harness, path, "path_outside_workspace");
    }
    for escaped in [r"$'../outside/secret.txt'", r"$'\x2e\x2e/outside/secret.txt'", r"$'\x2fetc/passwd'"] {
        assert_eq!(harness.run(["read", escaped]).refused(), "path_outside_workspace", "{escaped}");
    }
}

fn link_out_of_workspace_is_rejected_by_every_verb() {
    let harness = Harness::new();
    fs::create_dir(harness.at("sub")).unwrap();
    symlink(harness.secret(), harness.at("absolute")).unwrap();
    symlink("../outside/secret.txt", harness.at("relative")).unwrap();
    symlink("sub/../../outside/secret.txt", harness.at("winding")).unwrap();
    symlink("relative", harness.at("chained")).unwrap();
    symlink(harness.outside(), harness.at("directory")).unwrap();
    symlink("..", harness.at("up")).unwrap();
    symlink("/proc/self/root", harness.at("magic")).unwrap();
    symlink("/proc/self/cwd", harness.at("magic2")).unwrap();
    for path in [
        "absolute",
        "relative",
        "winding",
        "chained",
        "directory/secret.txt",
        "up/outside/secret.txt",
        "magic/etc/passwd",
        "magic2/x",
    ] {
        refuse_all(&harness, path, "path_outside_workspace");
    }
    let found = harness.run(["search", "secret"]).answer();
    assert_eq!(found["matches"], json!([]), "a walk goes through no link");
}

fn links_within_workspace_are_followed() {
    let harness = Harness::new();
    harness.put("deep/er/b.txt", "b");
    symlink("deep/er", harness.at("short")).unwrap();
    symlink("../../a.txt", harness.at("deep/er/up")).unwrap();
    assert_eq!(harness.run(["read", "short/b.txt"]).answer()["path"], "deep/er/b.txt");
    assert_eq!(harness.run(["read", "short/up"]).answer()["path"], "a.txt");
    assert_eq!(harness.run(["read", "short/../er/b.txt"]).answer()["path"], "deep/er/b.txt");
    assert_eq!(harness.run(["list", "short"]).answer()["entries"][0]["path"], "deep/er/b.txt");
}

fn link_cycle_is_rejected() {
    let harness = Harness::new();
    symlink("two", harness.at("one")).unwrap();
    symlink("one", harness.at("two")).unwrap();
    symlink("self/self", harness.at("self")).unwrap();
    assert_eq!(harness.run(["read", "one"]).refused(), "not_a_regular_file");
    assert_eq!(harness.run(["write", "self/x", "--content", "x"]).refused(), "not_a_regular_file");
}

fn hard_linked_file_is_neither_read_nor_written() {
    let harness = Harness::new();
    fs::hard_link(harness.secret(), harness.at("linked")).unwrap();
    assert_eq!(harness.run(["read", "linked"]).refused(), "not_a_regular_file");
    assert_eq!(harness.run(["search", ".", "linked"]).refused(), "not_a_regular_file");
    assert_eq!(
        harness.run(["patch", "linked", "--find", "secret", "--replace", "x"]).refused(),
        "not_a_regular_file"
    );
    let found = harness.run(["search", "secret"]).answer();
    assert_eq!((&found["matches"], &found["skipped"]["hardlinked"]), (&json!([]), &json!(1)));
    harness.run(["write", "linked", "--content", "own"]).answer();
    assert_eq!(harness.text("linked"), "own");
    assert_eq!(fs::read_to_string(harness.secret()).unwrap(), SECRET, "the other name keeps its content");
}

fn hard_links_can_be_allowed() {
    let harness = Harness::new();
    fs::hard_link(harness.at("a.txt"), harness.at("again")).unwrap();
    let run = |value: &str| {
        let output = harness.command(["read", "again"]).env("FILE_TOOLS_HARDLINKS", value).output().unwrap();
        crate::harness::CommandResult { output }
    };
    assert_eq!(run("read").answer()["total_lines"], 3);
    assert_eq!(run("yes").refused(), "invalid_input");
    assert_eq!(run("").refused(), "invalid_input");
}

fn fifo_socket_and_device_are_rejected() {
    let harness = Harness::new();
    mknodat(CWD, harness.at("fifo"), FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
    let _socket = UnixListener::bind(harness.at("socket")).unwrap();
    let mut kinds = vec!["fifo", "socket"];
    // /dev/zero: reading it would never end.
    let zero = rustix::fs::makedev(1, 5);
    match mknodat(CWD, harness.at("device"), FileType::CharacterDevice, Mode::from_raw_mode(0o666), zero) {
        Ok(()) => kinds.push("device"),
        Err(refused) => eprintln!("SKIPPED the device: this user cannot make one ({refused})"),
    }
    let before = harness.inventory();
    for kind in kinds {
        assert_eq!(harness.run(["read", kind]).refused(), "not_a_regular_file", "{kind}");
        assert_eq!(harness.run(["write", kind, "--content", "x"]).refused(), "not_a_regular_file", "{kind}");
        assert_eq!(
            harness.run(["patch", kind, "--find", "x", "--replace", "y"]).refused(),
            "not_a_regular_file"
        );
        assert_eq!(harness.run(["delete", kind]).refused(), "not_a_regular_file", "{kind}");
        assert_eq!(harness.run(["move", kind, "x"]).refused(), "not_a_regular_file", "{kind}");
        assert_eq!(harness.run(["search", "x", kind]).refused(), "not_a_regular_file", "{kind}");
        assert_eq!(harness.run(["stat", kind]).answer()["type"], "other", "{kind}");
        symlink(kind, harness.at("link")).unwrap();
        assert_eq!(harness.run(["read", "link"]).refused(), "not_a_regular_file", "{kind}");
        fs::remove_file(harness.at("link")).unwrap();
    }
    harness.run(["search", "one"]).answer();
    assert_eq!(harness.inventory(), before);
}

fn sparse_20_gb_file_is_rejected_immediately() {
    let harness = Harness::new();
    let size = 20_000_000_000;
    if let Err(refused) = File::create(harness.at("sparse")).unwrap().set_len(size) {
        eprintln!("SKIPPED: no file of 20 GB can be made here ({refused})");
        return;
    }
    assert_eq!(harness.run(["read", "sparse", "--limit", "1"]).refused(), "too_large");
    assert_eq!(harness.run(["patch", "sparse", "--find", "x", "--replace", "y"]).refused(), "too_large");
    assert_eq!(harness.run(["search", "x", "sparse"]).refused(), "too_large");
    let found = harness.run(["search", "one"]).answer();
    assert_eq!((&found["skipped"]["too_large"], &found["matches"][0]["path"]), (&json!(1), &json!("a.txt")));
    assert_eq!(harness.run(["stat", "sparse"]).answer()["size"], size);
    harness.run(["write", "sparse", "--content", "small"]).answer();
    assert_eq!(harness.text("sparse"), "small");
}

fn path_length_is_limited() {
    let harness = Harness::new();
    let long = format!("{}/end.txt", vec!["n".repeat(200); 30].join("/"));
    assert!(long.len() > 6000);
    harness.run(["write", &long, "--content", "far away"]).answer();
    assert_eq!(harness.run(["read", &long]).answer()["content"], "1\tfar away");
    assert_eq!(harness.run(["search", "far"]).answer()["matches"][0]["path"], long.as_str());
    harness.run(["move", &long, "near.txt"]).answer();
    assert_eq!(harness.text("near.txt"), "far away");
    assert_eq!(harness.run(["read", &"n/".repeat(10_000)]).refused(), "invalid_input");
    assert_eq!(harness.run(["read", &"n".repeat(300)]).refused(), "invalid_input", "no name is that long");
    assert_eq!(harness.run(["read", &"../".repeat(1500)]).refused(), "path_outside_workspace");
}

fn nul_in_a_path_is_rejected() {
    let harness = Harness::new();
    for path in ["a.txt\0", "\0", "a.txt\0../../outside/secret.txt"] {
        assert_eq!(harness.json(&json!({"verb": "read", "path": path})).refused(), "invalid_input");
        assert_eq!(
            harness.json(&json!({"verb": "write", "path": path, "content": "x"})).refused(),
            "invalid_input"
        );
        assert_eq!(harness.json(&json!({"verb": "list", "path": path})).refused(), "invalid_input");
    }
    assert_eq!(harness.run(["read", r"$'a.txt\x00'"]).refused(), "invalid_input");
    harness.json(&json!({"verb": "write", "path": "nul", "content": "a\0b"})).answer();
    assert_eq!(harness.text("nul"), "a\0b", "content may have any");
}

fn other_file_system_is_rejected() {
    // A mount below the root that every machine has: /proc.
    let mut command = Harness::program();
    let output = command.args(["/", "read", "proc/self/status"]).output().unwrap();
    assert_eq!(crate::harness::CommandResult { output }.refused(), "path_outside_workspace");
}

fn rejection_reveals_nothing_about_the_outside() {
    let harness = Harness::new();
    symlink(harness.outside(), harness.at("directory")).unwrap();
    let message = |path: &str| {
        let told = harness.run(["read", path]);
        told.refused();
        String::from_utf8(told.output.stderr).unwrap().replace(path, "PATH")
    };
    assert_eq!(message("directory/secret.txt"), message("directory/nothing.txt"));
    assert_eq!(message("../outside/secret.txt"), message("../outside/nothing.txt"));
    assert_eq!(message("/etc/passwd"), message("/etc/nothing"));
}
