//! Each verb in ordinary use.

use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use serde_json::json;

use crate::desk::Desk;

crate::tests![
    read_tells_text_from_bytes,
    write_replaces_makes_folders_and_keeps_the_mode,
    write_through_a_link_inside_changes_its_target,
    create_refuses_what_is_there,
    patch_is_all_or_nothing_and_keeps_bytes_and_mode,
    patch_tells_why_not,
    delete_takes_files_and_links_and_no_folders,
    move_renames_files_and_folders_and_replaces_nothing,
    list_shows_a_folder_and_globs_below_it,
    stat_tells_what_a_path_is,
    kinds_are_told_apart,
    a_name_that_is_not_utf_8_can_be_given_back,
];

fn read_tells_text_from_bytes() {
    let desk = Desk::new();
    desk.put("latin", b"caf\xe9\r\n");
    desk.put("binary", b"\x7fELF\0\x01");
    desk.put("empty", "");
    let latin = desk.run(["read", "latin"]).answer();
    assert_eq!((&latin["encoding"], &latin["line_endings"]), (&json!("not utf-8"), &json!("crlf")));
    let binary = desk.run(["read", "binary"]).answer();
    assert_eq!(
        (&binary["encoding"], &binary["content"], &binary["size"]),
        (&json!("binary"), &json!(null), &json!(6))
    );
    assert_eq!(desk.run(["read", "empty"]).answer()["total_lines"], 0);
    let inside = desk.at("a.txt");
    assert_eq!(desk.run(["read", inside.to_str().unwrap()]).answer()["path"], "a.txt", "absolute and below");
}

fn write_replaces_makes_folders_and_keeps_the_mode() {
    let desk = Desk::new();
    fs::set_permissions(desk.at("a.txt"), Permissions::from_mode(0o640)).unwrap();
    assert_eq!(desk.run(["write", "a.txt", "--content", "new"]).answer()["created"], false);
    assert_eq!(desk.text("a.txt"), "new");
    assert_eq!(fs::metadata(desk.at("a.txt")).unwrap().permissions().mode() & 0o7777, 0o640);
    assert_eq!(desk.run(["write", "x/y/z.txt", "--content", "deep"]).answer()["created"], true);
    assert_eq!(desk.text("x/y/z.txt"), "deep");
    assert_eq!(desk.inventory().iter().filter(|line| line.contains(".tmp")).count(), 0);
    assert_eq!(desk.run(["write", "x/y", "--content", ""]).refused(), "is_directory");
    assert_eq!(desk.run(["write", "x/new/", "--content", ""]).refused(), "is_directory");
    assert_eq!(desk.run(["write", "a.txt/b", "--content", ""]).refused(), "not_a_directory");
}

fn write_through_a_link_inside_changes_its_target() {
    let desk = Desk::new();
    symlink("a.txt", desk.at("link")).unwrap();
    assert_eq!(desk.run(["write", "link", "--content", "new"]).answer()["path"], "a.txt");
    assert_eq!(desk.text("a.txt"), "new");
    assert!(fs::symlink_metadata(desk.at("link")).unwrap().is_symlink());
}

fn create_refuses_what_is_there() {
    let desk = Desk::new();
    symlink("nowhere", desk.at("dangling")).unwrap();
    fs::create_dir(desk.at("folder")).unwrap();
    for there in ["a.txt", "dangling", "folder"] {
        assert_eq!(desk.run(["create", there, "--content", "x"]).refused(), "already_exists", "{there}");
    }
    assert_eq!(desk.text("a.txt"), "one\ntwo\nthree\n");
    assert_eq!(desk.run(["create", "b/c.txt", "--content", "x"]).answer()["created"], true);
}

fn patch_is_all_or_nothing_and_keeps_bytes_and_mode() {
    let desk = Desk::new();
    desk.put("mixed", b"caf\xe9 = 1\r\nb = 2\r\n\0");
    fs::set_permissions(desk.at("mixed"), Permissions::from_mode(0o600)).unwrap();
    let before = fs::read(desk.at("mixed")).unwrap();
    let edits = json!([{"find": "1\nb", "replace": "9\nc"}, {"find": "nothing", "replace": ""}]);
    let request = json!({"verb": "patch", "path": "mixed", "edits": edits});
    assert_eq!(desk.json(&request).refused(), "find_not_found");
    assert_eq!(fs::read(desk.at("mixed")).unwrap(), before);
    desk.run(["patch", "mixed", "--find", "1\nb", "--replace", "9\nc"]).answer();
    assert_eq!(fs::read(desk.at("mixed")).unwrap(), b"caf\xe9 = 9\r\nc = 2\r\n\0");
    assert_eq!(fs::metadata(desk.at("mixed")).unwrap().permissions().mode() & 0o7777, 0o600);
}

fn patch_tells_why_not() {
    let desk = Desk::new();
    desk.put("twice", "x\nx\n");
    assert_eq!(desk.run(["patch", "twice", "--find", "x", "--replace", "y"]).refused(), "find_not_unique");
    desk.run(["patch", "twice", "--find", "x", "--replace", "y", "--start-line", "2"]).answer();
    assert_eq!(desk.text("twice"), "x\ny\n");
    assert_eq!(desk.run(["patch", "none", "--find", "x", "--replace", "y"]).refused(), "file_not_found");
    assert_eq!(desk.run(["patch", ".", "--find", "x", "--replace", "y"]).refused(), "is_directory");
}

fn delete_takes_files_and_links_and_no_folders() {
    let desk = Desk::new();
    fs::create_dir(desk.at("folder")).unwrap();
    symlink(desk.secret(), desk.at("out")).unwrap();
    assert_eq!(desk.run(["delete", "a.txt"]).answer()["deleted"], true);
    assert_eq!(desk.run(["delete", "a.txt"]).refused(), "file_not_found");
    assert_eq!(desk.run(["delete", "folder"]).refused(), "is_directory");
    assert_eq!(desk.run(["delete", "."]).refused(), "is_directory");
    desk.run(["delete", "out"]).answer();
    assert!(desk.secret().exists(), "only the link goes");
    let left: Vec<_> =
        desk.inventory().iter().map(|line| line.split(' ').next().unwrap().to_owned()).collect();
    assert_eq!(left, ["", "folder"]);
}

fn move_renames_files_and_folders_and_replaces_nothing() {
    let desk = Desk::new();
    desk.put("folder/b.txt", "b");
    desk.run(["move", "a.txt", "new/a.txt"]).answer();
    assert_eq!(desk.text("new/a.txt"), "one\ntwo\nthree\n");
    desk.run(["move", "folder", "other"]).answer();
    assert_eq!(desk.text("other/b.txt"), "b");
    assert_eq!(desk.run(["move", "other/b.txt", "new/a.txt"]).refused(), "already_exists");
    assert_eq!(desk.run(["move", "other", "new"]).refused(), "already_exists");
    assert_eq!(desk.run(["move", "other", "other/deeper/still"]).refused(), "invalid_input");
    assert!(!desk.at("other/deeper").exists(), "nothing is made for a move that cannot be");
    assert_eq!(desk.run(["move", "nothing", "x"]).refused(), "file_not_found");
    assert_eq!(desk.run(["move", ".", "x"]).refused(), "is_directory");
    symlink("new/a.txt", desk.at("link")).unwrap();
    assert_eq!(desk.run(["move", "link", "x"]).refused(), "not_a_regular_file");
}

fn list_shows_a_folder_and_globs_below_it() {
    let desk = Desk::new();
    for path in ["src/main.rs", "src/deep/lib.rs", "src/notes.md", "target/out.rs", ".hidden.rs"] {
        desk.put(path, "x");
    }
    desk.put(".gitignore", "target/\n");
    symlink("a.txt", desk.at("link")).unwrap();
    let listed = desk.run(["list"]).answer();
    let names = |listed: &serde_json::Value| -> Vec<String> {
        let entries = listed["entries"].as_array().unwrap();
        entries.iter().map(|entry| entry["path"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&listed), [".gitignore", ".hidden.rs", "a.txt", "link", "src", "target"]);
    assert_eq!(listed["entries"][3]["type"], "symlink");
    assert_eq!(
        names(&desk.run(["list", "--glob", "*.rs"]).answer()),
        [".hidden.rs", "src/deep/lib.rs", "src/main.rs"]
    );
    assert_eq!(names(&desk.run(["list", "src", "--glob", "deep/*"]).answer()), ["src/deep/lib.rs"]);
    assert_eq!(desk.run(["list", "a.txt"]).refused(), "not_a_directory");
    assert_eq!(desk.run(["list", "nowhere"]).refused(), "file_not_found");
    assert_eq!(desk.run(["list", "--glob", "a["]).refused(), "invalid_pattern");
}

fn stat_tells_what_a_path_is() {
    let desk = Desk::new();
    symlink("a.txt", desk.at("link")).unwrap();
    let file = desk.run(["stat", "a.txt"]).answer();
    assert_eq!(
        (&file["type"], &file["size"], &file["readable"], &file["protected"]),
        (&json!("file"), &json!(14), &json!(true), &json!(false))
    );
    assert_eq!(file["confinement"]["openat2"], true);
    let link = desk.run(["stat", "link"]).answer();
    assert_eq!((&link["type"], &link["target"]), (&json!("symlink"), &json!("a.txt")));
    assert_eq!(desk.run(["stat"]).answer()["type"], "directory");
    desk.put(".git/config", "");
    let config = desk.run(["stat", ".git/config"]).answer();
    assert_eq!((&config["protected"], &config["readable"]), (&json!(true), &json!(true)));
}

fn kinds_are_told_apart() {
    let desk = Desk::new();
    assert_eq!(desk.run(["read", "."]).refused(), "is_directory");
    assert_eq!(desk.run(["read", ""]).refused(), "is_directory");
    assert_eq!(desk.run(["read", "a.txt/"]).refused(), "not_a_directory");
    assert_eq!(desk.run(["read", "a.txt/b"]).refused(), "not_a_directory");
    assert_eq!(desk.run(["read", "b.txt"]).refused(), "file_not_found");
    assert_eq!(desk.run(["read", "b/../a.txt"]).refused(), "file_not_found");
    assert_eq!(desk.run(["read", "./a.txt"]).answer()["path"], "a.txt");
}

fn a_name_that_is_not_utf_8_can_be_given_back() {
    let desk = Desk::new();
    let name = std::ffi::OsStr::from_bytes(b"caf\xe9.txt");
    fs::write(desk.at(Path::new(name)), "coffee").unwrap();
    let listed = desk.run(["list"]).answer();
    let shown = listed["entries"][1]["path"].as_str().unwrap();
    assert_eq!(shown, r"$'caf\xe9.txt'");
    assert_eq!(desk.json(&json!({"verb": "read", "path": shown})).answer()["content"], "1\tcoffee");
    let by_bytes = desk.run([std::ffi::OsStr::new("read"), name]).answer();
    assert_eq!(by_bytes["path"], shown);
    let found = desk.run(["search", "coffee"]).answer();
    assert_eq!(found["matches"][0]["path"], shown);
    desk.run(["move", shown, "plain.txt"]).answer();
    assert_eq!(desk.text("plain.txt"), "coffee");
}
