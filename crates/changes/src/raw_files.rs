//! Records files whose content git stores as it is, without a process of git.
//!
//! The files are read without following any link. All others are left to git: those with an attribute or a setting that converts line
//! endings or runs a filter, and those with names that git may reject.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io::{self, ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, OFlags, Stat, readlinkat, statat};

use crate::beneath::{LastDirectory, Root};
use crate::entry::{Entry, encode_id};
use crate::error::ChangesError;
use crate::files::read_small;
use crate::git::Git;
use crate::pack::{ObjectKind, ObjectPack, hash_object};
use crate::private_git::read_own_settings;
use crate::staging::ATTRIBUTES;

const LIMIT: u64 = 1024 * 1024;
/// The attributes that convert a content. The macro `binary` only switches them off.
const CONVERTING: [&str; 6] = ["text", "crlf", "eol", "ident", "filter", "working-tree-encoding"];

/// Returns whether git stores the contents and the modes of some files as they are.
pub(crate) fn are_raw<'p>(git: &Git, paths: impl IntoIterator<Item = &'p Path>) -> bool {
    let settings = read_own_settings(git);
    let is_off = |key| settings.get_bool(key) == Some(false);
    if (settings.get("core.autocrlf").is_some() && !is_off("core.autocrlf"))
        || is_off("core.filemode")
        || is_off("core.symlinks")
    {
        return false;
    }
    let Ok(root) = Root::open(&git.worktree) else { return false };
    let mut directories = BTreeSet::new();
    for path in paths {
        if !path.components().all(|name| is_plain(name.as_os_str())) {
            return false;
        }
        directories.extend(path.ancestors().skip(1));
    }
    let common = ["info/attributes", "info/user-attributes"].map(|name| git.git_dir.join(name));
    common.iter().all(|path| !path.exists() || read_small(path, LIMIT).is_some_and(|text| !converts(&text)))
        && directories.into_iter().all(|directory| !has_conversion(&root, directory))
}

/// Returns whether the attributes in a directory can convert a content. One that cannot be read may do so.
fn has_conversion(root: &Root, directory: &Path) -> bool {
    let opened = root.open_directory(directory).and_then(|directory| {
        regular_file::open_regular_at(&directory, Path::new(ATTRIBUTES), OFlags::RDONLY)
    });
    match opened {
        Ok(file) => {
            let mut text = Vec::new();
            let read = file.take(LIMIT).read_to_end(&mut text);
            !read.is_ok_and(|size| (size as u64) < LIMIT) || converts(&text)
        }
        Err(error) => error.kind() != ErrorKind::NotFound,
    }
}

/// Returns whether a file of attributes names one that converts a content, for any path.
fn converts(attributes: &[u8]) -> bool {
    CONVERTING.iter().any(|name| attributes.windows(name.len()).any(|text| text == name.as_bytes()))
}

/// Returns whether git accepts a name. It rejects those by which Windows or macOS could open `.git`: with other characters after it, with
/// characters that are ignored, or in a short form such as `git~1`.
fn is_plain(name: &OsStr) -> bool {
    let ascii = name.as_bytes().iter().filter(|byte| byte.is_ascii());
    let ascii: Vec<u8> = ascii.map(u8::to_ascii_lowercase).collect();
    let after_git = ascii.strip_prefix(b".git");
    !ascii.iter().any(|byte| matches!(byte, b'~' | b'\\'))
        && after_git.is_none_or(|rest| rest.first().is_some_and(u8::is_ascii_alphabetic))
        && !ascii.starts_with(b".gitmodules")
}

/// Stores files and links in the private objects, and returns their entries. Leaves out any that is missing, over the limit, unreadable or of another type.
pub(crate) fn add_files(
    git: &Git,
    paths: &BTreeSet<&Path>,
    size_limit: u64,
) -> Result<BTreeMap<PathBuf, Entry>, ChangesError> {
    let root = Root::open(&git.worktree).map_err(ChangesError::file("open", &git.worktree))?;
    let mut directory = LastDirectory::new(&root);
    let (mut pack, mut entries) = (ObjectPack::new(git), BTreeMap::new());
    for path in paths {
        git.check_time()?;
        let Ok(Some((mode, content))) = read_file(&mut directory, path, size_limit) else { continue };
        if let Some(oid) = pack.add(ObjectKind::Blob, &content)? {
            entries.insert((*path).to_owned(), Entry { mode, oid });
        }
    }
    pack.finish()?;
    Ok(entries)
}

/// Returns the entry of a file or link without storing its content. `None` like [`add_files`].
pub(crate) fn find_entry(
    git: &Git,
    directory: &mut LastDirectory<'_>,
    path: &Path,
    size_limit: u64,
) -> Option<Entry> {
    let (mode, content) = read_file(directory, path, size_limit).ok()??;
    Some(Entry { mode, oid: encode_id(&hash_object(git.id_length, ObjectKind::Blob, &content)?) })
}

/// Returns the mode of a file or link in an index.
pub(crate) fn find_mode(file: &Stat) -> Option<u32> {
    match FileType::from_raw_mode(file.st_mode) {
        FileType::Symlink => Some(Entry::LINK),
        FileType::RegularFile if file.st_mode & 0o100 == 0 => Some(0o100_644),
        FileType::RegularFile => Some(0o100_755),
        _ => None,
    }
}

/// Reads the mode and the content of a file or link.
fn read_file(
    directory: &mut LastDirectory<'_>,
    path: &Path,
    size_limit: u64,
) -> io::Result<Option<(u32, Vec<u8>)>> {
    let Some(name) = path.file_name() else { return Ok(None) };
    let directory = directory.open(path, false)?;
    let found = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let Some(mode) = find_mode(&found) else { return Ok(None) };
    if mode == Entry::LINK {
        return Ok(Some((mode, readlinkat(directory, name, Vec::new())?.into_bytes())));
    }
    let file = regular_file::open_regular_at(directory, Path::new(name), OFlags::RDONLY)?;
    let mut content = Vec::new();
    file.take(size_limit + 1).read_to_end(&mut content)?;
    Ok((content.len() as u64 <= size_limit).then_some((mode, content)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_git_directories_are_not_plain() {
        for name in
            [".git", ".GIT ", ".git.", ".git::$INDEX", ".g\u{200c}it", "git~1", "a\\.git", ".gitmodules"]
        {
            assert!(!is_plain(OsStr::new(name)), "{name}");
        }
        for name in [".gitignore", ".github", "git", "git.rs", "a.git", "ä", ".gitäb"] {
            assert!(is_plain(OsStr::new(name)), "{name}");
        }
    }

    #[test]
    fn attributes_with_a_conversion_are_recognized() {
        for text in ["* text=auto", "*.bin\tfilter=lfs", "[attr]own crlf", "*.sh eol=lf"] {
            assert!(converts(text.as_bytes()), "{text}");
        }
        for text in ["", "*.lock -diff", "*.png binary", "/docs linguist-generated\n* merge=union"] {
            assert!(!converts(text.as_bytes()), "{text}");
        }
    }
}
