//! `switchboard race`: submits a group of calls to the daemon, shows their progress, and prints a comparison.
//!
//! The calls belong to the daemon and continue if this program exits.

use std::collections::HashMap;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

use calls::{Answer, Contender, GroupReport, JobStatus};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget};
use model::{AgentKind, GroupKind};
use protocol::{
    DaemonConnector, DaemonRequest, ProcessEnvironment, RequestError, SubmitGroupReply, SubmitGroupRequest,
    SubmitRequest,
};
use render::duration::format_millis;
use render::text::{redactions_note, strip_control};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use crate::changes::describe;
use crate::cli::RaceArgs;
use crate::client::{self, JobReply};
use crate::config::Config;
use crate::drift::ConfigDrift;
use crate::exit_status::ExitStatus;
use crate::failure::{CommandFailure, RuntimeError};
use crate::follow::check_job_output;
use crate::groups::{self, describe_agent, describe_verified, short_group_id};
use crate::{call_spec, machine, output, progress_row};

/// The interval at which the state of the group is read.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Submits the group, waits for its end, and derives the exit code from it.
pub fn run(args: &RaceArgs) -> Result<ExitCode, CommandFailure> {
    let environment = ProcessEnvironment::current();
    let mut connector = client::connector()?;
    let config = Config::read(Some(connector.home()), &environment, &[])?;
    let agent = args.with.first().map_or(AgentKind::Claude, |choice| choice.agent);
    let mut call = call_spec::build_race(args, agent, &config)?;
    let lookup = machine::agent_lookup(&environment, Some(connector.home()), &config);
    call_spec::check_links(&args.options, &lookup, &environment)?;
    call_spec::apply_ceiling(&mut call, &environment, &config);
    let server_variables = call_spec::server_variables(&call, &environment);
    let task = args.options.task.clone().unwrap_or_else(|| call.cwd.to_string_lossy().into_owned());
    let key = uuid::Uuid::now_v7().to_string();
    let submit = SubmitGroupRequest {
        kind: if args.observe { GroupKind::Answers } else { GroupKind::Race },
        base: SubmitRequest { call, task, key, background: args.background, server_variables },
        contenders: args.with.clone(),
        judge: args.judge.clone(),
    };
    let reply = protocol::request(&mut connector, &DaemonRequest::SubmitGroup(Box::new(submit)))?;
    let JobReply::GroupSubmitted(group) = reply else { return Err(RequestError::UnexpectedReply.into()) };
    if let Some(drift) = ConfigDrift::find(connector.home(), &environment) {
        drift.print();
    }
    let redactions = group.contenders.iter().map(|job| job.redactions).max().unwrap_or_default();
    if redactions > 0 {
        output::aside(&format!("note: {}", redactions_note(redactions)));
    }
    if args.background {
        return print_submitted(args, &group);
    }
    let deadline = args.wait.map(|wait| Instant::now() + wait);
    let follower = GroupFollower {
        connector,
        view: GroupView::new(args.json),
        group: group.group_id,
        json: args.json,
        deadline,
        is_cancelled: false,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(RuntimeError::from)?.block_on(follower.follow())
}

fn print_submitted(args: &RaceArgs, group: &SubmitGroupReply) -> Result<ExitCode, CommandFailure> {
    if args.json {
        output::line(&serde_json::to_string(group)?);
    } else {
        output::line(&group.group_id);
        for (number, (job, agent)) in (1..).zip(group.contenders.iter().zip(&args.with)) {
            output::aside(&format!("{number} ({agent}): {}", job.job_id));
        }
        let id = short_group_id(&group.group_id);
        output::aside(&format!("wait with `switchboard wait {id}`, compare with `switchboard status {id}`"));
    }
    check_job_output(&group.group_id)?;
    Ok(ExitCode::SUCCESS)
}

/// Shows the progress of a group until it ends, the wait is over, or the user presses Ctrl-C twice.
struct GroupFollower {
    connector: DaemonConnector,
    view: GroupView,
    group: String,
    json: bool,
    deadline: Option<Instant>,
    is_cancelled: bool,
}

impl GroupFollower {
    async fn follow(mut self) -> Result<ExitCode, CommandFailure> {
        // Registered once: a signal between two polls is not lost.
        let mut interrupted = signal(SignalKind::interrupt()).map_err(RuntimeError::from)?;
        let mut terminated = signal(SignalKind::terminate()).map_err(RuntimeError::from)?;
        let mut timer = interval(POLL_INTERVAL);
        timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let far_future = Instant::now() + Duration::from_hours(24 * 365);
        loop {
            let must_detach = tokio::select! {
                biased;
                _ = interrupted.recv() => self.interrupt(),
                _ = terminated.recv() => self.interrupt(),
                () = sleep_until(self.deadline.unwrap_or(far_future)) => true,
                _ = timer.tick() => false,
            };
            if must_detach {
                return self.detach();
            }
            // The texts are not shown.
            let report = groups::fetch(&mut self.connector, &self.group, Some(0))
                .inspect_err(|_| self.view.lose_track(&self.group))?;
            self.view.show(&report);
            if report.has_ended {
                return self.finish();
            }
        }
    }

    fn finish(mut self) -> Result<ExitCode, CommandFailure> {
        let report = groups::fetch(&mut self.connector, &self.group, None)?;
        self.view.clear();
        if self.json {
            output::line(&serde_json::to_string(&report)?);
        } else {
            groups::print(&report);
        }
        check_job_output(&self.group)?;
        let is_cut_off = report.contenders.iter().any(|one| one.answer.status == JobStatus::Cancelled);
        if self.is_cancelled && is_cut_off {
            return Ok(ExitStatus::Cancelled.into());
        }
        Ok(groups::exit_status(&report).into())
    }

    /// Handles Ctrl-C: the first cancels the group. Returns whether to detach.
    fn interrupt(&mut self) -> bool {
        if std::mem::replace(&mut self.is_cancelled, true) {
            return true;
        }
        self.view.aside("cancelling; press Ctrl-C again to leave it to the daemon");
        let cancel = DaemonRequest::CancelGroup { group: self.group.clone() };
        if let Err(error) = protocol::request::<Answer>(&mut self.connector, &cancel) {
            // Most likely the group has just ended, as the next report tells.
            self.view.aside(&format!("not cancelled: {error}"));
        }
        false
    }

    /// Reports that this program detaches from a group that continues or is being cancelled.
    fn detach(self) -> Result<ExitCode, CommandFailure> {
        self.view.clear();
        let id = short_group_id(&self.group);
        let state = if self.is_cancelled { "is being stopped" } else { "continues" };
        let cancel_hint = if self.is_cancelled {
            String::new()
        } else {
            format!(", cancel it with `switchboard cancel {id}`")
        };
        output::aside(&format!("{} {state}; see it with `switchboard status {id}`{cancel_hint}", self.group));
        if self.json {
            output::line(&serde_json::json!({ "has_ended": false, "group_id": self.group }).to_string());
        }
        check_job_output(&self.group)?;
        Ok(ExitStatus::StillRunning.into())
    }
}

/// The progress of a group on stderr: a line per job that is redrawn on a terminal, and a line per change of a status elsewhere.
struct GroupView {
    lines: Option<MultiProgress>,
    bars: HashMap<String, ProgressBar>,
    statuses: HashMap<String, JobStatus>,
    is_silent: bool,
    /// An empty row below the others, on which the cursor stays.
    _footer: Option<ProgressBar>,
}

impl GroupView {
    /// Creates the view. A program that reads the report as JSON gets no progress.
    fn new(is_silent: bool) -> Self {
        let is_live = !is_silent && io::stderr().is_terminal();
        let lines = is_live.then(|| MultiProgress::with_draw_target(ProgressDrawTarget::stderr()));
        let footer = lines.as_ref().map(|lines| {
            let footer = lines.add(ProgressBar::no_length());
            footer.set_style(progress_row::last("{wide_msg}"));
            footer.tick();
            footer
        });
        Self { lines, bars: HashMap::new(), statuses: HashMap::new(), is_silent, _footer: footer }
    }

    fn show(&mut self, report: &GroupReport) {
        for contender in &report.contenders {
            let label = format!("{} {}", contender.number, describe_agent(&contender.answer));
            self.show_job(&label, &contender.answer, &describe_progress(contender));
        }
        for (position, review) in report.reviews.iter().enumerate() {
            let name =
                if report.is_race() { format!("judge {}", position + 1) } else { "synthesis".to_owned() };
            self.show_job(&format!("{name} {}", describe_agent(review)), review, &describe_status(review));
        }
    }

    fn show_job(&mut self, label: &str, answer: &Answer, progress: &str) {
        if let Some(lines) = &self.lines {
            let bar = self.bars.entry(answer.job_id.clone()).or_insert_with(|| {
                let bar = lines.insert_from_back(1, ProgressBar::no_length());
                bar.set_style(progress_row::upper("{wide_msg}"));
                bar
            });
            bar.set_message(strip_control(&format!("{label} · {progress}")));
            return bar.tick();
        }
        let is_new = self.statuses.insert(answer.job_id.clone(), answer.status) != Some(answer.status);
        if is_new && !self.is_silent {
            let progress = if answer.status.is_final() { progress } else { answer.status.as_str() };
            output::aside(&strip_control(&format!("{label}: {progress}")));
        }
    }

    fn aside(&self, text: &str) {
        match &self.lines {
            Some(lines) => lines.suspend(|| output::aside(text)),
            None => output::aside(text),
        }
    }

    /// Removes the progress lines.
    fn clear(&self) {
        if let Some(lines) = &self.lines {
            // A terminal that cannot be written to has nothing to remove.
            let _ = lines.clear();
        }
    }

    /// Reports that the group can no longer be followed. Its jobs are not affected.
    fn lose_track(&self, group: &str) {
        self.clear();
        let id = short_group_id(group);
        output::aside(&format!("lost track of {group}; see it with `switchboard status {id}`"));
    }
}

/// Describes the state of a contender: `running for 34 s · edits src/lib.rs`.
fn describe_progress(contender: &Contender) -> String {
    let mut facts = vec![describe_status(&contender.answer)];
    facts.extend(contender.activity.clone());
    if contender.answer.status.is_final() {
        let verified = describe_verified(&contender.answer);
        facts.extend(verified.map(|verified| format!("verification {verified}")));
        facts.extend(contender.answer.changes.as_ref().map(describe));
    }
    facts.join(" · ")
}

/// Describes the status of a job with its run time, or the reason why it waits.
fn describe_status(answer: &Answer) -> String {
    let time = format_millis(answer.duration_ms);
    match &answer.waiting {
        Some(waiting) => waiting.clone(),
        None if answer.status.is_final() => format!("{} after {time}", answer.status.as_str()),
        None if answer.status == JobStatus::Running => format!("running for {time}"),
        None => answer.status.as_str().to_owned(),
    }
}
