//! Caches the output of probes until the program's file changes.
//!
//! A probe takes up to a second per agent, and each daemon probes at its start. Best effort: an unreadable or unwritable cache
//! file is ignored.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use crate::AgentProfile;
use regular_file::{create_private_directory, create_regular, read_regular};
use serde::{Deserialize, Serialize};

use super::probe::{Probe, ProbeError};

/// Bumped when the format of the file or the probe commands change.
const FORMAT: u32 = 2;

/// Probe results by path and file state.
#[derive(Debug)]
pub struct ProbeCache {
    file: Option<PathBuf>,
    contents: CacheFile,
    changed: bool,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct CacheFile {
    format: u32,
    programs: BTreeMap<PathBuf, Entry>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    file: FileState,
    probe: Probe,
}

/// Identifies a version of a file. Symbolic links are followed.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct FileState {
    inode: u64,
    modified_ns: u128,
    bytes: u64,
}

impl ProbeCache {
    /// Reads the cache from a file. Returns an empty cache without one.
    pub fn open(file: Option<&Path>) -> Self {
        let read = file.and_then(|file| read_regular(file).ok());
        let contents = read.and_then(|bytes| serde_json::from_slice::<CacheFile>(&bytes).ok());
        Self {
            file: file.map(Path::to_owned),
            contents: contents.filter(|contents| contents.format == FORMAT).unwrap_or_default(),
            changed: false,
        }
    }

    /// Returns the cached output if the file is unchanged, else probes the program.
    pub fn probe(
        &mut self,
        profile: &AgentProfile,
        program: &Path,
        inherited: &BTreeMap<String, String>,
    ) -> Result<Probe, ProbeError> {
        let file = FileState::read(program);
        if let (Some(file), Some(entry)) = (&file, self.contents.programs.get(program))
            && entry.file == *file
        {
            return Ok(entry.probe.clone());
        }
        let probe = Probe::run(profile, program, inherited)?;
        if let Some(file) = file {
            let entry = Entry { file, probe: probe.clone() };
            self.contents.programs.insert(program.to_owned(), entry);
            self.changed = true;
        }
        Ok(probe)
    }

    /// Writes new results. Renames a complete file into place, so that no other process reads a partial one.
    pub fn save(&mut self) {
        let Some(file) = self.file.as_ref().filter(|_| self.changed) else { return };
        self.contents.format = FORMAT;
        let fresh = file.with_extension(format!("{}.new", std::process::id()));
        let json = serde_json::to_vec(&self.contents).unwrap_or_default();
        let directory = file.parent().map_or(Ok(()), create_private_directory);
        let written =
            directory.and_then(|()| create_regular(&fresh)).and_then(|mut out| out.write_all(&json));
        if written.is_ok() && fs::rename(&fresh, file).is_ok() {
            self.changed = false;
        } else {
            let _ = fs::remove_file(&fresh);
        }
    }
}

impl FileState {
    fn read(program: &Path) -> Option<Self> {
        let file = fs::metadata(program).ok()?;
        let modified = file.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
        Some(Self { inode: file.ino(), modified_ns: modified.as_nanos(), bytes: file.len() })
    }
}
