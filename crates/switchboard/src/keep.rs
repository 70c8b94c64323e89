//! `switchboard keep`: applies the changes of one agent of a race, and discards those of the others.

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use calls::{ChangesState, Contender, GroupReport};
use protocol::{DaemonRequest, RequestError};
use render::text::list_id_prefixes;

use crate::changes::{describe, short_id};
use crate::cli::{ApplyChanges, KeepChanges};
use crate::client::{self, JobReply};
use crate::closing::describe_problem;
use crate::exit_status::ExitStatus;
use crate::failure::{CommandError, CommandFailure};
use crate::{checkouts, groups, output};

/// Applies the changes of a job, and then asks whether to discard those of the other agents.
pub fn run(args: &KeepChanges) -> Result<ExitCode, CommandFailure> {
    let mut connector = client::connector()?;
    let kept = client::fetch_answer(&mut connector, &args.id)?;
    let group = kept.group_id.clone().ok_or_else(|| KeepError::NotInRace { job: short_id(&kept.job_id) })?;
    let report = groups::fetch(&mut connector, &group, Some(0))?;
    let is_contender = report.contenders.iter().any(|contender| contender.answer.job_id == kept.job_id);
    if !report.is_race() || !is_contender {
        return Err(KeepError::NothingToKeep { job: short_id(&kept.job_id) }.into());
    }
    if let Some(error) = kept.error.as_ref().filter(|_| kept.status.is_final()) {
        output::aside(&format!("note: this call {}: {}", kept.status.as_str(), describe_problem(error)));
    }
    let checkout = kept.changes.as_ref().and_then(|changes| changes.checkout.as_ref());
    if checkout.is_some_and(|checkout| checkout.state == ChangesState::Applied) {
        output::aside("the changes are already applied");
    } else {
        let apply = ApplyChanges {
            id: kept.job_id.clone(),
            paths: Vec::new(),
            conflicts: false,
            index: args.index,
            commit: args.commit,
            dry_run: false,
            json: false,
        };
        let code = checkouts::apply(&apply)?;
        if code != ExitCode::SUCCESS {
            return Ok(code);
        }
    }
    let others = describe_others(&report, &kept.job_id);
    if others.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    if !args.yes && !confirm(&others) {
        let job = short_id(&kept.job_id);
        output::aside(&format!(
            "the others stay as they are; discard them with `switchboard keep --yes {job}`"
        ));
        return Ok(ExitCode::SUCCESS);
    }
    let discard = DaemonRequest::DiscardOthers { job: kept.job_id.clone() };
    let reply = protocol::request(&mut connector, &discard)?;
    let JobReply::OthersDiscarded { cancelled, discarded } = reply else {
        return Err(RequestError::UnexpectedReply.into());
    };
    for (action, jobs) in [("cancelled", cancelled), ("discarded", discarded)] {
        if !jobs.is_empty() {
            output::aside(&format!("{action}: {}", list_id_prefixes(&jobs)));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Describes the other contenders that run or have open changes, one per line.
fn describe_others(report: &GroupReport, kept: &str) -> Vec<String> {
    let line = |contender: &Contender| {
        let Contender { number, answer, .. } = contender;
        let state = if !answer.status.is_final() {
            answer.status.as_str().to_owned()
        } else if groups::has_open_changes(answer) {
            answer.changes.as_ref().map(describe).unwrap_or_default()
        } else {
            return None;
        };
        Some(format!("{number} ({}, {}): {state}", groups::describe_agent(answer), short_id(&answer.job_id)))
    };
    report.contenders.iter().filter(|contender| contender.answer.job_id != kept).filter_map(line).collect()
}

/// Asks on the terminal. Without one, the answer is no.
fn confirm(others: &[String]) -> bool {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return false;
    }
    for line in others {
        output::aside(line);
    }
    output::question("cancel and discard the others? [y/N] ");
    let mut answer = String::new();
    let read = io::stdin().read_line(&mut answer);
    read.is_ok() && ["y", "yes"].contains(&answer.trim().to_lowercase().as_str())
}

/// The job has no changes that can be kept in place of others.
#[derive(Debug, thiserror::Error)]
enum KeepError {
    #[error("job {job} is not part of a race")]
    NotInRace { job: String },
    #[error("job {job} has no changes to keep: it only answers, or compares the results of the others")]
    NothingToKeep { job: String },
}

impl CommandError for KeepError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NotInRace { job } => format!("apply its changes with `switchboard apply {job}`"),
            Self::NothingToKeep { job } => {
                format!("name a call that works on the task; `switchboard status {job}` names the group")
            }
        })
    }

    fn exit_status(&self) -> ExitStatus {
        ExitStatus::BadInput
    }
}
