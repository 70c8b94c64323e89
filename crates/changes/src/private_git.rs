//! Creates the private git directory of a record. It contains data settings of the user, but no command.

use std::fs;
use std::path::Path;

use crate::config::{RepositorySettings, UserConfig};
use crate::error::ChangesError;
use crate::files::{copy_index, read_small, remove_directory, remove_file};
use crate::git::{Git, GitSession};
use crate::repository::GitRepository;

const LIMIT: u64 = 1024 * 1024;
const BOOLEANS: [&str; 7] = [
    "core.filemode",
    "core.symlinks",
    "core.ignorecase",
    "core.precomposeunicode",
    // Without it, git ignores a file that appears at a path outside of a sparse checkout.
    "core.sparsecheckout",
    // Without these, git expands a sparse index, and then sets the times of the trees among the objects of the user.
    "core.sparsecheckoutcone",
    "index.sparse",
];
const CHOICES: [(&str, &[&str]); 2] =
    [("core.autocrlf", &["true", "false", "input"]), ("core.eol", &["lf", "crlf", "native"])];

/// Combines a private git directory with a repository.
pub(crate) fn open(git_dir: &Path, repository: &GitRepository, id_length: usize, session: GitSession) -> Git {
    Git {
        git_dir: git_dir.to_owned(),
        worktree: repository.worktree().to_owned(),
        user_objects: repository.common_dir().join("objects"),
        id_length,
        session,
    }
}

/// Reads the settings of a private git directory.
pub(crate) fn read_own_settings(git: &Git) -> RepositorySettings {
    let mut settings = RepositorySettings::default();
    settings.add_file(&git.git_dir.join("config"));
    settings
}

/// Reads the settings of the user for a repository.
pub(crate) fn read_settings(repository: &GitRepository) -> RepositorySettings {
    UserConfig::find().read_settings(repository.git_dir(), repository.common_dir())
}

/// Creates the private git directory and replaces one that is incomplete.
pub(crate) fn create(
    git_dir: &Path,
    repository: &GitRepository,
    session: GitSession,
) -> Result<Git, ChangesError> {
    remove_directory(git_dir)?;
    for directory in ["objects/pack", "refs", "info"] {
        let path = git_dir.join(directory);
        regular_file::create_private_directory(&path).map_err(ChangesError::file("create", &path))?;
    }
    let user = UserConfig::find();
    let settings = user.read_settings(repository.git_dir(), repository.common_dir());
    let is_sha256 = settings.get("extensions.objectformat") == Some("sha256");
    let write = |name: &str, content: &[u8]| {
        let path = git_dir.join(name);
        fs::write(&path, content).map_err(ChangesError::file("write", &path))
    };
    let mut config = format_config(&settings, is_sha256);
    // The files are copied: the job can change the originals, and a repository can name a FIFO.
    if let Some(content) = user.read_named_file(&settings, "core.excludesfile", "ignore") {
        write("info/user-exclude", &content)?;
        config += &name_file("excludesFile", &git_dir.join("info/user-exclude"));
    }
    if let Some(content) = user.read_named_file(&settings, "core.attributesfile", "attributes") {
        write("info/user-attributes", &content)?;
        config += &name_file("attributesFile", &git_dir.join("info/user-attributes"));
    }
    let [shared, own] = [repository.common_dir(), repository.git_dir()];
    for (name, directory) in
        [("info/exclude", shared), ("info/attributes", shared), ("info/sparse-checkout", own)]
    {
        if let Some(content) = read_small(&directory.join(name), LIMIT) {
            write(name, &content)?;
        }
    }
    write("HEAD", b"ref: refs/heads/none\n")?;
    write("config", config.as_bytes())?;
    Ok(open(git_dir, repository, if is_sha256 { 64 } else { 40 }, session))
}

fn format_config(settings: &RepositorySettings, is_sha256: bool) -> String {
    let mut config = String::from("[core]\n\tbare = false\n\tsafecrlf = false\n\tsplitIndex = false\n");
    // Like the other files of a record.
    config += "\tfsync = none\n\tlogAllRefUpdates = false\n";
    config + &format_data_settings(settings, is_sha256)
}

/// Formats the settings of the user on which the content and the comparison of files depend.
pub(crate) fn format_data_settings(settings: &RepositorySettings, is_sha256: bool) -> String {
    let mut config = String::new();
    let format = |key: &str, value: &str| {
        let (section, name) = key.split_once('.').unwrap_or(("core", key));
        format!("[{section}]\n\t{name} = {value}\n")
    };
    for key in BOOLEANS {
        if let Some(value) = settings.get_bool(key) {
            config += &format(key, &value.to_string());
        }
    }
    for (key, allowed) in CHOICES {
        let value = settings.get(key).map(str::to_ascii_lowercase);
        let value = match settings.get_bool(key) {
            Some(value) => Some(value.to_string()),
            None => value,
        };
        if let Some(value) = value.filter(|value| allowed.contains(&value.as_str())) {
            config += &format(key, &value);
        }
    }
    if is_sha256 {
        return config + "[core]\n\trepositoryFormatVersion = 1\n[extensions]\n\tobjectFormat = sha256\n";
    }
    config + "[core]\n\trepositoryFormatVersion = 0\n"
}

/// Formats a setting with a path. A path that is not UTF-8 is left out: the format cannot express it.
fn name_file(key: &str, path: &Path) -> String {
    let Some(path) = path.to_str() else { return String::new() };
    let path = path.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("[core]\n\t{key} = \"{path}\"\n")
}

/// Copies the index of the user, and the shared files of a split index.
pub(crate) fn copy_user_index(
    git: &Git,
    repository: &GitRepository,
    copy: &Path,
) -> Result<(), ChangesError> {
    copy_index(&repository.git_dir().join("index"), copy)?;
    let entries = fs::read_dir(repository.git_dir());
    let entries = entries.map_err(ChangesError::file("read", repository.git_dir()))?;
    for entry in entries.flatten().filter(|entry| is_shared_index(&entry.file_name().to_string_lossy())) {
        copy_index(&entry.path(), &git.git_dir.join(entry.file_name()))?;
    }
    Ok(())
}

/// Removes the copies of the shared files of a split index.
pub(crate) fn remove_shared_indexes(git_dir: &Path) -> Result<(), ChangesError> {
    let entries = fs::read_dir(git_dir).map_err(ChangesError::file("read", git_dir))?;
    let mut shared = entries.flatten().filter(|entry| is_shared_index(&entry.file_name().to_string_lossy()));
    shared.try_for_each(|entry| remove_file(&entry.path()))
}

/// Returns whether a file belongs to a split index.
pub(crate) fn is_shared_index(name: &str) -> bool {
    name.starts_with("sharedindex.")
}
