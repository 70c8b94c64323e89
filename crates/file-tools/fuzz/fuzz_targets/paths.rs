//! No path, however it is written, leads a verb out of the workspace. The same property runs in every build as a proptest
//! (`tests/tools/any_path.rs`); this looks for longer, and learns.
#![no_main]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::OnceLock;

use file_tools::{DeleteRequest, ListRequest, MoveRequest, ReadRequest, FileRequest, SearchRequest, StatRequest, Workspace, WriteRequest};
use libfuzzer_sys::fuzz_target;

const SECRET: &str = "the-secret-outside";

struct Ground {
    outside: PathBuf,
    workspace: Workspace,
    _directory: tempfile::TempDir,
}

/// One for all inputs: whatever they leave in the workspace is part of the next one's ground.
fn ground() -> &'static Ground {
    static GROUND: OnceLock<Ground> = OnceLock::new();
    GROUND.get_or_init(|| {
        let directory = tempfile::tempdir().expect("a directory");
        let (outside, inside) = (directory.path().join("outside"), directory.path().join("ws"));
        fs::create_dir_all(&outside).expect("outside");
        fs::create_dir_all(inside.join("a/b")).expect("inside");
        fs::create_dir_all(inside.join(".git")).expect("protected");
        fs::write(outside.join("s"), SECRET).expect("secret");
        fs::write(inside.join(".git/config"), "[core]").expect("config");
        for (target, link) in [("../outside", "o"), ("..", "u"), ("a/b", "i"), (".git", "g"), ("o/s", "c"), ("/", "r")] {
            symlink(target, inside.join(link)).expect("link");
        }
        let workspace = Workspace::enter_unlocked(&inside).expect("workspace");
        Ground { outside, workspace, _directory: directory }
    })
}

fuzz_target!(|input: (&str, &str, u8)| {
    let (path, other, which) = input;
    let ground = ground();
    let (path, other) = (path.to_owned(), other.to_owned());
    let request = match which % 7 {
        0 => FileRequest::Read(ReadRequest { path, offset: None, limit: None }),
        1 => FileRequest::Write(WriteRequest { path, content: b"x".to_vec() }),
        2 => FileRequest::Move(MoveRequest { from: path, to: other }),
        3 => FileRequest::Delete(DeleteRequest { path }),
        4 => FileRequest::List(ListRequest { path, glob: Some(other) }),
        5 => FileRequest::Search(SearchRequest { regex: ".".to_owned(), path, ..SearchRequest::default() }),
        _ => FileRequest::Stat(StatRequest { path }),
    };
    let told = match ground.workspace.execute(&request) {
        Ok(answer) => serde_json::to_string(&answer),
        Err(refusal) => serde_json::to_string(&refusal),
    };
    assert!(!told.expect("JSON").contains(SECRET), "leaked by {request:?}");
    assert_eq!(fs::read_to_string(ground.outside.join("s")).expect("the secret"), SECRET, "changed by {request:?}");
    assert_eq!(fs::read_dir(&ground.outside).expect("outside").count(), 1, "made outside by {request:?}");
    let config = ground.outside.with_file_name("ws").join(".git/config");
    assert_eq!(fs::read_to_string(config).expect("the config"), "[core]", "protected, changed by {request:?}");
});
