//! Renders the `--help` text. The steps come from the table of the language, so none can be missing.

use std::fmt::Write as _;

use crate::script::STEPS;
use crate::voice::ScriptedFailureKind;

const INTRODUCTION: &str = "\
rehearsal: a scripted coding agent, for trying out a workflow without spending tokens, and for tests

usage: rehearsal [--as claude|codex|gemini|acp|plain] [--script FILE] < PROMPT

It reads its prompt from stdin and prints the stream format of a real agent's CLI. It accepts the flags of
the real programs, so it can replace them. Without a script it repeats its prompt. As `acp`, as claude
with `--input-format stream-json` and as codex with `app-server` it converses with a client over stdin.

flags:
  --as NAME         output format (default: claude)
  --script FILE     play the steps in FILE; the prompt is then plain text
  --ignore-stdin    do not read a prompt (with --script)
  --model NAME      model name in the events (also -m)
  --session-id ID, --resume ID, exec resume ID (codex), --fork-session
                    set the session id in the events (default: a new UUID)
  --opening FAULT   a fault before the prompt of a client (repeatable): banner, silent=METHOD,
                    reject=METHOD, exit=METHOD, version=N, logged-out, unknown-session, half-replay, deaf
  --max-turns N     limit that the step `max-turns` reports
  --help, --version
All other flags are ignored.

script:
  In the prompt, a line that starts with `@rehearse ` is a step, and the rest is plain text. In a script
  file every line is a step, except empty lines and `#` comments. Steps are played in order. The event
  that opens the session is printed before the first other event. If no step ends the turn, it succeeds.
  Its text is everything said so far, or else the prompt. After `answer`, `fail` or `max-turns` the script
  continues, so an agent can print its result and then hang.
  TEXT is the rest of the line; \"in quotes\" it may contain \\n, \\t, \\\" and \\\\. TIME: 200ms, 3s or 2m.
  SIZE: 64kB, 100MB, 1MiB or 1GB.

steps:
";

const OPTIONS_OF_SPAWN: &str = "\
options of `spawn`:
  same-group        a child in the agent's process group
  setsid            a child in its own session
  daemon            double-forked, so that it is orphaned
  ignore-term       ignores TERM, INT and HUP
  keep-stdout       holds stdout and stderr open (default: no-stdout, which is /dev/null)
  clear-env         has no environment
  for TIME          exits after TIME (default: 600s)
  pid=PATH          appends its pid to PATH
  The step ends once the descendant is in this state.

exit codes:
  those of the real programs; 2: invalid flag or step; 70: a step could not be played; 141: stdout was closed
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
