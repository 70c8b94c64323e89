//! Reads the commit that is checked out in a repository.

use std::path::Path;

use crate::entry::is_object_id;
use crate::files::read_small;
use crate::git::Git;
use crate::repository::GitRepository;

const REF_LIMIT: u64 = 4096;
const PACKED_LIMIT: u64 = 256 * 1024 * 1024;

/// Returns the commit of HEAD, from the files of the repository. Runs git only for the reftable format.
pub(crate) fn read_commit(repository: &GitRepository, git: &Git) -> Option<String> {
    if !repository.common_dir().join("reftable").is_dir() {
        return read_head_files(repository);
    }
    let git = Git { git_dir: repository.git_dir().to_owned(), ..git.clone() };
    let output = git.command("rev-parse").args(["--verify", "--quiet", "HEAD"]).run().ok()?;
    parse_commit(&output)
}

/// Returns the commit of HEAD in a directory below the worktree: a submodule or a nested repository.
pub(crate) fn read_nested_commit(directory: &Path) -> Option<String> {
    read_head_files(&GitRepository::open(directory).ok()??)
}

/// Returns the commit of HEAD in a git directory that an agent could change. Follows no link: it could lead to the refs of another
/// repository.
pub(crate) fn read_unlinked_commit(repository: &GitRepository) -> Option<String> {
    let is_plain = |path: &Path| path.canonicalize().is_ok_and(|real| real == path);
    read_refs(repository, |path, limit| is_plain(path).then(|| read_small(path, limit)).flatten())
}

fn read_head_files(repository: &GitRepository) -> Option<String> {
    read_refs(repository, read_small)
}

fn read_refs(repository: &GitRepository, read: impl Fn(&Path, u64) -> Option<Vec<u8>>) -> Option<String> {
    let mut content = read(&repository.git_dir().join("HEAD"), REF_LIMIT)?;
    // Git limits the length of a chain of symbolic refs in the same way.
    for _ in 0..5 {
        let Some(name) = content.strip_prefix(b"ref:") else { return parse_commit(&content) };
        let name = str::from_utf8(name).ok()?.trim().to_owned();
        if !name.starts_with("refs/") || name.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return None;
        }
        let loose = [repository.git_dir(), repository.common_dir()].map(|directory| directory.join(&name));
        let Some(next) = loose.iter().find_map(|path| read(path, REF_LIMIT)) else {
            let packed = read(&repository.common_dir().join("packed-refs"), PACKED_LIMIT)?;
            return find_packed_ref(&packed, &name);
        };
        content = next;
    }
    None
}

fn find_packed_ref(content: &[u8], name: &str) -> Option<String> {
    let mut lines = content.split(|byte| *byte == b'\n');
    let line = lines.find(|line| {
        let rest = line.strip_suffix(name.as_bytes());
        rest.is_some_and(|rest| rest.ends_with(b" ") && !rest.starts_with(b"#"))
    })?;
    parse_commit(line.split(|byte| *byte == b' ').next()?)
}

fn parse_commit(bytes: &[u8]) -> Option<String> {
    str::from_utf8(bytes).ok().map(str::trim).filter(|text| is_object_id(text)).map(str::to_owned)
}
