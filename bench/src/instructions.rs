//! Instruction counts of the hot paths, by callgrind: independent of the load of the machine.
//!
//! Stores a baseline for each build profile and prints the change. A change is not judged.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{fs, iter};

use crate::Failure;
use crate::executables::Executables;

/// The hot paths, the unit of each, and the number of repetitions.
const PATHS: [(&str, &str, u32); 6] = [
    ("parse-claude", "a claude session with a tool call, bytes to events", 100),
    ("parse-codex", "a codex session with a tool call, bytes to events", 100),
    ("parse-gemini", "a gemini session with a tool call, bytes to events", 100),
    ("framing", "the claude session in 64-byte chunks", 100),
    ("store-cycle", "submit, claim and finish on SQLite in memory", 100),
    ("mcp-call", "a `tools/call` read, its answer of 1 kB written", 100),
];

/// The build profile, which decides the comparable baseline.
const BUILD: &str = if cfg!(debug_assertions) { "debug" } else { "release" };

type Counts = BTreeMap<String, u64>;

/// Returns the reason why instructions cannot be counted here.
pub fn missing() -> Option<&'static str> {
    let found =
        Command::new("valgrind").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    (!found.is_ok_and(|status| status.success()))
        .then_some("valgrind is not installed; run `scripts/valgrind`")
}

/// Counts all paths and returns the table of changes. With `keep`, they become the baseline.
pub fn table(executables: &Executables, work: &Path, keep: bool) -> Result<String, Failure> {
    let program = executables.directory().join("hot-path");
    let mut baselines = read()?;
    let baseline = baselines.entry(BUILD.to_owned()).or_default();
    let mut counts = Counts::new();
    let mut table =
        "| hot path | operation | instructions | baseline | change |\n| --- | --- | --- | --- | --- |\n"
            .to_owned();
    for (name, what, times) in PATHS {
        let [once, often] = [1, 1 + times].map(|times| count(&program, name, times, work));
        let each = often?.saturating_sub(once?) / u64::from(times);
        let (before, change) = compared(baseline.get(name).copied(), each);
        writeln!(table, "| {name} | {what} | {each} | {before} | {change} |")?;
        counts.insert(name.to_owned(), each);
    }
    if keep {
        *baseline = counts;
        write(&baselines)?;
    }
    Ok(table)
}

fn compared(before: Option<u64>, now: u64) -> (String, String) {
    let Some(before) = before else { return ("–".to_owned(), "new".to_owned()) };
    #[expect(clippy::cast_precision_loss, reason = "a change is told to a tenth of a percent")]
    let change = (now as f64 / before.max(1) as f64 - 1.0) * 100.0;
    (before.to_string(), format!("{change:+.1} %"))
}

fn count(program: &Path, name: &str, times: u32, work: &Path) -> Result<u64, Failure> {
    let out = work.join(format!("{name}-{times}"));
    let status = Command::new("valgrind")
        .args(["--tool=callgrind", "--quiet"])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(program)
        .args([name, &times.to_string()])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    if !status.success() {
        return Err(format!("`hot-path {name} {times}` under valgrind: {status}").into());
    }
    total(&fs::read_to_string(&out)?).ok_or_else(|| format!("callgrind counted nothing for `{name}`").into())
}

fn total(counted: &str) -> Option<u64> {
    let line = |word| counted.lines().find_map(|line| line.strip_prefix(word));
    line("totals: ").or_else(|| line("summary: "))?.trim().parse().ok()
}

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("baselines/instructions.toml")
}

/// By the way of building.
fn read() -> Result<BTreeMap<String, Counts>, Failure> {
    match fs::read_to_string(file()) {
        Ok(text) => Ok(toml::from_str(&text)?),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(BTreeMap::new()),
        Err(error) => Err(error.into()),
    }
}

fn write(baselines: &BTreeMap<String, Counts>) -> Result<(), Failure> {
    let head = "# Instructions per operation of each hot path, by build profile. Committed by `bench instructions --keep`.\n";
    let text: String = iter::once(head.to_owned()).chain(iter::once(toml::to_string(baselines)?)).collect();
    fs::create_dir_all(file().parent().ok_or("cannot determine the directory of the baselines")?)?;
    Ok(fs::write(file(), text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn change_is_relative_to_the_baseline() {
        assert_eq!(compared(Some(1000), 1050), ("1000".to_owned(), "+5.0 %".to_owned()));
        assert_eq!(compared(Some(1000), 990).1, "-1.0 %");
        assert_eq!(compared(None, 5).1, "new");
    }

    #[test]
    fn profile_total_is_parsed() {
        assert_eq!(total("version: 1\nsummary: 17\nfn=(1)\n1 2\ntotals: 42\n"), Some(42));
        assert_eq!(total("version: 1\n"), None);
    }
}
