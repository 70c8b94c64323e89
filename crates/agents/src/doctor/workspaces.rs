//! The directories in which agents have worked, recorded in a file of the state directory.
//!
//! A sandboxed agent may plant a program there with the name of an agent. Probes run outside of any sandbox, so no program is
//! taken from such a directory, in any later call. A directory is identified by path and by inode, so that a renamed one is
//! recognized as well.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use regular_file::{append_regular, create_private_directory, create_regular, path_hint, read_regular};
use serde::{Deserialize, Serialize};

use super::Finding;

/// The file size above which deleted directories are removed from the file.
const MAX_BYTES: u64 = 256 * 1024;

/// The directories in which agents have worked, or are about to.
#[derive(Debug, Clone, Default)]
pub struct KnownWorkspaces {
    paths: Vec<PathBuf>,
    identities: HashSet<DirectoryId>,
    /// The file exists and cannot be read, so an earlier workspace may be missing here.
    unreadable: Option<Finding>,
}

/// Identifies a directory independently of its path. Inode numbers are reused, so the creation time is a part of the id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct DirectoryId {
    device: u64,
    inode: u64,
    created_nanos: u64,
}

/// A line of the file. Earlier versions wrote only paths.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Entry {
    Path(PathBuf),
    Directory { path: PathBuf, id: Option<DirectoryId> },
}

impl KnownWorkspaces {
    /// Reads the file.
    pub(super) fn read(file: &Path) -> Self {
        let mut known = Self::default();
        match entries(file) {
            Ok(entries) => entries.into_iter().for_each(|entry| known.insert(entry)),
            Err(error) => known.unreadable = Some(unreadable(file, &error)),
        }
        known
    }

    /// Adds the workspaces of a call.
    pub(super) fn extend<'a>(&mut self, directories: impl IntoIterator<Item = &'a Path>) {
        directories.into_iter().for_each(|directory| self.insert(Entry::new(directory)));
    }

    /// Returns whether a path, or its canonical form, is in one of the directories.
    pub(super) fn contains(&self, path: &Path) -> bool {
        self.contains_unless_checked(path, &mut HashMap::new())
    }

    /// Splits the directories of a `PATH` into those inside of the known directories and the others, each named once.
    pub(super) fn split_path<'a>(&self, path: &'a str) -> (Vec<&'a str>, Vec<&'a str>) {
        let mut named = HashSet::new();
        // The directories of a `PATH` share most of their parents.
        let mut checked = HashMap::new();
        let directories = path.split(':').filter(|directory| named.insert(*directory));
        directories.partition(|directory| self.contains_unless_checked(Path::new(directory), &mut checked))
    }

    /// Returns the workspaces that contain a canonical path, or equal it.
    pub(super) fn roots_above<'a>(&self, path: &'a Path) -> impl Iterator<Item = PathBuf> + use<'a, '_> {
        let is_known = |above: &&Path| {
            self.paths.iter().any(|known| known == above)
                || DirectoryId::read(above).is_some_and(|id| self.identities.contains(&id))
        };
        path.ancestors().filter(is_known).map(Path::to_owned)
    }

    /// Returns the problem with the file. While it exists, no agent is started: its program could be a planted one.
    pub(super) fn unreadable(&self) -> Option<&Finding> {
        self.unreadable.as_ref()
    }

    fn insert(&mut self, entry: Entry) {
        let (path, id) = match entry {
            Entry::Path(path) => (path, None),
            Entry::Directory { path, id } => (path, id),
        };
        self.paths.push(path);
        self.identities.extend(id);
    }

    fn contains_name(&self, path: &Path) -> bool {
        self.paths.iter().any(|known| path.starts_with(known))
    }

    fn contains_unless_checked(&self, path: &Path, checked: &mut HashMap<PathBuf, bool>) -> bool {
        let real = super::real(path);
        self.contains_name(path) || self.contains_name(&real) || self.contains_directory(&real, checked)
    }

    /// Returns whether a canonical path is in one of the directories by their ids. `checked` has the results for directories.
    fn contains_directory(&self, path: &Path, checked: &mut HashMap<PathBuf, bool>) -> bool {
        let mut is_known = |above: &Path| {
            if let Some(is_known) = checked.get(above) {
                return *is_known;
            }
            let is_known = DirectoryId::read(above).is_some_and(|id| self.identities.contains(&id));
            checked.insert(above.to_owned(), is_known);
            is_known
        };
        !self.identities.is_empty() && path.ancestors().any(&mut is_known)
    }
}

impl DirectoryId {
    /// Returns `None` if the file system does not record creation times.
    fn read(directory: &Path) -> Option<Self> {
        let found = fs::metadata(directory).ok()?;
        let created = found.created().ok()?.duration_since(UNIX_EPOCH).ok()?;
        let created_nanos = u64::try_from(created.as_nanos()).ok()?;
        Some(Self { device: found.dev(), inode: found.ino(), created_nanos })
    }
}

impl Entry {
    fn new(directory: &Path) -> Self {
        Self::Directory { path: directory.to_owned(), id: DirectoryId::read(directory) }
    }

    fn path(&self) -> &Path {
        match self {
            Self::Path(path) | Self::Directory { path, .. } => path,
        }
    }
}

/// Appends directories that are not yet recorded with their id.
pub(super) fn remember(file: &Path, directories: &[&Path]) -> io::Result<()> {
    let known = KnownWorkspaces::read(file);
    let is_known = |directory: &Path| {
        known.contains_name(directory)
            && (DirectoryId::read(directory).is_none()
                || known.contains_directory(directory, &mut HashMap::new()))
    };
    let new: Vec<Entry> =
        directories.iter().filter(|directory| !is_known(directory)).map(|path| Entry::new(path)).collect();
    if new.is_empty() {
        return Ok(());
    }
    if fs::metadata(file).is_ok_and(|found| found.len() > MAX_BYTES) {
        let present: Vec<Entry> = entries(file)?.into_iter().filter(|entry| entry.path().is_dir()).collect();
        let next = file.with_extension(format!("new-{}", std::process::id()));
        create_regular(&next)?.write_all(lines(&present)?.as_bytes())?;
        fs::rename(next, file)?;
    }
    if let Some(state) = file.parent() {
        create_private_directory(state)?;
    }
    // A single write, so that lines of concurrent processes do not interleave.
    append_regular(file)?.write_all(lines(&new)?.as_bytes())
}

fn entries(file: &Path) -> io::Result<Vec<Entry>> {
    let text = match read_regular(file) {
        // A file in place of the state directory is reported by the first who writes there.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        text => text?,
    };
    Ok(text.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect())
}

fn unreadable(file: &Path, error: &io::Error) -> Finding {
    let remedy =
        path_hint(error).unwrap_or_else(|| format!("make it readable: `chmod 600 '{}'`", file.display()));
    let problem = format!("cannot read the list of earlier workspaces `{}`: {error}", file.display());
    Finding::blocking(problem, remedy)
}

fn lines(entries: &[Entry]) -> io::Result<String> {
    let lines: Result<Vec<String>, _> = entries.iter().map(serde_json::to_string).collect();
    Ok(lines?.iter().flat_map(|line| [line.as_str(), "\n"]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(file: &Path) -> Vec<PathBuf> {
        KnownWorkspaces::read(file).paths
    }

    #[test]
    fn deleted_workspaces_are_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("workspaces");
        assert_eq!(paths(&file), Vec::<PathBuf>::new());
        let kept = directory.path().join("a\nb");
        fs::create_dir(&kept).unwrap();
        for path in [&kept, &kept, &kept.join("below")] {
            remember(&file, &[path]).unwrap();
        }
        assert_eq!(paths(&file), std::slice::from_ref(&kept));
        let gone: Vec<PathBuf> = (0..10_000).map(|number| format!("/gone/{number:030}").into()).collect();
        remember(&file, &gone.iter().map(PathBuf::as_path).collect::<Vec<_>>()).unwrap();
        remember(&file, &[Path::new("/new")]).unwrap();
        assert_eq!(paths(&file), [kept, "/new".into()]);
    }

    #[test]
    fn directories_of_a_path_are_split_and_named_once() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
        let (workspace, outside) = (at("workspace/bin"), at("outside/bin"));
        for name in [&workspace, &outside] {
            fs::create_dir_all(name).unwrap();
        }
        let mut known = KnownWorkspaces::default();
        known.extend([directory.path().join("workspace").as_path()]);
        fs::rename(directory.path().join("workspace"), directory.path().join("renamed")).unwrap();
        let renamed = at("renamed/bin");
        let path = [&*outside, &renamed, &outside, &workspace].join(":");
        assert_eq!(known.split_path(&path), (vec![&*renamed, &*workspace], vec![&*outside]));
    }

    #[test]
    fn renamed_workspace_is_recognized() {
        let directory = tempfile::tempdir().unwrap();
        let (file, first, second) = (
            directory.path().join("workspaces"),
            directory.path().join("first"),
            directory.path().join("second"),
        );
        fs::create_dir_all(first.join("bin")).unwrap();
        remember(&file, &[&first]).unwrap();
        fs::rename(&first, &second).unwrap();
        assert!(KnownWorkspaces::read(&file).contains(&second.join("bin")));
        assert!(!KnownWorkspaces::read(&file).contains(directory.path()));
    }

    #[test]
    fn directory_replacing_renamed_workspace_is_added() {
        let directory = tempfile::tempdir().unwrap();
        let (file, workspace) = (directory.path().join("workspaces"), directory.path().join("workspace"));
        for away in ["one", "two"] {
            fs::create_dir(&workspace).unwrap();
            remember(&file, &[&workspace]).unwrap();
            fs::rename(&workspace, directory.path().join(away)).unwrap();
        }
        let known = KnownWorkspaces::read(&file);
        assert!(["one", "two"].iter().all(|away| known.contains(&directory.path().join(away))));
    }

    #[test]
    fn line_of_earlier_version_gets_directory_id() {
        let directory = tempfile::tempdir().unwrap();
        let (file, workspace) = (directory.path().join("workspaces"), directory.path().join("workspace"));
        fs::create_dir(&workspace).unwrap();
        fs::write(&file, format!("{}\n", serde_json::to_string(&workspace).unwrap())).unwrap();
        assert!(KnownWorkspaces::read(&file).contains(&workspace.join("bin")));
        remember(&file, &[&workspace]).unwrap();
        let away = directory.path().join("away");
        fs::rename(&workspace, &away).unwrap();
        assert!(KnownWorkspaces::read(&file).contains(&away));
    }
}
