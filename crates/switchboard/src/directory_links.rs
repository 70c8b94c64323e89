//! Rejects directories of a call behind links that an agent may have planted. The daemon receives resolved paths, so it cannot check them.

use std::env;
use std::path::{Path, PathBuf};

use agents::doctor::{EscapingLink, Lookup};
use protocol::ProcessEnvironment;

use crate::cli::CallOptions;

/// Checks `--cwd` and `--add-dir`.
pub fn check(
    options: &CallOptions,
    lookup: &Lookup,
    environment: &ProcessEnvironment,
) -> Result<(), EscapingLink> {
    let mut directories = [&options.cwd].into_iter().chain(&options.add_dir);
    directories.try_for_each(|directory| lookup.check_links(&absolute(directory, environment)))
}

/// Returns an absolute path with its links. The kernel resolves the links of the current directory; a shell keeps them in `PWD`.
fn absolute(directory: &Path, environment: &ProcessEnvironment) -> PathBuf {
    let current = env::current_dir().unwrap_or_default();
    let is_current = |path: &PathBuf| path.canonicalize().is_ok_and(|real| real == current);
    environment.directory("PWD").filter(is_current).unwrap_or(current).join(directory)
}
