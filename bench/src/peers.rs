//! The location of the other servers and libraries that `scripts/peers-install` installed.

use std::env;
use std::path::{Path, PathBuf};

/// Returns the directory, which has one subdirectory for each.
pub fn installed() -> PathBuf {
    let tools = env::var_os("SWITCHBOARD_TOOLS").map(PathBuf::from);
    tools.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tools")).join("peers")
}
