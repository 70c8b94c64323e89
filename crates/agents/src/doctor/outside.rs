//! Finds programs other than agents that run outside of any sandbox. Like agents, they are searched outside of all workspaces.

use std::env;
use std::path::{Path, PathBuf};

use super::Lookup;
use super::find::is_program;

/// A program that exists only in workspaces.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is in a workspace, where an agent may have planted it, so it was not run", program.display())]
pub struct ProgramInWorkspace {
    /// The program.
    pub program: PathBuf,
}

impl Lookup {
    /// Finds a program in `PATH`, after [`Self::excluding_workspaces`]. Returns `None` if no directory contains it.
    pub fn find_outside(&self, name: &str) -> Result<Option<PathBuf>, ProgramInWorkspace> {
        let found = self.search_path().map(|directory| directory.join(name));
        let (inside, outside): (Vec<PathBuf>, Vec<PathBuf>) = found
            .filter(|program| is_program(program))
            .partition(|program| self.workspaces.contains(program));
        if let Some(program) = outside.into_iter().next() {
            return Ok(Some(program));
        }
        let excluded = self.excluded.iter().map(|directory| directory.join(name));
        match excluded.filter(|program| is_program(program)).chain(inside).next() {
            Some(program) => Err(ProgramInWorkspace { program }),
            None => Ok(None),
        }
    }

    /// Returns the `PATH` for such a program, which may start others: a script finds its interpreter there.
    pub fn path_outside(&self) -> String {
        let directories: Vec<String> =
            self.search_path().map(|directory| directory.to_string_lossy().into_owned()).collect();
        directories.join(":")
    }

    /// Skips relative entries: they depend on the working directory.
    fn search_path(&self) -> impl Iterator<Item = PathBuf> {
        let path = self.inherited.get("PATH").map_or("", String::as_str);
        env::split_paths(path).filter(|directory| Path::is_absolute(directory))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn program_in_a_workspace_is_passed_over() {
        let scratch = tempfile::tempdir().unwrap();
        let [work, bin, links] = ["work", "bin", "links"].map(|name| scratch.path().join(name));
        for directory in [&work, &bin, &links] {
            fs::create_dir(directory).unwrap();
        }
        let install = |program: PathBuf| {
            fs::write(&program, "").unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        };
        install(work.join("xdg-open"));
        symlink(work.join("xdg-open"), links.join("xdg-open")).unwrap();
        let find = || {
            let path = format!("{}:.::{}:{}", work.display(), links.display(), bin.display());
            let inherited = [("PATH".to_owned(), path)].into();
            Lookup { inherited, ..Lookup::default() }.excluding_workspaces([&work])
        };
        assert_eq!(find().find_outside("xdg-open").unwrap_err().program, work.join("xdg-open"));
        assert_eq!(find().find_outside("open"), Ok(None));
        install(bin.join("xdg-open"));
        assert_eq!(find().find_outside("xdg-open"), Ok(Some(bin.join("xdg-open"))));
        assert_eq!(find().path_outside(), format!("{}:{}", links.display(), bin.display()));
    }
}
