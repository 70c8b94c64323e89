//! The caches that a confined agent's package managers get instead of the user's, which cannot be written.
//!
//! Owns which variables lead them there. Creating, leasing and sweeping the directories is `sandbox`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Variables that name a cache, and the directory that each gets. Package managers that heed `XDG_CACHE_HOME` (corepack, deno,
/// node-gyp, poetry) need no variable of their own.
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

/// Where cargo keeps its configuration below its home: registries and mirrors. Credentials belong elsewhere, but may be in it.
const CARGO_CONFIG: &str = "config.toml";

/// Private caches for the package managers of a confined agent.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Caches {
    /// Where they are, shared with other runs of the same policy; none for caches that go with the run.
    pub directory: Option<PathBuf>,
    /// Variables of the agent, each with the directory of a cache.
    pub variables: BTreeMap<String, String>,
    /// A configuration of the user that cargo finds in `CARGO_HOME` alone, and of which the cache gets a copy without its secrets.
    pub cargo_config: Option<PathBuf>,
}

impl Caches {
    /// Returns the caches in a directory. A variable that the caller passes on by name (`is_passed_on`) keeps its value.
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

    /// Where the copy of cargo's configuration is: the cache, and the file in it.
    pub fn cargo_config_copy() -> (&'static str, &'static str) {
        ("cargo", CARGO_CONFIG)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variable_that_is_passed_on_keeps_its_value() {
        let cargo = Path::new("/home/ana/.cargo");
        let all = Caches::new(None, Some(cargo), |_| false);
        assert_eq!(all.variables["CARGO_HOME"], "cargo");
        assert_eq!(all.cargo_config, Some("/home/ana/.cargo/config.toml".into()));
        let some = Caches::new(None, Some(cargo), |name| name == "CARGO_HOME");
        assert_eq!((some.variables.get("CARGO_HOME"), some.cargo_config), (None, None));
        assert!(some.variables.contains_key("npm_config_cache"));
    }
}
