//! The health of the daemon: memory and open files over the life of one process.

use std::fmt;
use std::fs;

use crate::process;
use crate::spread::Spread;

/// The samples of the newest daemon.
#[derive(Debug, Default)]
pub struct Health {
    pid: u32,
    memory: Vec<f64>,
    files: Vec<f64>,
}

/// The allowed growth: buffers and caches that fill once, and running calls.
const MORE_MEMORY: f64 = 12.0;
const MORE_FILES: f64 = 24.0;
/// The minimum number of samples.
const ENOUGH: usize = 16;

impl Health {
    /// A look at the daemon; another process than the last time begins anew.
    pub fn look(&mut self, pid: u32) {
        if pid != self.pid {
            *self = Self { pid, ..Self::default() };
        }
        let files = fs::read_dir(format!("/proc/{pid}/fd")).map(Iterator::count);
        if let (Some(memory), Ok(files)) = (process::memory(pid), files) {
            self.memory.push(memory);
            #[expect(clippy::cast_precision_loss, reason = "nobody has so many files open")]
            self.files.push(files as f64);
        }
    }

    /// Returns the figures that grew beyond their limit.
    pub fn growth(&self) -> Vec<String> {
        let grown = |what: &str, samples: &[f64], allowed: f64| {
            let (early, late) = ends(samples)?;
            (late > early * 1.25 + allowed)
                .then(|| format!("the daemon's {what} grew from {early:.0} to {late:.0}"))
        };
        let memory = grown("memory in MB", &self.memory, MORE_MEMORY);
        memory.into_iter().chain(grown("number of open files", &self.files, MORE_FILES)).collect()
    }
}

/// The middle of the second eighth, when everything has been done once, and that of the last.
fn ends(samples: &[f64]) -> Option<(f64, f64)> {
    let eighth = samples.len() / 8;
    if samples.len() < ENOUGH {
        return None;
    }
    let middle = |part: &[f64]| Spread::of(part.iter().copied()).map(|spread| spread.median);
    Some((middle(&samples[eighth..2 * eighth])?, middle(&samples[samples.len() - eighth..])?))
}

/// Summarizes samples by the medians of five parts.
fn course(samples: &[f64]) -> String {
    let parts = samples.chunks(samples.len().div_ceil(5).max(1));
    let middles = parts.filter_map(|part| Spread::of(part.iter().copied()));
    middles.map(|spread| format!("{:.0}", spread.median)).collect::<Vec<_>>().join(" → ")
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (memory, files) = (course(&self.memory), course(&self.files));
        write!(f, "memory {memory} MB, open files {files}, in fifths of {} samples", self.memory.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steady_growth_is_reported_a_filled_cache_is_not() {
        let steady = Health { memory: (0..80).map(f64::from).collect(), ..Health::default() };
        assert_eq!(steady.growth().len(), 1);
        let once = Health {
            memory: (0..80).map(|n| if n < 5 { 10.0 } else { 40.0 }).collect(),
            ..Health::default()
        };
        assert_eq!(once.growth(), [""; 0]);
    }
}
