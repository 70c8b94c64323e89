//! The private caches of confined runs on disk: created, leased to runs, and swept.
//!
//! ```text
//! caches/workspace.lock      a run holds it shared; a sweep takes it exclusively, without waiting, before it moves a cache away
//! caches/workspace/cargo     written by the agents of every run with that policy
//! caches/removed-…           moved away by a sweep, and being removed
//! ```
//! Agents write below `caches/workspace`, so nothing in there is followed by name: a link could lead anywhere.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use model::Caches;
use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, flock, mkdirat, openat, renameat, unlinkat};
use rustix::io::Errno;

use crate::remove_tree::{open_unlocked, remove_tree};

const REMOVED: &str = "removed-";
/// The keys of `[registry]` and `[registries.NAME]` that log in.
const REGISTRY_SECRETS: [&str; 3] = ["token", "secret-key", "secret-key-subject"];
const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Creates the caches below `base` and adds their variables to an environment. Whatever an agent did in a cache, the next run starts.
pub(crate) fn create(caches: &Caches, base: &Path, env: &mut BTreeMap<String, String>) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(base)?;
    let opened = open_unlocked(CWD, base)?;
    for cache in caches.variables.values() {
        if create_one(caches, cache, &opened).is_err() {
            // The sweep removes it. If that fails, too, the agent has to do without this cache.
            let _ = set_aside(cache, &opened, base).and_then(|()| create_one(caches, cache, &opened));
        }
    }
    name(caches, base, env);
    Ok(())
}

fn create_one(caches: &Caches, cache: &str, base: &OwnedFd) -> io::Result<()> {
    // An agent may have put a link or a file in its place, which would lead every later run astray.
    if matches!(
        openat(base, cache, OFlags::PATH | DIRECTORY, Mode::empty()),
        Err(Errno::LOOP | Errno::NOTDIR)
    ) {
        unlinkat(base, cache, AtFlags::empty())?;
    }
    match mkdirat(base, cache, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let directory = open_unlocked(base, cache)?;
    match &caches.cargo_config {
        Some(config) if cache == Caches::cargo_config_copy().0 => copy_cargo_config(config, &directory),
        _ => Ok(()),
    }
}

/// Moves a cache to where the next sweep removes it.
fn set_aside(cache: &str, base: &OwnedFd, path: &Path) -> io::Result<()> {
    let Some(above) = path.parent() else { return Ok(()) };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let aside = above.join(format!("{REMOVED}{}-{now}", std::process::id()));
    Ok(renameat(base, cache, CWD, &aside)?)
}

/// Adds the variables of caches below `base` to an environment.
pub(crate) fn name(caches: &Caches, base: &Path, env: &mut BTreeMap<String, String>) {
    let named = caches.variables.iter();
    env.extend(named.map(|(variable, cache)| (variable.clone(), base.join(cache).display().to_string())));
}

/// Brings the user's configuration of cargo to the cache, without its secrets, or takes away one that the user has no longer.
fn copy_cargo_config(from: &Path, directory: &OwnedFd) -> io::Result<()> {
    let (_, name) = Caches::cargo_config_copy();
    // An agent may have put a directory in its place.
    let remove =
        |name| remove_tree(&PathBuf::from(format!("/proc/self/fd/{}/{name}", directory.as_raw_fd())));
    let config = fs::read_to_string(from).ok().and_then(|config| without_secrets(&config));
    let Some(config) = config else { return remove(name) };
    let next = format!("{name}.{}", std::process::id());
    remove(&next)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(openat(directory, &*next, flags, Mode::RUSR | Mode::WUSR)?);
    file.write_all(config.as_bytes())?;
    let rename = || renameat(directory, &*next, directory, name);
    match rename() {
        Err(Errno::ISDIR) => {
            remove(name)?;
            Ok(rename()?)
        }
        renamed => Ok(renamed?),
    }
}

/// Returns a configuration of cargo without the tokens of registries. They publish packages, and no build needs them. None for a file
/// that cargo could not read either.
fn without_secrets(config: &str) -> Option<String> {
    let mut config: toml::Table = config.parse().ok()?;
    let forget = |registry: &mut toml::Value| {
        if let Some(registry) = registry.as_table_mut() {
            registry.retain(|key, _| !REGISTRY_SECRETS.contains(&key));
        }
    };
    config.get_mut("registry").into_iter().for_each(forget);
    let registries = config.get_mut("registries").and_then(toml::Value::as_table_mut);
    registries.into_iter().flat_map(toml::Table::iter_mut).for_each(|(_, registry)| forget(registry));
    toml::to_string(&config).ok()
}

/// Leases the caches of a policy: as long as the file is open, no sweep moves one of them away. None where they go with the run.
pub fn lease_caches(caches: &Caches) -> io::Result<Option<File>> {
    let Some(directory) = &caches.directory else { return Ok(None) };
    if let Some(above) = directory.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(above)?;
    }
    let lock = open_lock(directory)?;
    // A sweep holds it exclusively only for a rename.
    flock(&lock, FlockOperation::LockShared)?;
    Ok(Some(lock))
}

fn open_lock(directory: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(directory.with_extension("lock"))
}

/// What a sweep did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CacheSweep {
    /// How much the caches take up now.
    pub bytes: u64,
    /// Those that were removed.
    pub removed: Vec<PathBuf>,
}

/// Removes the least recently used caches below a directory until the rest take up at most so many bytes. A cache that a run holds is
/// left alone.
pub fn sweep_caches(caches: &Path, max_bytes: u64) -> io::Result<CacheSweep> {
    let mut sweep = CacheSweep::default();
    let mut found = Vec::new();
    for entry in entries(caches)? {
        if entry.file_name().is_some_and(|name| name.to_string_lossy().starts_with(REMOVED)) {
            // Of a sweep that did not get to its end.
            remove_tree(&entry)?;
        } else if is_directory(&entry) {
            open_unlocked(CWD, &entry)?;
            found.extend(entries(&entry)?.into_iter().map(|cache| (Usage::of(&cache), cache)));
        }
    }
    sweep.bytes = found.iter().map(|(usage, _)| usage.bytes).sum();
    found.sort_by_key(|(usage, _)| usage.last);
    for (number, (usage, cache)) in found.into_iter().enumerate() {
        if sweep.bytes <= max_bytes {
            break;
        }
        let away = caches.join(format!("{REMOVED}{}-{number}", std::process::id()));
        if move_away(&cache, &away)? {
            remove_tree(&away)?;
            sweep.bytes -= usage.bytes;
            sweep.removed.push(cache);
        }
    }
    Ok(sweep)
}

/// Moves a cache to where no run finds it; not while one holds it.
fn move_away(cache: &Path, away: &Path) -> io::Result<bool> {
    let Some(policy) = cache.parent() else { return Ok(false) };
    let lock = open_lock(policy)?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => return Ok(false),
        locked => locked?,
    }
    // A directory that moves to another one is written: its `..` changes.
    let _ = open_unlocked(CWD, cache);
    fs::rename(cache, away)?;
    Ok(true)
}

/// What a cache takes up, and when something in it was last read or written, as far as the file system keeps that.
struct Usage {
    bytes: u64,
    /// In seconds since 1970.
    last: u64,
}

impl Usage {
    fn of(path: &Path) -> Self {
        let mut usage = Self { bytes: 0, last: 0 };
        let mut left = vec![path.to_owned()];
        while let Some(path) = left.pop() {
            // Its run may be removing it at this moment.
            let Ok(found) = path.symlink_metadata() else { continue };
            usage.bytes += found.blocks() * 512;
            // To look into a directory is to read it, so only the times of files count.
            let last = if found.is_dir() { 0 } else { found.atime().max(found.mtime()) };
            usage.last = usage.last.max(u64::try_from(last).unwrap_or_default());
            if found.is_dir() {
                left.extend(entries(&path).unwrap_or_default());
            }
        }
        usage
    }
}

fn is_directory(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| found.is_dir())
}

fn entries(directory: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        entries => entries?.map(|entry| Ok(entry?.path())).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    fn caches(directory: &Path) -> Caches {
        Caches::new(Some(directory.join("workspace")), Some(&directory.join("users")), |_| false)
    }

    fn fill(directory: &Path, cache: &str, used_at: u64) {
        let file = directory.join("workspace").join(cache).join("file");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, vec![1; 1 << 20]).unwrap();
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(used_at);
        let times = fs::FileTimes::new().set_modified(at).set_accessed(at);
        File::open(file).unwrap().set_times(times).unwrap();
    }

    #[test]
    fn sweep_removes_the_least_recently_used_cache() {
        let directory = tempfile::tempdir().unwrap();
        for (cache, used_at) in [("npm", 300), ("cargo", 100), ("pip", 200)] {
            fill(directory.path(), cache, used_at);
        }
        assert_eq!(sweep_caches(directory.path(), u64::MAX).unwrap().removed, Vec::<PathBuf>::new());
        let swept = sweep_caches(directory.path(), (2 << 20) + (1 << 19)).unwrap();
        assert_eq!(swept.removed, [directory.path().join("workspace/cargo")]);
        assert!(directory.path().join("workspace/npm/file").exists());
        let names: Vec<_> = entries(directory.path()).unwrap();
        assert_eq!(names.len(), 2, "{names:?}");
    }

    #[test]
    fn sweep_leaves_caches_that_a_run_holds() {
        let directory = tempfile::tempdir().unwrap();
        fill(directory.path(), "npm", 100);
        let lease = lease_caches(&caches(directory.path())).unwrap();
        assert_eq!(sweep_caches(directory.path(), 0).unwrap().removed, Vec::<PathBuf>::new());
        drop(lease);
        assert_eq!(sweep_caches(directory.path(), 0).unwrap().removed.len(), 1);
    }

    #[test]
    fn cargo_config_is_copied_anew_and_never_through_a_link() {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path().join("workspace");
        let users = directory.path().join("users");
        fs::create_dir(&users).unwrap();
        let create = || {
            let mut env = BTreeMap::new();
            create(&caches(directory.path()), &base, &mut env).unwrap();
            env
        };
        fs::write(users.join("config.toml"), "[net]\nretry = 2\n").unwrap();
        assert_eq!(create()["CARGO_HOME"], base.join("cargo").display().to_string());
        assert_eq!(fs::read_to_string(base.join("cargo/config.toml")).unwrap(), "[net]\nretry = 2\n");
        fs::remove_file(users.join("config.toml")).unwrap();
        create();
        assert!(!base.join("cargo/config.toml").exists());
        fs::remove_dir(base.join("cargo")).unwrap();
        std::os::unix::fs::symlink(&users, base.join("cargo")).unwrap();
        create();
        assert_eq!(fs::read_dir(&users).unwrap().count(), 0);
        assert!(base.join("cargo").symlink_metadata().unwrap().is_dir());
    }

    #[test]
    fn whatever_an_agent_did_in_its_caches_the_next_run_starts() {
        let directory = tempfile::tempdir().unwrap();
        let (base, users) = (directory.path().join("workspace"), directory.path().join("users"));
        fs::create_dir(&users).unwrap();
        fs::write(users.join("config.toml"), "[net]\nretry = 2\n").unwrap();
        let create = || create(&caches(directory.path()), &base, &mut BTreeMap::new()).unwrap();
        let lock = |path: &Path| fs::set_permissions(path, Permissions::from_mode(0o000)).unwrap();
        let cargo = base.join("cargo");
        let copy = cargo.join("config.toml");
        let spoils: [&dyn Fn(); 4] = [
            &|| {
                fs::remove_file(&copy).unwrap();
                fs::create_dir_all(copy.join("x/y")).unwrap();
                lock(&copy.join("x"));
            },
            &|| fs::create_dir(cargo.join(format!("config.toml.{}", std::process::id()))).unwrap(),
            &|| lock(&cargo),
            &|| lock(&base),
        ];
        create();
        for spoil in spoils {
            spoil();
            create();
            assert_eq!(fs::read_to_string(&copy).unwrap(), "[net]\nretry = 2\n");
            assert_eq!(cargo.metadata().unwrap().mode() & 0o777, 0o700);
        }
    }

    #[test]
    fn sweep_removes_files_and_caches_without_rights() {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path().join("workspace");
        fill(directory.path(), "npm", 100);
        fs::write(base.join("file"), "x").unwrap();
        for path in [&base.join("npm"), &base] {
            fs::set_permissions(path, Permissions::from_mode(0o000)).unwrap();
        }
        assert_eq!(sweep_caches(directory.path(), 0).unwrap().removed.len(), 2);
        assert_eq!(fs::read_dir(&base).unwrap().count(), 0);
    }

    #[test]
    fn tokens_of_registries_are_not_copied() {
        let directory = tempfile::tempdir().unwrap();
        let (base, users) = (directory.path().join("workspace"), directory.path().join("users"));
        fs::create_dir(&users).unwrap();
        let config = "registry.token = \"hunter1\"\n[registries.shop]\nindex = \"sparse+https://shop.example/\"\n\
                      token = \"hunter2\"\nsecret-key = \"hunter3\"\n[build]\njobs = 2\n";
        fs::write(users.join("config.toml"), config).unwrap();
        fs::write(users.join("credentials.toml"), "[registry]\ntoken = \"hunter4\"\n").unwrap();
        create(&caches(directory.path()), &base, &mut BTreeMap::new()).unwrap();
        let copy = fs::read_to_string(base.join("cargo/config.toml")).unwrap();
        assert!(!copy.contains("hunter"), "{copy}");
        assert!(copy.contains("https://shop.example/") && copy.contains("jobs = 2"), "{copy}");
        assert_eq!(fs::read_dir(base.join("cargo")).unwrap().count(), 1);

        fs::write(users.join("config.toml"), "token = hunter5").unwrap();
        create(&caches(directory.path()), &base, &mut BTreeMap::new()).unwrap();
        assert!(!base.join("cargo/config.toml").exists(), "nobody can tell its secrets from the rest");
    }
}
