//! The report of a group as text: its table, the verdict or the synthesis, and the next commands.

use std::process::ExitCode;

use calls::{Answer, ChangesState, Contender, GroupReport, JobStatus, VerdictState, VerificationState};
use model::JobId;
use protocol::{CancelledEntry, DaemonConnector, DaemonRequest, RequestError};
use render::duration::format_millis;
use render::text::{format_dollars, strip_control};

use crate::changes::{describe_collisions, list_first, short_id};
use crate::client::JobReply;
use crate::closing::describe_problem;
use crate::exit_status::ExitStatus;
use crate::failure::CommandFailure;
use crate::{client, output, style};

/// A cell without a value.
const UNKNOWN: &str = "-";

/// Requests the state of a group, with at most `max_chars` characters of each answer.
pub fn fetch(
    connector: &mut DaemonConnector,
    group: &str,
    max_chars: Option<usize>,
) -> Result<GroupReport, RequestError> {
    let request = DaemonRequest::Group { group: group.to_owned(), max_chars };
    match protocol::request(connector, &request)? {
        JobReply::Group { report } => Ok(serde_json::from_value(report)?),
        _ => Err(RequestError::UnexpectedReply),
    }
}

/// Prints the state of a group.
pub fn status(group: &str, json: bool) -> Result<ExitCode, CommandFailure> {
    let report = fetch(&mut client::connector()?, group, None)?;
    if json {
        output::line(&serde_json::to_string_pretty(&report)?);
    } else {
        output::line(&format!("{}: {}", report.group_id, describe_state(&report)));
        output::line(&table(&report, style::stdout_width()));
        for line in remarks(&report) {
            output::line(&line);
        }
        if let Some(synthesis) = synthesis(&report) {
            output::line(&format!("\n{synthesis}"));
        }
    }
    Ok(exit_status(&report).into())
}

/// Cancels the unfinished jobs of a group.
pub fn cancel(connector: &mut DaemonConnector, group: &str, json: bool) -> Result<(), RequestError> {
    let reply = protocol::request(connector, &DaemonRequest::CancelGroup { group: group.to_owned() })?;
    let JobReply::GroupCancelled { jobs, .. } = reply else { return Err(RequestError::UnexpectedReply) };
    for job in &jobs {
        print_cancelled(job, json);
    }
    Ok(())
}

/// Prints the effect of a cancellation.
pub fn print_cancelled(job: &CancelledEntry, json: bool) {
    let CancelledEntry { job_id, previous, now } = job;
    if json {
        let line = serde_json::json!({ "job_id": job_id, "previous": previous, "status": now });
        output::line(&line.to_string());
    } else if now.ended().is_some() {
        output::line(&format!("{job_id}: {}", now.as_str()));
    } else {
        output::line(&format!("{job_id}: stopping"));
    }
}

/// Returns the exit status for a group. A race needs one agent that completed the task, other groups their synthesis.
pub fn exit_status(report: &GroupReport) -> ExitStatus {
    match report.decisive_answer().filter(|_| report.has_ended) {
        Some(answer) => ExitStatus::from_answer(answer),
        None if report.has_ended => ExitStatus::Failed,
        None => ExitStatus::StillRunning,
    }
}

/// Prints a report: the table of a race or the synthesis to stdout, everything else to stderr.
pub fn print(report: &GroupReport) {
    let table = table(report, style::stdout_width());
    match synthesis(report) {
        _ if report.is_race() => output::line(&table),
        Some(synthesis) => {
            output::line(synthesis);
            output::aside(&format!("\n{table}"));
        }
        None => output::aside(&table),
    }
    for line in remarks(report) {
        output::aside(&line);
    }
    output::aside(&format!("group: {}", report.group_id));
}

/// Returns the answer that combines the others.
fn synthesis(report: &GroupReport) -> Option<&str> {
    let answer = report.reviews.last().filter(|_| !report.is_race())?;
    (!answer.output.is_empty()).then_some(&answer.output)
}

/// Describes the state of a group: `2 of 3 agents completed the task`.
pub fn describe_state(report: &GroupReport) -> String {
    let total = report.contenders.len();
    let count = |is: fn(&Answer) -> bool| report.contenders.iter().filter(|one| is(&one.answer)).count();
    if report.has_ended {
        let done = if report.is_race() { "completed the task" } else { "answered" };
        format!("{} of {total} agents {done}", count(|answer| answer.status == JobStatus::Completed))
    } else {
        format!("{} of {total} agents have finished", count(|answer| answer.status.is_final()))
    }
}

/// A column of the table: its head, and the cell of a contender.
type Column = (&'static str, fn(&Contender) -> String);

fn table(report: &GroupReport, width: Option<usize>) -> String {
    const ALL: [Column; 12] = [
        ("#", |contender| contender.number.to_string()),
        ("AGENT", |contender| contender.answer.agent.clone()),
        ("MODEL", |contender| contender.answer.model.as_deref().map_or_else(unknown, strip_control)),
        ("STATUS", |contender| contender.answer.status.as_str().to_owned()),
        ("VERIFIED", |contender| describe_verified(&contender.answer).map_or_else(unknown, str::to_owned)),
        ("FILES", |contender| changed(&contender.answer, |changes| changes.files_changed.to_string())),
        ("LINES", |contender| {
            changed(&contender.answer, |changes| match changes.files_changed {
                0 => unknown(),
                _ => format!("+{} −{}", changes.lines_added, changes.lines_removed),
            })
        }),
        ("OVERLAPS", |contender| match contender.overlaps.len() {
            0 => unknown(),
            files => files.to_string(),
        }),
        ("CHANGES", |contender| {
            let changes = contender.answer.changes.as_ref().filter(|changes| changes.files_changed > 0);
            let checkout = changes.and_then(|changes| changes.checkout.as_ref());
            checkout.map_or_else(unknown, |checkout| checkout.state.name().to_owned())
        }),
        ("COST", |contender| contender.answer.cost_usd.map_or_else(unknown, format_dollars)),
        ("TOOK", |contender| format_millis(contender.answer.duration_ms)),
        ("JOB", |contender| short_id(&contender.answer.job_id)),
    ];
    // A column without any value is omitted.
    let columns: Vec<(&str, Vec<String>)> = ALL
        .iter()
        .map(|(head, cell)| (*head, report.contenders.iter().map(cell).collect::<Vec<_>>()))
        .filter(|(_, cells)| cells.iter().any(|cell| cell != UNKNOWN))
        .collect();
    let heads: Vec<&str> = columns.iter().map(|(head, _)| *head).collect();
    let row = |at: usize| columns.iter().map(|(_, cells)| cells[at].clone()).collect();
    let rows: Vec<Vec<String>> = (0..report.contenders.len()).map(row).collect();
    let optional = ["MODEL", "COST", "OVERLAPS", "TOOK"];
    let (heads, rows) = style::drop_columns(&heads, rows, &optional, width);
    style::table(&heads, &rows, width).join("\n")
}

fn unknown() -> String {
    UNKNOWN.to_owned()
}

fn changed(answer: &Answer, describe: impl Fn(&calls::Changes) -> String) -> String {
    answer.changes.as_ref().map_or_else(unknown, describe)
}

/// Describes the verification in a word; none before it has run.
pub fn describe_verified(answer: &Answer) -> Option<&'static str> {
    answer.verified.as_ref().map(|verification| match verification.state {
        VerificationState::Passed => "passed",
        VerificationState::Failed => "failed",
        VerificationState::NotRun => "not run",
    })
}

/// Returns the lines below the table.
fn remarks(report: &GroupReport) -> Vec<String> {
    let mut lines = Vec::new();
    for Contender { number, answer, .. } in &report.contenders {
        lines.extend(describe_failure(&format!("{number} ({})", answer.agent), answer));
        let collisions = answer.changes.as_ref().and_then(|changes| changes.checkout.as_ref());
        let collisions = collisions.and_then(|checkout| describe_collisions(&checkout.collisions));
        lines.extend(collisions.map(|collisions| format!("{number} ({}): {collisions}", answer.agent)));
    }
    lines.extend(describe_overlaps(&report.contenders));
    let reviewer = if report.is_race() { "judge" } else { "synthesis" };
    if let Some(verdict) = &report.verdict {
        lines.push(format!("verdict: {}", strip_control(&verdict.reason)));
    } else {
        lines.extend(report.reviews.iter().flat_map(|review| describe_failure(reviewer, review)));
    }
    let reviews: Vec<String> = report.reviews.iter().map(|review| short_id(&review.job_id)).collect();
    lines.extend((!reviews.is_empty()).then(|| format!("{reviewer}: {}", reviews.join(", "))));
    lines.extend(next_step(report));
    lines
}

/// Describes why a call did not complete, and the remedy.
fn describe_failure(who: &str, answer: &Answer) -> Vec<String> {
    match &answer.error {
        Some(error) if answer.status.is_final() && answer.status != JobStatus::Cancelled => {
            let hint = strip_control(&error.hint);
            vec![
                format!("{who} {}: {}", answer.status.as_str(), describe_problem(error)),
                format!("  hint: {hint}"),
            ]
        }
        _ => Vec::new(),
    }
}

/// Lists the files that several contenders have changed: `changed by several: src/a.rs (1, 3)`.
fn describe_overlaps(contenders: &[Contender]) -> Option<String> {
    let mut files = std::collections::BTreeMap::<&str, Vec<String>>::new();
    for contender in contenders {
        for path in &contender.overlaps {
            files.entry(path).or_default().push(contender.number.to_string());
        }
    }
    let files = files.iter().map(|(path, by)| format!("{} ({})", strip_control(path), by.join(", ")));
    list_first(&files.collect::<Vec<_>>(), "; ").map(|files| format!("changed by several: {files}"))
}

/// Names the command that keeps the changes of a contender.
fn next_step(report: &GroupReport) -> Option<String> {
    if !report.has_ended {
        return Some(format!("wait for it with `switchboard wait {}`", short_group_id(&report.group_id)));
    }
    let open: Vec<&Contender> =
        report.contenders.iter().filter(|one| has_open_changes(&one.answer)).collect();
    let winner = report.verdict.as_ref().filter(|verdict| verdict.state == VerdictState::Decided);
    let winner = winner.and_then(|verdict| verdict.winner.as_deref());
    let winner = winner.filter(|winner| open.iter().any(|one| one.answer.job_id == **winner));
    let job = match (winner, open.as_slice()) {
        (_, []) => return None,
        (Some(winner), _) => short_id(winner),
        (None, [only]) => short_id(&only.answer.job_id),
        (None, _) => "JOB".to_owned(),
    };
    Some(format!(
        "see the changes of a job with `switchboard diff {job}`, keep them with `switchboard keep {job}`"
    ))
}

/// Returns whether the changes of a call are neither applied nor discarded.
pub fn has_open_changes(answer: &Answer) -> bool {
    let Some(changes) = &answer.changes else { return false };
    let checkout = changes.checkout.as_ref();
    changes.files_changed > 0 && checkout.is_some_and(|checkout| checkout.state == ChangesState::Open)
}

/// Shortens the id of a group for a command.
pub fn short_group_id(group: &str) -> String {
    match model::GroupId::strip_prefix(group) {
        Some(job) if job.parse::<JobId>().is_ok() => format!("group-{}", short_id(job)),
        _ => group.to_owned(),
    }
}
