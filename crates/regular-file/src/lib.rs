//! Opens files that another program may have replaced.
//!
//! Opening a FIFO would block, a device may never reach its end, and a symbolic link leads anywhere. Anything but a
//! regular file is rejected without blocking, with an error that names the path ([`WrongFileType`]). So is a path that the
//! user may not access ([`InaccessiblePath`]).

use std::error::Error;
use std::fmt;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, fcntl_getfl, fcntl_setfl, fstat, openat};
use rustix::io::Errno;

const MODE: Mode = Mode::RUSR.union(Mode::WUSR);
const APPEND: OFlags = OFlags::WRONLY.union(OFlags::CREATE).union(OFlags::APPEND);

/// Opens a regular file for reading. Anything else is an error, including a symbolic link.
pub fn open_regular(path: &Path) -> io::Result<File> {
    open_regular_at(CWD, path, OFlags::RDONLY)
}

/// Opens a file of the user for reading. Follows symbolic links: users link their configuration to another place.
pub fn open_linked(path: &Path) -> io::Result<File> {
    open_checked(CWD, path, OFlags::RDONLY)
}

/// Reads a regular file. Anything else is an error, including a symbolic link.
pub fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Creates or truncates a regular file with mode 0600. Anything else at that path is an error.
pub fn create_regular(path: &Path) -> io::Result<File> {
    open_regular_at(CWD, path, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC)
}

/// Opens a lock file for reading and writing, and creates it with mode 0600. Its content is kept.
pub fn open_lock_file(path: &Path) -> io::Result<File> {
    open_regular_at(CWD, path, OFlags::RDWR | OFlags::CREATE)
}

/// Opens a regular file for appending, and creates it with mode 0600. Anything else is an error, including a symbolic link.
pub fn append_regular(path: &Path) -> io::Result<File> {
    open_regular_at(CWD, path, APPEND)
}

/// Opens a file of the user for appending, like a log. Follows symbolic links.
pub fn append_linked(path: &Path) -> io::Result<File> {
    open_checked(CWD, path, APPEND)
}

/// Opens a regular file below an open directory. Anything else is an error, including a symbolic link.
pub fn open_regular_at(directory: impl AsFd, path: &Path, flags: OFlags) -> io::Result<File> {
    open_checked(directory, path, flags | OFlags::NOFOLLOW)
}

fn open_checked(directory: impl AsFd, path: &Path, flags: OFlags) -> io::Result<File> {
    let not_regular = || WrongFileType { path: path.to_owned(), expected: FileKind::Regular };
    // Truncated only after the type check: O_TRUNC could destroy a device or the target of a link.
    let truncate = flags.contains(OFlags::TRUNC);
    let flags = flags.difference(OFlags::TRUNC) | OFlags::CLOEXEC | OFlags::NOCTTY;
    let file = match openat(directory, path, flags | OFlags::NONBLOCK, MODE) {
        // ELOOP also means a loop of links above the file.
        Err(Errno::LOOP) => return Err(find_looping_parent(path).unwrap_or_else(not_regular).into()),
        Err(errno @ (Errno::ACCESS | Errno::PERM)) => return Err(name_culprit(path, errno.into())),
        // ENXIO, ENODEV: a FIFO without a reader, a socket, a device without a driver. EISDIR: a directory.
        Err(Errno::NXIO | Errno::NODEV | Errno::ISDIR) => return Err(not_regular().into()),
        file => file?,
    };
    let found = fstat(&file)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Err(not_regular().into());
    }
    // O_NONBLOCK belongs to the open file description, so every process that inherits the file would get it.
    fcntl_setfl(&file, fcntl_getfl(&file)?.difference(OFlags::NONBLOCK))?;
    let file = File::from(file);
    // ext4 flushes a truncated file when it is closed, a new one too.
    if truncate && found.st_size > 0 {
        file.set_len(0)?;
    }
    Ok(file)
}

/// Creates a directory and its parents with mode 0700. Succeeds if the directory exists.
pub fn create_private_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|error| {
        match path.ancestors().find(|path| is_not_directory(path)) {
            Some(path) => WrongFileType { path: path.to_owned(), expected: FileKind::Directory }.into(),
            None => name_culprit(path, error),
        }
    })
}

/// Returns whether anything but a directory is at a path, such as a file, a dangling link or a link to itself.
pub fn is_not_directory(path: &Path) -> bool {
    match fs::metadata(path) {
        Ok(found) => !found.is_dir(),
        Err(error) => (error.kind() == io::ErrorKind::NotFound || is_loop(&error)) && path.is_symlink(),
    }
}

fn is_loop(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::LOOP.raw_os_error())
}

fn find_looping_parent(path: &Path) -> Option<WrongFileType> {
    let is_loop_of_links =
        |path: &&Path| path.is_symlink() && fs::metadata(path).is_err_and(|error| is_loop(&error));
    let path = path.ancestors().skip(1).find(is_loop_of_links)?.to_owned();
    Some(WrongFileType { path, expected: FileKind::Directory })
}

/// Adds the path that caused it to an error without one: a path that the user may not access, or a path of the wrong kind. Any other error is returned unchanged, and so is the kind of a missing permission.
pub fn name_culprit(path: &Path, error: io::Error) -> io::Error {
    if error.get_ref().is_some() {
        return error;
    }
    if error.kind() == io::ErrorKind::PermissionDenied {
        let path = find_inaccessible(path).to_owned();
        return io::Error::new(io::ErrorKind::PermissionDenied, InaccessiblePath { path });
    }
    if error.kind() == io::ErrorKind::IsADirectory {
        return WrongFileType { path: path.to_owned(), expected: FileKind::Regular }.into();
    }
    if is_loop(&error) || error.kind() == io::ErrorKind::NotADirectory {
        let found = path.ancestors().find(|path| is_not_directory(path));
        return found.map_or(error, |path| {
            WrongFileType { path: path.to_owned(), expected: FileKind::Directory }.into()
        });
    }
    error
}

/// Returns the path to which a permission is missing: the last visible one, since a directory without the permission to search
/// hides the paths below it, and one without the permission to write rejects new files.
fn find_inaccessible(path: &Path) -> &Path {
    path.ancestors().find(|path| fs::symlink_metadata(path).is_ok()).unwrap_or(path)
}

/// Returns the remedy for an error that names the path at fault, as an imperative.
pub fn path_hint(error: &(dyn Error + 'static)) -> Option<String> {
    let inaccessible = || find_cause(error).map(InaccessiblePath::hint);
    WrongFileType::find(error).map(WrongFileType::hint).or_else(inaccessible)
}

/// Finds an error of a type among the causes of another one.
fn find_cause<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a E> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        // The source of an `io::Error` is that of its inner error, which would be skipped.
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        if let Some(inner) = inner.filter(|inner| !inner.is::<E>()) {
            cause = Some(inner);
            continue;
        }
        if let Some(found) = inner.and_then(|inner| inner.downcast_ref()).or_else(|| error.downcast_ref()) {
            return Some(found);
        }
        cause = error.source();
    }
    None
}

/// The kind of file that a path must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A Unix socket.
    Socket,
}

impl fmt::Display for FileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Regular => "regular file",
            Self::Directory => "directory",
            Self::Socket => "socket",
        })
    }
}

/// A FIFO, device, socket or symbolic link in place of a file or directory, or one of these in place of the other. Part of an
/// [`io::Error`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is not a {expected}", path.display())]
pub struct WrongFileType {
    /// The path.
    pub path: PathBuf,
    /// The kind that it must be.
    pub expected: FileKind,
}

impl WrongFileType {
    /// Finds this error among the causes of another one.
    pub fn find<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Self> {
        find_cause(error)
    }

    /// Returns the remedy, as an imperative.
    pub fn hint(&self) -> String {
        format!("move `{}` away or remove it, and retry", self.path.display())
    }
}

/// A path that the user may not access. Part of an [`io::Error`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}`: Permission denied", path.display())]
pub struct InaccessiblePath {
    /// The path.
    pub path: PathBuf,
}

impl InaccessiblePath {
    /// Returns the remedy, as an imperative.
    pub fn hint(&self) -> String {
        format!("make `{}` accessible to your user", self.path.display())
    }
}

impl From<WrongFileType> for io::Error {
    fn from(error: WrongFileType) -> Self {
        Self::new(io::ErrorKind::InvalidInput, error)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use rustix::fs::mknodat;

    use super::*;

    #[test]
    fn non_regular_file_is_rejected_without_blocking() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        mknodat(CWD, at("fifo"), FileType::Fifo, MODE, 0).unwrap();
        fs::create_dir(at("directory")).unwrap();
        fs::write(at("file"), "kept").unwrap();
        symlink(at("file"), at("link")).unwrap();
        let _listener = UnixListener::bind(at("socket")).unwrap();
        for name in ["fifo", "directory", "link", "socket", "/dev/null", "/dev/tty"] {
            let path = at(name);
            for opened in
                [open_regular(&path), create_regular(&path), open_lock_file(&path), append_regular(&path)]
            {
                assert!(opened.is_err(), "{name}: {opened:?}");
            }
            for opened in [open_linked(&path), append_linked(&path)] {
                assert_eq!(opened.is_ok(), name == "link", "{name}: {opened:?}");
            }
        }
        assert_eq!(read_regular(&at("file")).unwrap(), b"kept");
    }

    #[test]
    fn error_names_path_and_is_found_among_causes() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot start")]
        struct Outer(#[source] io::Error);
        let directory = tempfile::tempdir().unwrap();
        let error = read_regular(directory.path()).unwrap_err();
        assert!(error.to_string().contains(&*directory.path().to_string_lossy()), "{error}");
        let error = Outer(io::Error::other(Outer(error)));
        assert_eq!(WrongFileType::find(&error).unwrap().path, directory.path());
        assert_eq!(WrongFileType::find(&Outer(io::ErrorKind::NotFound.into())), None);
    }

    #[test]
    fn file_in_place_of_directory_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("above/below");
        create_private_directory(&path).unwrap();
        create_private_directory(&path).unwrap();
        fs::write(path.join("file"), "").unwrap();
        let error = create_private_directory(&path.join("file/more")).unwrap_err();
        let error = WrongFileType::find(&error).unwrap();
        assert_eq!((error.expected, &error.path), (FileKind::Directory, &path.join("file")));
    }

    #[test]
    fn link_to_itself_in_place_of_directory_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let link = directory.path().join("link");
        symlink(&link, &link).unwrap();
        assert!(is_not_directory(&link));
        let expected = WrongFileType { path: link.clone(), expected: FileKind::Directory };
        for error in [
            create_private_directory(&link).unwrap_err(),
            create_private_directory(&link.join("below")).unwrap_err(),
            create_regular(&link.join("file")).unwrap_err(),
            read_regular(&link.join("below/file")).unwrap_err(),
        ] {
            assert_eq!(WrongFileType::find(&error), Some(&expected), "{error}");
        }
    }

    #[test]
    fn path_without_permission_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::create_dir(at("present")).unwrap();
        // Root has every permission, so the errors of the kernel are simulated.
        for (path, culprit) in [("present", "present"), ("present/below/file", "present")] {
            let error = name_culprit(&at(path), Errno::ACCESS.into());
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
            let culprit = at(culprit).display().to_string();
            assert_eq!(error.to_string(), format!("`{culprit}`: Permission denied"));
            assert_eq!(path_hint(&error), Some(format!("make `{culprit}` accessible to your user")));
        }
        let missing = name_culprit(&at("present"), Errno::NOENT.into());
        assert_eq!((missing.raw_os_error(), path_hint(&missing)), (Some(2), None));
    }

    #[test]
    fn created_file_is_truncated_and_blocking() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::write(&path, "old text").unwrap();
        let file = create_regular(&path).unwrap();
        assert!(!fcntl_getfl(&file).unwrap().contains(OFlags::NONBLOCK));
        assert_eq!(fs::read(&path).unwrap(), b"");
    }

    #[test]
    fn appended_and_locked_files_keep_their_content() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::write(&path, "old").unwrap();
        append_regular(&path).unwrap().write_all(b" new").unwrap();
        drop(open_lock_file(&path).unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"old new");
    }
}
