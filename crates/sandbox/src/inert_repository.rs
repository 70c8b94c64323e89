//! Decides whether a git repository is inert: nothing in it makes git run a command.
//!
//! `git init` and commits are ordinary work of an agent, so a new repository stays if it is inert. The rule is an allowlist: an unknown
//! configuration key counts as a command.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::beneath::read_regular_file;
use crate::rebase::find_rebase_commands;
use crate::worktree::resolve_named_path;

/// The maximum size of a configuration that `git init` and a few commands have written.
const MAX_CONFIG_BYTES: u64 = 64 << 10;

/// Names in a repository that contain another configuration or lead git to one. `modules` contains separate repositories.
const OTHER_CONFIGURATIONS: [&str; 3] = ["commondir", "config.worktree", "worktrees"];

/// Keys whose values are just names, numbers or colors. `*` is a subsection.
const INERT_KEYS: [&str; 26] = [
    "core.repositoryformatversion",
    "core.filemode",
    "core.bare",
    "core.logallrefupdates",
    "core.ignorecase",
    "core.precomposeunicode",
    "core.symlinks",
    "core.autocrlf",
    "core.eol",
    "init.defaultbranch",
    "user.name",
    "user.email",
    "commit.gpgsign",
    "branch.*.remote",
    "branch.*.merge",
    "branch.*.rebase",
    "remote.*.fetch",
    "remote.*.tagopt",
    "extensions.objectformat",
    "extensions.refstorage",
    "submodule.active",
    "submodule.*.active",
    "pull.rebase",
    "push.default",
    "push.autosetupremote",
    "gc.auto",
];

/// Keys whose value is the address of another repository.
const ADDRESS_KEYS: [&str; 2] = ["remote.*.url", "submodule.*.url"];

/// The prefixes of plain addresses: no helper (`ext::`), no option in place of a host.
const PLAIN_ADDRESSES: [&str; 7] = ["https://", "http://", "ssh://", "git://", "git@", "file:///", "/"];

/// Returns whether a repository is inert. False for anything else than a repository in a directory.
///
/// `workspaces` are the directories that may contain its worktree.
pub(crate) fn is_inert(git: &Path, workspaces: &[PathBuf]) -> bool {
    let is_directory = |path: &Path| fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
    let is_plain_worktree = |path: &str| {
        let real = git.join(path).canonicalize();
        real.is_ok_and(|real| workspaces.iter().any(|root| real != *root && real.starts_with(root)))
    };
    is_directory(git)
        && OTHER_CONFIGURATIONS.iter().all(|name| is_missing(&git.join(name)))
        && find_rebase_commands(git).is_empty()
        && (is_missing(&git.join("hooks"))
            || (is_directory(&git.join("hooks")) && has_only_samples(&git.join("hooks"))))
        && (is_missing(&git.join("config"))
            || (has_single_link(&git.join("config"))
                && read_config(&git.join("config"))
                    .is_some_and(|text| is_inert_config(&text, is_plain_worktree))))
}

/// Returns whether a `.git` file leads to an inert repository, or to one that the run could not change.
///
/// A repository outside of the workspaces is not inert: a later run that can write to it may not know that it is used from here.
pub(crate) fn is_inert_link(link: &Path, workspaces: &[PathBuf], is_known: impl Fn(&Path) -> bool) -> bool {
    let Some(git) = link.parent().and_then(|base| resolve_named_path(link, Some("gitdir: "), base)) else {
        return false;
    };
    let is_linked_worktree = || {
        let common = resolve_named_path(&git.join("commondir"), None, &git);
        common.is_some_and(|common| is_known(&common) && git.parent() == Some(&common.join("worktrees")))
            && has_single_link(&git.join("commondir"))
            && is_missing(&git.join("config.worktree"))
            && find_rebase_commands(&git).is_empty()
    };
    let is_inside = workspaces.iter().any(|root| git.starts_with(root));
    has_single_link(link)
        && (is_known(&git) || is_linked_worktree() || (is_inside && is_inert(&git, workspaces)))
}

/// Returns whether a file has a single hard link. Through a second one, a later run could change it.
fn has_single_link(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.nlink() == 1)
}

/// Returns whether a path does not exist. A path in a directory that cannot be searched may exist.
fn is_missing(path: &Path) -> bool {
    fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

fn has_only_samples(hooks: &Path) -> bool {
    let is_sample = |entry: fs::DirEntry| {
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        is_file && entry.path().extension().is_some_and(|extension| extension == "sample")
    };
    fs::read_dir(hooks).is_ok_and(|mut entries| entries.all(|entry| entry.is_ok_and(is_sample)))
}

fn read_config(config: &Path) -> Option<String> {
    String::from_utf8(read_regular_file(config, MAX_CONFIG_BYTES)?).ok()
}

/// Parses only the plain form that git itself writes: one section or one key per line. All other syntax is rejected.
fn is_inert_config(text: &str, is_plain_worktree: impl Fn(&str) -> bool) -> bool {
    let mut section = None;
    for line in text.lines().map(str::trim) {
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        // The next line continues this one.
        if line.ends_with('\\') {
            return false;
        }
        if line.starts_with('[') {
            section = parse_section(line);
            if section.is_none() {
                return false;
            }
            continue;
        }
        let (key, value) = line.split_once('=').unwrap_or((line, ""));
        let Some(section) = &section else { return false };
        let key = format!("{section}.{}", key.trim().to_ascii_lowercase());
        let is_plain = match key.as_str() {
            // A checkout in another directory could overwrite any file of the user.
            "core.worktree" => is_plain_worktree(value.trim()),
            key if ADDRESS_KEYS.contains(&key) => is_plain_address(value.trim()),
            key => INERT_KEYS.contains(&key),
        };
        if !is_plain {
            return false;
        }
    }
    true
}

/// Returns `core` for `[core]`, `branch.*` for `[branch "main"]`, and `None` for every other form.
fn parse_section(line: &str) -> Option<String> {
    let inner = line.strip_prefix('[')?.strip_suffix(']')?;
    let is_word = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric());
    match inner.split_once(' ') {
        None if is_word(inner) => Some(inner.to_ascii_lowercase()),
        Some((name, rest)) if is_word(name) => {
            let subsection = rest.strip_prefix('"')?.strip_suffix('"')?;
            let is_plain = !subsection.contains(['"', '\\', ']', '[']);
            is_plain.then(|| format!("{}.*", name.to_ascii_lowercase()))
        }
        _ => None,
    }
}

fn is_plain_address(address: &str) -> bool {
    let rest = PLAIN_ADDRESSES.iter().find_map(|start| address.strip_prefix(start));
    rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_alphanumeric()) && !rest.contains("::"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn config_of_git_init_is_inert() {
        let config = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\
                      \tlogallrefupdates = true\n[user]\n\tname = A\n\temail = a@b\n[remote \"origin\"]\n\
                      \turl = https://example.com/shop.git\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n\
                      [branch \"main\"]\n\tremote = origin\n\tmerge = refs/heads/main\n";
        assert!(is_inert_config(config, |_| false));
    }

    #[test]
    fn config_that_runs_a_program_is_not_inert() {
        let cases = [
            "[core]\nfsmonitor = touch x",
            "[core]\nhooksPath = .",
            "[core] fsmonitor = touch x",
            "[core]\nbare = \\\nfalse\nfsmonitor = x",
            "[CORE]\nFsMonitor=x",
            "[include]\npath = ../evil",
            "[includeIf \"gitdir:.\"]\npath = ../evil",
            "[alias]\nst = !touch x",
            "[filter \"x\"]\nclean = touch x",
            "[diff]\nexternal = touch x",
            "[remote \"origin\"]\nurl = ext::sh -c touch% x",
            "[remote \"origin\"]\nurl = https://-oProxyCommand=x",
            "[remote \"origin\"]\nurl = ssh://-oProxyCommand=x",
            "[submodule \"lib\"]\nupdate = !touch x",
            "[core]\nworktree = ../../..",
            "[remote \"origin\"]\nuploadpack = touch x",
            "[extensions]\nworktreeConfig = true",
            "fsmonitor = x",
            "[core]\n[core \"a]\nfsmonitor = x",
            "[user.x]\nname = a",
        ];
        for config in cases {
            assert!(!is_inert_config(config, |_| false), "{config}");
        }
    }

    #[test]
    fn repository_with_hook_or_link_is_not_inert() {
        let directory = tempfile::tempdir().unwrap();
        let git = directory.path().join(".git");
        let reset = || {
            let _ = (fs::remove_dir_all(&git), fs::remove_file(git.with_file_name("notes")));
            fs::create_dir_all(git.join("hooks")).unwrap();
            fs::write(git.join("hooks/pre-commit.sample"), "").unwrap();
            fs::write(git.join("config"), "[core]\nbare = false\n").unwrap();
        };
        reset();
        assert!(is_inert(&git, &[]));
        let spoil: [fn(&Path); 7] = [
            |git| fs::hard_link(git.join("config"), git.with_file_name("notes")).unwrap(),
            |git| fs::write(git.join("hooks/pre-commit"), "").unwrap(),
            |git| std::os::unix::fs::symlink("/bin/true", git.join("hooks/x.sample")).unwrap(),
            |git| fs::write(git.join("commondir"), "../evil").unwrap(),
            |git| fs::write(git.join("config"), "[core]\nfsmonitor = x\n").unwrap(),
            |git| {
                fs::rename(git.join("config"), git.join("other")).unwrap();
                std::os::unix::fs::symlink("other", git.join("config")).unwrap();
            },
            |git| {
                fs::rename(git, git.with_extension("moved")).unwrap();
                std::os::unix::fs::symlink(".git.moved", git).unwrap();
            },
        ];
        for (number, spoil) in spoil.into_iter().enumerate() {
            reset();
            spoil(&git);
            assert!(!is_inert(&git, &[]), "{number}");
        }
    }
}
