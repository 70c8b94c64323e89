//! Creates the git directory of a checkout.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::config::{RepositorySettings, UserConfig};
use crate::entry::is_object_id;
use crate::error::ChangesError;
use crate::files::{read_small, read_unlinked};
use crate::git::{Git, GitSession, quote_alternate};
use crate::private_git::{format_data_settings, open};
use crate::repository::GitRepository;

const SMALL: u64 = 1024 * 1024;
const PACKED_LIMIT: u64 = 256 * 1024 * 1024;
/// The refs of the user that the agent can look at. Without a reflog or a stash.
const REFS: [&str; 3] = ["heads", "tags", "remotes"];

/// Creates the git directory: with HEAD and the refs of the user, without remotes, hooks and stash. Returns a view of it that combines it
/// with the files of the user.
pub(super) fn create(
    source: &GitRepository,
    git_dir: &Path,
    session: GitSession,
) -> Result<Git, ChangesError> {
    for directory in ["objects/info", "objects/pack", "refs/heads", "refs/tags", "info"] {
        let path = git_dir.join(directory);
        regular_file::create_private_directory(&path).map_err(ChangesError::file("create", &path))?;
    }
    let write = |name: &str, content: &[u8]| {
        let path = git_dir.join(name);
        fs::write(&path, content).map_err(ChangesError::file("write", &path))
    };
    let (own, common) = (source.git_dir(), source.common_dir());
    let settings = UserConfig::find().read_settings(own, common);
    let is_sha256 = settings.get("extensions.objectformat") == Some("sha256");
    write("config", format_config(&settings, is_sha256).as_bytes())?;
    let objects = quote_alternate(&common.join("objects"));
    write("objects/info/alternates", &[objects.as_bytes(), b"\n"].concat())?;
    // Not through links: the agent can read the copies. Some tools link the lists of refs, whose lines are checked instead.
    for (directory, name) in
        [(own, "info/sparse-checkout"), (common, "info/exclude"), (common, "info/attributes")]
    {
        if let Some(content) = read_unlinked(&directory.join(name), SMALL) {
            write(name, &content)?;
        }
    }
    for (directory, name, limit) in
        [(own, "HEAD", SMALL), (common, "shallow", PACKED_LIMIT), (common, "packed-refs", PACKED_LIMIT)]
    {
        if let Some(content) = read_small(&directory.join(name), limit) {
            let lines = content.split_inclusive(|byte| *byte == b'\n').filter(|line| is_ref_line(line));
            write(name, &lines.collect::<Vec<_>>().concat())?;
        }
    }
    for kind in REFS {
        copy_refs(&common.join("refs").join(kind), &git_dir.join("refs").join(kind))?;
    }
    let git = open(git_dir, source, if is_sha256 { 64 } else { 40 }, session);
    if common.join("reftable").is_dir() {
        let (head, refs) = list_reftable(&Git { git_dir: own.to_owned(), ..git.clone() })?;
        write("HEAD", &head)?;
        write("packed-refs", &refs)?;
    }
    Ok(git)
}

/// Returns the content of HEAD and the packed refs of a repository in the reftable format, which only git reads.
fn list_reftable(git: &Git) -> Result<(Vec<u8>, Vec<u8>), ChangesError> {
    let args = REFS.map(|kind| format!("refs/{kind}"));
    let refs = git.command("for-each-ref").args(["--format=%(objectname) %(refname)"]).args(args).run()?;
    let head = git.command("symbolic-ref").args(["-q", "HEAD"]);
    let head = match head.run_accepting(|code| code <= 1)? {
        (0, name) => [b"ref: ", &*name].concat(),
        // A detached HEAD.
        _ => git.command("rev-parse").args(["--verify", "HEAD"]).run()?,
    };
    Ok((head, refs))
}

/// Returns whether a line of HEAD, `shallow` or `packed-refs` has the form of such a line.
fn is_ref_line(line: &[u8]) -> bool {
    let Ok(line) = str::from_utf8(line.trim_ascii_end()) else { return false };
    let id = line.strip_prefix('^').unwrap_or(line);
    line.starts_with("ref: refs/")
        || line.starts_with("# pack-refs")
        || is_object_id(id.split_once(" refs/").map_or(id, |(id, _)| id))
}

fn format_config(settings: &RepositorySettings, is_sha256: bool) -> String {
    let mut config =
        String::from("[core]\n\tbare = false\n[gc]\n\tauto = 0\n[maintenance]\n\tauto = false\n");
    config += &format_data_settings(settings, is_sha256);
    for key in ["name", "email"] {
        let value = settings.get(&format!("user.{key}")).unwrap_or_default();
        let value: String = value.chars().filter(|c| !c.is_control()).collect();
        if !value.is_empty() {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"");
            config.extend(["[user]\n\t", key, " = \"", &value, "\"\n"]);
        }
    }
    config
}

/// Copies loose refs. Leaves out anything that is not a small regular file.
fn copy_refs(from: &Path, to: &Path) -> Result<(), ChangesError> {
    let Ok(found) = fs::symlink_metadata(from) else { return Ok(()) };
    if !found.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(to).map_err(ChangesError::file("create", to))?;
    for entry in fs::read_dir(from).map_err(ChangesError::file("read", from))?.flatten() {
        let (path, copy) = (entry.path(), to.join(entry.file_name()));
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => copy_refs(&path, &copy)?,
            Ok(kind) if kind.is_file() => {
                if let Some(content) = read_small(&path, SMALL) {
                    fs::write(&copy, content).map_err(ChangesError::file("write", &copy))?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Makes all directories writable, so that they can be removed.
pub(super) fn unlock(directory: &Path) {
    let Ok(found) = fs::symlink_metadata(directory) else { return };
    if !found.is_dir() {
        return;
    }
    let _ = fs::set_permissions(directory, fs::Permissions::from_mode(0o700));
    let entries: Vec<PathBuf> =
        fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    for path in entries {
        unlock(&path);
    }
}
