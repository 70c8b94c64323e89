//! The cost of work: wall time, and the CPU time of this process and its reaped children.

use std::io;
use std::ops::Div;
use std::time::{Duration, Instant};

use nix::sys::resource::{Usage, UsageWho, getrusage};
use nix::sys::time::TimeVal;

/// The cost of some work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cost {
    /// The wall time.
    pub wall: Duration,
    /// User and system time of all cores. Later work of kernel threads (write-back, the journal) is not included.
    pub cpu: Duration,
}

/// The cost of one of several equal pieces.
impl Div<u32> for Cost {
    type Output = Self;

    fn div(self, pieces: u32) -> Self {
        Self { wall: self.wall / pieces, cpu: self.cpu / pieces }
    }
}

/// A measurement under way.
#[derive(Debug)]
pub struct Meter {
    started: Instant,
    cpu_before: Duration,
}

impl Meter {
    /// Begins to measure.
    pub fn start() -> io::Result<Self> {
        Ok(Self { cpu_before: cpu_so_far()?, started: Instant::now() })
    }

    /// Ends it. Every process that belongs to the work must have been waited for, by this process or by one that was.
    pub fn stop(self) -> io::Result<Cost> {
        let wall = self.started.elapsed();
        Ok(Cost { wall, cpu: cpu_so_far()?.saturating_sub(self.cpu_before) })
    }
}

fn cpu_so_far() -> io::Result<Duration> {
    let used = |usage: Usage| duration(usage.user_time()) + duration(usage.system_time());
    Ok(used(getrusage(UsageWho::RUSAGE_SELF)?) + used(getrusage(UsageWho::RUSAGE_CHILDREN)?))
}

fn duration(time: TimeVal) -> Duration {
    Duration::from_secs(time.tv_sec().unsigned_abs()) + Duration::from_micros(time.tv_usec().unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn child_cpu_time_counts_after_wait() {
        let meter = Meter::start().unwrap();
        let loops = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        let status = std::process::Command::new("/bin/sh").args(["-c", loops]).status().unwrap();
        assert!(status.success());
        assert!(meter.stop().unwrap().cpu > Duration::from_millis(5));
    }
}
