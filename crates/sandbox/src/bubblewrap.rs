//! The arguments of bubblewrap for a layout.
//!
//! They go through an open file (`--args`), since every process of the machine can read a command line.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};

use model::{Network, PRIVATE_FOLDERS as PRIVATE};

use crate::layout::{Layout, Mount};

/// Everything up to the command.
pub(crate) fn arguments(layout: &Layout, network: &Network, has_landlock: bool) -> Vec<OsString> {
    let mut args = Arguments::default();
    // In a user namespace root has no more rights over the machine than anybody else.
    args.add(["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]);
    args.add(["--cap-drop", "ALL", "--new-session", "--die-with-parent", "--as-pid-1"]);
    if *network != Network::Full {
        args.add(["--unshare-net"]);
    }
    args.add(["--ro-bind", "/", "/", "--dev", "/dev"]);
    // Root owns the kernel's settings in there, in every namespace; nobody else has any use for writing to it.
    args.add(["--proc", "/proc", "--remount-ro", "/proc"]);
    for folder in PRIVATE.into_iter().filter(|folder| is_real_folder(folder)) {
        args.add(["--tmpfs", folder]);
    }
    for path in needed_of_run() {
        args.mount("--ro-bind", &path);
    }
    for (path, mount) in &layout.mounts {
        match mount {
            Mount::Write => args.mount("--bind", path),
            Mount::Read => args.mount("--ro-bind", path),
            Mount::WriteFrom(source) => {
                args.add([OsStr::new("--bind"), source.as_os_str(), path.as_os_str()]);
            }
            Mount::ReadFrom(source) => {
                args.add([OsStr::new("--ro-bind"), source.as_os_str(), path.as_os_str()]);
            }
            Mount::HideFile => args.add([OsStr::new("--ro-bind"), OsStr::new("/dev/null"), path.as_os_str()]),
            Mount::HideFolder => {
                args.add([
                    OsStr::new("--perms"),
                    OsStr::new("0555"),
                    OsStr::new("--tmpfs"),
                    path.as_os_str(),
                ]);
            }
        }
    }
    // Only now: a mount in something hidden needs its folders made first. With Landlock nothing is written there anyhow, and each
    // mount is a good part of what a start takes.
    for (path, mount) in &layout.mounts {
        if *mount == Mount::HideFolder && !has_landlock {
            args.add([OsStr::new("--remount-ro"), path.as_os_str()]);
        }
    }
    args.0
}

/// One string of what bubblewrap reads from a file.
pub(crate) fn joined(args: &[OsString]) -> Vec<u8> {
    args.iter().flat_map(|arg| arg.as_encoded_bytes().iter().copied().chain([0])).collect()
}

#[derive(Default)]
struct Arguments(Vec<OsString>);

impl Arguments {
    fn add<A: AsRef<OsStr>>(&mut self, words: impl IntoIterator<Item = A>) {
        self.0.extend(words.into_iter().map(|word| word.as_ref().to_owned()));
    }

    fn mount(&mut self, how: &str, path: &Path) {
        self.add([OsStr::new(how), path.as_os_str(), path.as_os_str()]);
    }
}

fn is_real_folder(path: &str) -> bool {
    fs::symlink_metadata(path).is_ok_and(|file| file.is_dir())
}

/// What programs need of `/run`, where the sockets of the system are: how names are looked up, and on some systems the
/// programs themselves.
fn needed_of_run() -> Vec<PathBuf> {
    let resolver = fs::canonicalize("/etc/resolv.conf").ok().filter(|path| path.starts_with("/run"));
    let programs = Some(PathBuf::from("/run/current-system")).filter(|path| path.exists());
    resolver.into_iter().chain(programs).collect()
}
