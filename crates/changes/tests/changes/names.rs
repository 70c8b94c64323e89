//! Names and line endings.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::fixture::Project;

const NAMES: [&[u8]; 10] = [
    b"new\nline",
    b"quote\"s'",
    b"-dash",
    b" space ",
    b"tab\tback\\slash",
    b"\xff\xfe",
    b":(top)colon",
    b"*glob?[a]",
    "ünïcödé".as_bytes(),
    b"a\n-diff --git a/x b/x",
];

fn to_path(name: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(name))
}

#[test]
fn odd_names_are_listed_exactly() {
    let project = Project::new(&[("a.txt", "a\n")]);
    project.begin();
    for name in NAMES {
        project.write(to_path(name), "x\n");
    }
    let mut expected = NAMES.map(to_path);
    expected.sort();
    let change_set = project.finish();
    assert!(change_set.files.iter().map(|file| file.path.as_path()).eq(expected));
}

#[test]
fn edits_of_odd_names_are_undone() {
    let project = Project::empty();
    for name in NAMES {
        project.write(Path::new("d").join(to_path(name)), "x\n");
    }
    project.commit("odd");
    project.assert_round_trip(|| {
        for name in NAMES {
            project.write(Path::new("d").join(to_path(name)), "y\n");
            project.write(to_path(name), "new\n");
        }
    });
}

#[test]
fn patch_of_odd_name_is_selected() {
    let project = Project::empty();
    project.record_job(|| {
        for name in NAMES {
            project.write(to_path(name), "x\n");
        }
    });
    for name in NAMES {
        let patch = project.record.patch(&[to_path(name).to_owned()]).unwrap();
        assert_eq!(String::from_utf8_lossy(&patch).matches("+x\n").count(), 1);
    }
}

#[test]
fn deep_directory_is_undone() {
    let project = Project::new(&[("a.txt", "a\n")]);
    let deep = vec!["directory"; 60].join("/") + "/file";
    project.assert_round_trip(|| project.write(&deep, "deep\n"));
}

#[test]
fn crlf_is_restored_with_autocrlf() {
    let project = Project::empty();
    project.git(["config", "core.autocrlf", "true"]);
    project.write("a.txt", "one\r\ntwo\r\n");
    project.commit("first");
    project.assert_round_trip(|| project.write("a.txt", "one\r\n2\r\n"));
    assert_eq!(crate::fixture::describe(&project.finish()), ["modified a.txt +1 -1"]);
}

#[test]
fn crlf_is_restored_with_eol_attribute() {
    let project = Project::new(&[(".gitattributes", "*.txt text eol=crlf\n")]);
    project.write("a.txt", "one\r\ntwo\r\n");
    project.commit("first");
    project.assert_round_trip(|| project.write("a.txt", "one\r\n2\r\n"));
}

#[test]
fn crlf_of_untracked_file_is_restored() {
    let project = Project::new(&[("a.txt", "a\n")]);
    project.git(["config", "core.autocrlf", "true"]);
    project.write("b.txt", "one\r\ntwo\r\n");
    project.assert_round_trip(|| project.write("b.txt", "one\r\n2\r\n"));
}

#[test]
fn mixed_line_endings_are_restored_without_conversion() {
    let project = Project::new(&[("a.txt", "one\r\ntwo\nthree\r\n")]);
    project.assert_round_trip(|| project.write("a.txt", "one\ntwo\r\n"));
}
