//! Applies Landlock rules: file access, and the scopes of signals and abstract sockets.
//!
//! The rules of one layer are a union, so access cannot be revoked below an allowed directory. The readable paths are therefore all paths
//! *beside* the hidden ones ([`paths_beside`]). With namespaces this is a second barrier: it holds when an empty mount disappears with the
//! file that it was mounted on.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr, RulesetCreated,
    RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use rustix::fs::{Mode, OFlags, open};

use crate::beneath::open_without_links;
use crate::launcher_protocol::Rules;
use crate::writable_roots::WritableRoot;

/// The ABI whose file access rights are handled here.
const FILE_ABI: ABI = ABI::V3;

/// Applies the rules to this process. Returns whether the file rules and whether the scopes are enforced.
///
/// One layer contains both. Every layer denies renames and links between directories unless it allows them, which a layer of scopes alone
/// cannot: under two layers no compiler could move its output into place.
pub(crate) fn apply(rules: &Rules) -> Result<(bool, bool), String> {
    let scoped = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .scope(Scope::AbstractUnixSocket | Scope::Signal);
    // An older kernel has no scopes.
    let has_scopes = scoped.is_ok();
    let ruleset = scoped.unwrap_or_default().set_compatibility(CompatLevel::BestEffort);
    let is_enforced = enforce(ruleset, rules)?;
    if rules.required && !(is_enforced && has_scopes) {
        return Err("the kernel enforces only a part of the Landlock rules".to_owned());
    }
    Ok((is_enforced, is_enforced && has_scopes))
}

fn enforce(ruleset: Ruleset, rules: &Rules) -> Result<bool, String> {
    let (read, write) = (AccessFs::from_read(FILE_ABI), AccessFs::from_write(FILE_ABI));
    let create = |ruleset: Ruleset| ruleset.handle_access(read | write)?.create();
    let mut ruleset = create(ruleset).map_err(|error| error.to_string())?;
    for path in &rules.list {
        ruleset = allow(ruleset, path, AccessFs::ReadDir.into())?;
    }
    for path in &rules.read {
        ruleset = allow(ruleset, path, read)?;
    }
    for path in &rules.write {
        ruleset = allow_root(ruleset, path, read | write, &rules.roots)?;
    }
    // The agent may reopen its prompt (`/dev/stdin`), and the probe runs this executable; both may lie in hidden directories.
    ruleset = allow_file(ruleset, rustix::stdio::stdin(), AccessFs::ReadFile.into())
        .map_err(|error| error.to_string())?;
    if let Ok(program) = open("/proc/self/exe", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
        ruleset = allow_file(ruleset, program, read).map_err(|error| error.to_string())?;
    }
    let status = ruleset.restrict_self().map_err(|error| error.to_string())?;
    Ok(status.ruleset == RulesetStatus::FullyEnforced)
}

/// Allows access below a path. A path that is gone, or that this user cannot open, needs no rule. A path that has become a link was
/// swapped by another run and would allow access to another directory.
fn allow(ruleset: RulesetCreated, path: &Path, access: BitFlags<AccessFs>) -> Result<RulesetCreated, String> {
    allow_root(ruleset, path, access, &[])
}

/// Allows access below a path. A writable root must still be the directory that the layout has found there.
fn allow_root(
    ruleset: RulesetCreated,
    path: &Path,
    access: BitFlags<AccessFs>,
    roots: &[WritableRoot],
) -> Result<RulesetCreated, String> {
    match open_without_links(path) {
        Ok(opened) if !WritableRoot::allows(roots, path, &opened).unwrap_or(false) => {
            Err(format!("`{}` was replaced while the sandbox was prepared", path.display()))
        }
        Ok(opened) => allow_file(ruleset, opened, access).map_err(|error| error.to_string()),
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
            Err(format!("`{}` was replaced by a link", path.display()))
        }
        Err(_) => Ok(ruleset),
    }
}

fn allow_file(
    ruleset: RulesetCreated,
    opened: impl AsFd,
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, RulesetError> {
    let Ok(found) = rustix::fs::fstat(&opened) else { return Ok(ruleset) };
    let kind = rustix::fs::FileType::from_raw_mode(found.st_mode);
    // Pipes and sockets have no path that a rule could apply to.
    if kind.is_fifo() || kind.is_socket() {
        return Ok(ruleset);
    }
    let access = if kind.is_dir() { access } else { access & AccessFs::from_file(FILE_ABI) };
    ruleset.add_rule(PathBeneath::new(opened, access))
}

/// Returns the paths that cover a directory without the hidden paths in it.
pub(crate) fn paths_below(path: &Path, hidden: &[PathBuf]) -> Vec<PathBuf> {
    let inside: Vec<PathBuf> =
        hidden.iter().filter(|hidden| hidden.starts_with(path) && *hidden != path).cloned().collect();
    if inside.is_empty() {
        return vec![path.to_owned()];
    }
    paths_beside(&inside, false).into_iter().filter(|found| found.starts_with(path)).collect()
}

/// Returns all paths beside the hidden ones: the siblings of each, and of each of its parent directories.
///
/// If a hidden path has an alias (`has_aliases`), paths are compared by device and inode, too.
pub(crate) fn paths_beside(hidden: &[PathBuf], has_aliases: bool) -> Vec<PathBuf> {
    let hidden: BTreeSet<&Path> = hidden.iter().map(PathBuf::as_path).collect();
    let above: BTreeSet<&Path> = hidden.iter().flat_map(|path| path.ancestors().skip(1)).collect();
    if above.is_empty() {
        return vec![PathBuf::from("/")];
    }
    // A rule applies to an inode, not to a name: no alias of a hidden path or of its parents may be allowed.
    let ids: BTreeSet<(u64, u64)> = if has_aliases {
        hidden.iter().chain(&above).filter_map(|path| file_id(path)).collect()
    } else {
        BTreeSet::new()
    };
    let mut beside = Vec::new();
    for directory in &above {
        // A directory inside of a hidden one is not listed.
        if directory.ancestors().any(|ancestor| hidden.contains(ancestor)) {
            continue;
        }
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        // Links need no rule: their targets are listed in their own directories, or hidden.
        let files = entries.filter(|entry| entry.file_type().is_ok_and(|kind| !kind.is_symlink()));
        beside.extend(files.map(|entry| entry.path()).filter(|path| {
            let is_excluded = hidden.contains(path.as_path()) || above.contains(path.as_path());
            !is_excluded && (ids.is_empty() || file_id(path).is_none_or(|id| !ids.contains(&id)))
        }));
    }
    beside
}

fn file_id(path: &Path) -> Option<(u64, u64)> {
    path.symlink_metadata().ok().map(|found| (found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_beside_exclude_hidden_directory_and_parents() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        for name in ["home/.ssh", "home/shop", "home/other"] {
            fs::create_dir_all(root.join(name)).unwrap();
        }
        let beside = paths_beside(&[root.join("home/.ssh")], false);
        assert!(beside.contains(&root.join("home/shop")) && beside.contains(&root.join("home/other")));
        let ssh = root.join("home/.ssh");
        assert!(!beside.iter().any(|path| ssh.starts_with(path)), "{beside:?}");
        assert!(beside.contains(&PathBuf::from("/usr")));
    }

    #[test]
    fn root_directory_is_allowed_without_hidden_paths() {
        assert_eq!(paths_beside(&[], false), [PathBuf::from("/")]);
    }
}
