//! No path leads a verb out of the workspace: the property of the fuzz target, in every build.
//!
//! `FILE_TOOLS_PATHS` sets the number of paths.

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::symlink;

use file_tools::{
    DeleteRequest, FileRequest, ListRequest, MoveRequest, PatchRequest, ReadRequest, SearchRequest,
    StatRequest, Workspace, WriteRequest,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::harness::{Harness, SECRET};

crate::tests![no_generated_path_leaves_the_workspace];

/// Parts of generated paths: existing names, links in all directions, and confusing names.
const PIECES: [&str; 26] = [
    "a",
    "b",
    "..",
    ".",
    "",
    "o",
    "u",
    "i",
    "g",
    "c",
    "r",
    "self",
    "a.txt",
    "secret.txt",
    "outside",
    "ws",
    ".git",
    ".GIT",
    "config",
    "etc/passwd",
    "proc/self/root",
    "\0",
    "é",
    "$'",
    r"\x2e\x2e",
    "'",
];

fn any_path() -> impl Strategy<Value = String> {
    let pieces = proptest::collection::vec(proptest::sample::select(PIECES.to_vec()), 0..8);
    let made = (any::<bool>(), pieces).prop_map(|(absolute, pieces)| {
        let path = pieces.join("/");
        if absolute { format!("/{path}") } else { path }
    });
    let escaped = made.clone().prop_map(|path| format!("$'{path}'"));
    prop_oneof![4 => made, 1 => escaped, 1 => any::<String>()]
}

fn any_request() -> impl Strategy<Value = FileRequest> {
    (any_path(), any_path(), 0..9_u8).prop_map(|(path, other, which)| match which {
        0 => FileRequest::Read(ReadRequest { path, offset: None, limit: None }),
        1 => FileRequest::Write(WriteRequest { path, content: b"x".to_vec() }),
        2 => FileRequest::Create(WriteRequest { path, content: b"x".to_vec() }),
        3 => FileRequest::Move(MoveRequest { from: path, to: other }),
        4 => FileRequest::Delete(DeleteRequest { path }),
        5 => FileRequest::List(ListRequest { path, glob: None }),
        6 => FileRequest::Search(SearchRequest { regex: ".".to_owned(), path, ..SearchRequest::default() }),
        7 => FileRequest::Patch(PatchRequest {
            path,
            edits: vec![file_tools::Edit { find: "t".to_owned(), replace: "x".to_owned(), start_line: None }],
        }),
        _ => FileRequest::Stat(StatRequest { path }),
    })
}

fn no_generated_path_leaves_the_workspace() {
    let harness = Harness::new();
    fs::create_dir_all(harness.at("a/b")).unwrap();
    harness.put(".git/config", "[core]");
    for (target, link) in [
        ("../outside", "o"),
        ("..", "u"),
        ("a/b", "i"),
        (".git", "g"),
        ("o/secret.txt", "c"),
        ("/", "r"),
        ("self/self", "self"),
    ] {
        symlink(target, harness.at(link)).unwrap();
    }
    let workspace = Workspace::enter_unlocked(&harness.workspace()).unwrap();
    let cases = std::env::var("FILE_TOOLS_PATHS").map_or(1500, |cases| cases.parse().unwrap());
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let done = Cell::new(0_u32);
    runner
        .run(&any_request(), |request| {
            let told = match workspace.execute(&request) {
                Ok(answer) => {
                    done.set(done.get() + 1);
                    serde_json::to_string(&answer).unwrap()
                }
                Err(refusal) => serde_json::to_string(&refusal).unwrap(),
            };
            prop_assert!(!told.contains(SECRET), "leaked: {}", told);
            prop_assert_eq!(fs::read_to_string(harness.secret()).unwrap(), SECRET);
            prop_assert_eq!(fs::read_dir(harness.outside()).unwrap().count(), 1);
            prop_assert_eq!(harness.text(".git/config"), "[core]");
            Ok(())
        })
        .unwrap();
    eprintln!("{cases} requests, {} of them carried out inside", done.get());
    assert!(done.get() > 0, "paths that are always refused prove nothing");
}
