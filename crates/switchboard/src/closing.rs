//! The closing lines of a call: outcome, usage, refusals, and the command that resumes it.
//!
//! Unknown figures and expected outcomes are omitted.

use std::io;
use std::path::Path;

use calls::{Answer, JobStatus, Problem, Processes, Sandbox, Verification, VerificationState};
use model::{CallSpec, FailureKind, Outcome, RunReport, TreeEnd};
use render::duration::format_millis;
use render::text::{abbreviate, format_count, format_dollars, sanitize, shell_quote, strip_control};
use unicode_width::UnicodeWidthStr;

use crate::changes::summary_lines;
use crate::{output, style};

/// The facts of an ended or running call.
#[derive(Debug)]
pub struct ClosingLines {
    status: JobStatus,
    duration_ms: u64,
    has_started: bool,
    model: Option<String>,
    turns: Option<u32>,
    /// Input and output.
    tokens: Option<(u64, u64)>,
    cost_usd: Option<f64>,
    because: Option<String>,
    hint: Option<String>,
    notes: Vec<String>,
    sandbox: Option<Sandbox>,
    /// The verification, and the end of its output if it failed.
    verified: Vec<String>,
    /// The changed files, their place, and the next command.
    changes: Vec<String>,
    resume: Option<String>,
    /// The job, or the directory with the files of the run.
    reference: Option<String>,
}

impl ClosingLines {
    /// Collects the facts from the answer of a job.
    pub fn from_answer(answer: &Answer) -> Self {
        let leftover = match answer.processes {
            Some(Processes::SomeLeft) => Some("some of its processes could not be killed"),
            Some(Processes::NoneFound) => {
                Some("its supervisor was killed; every process found was killed, too")
            }
            Some(Processes::NoneLeft) | None => None,
        };
        // Notes of the sandbox have their own lines.
        let sandbox_notes = answer.sandbox.as_ref().map(Sandbox::notes).unwrap_or_default();
        let notes = answer.note.iter().filter(|_| answer.status.is_final()).flat_map(|note| note.lines());
        let because = answer.error.as_ref().map(describe_problem);
        let notes = notes.filter(|note| !sandbox_notes.iter().any(|known| known == note));
        let notes = notes.filter(|note| !is_repeated(note, because.as_deref()));
        Self {
            status: answer.status,
            duration_ms: answer.duration_ms,
            has_started: answer.processes.is_some() || answer.duration_ms > 0,
            model: answer.model.clone(),
            turns: answer.num_turns,
            tokens: answer.usage.map(|usage| (usage.input_tokens, usage.output_tokens)),
            cost_usd: answer.cost_usd,
            because: because.clone(),
            hint: answer.error.as_ref().map(|error| error.hint.clone()),
            notes: leftover.into_iter().chain(notes).map(|note| format!("note: {note}")).collect(),
            sandbox: answer.sandbox.clone(),
            verified: answer.verified.as_ref().map(describe_verification).unwrap_or_default(),
            changes: answer
                .changes
                .as_ref()
                .map(|changes| summary_lines(changes, &answer.job_id))
                .unwrap_or_default(),
            resume: answer
                .session_id
                .as_ref()
                .filter(|_| answer.status.is_final() && !answer.error.as_ref().is_some_and(leaves_no_session))
                .map(|session| resume(&answer.agent, session, answer.cwd.as_deref().map(Path::new))),
            reference: Some(format!("job: {}", answer.job_id)),
        }
    }

    /// Collects the facts of a call without the daemon, whose files are in `directory`.
    pub fn from_outcome(outcome: &Outcome, report: &RunReport, call: &CallSpec, directory: &Path) -> Self {
        let failure = outcome.failure();
        let left_alive = match report.tree {
            TreeEnd::LeftAlive { processes } => {
                Some(format!("note: {} could not be killed", format_count(processes, "process", "processes")))
            }
            TreeEnd::ProvenEmpty | TreeEnd::SweptByIdentity => None,
        };
        let killed = calls::killed_processes_note(report.descendants_ended.into(), &report.end);
        let sandbox = report.sandbox.as_ref().map(|report| Sandbox::from(report).for_call(call));
        let lowered = sandbox
            .as_ref()
            .and_then(|sandbox| calls::ceiling_note(call.requested_preset(), &sandbox.policy));
        let because = failure.map(|failure| format!("{} ({})", failure.message, failure.kind.name()));
        let notes = outcome.notes().into_iter().filter(|note| !is_repeated(note, because.as_deref()));
        let notes = notes.chain(killed).chain(lowered).map(|note| format!("note: {note}"));
        let notes = notes.chain(left_alive).collect();
        Self {
            status: match failure.map(|failure| &failure.kind) {
                None => JobStatus::Completed,
                Some(FailureKind::Deadline { .. }) => JobStatus::Timeout,
                Some(FailureKind::Stopped) => JobStatus::Cancelled,
                Some(_) => JobStatus::Failed,
            },
            duration_ms: report.duration_ms,
            has_started: true,
            model: outcome.model.clone(),
            turns: outcome.turns,
            tokens: outcome.usage.map(|usage| (usage.input, usage.output)),
            cost_usd: outcome.cost_usd,
            because,
            hint: outcome.hint().map(str::to_owned),
            notes,
            sandbox,
            verified: Vec::new(),
            changes: Vec::new(),
            resume: outcome
                .session
                .as_ref()
                .map(|session| resume(outcome.agent.name(), session.as_str(), Some(&call.cwd))),
            reference: Some(format!("files: {}", directory.display())),
        }
    }

    /// Omits the session and the directory of a call that leaves nothing.
    #[must_use]
    pub fn without_files(mut self) -> Self {
        (self.resume, self.reference) = (None, None);
        self
    }

    /// Prints the lines to stderr.
    pub fn print(&self) {
        output::aside("");
        self.lines(style::stderr_width()).iter().for_each(|line| output::aside(line));
    }

    fn lines(&self, width: Option<usize>) -> Vec<String> {
        let mut lines = wrap_figures(&self.figures(), width);
        let fact = |name: &str, text: &Option<String>| {
            text.as_ref().map(|text| format!("  {name}: {}", strip_control(text)))
        };
        lines.extend(fact("because", &self.because));
        lines.extend(fact("hint", &self.hint));
        lines.extend(self.notes.iter().map(|note| strip_control(note)));
        lines.extend(self.sandbox.as_ref().map(Sandbox::describe));
        lines.extend(self.sandbox.iter().flat_map(Sandbox::notes).map(|note| strip_control(&note)));
        if self.sandbox.as_ref().is_some_and(|sandbox| sandbox.commits_without_hooks > 0) {
            lines.push(
                "hint: run the hooks of a workspace that you trust with `--trust-workspace`".to_owned(),
            );
        }
        lines.extend(self.verified.clone());
        lines.extend(self.changes.clone());
        lines.extend(self.resume.as_ref().map(|command| format!("resume: {}", strip_control(command))));
        lines.extend(self.reference.clone());
        lines
    }

    /// Returns the outcome and the known figures.
    fn figures(&self) -> Vec<String> {
        let mut figures = vec![self.outcome()];
        // Without a turn, the model is the requested one, which did not answer.
        let has_answered =
            self.status == JobStatus::Completed || self.turns.is_some() || self.tokens.is_some();
        figures.extend(self.model.as_deref().filter(|_| has_answered).map(strip_control));
        figures.extend(self.turns.map(|turns| format_count(turns, "turn", "turns")));
        figures.extend(self.tokens.filter(|tokens| *tokens != (0, 0)).map(|(input, output)| {
            let tokens = if input == 1 { "token" } else { "tokens" };
            format!("{} {tokens} in, {} out", abbreviate(input), abbreviate(output))
        }));
        figures.extend(self.cost_usd.filter(|cost| *cost > 0.0).map(format_dollars));
        figures
    }

    fn outcome(&self) -> String {
        let took = format_millis(self.duration_ms);
        let status = match self.status {
            JobStatus::Timeout => style::red("timed out", &io::stderr()),
            status => style::job_status(status, &io::stderr()),
        };
        match self.status {
            _ if !self.has_started && self.status.is_final() => format!("{status} before it started"),
            JobStatus::Queued => status,
            JobStatus::Completed => format!("{status} in {took}"),
            JobStatus::Running => format!("{status} for {took}"),
            _ => format!("{status} after {took}"),
        }
    }
}

/// Formats the error of a job: its message and the documented kind.
pub fn describe_problem(error: &Problem) -> String {
    format!("{} ({})", strip_control(&error.message), error.kind)
}

/// Returns whether the reason of a failure already lists the items of a note, as in `2 background tasks did not complete: …`.
fn is_repeated(note: &str, because: Option<&str>) -> bool {
    let listed = note.split_once(": ").map_or(note, |(_, listed)| listed);
    because.is_some_and(|because| because.contains(listed))
}

/// Returns whether the agent failed before the session had content, so that it cannot be resumed.
fn leaves_no_session(problem: &Problem) -> bool {
    ["auth", "not_started", "session_not_found"].contains(&problem.kind.as_str())
}

/// Returns the command that resumes a session. Sessions belong to a directory.
fn resume(agent: &str, session: &str, cwd: Option<&Path>) -> String {
    let here = std::env::current_dir().ok();
    let elsewhere = cwd.filter(|cwd| here.as_deref() != Some(cwd)).and_then(Path::to_str);
    let cwd = elsewhere.map(|cwd| format!(" --cwd {}", shell_quote(cwd))).unwrap_or_default();
    format!("switchboard call {agent} --session {session}{cwd}")
}

/// Joins figures with dots and wraps them at the width of the terminal.
fn wrap_figures(figures: &[String], width: Option<usize>) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for figure in figures {
        match lines.last_mut() {
            // The first figure may contain SGR sequences, which have no width.
            Some(line) if width.is_none_or(|width| plain_width(line) + 3 + figure.width() <= width) => {
                line.push_str(" · ");
                line.push_str(figure);
            }
            Some(_) => lines.push(format!("  {figure}")),
            None => lines.push(figure.clone()),
        }
    }
    lines
}

fn plain_width(line: &str) -> usize {
    sanitize(line).width()
}

/// The lines of a failed verification that are shown.
const VERIFICATION_LINES: usize = 10;

/// Describes a verification, with the end of its output if it failed.
pub fn describe_verification(verification: &Verification) -> Vec<String> {
    let Verification { state, command, reason, duration_ms, output, repairs, restored, .. } = verification;
    let command = strip_control(command.lines().next().unwrap_or_default());
    let mut facts: Vec<String> = duration_ms.map(format_millis).into_iter().collect();
    facts.extend((*repairs > 0).then(|| format!("after {}", format_count(*repairs, "repair", "repairs"))));
    let facts = if facts.is_empty() { String::new() } else { format!(" ({})", facts.join(", ")) };
    let reason = strip_control(reason.as_deref().unwrap_or_default());
    let mut lines = vec![match state {
        VerificationState::Passed => format!("verified: `{command}` passed{facts}"),
        VerificationState::Failed => format!("not verified: `{command}` {reason}{facts}"),
        VerificationState::NotRun => format!("not verified: {reason}"),
    }];
    if !restored.is_empty() {
        let files: Vec<String> = restored.iter().map(|path| strip_control(path)).collect();
        lines.push(format!("restored before the verification: {}", files.join(", ")));
    }
    if *state == VerificationState::Failed {
        let output: Vec<&str> = output.as_deref().unwrap_or_default().lines().collect();
        let shown = &output[output.len().saturating_sub(VERIFICATION_LINES)..];
        lines.extend(shown.iter().map(|line| format!("  {}", strip_control(line))));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn closing() -> ClosingLines {
        ClosingLines {
            status: JobStatus::Completed,
            duration_ms: 12_300,
            has_started: true,
            model: Some("claude-opus-5-5".to_owned()),
            turns: Some(3),
            tokens: Some((12_400, 1100)),
            cost_usd: Some(0.042),
            because: None,
            hint: None,
            notes: Vec::new(),
            sandbox: None,
            verified: Vec::new(),
            changes: Vec::new(),
            resume: None,
            reference: Some("job: 1".to_owned()),
        }
    }

    #[test]
    fn failed_verification_shows_the_end_of_its_output() {
        let output: Vec<String> = (1..=20).map(|number| format!("\u{1b}[31mline {number}")).collect();
        let verification = Verification {
            state: VerificationState::Failed,
            command: "just test\nexit 1".to_owned(),
            reason: Some("ended with exit code 1".to_owned()),
            exit_code: Some(1),
            duration_ms: Some(4_100),
            output: Some(output.join("\n")),
            repairs: 2,
            restored: vec!["tests/a.rs".to_owned()],
        };
        let lines = describe_verification(&verification);
        assert_eq!(lines[0], "not verified: `just test` ended with exit code 1 (4.1 s, after 2 repairs)");
        assert_eq!(lines[1], "restored before the verification: tests/a.rs");
        assert_eq!(
            (lines.len(), lines[2].contains("line 11"), lines[2].contains('\u{1b}')),
            (12, true, false)
        );
        let passed = Verification { state: VerificationState::Passed, repairs: 0, ..verification };
        assert_eq!(describe_verification(&passed)[0], "verified: `just test` passed (4.1 s)");
    }

    #[test]
    fn figures_wrap_at_terminal_width() {
        let line = "completed in 12.3 s · claude-opus-5-5 · 3 turns · 12.4k tokens in, 1.1k out · $0.042";
        assert_eq!(closing().lines(None), [line, "job: 1"]);
        assert_eq!(
            closing().lines(Some(40)),
            [
                "completed in 12.3 s · claude-opus-5-5",
                "  3 turns · 12.4k tokens in, 1.1k out",
                "  $0.042",
                "job: 1"
            ]
        );
    }

    #[test]
    fn unknown_figures_are_omitted() {
        let unknown =
            ClosingLines { model: None, turns: Some(1), tokens: Some((0, 0)), cost_usd: None, ..closing() };
        assert_eq!(unknown.lines(None), ["completed in 12.3 s · 1 turn", "job: 1"]);
        let free = ClosingLines { model: None, turns: None, tokens: None, cost_usd: Some(0.0), ..closing() };
        assert_eq!(free.lines(None), ["completed in 12.3 s", "job: 1"]);
        let silent = ClosingLines {
            status: JobStatus::Failed,
            turns: None,
            tokens: None,
            cost_usd: None,
            ..closing()
        };
        assert_eq!(silent.lines(None), ["failed after 12.3 s", "job: 1"]);
    }

    #[test]
    fn outcome_shows_duration_if_started() {
        let shown = |status, has_started| ClosingLines { status, has_started, ..closing() }.outcome();
        assert_eq!(shown(JobStatus::Timeout, true), "timed out after 12.3 s");
        assert_eq!(shown(JobStatus::Running, true), "running for 12.3 s");
        assert_eq!(shown(JobStatus::Cancelled, false), "cancelled before it started");
        assert_eq!(shown(JobStatus::Queued, false), "queued");
    }

    #[test]
    fn resume_command_names_other_directory() {
        let here = std::env::current_dir().unwrap();
        assert_eq!(resume("claude", "1-2", Some(&here)), "switchboard call claude --session 1-2");
        assert_eq!(
            resume("codex", "1-2", Some(Path::new("/home/ana/my shop"))),
            "switchboard call codex --session 1-2 --cwd '/home/ana/my shop'"
        );
    }
}
