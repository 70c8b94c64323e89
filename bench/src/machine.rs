//! The machine that the figures are true of.

use std::path::Path;
use std::{fmt, fs, io, thread};

/// The facts about a machine that a reader needs to judge its figures.
#[derive(Debug)]
pub struct BenchMachine {
    cores: usize,
    processor: String,
    memory_kib: u64,
    kernel: String,
    file_system: String,
    load_before: String,
}

impl BenchMachine {
    /// Inspects this machine, and the file system of the work directory.
    pub fn look(work: &Path) -> io::Result<Self> {
        let unknown = || "unknown".to_owned();
        let read = |path| fs::read_to_string(path).map(|text: String| text.trim().to_owned());
        let memory = field(&read("/proc/meminfo")?, "MemTotal").unwrap_or_default();
        Ok(Self {
            cores: thread::available_parallelism()?.get(),
            processor: field(&read("/proc/cpuinfo")?, "model name").unwrap_or_else(unknown),
            memory_kib: memory.trim_end_matches(" kB").parse().unwrap_or(0),
            kernel: read("/proc/sys/kernel/osrelease")?,
            file_system: file_system_of(work)?,
            load_before: read("/proc/loadavg")?.split(' ').take(3).collect::<Vec<_>>().join(" "),
        })
    }
}

/// Returns the type of the file system of a directory.
pub fn file_system_of(directory: &Path) -> io::Result<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    Ok(file_system(&mounts, &directory.canonicalize()?).unwrap_or_else(|| "unknown".to_owned()))
}

/// The value of the first `name : value` line.
fn field(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}

/// The type of the file system that the path is on: that of the innermost mount above it, and of those the latest.
fn file_system(mountinfo: &str, path: &Path) -> Option<String> {
    let mounts = mountinfo.lines().filter_map(|line| {
        let (mount, system) = line.split_once(" - ")?;
        // A blank in a path is written as `\040`.
        let point = mount.split(' ').nth(4)?.replace("\\040", " ");
        let depth = Path::new(&point).components().count();
        path.starts_with(&point).then_some((depth, system.split(' ').next()?))
    });
    mounts.max_by_key(|(depth, _)| *depth).map(|(_, kind)| kind.to_owned())
}

impl fmt::Display for BenchMachine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cores, processor, memory_kib, kernel, file_system, load_before } = self;
        let build = if cfg!(debug_assertions) { "debug: its figures mean nothing" } else { "release" };
        writeln!(f, "- processor: {processor}, {cores} cores")?;
        writeln!(f, "- memory: {} MiB", memory_kib / 1024)?;
        writeln!(f, "- kernel: Linux {kernel}")?;
        writeln!(f, "- file system of the work directory: {file_system}")?;
        writeln!(f, "- load before: {load_before}")?;
        writeln!(f, "- build: {build}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_belongs_to_its_innermost_mount() {
        let mountinfo = "22 1 254:0 / / rw shared:1 - ext4 /dev/vda rw\n\
                         30 22 0:25 / /tmp rw - tmpfs tmpfs rw\n\
                         31 22 0:26 / /tmp/my\\040disk rw - btrfs /dev/vdb rw";
        let kind = |path| file_system(mountinfo, Path::new(path)).unwrap();
        assert_eq!([kind("/home"), kind("/tmp/a"), kind("/tmp/my disk/a")], ["ext4", "tmpfs", "btrfs"]);
        assert_eq!(kind("/tmpfoo"), "ext4");
    }

    #[test]
    fn field_is_matched_by_its_full_name() {
        let text = "model\t\t: 85\nmodel name\t: Some CPU\n";
        assert_eq!(field(text, "model name").as_deref(), Some("Some CPU"));
    }
}
