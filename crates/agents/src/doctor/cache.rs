//! Remembers what programs said about themselves, until their files change.
//!
//! Asking costs up to a second per agent, and a daemon asks at every start. The cache is a convenience: a file that
//! cannot be read or written is as good as none.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use model::AgentKind;
use serde::{Deserialize, Serialize};

use super::probe::{Probe, ProbeError};

/// Changed whenever the shape of the file or the questions change.
const FORMAT: u32 = 2;

/// What programs said about themselves, by path and age.
#[derive(Debug)]
pub struct ProbeCache {
    file: Option<PathBuf>,
    kept: Kept,
    changed: bool,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Kept {
    format: u32,
    programs: BTreeMap<PathBuf, Entry>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    file: FileState,
    probe: Probe,
}

/// What tells a file from the one that was at its path before. A link is followed.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct FileState {
    inode: u64,
    modified_ns: u128,
    bytes: u64,
}

impl ProbeCache {
    /// The cache that a file holds; an empty one without a file.
    pub fn open(file: Option<&Path>) -> Self {
        let read = file.and_then(|file| fs::read(file).ok());
        let kept = read.and_then(|bytes| serde_json::from_slice::<Kept>(&bytes).ok());
        Self {
            file: file.map(Path::to_owned),
            kept: kept.filter(|kept| kept.format == FORMAT).unwrap_or_default(),
            changed: false,
        }
    }

    /// What the program says, from memory if its file is the same as then.
    pub fn probe(
        &mut self,
        kind: AgentKind,
        program: &Path,
        inherited: &BTreeMap<String, String>,
    ) -> Result<Probe, ProbeError> {
        let file = FileState::read(program);
        if let (Some(file), Some(entry)) = (&file, self.kept.programs.get(program))
            && entry.file == *file
        {
            return Ok(entry.probe.clone());
        }
        let probe = Probe::ask(kind, program, inherited)?;
        if let Some(file) = file {
            let entry = Entry { file, probe: probe.clone() };
            self.kept.programs.insert(program.to_owned(), entry);
            self.changed = true;
        }
        Ok(probe)
    }

    /// Writes down what is new. Replaces the file whole, so that another process never reads half of it.
    pub fn save(&mut self) {
        let Some(file) = self.file.as_ref().filter(|_| self.changed) else { return };
        self.kept.format = FORMAT;
        let fresh = file.with_extension(format!("{}.new", std::process::id()));
        let json = serde_json::to_vec(&self.kept).unwrap_or_default();
        let folder = file
            .parent()
            .map_or(Ok(()), |folder| DirBuilder::new().recursive(true).mode(0o700).create(folder));
        let options = || OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh);
        let written = folder.and_then(|()| options()).and_then(|mut out| out.write_all(&json));
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
