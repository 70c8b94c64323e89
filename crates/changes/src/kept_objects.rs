//! Keeps the objects of a repository, by hard links, until a job in a private checkout has ended.
//!
//! The user can rewrite the history and prune it meanwhile, and the checkout borrows its objects. A link needs no space and no time for
//! the content, and git never changes an object. The links are out of reach of the agent.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use crate::repository::GitRepository;

/// Links all objects below a directory. Links as many as possible: a file system can have no links, or be another one.
pub(crate) fn link_objects(repository: &GitRepository, target: &Path) {
    for objects in repository.object_directories() {
        let _ = link_directory(&objects, target);
    }
}

fn link_directory(objects: &Path, target: &Path) -> io::Result<()> {
    for entry in fs::read_dir(objects)?.flatten() {
        let name = entry.file_name();
        let is_loose = name.len() == 2 && name.to_string_lossy().bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_loose && name != "pack" {
            continue;
        }
        let (from, to) = (entry.path(), target.join(&name));
        regular_file::create_private_directory(&to)?;
        for file in fs::read_dir(&from)?.flatten() {
            let name = file.file_name();
            let is_part = |suffix| Path::new(&name).extension().is_some_and(|found| found == suffix);
            if !is_loose && !is_part("pack") && !is_part("idx") {
                continue;
            }
            match fs::hard_link(from.join(&name), to.join(&name)) {
                // Pruned or linked meanwhile.
                Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::AlreadyExists) => {
                    return Err(error);
                }
                _ => {}
            }
        }
    }
    Ok(())
}
