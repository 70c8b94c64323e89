//! Replaces varying parts by stable text: ids, durations, paths and the sandbox of this machine.

use std::path::Path;

use regex::{Captures, Regex};

use crate::person;
use crate::scene::PROGRAM;

/// The replacements, in this order, after jobs and paths.
const WORDS: [(&str, &str); 15] = [
    (r#""durations":\[.*?\]"#, r#""durations":[HOW LONG]"#),
    (r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "[SESSION]"),
    (r"\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\b", "[MOMENT]"),
    (r"\b\d{4}-\d\d-\d\d\b", "[DAY]"),
    // A duration is shown from a tenth of a second on, which a tool takes only on a busy machine.
    (r"(?m)^(· .*?),? (\d+ ms|\d+(\.\d+)? s)$", "$1"),
    (r"\b(\d+ ms|\d+(\.\d+)? s|\d+m \d\ds)\b", "[TIME]"),
    (r#"("[a-z0-9_]*_ms"): ?\d+"#, "$1:[MS]"),
    (r"\bpid \d+", "pid [PID]"),
    (r"/run/\S+\.sock", "/run/[SOCKET]"),
    (r"\bversion \d+\.\d+\.\d+", "version [VERSION]"),
    (r"\bswitchboard \d+\.\d+\.\d+", "switchboard [VERSION]"),
    // What a machine can confine is its own affair, and is told by `doctor` alone in the end.
    (r"(?m)^policy: (\w+) \(.*(\n  .*)*", "policy: $1 ([ENFORCED])"),
    (r"(?m)^machine\n(  .*\n)+", ""),
    (r"(?m)^sandbox: .*(\n  .*)*", "sandbox: [WHAT HOLDS HERE]"),
    (r"(?m)^connections: \d+", "connections: [NUMBER]"),
];

/// Redacts a stream.
pub fn of(directory: &Path, words: &[String], text: &str) -> String {
    let mut text = text.replace(directory.to_str().unwrap(), "/scene");
    let here = Path::new(PROGRAM).parent().unwrap();
    text = text.replace(here.to_str().unwrap(), "/usr/bin");
    text = without_object(&text, "sandbox");
    text = with_named_jobs(directory, &text);
    for (pattern, word) in WORDS {
        text = Regex::new(pattern).unwrap().replace_all(&text, word).into_owned();
    }
    // Columns are as wide as what stands in them.
    if words.first().is_some_and(|word| ["jobs", "stats", "config"].contains(&word.as_str())) {
        text = Regex::new(" {2,}").unwrap().replace_all(&text, "  ").into_owned();
    }
    Regex::new(r"(?m) +$").unwrap().replace_all(&text.replace('\x1b', "ESC"), "").into_owned()
}

/// Replaces ids and prefixes of ids by job numbers.
fn with_named_jobs(directory: &Path, text: &str) -> String {
    let jobs = person::jobs(directory);
    let id = Regex::new(r"\b[0-9a-f]{8}-[0-9a-f]{4}(-[0-9a-f]{0,4}){0,3}[0-9a-f]{0,8}").unwrap();
    let name = |found: &Captures<'_>| {
        let found = &found[0];
        let number = jobs.iter().position(|job| job.starts_with(found));
        number.map_or_else(|| found.to_owned(), |number| format!("%{}", number + 1))
    };
    id.replace_all(text, name).into_owned()
}

/// Removes the objects with a name from JSON.
fn without_object(text: &str, name: &str) -> String {
    let begins = Regex::new(&format!(r#""{name}": ?\{{"#)).unwrap();
    let Some(found) = begins.find(text) else { return text.to_owned() };
    let mut depth = 1_u32;
    let length = text[found.end()..].find(|c| {
        depth = match c {
            '{' => depth + 1,
            '}' => depth - 1,
            _ => depth,
        };
        depth == 0
    });
    let after = found.end() + length.unwrap() + 1;
    format!("{}\"{name}\":[WHAT HELD]{}", &text[..found.start()], &text[after..])
}
