//! The report of a group as text: its table, the verdict or the synthesis, and the next commands.

use std::collections::BTreeSet;
use std::process::ExitCode;

use calls::{
    Answer, ChangesState, Collision, Contender, GroupReport, JobStatus, VerdictState, VerificationState,
};
use model::JobId;
use protocol::{CancelledEntry, DaemonConnector, DaemonRequest, RequestError};
use render::duration::format_millis;
use render::text::{format_count, format_dollars, strip_control};

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
        print_status(&report);
    }
    Ok(exit_status(&report).into())
}

/// Prints a report to stdout.
pub fn print_status(report: &GroupReport) {
    output::line(&format!("{}: {}", report.group_id, describe_state(report)));
    output::line(&table(report, style::stdout_width()));
    for line in remarks(report) {
        output::line(&line);
    }
    if !report.is_race() {
        for text in answer_texts(report) {
            output::line(&format!("\n{text}"));
        }
    }
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

/// Prints a report: the table of a race or the combined answer to stdout, everything else to stderr.
pub fn print(report: &GroupReport) {
    let table = table(report, style::stdout_width());
    if report.is_race() {
        output::line(&table);
    } else {
        let texts = answer_texts(report);
        for text in &texts {
            output::line(text);
        }
        output::aside(&if texts.is_empty() { table } else { format!("\n{table}") });
    }
    for line in remarks(report) {
        output::aside(&line);
    }
    output::aside(&format!("group: {}", report.group_id));
}

/// Returns the answer that combines the others. If there is none at the end, returns the others with their numbers.
fn answer_texts(report: &GroupReport) -> Vec<String> {
    let has_answer = |answer: &&Answer| answer.status == JobStatus::Completed;
    let combined: Vec<String> =
        report.reviews.iter().filter(has_answer).map(|review| review.output.clone()).collect();
    if !combined.is_empty() || !report.has_ended {
        return combined;
    }
    let contenders = report.contenders.iter().filter(|contender| has_answer(&&contender.answer));
    let single = contenders.map(|Contender { number, answer, .. }| {
        format!("answer {number} ({}):\n{}", describe_agent(answer), answer.output)
    });
    single.collect()
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

/// The columns that a narrow terminal does not show, the least important first.
const OPTIONAL: [&str; 7] = ["COST", "TOOK", "OVERLAPS", "CHANGES", "LINES", "FILES", "VERIFIED"];

fn table(report: &GroupReport, width: Option<usize>) -> String {
    const ALL: [Column; 11] = [
        ("#", |contender| contender.number.to_string()),
        ("AGENT", |contender| describe_agent(&contender.answer)),
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
    let (heads, rows) = style::drop_columns(&heads, rows, &OPTIONAL, width);
    style::table(&heads, &rows, width).join("\n")
}

/// Names the agent of a call, with its model if that is known: `claude:opus`.
pub fn describe_agent(answer: &Answer) -> String {
    match &answer.model {
        Some(model) => format!("{}:{}", answer.agent, strip_control(model)),
        None => answer.agent.clone(),
    }
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
    for contender in &report.contenders {
        let name = format!("{} ({})", contender.number, describe_agent(&contender.answer));
        lines.extend(describe_failure(&name, &contender.answer));
        lines.extend(describe_user_collisions(&contender.answer).map(|found| format!("{name}: {found}")));
    }
    lines.extend(describe_overlaps(&report.contenders));
    lines.extend(describe_other_collisions(&report.contenders));
    let reviewer = if report.is_race() { "judge" } else { "synthesis" };
    if let Some(verdict) = &report.verdict {
        lines.push(format!("verdict: {}", strip_control(&verdict.reason)));
    } else {
        lines.extend(report.reviews.iter().flat_map(|review| describe_failure(reviewer, review)));
    }
    let reviews: Vec<String> = report.reviews.iter().map(|review| short_id(&review.job_id)).collect();
    lines.extend((!reviews.is_empty()).then(|| format!("{reviewer}: {}", reviews.join(", "))));
    lines.extend(describe_cost(report));
    lines.extend(next_step(report));
    lines
}

/// Returns the cost of all jobs, those that compare the results included.
fn describe_cost(report: &GroupReport) -> Option<String> {
    let answers = report.contenders.iter().map(|contender| &contender.answer).chain(&report.reviews);
    let costs: Vec<f64> = answers.clone().filter_map(|answer| answer.cost_usd).collect();
    let unknown = answers.count() - costs.len();
    let sum = format_dollars(costs.iter().sum());
    let jobs = format_count(u32::try_from(unknown).unwrap_or(u32::MAX), "job", "jobs");
    match (costs.len(), unknown) {
        (0, _) => None,
        (_, 0) => Some(format!("cost: {sum} in all")),
        (_, _) => Some(format!("cost: {sum}, without {jobs} that reported none")),
    }
}

/// Describes the collisions of open changes with the files of the user.
fn describe_user_collisions(answer: &Answer) -> Option<String> {
    describe_collisions(&open_collisions(answer, |collision| collision.job_id.is_none()))
}

/// Returns the files that open changes of other calls have changed, too, in one line for the whole group.
fn describe_other_collisions(contenders: &[Contender]) -> Option<String> {
    let (mut files, mut jobs) = (BTreeSet::new(), BTreeSet::new());
    for contender in contenders {
        for collision in open_collisions(&contender.answer, |collision| collision.job_id.is_some()) {
            files.insert(strip_control(&collision.path));
            jobs.extend(collision.job_id);
        }
    }
    let others = format_count(u32::try_from(jobs.len()).unwrap_or(u32::MAX), "other call", "other calls");
    let files = list_first(&files.into_iter().collect::<Vec<_>>(), ", ")?;
    Some(format!("also in open changes of {others}: {files}; see `switchboard jobs --open-changes`"))
}

fn open_collisions(answer: &Answer, is_wanted: fn(&Collision) -> bool) -> Vec<Collision> {
    let checkout = answer.changes.as_ref().and_then(|changes| changes.checkout.as_ref());
    let open = checkout.filter(|checkout| checkout.state == ChangesState::Open);
    open.into_iter().flat_map(|checkout| &checkout.collisions).filter(|one| is_wanted(one)).cloned().collect()
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
    let group = short_group_id(&report.group_id);
    Some(format!(
        "see the changes of a job with `switchboard diff {job}`, keep them with `switchboard keep {job}`, or drop all with \
         `switchboard discard {group}`"
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
