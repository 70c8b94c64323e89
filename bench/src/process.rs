//! Memory and CPU time of a foreign process, from the kernel.

use std::fs;
use std::time::Duration;

/// The unit of CPU time in `/proc`: hundredths of a second on all supported systems.
const TICK: Duration = Duration::from_millis(10);

/// Its resident memory, in millions of bytes.
pub fn memory(pid: u32) -> Option<f64> {
    megabytes(&status(pid)?, "VmRSS:")
}

/// The most that its resident memory was since [`forget_peak`].
pub fn peak_memory(pid: u32) -> Option<f64> {
    megabytes(&status(pid)?, "VmHWM:")
}

/// Begins the peak anew. Where the kernel refuses, the peak is that of its whole life, which is no less.
pub fn forget_peak(pid: u32) {
    let _ = fs::write(format!("/proc/{pid}/clear_refs"), "5");
}

/// The CPU time of it and of all that it has waited for.
pub fn cpu(pid: u32) -> Option<Duration> {
    ticks(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?).map(|ticks| TICK * ticks)
}

/// Returns the CPU time including living children, such as the fork server.
pub fn cpu_with_children(pid: u32) -> Option<Duration> {
    Some(cpu(pid)? + children(pid).into_iter().filter_map(cpu).sum::<Duration>())
}

/// Its children that live.
pub fn children(pid: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let is_child = |child: &u32| {
        fs::read_to_string(format!("/proc/{child}/stat")).is_ok_and(|stat| parent(&stat) == Some(pid))
    };
    processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_child).collect()
}

fn parent(stat: &str) -> Option<u32> {
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

fn status(pid: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/status")).ok()
}

/// User and system time, its own and that of its children.
fn ticks(stat: &str) -> Option<u32> {
    // The name may hold anything, also brackets: the fields begin after the last one.
    let (_, fields) = stat.rsplit_once(") ")?;
    fields.split(' ').skip(11).take(4).map(|field| field.parse::<u32>().ok()).sum()
}

/// A line of `/proc/<pid>/status` that is given in KiB, in millions of bytes.
pub fn megabytes(status: &str, name: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kibibytes: u32 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(f64::from(kibibytes) * 1.024 / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_status_is_parsed_in_kibibytes() {
        let status = "Name:\tcat\nVmPeak:\t 9000 kB\nVmHWM:\t    2500 kB\nVmRSS:\t 1000 kB\n";
        assert_eq!(megabytes(status, "VmHWM:"), Some(2.56));
        assert_eq!(megabytes("Name:\tcat\nState:\tZ (zombie)\n", "VmHWM:"), None);
    }

    #[test]
    fn child_time_is_parsed_for_any_program_name() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 100 200 0 0 1 20 300 4000 20 0 1 0 12345";
        assert_eq!((ticks(stat), parent(stat)), (Some(4321), Some(1)));
    }
}
