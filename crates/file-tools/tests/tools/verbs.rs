//! Each verb in ordinary use.

use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use serde_json::json;

use crate::harness::Harness;

crate::tests![
    read_reports_encoding_and_line_endings,
    write_replaces_a_file_and_keeps_its_mode,
    write_creates_missing_directories,
    write_to_a_directory_is_rejected,
    write_through_a_link_changes_its_target,
    create_rejects_an_existing_file,
    failed_patch_leaves_the_file_unchanged,
    patch_preserves_bytes_and_mode,
    patch_reports_the_failure_reason,
    delete_removes_files_and_links_only,
    move_renames_without_replacing,
    list_shows_a_directory_and_matches_globs,
    stat_reports_the_type_of_a_path,
    files_and_directories_are_distinguished,
    escaped_non_utf8_name_is_accepted_again,
];

fn read_reports_encoding_and_line_endings() {
    let harness = Harness::new();
    harness.put("latin", b"caf\xe9\r\n");
    harness.put("binary", b"\x7fELF\0\x01");
    harness.put("empty", "");
    let latin = harness.run(["read", "latin"]).answer();
    assert_eq!((&latin["encoding"], &latin["line_endings"]), (&json!("not utf-8"), &json!("crlf")));
    let binary = harness.run(["read", "binary"]).answer();
    assert_eq!(
        (&binary["encoding"], &binary["content"], &binary["size"]),
        (&json!("binary"), &json!(null), &json!(6))
    );
    assert_eq!(harness.run(["read", "empty"]).answer()["total_lines"], 0);
    let inside = harness.at("a.txt");
    assert_eq!(
        harness.run(["read", inside.to_str().unwrap()]).answer()["path"],
        "a.txt",
        "absolute and below"
    );
}

fn write_replaces_a_file_and_keeps_its_mode() {
    let harness = Harness::new();
    fs::set_permissions(harness.at("a.txt"), Permissions::from_mode(0o640)).unwrap();
    assert_eq!(harness.run(["write", "a.txt", "--content", "new"]).answer()["created"], false);
    assert_eq!(harness.text("a.txt"), "new");
    assert_eq!(fs::metadata(harness.at("a.txt")).unwrap().permissions().mode() & 0o7777, 0o640);
}

fn write_creates_missing_directories() {
    let harness = Harness::new();
    assert_eq!(harness.run(["write", "x/y/z.txt", "--content", "deep"]).answer()["created"], true);
    assert_eq!(harness.text("x/y/z.txt"), "deep");
    assert_eq!(harness.inventory().iter().filter(|line| line.contains(".tmp")).count(), 0);
}

fn write_to_a_directory_is_rejected() {
    let harness = Harness::new();
    harness.put("x/y/z.txt", "deep");
    assert_eq!(harness.run(["write", "x/y", "--content", ""]).refused(), "is_directory");
    assert_eq!(harness.run(["write", "x/new/", "--content", ""]).refused(), "is_directory");
    assert_eq!(harness.run(["write", "a.txt/b", "--content", ""]).refused(), "not_a_directory");
}

fn write_through_a_link_changes_its_target() {
    let harness = Harness::new();
    symlink("a.txt", harness.at("link")).unwrap();
    assert_eq!(harness.run(["write", "link", "--content", "new"]).answer()["path"], "a.txt");
    assert_eq!(harness.text("a.txt"), "new");
    assert!(fs::symlink_metadata(harness.at("link")).unwrap().is_symlink());
}

fn create_rejects_an_existing_file() {
    let harness = Harness::new();
    symlink("nowhere", harness.at("dangling")).unwrap();
    fs::create_dir(harness.at("directory")).unwrap();
    for there in ["a.txt", "dangling", "directory"] {
        assert_eq!(harness.run(["create", there, "--content", "x"]).refused(), "already_exists", "{there}");
    }
    assert_eq!(harness.text("a.txt"), "one\ntwo\nthree\n");
    assert_eq!(harness.run(["create", "b/c.txt", "--content", "x"]).answer()["created"], true);
}

fn failed_patch_leaves_the_file_unchanged() {
    let harness = Harness::new();
    harness.put("mixed", b"caf\xe9 = 1\r\nb = 2\r\n\0");
    let before = fs::read(harness.at("mixed")).unwrap();
    let edits = json!([{"find": "1\nb", "replace": "9\nc"}, {"find": "nothing", "replace": ""}]);
    let request = json!({"verb": "patch", "path": "mixed", "edits": edits});
    assert_eq!(harness.json(&request).refused(), "find_not_found");
    assert_eq!(fs::read(harness.at("mixed")).unwrap(), before);
}

fn patch_preserves_bytes_and_mode() {
    let harness = Harness::new();
    harness.put("mixed", b"caf\xe9 = 1\r\nb = 2\r\n\0");
    fs::set_permissions(harness.at("mixed"), Permissions::from_mode(0o600)).unwrap();
    harness.run(["patch", "mixed", "--find", "1\nb", "--replace", "9\nc"]).answer();
    assert_eq!(fs::read(harness.at("mixed")).unwrap(), b"caf\xe9 = 9\r\nc = 2\r\n\0");
    assert_eq!(fs::metadata(harness.at("mixed")).unwrap().permissions().mode() & 0o7777, 0o600);
}

fn patch_reports_the_failure_reason() {
    let harness = Harness::new();
    harness.put("twice", "x\nx\n");
    assert_eq!(harness.run(["patch", "twice", "--find", "x", "--replace", "y"]).refused(), "find_not_unique");
    harness.run(["patch", "twice", "--find", "x", "--replace", "y", "--start-line", "2"]).answer();
    assert_eq!(harness.text("twice"), "x\ny\n");
    assert_eq!(harness.run(["patch", "none", "--find", "x", "--replace", "y"]).refused(), "file_not_found");
    assert_eq!(harness.run(["patch", ".", "--find", "x", "--replace", "y"]).refused(), "is_directory");
}

fn delete_removes_files_and_links_only() {
    let harness = Harness::new();
    fs::create_dir(harness.at("directory")).unwrap();
    symlink(harness.secret(), harness.at("out")).unwrap();
    assert_eq!(harness.run(["delete", "a.txt"]).answer()["deleted"], true);
    assert_eq!(harness.run(["delete", "a.txt"]).refused(), "file_not_found");
    assert_eq!(harness.run(["delete", "directory"]).refused(), "is_directory");
    assert_eq!(harness.run(["delete", "."]).refused(), "is_directory");
    harness.run(["delete", "out"]).answer();
    assert!(harness.secret().exists(), "only the link goes");
    let left: Vec<_> =
        harness.inventory().iter().map(|line| line.split(' ').next().unwrap().to_owned()).collect();
    assert_eq!(left, ["", "directory"]);
}

fn move_renames_without_replacing() {
    let harness = Harness::new();
    harness.put("directory/b.txt", "b");
    harness.run(["move", "a.txt", "new/a.txt"]).answer();
    assert_eq!(harness.text("new/a.txt"), "one\ntwo\nthree\n");
    harness.run(["move", "directory", "other"]).answer();
    assert_eq!(harness.text("other/b.txt"), "b");
    assert_eq!(harness.run(["move", "other/b.txt", "new/a.txt"]).refused(), "already_exists");
    assert_eq!(harness.run(["move", "other", "new"]).refused(), "already_exists");
    assert_eq!(harness.run(["move", "other", "other/deeper/still"]).refused(), "invalid_input");
    assert!(!harness.at("other/deeper").exists(), "nothing is made for a move that cannot be");
    assert_eq!(harness.run(["move", "nothing", "x"]).refused(), "file_not_found");
    assert_eq!(harness.run(["move", ".", "x"]).refused(), "is_directory");
    symlink("new/a.txt", harness.at("link")).unwrap();
    assert_eq!(harness.run(["move", "link", "x"]).refused(), "not_a_regular_file");
}

fn list_shows_a_directory_and_matches_globs() {
    let harness = Harness::new();
    for path in ["src/main.rs", "src/deep/lib.rs", "src/notes.md", "target/out.rs", ".hidden.rs"] {
        harness.put(path, "x");
    }
    harness.put(".gitignore", "target/\n");
    symlink("a.txt", harness.at("link")).unwrap();
    let listed = harness.run(["list"]).answer();
    let names = |listed: &serde_json::Value| -> Vec<String> {
        let entries = listed["entries"].as_array().unwrap();
        entries.iter().map(|entry| entry["path"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&listed), [".gitignore", ".hidden.rs", "a.txt", "link", "src", "target"]);
    assert_eq!(listed["entries"][3]["type"], "symlink");
    assert_eq!(
        names(&harness.run(["list", "--glob", "*.rs"]).answer()),
        [".hidden.rs", "src/deep/lib.rs", "src/main.rs"]
    );
    assert_eq!(names(&harness.run(["list", "src", "--glob", "deep/*"]).answer()), ["src/deep/lib.rs"]);
    assert_eq!(harness.run(["list", "a.txt"]).refused(), "not_a_directory");
    assert_eq!(harness.run(["list", "nowhere"]).refused(), "file_not_found");
    assert_eq!(harness.run(["list", "--glob", "a["]).refused(), "invalid_pattern");
}

fn stat_reports_the_type_of_a_path() {
    let harness = Harness::new();
    symlink("a.txt", harness.at("link")).unwrap();
    let file = harness.run(["stat", "a.txt"]).answer();
    assert_eq!(
        (&file["type"], &file["size"], &file["readable"], &file["protected"]),
        (&json!("file"), &json!(14), &json!(true), &json!(false))
    );
    assert_eq!(file["confinement"]["openat2"], true);
    let link = harness.run(["stat", "link"]).answer();
    assert_eq!((&link["type"], &link["target"]), (&json!("symlink"), &json!("a.txt")));
    assert_eq!(harness.run(["stat"]).answer()["type"], "directory");
    harness.put(".git/config", "");
    let config = harness.run(["stat", ".git/config"]).answer();
    assert_eq!((&config["protected"], &config["readable"]), (&json!(true), &json!(true)));
}

fn files_and_directories_are_distinguished() {
    let harness = Harness::new();
    assert_eq!(harness.run(["read", "."]).refused(), "is_directory");
    assert_eq!(harness.run(["read", ""]).refused(), "is_directory");
    assert_eq!(harness.run(["read", "a.txt/"]).refused(), "not_a_directory");
    assert_eq!(harness.run(["read", "a.txt/b"]).refused(), "not_a_directory");
    assert_eq!(harness.run(["read", "b.txt"]).refused(), "file_not_found");
    assert_eq!(harness.run(["read", "b/../a.txt"]).refused(), "file_not_found");
    assert_eq!(harness.run(["read", "./a.txt"]).answer()["path"], "a.txt");
}

fn escaped_non_utf8_name_is_accepted_again() {
    let harness = Harness::new();
    let name = std::ffi::OsStr::from_bytes(b"caf\xe9.txt");
    fs::write(harness.at(Path::new(name)), "coffee").unwrap();
    let listed = harness.run(["list"]).answer();
    let shown = listed["entries"][1]["path"].as_str().unwrap();
    assert_eq!(shown, r"$'caf\xe9.txt'");
    assert_eq!(harness.json(&json!({"verb": "read", "path": shown})).answer()["content"], "1\tcoffee");
    let by_bytes = harness.run([std::ffi::OsStr::new("read"), name]).answer();
    assert_eq!(by_bytes["path"], shown);
    let found = harness.run(["search", "coffee"]).answer();
    assert_eq!(found["matches"][0]["path"], shown);
    harness.run(["move", shown, "plain.txt"]).answer();
    assert_eq!(harness.text("plain.txt"), "coffee");
}
