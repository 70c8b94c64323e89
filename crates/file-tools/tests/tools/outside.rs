//! All known ways out of the workspace, and all irregular files.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::json;

use crate::desk::{Desk, SECRET};

crate::tests![
    no_path_leads_out_for_any_verb,
    no_link_leads_out_for_any_verb,
    links_that_stay_inside_are_followed,
    links_in_a_circle_end,
    a_file_with_a_second_name_is_not_read_and_not_written_through,
    the_operator_can_allow_second_names,
    a_fifo_a_socket_and_a_device_are_no_files,
    a_sparse_file_of_20_gb_is_refused_at_once,
    a_path_of_6_kb_works_and_one_of_20_kb_is_refused,
    nul_is_refused,
    another_file_system_is_outside,
    a_refusal_tells_nothing_about_what_is_outside,
];

/// Applies every verb to a path. None may succeed.
#[track_caller]
fn refuse_all(desk: &Desk, path: &str, code: &str) {
    let before = desk.inventory();
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
        let told = desk.json(&request);
        assert_eq!(told.refused(), code, "{request}: {told}");
    }
    assert_eq!(desk.inventory(), before);
    assert_eq!(fs::read_to_string(desk.secret()).unwrap(), SECRET);
    assert_eq!(fs::read_dir(desk.outside()).unwrap().count(), 1, "nothing new outside");
}

fn no_path_leads_out_for_any_verb() {
    let desk = Desk::new();
    fs::create_dir(desk.at("sub")).unwrap();
    let sibling = format!("{}-other/x", desk.workspace().display());
    let secret = desk.secret();
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
        refuse_all(&desk, path, "path_outside_workspace");
    }
    for escaped in [r"$'../outside/secret.txt'", r"$'\x2e\x2e/outside/secret.txt'", r"$'\x2fetc/passwd'"] {
        assert_eq!(desk.run(["read", escaped]).refused(), "path_outside_workspace", "{escaped}");
    }
}

fn no_link_leads_out_for_any_verb() {
    let desk = Desk::new();
    fs::create_dir(desk.at("sub")).unwrap();
    symlink(desk.secret(), desk.at("absolute")).unwrap();
    symlink("../outside/secret.txt", desk.at("relative")).unwrap();
    symlink("sub/../../outside/secret.txt", desk.at("winding")).unwrap();
    symlink("relative", desk.at("chained")).unwrap();
    symlink(desk.outside(), desk.at("folder")).unwrap();
    symlink("..", desk.at("up")).unwrap();
    symlink("/proc/self/root", desk.at("magic")).unwrap();
    symlink("/proc/self/cwd", desk.at("magic2")).unwrap();
    for path in [
        "absolute",
        "relative",
        "winding",
        "chained",
        "folder/secret.txt",
        "up/outside/secret.txt",
        "magic/etc/passwd",
        "magic2/x",
    ] {
        refuse_all(&desk, path, "path_outside_workspace");
    }
    let found = desk.run(["search", "secret"]).answer();
    assert_eq!(found["matches"], json!([]), "a walk goes through no link");
}

fn links_that_stay_inside_are_followed() {
    let desk = Desk::new();
    desk.put("deep/er/b.txt", "b");
    symlink("deep/er", desk.at("short")).unwrap();
    symlink("../../a.txt", desk.at("deep/er/up")).unwrap();
    assert_eq!(desk.run(["read", "short/b.txt"]).answer()["path"], "deep/er/b.txt");
    assert_eq!(desk.run(["read", "short/up"]).answer()["path"], "a.txt");
    assert_eq!(desk.run(["read", "short/../er/b.txt"]).answer()["path"], "deep/er/b.txt");
    assert_eq!(desk.run(["list", "short"]).answer()["entries"][0]["path"], "deep/er/b.txt");
}

fn links_in_a_circle_end() {
    let desk = Desk::new();
    symlink("two", desk.at("one")).unwrap();
    symlink("one", desk.at("two")).unwrap();
    symlink("self/self", desk.at("self")).unwrap();
    assert_eq!(desk.run(["read", "one"]).refused(), "not_a_regular_file");
    assert_eq!(desk.run(["write", "self/x", "--content", "x"]).refused(), "not_a_regular_file");
}

fn a_file_with_a_second_name_is_not_read_and_not_written_through() {
    let desk = Desk::new();
    fs::hard_link(desk.secret(), desk.at("linked")).unwrap();
    assert_eq!(desk.run(["read", "linked"]).refused(), "not_a_regular_file");
    assert_eq!(desk.run(["search", ".", "linked"]).refused(), "not_a_regular_file");
    assert_eq!(
        desk.run(["patch", "linked", "--find", "secret", "--replace", "x"]).refused(),
        "not_a_regular_file"
    );
    let found = desk.run(["search", "secret"]).answer();
    assert_eq!((&found["matches"], &found["skipped"]["hardlinked"]), (&json!([]), &json!(1)));
    desk.run(["write", "linked", "--content", "own"]).answer();
    assert_eq!(desk.text("linked"), "own");
    assert_eq!(fs::read_to_string(desk.secret()).unwrap(), SECRET, "the other name keeps its content");
}

fn the_operator_can_allow_second_names() {
    let desk = Desk::new();
    fs::hard_link(desk.at("a.txt"), desk.at("again")).unwrap();
    let run = |value: &str| {
        let output = desk.command(["read", "again"]).env("FILE_TOOLS_HARDLINKS", value).output().unwrap();
        crate::desk::Told { output }
    };
    assert_eq!(run("read").answer()["total_lines"], 3);
    assert_eq!(run("yes").refused(), "invalid_input");
    assert_eq!(run("").refused(), "invalid_input");
}

fn a_fifo_a_socket_and_a_device_are_no_files() {
    let desk = Desk::new();
    mknodat(CWD, desk.at("fifo"), FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
    let _socket = UnixListener::bind(desk.at("socket")).unwrap();
    let mut kinds = vec!["fifo", "socket"];
    // /dev/zero: reading it would never end.
    let zero = rustix::fs::makedev(1, 5);
    match mknodat(CWD, desk.at("device"), FileType::CharacterDevice, Mode::from_raw_mode(0o666), zero) {
        Ok(()) => kinds.push("device"),
        Err(refused) => eprintln!("SKIPPED the device: this user cannot make one ({refused})"),
    }
    let before = desk.inventory();
    for kind in kinds {
        assert_eq!(desk.run(["read", kind]).refused(), "not_a_regular_file", "{kind}");
        assert_eq!(desk.run(["write", kind, "--content", "x"]).refused(), "not_a_regular_file", "{kind}");
        assert_eq!(
            desk.run(["patch", kind, "--find", "x", "--replace", "y"]).refused(),
            "not_a_regular_file"
        );
        assert_eq!(desk.run(["delete", kind]).refused(), "not_a_regular_file", "{kind}");
        assert_eq!(desk.run(["move", kind, "x"]).refused(), "not_a_regular_file", "{kind}");
        assert_eq!(desk.run(["search", "x", kind]).refused(), "not_a_regular_file", "{kind}");
        assert_eq!(desk.run(["stat", kind]).answer()["type"], "other", "{kind}");
        symlink(kind, desk.at("link")).unwrap();
        assert_eq!(desk.run(["read", "link"]).refused(), "not_a_regular_file", "{kind}");
        fs::remove_file(desk.at("link")).unwrap();
    }
    desk.run(["search", "one"]).answer();
    assert_eq!(desk.inventory(), before);
}

fn a_sparse_file_of_20_gb_is_refused_at_once() {
    let desk = Desk::new();
    let size = 20_000_000_000;
    if let Err(refused) = File::create(desk.at("sparse")).unwrap().set_len(size) {
        eprintln!("SKIPPED: no file of 20 GB can be made here ({refused})");
        return;
    }
    assert_eq!(desk.run(["read", "sparse", "--limit", "1"]).refused(), "too_large");
    assert_eq!(desk.run(["patch", "sparse", "--find", "x", "--replace", "y"]).refused(), "too_large");
    assert_eq!(desk.run(["search", "x", "sparse"]).refused(), "too_large");
    let found = desk.run(["search", "one"]).answer();
    assert_eq!((&found["skipped"]["too_large"], &found["matches"][0]["path"]), (&json!(1), &json!("a.txt")));
    assert_eq!(desk.run(["stat", "sparse"]).answer()["size"], size);
    desk.run(["write", "sparse", "--content", "small"]).answer();
    assert_eq!(desk.text("sparse"), "small");
}

fn a_path_of_6_kb_works_and_one_of_20_kb_is_refused() {
    let desk = Desk::new();
    let long = format!("{}/end.txt", vec!["n".repeat(200); 30].join("/"));
    assert!(long.len() > 6000);
    desk.run(["write", &long, "--content", "far away"]).answer();
    assert_eq!(desk.run(["read", &long]).answer()["content"], "1\tfar away");
    assert_eq!(desk.run(["search", "far"]).answer()["matches"][0]["path"], long.as_str());
    desk.run(["move", &long, "near.txt"]).answer();
    assert_eq!(desk.text("near.txt"), "far away");
    assert_eq!(desk.run(["read", &"n/".repeat(10_000)]).refused(), "invalid_input");
    assert_eq!(desk.run(["read", &"n".repeat(300)]).refused(), "invalid_input", "no name is that long");
    assert_eq!(desk.run(["read", &"../".repeat(1500)]).refused(), "path_outside_workspace");
}

fn nul_is_refused() {
    let desk = Desk::new();
    for path in ["a.txt\0", "\0", "a.txt\0../../outside/secret.txt"] {
        assert_eq!(desk.json(&json!({"verb": "read", "path": path})).refused(), "invalid_input");
        assert_eq!(
            desk.json(&json!({"verb": "write", "path": path, "content": "x"})).refused(),
            "invalid_input"
        );
        assert_eq!(desk.json(&json!({"verb": "list", "path": path})).refused(), "invalid_input");
    }
    assert_eq!(desk.run(["read", r"$'a.txt\x00'"]).refused(), "invalid_input");
    desk.json(&json!({"verb": "write", "path": "nul", "content": "a\0b"})).answer();
    assert_eq!(desk.text("nul"), "a\0b", "content may have any");
}

fn another_file_system_is_outside() {
    // A mount below the root that every machine has: /proc.
    let mut command = Desk::program();
    let output = command.args(["/", "read", "proc/self/status"]).output().unwrap();
    assert_eq!(crate::desk::Told { output }.refused(), "path_outside_workspace");
}

fn a_refusal_tells_nothing_about_what_is_outside() {
    let desk = Desk::new();
    symlink(desk.outside(), desk.at("folder")).unwrap();
    let message = |path: &str| {
        let told = desk.run(["read", path]);
        told.refused();
        String::from_utf8(told.output.stderr).unwrap().replace(path, "PATH")
    };
    assert_eq!(message("folder/secret.txt"), message("folder/nothing.txt"));
    assert_eq!(message("../outside/secret.txt"), message("../outside/nothing.txt"));
    assert_eq!(message("/etc/passwd"), message("/etc/nothing"));
}
