//! Landlock: what this process and its descendants may do with files, and whom outside they may reach.
//!
//! The rules of one layer are a union, so nothing can be taken away below a directory that is allowed. What can be read is therefore
//! the list of everything *beside* the hidden paths ([`beside`]). Where namespaces hide them too, this is a second barrier: it holds
//! when an empty mount goes away with the file that it stood on.

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
use crate::description::Rules;
use crate::quarantine::WritableRoot;

/// The newest whose rights of files are handled here.
const FILES: ABI = ABI::V3;

/// Puts the rules on this process. Says whether files and whether scopes are held.
///
/// One layer holds both. Every layer denies moving and linking between directories unless it allows that, and one of scopes alone cannot:
/// under two layers no compiler could move its output into place.
pub(crate) fn apply(rules: &Rules) -> Result<(bool, bool), String> {
    let scoped = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .scope(Scope::AbstractUnixSocket | Scope::Signal);
    // An older kernel has none; that is an answer.
    let has_scopes = scoped.is_ok();
    let ruleset = scoped.unwrap_or_default().set_compatibility(CompatLevel::BestEffort);
    let is_enforced = enforce(ruleset, rules)?;
    if rules.required && !(is_enforced && has_scopes) {
        return Err("the kernel took Landlock's rules only in part".to_owned());
    }
    Ok((is_enforced, is_enforced && has_scopes))
}

fn enforce(ruleset: Ruleset, rules: &Rules) -> Result<bool, String> {
    let (read, write) = (AccessFs::from_read(FILES), AccessFs::from_write(FILES));
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
    // The prompt may be opened anew (`/dev/stdin`), and the probe runs this very program, wherever the two are.
    ruleset = allow_file(ruleset, rustix::stdio::stdin(), AccessFs::ReadFile.into())
        .map_err(|error| error.to_string())?;
    if let Ok(program) = open("/proc/self/exe", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
        ruleset = allow_file(ruleset, program, read).map_err(|error| error.to_string())?;
    }
    let status = ruleset.restrict_self().map_err(|error| error.to_string())?;
    Ok(status.ruleset == RulesetStatus::FullyEnforced)
}

/// Allows access below a path. One that has gone in the meantime, or that this user cannot even open, needs no rule. One that has become
/// a link was swapped by another run, and would allow access somewhere else.
fn allow(ruleset: RulesetCreated, path: &Path, access: BitFlags<AccessFs>) -> Result<RulesetCreated, String> {
    allow_root(ruleset, path, access, &[])
}

/// Does so for a path that must lead to the directory that the layout has found there, if it is one of the roots.
fn allow_root(
    ruleset: RulesetCreated,
    path: &Path,
    access: BitFlags<AccessFs>,
    roots: &[WritableRoot],
) -> Result<RulesetCreated, String> {
    match open_without_links(path) {
        Ok(opened) if !WritableRoot::allows(roots, path, &opened).unwrap_or(false) => {
            Err(format!("`{}` was exchanged while the sandbox was made", path.display()))
        }
        Ok(opened) => allow_file(ruleset, opened, access).map_err(|error| error.to_string()),
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
            Err(format!("`{}` was exchanged for a link", path.display()))
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
    // Those have no path that a rule could be about.
    if kind.is_fifo() || kind.is_socket() {
        return Ok(ruleset);
    }
    let access = if kind.is_dir() { access } else { access & AccessFs::from_file(FILES) };
    ruleset.add_rule(PathBeneath::new(opened, access))
}

/// Returns the paths that show a directory without the hidden paths in it.
pub(crate) fn below(path: &Path, hidden: &[PathBuf]) -> Vec<PathBuf> {
    let inside: Vec<PathBuf> =
        hidden.iter().filter(|hidden| hidden.starts_with(path) && *hidden != path).cloned().collect();
    if inside.is_empty() {
        return vec![path.to_owned()];
    }
    beside(&inside, false).into_iter().filter(|found| found.starts_with(path)).collect()
}

/// Everything beside the hidden paths: the siblings of each, and of each of the folders above it.
///
/// `aliased`: something of it has two names, and each thing is looked at, whatever it is called.
pub(crate) fn beside(hidden: &[PathBuf], aliased: bool) -> Vec<PathBuf> {
    let hidden: BTreeSet<&Path> = hidden.iter().map(PathBuf::as_path).collect();
    let above: BTreeSet<&Path> = hidden.iter().flat_map(|path| path.ancestors().skip(1)).collect();
    if above.is_empty() {
        return vec![PathBuf::from("/")];
    }
    // A rule is about a thing and not about its name: one that lets in what is hidden, or lies above it, must not come by another name.
    let ids: BTreeSet<(u64, u64)> = if aliased {
        hidden.iter().chain(&above).filter_map(|path| id(path)).collect()
    } else {
        BTreeSet::new()
    };
    let mut beside = Vec::new();
    for folder in &above {
        // Within something that is hidden itself, nothing is listed.
        if folder.ancestors().any(|ancestor| hidden.contains(ancestor)) {
            continue;
        }
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        // A link is not followed here: it leads to something that is listed where it stands, or hidden.
        let things = entries.filter(|entry| entry.file_type().is_ok_and(|kind| !kind.is_symlink()));
        beside.extend(things.map(|entry| entry.path()).filter(|path| {
            let by_name = hidden.contains(path.as_path()) || above.contains(path.as_path());
            !by_name && (ids.is_empty() || id(path).is_none_or(|id| !ids.contains(&id)))
        }));
    }
    beside
}

fn id(path: &Path) -> Option<(u64, u64)> {
    path.symlink_metadata().ok().map(|found| (found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_beside_a_hidden_folder_holds_neither_it_nor_its_parents() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        for name in ["home/.ssh", "home/shop", "home/other"] {
            fs::create_dir_all(root.join(name)).unwrap();
        }
        let beside = beside(&[root.join("home/.ssh")], false);
        assert!(beside.contains(&root.join("home/shop")) && beside.contains(&root.join("home/other")));
        let ssh = root.join("home/.ssh");
        assert!(!beside.iter().any(|path| ssh.starts_with(path)), "{beside:?}");
        assert!(beside.contains(&PathBuf::from("/usr")));
    }

    #[test]
    fn with_nothing_hidden_everything_is_beside() {
        assert_eq!(beside(&[], false), [PathBuf::from("/")]);
    }
}
