//! `switchboard call`: a call that the daemon runs, followed from a terminal.
//!
//! Owns what a person sees of it and what Ctrl-C means. The job is the daemon's: whatever becomes of this program, it goes on.

use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use agents::{LaunchError, PromptLimit};
use calls::Answer;
use model::{AgentKind, CallPolicy, CallSpec, Limits, Mode, Requirement, SessionChoice};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep_until};

use crate::cli::CallArgs;
use crate::config::Config;
use crate::environment::Environment;
use crate::exit_status::ExitStatus;
use crate::failure::{Failure, Kept};
use crate::front::{self, ConfigDrift, Starter};
use crate::view::{How, View};
use crate::wire::{Line, Placed, Reply, Request, Role, Wanted};
use crate::{direct, output, wire};
use render::text::redactions_note;
use render::tool_lines::Timing;

/// The variable of the configuration's `sandbox.ceiling`.
const CEILING_VARIABLE: &str = "SWITCHBOARD_SANDBOX_CEILING";
/// How often the elapsed time is shown.
const TICK: Duration = Duration::from_millis(100);
/// How much of an oversized prompt is counted: stdin may have no end.
const COUNTED_BYTES: u64 = 1 << 30;
/// The number of daemons in a row without an event of the job after which the client gives up.
const MOST_DAEMONS: u32 = 5;

/// Places the call, stays until it is over, and turns its answer into an exit code.
pub fn place(order: &CallArgs) -> Result<ExitCode, Failure> {
    if order.direct {
        return direct::place(order);
    }
    let environment = Environment::of_this_process();
    let mut starter = Starter::new(environment.clone()).map_err(front::FrontError::from)?;
    let config = Config::read(Some(starter.home()), &environment, &[])?;
    let mut call = spec(order, &config)?;
    // The daemon applies the ceiling of the file, and the result says so. It does not see a variable of this shell.
    if environment.get(CEILING_VARIABLE).is_some() {
        let asked = call.asked_preset();
        call.policy = call.policy.within(&config.sandbox.ceiling);
        if let Some(note) = calls::ceiling_note(asked, call.asked_preset().name()) {
            output::aside(&format!("note: {note}"));
        }
    }
    // By default every folder is a task of its own, so `--continue` goes on where one stands.
    let task = order.task.clone().unwrap_or_else(|| call.cwd.to_string_lossy().into_owned());
    let key = uuid::Uuid::now_v7().to_string();
    let (agent, directory) = (call.agent, call.cwd.clone());
    let wanted = Wanted { call, task, key, background: order.background };
    let Reply::Placed(placed) = front::ask(&mut starter, &Request::Place(Box::new(wanted)))? else {
        return Err(Failure::UnexpectedReply);
    };
    if let Some(drift) = ConfigDrift::find(starter.home(), &environment) {
        drift.print();
    }
    if order.background {
        if placed.redactions > 0 {
            output::aside(&format!("note: {}", redactions_note(placed.redactions)));
        }
        return in_background(order, &placed);
    }
    let view = View::new(How::of(order), agent, directory, Timing::Live);
    follow(starter, &placed.job_id, view, order.wait, CtrlC::Cancels)
}

fn in_background(order: &CallArgs, placed: &Placed) -> Result<ExitCode, Failure> {
    if order.json || order.events {
        output::line(&serde_json::to_string(placed)?);
    } else {
        output::line(&placed.job_id);
        output::aside(&format!("status: {}", placed.status_file.display()));
        output::aside(&format!("output: {}", placed.output_file.display()));
        output::aside(&format!("error: {}", placed.error_file.display()));
        output::aside(&format!("answer: {}", placed.result_file.display()));
        output::aside(&format!("come back with `switchboard logs -f {}`", placed.job_id));
    }
    told_of(&placed.job_id)?;
    Ok(ExitCode::SUCCESS)
}

/// Whether all that was said of a job could be written.
pub fn told_of(job: &str) -> Result<(), Failure> {
    output::written().map_err(|error| Failure::unwritten(error, Kept::Job(job.to_owned())))
}

/// When the elapsed time is shown again.
pub fn ticks() -> Interval {
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tick
}

/// What the first Ctrl-C does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CtrlC {
    /// It ends the job, and the second leaves it: for whoever has placed it.
    Cancels,
    /// It leaves the job alone: for whoever only watches.
    Leaves,
}

/// Follows a job until it ends, for that long at most.
pub fn follow(
    starter: Starter,
    job: &str,
    view: View,
    wait: Option<Duration>,
    ctrl_c: CtrlC,
) -> Result<ExitCode, Failure> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::Runtime)?;
    let job = job.to_owned();
    let deadline = wait.map(|wait| Instant::now() + wait);
    runtime.block_on(Follower { starter, job, view, deadline, ctrl_c, cancelled: false, heard: 0 }.follow())
}

/// Somebody who watches a job.
struct Follower {
    starter: Starter,
    job: String,
    view: View,
    deadline: Option<Instant>,
    ctrl_c: CtrlC,
    /// Whether it was asked to end.
    cancelled: bool,
    /// How much of the job was told so far. The next daemon tells it again from the beginning, in the same order.
    heard: u64,
}

/// Why the ear was taken off a connection.
enum Heard {
    Answer(Box<Answer>),
    /// The daemon has gone; the job has not.
    Nothing,
    /// The person has lost patience.
    Left,
}

impl Follower {
    async fn follow(mut self) -> Result<ExitCode, Failure> {
        let mut in_vain = 0;
        loop {
            let before = self.heard;
            let heard = self.hear().await.inspect_err(|_| self.view.lose_sight(&self.job))?;
            match heard {
                Heard::Answer(answer) => {
                    self.view.end(&answer)?;
                    told_of(&self.job)?;
                    return Ok(ExitStatus::from_answer(&answer).into());
                }
                Heard::Left => {
                    self.view.leave(&self.job, self.cancelled);
                    told_of(&self.job)?;
                    return Ok(ExitStatus::StillRunning.into());
                }
                Heard::Nothing if self.heard == before && in_vain >= MOST_DAEMONS => {
                    self.view.close(false);
                    let job = Some(self.job.clone());
                    return Err(Failure::DaemonUnavailable { attempts: MOST_DAEMONS, job });
                }
                Heard::Nothing => in_vain = if self.heard == before { in_vain + 1 } else { 0 },
            }
        }
    }

    /// Listens to one daemon for as long as it is there.
    async fn hear(&mut self) -> Result<Heard, Failure> {
        let connection = self.starter.connect_or_start(Role::Control)?;
        // The daemon speaks only when it is asked, so nothing is left in the reader.
        let stream = connection.writer;
        stream.set_nonblocking(true).map_err(Failure::Runtime)?;
        let (reader, mut writer) = UnixStream::from_std(stream).map_err(Failure::Runtime)?.into_split();
        let mut request = serde_json::to_vec(&Request::Follow { job: self.job.clone() })?;
        request.push(b'\n');
        if writer.write_all(&request).await.is_err() {
            return Ok(Heard::Nothing);
        }
        let mut lines = BufReader::new(reader).lines();
        // Made once: a signal that comes between two looks is kept.
        let mut interrupted = signal(SignalKind::interrupt()).map_err(Failure::Runtime)?;
        let mut terminated = signal(SignalKind::terminate()).map_err(Failure::Runtime)?;
        let mut tick = ticks();
        let far = Instant::now() + Duration::from_hours(24 * 365);
        let mut known = self.heard;
        loop {
            let line = tokio::select! {
                biased; // an agent that never stops talking must not talk over Ctrl-C
                _ = interrupted.recv() => { if self.interrupt() { return Ok(Heard::Left) } continue }
                _ = terminated.recv() => { if self.interrupt() { return Ok(Heard::Left) } continue }
                () = sleep_until(self.deadline.unwrap_or(far)) => return Ok(Heard::Left),
                line = lines.next_line() => line,
                _ = tick.tick() => { self.view.tick(); continue }
            };
            let Ok(Some(line)) = line else { return Ok(Heard::Nothing) };
            // Half a line is a daemon's last.
            let Ok(Line { reply, .. }) = serde_json::from_str(&line) else { return Ok(Heard::Nothing) };
            match reply {
                Reply::Answer(answer) => return Ok(Heard::Answer(answer)),
                Reply::Refused { about, why } => return Err(Failure::Refused { about, why }),
                // How stderr comes in pieces depends on the moment, so it is not counted.
                Reply::Stderr { .. } => {}
                // Neither are waits: the next daemon does not repeat a wait that is over.
                Reply::Event { said } if wire::is_waiting(&said) => self.view.event(&said),
                _ if known > 0 => known -= 1,
                Reply::Event { said } => {
                    self.heard += 1;
                    self.view.event(&said);
                    // Who only watches has nothing to wait for any more.
                    if self.ctrl_c == CtrlC::Leaves && !self.cancelled {
                        told_of(&self.job)?;
                    }
                }
                _ => self.heard += 1,
            }
        }
    }

    /// Ctrl-C was pressed. Whether the job is left.
    fn interrupt(&mut self) -> bool {
        if self.ctrl_c == CtrlC::Leaves {
            return true;
        }
        self.ctrl_c = CtrlC::Leaves;
        self.cancelled = true;
        self.view.aside("cancelling; Ctrl-C again leaves it to the daemon");
        if let Err(failure) = front::ask(&mut self.starter, &Request::Cancel { job: self.job.clone() }) {
            // Most likely it has just ended by itself, which is told in a moment.
            self.view.aside(&format!("not cancelled: {failure}"));
        }
        false
    }
}

/// What is asked, in the words of the model.
pub fn spec(order: &CallArgs, config: &Config) -> Result<CallSpec, Failure> {
    let cwd = real_directory("--cwd", &order.cwd)?;
    let add_dirs = order.add_dir.iter().map(|directory| real_directory("--add-dir", directory));
    let add_dirs = add_dirs.collect::<Result<_, _>>()?;
    if let Some(policy) = order.policy.filter(|policy| order.observe && policy.contradicts_observe()) {
        return Err(Failure::ObserveWrites { policy });
    }
    let session = match (&order.session, order.go_on) {
        (Some(id), _) => SessionChoice::Resume(id.clone()),
        (None, true) => SessionChoice::ContinueLatest,
        (None, false) => SessionChoice::New,
    };
    let call = CallSpec {
        add_dirs,
        model: order.model.clone(),
        session,
        mode: if order.observe { Mode::Observe } else { Mode::Execute },
        max_turns: order.max_turns,
        watched: !order.background && How::of(order).is_watched(),
        policy: policy(order, config),
        limits: Limits {
            wall: Some(order.timeout.unwrap_or(config.limits.timeout)),
            idle: order.idle.or(config.limits.idle),
            start: order.start.or(config.limits.start),
            ..Limits::default()
        },
        ..CallSpec::new(order.agent, prompt(order)?, cwd)
    };
    let trusted = order.trust_workspace || config.sandbox.trust_workspaces;
    Ok(if trusted { call.trusting_its_workspace() } else { call })
}

/// Returns the real path of a directory that an option names.
fn real_directory(option: &'static str, folder: &Path) -> Result<PathBuf, Failure> {
    let real = folder.canonicalize();
    let real = real.map_err(|source| Failure::Directory { option, folder: folder.to_owned(), source })?;
    // The daemon is asked in JSON, which could not even name it.
    if real.to_str().is_none() {
        return Err(LaunchError::NotUnicode { folder: real }.into());
    }
    Ok(real)
}

/// The policy that is named, or the operator's.
fn policy(order: &CallArgs, config: &Config) -> CallPolicy {
    let default = config.sandbox.policy.clone();
    let requirement = match (order.require, order.best_effort) {
        (true, _) => Requirement::Require,
        (false, true) => Requirement::BestEffort,
        (false, false) => default.requirement,
    };
    CallPolicy {
        preset: order.policy.unwrap_or(default.preset),
        network: order.network.clone().unwrap_or(default.network),
        requirement,
        ..default
    }
}

fn prompt(order: &CallArgs) -> Result<String, Failure> {
    match order.prompt.as_deref() {
        None | Some("-") => {
            if io::stdin().is_terminal() {
                output::aside(
                    "reading the prompt from the terminal; press Ctrl-D on an empty line to send it",
                );
            }
            let mut bytes = Vec::new();
            let limit = agents::MAX_PROMPT_BYTES as u64 + 1;
            let mut stdin = io::stdin().lock();
            (&mut stdin).take(limit).read_to_end(&mut bytes).map_err(Failure::Prompt)?;
            if bytes.len() > agents::MAX_PROMPT_BYTES {
                refuse_oversized(order.agent, &bytes, stdin.take(COUNTED_BYTES))?;
            }
            String::from_utf8(bytes).map_err(|_| Failure::PromptIsNoText)
        }
        Some(text) => Ok(text.to_owned()),
    }
}

/// Refuses a prompt that is longer than any agent takes, with its real size: the rest is counted and not kept.
fn refuse_oversized(agent: AgentKind, head: &[u8], mut rest: impl Read) -> Result<(), Failure> {
    // Every character has one byte that does not continue another.
    let chars = |bytes: &[u8]| bytes.iter().filter(|&&byte| byte & 0xC0 != 0x80).count();
    let (mut byte_count, mut char_count) = (head.len(), chars(head));
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match rest.read(&mut buffer).map_err(Failure::Prompt)? {
            0 => break,
            length => {
                byte_count += length;
                char_count += chars(&buffer[..length]);
            }
        }
    }
    Ok(PromptLimit::for_agent(agent).check(agent, byte_count, char_count)?)
}
