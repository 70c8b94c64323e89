//! Replaces values that differ between two recordings: ids, paths, ports and times.
//!
//! Each replacement keeps the format (an id is a UUID, a time is a time), so that a parser reads a transcript like a run. Equal
//! values get equal replacements throughout one transcript.

use std::io;
use std::path::Path;

use regex_lite::{Captures, Regex};

/// Lines of stderr about the machine instead of the run.
const NOISE: [&str; 2] = ["[STARTUP] ", "Ripgrep is not available"];

/// The replacements of one transcript.
pub struct Normaliser {
    literals: Vec<(String, String)>,
    patterns: Vec<(Regex, &'static str)>,
    /// Ids of claude's background tasks, by the key that introduces them.
    tasks: [(Regex, &'static str); 2],
    uuid: Regex,
    uuids: Vec<String>,
}

impl Normaliser {
    pub fn new(desk: &Path, tools: &Path, url: &str) -> io::Result<Self> {
        let desk = desk.to_string_lossy().into_owned();
        let program = std::env::current_exe()?.to_string_lossy().into_owned();
        // Claude names a project's directory after its path.
        let slug: String = desk.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let host = url.trim_start_matches("http://").to_owned();
        let literals = vec![
            (desk, "/desk".to_owned()),
            (slug, "-desk".to_owned()),
            (program, "/bin/record".to_owned()),
            (tools.to_string_lossy().into_owned(), "/tools".to_owned()),
            (host, "127.0.0.1:1".to_owned()),
        ];
        let patterns = vec![
            (pattern(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")?, "2026-01-01T00:00:00.000Z"),
            (pattern(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d-\d+Z")?, "2026-01-01T00-00-00-000Z"),
            (pattern(r#""(\w*_ms|\w*[dD]uration\w*|timestamp)":\d+(\.\d+)?"#)?, r#""$1":1"#),
            (pattern(r"(Wall time:? )[\d.]+( seconds)")?, "${1}1.0$2"),
            (pattern(r"(Total duration \((?:API|wall)\): +)[\d.]+m?s")?, "${1}1s"),
            (pattern(r"/tmp/claude-\d+")?, "/tmp/claude-0"),
            // A Node error shows the socket it was about.
            (pattern(r"(localPort|remotePort|bytesWritten|bytesRead): \d+")?, "$1: 1"),
            (pattern(r"/cc-socks/\d+\.sock")?, "/cc-socks/1.sock"),
            (pattern(r#""end_time":\d+"#)?, r#""end_time":1"#),
            (pattern(r"\(PID: \d+\)")?, "(PID: 1)"),
        ];
        let uuid = pattern("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")?;
        let tasks =
            [(pattern(r#""task_id":"([\w-]+)""#)?, "task"), (pattern(r#""run_id":"([\w-]+)""#)?, "run")];
        Ok(Self { literals, patterns, tasks, uuid, uuids: Vec::new() })
    }

    /// Replaces the values in a text.
    pub fn text(&mut self, text: &str) -> String {
        let mut text = text.to_owned();
        for (literal, stand_in) in &self.literals {
            text = text.replace(literal, stand_in);
        }
        for (pattern, stand_in) in &self.patterns {
            text = pattern.replace_all(&text, *stand_in).into_owned();
        }
        for (id, stand_in) in &self.tasks {
            let mut ids: Vec<String> = Vec::new();
            for found in id.captures_iter(&text).map(|found| found[1].to_owned()) {
                if !ids.contains(&found) {
                    ids.push(found);
                }
            }
            for (number, id) in ids.iter().enumerate() {
                text = text.replace(id, &format!("{stand_in}{}", number + 1));
            }
        }
        let uuids = &mut self.uuids;
        let numbered = |found: &Captures<'_>| {
            let found = found[0].to_owned();
            let number = uuids.iter().position(|earlier| *earlier == found).unwrap_or_else(|| {
                uuids.push(found);
                uuids.len() - 1
            });
            format!("00000000-0000-4000-8000-{:012}", number + 1)
        };
        self.uuid.replace_all(&text, numbered).into_owned()
    }

    /// Like [`Normaliser::text`], without the lines about the machine.
    pub fn stderr(&mut self, text: &str) -> String {
        let kept: String = text
            .split_inclusive('\n')
            .filter(|line| !NOISE.iter().any(|noise| line.starts_with(noise)))
            .collect();
        self.text(&kept)
    }
}

fn pattern(text: &str) -> io::Result<Regex> {
    Regex::new(text).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normaliser() -> Normaliser {
        Normaliser::new(Path::new("/var/tmp/desk-7"), Path::new("/opt/tools"), "http://127.0.0.1:4711")
            .unwrap()
    }

    #[test]
    fn same_id_has_the_same_placeholder_across_texts() {
        let mut normaliser = normaliser();
        let (a, b) = ("0a669051-c81f-40a5-9ef0-d4513f721e9c", "01a1ddd0-6851-7971-b830-161b37246785");
        let first = normaliser.text(&format!("{b} {a}"));
        assert_eq!(first, "00000000-0000-4000-8000-000000000001 00000000-0000-4000-8000-000000000002");
        assert_eq!(normaliser.text(a), "00000000-0000-4000-8000-000000000002");
    }

    #[test]
    fn background_task_ids_are_replaced_everywhere() {
        let text = r#"{"task_id":"b0m8","run_id":"0m-6"} ID: b0m8. {"task_id":"c1"}"#;
        let expected = r#"{"task_id":"task1","run_id":"run1"} ID: task1. {"task_id":"task2"}"#;
        assert_eq!(normaliser().text(text), expected);
    }

    #[test]
    fn times_paths_and_ports_are_normalized() {
        let line = r#"{"cwd":"/var/tmp/desk-7/work","duration_ms":137,"at":"2026-11-15T06:06:27.462Z","url":"http://127.0.0.1:4711/v1"}"#;
        let expected = r#"{"cwd":"/desk/work","duration_ms":1,"at":"2026-01-01T00:00:00.000Z","url":"http://127.0.0.1:1/v1"}"#;
        assert_eq!(normaliser().text(line), expected);
    }

    #[test]
    fn machine_noise_is_dropped_from_stderr_only() {
        let text = "Ripgrep is not available. Falling back to GrepTool.\nError: no\n";
        assert_eq!(normaliser().stderr(text), "Error: no\n");
        assert_eq!(normaliser().text(text), text);
    }
}
