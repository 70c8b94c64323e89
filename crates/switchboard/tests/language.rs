//! Checks the rules of STYLE.md that a program can check: type names, doc comments and test names.
#![expect(clippy::unwrap_used, reason = "a test may")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use regex::Regex;

/// The longest name of a test.
const MAX_TEST_NAME_CHARS: usize = 60;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the directories of all crates of this workspace.
fn crates() -> Vec<PathBuf> {
    let inside =
        ["crates", "support"].into_iter().flat_map(|group| fs::read_dir(root().join(group)).unwrap());
    let mut crates: Vec<PathBuf> = inside.map(|entry| entry.unwrap().path()).collect();
    crates.push(root().join("bench"));
    crates.retain(|directory| directory.join("Cargo.toml").is_file());
    crates.sort();
    crates
}

/// Returns the Rust files below a directory, with their texts.
fn sources(directory: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut pending = vec![directory.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                pending.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push((path.clone(), fs::read_to_string(path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

/// Names a file as seen from the root of the repository.
fn shown(path: &Path) -> String {
    let root = root().canonicalize().unwrap();
    path.canonicalize().unwrap().strip_prefix(root).unwrap().display().to_string()
}

/// Returns the code before the unit tests of a file.
fn without_tests(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod tests").next().unwrap()
}

#[test]
fn public_type_names_are_unique() {
    let definition =
        Regex::new(r"(?m)^\s*pub(?:\([a-z: ]+\))? (?:struct|enum|trait|type|union) (\w+)").unwrap();
    let mut places: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for directory in crates() {
        for (path, text) in sources(&directory.join("src")) {
            for found in definition.captures_iter(without_tests(&text)) {
                // An associated type repeats the name that its trait requires.
                if !found[0].starts_with([' ', '\t']) || !found[0].contains(" type ") {
                    places.entry(found[1].to_owned()).or_default().insert(shown(&path));
                }
            }
        }
    }
    places.retain(|_, files| files.len() > 1);
    assert!(places.is_empty(), "these names stand for several types: {places:#?}");
}

#[test]
fn doc_comments_do_not_start_with_a_relative_clause() {
    let first_word = Regex::new(r"^\s*//[/!] (What|Whatever|Who|Whoever|Whom)\b").unwrap();
    let mut found = Vec::new();
    for directory in crates() {
        for (path, text) in ["src", "tests", "benches"].iter().flat_map(|part| sources(&directory.join(part)))
        {
            let mut previous = "";
            for (number, line) in text.lines().enumerate() {
                let is_first =
                    !previous.trim_start().starts_with("///") && !previous.trim_start().starts_with("//!");
                if is_first && first_word.is_match(line) {
                    found.push(format!("{}:{}: {}", shown(&path), number + 1, line.trim()));
                }
                previous = line;
            }
        }
    }
    assert!(found.is_empty(), "start with a verb or a noun:\n{}", found.join("\n"));
}

#[test]
fn test_names_are_short() {
    let function =
        Regex::new(r"#\[(?:tokio::)?test[^\]]*\]\s*(?:#\[[^\]]*\]\s*)*(?:async )?fn (\w+)").unwrap();
    let list = Regex::new(r"(?:tests|scenarios|conformance)!\s*[\{\(\[]([\s\w,]*)[\}\)\]]").unwrap();
    let mut long = Vec::new();
    for directory in crates() {
        for (path, text) in ["src", "tests"].iter().flat_map(|part| sources(&directory.join(part))) {
            let functions = function.captures_iter(&text).map(|found| found[1].to_owned());
            let listed = list
                .captures_iter(&text)
                .flat_map(|found| found[1].split(',').map(|name| name.trim().to_owned()).collect::<Vec<_>>());
            long.extend(
                functions
                    .chain(listed)
                    .filter(|name| name.len() > MAX_TEST_NAME_CHARS)
                    .map(|name| format!("{}: {name}", shown(&path))),
            );
        }
    }
    assert!(long.is_empty(), "over {MAX_TEST_NAME_CHARS} characters:\n{}", long.join("\n"));
}

/// Returns the string literals that match, outside of comments and unit tests, with their places.
fn texts_with(pattern: &str, directories: &[&str]) -> Vec<String> {
    let (pattern, literal) = (Regex::new(pattern).unwrap(), Regex::new(r#""(?:[^"\\]|\\.)*""#).unwrap());
    let mut found = Vec::new();
    for (path, text) in directories.iter().flat_map(|directory| sources(&root().join(directory))) {
        for line in without_tests(&text).lines().filter(|line| !line.trim_start().starts_with("//")) {
            let texts = literal.find_iter(line).filter(|text| pattern.is_match(text.as_str()));
            found.extend(texts.map(|text| format!("{}: {}", shown(&path), text.as_str())));
        }
    }
    found
}

/// The crates whose messages and hints reach every front end.
const LIBRARIES: [&str; 8] = [
    "crates/model/src",
    "crates/agents/src",
    "crates/agent-run/src",
    "crates/calls/src",
    "crates/store/src",
    "crates/supervisor/src",
    "crates/sandbox/src",
    "crates/render/src",
];

#[test]
fn no_terminal_or_page_text_names_an_mcp_tool() {
    let fronts = ["crates/switchboard/src", "crates/dashboard/src", "crates/protocol/src"];
    let mut found = texts_with(
        r"\bcall_(?:cc|codex|gem|rehearsal|status|wait|output|cancel|jobs)\b",
        &[LIBRARIES.as_slice(), &fronts].concat(),
    );
    // The bridge answers MCP hosts, and a setting is about one of their tools.
    found.retain(|text| {
        !text.starts_with("crates/switchboard/src/bridge/") && !text.contains("Offer MCP hosts the tool")
    });
    assert!(found.is_empty(), "these texts reach a terminal or the page:\n{}", found.join("\n"));
}

#[test]
fn no_mcp_text_names_a_command_or_flag() {
    let fronts = ["crates/mcp-server/src", "crates/switchboard/src/bridge"];
    let found = texts_with(r"`switchboard [a-z]|`--[a-z]", &fronts);
    assert!(found.is_empty(), "these texts reach an MCP host:\n{}", found.join("\n"));
}

/// `mcp-server` removes flags in parentheses, and replaces hints that name a command of `switchboard`.
#[test]
fn library_texts_name_flags_only_in_parentheses() {
    let mut found = texts_with(r"(?:^|[^(])`--[a-z]", &LIBRARIES);
    // A notice of the doctor, about the agent's own help.
    found.retain(|text| !text.contains("its `--help` does not list"));
    assert!(found.is_empty(), "these texts would reach an MCP host:\n{}", found.join("\n"));
}
