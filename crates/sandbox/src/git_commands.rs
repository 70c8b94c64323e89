//! Protects the programs in a workspace that the git configuration names: hooks, filters, drivers, monitors.
//!
//! Every key counts except for those that are known to contain data: a key of a future git may run a program. A token of a value that is not
//! a path in the workspace is harmless.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use model::{CheckoutSource, OnCreate, Protected, is_in_products};

use crate::git_includes::{ConfigEntry, find_included, read_entries, resolve_path};
use crate::layout::Layout;
use crate::link_targets::{FollowedPath, find_linked_hooks, protect_followed};

/// The user's configuration files in the home directory, which apply in every repository.
pub(crate) const GLOBAL: [&str; 2] = [".gitconfig", ".config/git/config"];

/// The user's configuration file in `XDG_CONFIG_HOME`.
const XDG_GLOBAL: &str = "git/config";

/// Sections whose values are names, addresses and credentials.
const DATA_SECTIONS: [&str; 8] =
    ["remote", "branch", "submodule", "user", "url", "http", "include", "includeif"];

/// Expressions for the worktree in a command, which is also its working directory.
const WORKTREE: [&str; 5] = [
    "$(git rev-parse --show-toplevel)/",
    "`git rev-parse --show-toplevel`/",
    "${PWD}/",
    "$PWD/",
    "$GIT_DIR/../",
];

/// Expressions for the home directory in a command.
const HOME: [&str; 2] = ["$HOME/", "${HOME}/"];

/// Characters that end a shell word or an expansion.
const DELIMITERS: &str = "'`(){};&|<>=,";

/// A repository and its worktree.
#[derive(Debug)]
pub(crate) struct ConfiguredRepository {
    pub git: PathBuf,
    pub worktree: PathBuf,
}

/// A path that the configuration names.
#[derive(Debug, PartialEq, Eq)]
enum NamedPath {
    /// A hooks directory, or a template directory, whose hooks git copies into new repositories.
    Hooks(PathBuf),
    /// A program, or a file that a program reads.
    Program(PathBuf),
    /// Like `Program`, but ignored if the file is missing: from a command that only the user runs, or after an expansion that only the shell
    /// can evaluate.
    IfExists(PathBuf),
}

/// Protects the files that the configuration of repositories includes and names, their hooks that are links, and the user's
/// configuration, as far as they lie in writable directories.
pub(crate) fn protect_configured(
    layout: &mut Layout,
    repositories: &[ConfiguredRepository],
    checkout: Option<&CheckoutSource>,
    home: Option<&Path>,
    xdg_config: Option<&Path>,
) {
    let global = home.iter().flat_map(|home| GLOBAL.map(|name| home.join(name)));
    let global: Vec<PathBuf> = global.chain(xdg_config.map(|xdg| xdg.join(XDG_GLOBAL))).collect();
    let mut obeyed: BTreeSet<PathBuf> = global.iter().flat_map(|file| find_included(file, home)).collect();
    obeyed.extend(global);
    let global: Vec<ConfigEntry> = obeyed.iter().flat_map(|file| read_entries(file)).collect();
    let mut hooks = Vec::new();
    // The user's own settings apply outside of repositories, too.
    let anywhere = home.unwrap_or(Path::new("/"));
    let mut named: Vec<NamedPath> =
        global.iter().flat_map(|entry| find_named_paths(entry, anywhere, home)).collect();
    for ConfiguredRepository { git, worktree } in repositories {
        let files = ["config", "config.worktree"].map(|name| git.join(name));
        let files: Vec<_> = files.into_iter().filter(|file| !layout.untrusted.covers(file)).collect();
        let below: BTreeSet<PathBuf> = files.iter().flat_map(|file| find_included(file, home)).collect();
        let own: Vec<ConfigEntry> = files.iter().chain(&below).flat_map(|file| read_entries(file)).collect();
        named.extend(own.iter().chain(&global).flat_map(|entry| find_named_paths(entry, worktree, home)));
        obeyed.extend(below);
        obeyed.extend(files);
        hooks.push(git.join("hooks"));
    }
    let of_user: Vec<PathBuf> = checkout.map_or_else(Vec::new, |checkout| {
        named.extend(find_paths_in_checkout(checkout, &global, home));
        let hooks = checkout.git.iter().flat_map(|git| find_linked_hooks(layout, &git.join("hooks")));
        hooks.map(|link| checkout.relocate(&FollowedPath::follow(&link).target)).collect()
    });
    obeyed.extend(hooks.iter().cloned());
    let programs: Vec<PathBuf> = named.iter().filter_map(|named| path_to_protect(layout, named)).collect();
    hooks.extend(named.into_iter().filter_map(|named| match named {
        NamedPath::Hooks(path) => Some(path),
        NamedPath::Program(_) | NamedPath::IfExists(_) => None,
    }));
    let protected = |on_create| move |path| Protected { path, on_create };
    let obeyed = obeyed.into_iter().map(protected(OnCreate::QuarantineAtOnce));
    let programs = programs.into_iter().map(protected(OnCreate::QuarantineAtEnd));
    protect_followed(layout, obeyed.chain(programs));
    // The links themselves are protected by their directory, which is read-only now.
    let links = hooks.iter().flat_map(|hooks| find_linked_hooks(layout, hooks)).collect::<Vec<_>>();
    protect_followed(layout, links.into_iter().chain(of_user).map(protected(OnCreate::QuarantineAtEnd)));
}

/// Returns the paths in a private checkout that the configuration of the user's repository names.
fn find_paths_in_checkout(
    checkout: &CheckoutSource,
    global: &[ConfigEntry],
    home: Option<&Path>,
) -> Vec<NamedPath> {
    let files = checkout.git.iter().flat_map(|git| ["config", "config.worktree"].map(|name| git.join(name)));
    let files: Vec<PathBuf> = files.collect();
    let below: BTreeSet<PathBuf> = files.iter().flat_map(|file| find_included(file, home)).collect();
    let own: Vec<ConfigEntry> = files.iter().chain(&below).flat_map(|file| read_entries(file)).collect();
    let named = own.iter().chain(global).flat_map(|entry| find_named_paths(entry, &checkout.worktree, home));
    named
        .map(|named| match named {
            NamedPath::Hooks(path) => NamedPath::Hooks(checkout.relocate(&path)),
            NamedPath::Program(path) => NamedPath::Program(checkout.relocate(&path)),
            NamedPath::IfExists(path) => NamedPath::IfExists(checkout.relocate(&path)),
        })
        .collect()
}

/// Returns the path of a program that must be protected. A hooks directory that is a writable root itself is reported as unprotected.
fn path_to_protect(layout: &mut Layout, named: &NamedPath) -> Option<PathBuf> {
    let (NamedPath::Hooks(path) | NamedPath::Program(path) | NamedPath::IfExists(path)) = named;
    let target = FollowedPath::follow(path).target;
    let (_, rest) = layout.split_at_root(&target)?;
    if rest.as_os_str().is_empty() {
        // Hooks beside the files of the workspace.
        layout.unprotected.extend(matches!(named, NamedPath::Hooks(_)).then(|| path.clone()));
        return None;
    }
    let is_protected = match (named, target.symlink_metadata()) {
        (NamedPath::Hooks(_), _) | (NamedPath::Program(_), Err(_)) => true,
        (_, Ok(found)) => !found.is_dir(),
        (NamedPath::IfExists(_), Err(_)) => false,
    };
    // Packages are replaced as a whole, and run each other's files.
    (is_protected && !is_in_products(&rest)).then(|| path.clone())
}

/// Returns the hooks directory for a value of `core.hooksPath`.
pub(crate) fn hooks_directory(value: &str, worktree: &Path, home: Option<&Path>) -> Option<PathBuf> {
    let path = resolve_path(value, worktree, home)?;
    // Husky's wrappers in `_` run the hooks beside it.
    Some(match path.file_name() {
        Some(name) if name == "_" => path.parent().map(Path::to_owned).unwrap_or(path),
        _ => path,
    })
}

/// Returns the paths in the value of one setting, which need not exist.
fn find_named_paths(entry: &ConfigEntry, worktree: &Path, home: Option<&Path>) -> Vec<NamedPath> {
    let ConfigEntry { section, key, value } = entry;
    let is_data = DATA_SECTIONS.contains(&section.as_str()) || key.ends_with("file") || key == "worktree";
    let is_plain_alias = section == "alias" && !value.starts_with('!');
    if is_data || is_plain_alias {
        return Vec::new();
    }
    if section == "core" && key == "hookspath" {
        return hooks_directory(value, worktree, home).into_iter().map(NamedPath::Hooks).collect();
    }
    if section == "init" && key == "templatedir" {
        return resolve_path(value, worktree, home).into_iter().map(NamedPath::Hooks).collect();
    }
    let kind = if section == "alias" { NamedPath::IfExists } else { NamedPath::Program };
    // In a shell, a quote does not end a word.
    let plain = value.trim_start_matches('!').replace('"', "");
    let plain = WORKTREE.iter().fold(plain, |text, name| text.replace(name, "./"));
    let plain = HOME.iter().fold(plain, |text, name| text.replace(name, "~/")).replace('$', " $");
    let words = plain.split(|c: char| c.is_whitespace() || DELIMITERS.contains(c));
    let paths = words.filter(|word| is_path(word)).flat_map(|word| {
        let path = resolve_path(word, worktree, home).filter(|_| !word.starts_with('$')).map(kind);
        // `$(…)/tools/x` or `$DIRECTORY/tools/x`: the directory may be the worktree.
        let rest = word.split_once('/').filter(|(before, _)| before.is_empty() || before.starts_with('$'));
        let rest = rest.and_then(|(_, rest)| resolve_path(rest.trim_start_matches('/'), worktree, home));
        path.into_iter().chain(rest.map(NamedPath::IfExists))
    });
    paths.collect()
}

/// Returns whether a shell word may be a path. A command without a slash is looked up in `PATH`; the script of an interpreter is not.
fn is_path(word: &str) -> bool {
    let has_name = word.chars().any(char::is_alphanumeric);
    let is_other = word.contains("://") || word.contains(['%', '*', '^', '\\', '?', '+', ':', '@']);
    has_name && !is_other && !word.starts_with('-') && word.contains(['/', '.'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_in_commands_are_found() {
        let paths = |section: &str, key: &str, value: &str| {
            let entry = ConfigEntry { section: section.into(), key: key.into(), value: value.into() };
            find_named_paths(&entry, Path::new("/ws"), Some(Path::new("/home/a")))
        };
        let programs =
            |names: &[&str]| -> Vec<_> { names.iter().map(|name| NamedPath::Program(name.into())).collect() };
        assert_eq!(paths("core", "hookspath", ".husky/_"), [NamedPath::Hooks("/ws/.husky".into())]);
        assert_eq!(paths("core", "hookspath", "git hooks"), [NamedPath::Hooks("/ws/git hooks".into())]);
        assert_eq!(paths("core", "hookspath", "~/hooks"), [NamedPath::Hooks("/home/a/hooks".into())]);
        assert_eq!(paths("init", "templatedir", "~/t"), [NamedPath::Hooks("/home/a/t".into())]);
        let cases: [(&str, &str, &str, &[&str]); 8] = [
            ("core", "fsmonitor", "true", &[]),
            ("core", "fsmonitor", "./tools/monitor", &["/ws/tools/monitor"]),
            ("filter", "clean", "python3 clean.py --in=%f", &["/ws/clean.py"]),
            (
                "merge",
                "driver",
                "\"$(git rev-parse --show-toplevel)/tools/merge\" %O %A",
                &["/ws/tools/merge"],
            ),
            ("diff", "textconv", "sh -c 'cat tools/a;tools/b'", &["/ws/tools/a", "/ws/tools/b"]),
            ("remote", "url", "../origin", &[]),
            ("core", "excludesfile", ".gitignore_local", &[]),
            ("http", "extraheader", "Authorization: a/b", &[]),
        ];
        for (section, key, value, expected) in cases {
            assert_eq!(paths(section, key, value), programs(expected), "{section}.{key} = {value}");
        }
        assert_eq!(paths("alias", "up", "!sh tools/up.sh"), [NamedPath::IfExists("/ws/tools/up.sh".into())]);
        assert_eq!(paths("alias", "lg", "log --format=a/b"), []);
        let expansions: [(&str, &[&str], &[&str]); 5] = [
            ("\"$(git rev-parse --show-toplevel)\"/tools/a", &["/ws/tools/a"], &[]),
            ("\"${GIT_PREFIX:-.}\"/tools/a", &["/tools/a"], &["/ws/tools/a"]),
            ("sh `dirname x`/tools/a.sh", &["/tools/a.sh"], &["/ws/tools/a.sh"]),
            ("\"$TOP/tools/a\" $1", &[], &["/ws/tools/a"]),
            ("\"$HOME\"/tools/a", &["/home/a/tools/a"], &[]),
        ];
        for (value, named, existing) in expansions {
            let existing = existing.iter().map(|name| NamedPath::IfExists(name.into()));
            let expected: Vec<_> = programs(named).into_iter().chain(existing).collect();
            assert_eq!(paths("core", "fsmonitor", value), expected, "{value}");
        }
    }
}
