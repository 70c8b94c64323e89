//! `switchboard jobs`, `status ID`, `logs`, `wait`, `cancel` and `retry`.

use std::io;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use calls::{Answer, GroupReport, JobStatus};
use model::GroupId;
use protocol::{DaemonRequest, JobListEntry, JobQuery, OutputStream, RequestError};

use render::duration::format_millis;
use render::text::{format_dollars, strip_control, unique_prefix_length};
use render::tool_lines::Timing;

use crate::changes::summary_lines;
use crate::client::{self, JobReply};
use crate::closing::{describe_problem, describe_verification};
use crate::exit_status::ExitStatus;
use crate::failure::CommandFailure;
use crate::follow::{CtrlC, FollowLimit, check_job_output, follow};
use crate::view::{OutputMode, View};
use crate::{checkouts, cli, groups, output, style};

/// The poll interval of `--watch`.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Lists jobs.
pub fn list(args: &cli::ListJobs) -> Result<ExitCode, CommandFailure> {
    let mut connector = client::connector()?;
    let query = JobQuery {
        states: args.status.clone(),
        agent: args.agent,
        tool: args.tool.clone(),
        task: args.task.clone(),
        limit: args.limit,
    };
    loop {
        let reply = protocol::request(&mut connector, &DaemonRequest::Jobs(query.clone()))?;
        let JobReply::Jobs { jobs, total } = reply else { return Err(RequestError::UnexpectedReply.into()) };
        if args.json {
            output::line(&serde_json::to_string(&serde_json::json!({ "jobs": jobs, "total": total }))?);
        } else {
            if args.watch {
                output::clear_screen();
            }
            print_jobs(&jobs, total);
        }
        if !args.watch || output::is_stdout_lost() {
            return Ok(ExitCode::SUCCESS);
        }
        sleep(WATCH_INTERVAL);
    }
}

fn print_jobs(jobs: &[JobListEntry], total: u64) {
    if jobs.is_empty() {
        return output::line("no jobs");
    }
    let id_length = unique_prefix_length(jobs.iter().map(|job| job.job_id.as_str()).collect());
    let row = |job: &JobListEntry| {
        vec![
            job.job_id.chars().take(id_length).collect(),
            job.status.as_str().to_owned(),
            job.agent.to_string(),
            job.model.as_deref().map_or_else(|| "-".to_owned(), strip_control),
            format_time(job.created_at_ms),
            job.duration_ms.map_or_else(|| "-".to_owned(), format_millis),
            job.tokens.map_or_else(|| "-".to_owned(), |tokens| tokens.to_string()),
            job.cost_usd.map_or_else(|| "-".to_owned(), format_dollars),
            strip_control(&job.prompt),
        ]
    };
    let heads = ["ID", "STATUS", "AGENT", "MODEL", "SUBMITTED (UTC)", "TOOK", "TOKENS", "COST", "PROMPT"];
    let rows: Vec<Vec<String>> = jobs.iter().map(row).collect();
    // The prompt identifies a job best, so it keeps its room on a narrow terminal.
    let (heads, rows) = style::drop_columns(
        &heads,
        rows,
        &["MODEL", "TOKENS", "COST", "SUBMITTED (UTC)"],
        style::stdout_width(),
    );
    output::line(&style::table(&heads, &rows, style::stdout_width()).join("\n"));
    if total > jobs.len() as u64 {
        output::aside(&format!("{} of {total}; `--limit` shows more", jobs.len()));
    }
}

fn format_time(millis: u64) -> String {
    let seconds = i64::try_from(millis / 1000).unwrap_or_default();
    let time = chrono::DateTime::from_timestamp(seconds, 0);
    time.map(|time| time.format("%Y-%m-%d %H:%M:%S").to_string()).unwrap_or_default()
}

/// Prints the status of a job.
pub fn status(id: &str, json: bool) -> Result<ExitCode, CommandFailure> {
    let mut connector = client::connector()?;
    let answer = client::fetch_answer(&mut connector, id)?;
    if json {
        output::line(&serde_json::to_string_pretty(&answer)?);
    } else {
        let checkout = checkouts::describe_checkout(&mut connector, &answer)?;
        print_answer(&answer, checkout.as_deref());
    }
    Ok(ExitStatus::from_answer(&answer).into())
}

/// Prints an answer with the description of its private checkout.
fn print_answer(answer: &Answer, checkout: Option<&str>) {
    let line = |name: &str, value: &str| output::line(&format!("{name}: {}", strip_control(value)));
    output::line(&format!("job {}: {}", answer.job_id, style::job_status(answer.status, &io::stdout())));
    line("agent", &answer.agent);
    if let Some(model) = &answer.model {
        line("model", model);
    }
    if let Some(directory) = &answer.cwd {
        line("directory", directory);
    }
    if let Some(group) = &answer.group_id {
        line("group", group);
    }
    // Without a name, the task is the directory.
    if answer.cwd.as_ref() != Some(&answer.task_name) {
        line("task", &answer.task_name);
    }
    if let Some(waiting) = &answer.waiting {
        // Starts with the state: `queued: …`, `waiting for …`, `paused until …`.
        output::line(&strip_control(waiting));
    }
    match answer.status {
        JobStatus::Running => output::line(&format!("running for {}", format_millis(answer.duration_ms))),
        status if status.is_final() => line("took", &format_millis(answer.duration_ms)),
        _ => {}
    }
    if let Some(turns) = answer.num_turns {
        line("turns", &turns.to_string());
    }
    if let Some(usage) = answer.usage {
        line("tokens", &format!("{} in, {} out", usage.input_tokens, usage.output_tokens));
    }
    if let Some(cost) = answer.cost_usd {
        line("cost", &format_dollars(cost));
    }
    if let Some(session) = &answer.session_id {
        line("session", session);
    }
    if let Some(sandbox) = &answer.sandbox {
        output::line(&strip_control(&sandbox.describe()));
    }
    if let Some(verification) = &answer.verified {
        for text in describe_verification(verification) {
            output::line(&text);
        }
    }
    if let Some(changes) = &answer.changes {
        for summary in summary_lines(changes, &answer.job_id) {
            output::line(&summary);
        }
    }
    if let Some(checkout) = checkout {
        line("checkout", checkout);
    }
    line("stdout", &answer.output_file);
    if let Some(file) = &answer.error_file {
        line("stderr", file);
    }
    if let Some(file) = &answer.result_file {
        line("result", file);
    }
    if let Some(error) = &answer.error {
        line("because", &describe_problem(error));
        line("hint", &error.hint);
    }
    if answer.status.is_final() {
        answer.note.iter().flat_map(|note| note.lines()).for_each(|note| line("note", note));
    }
    if !answer.output.is_empty() {
        output::line("");
        output::line(&answer.output);
    }
}

/// Prints the output of a job's agent.
pub fn logs(args: &cli::Logs) -> Result<ExitCode, CommandFailure> {
    let mut connector = client::connector()?;
    if args.raw || args.error {
        let stream = if args.error { OutputStream::Error } else { OutputStream::Output };
        let request = DaemonRequest::Output { job: args.id.clone(), stream, follow: args.follow };
        let mut pending = Vec::new();
        protocol::request_streaming(&mut connector, &request, |reply| print_chunk(&mut pending, reply))?;
        output::print(&String::from_utf8_lossy(&pending));
        check_job_output(&args.id)?;
        return Ok(ExitCode::SUCCESS);
    }
    let answer = client::fetch_answer(&mut connector, &args.id)?;
    let mode = if args.json { OutputMode::Events } else { OutputMode::Text };
    let agent = answer.agent.parse().map_err(|_| RequestError::UnexpectedReply)?;
    let directory = answer.cwd.clone().unwrap_or_default().into();
    let view = View::new(mode, agent, directory, Timing::Replayed);
    let limit = if args.follow { FollowLimit::JobEnd } else { FollowLimit::Now };
    let code = follow(connector, &answer.job_id, view, limit, CtrlC::Detaches)?;
    Ok(if args.follow { code } else { ExitCode::SUCCESS })
}

/// Prints a chunk of a stream. An incomplete character stays in `pending` for the next chunk.
fn print_chunk(pending: &mut Vec<u8>, reply: &JobReply) {
    if let JobReply::Bytes { latin1 } = reply {
        pending.extend(decode_latin1(latin1));
        pending.drain(..output::agent_bytes(pending));
    }
}

fn decode_latin1(latin1: &str) -> Vec<u8> {
    latin1.chars().filter_map(|c| u8::try_from(u32::from(c)).ok()).collect()
}

/// Waits for jobs.
pub fn wait(args: &cli::Wait) -> Result<ExitCode, CommandFailure> {
    let timeout_ms = args.timeout.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
    let request = DaemonRequest::Wait { jobs: args.ids.clone(), any: args.any, timeout_ms };
    let reply = protocol::request(&mut client::connector()?, &request)?;
    let JobReply::Answers { answers } = reply else { return Err(RequestError::UnexpectedReply.into()) };
    let reports = fetch_groups(args)?;
    let in_report =
        |answer: &&Answer| reports.iter().any(|report| answer.group_id.as_ref() == Some(&report.group_id));
    let single: Vec<&Answer> = answers.iter().filter(|answer| !in_report(answer)).collect();
    if args.json {
        output::line(&serde_json::to_string(&answers)?);
    } else {
        for answer in &single {
            let status = style::job_status(answer.status, &io::stdout());
            output::line(&format!("{}: {status} after {}", answer.job_id, format_millis(answer.duration_ms)));
            for note in answer.note.iter().filter(|_| answer.status.is_final()).flat_map(|note| note.lines())
            {
                output::aside(&format!("note: {note}"));
            }
        }
        for report in &reports {
            groups::print_status(report);
        }
    }
    let statuses = reports.iter().map(groups::exit_status);
    Ok(wait_exit_status(statuses.chain(single.into_iter().map(ExitStatus::from_answer)), args.any).into())
}

/// Requests the reports of the awaited groups. With `--any`, a group stands for its jobs, each of which counts.
fn fetch_groups(args: &cli::Wait) -> Result<Vec<GroupReport>, CommandFailure> {
    let groups = args.ids.iter().filter(|id| !args.any && GroupId::strip_prefix(id).is_some());
    let mut connector = client::connector()?;
    groups.map(|group| Ok(groups::fetch(&mut connector, group, None)?)).collect()
}

fn wait_exit_status(statuses: impl Iterator<Item = ExitStatus>, any: bool) -> ExitStatus {
    let (running, ended): (Vec<ExitStatus>, Vec<_>) =
        statuses.partition(|status| *status == ExitStatus::StillRunning);
    if ended.is_empty() || (!any && !running.is_empty()) {
        return ExitStatus::StillRunning;
    }
    let not_completed = ended.into_iter().find(|status| *status != ExitStatus::Completed);
    not_completed.unwrap_or(ExitStatus::Completed)
}

/// Cancels jobs and groups. A failure does not affect the others.
pub fn cancel(args: &cli::Cancel) -> Result<ExitCode, CommandFailure> {
    client::for_each_job(&args.ids, |connector, id| {
        if GroupId::strip_prefix(id).is_some() {
            return groups::cancel(connector, id, args.json);
        }
        let reply = protocol::request(connector, &DaemonRequest::Cancel { job: id.to_owned() })?;
        let JobReply::Cancelled(cancelled) = reply else { return Err(RequestError::UnexpectedReply) };
        groups::print_cancelled(&cancelled, args.json);
        Ok(())
    })
}

/// Submits an ended job again.
pub fn retry(args: &cli::Retry) -> Result<ExitCode, CommandFailure> {
    // Not idempotent: a repeated request would submit two jobs.
    let reply =
        protocol::request_once(&mut client::connector()?, &DaemonRequest::Retry { job: args.id.clone() })?;
    let JobReply::Submitted(job) = reply else { return Err(RequestError::UnexpectedReply.into()) };
    if args.json {
        output::line(&serde_json::to_string(&job)?);
    } else {
        output::line(&job.job_id);
    }
    check_job_output(&job.job_id)?;
    Ok(ExitCode::SUCCESS)
}
