//! A disk with hardly any room: a small file system in memory, for which one has to be root.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Failure;

/// A mount, undone when it is dropped.
#[derive(Debug)]
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts it over a directory.
    pub fn mount(directory: &Path) -> Result<Self, Failure> {
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=4m", "tmpfs"])
            .arg(directory)
            .stderr(Stdio::null())
            .status();
        match mounted {
            Ok(status) if status.success() => Ok(Self(directory.to_owned())),
            _ => Err("skipped: no permission to mount a small disk".into()),
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: open files keep it until they are closed.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
