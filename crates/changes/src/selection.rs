//! Selects changed files by path.

use std::path::{Component, Path, PathBuf};

use model::{ChangeKind, ChangeSet, FileChange};

use crate::error::ChangesError;

/// Returns the positions of the selected files. A path selects a file, by its old or new name, or all files below a
/// directory. No path selects all files.
pub(crate) fn select_files(change_set: &ChangeSet, paths: &[PathBuf]) -> Result<Vec<usize>, ChangesError> {
    let mut selected = vec![paths.is_empty(); change_set.files.len()];
    for path in paths {
        let normalized = normalize(path);
        let relative = normalized.strip_prefix(&change_set.worktree).unwrap_or(&normalized);
        let mut is_known = false;
        for (position, file) in change_set.files.iter().enumerate() {
            if is_selected(file, relative) {
                selected[position] = true;
                is_known = true;
            }
        }
        if !is_known {
            return Err(ChangesError::UnknownPath { path: relative.to_owned() });
        }
    }
    Ok((0..selected.len()).filter(|position| selected[*position]).collect())
}

/// Removes `.` and `..` from a path without looking at the files: a deleted one cannot be resolved.
fn normalize(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut normalized, part| {
        match part {
            Component::ParentDir => drop(normalized.pop()),
            Component::CurDir => {}
            part => normalized.push(part),
        }
        normalized
    })
}

fn is_selected(file: &FileChange, path: &Path) -> bool {
    let is_old_name = matches!(&file.kind, ChangeKind::Renamed { from } if from.starts_with(path));
    file.path.starts_with(path) || is_old_name
}
