//! Private package-manager caches of a sandboxed agent, which cannot write to the user's.
//!
//! Owns the environment variables that point to them. `sandbox` creates, leases and sweeps the directories.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Cache variables and the directory of each. Package managers that read `XDG_CACHE_HOME` (corepack, deno, node-gyp, poetry) need
/// no entry.
const VARIABLES: &[(&str, &str)] = &[
    ("BUN_INSTALL_CACHE_DIR", "bun"),
    ("CARGO_HOME", "cargo"),
    ("GOCACHE", "go-build"),
    ("GOPATH", "go"),
    ("PIP_CACHE_DIR", "pip"),
    ("UV_CACHE_DIR", "uv"),
    ("XDG_CACHE_HOME", "xdg"),
    ("YARN_CACHE_FOLDER", "yarn"),
    ("YARN_GLOBAL_FOLDER", "yarn-global"),
    ("npm_config_cache", "npm"),
];

/// The configuration file in `CARGO_HOME`: registries and mirrors. Credentials belong in another file, but users put them here,
/// too.
const CARGO_CONFIG: &str = "config.toml";

/// Private caches for the package managers of a confined agent.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Caches {
    /// The directory of the caches, shared with other runs of the same policy. `None`: the caches are deleted with the run.
    pub directory: Option<PathBuf>,
    /// Environment variables of the agent, each with its cache directory.
    pub variables: BTreeMap<String, String>,
    /// The user's cargo configuration. Cargo reads it only from `CARGO_HOME`, so the cache gets a copy without secrets.
    pub cargo_config: Option<PathBuf>,
}

impl Caches {
    /// Returns the caches in a directory. A variable that the operator passes through (`is_passed_on`) keeps its value.
    pub fn new(
        directory: Option<PathBuf>,
        cargo_home: Option<&Path>,
        is_passed_on: impl Fn(&str) -> bool,
    ) -> Self {
        let ours = VARIABLES.iter().filter(|(name, _)| !is_passed_on(name));
        let variables: BTreeMap<_, _> =
            ours.map(|(name, cache)| ((*name).to_owned(), (*cache).to_owned())).collect();
        let cargo_config = cargo_home.filter(|_| variables.contains_key("CARGO_HOME"));
        Self { directory, variables, cargo_config: cargo_config.map(|home| home.join(CARGO_CONFIG)) }
    }

    /// Returns the location of the copy of cargo's configuration: cache and file name.
    pub fn cargo_config_copy() -> (&'static str, &'static str) {
        ("cargo", CARGO_CONFIG)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passed_variable_keeps_its_value() {
        let cargo = Path::new("/home/ana/.cargo");
        let all = Caches::new(None, Some(cargo), |_| false);
        assert_eq!(all.variables["CARGO_HOME"], "cargo");
        assert_eq!(all.cargo_config, Some("/home/ana/.cargo/config.toml".into()));
        let some = Caches::new(None, Some(cargo), |name| name == "CARGO_HOME");
        assert_eq!((some.variables.get("CARGO_HOME"), some.cargo_config), (None, None));
        assert!(some.variables.contains_key("npm_config_cache"));
    }
}
