//! Protects the programs in a workspace that the configuration of git names: hooks, filters, drivers, monitors.
//!
//! Every key counts but those that are known to hold data: one that git adds later may run a program. A word of a value that is no path
//! in the workspace does no harm.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use model::{OnCreate, Protected, is_in_products};

use crate::git_includes::{ConfigEntry, included_by, read_entries, resolve};
use crate::layout::Layout;
use crate::link_targets::FollowedPath;

/// Configuration of the user that counts in every repository, in the home directory.
pub(crate) const GLOBAL: [&str; 2] = [".gitconfig", ".config/git/config"];

/// The same, in `XDG_CONFIG_HOME`.
const GLOBAL_OF_XDG: &str = "git/config";

/// Sections whose values are names, addresses and credentials.
const DATA_SECTIONS: [&str; 8] =
    ["remote", "branch", "submodule", "user", "url", "http", "include", "includeif"];

/// How a command names the worktree, in which git starts it.
const WORKTREE: [&str; 5] = [
    "$(git rev-parse --show-toplevel)/",
    "`git rev-parse --show-toplevel`/",
    "${PWD}/",
    "$PWD/",
    "$GIT_DIR/../",
];

/// How a command names the home directory.
const HOME: [&str; 2] = ["$HOME/", "${HOME}/"];

/// Characters that end a word in a shell, or an expansion.
const DELIMITERS: &str = "'`(){};&|<>=,";

/// A repository and the worktree that it is used in.
#[derive(Debug)]
pub(crate) struct ConfiguredRepository {
    pub git: PathBuf,
    pub worktree: PathBuf,
}

/// A path that the configuration names.
#[derive(Debug, PartialEq, Eq)]
enum NamedPath {
    /// A directory with hooks, or one that git copies into new repositories with the hooks in it.
    Hooks(PathBuf),
    /// A program, or a file that one reads.
    Program(PathBuf),
    /// The same, but only a file that exists counts: in a command that only the user starts, or behind an expansion that only the shell
    /// knows.
    IfExists(PathBuf),
}

impl Layout {
    /// Protects what the configuration of repositories includes and names, their hooks that are links, and the user's configuration, where
    /// it lies in a directory that can be written.
    pub fn protect_configured(
        &mut self,
        repositories: &[ConfiguredRepository],
        home: Option<&Path>,
        xdg_config: Option<&Path>,
    ) {
        let global = home.iter().flat_map(|home| GLOBAL.map(|name| home.join(name)));
        let global: Vec<PathBuf> = global.chain(xdg_config.map(|xdg| xdg.join(GLOBAL_OF_XDG))).collect();
        let mut obeyed: BTreeSet<PathBuf> = global.iter().flat_map(|file| included_by(file, home)).collect();
        obeyed.extend(global);
        let global: Vec<ConfigEntry> = obeyed.iter().flat_map(|file| read_entries(file)).collect();
        let mut hooks = Vec::new();
        // The user's own settings count without a repository, too.
        let anywhere = home.unwrap_or(Path::new("/"));
        let mut named: Vec<NamedPath> =
            global.iter().flat_map(|entry| named_paths(entry, anywhere, home)).collect();
        for ConfiguredRepository { git, worktree } in repositories {
            let files = ["config", "config.worktree"].map(|name| git.join(name));
            let files: Vec<_> = files.into_iter().filter(|file| !self.untrusted.hold(file)).collect();
            let below: BTreeSet<PathBuf> = files.iter().flat_map(|file| included_by(file, home)).collect();
            let own: Vec<ConfigEntry> =
                files.iter().chain(&below).flat_map(|file| read_entries(file)).collect();
            named.extend(own.iter().chain(&global).flat_map(|entry| named_paths(entry, worktree, home)));
            obeyed.extend(below);
            obeyed.extend(files);
            hooks.push(git.join("hooks"));
        }
        obeyed.extend(hooks.iter().cloned());
        let programs: Vec<PathBuf> = named.iter().filter_map(|named| self.protected_path(named)).collect();
        hooks.extend(named.into_iter().filter_map(|named| match named {
            NamedPath::Hooks(path) => Some(path),
            NamedPath::Program(_) | NamedPath::IfExists(_) => None,
        }));
        let protected = |on_create| move |path| Protected { path, on_create };
        let obeyed = obeyed.into_iter().map(protected(OnCreate::QuarantineAtOnce));
        let programs = programs.into_iter().map(protected(OnCreate::QuarantineAtEnd));
        self.protect_followed(obeyed.chain(programs));
        // The links themselves are held by their directory, which is read-only now.
        let links = hooks.iter().flat_map(|hooks| self.linked_hooks(hooks)).collect::<Vec<_>>();
        self.protect_followed(links.into_iter().map(protected(OnCreate::QuarantineAtEnd)));
    }

    /// Returns the path of a program, unless it need not be protected.
    fn protected_path(&mut self, named: &NamedPath) -> Option<PathBuf> {
        let (NamedPath::Hooks(path) | NamedPath::Program(path) | NamedPath::IfExists(path)) = named;
        let end = FollowedPath::of(path).end;
        let (_, rest) = self.below_a_root(&end)?;
        if rest.as_os_str().is_empty() {
            // Hooks beside the files of the workspace.
            self.unprotected.extend(matches!(named, NamedPath::Hooks(_)).then(|| path.clone()));
            return None;
        }
        let is_protected = match (named, end.symlink_metadata()) {
            (NamedPath::Hooks(_), _) | (NamedPath::Program(_), Err(_)) => true,
            (_, Ok(found)) => !found.is_dir(),
            (NamedPath::IfExists(_), Err(_)) => false,
        };
        // Packages are replaced as a whole, and run each other's files.
        (is_protected && !is_in_products(&rest)).then(|| path.clone())
    }
}

/// Returns the directory of the hooks that `core.hooksPath` leads to.
pub(crate) fn hooks_directory(value: &str, worktree: &Path, home: Option<&Path>) -> Option<PathBuf> {
    let path = resolve(value, worktree, home)?;
    // Husky's wrappers in `_` run the hooks beside it.
    Some(match path.file_name() {
        Some(name) if name == "_" => path.parent().map(Path::to_owned).unwrap_or(path),
        _ => path,
    })
}

/// Returns the paths that one setting names, which need not exist.
fn named_paths(entry: &ConfigEntry, worktree: &Path, home: Option<&Path>) -> Vec<NamedPath> {
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
        return resolve(value, worktree, home).into_iter().map(NamedPath::Hooks).collect();
    }
    let kind = if section == "alias" { NamedPath::IfExists } else { NamedPath::Program };
    // In a shell, a quote does not end a word.
    let plain = value.trim_start_matches('!').replace('"', "");
    let plain = WORKTREE.iter().fold(plain, |text, name| text.replace(name, "./"));
    let plain = HOME.iter().fold(plain, |text, name| text.replace(name, "~/")).replace('$', " $");
    let words = plain.split(|c: char| c.is_whitespace() || DELIMITERS.contains(c));
    let paths = words.filter(|word| is_path(word)).flat_map(|word| {
        let path = resolve(word, worktree, home).filter(|_| !word.starts_with('$')).map(kind);
        // `$(…)/tools/x` or `$DIRECTORY/tools/x`: the directory may be the worktree.
        let rest = word.split_once('/').filter(|(before, _)| before.is_empty() || before.starts_with('$'));
        let rest = rest.and_then(|(_, rest)| resolve(rest.trim_start_matches('/'), worktree, home));
        path.into_iter().chain(rest.map(NamedPath::IfExists))
    });
    paths.collect()
}

/// Whether a word may be a path: a command without a slash is looked up in `PATH`, but a script that an interpreter reads is not.
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
            named_paths(&entry, Path::new("/ws"), Some(Path::new("/home/a")))
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
