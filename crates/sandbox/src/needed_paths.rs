//! Paths that a run needs below a private directory of the sandbox, such as `/tmp`.
//!
//! Everywhere else the machine's files are readable. Below a private directory only these are bind-mounted: the agent's program with its
//! installation and its interpreter, Switchboard's own programs, and the directories of `PATH`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use model::PRIVATE_DIRECTORIES;

/// The maximum number of links to a program that are followed.
const MAX_LINKS: usize = 16;

/// Returns the paths below private directories that must be visible. `own` is the directory of Switchboard's programs.
pub(crate) fn find_needed_paths(
    programs: &[&Path],
    env: &BTreeMap<String, String>,
    own: Option<&Path>,
) -> Vec<PathBuf> {
    let mut needed: Vec<PathBuf> = programs.iter().flat_map(|program| find_installations(program)).collect();
    let search_path = env.get("PATH").map_or("", String::as_str);
    for directory in std::env::split_paths(search_path).filter(|directory| directory.is_absolute()) {
        needed.push(find_prefix(&directory).unwrap_or(directory));
    }
    for interpreter in programs.iter().filter_map(|program| find_interpreter(program, search_path)) {
        needed.extend(find_installations(&interpreter));
    }
    needed.extend(own.map(Path::to_owned));
    needed.retain(|path| is_below_private(path));
    needed.sort();
    // A path inside of another one is visible with that one, links as links.
    let mut outermost: Vec<PathBuf> = Vec::new();
    for path in needed {
        if !outermost.iter().any(|above| path.starts_with(above)) {
            outermost.push(path);
        }
    }
    outermost
}

/// Returns whether a path lies below a directory that is private in a sandbox with namespaces.
pub(crate) fn is_below_private(path: &Path) -> bool {
    PRIVATE_DIRECTORIES.iter().any(|private| path.starts_with(private) && path != Path::new(private))
}

/// Returns the installations of a program and of every link on the way to it, or the files alone without an installation.
fn find_installations(program: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut next = Some(program.to_owned());
    while let (Some(path), true) = (next, found.len() <= MAX_LINKS) {
        let directory = path.parent().unwrap_or(Path::new("/"));
        next = path.read_link().ok().map(|target| directory.join(target));
        found.push(find_installation(directory).unwrap_or(path));
    }
    let real = program.canonicalize().ok();
    found.extend(real.and_then(|real| find_installation(real.parent()?).or(Some(real))));
    found
}

/// Returns the directory that the programs of a directory load files from: the outermost `node_modules`, else the prefix of a `bin`, else
/// the directory itself. Returns `None` if that would be a whole private directory.
fn find_installation(directory: &Path) -> Option<PathBuf> {
    let modules = directory.ancestors().filter(|above| above.ends_with("node_modules")).last();
    let found = modules.map(Path::to_owned).or_else(|| find_prefix(directory));
    found.or_else(|| is_below_private(directory).then(|| directory.to_owned()))
}

/// Returns the prefix of a directory of programs: `prefix/bin` needs `prefix/lib`. Returns `None` if that would be a whole private
/// directory.
fn find_prefix(directory: &Path) -> Option<PathBuf> {
    let is_bin = ["bin", "sbin", ".bin", "shims"].iter().any(|name| directory.ends_with(name));
    directory.parent().filter(|prefix| is_bin && is_below_private(prefix)).map(Path::to_owned)
}

/// Returns the interpreter in the first line of a script. The argument of `env` is looked up in `PATH`.
pub(crate) fn find_interpreter(program: &Path, search_path: &str) -> Option<PathBuf> {
    let mut head = [0; 512];
    let count = File::open(program).ok()?.read(&mut head).ok()?;
    let line = head[..count].strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let line = std::str::from_utf8(line).ok()?;
    let mut words = line.split_ascii_whitespace();
    let first = Path::new(words.next()?);
    if !first.ends_with("env") {
        return Some(first.to_owned());
    }
    let name = words.find(|word| !word.starts_with('-') && !word.contains('='))?;
    std::env::split_paths(search_path).map(|directory| directory.join(name)).find(|program| program.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn env(entries: &[(&str, &Path)]) -> BTreeMap<String, String> {
        entries.iter().map(|(name, value)| ((*name).to_owned(), value.display().to_string())).collect()
    }

    #[test]
    fn script_below_tmp_needs_interpreter_and_packages() {
        let directory = tempfile::Builder::new().prefix("sb-").tempdir_in("/tmp").unwrap();
        let root = directory.path().canonicalize().unwrap();
        for name in ["tools/bin", "tools/lib/node_modules/agent/dist", "node/bin", "home"] {
            fs::create_dir_all(root.join(name)).unwrap();
        }
        let script = root.join("tools/lib/node_modules/agent/dist/agent.js");
        fs::write(&script, "#!/usr/bin/env -S node --no-warnings\n").unwrap();
        fs::write(root.join("node/bin/node"), "").unwrap();
        symlink("../lib/node_modules/agent/dist/agent.js", root.join("tools/bin/agent")).unwrap();
        let env = env(&[("PATH", &root.join("node/bin")), ("HOME", &root.join("home"))]);
        let needed = find_needed_paths(&[&root.join("tools/bin/agent")], &env, Some(Path::new("/usr/bin")));
        assert_eq!(needed, ["node", "tools"].map(|name| root.join(name)));
    }

    #[test]
    fn program_outside_of_private_directories_needs_nothing() {
        let env = env(&[("PATH", Path::new("/usr/bin:/tmp")), ("HOME", Path::new("/home/ana"))]);
        assert_eq!(find_needed_paths(&[Path::new("/bin/sh")], &env, None), Vec::<PathBuf>::new());
    }
}
