//! Compares a new transcript with the stored one.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

/// The number of characters around a difference.
const AROUND: usize = 120;

/// Prints the differences of two transcripts. Returns whether there are none.
pub fn tell(kept: &Path, fresh: &Path, name: &Path) -> io::Result<bool> {
    let mut stdout = io::stdout().lock();
    let mut same = true;
    for file in ["argv.json", "stdout", "stderr", "exit"] {
        let (old, new) = (read(&kept.join(file)), read(&fresh.join(file)));
        if old == new {
            continue;
        }
        same = false;
        writeln!(stdout, "drift: {}", name.join(file).display())?;
        for line in differences(&old, &new) {
            writeln!(stdout, "  {line}")?;
        }
    }
    Ok(same)
}

fn read(file: &Path) -> String {
    // A missing transcript differs in every line.
    fs::read_to_string(file).unwrap_or_default()
}

/// Returns lines only in `old` with `-`, lines only in `new` with `+`; for a pair, the differing part.
fn differences(old: &str, new: &str) -> Vec<String> {
    let (old_lines, new_lines): (BTreeSet<&str>, BTreeSet<&str>) =
        (old.lines().collect(), new.lines().collect());
    let gone: Vec<&str> = old.lines().filter(|line| !new_lines.contains(line)).collect();
    let come: Vec<&str> = new.lines().filter(|line| !old_lines.contains(line)).collect();
    if gone.is_empty() && come.is_empty() {
        return vec!["the same lines in another order or number".to_owned()];
    }
    let mut told = Vec::new();
    for number in 0..gone.len().max(come.len()) {
        let (was, is) = (gone.get(number), come.get(number));
        let parting = match (was, is) {
            (Some(was), Some(is)) => was.bytes().zip(is.bytes()).take_while(|(a, b)| a == b).count(),
            _ => 0,
        };
        told.extend(was.map(|line| format!("- {}", excerpt(line, parting))));
        told.extend(is.map(|line| format!("+ {}", excerpt(line, parting))));
    }
    told
}

/// Returns an excerpt of a line around byte `at`.
fn excerpt(line: &str, at: usize) -> String {
    let from = line.floor_char_boundary(at.saturating_sub(AROUND));
    let to = line.ceil_char_boundary((at + AROUND).min(line.len()));
    let (before, after) = (if from > 0 { "…" } else { "" }, if to < line.len() { "…" } else { "" });
    format!("{before}{}{after}", &line[from..to])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_line_is_shown_at_the_difference() {
        let (old, new) = (format!("{}old tail", "x".repeat(500)), format!("{}new tail", "x".repeat(500)));
        let told = differences(&old, &new);
        assert_eq!(told.len(), 2);
        assert!(told[0].starts_with("- …xxx") && told[0].ends_with("xold tail"), "{told:?}");
        assert!(told[1].starts_with("+ …xxx") && told[1].ends_with("xnew tail"), "{told:?}");
    }

    #[test]
    fn changed_order_is_drift() {
        assert_eq!(differences("a\nb\n", "b\na\n"), ["the same lines in another order or number"]);
    }
}
