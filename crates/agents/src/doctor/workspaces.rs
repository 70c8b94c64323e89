//! The directories that agents have worked in, kept in a file of the state.
//!
//! A confined agent may leave a program there that is named like an agent. Programs are asked for their version outside of any sandbox,
//! so none is taken from such a directory, whichever directory the next call is for.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// How long the file may grow before directories that are gone are taken out of it.
const MAX_BYTES: u64 = 256 * 1024;

/// Returns the directories, as they were added.
pub(super) fn read(file: &Path) -> Vec<PathBuf> {
    let lines = fs::read_to_string(file).unwrap_or_default();
    lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Adds directories that are not known yet.
pub(super) fn add(file: &Path, directories: &[&Path]) -> io::Result<()> {
    let known = read(file);
    let is_known = |directory: &Path| known.iter().any(|known| directory.starts_with(known));
    let new: Vec<&Path> = directories.iter().copied().filter(|directory| !is_known(directory)).collect();
    if new.is_empty() {
        return Ok(());
    }
    if fs::metadata(file).is_ok_and(|found| found.len() > MAX_BYTES) {
        let kept: Vec<&Path> = known.iter().map(PathBuf::as_path).filter(|known| known.is_dir()).collect();
        let next = file.with_extension(format!("new-{}", std::process::id()));
        fs::write(&next, lines(&kept)?)?;
        fs::rename(next, file)?;
    }
    if let Some(state) = file.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(state)?;
    }
    // In one write, so that the lines of two processes do not mix.
    let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(file)?;
    file.write_all(lines(&new)?.as_bytes())
}

fn lines(directories: &[&Path]) -> io::Result<String> {
    let lines: Result<Vec<String>, _> = directories.iter().map(serde_json::to_string).collect();
    Ok(lines?.iter().flat_map(|line| [line.as_str(), "\n"]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_added_once_and_those_that_are_gone_are_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("workspaces");
        assert_eq!(read(&file), Vec::<PathBuf>::new());
        let kept = directory.path().join("a\nb");
        fs::create_dir(&kept).unwrap();
        for path in [&kept, &kept, &kept.join("below")] {
            add(&file, &[path]).unwrap();
        }
        assert_eq!(read(&file), std::slice::from_ref(&kept));
        let gone: Vec<PathBuf> = (0..10_000).map(|number| format!("/gone/{number:030}").into()).collect();
        add(&file, &gone.iter().map(PathBuf::as_path).collect::<Vec<_>>()).unwrap();
        add(&file, &[Path::new("/new")]).unwrap();
        assert_eq!(read(&file), [kept, "/new".into()]);
    }
}
