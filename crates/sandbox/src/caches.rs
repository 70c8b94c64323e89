//! The private package caches of confined runs: created, leased to runs and swept.
//!
//! ```text
//! caches/workspace.lock      locked shared by each run; locked exclusively (non-blocking) by a sweep before it moves a cache
//! caches/workspace/cargo     written by the agents of all runs with that policy
//! caches/removed-…           moved here by a sweep to be removed
//! ```
//! Agents write below `caches/workspace`, so no link in there is followed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use model::Caches;
use regular_file::{create_private_directory, name_culprit, open_linked, open_lock_file};
use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, flock, mkdirat, openat, renameat, unlinkat};
use rustix::io::Errno;

use crate::remove_tree::{open_unlocked, remove_tree};

const REMOVED: &str = "removed-";
/// The credentials in `[registry]` and `[registries.NAME]`.
const REGISTRY_SECRETS: [&str; 3] = ["token", "secret-key", "secret-key-subject"];
const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Creates the caches below `base` and adds their variables to an environment. A cache that an agent has made unusable is replaced, so
/// that the next run can start.
pub(crate) fn create_caches(
    caches: &Caches,
    base: &Path,
    env: &mut BTreeMap<String, String>,
) -> io::Result<()> {
    create_private_directory(base)?;
    let opened = open_unlocked(CWD, base).map_err(|errno| name_culprit(base, errno.into()))?;
    for cache in caches.variables.values() {
        if create_cache(caches, cache, &opened).is_err() {
            // The sweep removes it. If the second attempt fails, too, the agent runs without this cache.
            let _ = set_aside(cache, &opened, base).and_then(|()| create_cache(caches, cache, &opened));
        }
    }
    set_cache_variables(caches, base, env);
    Ok(())
}

fn create_cache(caches: &Caches, cache: &str, base: &OwnedFd) -> io::Result<()> {
    // An agent may have put a link or a file in its place, which every later run would follow.
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

/// Moves a cache to a name that the next sweep removes.
fn set_aside(cache: &str, base: &OwnedFd, path: &Path) -> io::Result<()> {
    let Some(above) = path.parent() else { return Ok(()) };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let aside = above.join(format!("{REMOVED}{}-{now}", std::process::id()));
    Ok(renameat(base, cache, CWD, &aside)?)
}

/// Adds the variables of caches below `base` to an environment.
pub(crate) fn set_cache_variables(caches: &Caches, base: &Path, env: &mut BTreeMap<String, String>) {
    let variables = caches.variables.iter();
    env.extend(variables.map(|(variable, cache)| (variable.clone(), base.join(cache).display().to_string())));
}

/// Copies the user's cargo configuration to the cache without its secrets, or removes a copy whose original is gone.
fn copy_cargo_config(from: &Path, directory: &OwnedFd) -> io::Result<()> {
    let (_, name) = Caches::cargo_config_copy();
    // An agent may have put a directory in its place.
    let remove =
        |name| remove_tree(&PathBuf::from(format!("/proc/self/fd/{}/{name}", directory.as_raw_fd())));
    let config =
        open_linked(from).and_then(io::read_to_string).ok().and_then(|config| without_secrets(&config));
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

/// Returns a cargo configuration without registry tokens, which publish packages and are not needed by builds. Returns `None` for a file
/// that is not valid TOML.
fn without_secrets(config: &str) -> Option<String> {
    let mut config: toml::Table = config.parse().ok()?;
    let remove_secrets = |registry: &mut toml::Value| {
        if let Some(registry) = registry.as_table_mut() {
            registry.retain(|key, _| !REGISTRY_SECRETS.contains(&key));
        }
    };
    config.get_mut("registry").into_iter().for_each(remove_secrets);
    let registries = config.get_mut("registries").and_then(toml::Value::as_table_mut);
    registries.into_iter().flat_map(toml::Table::iter_mut).for_each(|(_, registry)| remove_secrets(registry));
    toml::to_string(&config).ok()
}

/// Leases the caches of a policy: no sweep moves one of them while the returned file is open. Returns `None` for caches of a single run.
pub fn lease_caches(caches: &Caches) -> io::Result<Option<File>> {
    let Some(directory) = &caches.directory else { return Ok(None) };
    if let Some(above) = directory.parent() {
        create_private_directory(above)?;
    }
    let lock = open_lock(directory)?;
    // A sweep holds it exclusively only for a rename.
    flock(&lock, FlockOperation::LockShared)?;
    Ok(Some(lock))
}

fn open_lock(directory: &Path) -> io::Result<File> {
    open_lock_file(&directory.with_extension("lock"))
}

/// The result of a sweep.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CacheSweep {
    /// The remaining size of the caches.
    pub bytes: u64,
    /// The removed caches.
    pub removed: Vec<PathBuf>,
}

/// Removes the least recently used caches below a directory until the rest has at most `max_bytes`. Leased caches are skipped.
pub fn sweep_caches(caches: &Path, max_bytes: u64) -> io::Result<CacheSweep> {
    let mut sweep = CacheSweep::default();
    let mut found = Vec::new();
    for entry in entries(caches)? {
        if entry.file_name().is_some_and(|name| name.to_string_lossy().starts_with(REMOVED)) {
            // Left by an interrupted sweep.
            remove_tree(&entry)?;
        } else if is_directory(&entry) {
            open_unlocked(CWD, &entry)?;
            found.extend(entries(&entry)?.into_iter().map(|cache| (CacheUsage::measure(&cache), cache)));
        }
    }
    sweep.bytes = found.iter().map(|(usage, _)| usage.bytes).sum();
    found.sort_by_key(|(usage, _)| usage.last);
    for (number, (usage, cache)) in found.into_iter().enumerate() {
        if sweep.bytes <= max_bytes {
            break;
        }
        let removed = caches.join(format!("{REMOVED}{}-{number}", std::process::id()));
        if move_cache(&cache, &removed)? {
            remove_tree(&removed)?;
            sweep.bytes -= usage.bytes;
            sweep.removed.push(cache);
        }
    }
    Ok(sweep)
}

/// Moves a cache out of the reach of runs. Returns false if it is leased.
fn move_cache(cache: &Path, target: &Path) -> io::Result<bool> {
    let Some(policy) = cache.parent() else { return Ok(false) };
    let lock = open_lock(policy)?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => return Ok(false),
        locked => locked?,
    }
    // Moving a directory to another parent writes to it: its `..` changes.
    let _ = open_unlocked(CWD, cache);
    fs::rename(cache, target)?;
    Ok(true)
}

/// The size of a cache and the time of its last use, as far as the file system records it.
struct CacheUsage {
    bytes: u64,
    /// The last access or modification, in seconds since the epoch.
    last: u64,
}

impl CacheUsage {
    fn measure(path: &Path) -> Self {
        let mut usage = Self { bytes: 0, last: 0 };
        let mut left = vec![path.to_owned()];
        while let Some(path) = left.pop() {
            // A run may be removing it at this moment.
            let Ok(found) = path.symlink_metadata() else { continue };
            usage.bytes += found.blocks() * 512;
            // This walk itself reads directories, so only the times of files count.
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
    fn fifo_in_place_of_a_cache_lock_is_rejected() {
        let directory = tempfile::tempdir().unwrap();
        let lock = directory.path().join("workspace.lock");
        rustix::fs::mknodat(CWD, &lock, rustix::fs::FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let error = lease_caches(&caches(directory.path())).unwrap_err();
        assert_eq!(error.to_string(), format!("`{}` is not a regular file", lock.display()));
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
    fn sweep_skips_leased_caches() {
        let directory = tempfile::tempdir().unwrap();
        fill(directory.path(), "npm", 100);
        let lease = lease_caches(&caches(directory.path())).unwrap();
        assert_eq!(sweep_caches(directory.path(), 0).unwrap().removed, Vec::<PathBuf>::new());
        drop(lease);
        assert_eq!(sweep_caches(directory.path(), 0).unwrap().removed.len(), 1);
    }

    #[test]
    fn cargo_config_is_copied_and_removed_with_its_original() {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path().join("workspace");
        let users = directory.path().join("users");
        fs::create_dir(&users).unwrap();
        let create = || {
            let mut env = BTreeMap::new();
            create_caches(&caches(directory.path()), &base, &mut env).unwrap();
            env
        };
        fs::write(users.join("config.toml"), "[net]\nretry = 2\n").unwrap();
        assert_eq!(create()["CARGO_HOME"], base.join("cargo").display().to_string());
        assert_eq!(fs::read_to_string(base.join("cargo/config.toml")).unwrap(), "[net]\nretry = 2\n");
        fs::remove_file(users.join("config.toml")).unwrap();
        create();
        assert!(!base.join("cargo/config.toml").exists());
    }

    #[test]
    fn link_instead_of_a_cache_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let (base, users) = (directory.path().join("workspace"), directory.path().join("users"));
        fs::create_dir(&users).unwrap();
        fs::create_dir(&base).unwrap();
        std::os::unix::fs::symlink(&users, base.join("cargo")).unwrap();
        create_caches(&caches(directory.path()), &base, &mut BTreeMap::new()).unwrap();
        assert_eq!(fs::read_dir(&users).unwrap().count(), 0);
        assert!(base.join("cargo").symlink_metadata().unwrap().is_dir());
    }

    #[test]
    fn spoiled_caches_are_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let (base, users) = (directory.path().join("workspace"), directory.path().join("users"));
        fs::create_dir(&users).unwrap();
        fs::write(users.join("config.toml"), "[net]\nretry = 2\n").unwrap();
        let create = || create_caches(&caches(directory.path()), &base, &mut BTreeMap::new()).unwrap();
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
    fn sweep_removes_locked_caches_and_files() {
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
    fn registry_tokens_are_not_copied() {
        let directory = tempfile::tempdir().unwrap();
        let (base, users) = (directory.path().join("workspace"), directory.path().join("users"));
        fs::create_dir(&users).unwrap();
        let config = "registry.token = \"hunter1\"\n[registries.shop]\nindex = \"sparse+https://shop.example/\"\n\
                      token = \"hunter2\"\nsecret-key = \"hunter3\"\n[build]\njobs = 2\n";
        fs::write(users.join("config.toml"), config).unwrap();
        fs::write(users.join("credentials.toml"), "[registry]\ntoken = \"hunter4\"\n").unwrap();
        create_caches(&caches(directory.path()), &base, &mut BTreeMap::new()).unwrap();
        let copy = fs::read_to_string(base.join("cargo/config.toml")).unwrap();
        assert!(!copy.contains("hunter"), "{copy}");
        assert!(copy.contains("https://shop.example/") && copy.contains("jobs = 2"), "{copy}");
        assert_eq!(fs::read_dir(base.join("cargo")).unwrap().count(), 1);

        fs::write(users.join("config.toml"), "token = hunter5").unwrap();
        create_caches(&caches(directory.path()), &base, &mut BTreeMap::new()).unwrap();
        assert!(!base.join("cargo/config.toml").exists(), "its secrets cannot be identified");
    }
}
