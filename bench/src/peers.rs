//! Where the other servers and libraries are that `scripts/peers-install` has installed.

use std::env;
use std::path::{Path, PathBuf};

/// The folder; each is in one of its own name there.
pub fn installed() -> PathBuf {
    let tools = env::var_os("SWITCHBOARD_TOOLS").map(PathBuf::from);
    tools.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tools")).join("peers")
}
