//! Renders the `--help` text. The steps come from the table of the language, so none can be missing.

use std::fmt::Write as _;

use crate::script::STEPS;
use crate::voice::ScriptedFailureKind;

const INTRODUCTION: &str = "\
rehearsal: a scripted coding agent, for trying out a workflow without spending tokens, and for tests

usage: rehearsal [--as claude|codex|gemini|plain] [--script FILE] < PROMPT

It reads its prompt from stdin and answers in the stream format of a real agent's CLI. Flags of the real
programs are let pass, so it can stand in their place. Without a script it repeats what it was told.

flags:
  --as NAME         whose format to speak (claude)
  --script FILE     play the steps in FILE; the prompt is then plain text
  --ignore-stdin    do not read the prompt at all (with --script)
  --model NAME      echoed in the events (also -m)
  --session-id ID, --resume ID, exec resume ID (codex), --fork-session
                    decide the session id in the events; without one it is new
  --max-turns N     the limit that the step `max-turns` runs into
  --help, --version
Everything else is ignored.

script:
  In the prompt, a line that starts with `@rehearse ` is a step, and the rest is plain text. In a script
  file every line is a step, except empty lines and `#` comments. Steps are played in order. The first
  event is preceded by the opening of the session. A turn that no step has ended ends with success: its
  text is everything said, or, if nothing was, the plain text repeated. After `answer`, `fail` or
  `max-turns` the script goes on, so an agent can give its result and then hang.
  TEXT is the rest of the line; \"in quotes\" it may hold \\n, \\t, \\\" and \\\\. TIME is like 200ms, 3s, 2m;
  SIZE like 64kB, 100MB, 1MiB, 1GB.

steps:
";

const OPTIONS_OF_SPAWN: &str = "\
options of `spawn`:
  same-group        a child in the agent's process group
  setsid            a child with a session of its own
  daemon            double-forked: an orphan, its session's leader gone
  ignore-term       it ignores TERM, INT and HUP
  keep-stdout       it holds stdout and stderr open (else /dev/null: no-stdout)
  clear-env         it has no environment
  for TIME          it lives that long (600s)
  pid=PATH          it appends its pid to PATH
  The step is over when all of this is true of the descendant.

exit codes:
  those of the real programs; 2 for a mistake in a flag or a step; 70 for a step that could not be played;
  141 when nobody reads stdout any more
";

/// Renders the whole text.
pub(crate) fn text() -> String {
    let mut text = INTRODUCTION.to_owned();
    for entry in STEPS {
        // A usage that is too long for the column gets a line of its own.
        let gap = if entry.usage.len() > 30 { "\n  " } else { "" };
        let width = if gap.is_empty() { 30 } else { 0 };
        let indent = if gap.is_empty() { "" } else { "                              " };
        let _ = writeln!(text, "  {:width$}{gap}{indent} {}", entry.usage, entry.does);
    }
    let kinds = ScriptedFailureKind::ALL.map(ScriptedFailureKind::name).join(", ");
    let _ = write!(text, "\nkinds of `fail`:\n  {kinds}\n\n{OPTIONS_OF_SPAWN}");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_is_documented() {
        let readme = include_str!("../README.md");
        for entry in STEPS {
            assert!(text().contains(entry.usage), "help: {}", entry.usage);
            // In a table cell of Markdown a bar must be escaped.
            let row = format!("| `{}` | {} |", entry.usage.replace('|', "\\|"), entry.does);
            assert!(readme.contains(&row), "README.md lacks the row\n{row}");
        }
    }

    #[test]
    fn help_fits_a_wide_terminal() {
        for line in text().lines() {
            assert!(line.chars().count() <= 110, "{line}");
        }
    }
}
