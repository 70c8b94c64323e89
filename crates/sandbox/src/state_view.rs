//! The view of a confined agent on its own state directory.
//!
//! A private directory of the run replaces the state directory. Files are copied, so the agent can rewrite its settings and caches during
//! the run; directories are read-only; only the kept paths are the real ones. With namespaces the view consists of mounts at the usual
//! path. Without, it consists of symbolic links, the agent's variable points to it, and Landlock allows writes to the kept paths alone.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use model::{AgentState, KeptPath};
use regular_file::{create_private_directory, open_regular};

use crate::mechanisms::Tier;
use crate::mount_plan::Mount;
use crate::real_path::{RealPath, real_path};

/// The user's instructions to an agent, which are read-only: a change of the copy would succeed and be discarded with the run.
const INSTRUCTIONS: [&str; 3] = ["AGENTS.md", "CLAUDE.md", "GEMINI.md"];
/// The maximum size of a copied file; a larger one is read-only.
const MAX_COPY_BYTES: u64 = 16 << 20;
/// The maximum size of a file that names the owner of a directory.
const MAX_MARKER_BYTES: u64 = 4096;
/// The maximum number of names that are tried for a new project directory.
const MAX_NAMES: usize = 1000;

/// The view of one run on a state directory.
#[derive(Debug, Default)]
pub(crate) struct StateView {
    /// The path of the state directory inside of the sandbox.
    pub target: PathBuf,
    /// The private directory that replaces it.
    pub private: PathBuf,
    /// The mounts on the private directory, including itself. Empty without namespaces.
    pub mounts: Vec<(PathBuf, Mount)>,
    /// The writable real paths.
    pub kept: Vec<PathBuf>,
    /// The real paths that are visible read-only.
    pub shown: Vec<PathBuf>,
    /// Directories that should be read-only and cannot: a link or a file is in their place.
    pub unprotected: Vec<PathBuf>,
}

/// A kept path, relative to the state directory.
struct KeptEntry {
    path: PathBuf,
    is_directory: bool,
    read_only: Vec<String>,
}

impl StateView {
    /// Builds the view in a directory of its own, replacing an earlier one. Links into `hidden` paths are omitted.
    pub fn build(state: &AgentState, directory: &Path, hidden: &[PathBuf], tier: Tier) -> io::Result<Self> {
        create_directory(&state.directory)?;
        let real = real_path(&state.directory)?;
        let name = state.directory.file_name().unwrap_or_default();
        // That directory contains nothing else, since the agent's variable may point to the parent of its state.
        let private = directory.join(name);
        remove_if_present(&private)?;
        create_directory(&private)?;
        let private = real_path(&private)?;
        let mut view = Self { target: real.clone(), private, ..Self::default() };
        if tier == Tier::Namespaces {
            view.mounts.push((real.clone(), Mount::WriteFrom(view.private.clone())));
        }
        let kept = find_kept(state, &real)?;
        if kept.iter().any(|kept| kept.path.as_os_str().is_empty()) {
            return view.with_everything(state, real, tier);
        }
        for entry in fs::read_dir(&real)? {
            let name = entry?.file_name();
            let is_kept = kept.iter().any(|kept| kept.path.starts_with(&name));
            if !is_kept && !name.to_str().is_some_and(|name| state.is_discarded(name)) {
                view.add_entry(&real, Path::new(&name), hidden, tier)?;
            }
        }
        for kept in kept {
            view.add_kept(&real, &kept, tier)?;
        }
        for name in INSTRUCTIONS {
            view.make_read_only(name, tier)?;
        }
        Ok(view)
    }

    /// Keeps the whole directory, except for the discarded directories in it.
    fn with_everything(mut self, state: &AgentState, real: PathBuf, tier: Tier) -> io::Result<Self> {
        self.mounts.clear();
        if tier == Tier::Namespaces {
            self.mounts.push((real.clone(), Mount::WriteFrom(real.clone())));
            for name in &state.discarded {
                let path = real.join(name);
                match path.symlink_metadata() {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => create_directory(&path)?,
                    Ok(found) if found.is_dir() => {}
                    _ => {
                        self.unprotected.push(path);
                        continue;
                    }
                }
                let private = self.private.join(name);
                create_directory(&private)?;
                self.mounts.push((path, Mount::WriteFrom(private)));
            }
        }
        self.kept.push(real);
        Ok(self)
    }

    /// Makes a copied file read-only, creating an empty one if it is missing, so that a write fails and is reported.
    fn make_read_only(&mut self, name: &str, tier: Tier) -> io::Result<()> {
        let copy = self.private.join(name);
        match copy.symlink_metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => drop(File::create(&copy)?),
            Ok(found) if found.is_file() => {}
            _ => return Ok(()),
        }
        if tier == Tier::Rules {
            return fs::set_permissions(&copy, fs::Permissions::from_mode(0o444));
        }
        let at = self.target.join(name);
        if !self.mounts.iter().any(|(known, _)| *known == at) {
            self.mounts.push((at, Mount::ReadFrom(copy)));
        }
        Ok(())
    }

    /// Adds an entry of the state directory: a copy of a file, or a read-only directory. An unreadable entry is omitted.
    fn add_entry(&mut self, state: &Path, name: &Path, hidden: &[PathBuf], tier: Tier) -> io::Result<()> {
        // The user may have linked to settings in another directory.
        let Ok(found) = RealPath::resolve(&state.join(name)) else { return Ok(()) };
        if hidden.iter().any(|hidden| found.path.starts_with(hidden)) {
            return Ok(());
        }
        if !found.is_directory && copy_file(&found.path, &self.private.join(name))? {
            return Ok(());
        }
        let is_visible = found.is_directory || found.path.metadata().is_ok_and(|file| file.is_file());
        if is_visible {
            self.add_path(name, &found.path, found.is_directory, Mount::ReadFrom, tier)?;
            self.shown.push(found.path);
        }
        Ok(())
    }

    /// Makes a path of the real state writable.
    fn add_kept(&mut self, state: &Path, kept: &KeptEntry, tier: Tier) -> io::Result<()> {
        let source = state.join(&kept.path);
        if kept.is_directory {
            create_directory(&source)?;
        }
        let source = real_path(&source)?;
        self.add_path(&kept.path, &source, kept.is_directory, Mount::WriteFrom, tier)?;
        for name in &kept.read_only {
            let path = source.join(name);
            // The agent can write to the parent directory, so it may have created a link.
            match path.symlink_metadata() {
                Err(error) if error.kind() == io::ErrorKind::NotFound => create_directory(&path)?,
                Ok(found) if found.is_dir() => {}
                _ => {
                    self.unprotected.push(path);
                    continue;
                }
            }
            if tier == Tier::Namespaces {
                self.mounts.push((self.target.join(&kept.path).join(name), Mount::ReadFrom(path)));
            } else {
                self.unprotected.push(path);
            }
        }
        self.kept.push(source);
        Ok(())
    }

    /// Adds a real path to the view.
    fn add_path(
        &mut self,
        name: &Path,
        source: &Path,
        is_directory: bool,
        mount: fn(PathBuf) -> Mount,
        tier: Tier,
    ) -> io::Result<()> {
        let target = self.private.join(name);
        if let Some(above) = target.parent() {
            create_directory(above)?;
        }
        if tier == Tier::Rules {
            return symlink(source, target);
        }
        if is_directory {
            create_directory(&target)?;
        } else {
            File::create(&target)?;
        }
        self.mounts.push((self.target.join(name), mount(source.to_owned())));
        Ok(())
    }

    /// Returns the new value of a variable that names the state directory or its parent.
    pub fn variable_value(&self, state: &AgentState, value: &str) -> Option<PathBuf> {
        let value = Path::new(value);
        if value == state.directory {
            return Some(self.private.clone());
        }
        (Some(value) == state.directory.parent()).then(|| self.private.parent().map(Path::to_owned))?
    }
}

/// Finds the kept paths in a state directory.
fn find_kept(state: &AgentState, real: &Path) -> io::Result<Vec<KeptEntry>> {
    let mut found: Vec<KeptEntry> = Vec::new();
    let mut add = |path: PathBuf, is_directory: bool, read_only: &[String]| {
        if !found.iter().any(|kept| kept.path == path) {
            found.push(KeptEntry { path, is_directory, read_only: read_only.to_vec() });
        }
    };
    for kept in &state.kept {
        match kept {
            KeptPath::Directory(path) => add(path.clone(), true, &[]),
            KeptPath::File(path) => {
                if real.join(path).is_file() {
                    add(path.clone(), false, &[]);
                }
            }
            KeptPath::Project { path, read_only } => add(path.clone(), true, read_only),
            KeptPath::Containing { parent, entry, read_only } => {
                for name in list_directories(&real.join(parent)) {
                    let path = parent.join(name);
                    if real.join(&path).join(entry).is_file() {
                        add(path, true, read_only);
                    }
                }
            }
            KeptPath::Owned { parent, marker, owner, name, read_only } => {
                let name = find_or_create_owned(&real.join(parent), marker, owner, name)?;
                add(parent.join(name), true, read_only);
            }
        }
    }
    Ok(found)
}

/// Finds the directory of an owner by its marker file, or creates it. Returns its name.
fn find_or_create_owned(parent: &Path, marker: &str, owner: &str, name: &str) -> io::Result<PathBuf> {
    let is_owned = |name: &PathBuf| read_marker(&parent.join(name).join(marker)).as_deref() == Some(owner);
    if let Some(found) = list_directories(parent).into_iter().find(is_owned) {
        return Ok(found);
    }
    create_directory(parent)?;
    for number in 0..MAX_NAMES {
        let name = if number == 0 { name.to_owned() } else { format!("{name}-{number}") };
        match DirBuilder::new().mode(0o700).create(parent.join(&name)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            created => {
                created?;
                let path = parent.join(&name).join(marker);
                let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
                file.write_all(owner.as_bytes())?;
                return Ok(name.into());
            }
        }
    }
    Err(io::Error::other(format!("no free name for a project in `{}`", parent.display())))
}

fn read_marker(path: &Path) -> Option<String> {
    let mut text = String::new();
    open_regular(path).ok()?.take(MAX_MARKER_BYTES).read_to_string(&mut text).ok()?;
    Some(text.trim().to_owned())
}

fn list_directories(parent: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    directories.map(|entry| PathBuf::from(entry.file_name())).collect()
}

/// Copies a regular file with its mode. Returns false for another kind of file and for one that is too large.
fn copy_file(from: &Path, to: &Path) -> io::Result<bool> {
    let Ok(mut source) = open_regular(from) else { return Ok(false) };
    let found = source.metadata()?;
    if found.len() > MAX_COPY_BYTES {
        return Ok(false);
    }
    let mode = found.permissions().mode() & 0o700 | 0o600;
    let mut target = OpenOptions::new().write(true).create_new(true).mode(mode).open(to)?;
    io::copy(&mut source, &mut target)?;
    Ok(true)
}

fn create_directory(path: &Path) -> io::Result<()> {
    create_private_directory(path)
}

fn remove_if_present(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Harness {
        directory: tempfile::TempDir,
    }

    impl Harness {
        fn new() -> Self {
            let harness = Self { directory: tempfile::tempdir().unwrap() };
            for name in ["state/rules", "state/sessions", "state/tmp/other", "elsewhere", "hidden"] {
                fs::create_dir_all(harness.path(name)).unwrap();
            }
            for name in ["state/settings", "state/index.sqlite", "state/login", "hidden/key"] {
                fs::write(harness.path(name), name).unwrap();
            }
            fs::write(harness.path("state/tmp/other/.owner"), "/other").unwrap();
            symlink("../hidden", harness.path("state/keys")).unwrap();
            symlink("../elsewhere", harness.path("state/linked")).unwrap();
            harness
        }

        fn path(&self, name: &str) -> PathBuf {
            self.directory.path().canonicalize().unwrap().join(name)
        }

        fn build(&self, tier: Tier) -> StateView {
            let owned = KeptPath::Owned {
                parent: "tmp".into(),
                marker: ".owner".into(),
                owner: "/work/shop".into(),
                name: "other".into(),
                read_only: vec!["memory".into()],
            };
            let kept = vec![KeptPath::Directory("sessions".into()), KeptPath::File("login".into()), owned];
            let state = AgentState {
                directory: self.path("state"),
                variable: None,
                kept,
                discarded: vec!["*.sqlite".into()],
            };
            StateView::build(&state, &self.path("run"), &[self.path("hidden")], tier).unwrap()
        }
    }

    #[test]
    fn only_kept_paths_are_writable() {
        let harness = Harness::new();
        let view = harness.build(Tier::Namespaces);
        let at = |name: &str| harness.path("state").join(name);
        let mount =
            |name: &str| view.mounts.iter().find(|(path, _)| *path == at(name)).map(|(_, mount)| mount);
        for name in ["sessions", "login", "tmp/other-1"] {
            assert_eq!(mount(name), Some(&Mount::WriteFrom(at(name))), "{view:?}");
        }
        assert_eq!(mount("rules"), Some(&Mount::ReadFrom(at("rules"))));
        assert_eq!(mount("linked"), Some(&Mount::ReadFrom(harness.path("elsewhere"))));
        let memory = at("tmp/other-1/memory");
        assert_eq!(mount("tmp/other-1/memory"), Some(&Mount::ReadFrom(memory)));
        assert_eq!(fs::read_to_string(view.private.join("settings")).unwrap(), "state/settings");
        let instructions = view.private.join("CLAUDE.md");
        assert_eq!(mount("CLAUDE.md"), Some(&Mount::ReadFrom(instructions)), "{view:?}");
        for name in ["index.sqlite", "keys", "tmp/other"] {
            assert!(mount(name).is_none() && !view.private.join(name).exists(), "{name}: {view:?}");
        }
    }

    #[test]
    fn whole_directory_can_be_kept() {
        let harness = Harness::new();
        let state = AgentState {
            directory: harness.path("state"),
            variable: None,
            kept: vec![KeptPath::Directory(PathBuf::new())],
            discarded: vec!["snapshot".to_owned()],
        };
        let view = StateView::build(&state, &harness.path("run"), &[], Tier::Namespaces).unwrap();
        let real = harness.path("state");
        let (discarded, empty) = (real.join("snapshot"), view.private.join("snapshot"));
        let expected =
            [(real.clone(), Mount::WriteFrom(real.clone())), (discarded, Mount::WriteFrom(empty.clone()))];
        assert_eq!(view.mounts, expected);
        assert_eq!(fs::read_dir(empty).unwrap().count(), 0);
        assert_eq!(view.kept, [real]);
    }

    #[test]
    fn project_directory_is_found_again_by_its_owner() {
        let harness = Harness::new();
        let kept = |view: StateView| view.kept;
        assert_eq!(kept(harness.build(Tier::Namespaces)), kept(harness.build(Tier::Namespaces)));
        assert_eq!(fs::read_to_string(harness.path("state/tmp/other-1/.owner")).unwrap(), "/work/shop");
    }

    #[test]
    fn view_without_namespaces_consists_of_links() {
        let harness = Harness::new();
        let view = harness.build(Tier::Rules);
        assert!(view.mounts.is_empty());
        assert_eq!(view.private.join("sessions").read_link().unwrap(), harness.path("state/sessions"));
        assert_eq!(view.private.join("rules").read_link().unwrap(), harness.path("state/rules"));
        assert!(view.private.join("settings").is_file());
        assert_eq!(view.unprotected, [harness.path("state/tmp/other-1/memory")]);
    }

    #[test]
    fn link_instead_of_read_only_directory_is_not_followed() {
        let harness = Harness::new();
        let memory = harness.path("state/tmp/other-1/memory");
        harness.build(Tier::Namespaces);
        fs::remove_dir(&memory).unwrap();
        symlink(harness.path("hidden"), &memory).unwrap();
        let view = harness.build(Tier::Namespaces);
        assert_eq!(view.unprotected, std::slice::from_ref(&memory));
        assert!(!view.mounts.iter().any(|(at, _)| *at == memory), "{view:?}");
    }
}
