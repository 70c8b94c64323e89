//! One server, one fault: everything set up afresh, the deed done, and then a look from outside.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::census::{self, Mark};
use crate::client::{BenchHost, Silence};
use crate::executables::Executables;
use crate::installation::{Installation, is_there, quoted};
use crate::process;
use crate::{Failure, output};

use super::disk::SmallDisk;
use super::fault::{Deed, InjectedFault, Truth};
use super::server::{LIMIT, ServerUnderTest};
use super::verdict::{Cell, ReplyTruth, TrialVerdict};

/// For a call that nothing keeps from being answered.
const PATIENCE: Duration = Duration::from_secs(20);
/// For an answer that need not come.
const SHORT_PATIENCE: Duration = Duration::from_secs(3);
/// For one with very much output.
const LONG_PATIENCE: Duration = Duration::from_secs(90);
/// The time for processes to exit after the call: longer than any grace period.
pub const SETTLING: Duration = Duration::from_secs(12);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A trial that is set up.
pub struct Trial<'a> {
    executables: &'a Executables,
    server: ServerUnderTest,
    fault: InjectedFault,
    mark: Mark,
    work: PathBuf,
    megabytes: u32,
    /// Ours; its daemon ends with it.
    installation: Option<Installation>,
    // After the installation, whose files are on it.
    _disk: Option<SmallDisk>,
}

impl<'a> Trial<'a> {
    /// Makes the directories and the agent. Nothing runs yet.
    pub fn prepare(
        executables: &'a Executables,
        server: ServerUnderTest,
        fault: InjectedFault,
        work: &Path,
        number: u32,
        megabytes: u32,
    ) -> Result<Self, Failure> {
        let directory = work.join(number.to_string());
        fs::create_dir_all(directory.join("agents"))?;
        let home = directory.join("server");
        fs::create_dir_all(&home)?;
        let disk = if fault == InjectedFault::DiskFull { Some(SmallDisk::mount(&home)?) } else { None };
        let mut trial = Self {
            executables,
            server,
            fault,
            mark: Mark::new(number),
            work: directory,
            megabytes,
            installation: None,
            _disk: disk,
        };
        let agent = trial.lay_down_agent()?;
        if server == ServerUnderTest::Ours {
            let with_host = fault == InjectedFault::ClientGone;
            // Unconfined, as the others are: the agent writes beside its workspace, and is to be ended without a namespace's help.
            let config = format!(
                "cancel_on_disconnect = {with_host}\n[sandbox]\npolicy = \"off\"\n[programs]\nclaude = {}\n",
                quoted(&agent)?
            );
            trial.installation = Some(Installation::install(executables, &home, &config)?);
        }
        Ok(trial)
    }

    /// Writes a script under the agent's name: it marks itself and becomes the scripted agent, in any environment.
    fn lay_down_agent(&self) -> Result<PathBuf, Failure> {
        let path = |name: &str| self.work.join(name).display().to_string();
        let script = self.fault.script(&self.half(), &self.done(), &path("up"), self.megabytes);
        fs::write(self.work.join("first"), script)?;
        // Restarted after its supervisor was lost, it finishes; nothing else restarts it.
        fs::write(self.work.join("again"), format!("answer {}\n", self.done()))?;
        let (name, format) = self.server.agent();
        let text = format!(
            "#!/bin/sh\n\
             case \"$1\" in --version|--help) exec '{stub}' \"$1\" ;; esac\n\
             export {variable}={mark}\n\
             script='{first}'\n\
             if [ -e '{began}' ] && [ {twice} = true ]; then script='{again}'; fi\n\
             : > '{began}'\n\
             exec '{rehearsal}' --as {format} --script \"$script\" --ignore-stdin \"$@\"\n",
            stub = self.executables.stub.display(),
            variable = census::VARIABLE,
            mark = self.mark.text(),
            first = path("first"),
            again = path("again"),
            began = path("began"),
            twice = self.fault == InjectedFault::SupervisorKilled,
            rehearsal = self.executables.rehearsal.display(),
        );
        let program = self.work.join("agents").join(name);
        fs::write(&program, text)?;
        fs::set_permissions(&program, Permissions::from_mode(0o755))?;
        Ok(program)
    }

    fn half(&self) -> String {
        format!("HALF-{}", self.mark.text())
    }

    fn done(&self) -> String {
        format!("DONE-{}", self.mark.text())
    }

    /// Does it, and judges.
    pub fn run(&self) -> Result<Cell, Failure> {
        if let Some(reason) = self.server.refuses(self.fault) {
            return Ok(Cell::NotTried(reason.to_owned()));
        }
        let judged = self.call_and_judge();
        let stays = self.mark.alive();
        self.mark.sweep();
        if !stays.is_empty() {
            output::progress(&format!("  killed: {} processes", stays.len()));
        }
        judged.map(Cell::Judged)
    }

    fn call_and_judge(&self) -> Result<TrialVerdict, Failure> {
        let mut client = self.start()?;
        let workspace = self.installation.as_ref().map_or(self.work.as_path(), Installation::workspace);
        let began = Instant::now();
        let request = client.send("tools/call", &self.server.call(self.fault, workspace))?;
        let deed = self.deed();
        if deed != Deed::Wait {
            self.wait_until_up()?;
        }
        self.act(deed, &mut client, request)?;
        client.give_up_at(Instant::now() + self.patience());
        let heard = if deed == Deed::HangUp { Heard::Nobody } else { hear(&mut client, request) };
        output::progress(&format!("  {} after {:.1} s", heard.shown(), began.elapsed().as_secs_f64()));
        let memory = self.peak_memory(&client);
        let left = self.mark.settle(SETTLING).len();
        let server_stays = deed == Deed::HangUp && is_there(client.pid());
        let kept = heard.has(&self.last_word()) || self.can_be_had_later()?;
        Ok(TrialVerdict {
            left,
            answer: self.judge(&heard, deed)?,
            kept,
            server_stays,
            reply_bytes: client.heard_bytes(),
            memory,
        })
    }

    /// A server without a time limit gets a cancellation instead, the only way in MCP.
    fn deed(&self) -> Deed {
        if self.fault == InjectedFault::IgnoredTerm && !self.server.has_time_limit() {
            return Deed::Cancel;
        }
        self.fault.deed()
    }

    fn patience(&self) -> Duration {
        match self.fault {
            InjectedFault::Flood | InjectedFault::Line => LONG_PATIENCE,
            // No answer is due.
            _ if self.deed() == Deed::Cancel => SHORT_PATIENCE,
            _ if self.fault.is_over_its_time() => PATIENCE + Duration::from_secs(LIMIT.into()),
            _ => PATIENCE,
        }
    }

    fn start(&self) -> Result<BenchHost, Failure> {
        if let Some(installation) = &self.installation {
            return installation.host();
        }
        let (program, _) = self.server.program().ok_or("it is not installed")?;
        let (agents, home) = (self.work.join("agents"), self.work.join("server"));
        let mut client = BenchHost::start(self.server.command(self.fault, &program, &agents, &home)?)?;
        client.initialize()?;
        Ok(client)
    }

    /// Waits for the agent's first output and its child.
    fn wait_until_up(&self) -> Result<(), Failure> {
        let give_up_at = Instant::now() + PATIENCE;
        while !self.work.join("up").exists() {
            if Instant::now() > give_up_at {
                return Err("the agent was never started".into());
            }
            sleep(LOOK_AGAIN);
        }
        Ok(())
    }

    fn act(&self, deed: Deed, client: &mut BenchHost, request: u64) -> Result<(), Failure> {
        match (deed, &self.installation) {
            (Deed::Wait, _) => Ok(()),
            (Deed::Cancel, _) => client.send_message(&json!({
                "jsonrpc": "2.0", "method": "notifications/cancelled",
                "params": { "requestId": request, "reason": "no longer wanted" }
            })),
            (Deed::HangUp, _) => {
                client.hang_up();
                Ok(())
            }
            (Deed::KillServer, Some(installation)) => end(installation.daemon()?),
            (Deed::KillServer, None) => client.kill(),
            (Deed::KillSupervisor, _) => end(self.supervisor()?),
        }
    }

    /// The parent of the agent, which is the parent of a marked process and not marked itself.
    fn supervisor(&self) -> Result<u32, Failure> {
        let alive = self.mark.alive();
        let parents = alive.iter().filter_map(|pid| census::parent(*pid));
        let mut above = parents.filter(|(pid, _)| !alive.contains(pid));
        match above.find(|(_, name)| name.starts_with("switchboard-sup")) {
            Some((pid, _)) => Ok(pid),
            None => Err("the agent has no supervisor".into()),
        }
    }

    fn last_word(&self) -> String {
        if self.fault.is_finished() { self.done() } else { self.half() }
    }

    /// Asks a new host for the outcome. No peer has a tool for that.
    fn can_be_had_later(&self) -> Result<bool, Failure> {
        let Some(installation) = &self.installation else { return Ok(false) };
        let (answer, printed) = later(installation)?;
        let word = self.last_word();
        // Text without a final newline counts, too: it was kept.
        Ok(answer.to_string().contains(&word)
            || printed.to_string().contains(&word)
            || self.is_cut_short(&answer))
    }

    /// Returns whether the reply contains the part that a full disk had space for.
    fn is_cut_short(&self, answer: &Value) -> bool {
        self.fault == InjectedFault::DiskFull && answer["status"] == "failed"
    }

    fn judge(&self, heard: &Heard, deed: Deed) -> Result<ReplyTruth, Failure> {
        let truth = if deed == Deed::Cancel { Truth::Nothing } else { self.fault.truth() };
        Ok(match (heard, truth) {
            (Heard::Nobody, _) => ReplyTruth::Unasked,
            // A cancelled request gets no reply in MCP. Ours can still be queried.
            (Heard::Silence | Heard::Said { is_error: true, .. }, Truth::Nothing) => match &self.installation
            {
                Some(installation) if later(installation)?.0["status"] == "cancelled" => ReplyTruth::True,
                Some(_) => ReplyTruth::False("the job is not cancelled"),
                None => ReplyTruth::Unasked,
            },
            (Heard::Silence, _) => ReplyTruth::None(self.patience()),
            (Heard::Closed, _) => ReplyTruth::Closed,
            (Heard::Said { is_error: true, .. }, Truth::Failed | Truth::Either) => ReplyTruth::True,
            (Heard::Said { is_error: true, .. }, Truth::Done) => ReplyTruth::False("reports a failure"),
            (Heard::Said { text, .. }, Truth::Done | Truth::Either) if text.contains(&self.done()) => {
                if text.contains("stray words") { ReplyTruth::Noisy } else { ReplyTruth::True }
            }
            (Heard::Said { text, .. }, Truth::Done | Truth::Either) if tells_of_a_cut(text) => {
                ReplyTruth::Cut
            }
            (Heard::Said { .. }, Truth::Done | Truth::Either) => {
                ReplyTruth::False("success without an answer")
            }
            (Heard::Said { .. }, Truth::Failed | Truth::Nothing) => ReplyTruth::False("success"),
        })
    }

    fn peak_memory(&self, client: &BenchHost) -> f64 {
        let daemon = self
            .installation
            .as_ref()
            .and_then(|installation| installation.daemon().ok())
            .and_then(process::peak_memory);
        process::peak_memory(client.pid()).unwrap_or(0.0) + daemon.unwrap_or(0.0)
    }
}

/// PAL's words, and those that others would use.
fn tells_of_a_cut(text: &str) -> bool {
    let end = text.floor_char_boundary(2000);
    ["exceeding the", "truncated"].iter().any(|word| text[..end].contains(word))
}

/// Returns the reply and the output of the only job.
fn later(installation: &Installation) -> Result<(Value, Value), Failure> {
    let mut host = installation.host()?;
    let jobs = ask(&mut host, "call_jobs", &json!({}))?;
    let Some(id) = jobs["jobs"][0]["job_id"].as_str() else { return Ok((Value::Null, Value::Null)) };
    ask(&mut host, "call_wait", &json!({ "job_ids": [id], "timeout_ms": 10_000 }))?;
    let answer = ask(&mut host, "call_status", &json!({ "job_id": id }))?;
    let printed = ask(&mut host, "call_output", &json!({ "job_id": id }))?;
    Ok((answer, printed))
}

fn ask(host: &mut BenchHost, tool: &str, arguments: &Value) -> Result<Value, Failure> {
    let id = host.send("tools/call", &json!({ "name": tool, "arguments": arguments }))?;
    let mut answer = host.answer_to(id)?;
    match answer["structuredContent"].take() {
        Value::Null => Err(format!("{tool} was refused: {answer}").into()),
        answer => Ok(answer),
    }
}

/// The reply to the host.
enum Heard {
    Said {
        is_error: bool,
        text: String,
    },
    Silence,
    Closed,
    /// There was no host any more.
    Nobody,
}

impl Heard {
    fn has(&self, word: &str) -> bool {
        matches!(self, Self::Said { text, .. } if text.contains(word))
    }

    fn shown(&self) -> String {
        match self {
            Self::Said { is_error, text } => {
                let begin: String = text.chars().take(160).collect();
                format!("answered ({}): {begin}", if *is_error { "error" } else { "success" })
            }
            Self::Silence => "no answer".to_owned(),
            Self::Closed => "connection closed".to_owned(),
            Self::Nobody => "no server to answer".to_owned(),
        }
    }
}

fn hear(client: &mut BenchHost, request: u64) -> Heard {
    loop {
        match client.hear() {
            Ok(message) if message["id"] == request && message.get("method").is_none() => {
                let is_error = message.get("error").is_some() || message["result"]["isError"] == true;
                return Heard::Said { is_error, text: message.to_string() };
            }
            Ok(_) => {}
            Err(failure) if failure.is::<Silence>() => return Heard::Silence,
            // A line that is no JSON: some servers print other things, too.
            Err(failure) if failure.is::<serde_json::Error>() => {}
            Err(_) => return Heard::Closed,
        }
    }
}

fn end(pid: u32) -> Result<(), Failure> {
    Ok(kill(Pid::from_raw(i32::try_from(pid)?), Signal::SIGKILL)?)
}
