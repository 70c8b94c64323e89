//! Results, omissions and limits of a search.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use serde_json::{Value, json};

use crate::harness::Harness;

crate::tests![
    search_returns_lines_with_numbers,
    gitignored_files_are_not_searched,
    search_options_are_applied,
    invalid_pattern_is_rejected,
    skipped_files_are_counted,
    all_of_many_files_are_searched,
    long_match_is_truncated,
];

fn found(told: &Value) -> Vec<(String, u64)> {
    let matches = told["matches"].as_array().unwrap();
    matches
        .iter()
        .map(|line| (line["path"].as_str().unwrap().to_owned(), line["line"].as_u64().unwrap()))
        .collect()
}

fn paths(told: &Value) -> Vec<String> {
    found(told).into_iter().map(|(path, _)| path).collect()
}

fn search_returns_lines_with_numbers() {
    let harness = Harness::new();
    harness.put("src/b.rs", "fn main() {\r\n    two();\r\n}\n");
    let told = harness.run(["search", r"\btwo\b"]).answer();
    assert_eq!(found(&told), [("a.txt".to_owned(), 2), ("src/b.rs".to_owned(), 2)]);
    assert_eq!(told["matches"][1]["text"], "    two();");
    assert_eq!(paths(&harness.run(["search", "two", "src"]).answer()), ["src/b.rs"]);
    assert_eq!(paths(&harness.run(["search", "two", "a.txt"]).answer()), ["a.txt"]);
    assert_eq!(paths(&harness.run(["search", "two", "--glob", "*.rs"]).answer()), ["src/b.rs"]);
    assert_eq!(harness.run(["search", "two", "nowhere"]).refused(), "file_not_found");
}

fn gitignored_files_are_not_searched() {
    let harness = Harness::new();
    harness.put(".gitignore", "target/\n*.log\n!keep.log\n/only-top\n");
    harness.put("sub/.gitignore", "local\n");
    harness.put(".ignore", "by-ignore\n");
    harness.put(".git/info/exclude", "excluded\n");
    for path in [
        "target/x",
        "x.log",
        "keep.log",
        "only-top",
        "sub/only-top",
        "sub/local",
        "local",
        "by-ignore",
        "excluded",
        ".git/needle",
        ".hidden",
    ] {
        harness.put(path, "needle");
    }
    let told = harness.run(["search", "needle"]).answer();
    assert_eq!(paths(&told), [".hidden", "keep.log", "local", "sub/only-top"]);
    assert_eq!(
        paths(&harness.run(["search", "needle", "sub"]).answer()),
        ["sub/only-top"],
        "rules from above hold below"
    );
    assert_eq!(
        paths(&harness.run(["search", "needle", "target"]).answer()),
        ["target/x"],
        "what is named is searched"
    );
}

fn search_options_are_applied() {
    let harness = Harness::new();
    harness.put("b.txt", "alpha\nBeta\nbeta\ngamma\n");
    let lines = |args: &[&str]| {
        harness.run([&["search"], args].concat()).answer()["matches"].as_array().unwrap().len()
    };
    assert_eq!(lines(&["beta", "b.txt"]), 1);
    assert_eq!(lines(&["beta", "b.txt", "--case", "insensitive"]), 2);
    assert_eq!(lines(&["beta", "b.txt", "--case", "smart"]), 2);
    assert_eq!(lines(&["Beta", "b.txt", "--case", "smart"]), 1);
    let told = harness.run(["search", "Beta", "b.txt", "--context", "1"]).answer();
    assert_eq!(found(&told).iter().map(|(_, line)| *line).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(
        (&told["matches"][0]["context"], &told["matches"][1]["context"]),
        (&json!(true), &Value::Null)
    );
    let told = harness.run(["search", ".", "--max", "3"]).answer();
    assert_eq!((told["matches"].as_array().unwrap().len(), &told["truncated"]), (3, &json!(true)));
    assert_eq!(harness.run(["search", ".", "b.txt", "--max", "4"]).answer()["truncated"], false);
}

fn invalid_pattern_is_rejected() {
    let harness = Harness::new();
    for regex in ["(", "[a", "a\nb", r"a\nb", "(?<x", &"(a{1000}){1000}".repeat(3)] {
        assert_eq!(harness.run(["search", regex]).refused(), "invalid_pattern", "{regex}");
    }
    assert_eq!(harness.run(["search", "a", "--glob", "{"]).refused(), "invalid_pattern");
    assert_eq!(harness.run(["search", "a", "--case", "loud"]).refused(), "invalid_input");
}

fn skipped_files_are_counted() {
    let harness = Harness::new();
    harness.put("binary", b"needle\0needle");
    harness.put("closed/x", "needle");
    symlink("a.txt", harness.at("link")).unwrap();
    fs::set_permissions(harness.at("closed"), fs::Permissions::from_mode(0o0)).unwrap();
    let told = harness.run(["search", "needle"]).answer();
    fs::set_permissions(harness.at("closed"), fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(told["skipped"]["binary"], 1);
    if rustix::process::geteuid().is_root() {
        eprintln!("the closed directory is open to root");
    } else {
        assert_eq!((&told["skipped"]["unreadable"], &told["matches"]), (&json!(1), &json!([])));
    }
}

fn all_of_many_files_are_searched() {
    let harness = Harness::new();
    for directory in 0..40 {
        for file in 0..20 {
            harness.put(&format!("{directory}/{file}"), if file == 7 { "needle\n" } else { "hay\n" });
        }
    }
    for file in 0..700 {
        harness.put(&format!("wide/{file}"), "hay\n");
    }
    let told = harness.run(["search", "needle"]).answer();
    assert_eq!((told["matches"].as_array().unwrap().len(), &told["files_searched"]), (40, &json!(1501)));
}

fn long_match_is_truncated() {
    let harness = Harness::new();
    harness.put("long", format!("{}é\n", "é".repeat(5000)));
    let line = &harness.run(["search", "é"]).answer()["matches"][0];
    assert_eq!((line["text"].as_str().unwrap().chars().count(), &line["cut"]), (1000, &json!(true)));
}
