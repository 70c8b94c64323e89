//! Writes the computed files into the worktree, or nothing at all.
//!
//! New files are written completely under temporary names first, so that a full disk is found before anything changes. Then
//! they are renamed one by one. Each replaced or deleted file stays under a backup name until all steps have succeeded.

use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use model::exact_path;
use rustix::fs::{
    AtFlags, Mode, OFlags, RenameFlags, fchmod, linkat, openat, renameat, renameat_with, statat, symlinkat,
    unlinkat,
};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::beneath::Root;
use crate::error::ChangesError;
use crate::files::{read_json, remove_file, write_json};
use crate::restore::RestoreError;

/// One file to write or to delete.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) path: PathBuf,
    pub(super) kind: StepKind,
    /// The current file. `None` if there is none.
    pub(super) expected: Option<Identity>,
}

#[derive(Debug)]
pub(super) enum StepKind {
    /// Puts a copy of a staged file or link at the path.
    Put(PathBuf),
    Delete,
}

/// Identifies a version of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    /// `None` for a file with several links: a backup of one of them changes the time of all.
    changed: Option<(i64, i64)>,
    mode: u32,
}

impl Identity {
    pub(super) fn new(file: &Metadata) -> Self {
        Self {
            device: file.dev(),
            inode: file.ino(),
            size: file.size(),
            modified: (file.mtime(), file.mtime_nsec()),
            changed: (file.nlink() == 1).then(|| (file.ctime(), file.ctime_nsec())),
            mode: file.mode(),
        }
    }

    /// Reads the identity of a file in an open directory.
    #[allow(
        clippy::unnecessary_cast,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss,
        trivial_numeric_casts
    )]
    fn read(directory: impl AsFd, name: &std::ffi::OsStr) -> io::Result<Option<Self>> {
        match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => Ok(Some(Self {
                device: found.st_dev as u64,
                inode: found.st_ino as u64,
                size: found.st_size as u64,
                modified: (found.st_mtime as i64, found.st_mtime_nsec as i64),
                changed: (found.st_nlink == 1).then_some((found.st_ctime as i64, found.st_ctime_nsec as i64)),
                mode: found.st_mode as u32,
            })),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// A completed action, to be reverted after a failure.
enum Done {
    /// A directory was created.
    MadeDirectory(PathBuf),
    /// An empty directory was removed.
    RemovedDirectory(PathBuf, u32),
    /// A file was put where there was none.
    Created(PathBuf),
    /// A file was moved or linked to a backup in another directory.
    BackedUp { path: PathBuf, backup: PathBuf },
}

/// The names that a restoration uses beside the files. Written first, so that the next restoration of the record removes what a
/// killed one left.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Journal {
    #[serde(with = "exact_path")]
    new: Vec<PathBuf>,
    /// The files with their backups.
    #[serde(with = "exact_path")]
    old: Vec<(PathBuf, PathBuf)>,
}

/// Removes the temporary files of a restoration that was killed. A file without a replacement gets its backup back.
pub(super) fn remove_leftovers(worktree: &Path, journal: &Path) -> Result<(), ChangesError> {
    let Some(Journal { new, old }) = read_json(journal)? else { return Ok(()) };
    let root = Root::open(worktree).map_err(ChangesError::file("open", worktree))?;
    let no_directories = BTreeSet::new();
    let writer =
        Writer { root, worktree, removable: &no_directories, done: Vec::new(), temporary: Vec::new() };
    for path in new {
        let _ = writer.unlink(&path);
    }
    for (path, backup) in old {
        // Renames nothing over a file.
        if writer.rename_new(&backup, &path).is_err() {
            let _ = writer.unlink(&backup);
        }
    }
    remove_file(journal)
}

/// Performs all steps. After a failure, the worktree is as it was before, except for the files that the error names.
pub(super) fn write_files(
    worktree: &Path,
    steps: &[Step],
    directories: &BTreeSet<PathBuf>,
    journal: &Path,
) -> Result<(), RestoreError> {
    let failed =
        |path: &Path, damaged, source| RestoreError::Write { path: path.to_owned(), damaged, source };
    let root = Root::open(worktree).map_err(|source| failed(worktree, Vec::new(), source))?;
    let mut writer =
        Writer { root, worktree, removable: directories, done: Vec::new(), temporary: Vec::new() };
    write_json(journal, &writer.plan_names(steps))?;
    let result = writer.perform(steps);
    for (path, _) in &writer.temporary {
        // Present only after a failure.
        let _ = writer.unlink(path);
    }
    match result {
        Ok(()) => {
            writer.finish();
            Ok(())
        }
        Err((path, source)) => Err(failed(&path, writer.roll_back(), source)),
    }
}

struct Writer<'a> {
    root: Root,
    worktree: &'a Path,
    /// Directories that are removed when they are empty. No temporary file may be in them.
    removable: &'a BTreeSet<PathBuf>,
    done: Vec<Done>,
    /// The temporary files, with the positions of their steps.
    temporary: Vec<(PathBuf, usize)>,
}

type StepResult = Result<(), (PathBuf, io::Error)>;

impl Writer<'_> {
    fn plan_names(&self, steps: &[Step]) -> Journal {
        let mut journal = Journal::default();
        for (position, Step { path, kind, .. }) in steps.iter().enumerate() {
            if matches!(kind, StepKind::Put(_)) {
                journal.new.push(self.temporary_path(path, position, "new"));
            }
            journal.old.push((path.clone(), self.temporary_path(path, position, "old")));
        }
        journal
    }

    fn perform(&mut self, steps: &[Step]) -> StepResult {
        for (position, step) in steps.iter().enumerate() {
            if let StepKind::Put(staged) = &step.kind {
                let path = self.temporary_path(&step.path, position, "new");
                self.temporary.push((path.clone(), position));
                self.write_temporary(&path, staged, step).map_err(|error| (step.path.clone(), error))?;
            }
        }
        // Deleted files first: they can be in place of a directory above a new file.
        for (position, step) in steps.iter().enumerate() {
            if matches!(step.kind, StepKind::Delete) {
                self.delete(step, position).map_err(|error| (step.path.clone(), error))?;
            }
        }
        for directory in self.removable.iter().rev() {
            self.remove_directory(directory);
        }
        for (temporary, position) in self.temporary.clone() {
            let step = &steps[position];
            self.put(&temporary, step, position).map_err(|error| (step.path.clone(), error))?;
        }
        Ok(())
    }

    /// Returns a path in the nearest directory that exists and stays.
    fn temporary_path(&self, path: &Path, position: usize, suffix: &str) -> PathBuf {
        let stays = |directory: &&Path| {
            let found = fs::symlink_metadata(self.worktree.join(directory));
            !self.removable.contains(*directory) && found.is_ok_and(|found| found.is_dir())
        };
        let directory = path.ancestors().skip(1).find(stays).unwrap_or(Path::new(""));
        directory.join(format!(".switchboard-{}-{position}.{suffix}", std::process::id()))
    }

    fn write_temporary(&self, path: &Path, staged: &Path, step: &Step) -> io::Result<()> {
        let (directory, name) = self.root.open_parent(path)?;
        let found = fs::symlink_metadata(staged)?;
        if found.is_symlink() {
            return Ok(symlinkat(fs::read_link(staged)?, directory, name)?);
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(directory, name, flags, Mode::from_raw_mode(0o600))?;
        let mut file = fs::File::from(file);
        file.write_all(&fs::read(staged)?)?;
        let mode = choose_mode(found.permissions().mode(), step.expected.as_ref().map(|file| file.mode));
        Ok(fchmod(&file, to_mode(mode))?)
    }

    fn check_identity(&self, step: &Step) -> io::Result<()> {
        let (directory, name) = match self.root.open_parent(&step.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && step.expected.is_none() => return Ok(()),
            opened => opened?,
        };
        if Identity::read(directory, name)? == step.expected {
            return Ok(());
        }
        Err(io::Error::other("the file changed during the restoration"))
    }

    fn delete(&mut self, step: &Step, position: usize) -> io::Result<()> {
        self.check_identity(step)?;
        let backup = self.temporary_path(&step.path, position, "old");
        self.rename_new(&step.path, &backup)?;
        self.done.push(Done::BackedUp { path: step.path.clone(), backup });
        Ok(())
    }

    fn put(&mut self, temporary: &Path, step: &Step, position: usize) -> io::Result<()> {
        let mut made = Vec::new();
        let result = self.root.create_parents(&step.path, |path| made.push(Done::MadeDirectory(path)));
        self.done.extend(made);
        result?;
        self.check_identity(step)?;
        if step.expected.is_none() {
            self.rename_new(temporary, &step.path)?;
            self.done.push(Done::Created(step.path.clone()));
            return Ok(());
        }
        let backup = self.temporary_path(&step.path, position, "old");
        let (directory, name) = self.root.open_parent(&step.path)?;
        let (backup_directory, backup_name) = self.root.open_parent(&backup)?;
        // The path is never without a file. Some file systems have no hard links.
        if linkat(&directory, name, &backup_directory, backup_name, AtFlags::empty()).is_err() {
            self.rename_new(&step.path, &backup)?;
        }
        self.done.push(Done::BackedUp { path: step.path.clone(), backup });
        let (from, from_name) = self.root.open_parent(temporary)?;
        Ok(renameat(from, from_name, directory, name)?)
    }

    /// Renames a file, but not over another one.
    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (from_directory, from_name) = self.root.open_parent(from)?;
        let (to_directory, to_name) = self.root.open_parent(to)?;
        match renameat_with(&from_directory, from_name, &to_directory, to_name, RenameFlags::NOREPLACE) {
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                if Identity::read(&to_directory, to_name)?.is_some() {
                    return Err(Errno::EXIST.into());
                }
                Ok(renameat(from_directory, from_name, to_directory, to_name)?)
            }
            result => Ok(result?),
        }
    }

    fn remove_directory(&mut self, path: &Path) {
        let Ok((parent, name)) = self.root.open_parent(path) else { return };
        let Ok(Some(found)) = Identity::read(&parent, name) else { return };
        if unlinkat(&parent, name, AtFlags::REMOVEDIR).is_ok() {
            self.done.push(Done::RemovedDirectory(path.to_owned(), found.mode));
        }
    }

    fn unlink(&self, path: &Path) -> io::Result<()> {
        let (directory, name) = self.root.open_parent(path)?;
        Ok(unlinkat(directory, name, AtFlags::empty())?)
    }

    /// Removes the backups.
    fn finish(&self) {
        for done in &self.done {
            if let Done::BackedUp { backup, .. } = done {
                let _ = self.unlink(backup);
            }
        }
    }

    /// Reverts all actions and returns the paths for which that failed.
    fn roll_back(&mut self) -> Vec<PathBuf> {
        let mut damaged = Vec::new();
        for done in std::mem::take(&mut self.done).into_iter().rev() {
            let (path, result) = match done {
                Done::Created(path) => (path.clone(), self.unlink(&path)),
                Done::BackedUp { path, backup } => (path.clone(), self.put_back(&backup, &path)),
                Done::MadeDirectory(path) => {
                    let removed = self
                        .root
                        .open_parent(&path)
                        .and_then(|(parent, name)| Ok(unlinkat(parent, name, AtFlags::REMOVEDIR)?));
                    (path, removed)
                }
                Done::RemovedDirectory(path, mode) => {
                    let created = self
                        .root
                        .open_parent(&path)
                        .and_then(|(parent, name)| Ok(rustix::fs::mkdirat(parent, name, to_mode(mode))?));
                    (path, created)
                }
            };
            if result.is_err() {
                damaged.push(path);
            }
        }
        damaged
    }

    fn put_back(&self, backup: &Path, path: &Path) -> io::Result<()> {
        let (from, from_name) = self.root.open_parent(backup)?;
        let (to, to_name) = self.root.open_parent(path)?;
        renameat(&from, from_name, to, to_name)?;
        // A rename between two links of the same file does nothing.
        let _ = unlinkat(from, from_name, AtFlags::empty());
        Ok(())
    }
}

/// Converts permission bits to the type of the system.
#[allow(clippy::useless_conversion, reason = "the type has 16 bits on macOS")]
fn to_mode(mode: u32) -> Mode {
    Mode::from_bits_truncate((mode & 0o7777).try_into().unwrap_or(0o600))
}

/// Returns the mode of a new file: that of the current file, with the executable bits of the staged one.
fn choose_mode(staged: u32, current: Option<u32>) -> u32 {
    let is_regular = |mode: &u32| mode & 0o170_000 == 0o100_000;
    match current.filter(is_regular) {
        None => staged & 0o777,
        Some(mode) if staged & 0o100 == 0 => mode & 0o666,
        Some(mode) => (mode & 0o777) | ((mode & 0o444) >> 2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftovers_of_killed_restoration_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let worktree = directory.path().join("work");
        let at = |name: &str| worktree.join(name);
        fs::create_dir_all(at("d")).unwrap();
        // Killed before the first rename, after it, and after a deletion.
        for (name, content) in
            [("a", "a"), (".1.new", "new a"), ("d/b", "new b"), ("d/.2.old", "b"), ("d/.3.old", "c")]
        {
            fs::write(at(name), content).unwrap();
        }
        let old = |path: &str, backup: &str| (path.into(), backup.into());
        let journal = Journal {
            new: vec![".1.new".into(), "d/.2.new".into()],
            old: vec![old("a", ".1.old"), old("d/b", "d/.2.old"), old("d/c", "d/.3.old")],
        };
        let file = directory.path().join("journal.json");
        write_json(&file, &journal).unwrap();
        remove_leftovers(&worktree, &file).unwrap();
        let mut names: Vec<_> =
            fs::read_dir(at("d")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["b", "c"]);
        let read = |name: &str| fs::read_to_string(at(name)).unwrap();
        assert_eq!((read("a"), read("d/b"), read("d/c")), ("a".into(), "new b".into(), "c".into()));
        assert!(!at(".1.new").exists() && !file.exists());
    }
}
