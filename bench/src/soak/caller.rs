//! One host of a soak: repeats scenarios and checks each outcome.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::Failure;
use crate::census::Mark;
use crate::client::BenchHost;
use crate::installation::Installation;
use crate::random::SeededRandom;

use super::ledger::{LedgerEntry, SoakLedger};
use super::scenario::{HostBehavior, SoakScenario};

/// Longer than any scenario takes, and than a daemon needs to come back.
const PATIENCE: Duration = Duration::from_mins(2);

/// Everything that a caller needs.
pub struct SoakCaller<'a> {
    pub name: u32,
    pub installation: &'a Installation,
    pub mark: &'a Mark,
    pub ledger: &'a SoakLedger,
    pub work: &'a Path,
    pub stop: &'a AtomicBool,
}

impl SoakCaller<'_> {
    /// Runs until it is stopped.
    pub fn run(&self, mut random: SeededRandom) {
        let mut host = None;
        for number in 0.. {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let key = format!("{}-{number}", self.name);
            let scenario = SoakScenario::any(&mut random, key, &self.pids(number));
            if let Err(failure) = self.run_scenario(&mut host, &scenario, number) {
                self.ledger.violation(&format!("{}: {failure} ({scenario:?})", scenario.key));
                host = None;
            }
        }
    }

    fn pids(&self, number: u32) -> std::path::PathBuf {
        self.work.join(format!("pids-{}-{number}", self.name))
    }

    fn run_scenario(
        &self,
        host: &mut Option<BenchHost>,
        scenario: &SoakScenario,
        number: u32,
    ) -> Result<(), Failure> {
        let mut client = match host.take() {
            Some(client) => client,
            None => self.installation.host()?,
        };
        client.give_up_at(Instant::now() + PATIENCE);
        let answer = match scenario.manner {
            HostBehavior::Wait => ask(&mut client, &scenario.request(self.installation.workspace(), false))?,
            HostBehavior::Later => self.submit(&mut client, scenario)?,
            HostBehavior::Cancel(after) => {
                let submitted = self.submit(&mut client, scenario)?;
                sleep(Duration::from_millis(after));
                let cancel = json!({ "name": "call_cancel", "arguments": { "job_id": submitted["job_id"] } });
                // One that has ended cannot be cancelled any more; that is a refusal and no violation.
                let id = client.send("tools/call", &cancel)?;
                client.answer_to(id)?;
                submitted
            }
            HostBehavior::CancelRequest(after) => {
                let id =
                    client.send("tools/call", &scenario.request(self.installation.workspace(), false))?;
                sleep(Duration::from_millis(after));
                client.send_message(&json!({
                    "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id }
                }))?;
                self.submit(&mut client, scenario)?
            }
            HostBehavior::HangUp(after) => {
                client.send("tools/call", &scenario.request(self.installation.workspace(), false))?;
                sleep(Duration::from_millis(after));
                client.kill()?;
                client = self.installation.host()?;
                client.give_up_at(Instant::now() + PATIENCE);
                self.submit(&mut client, scenario)?
            }
        };
        let ended = Self::end_of(&mut client, answer)?;
        self.judge(scenario, &ended, number);
        *host = Some(client);
        Ok(())
    }

    /// Asked with the same key, it is the job that is there, if one is.
    fn submit(&self, client: &mut BenchHost, scenario: &SoakScenario) -> Result<Value, Failure> {
        ask(client, &scenario.request(self.installation.workspace(), true))
    }

    fn end_of(client: &mut BenchHost, mut answer: Value) -> Result<Value, Failure> {
        let job = answer["job_id"].clone();
        let give_up_at = Instant::now() + PATIENCE;
        while !is_final(&answer) {
            if Instant::now() > give_up_at {
                return Err(format!("job {job} does not finish: {}", answer["status"]).into());
            }
            client.give_up_at(Instant::now() + PATIENCE);
            let wait =
                json!({ "name": "call_wait", "arguments": { "job_ids": [job], "timeout_ms": 20_000 } });
            ask(client, &wait)?;
            answer = ask(client, &json!({ "name": "call_status", "arguments": { "job_id": job } }))?;
        }
        Ok(answer)
    }

    fn judge(&self, scenario: &SoakScenario, ended: &Value, number: u32) {
        let text = |key: &str| ended[key].as_str().unwrap_or_default().to_owned();
        let (job, status, output) = (text("job_id"), text("status"), text("output"));
        let violation = |what: String| self.ledger.violation(&format!("job {job}: {what} ({scenario:?})"));
        if !scenario.ends.contains(&status.as_str()) {
            violation(format!("it is {status}: {}", ended["error"]));
        }
        if status == "completed" && output != scenario.key {
            let shown: String = output.chars().take(80).collect();
            violation(format!("it answered {shown:?}"));
        }
        // Immediately: a result is returned when no process is left.
        let alive = self.mark.alive();
        let pids = fs::read_to_string(self.pids(number)).unwrap_or_default();
        let left: Vec<&str> =
            pids.lines().filter(|pid| pid.trim().parse().is_ok_and(|pid| alive.contains(&pid))).collect();
        if !left.is_empty() {
            violation(format!("it has finished, and {} of its processes are alive: {left:?}", left.len()));
        }
        let _ = fs::remove_file(self.pids(number));
        self.ledger.enter(LedgerEntry { key: scenario.key.clone(), job, status });
    }
}

fn ask(client: &mut BenchHost, request: &Value) -> Result<Value, Failure> {
    let id = client.send("tools/call", request)?;
    let mut answer = client.answer_to(id)?;
    match answer["structuredContent"].take() {
        Value::Null => Err(format!("refused: {}", answer["content"][0]["text"]).into()),
        answer => Ok(answer),
    }
}

fn is_final(answer: &Value) -> bool {
    ["completed", "failed", "timeout", "cancelled"].iter().any(|end| answer["status"] == *end)
}
