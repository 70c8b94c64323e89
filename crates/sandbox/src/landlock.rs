//! Landlock: what this process and its descendants may do with files, and whom outside they may reach.
//!
//! The rules of one layer are a union, so nothing can be taken away below a folder that is allowed. Where namespaces hide
//! things, one layer says what is written and everything else is theirs; where there are none, what can be read is the list
//! of everything *beside* the hidden paths ([`beside`]).

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetStatus, Scope,
};

use crate::description::Rules;

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
    let is_enforced = enforce(ruleset, rules).map_err(|error| error.to_string())?;
    if rules.required && !(is_enforced && has_scopes) {
        return Err("the kernel took Landlock's rules only in part".to_owned());
    }
    Ok((is_enforced, is_enforced && has_scopes))
}

fn enforce(ruleset: Ruleset, rules: &Rules) -> Result<bool, landlock::RulesetError> {
    let (read, write) = (AccessFs::from_read(FILES), AccessFs::from_write(FILES));
    let handled = if rules.read.is_some() { read | write } else { write };
    let mut ruleset = ruleset.handle_access(handled)?.create()?;
    for path in rules.read.iter().flatten() {
        ruleset = allow(ruleset, path, read)?;
    }
    for path in &rules.write {
        ruleset = allow(ruleset, path, handled)?;
    }
    let status = ruleset.restrict_self()?;
    Ok(status.ruleset == RulesetStatus::FullyEnforced)
}

/// A path that has gone in the meantime, or that this user cannot even open, needs no leave.
fn allow(
    ruleset: RulesetCreated,
    path: &Path,
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, landlock::RulesetError> {
    let Ok(opened) = PathFd::new(path) else { return Ok(ruleset) };
    let Ok(found) = rustix::fs::fstat(&opened) else { return Ok(ruleset) };
    let is_folder = rustix::fs::FileType::from_raw_mode(found.st_mode).is_dir();
    let access = if is_folder { access } else { access & AccessFs::from_file(FILES) };
    ruleset.add_rule(PathBeneath::new(opened, access))
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
