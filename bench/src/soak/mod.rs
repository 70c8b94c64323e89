//! A long run in which everything goes wrong all the time, and what must hold throughout.
//!
//! Four hosts place calls to the scripted agent, faults among them; they cancel, are killed and come back; the daemon is killed at random
//! moments. Checked for every call: it comes to one end, that end is true, it stays the same, and none of its processes is alive when
//! it is told. In between and at the end: the database is whole. In the last part, in which nobody is killed: the daemon's memory and
//! open files do not grow. In the end: nothing is left running.

mod caller;
mod health;
mod ledger;
mod scenario;

use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::census::{self, Mark};
use crate::executables::Executables;
use crate::installation::{Installation, quoted};
use crate::interruption::Interruption;
use crate::random::SeededRandom;
use crate::{Failure, output};

use caller::SoakCaller;
use health::Health;
use ledger::SoakLedger;

/// The number of hosts.
const HOSTS: u32 = 4;
const TICK: Duration = Duration::from_millis(100);
const BETWEEN_CHECKS: Duration = Duration::from_secs(5);

/// Duration and seed.
#[derive(Debug, Clone, Copy)]
pub struct SoakScale {
    /// The duration.
    pub time: Duration,
    /// The seed of the calls and kills. Races remain random.
    pub seed: u64,
}

/// Describes the method for the reader.
pub fn method(scale: &SoakScale) -> String {
    format!(
        "- {} s, seed {}; {HOSTS} hosts, each with one call at a time to the scripted agent, 19 kinds, including faults\n\
         - hosts wait, reconnect later, cancel, and are killed and reconnect; the daemon is killed (SIGKILL) every 1 to 6 s during the first 60 %\n\
         - memory and open files are those of the daemon that lived through the rest",
        scale.time.as_secs(),
        scale.seed
    )
}

/// The result.
#[derive(Debug)]
pub struct Soaked {
    /// For the reader.
    pub table: String,
    /// The violations.
    pub violations: Vec<String>,
}

/// Soaks.
pub fn soak(executables: &Executables, work: &Path, scale: SoakScale) -> Result<Soaked, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut interruption = runtime.block_on(async { Interruption::listen() })?;
    let mut random = SeededRandom::new(scale.seed);
    let (agents, servers) = (Mark::new(0), Mark::new(1));
    let installation = install(executables, work, &agents, &servers)?;
    drop(installation.host()?);
    let (ledger, stop) = (SoakLedger::default(), AtomicBool::new(false));
    let mut watch = Watch {
        installation: &installation,
        ledger: &ledger,
        health: Health::default(),
        kills: 0,
        checks: 0,
    };
    let interrupted = thread::scope(|scope| {
        for name in 0..HOSTS {
            let caller = SoakCaller {
                name,
                installation: &installation,
                mark: &agents,
                ledger: &ledger,
                work,
                stop: &stop,
            };
            let random = random.split();
            scope.spawn(move || caller.run(random));
        }
        // Also when this panics: the scope waits for the callers.
        let _stop = StopAtLast(&stop);
        watch.throughout(scale.time, &mut random, || {
            // A signal is noticed by a runtime that waits.
            runtime.block_on(async { tokio::time::sleep(TICK).await });
            interruption.check()
        })
    });
    watch.check_database();
    ledger.compare(&watch.database())?;
    watch.health.growth().iter().for_each(|growth| ledger.violation(growth));
    installation.stop()?;
    for (mark, who) in [(&agents, "of the agents"), (&servers, "of the servers and supervisors")] {
        let left = mark.settle(Duration::from_secs(10));
        if !left.is_empty() {
            let names: Vec<_> = left.iter().map(|pid| format!("{pid} {}", name(*pid))).collect();
            ledger.violation(&format!("{who} {} are left at the end: {names:?}", left.len()));
            mark.sweep();
        }
    }
    interrupted?;
    Ok(Soaked { table: watch.table(), violations: ledger.violations() })
}

/// A home whose agent marks itself, and whose servers are marked otherwise.
fn install(
    executables: &Executables,
    work: &Path,
    agents: &Mark,
    servers: &Mark,
) -> Result<Installation, Failure> {
    let program = work.join("agent");
    let text = format!(
        "#!/bin/sh\nexport {}={}\nexec '{}' \"$@\"\n",
        census::VARIABLE,
        agents.text(),
        executables.rehearsal.display()
    );
    fs::write(&program, text)?;
    fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    // Without a sandbox: leftovers must be found by pid, and killed without the help of a namespace.
    let config = format!(
        "rehearsal = true\n[limits]\nat_once = 8\n[retention]\nmax_count = \"off\"\n[sandbox]\npolicy = \"off\"\n[programs]\nrehearsal = {}\n",
        quoted(&program.canonicalize()?)?
    );
    Ok(Installation::install(executables, work, &config)?.marked(servers))
}

/// Tells the callers to stop when it is dropped.
struct StopAtLast<'a>(&'a AtomicBool);

impl Drop for StopAtLast<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn name(pid: u32) -> String {
    let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.replace('\0', " ").chars().take(80).collect()
}

/// The thread that kills and checks.
struct Watch<'a> {
    installation: &'a Installation,
    ledger: &'a SoakLedger,
    health: Health,
    kills: u32,
    checks: u32,
}

impl Watch<'_> {
    fn throughout(
        &mut self,
        time: Duration,
        random: &mut SeededRandom,
        mut tick: impl FnMut() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let begin = Instant::now();
        let peace_at = begin + time.mul_f64(0.6);
        let (mut kill_at, mut check_at) = (begin + TICK * 10, begin + BETWEEN_CHECKS);
        while begin.elapsed() < time {
            tick()?;
            let now = Instant::now();
            if now > kill_at && now < peace_at {
                self.kill();
                kill_at = now + Duration::from_millis(1000 + random.below(5000));
            }
            if now > check_at {
                self.check_database();
                check_at = now + BETWEEN_CHECKS;
            }
            if let Ok(daemon) = self.installation.daemon() {
                self.health.look(daemon);
            }
        }
        Ok(())
    }

    /// The daemon that the lock names; between two of them there is none to kill.
    fn kill(&mut self) {
        let Some(daemon) = self.installation.daemon().ok().and_then(|pid| i32::try_from(pid).ok()) else {
            return;
        };
        if kill(Pid::from_raw(daemon), Signal::SIGKILL).is_ok() {
            self.kills += 1;
        }
    }

    fn database(&self) -> std::path::PathBuf {
        self.installation.state().join("switchboard.db")
    }

    fn check_database(&mut self) {
        self.checks += 1;
        match ledger::integrity(&self.database()) {
            Ok(word) if word == "ok" => {}
            Ok(word) => self.ledger.violation(&format!("the database is corrupt: {word}")),
            Err(failure) => self.ledger.violation(&format!("the database cannot be checked: {failure}")),
        }
    }

    fn table(&self) -> String {
        let ends = self.ledger.ends();
        let calls: usize = ends.values().sum();
        let ends: Vec<String> = ends.iter().map(|(end, count)| format!("{count} {end}")).collect();
        let violations = self.ledger.violations();
        let told = match violations.len() {
            0 => "none".to_owned(),
            count => format!("**{count}**"),
        };
        let mut table = format!(
            "| what | seen |\n| --- | --- |\n\
             | calls, each with one end | {calls}: {} |\n\
             | kills of the daemon | {} |\n\
             | checks of the database | {} |\n\
             | the last daemon | {} |\n\
             | violations | {told} |\n",
            ends.join(", "),
            self.kills,
            self.checks,
            self.health
        );
        for violation in violations {
            let _ = writeln!(table, "\n- {violation}");
        }
        output::progress(&format!("{calls} calls, {} kills", self.kills));
        table
    }
}
