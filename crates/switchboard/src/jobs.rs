//! `switchboard jobs`, `status ID`, `logs`, `wait`, `cancel` and `retry`: jobs as a person asks about them.

use std::io;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use agents::{ParseLimits, Parser};
use calls::{Answer, JobStatus, Stream};

use crate::call::CtrlC;
use crate::environment::Environment;
use crate::exit_status::ExitStatus;
use crate::failure::Failure;
use crate::front::{self, FrontError, Starter};
use crate::view::{How, View, because};
use crate::wire::{self, JobLine, Reply, Request, Search};
use crate::{call, cli, output, paint};
use render::duration::format_millis;
use render::text::{format_dollars, strip_control};
use render::tool_lines::Timing;

/// How often `--watch` looks again.
const WATCH_EVERY: Duration = Duration::from_secs(1);

/// Whoever can be asked.
pub fn starter() -> Result<Starter, Failure> {
    Ok(Starter::new(Environment::of_this_process()).map_err(FrontError::from)?)
}

/// The jobs there are.
pub fn list(order: &cli::ListJobs) -> Result<ExitCode, Failure> {
    let mut starter = starter()?;
    let search = Search {
        states: order.status.clone(),
        agent: order.agent,
        tool: order.tool.clone(),
        task: order.task.clone(),
        limit: order.limit,
    };
    loop {
        let reply = front::ask(&mut starter, &Request::Jobs(search.clone()))?;
        let Reply::Jobs { jobs, total } = reply else { return Err(Failure::UnexpectedReply) };
        if order.json {
            output::line(&serde_json::to_string(&serde_json::json!({ "jobs": jobs, "total": total }))?);
        } else {
            if order.watch {
                output::clear_screen();
            }
            tell(&jobs, total);
        }
        if !order.watch || output::is_lost() {
            return Ok(ExitCode::SUCCESS);
        }
        sleep(WATCH_EVERY);
    }
}

fn tell(jobs: &[JobLine], total: u64) {
    if jobs.is_empty() {
        return output::line("no jobs");
    }
    let enough = telling(jobs);
    let row = |job: &JobLine| {
        vec![
            job.job_id.chars().take(enough).collect(),
            job.status.as_str().to_owned(),
            job.agent.to_string(),
            job.model.as_deref().map_or_else(|| "-".to_owned(), strip_control),
            moment(job.created_at_ms),
            job.duration_ms.map_or_else(|| "-".to_owned(), format_millis),
            job.tokens.map_or_else(|| "-".to_owned(), |tokens| tokens.to_string()),
            job.cost_usd.map_or_else(|| "-".to_owned(), format_dollars),
            strip_control(&job.prompt),
        ]
    };
    let heads = ["ID", "STATUS", "AGENT", "MODEL", "PLACED (UTC)", "TOOK", "TOKENS", "COST", "PROMPT"];
    let rows: Vec<Vec<String>> = jobs.iter().map(row).collect();
    // On a narrow terminal the prompt is what tells jobs apart; `status` has the rest.
    let (heads, rows) =
        paint::fitting(&heads, rows, &["MODEL", "TOKENS", "COST", "PLACED (UTC)"], paint::width());
    output::line(&paint::table(&heads, &rows, paint::width()).join("\n"));
    if total > jobs.len() as u64 {
        output::aside(&format!("{} of {total}; `--limit` shows more", jobs.len()));
    }
}

/// How much of the ids tells these jobs apart. Ids begin with their time, so it is more for jobs of one moment.
fn telling(jobs: &[JobLine]) -> usize {
    const LEAST: usize = 13;
    let mut ids: Vec<&str> = jobs.iter().map(|job| job.job_id.as_str()).collect();
    ids.sort_unstable();
    let shared = |pair: &[&str]| pair[0].bytes().zip(pair[1].bytes()).take_while(|(a, b)| a == b).count();
    ids.windows(2).map(|pair| shared(pair) + 1).max().unwrap_or(0).max(LEAST)
}

fn moment(millis: u64) -> String {
    let seconds = i64::try_from(millis / 1000).unwrap_or_default();
    let moment = chrono::DateTime::from_timestamp(seconds, 0);
    moment.map(|moment| moment.format("%Y-%m-%d %H:%M:%S").to_string()).unwrap_or_default()
}

/// How a job is.
pub fn status(id: &str, json: bool) -> Result<ExitCode, Failure> {
    let answer = answer(&mut starter()?, id)?;
    if json {
        output::line(&serde_json::to_string_pretty(&answer)?);
    } else {
        describe(&answer);
    }
    Ok(ExitStatus::from_answer(&answer).into())
}

fn answer(starter: &mut Starter, id: &str) -> Result<Box<Answer>, Failure> {
    match front::ask(starter, &Request::Job { job: id.to_owned() })? {
        Reply::Answer(answer) => Ok(answer),
        _ => Err(Failure::UnexpectedReply),
    }
}

fn describe(answer: &Answer) {
    let line = |name: &str, value: &str| output::line(&format!("{name}: {}", strip_control(value)));
    output::line(&format!("job {}: {}", answer.job_id, paint::standing(answer.status, &io::stdout())));
    line("agent", &answer.agent);
    if let Some(model) = &answer.model {
        line("model", model);
    }
    line("task", &answer.task_name);
    if let Some(waiting) = &answer.waiting {
        // It starts with the state: `queued: …`, `waiting for …`, `paused until …`.
        output::line(&strip_control(waiting));
    }
    line("took", &format_millis(answer.duration_ms));
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
        output::line(&strip_control(&sandbox.told()));
    }
    line("output", &answer.output_file);
    if let Some(file) = &answer.error_file {
        line("error", file);
    }
    if let Some(error) = &answer.error {
        line("because", &because(error));
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

/// What a job's agent said.
pub fn logs(order: &cli::Logs) -> Result<ExitCode, Failure> {
    let mut starter = starter()?;
    if order.raw || order.error {
        let stream = if order.error { Stream::Error } else { Stream::Output };
        let request = Request::Output { job: order.id.clone(), stream, follow: order.follow };
        let mut open = Vec::new();
        front::hear_out(&mut starter, &request, |reply| print_bytes(&mut open, reply))?;
        output::piece(&String::from_utf8_lossy(&open));
        call::told_of(&order.id)?;
        return Ok(ExitCode::SUCCESS);
    }
    let answer = answer(&mut starter, &order.id)?;
    let how = if order.json { How::Events } else { How::Words };
    let agent = answer.agent.parse().map_err(|_| Failure::UnexpectedReply)?;
    let directory = answer.cwd.clone().unwrap_or_default().into();
    let view = View::new(how, agent, directory, Timing::Replayed);
    if order.follow || answer.status.is_final() {
        let code = call::follow(starter, &answer.job_id, view, None, CtrlC::Leaves)?;
        return Ok(if order.follow { code } else { ExitCode::SUCCESS });
    }
    so_far(&mut starter, &answer, view)
}

/// Prints a piece of a stream, and keeps in `open` what belongs to the next one.
fn print_bytes(open: &mut Vec<u8>, reply: &Reply) {
    if let Reply::Bytes { latin1 } = reply {
        open.extend(bytes(latin1));
        open.drain(..output::bytes(open));
    }
}

fn bytes(latin1: &str) -> Vec<u8> {
    latin1.chars().filter_map(|c| u8::try_from(u32::from(c)).ok()).collect()
}

/// What a job that goes on has said by now, read from what it printed.
fn so_far(starter: &mut Starter, answer: &Answer, mut view: View) -> Result<ExitCode, Failure> {
    let agent = answer.agent.parse().map_err(|_| Failure::UnexpectedReply)?;
    let mut parser = Parser::new(agent, ParseLimits::default());
    let request = Request::Output { job: answer.job_id.clone(), stream: Stream::Output, follow: false };
    front::hear_out(starter, &request, |reply| {
        if let Reply::Bytes { latin1 } = reply {
            parser.feed(&bytes(latin1), &mut |event| view.event(&wire::said(&event)));
        }
    })?;
    view.end(answer)?;
    call::told_of(&answer.job_id)?;
    Ok(ExitCode::SUCCESS)
}

/// Waits for jobs.
pub fn wait(order: &cli::Wait) -> Result<ExitCode, Failure> {
    let timeout_ms = order.timeout.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
    let request = Request::Wait { jobs: order.ids.clone(), any: order.any, timeout_ms };
    let reply = front::ask(&mut starter()?, &request)?;
    let Reply::Answers { answers } = reply else { return Err(Failure::UnexpectedReply) };
    if order.json {
        output::line(&serde_json::to_string(&answers)?);
    } else {
        for answer in &answers {
            let status = paint::standing(answer.status, &io::stdout());
            output::line(&format!("{}: {status} after {}", answer.job_id, format_millis(answer.duration_ms)));
            for note in answer.note.iter().filter(|_| answer.status.is_final()).flat_map(|note| note.lines())
            {
                output::aside(&format!("note: {note}"));
            }
        }
    }
    Ok(waited(&answers, order.any))
}

fn waited(answers: &[Answer], any: bool) -> ExitCode {
    let (ended, open): (Vec<&Answer>, Vec<&Answer>) =
        answers.iter().partition(|answer| answer.status.is_final());
    if ended.is_empty() || (!any && !open.is_empty()) {
        return ExitStatus::StillRunning.into();
    }
    let not_completed = ended.into_iter().find(|answer| answer.status != JobStatus::Completed);
    not_completed.map_or(ExitCode::SUCCESS, |answer| ExitStatus::from_answer(answer).into())
}

/// Ends jobs. One that cannot be ended does not keep the others from it.
pub fn cancel(order: &cli::Cancel) -> Result<ExitCode, Failure> {
    let mut starter = starter()?;
    let mut code = ExitCode::SUCCESS;
    for id in &order.ids {
        match front::ask(&mut starter, &Request::Cancel { job: id.clone() }) {
            Ok(Reply::Cancelled { job_id, previous, now }) => {
                if order.json {
                    let line = serde_json::json!({ "job_id": job_id, "previous": previous, "status": now });
                    output::line(&line.to_string());
                } else if now.ended().is_some() {
                    output::line(&format!("{job_id}: {}", now.as_str()));
                } else {
                    output::line(&format!("{job_id}: stopping"));
                }
            }
            Ok(_) => return Err(Failure::UnexpectedReply),
            Err(failure @ Failure::Refused { .. }) => {
                output::complain(&failure);
                code = failure.exit_code();
            }
            Err(failure) => return Err(failure),
        }
    }
    Ok(code)
}

/// Places an ended job again.
pub fn retry(order: &cli::Retry) -> Result<ExitCode, Failure> {
    // Asked twice, it would be two jobs.
    let reply = front::ask_once(&mut starter()?, &Request::Retry { job: order.id.clone() })?;
    let Reply::Placed(placed) = reply else { return Err(Failure::UnexpectedReply) };
    if order.json {
        output::line(&serde_json::to_string(&placed)?);
    } else {
        output::line(&placed.job_id);
    }
    call::told_of(&placed.job_id)?;
    Ok(ExitCode::SUCCESS)
}
