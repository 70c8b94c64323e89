//! Finds living processes by a mark in the environment, which every descendant of a marked process inherits.
//!
//! Reads `/proc` from outside. Kills only processes with the mark, one by one.

use std::thread::sleep;
use std::time::{Duration, Instant};
use std::{fs, process};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The variable that carries a mark.
pub const VARIABLE: &str = "SWITCHBOARD_BENCH_MARK";

const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// The number of consecutive empty scans that count as proof.
const LOOKS: u32 = 3;

/// A name that no other process of this machine carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark(String);

impl Mark {
    /// One for this process and that number.
    pub fn new(number: u32) -> Self {
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        Self(format!("{}-{}-{number}", process::id(), now.as_nanos()))
    }

    /// Returns the mark as it appears in the environment.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// The living processes that carry it.
    pub fn alive(&self) -> Vec<u32> {
        let wanted = format!("{VARIABLE}={}", self.0);
        pids().filter(|pid| carries(*pid, wanted.as_bytes())).collect()
    }

    /// Waits until none is alive; those that still are when the time is over.
    pub fn settle(&self, patience: Duration) -> Vec<u32> {
        let give_up_at = Instant::now() + patience;
        let mut seen_none = 0;
        loop {
            let alive = self.alive();
            seen_none = if alive.is_empty() { seen_none + 1 } else { 0 };
            // A process has no environment for a moment while it becomes another program, so one look at nothing proves nothing.
            if seen_none == LOOKS || (!alive.is_empty() && Instant::now() > give_up_at) {
                return alive;
            }
            sleep(LOOK_AGAIN);
        }
    }

    /// Kills the remaining marked processes.
    pub fn sweep(&self) {
        // More than once: one that forks while it is looked for is seen the next time.
        for _ in 0..3 {
            for pid in self.alive() {
                if let Ok(pid) = i32::try_from(pid) {
                    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
                }
            }
        }
    }
}

/// All processes that there are.
pub fn pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The parent of a process, and the name of its program as the kernel keeps it.
pub fn parent(pid: u32) -> Option<(u32, String)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let parent: u32 = stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?;
    let name = fs::read_to_string(format!("/proc/{parent}/comm")).ok()?;
    Some((parent, name.trim().to_owned()))
}

/// One that has ended and was not yet waited for has no environment any more.
fn carries(pid: u32, wanted: &[u8]) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(|variable| variable == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn marked_process_is_found_until_killed() {
        let mark = Mark::new(1);
        let mut child = Command::new("sleep").arg("60").env(VARIABLE, mark.text()).spawn().unwrap();
        // Its environment can be read a moment after it was started.
        let found = std::iter::repeat_with(|| mark.alive()).take(10_000).find(|alive| !alive.is_empty());
        assert_eq!(found, Some(vec![child.id()]));
        assert_eq!(mark.settle(Duration::ZERO), [child.id()]);
        assert_eq!(Mark::new(2).alive(), [0_u32; 0]);
        mark.sweep();
        child.wait().unwrap();
        assert_eq!(mark.settle(Duration::ZERO), [0_u32; 0]);
    }
}
