//! The scenarios of a soak: the steps of the agent, faults included, and the true outcomes.

use std::path::Path;

use serde_json::{Value, json};

use crate::random::SeededRandom;

/// A call, and its possible outcomes.
#[derive(Debug, Clone)]
pub struct SoakScenario {
    /// The name: the idempotency key, and the expected answer.
    pub key: String,
    /// The true outcomes, whichever process is killed.
    pub ends: &'static [&'static str],
    /// The behavior of the host.
    pub manner: HostBehavior,
    steps: String,
    timeout_ms: u32,
}

/// The behavior of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostBehavior {
    /// Waits for the answer.
    Wait,
    /// Places it, and asks for it later.
    Later,
    /// Places it, and cancels the job after so many milliseconds.
    Cancel(u64),
    /// Waits, and cancels its request after so many milliseconds.
    CancelRequest(u64),
    /// Waits, and is killed after so many milliseconds.
    HangUp(u64),
}

const COMPLETED: &[&str] = &["completed"];
const FAILED: &[&str] = &["failed"];
const TIMEOUT: &[&str] = &["timeout"];

impl SoakScenario {
    /// Any; its descendants write their process ids to that file.
    pub fn any(random: &mut SeededRandom, key: String, pids: &Path) -> Self {
        let (steps, ends, timeout_ms) = any_steps(random, &key);
        let steps = format!("pidfile {}\n{steps}", pids.display());
        let mut scenario = Self { key, ends, manner: any_manner(random), steps, timeout_ms };
        if matches!(scenario.manner, HostBehavior::Cancel(_) | HostBehavior::CancelRequest(_)) {
            // The cancellation and the end race; a finished job is not cancelled.
            scenario.ends = match scenario.ends[0] {
                "completed" => &["completed", "cancelled"],
                "failed" => &["failed", "cancelled"],
                _ => &["timeout", "cancelled"],
            };
        }
        scenario
    }

    /// The request that places it. Asked twice, it is the same job.
    pub fn request(&self, workspace: &Path, forget: bool) -> Value {
        let steps: Vec<String> = self.steps.lines().map(|step| format!("@rehearse {step}")).collect();
        let prompt = steps.join("\n");
        json!({ "name": "call_rehearsal", "arguments": {
            "prompt": prompt, "cwd": workspace, "timeout_ms": self.timeout_ms, "idempotency_key": self.key,
            "task_name": self.key, "fire_and_forget": forget
        } })
    }
}

fn any_manner(random: &mut SeededRandom) -> HostBehavior {
    match random.below(20) {
        0..=8 => HostBehavior::Wait,
        9..=12 => HostBehavior::Later,
        13..=14 => HostBehavior::Cancel(random.below(800)),
        15..=17 => HostBehavior::CancelRequest(random.below(800)),
        _ => HostBehavior::HangUp(random.below(800)),
    }
}

fn any_steps(random: &mut SeededRandom, key: &str) -> (String, &'static [&'static str], u32) {
    let long = 60_000;
    let wait = random.below(1500);
    let done = |steps: &str| (format!("{steps}\nanswer {key}"), COMPLETED, long);
    match random.below(19) {
        0 | 1 => done("say begun"),
        2 | 3 => done(&format!("say begun\ndelay {wait}ms")),
        4 => done("stream 40 200B 5ms"),
        5 => done("garbage json\ngarbage utf8\ngarbage nul\ngarbage event"),
        6 => done("flood events 2MB"),
        7 => done("flood stderr 1MB"),
        8 => done("garbage line 9MB"),
        9 => done("spawn setsid keep-stdout ignore-term"),
        10 => done("spawn daemon\nspawn same-group"),
        11 => done("fork-bomb 10 for 500ms"),
        12 => ("say begun\nfail other It went wrong.".to_owned(), FAILED, long),
        13 => ("say begun\nexit 3".to_owned(), FAILED, long),
        14 => ("say begun\ncut".to_owned(), FAILED, long),
        15 => ("say begun\nsignal KILL".to_owned(), FAILED, long),
        16 => (format!("say begun\ndelay {wait}ms\nspawn setsid\nsignal SEGV"), FAILED, long),
        17 => ("say begun\nspawn setsid\nhang".to_owned(), TIMEOUT, 1000),
        _ => ("ignore TERM\nspawn daemon ignore-term\nhang".to_owned(), TIMEOUT, 1000),
    }
}
