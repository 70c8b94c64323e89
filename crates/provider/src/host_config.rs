//! Determines the directories of this library, which confined agents must not see.
//!
//! The supervisor enforces it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use agents::HostConfig;
use model::{CallPolicy, PRIVATE_DIRECTORIES};

use crate::config::{ProviderConfig, state_directory};
use crate::request_directory::PREFIX;

/// Returns the hidden directories of a request in `spools`; `needed` are paths that its agent must see.
pub(crate) fn for_request(
    config: &ProviderConfig,
    environment: &BTreeMap<String, String>,
    spools: &Path,
    needed: &[&Path],
) -> HostConfig {
    let state = state_directory(environment);
    let own = state.iter().chain(&config.sessions).cloned();
    HostConfig {
        state: own.chain(requests_in(spools, needed)).collect(),
        proofs: state.as_ref().map(|state| state.join("proofs")),
        private_state: state.as_ref().map(|state| state.join("agents")),
        caches: state.map(|state| state.join("caches")),
        file_tools: None,
        terminal_host: None,
        ceiling: CallPolicy::off(),
        expose: Vec::new(),
        guarded: Vec::new(),
        checkouts: None,
    }
}

/// Returns the request directories: prompts, answers, and secrets of MCP servers while they run.
fn requests_in(spools: &Path, needed: &[&Path]) -> Vec<PathBuf> {
    // The sandbox replaces these directories, and a mount over one would be in the agent's way.
    if PRIVATE_DIRECTORIES.iter().any(|directory| spools.starts_with(directory)) {
        return Vec::new();
    }
    if !needed.iter().any(|path| path.starts_with(spools)) {
        return vec![spools.to_owned()];
    }
    // Only existing ones. Directories that are created later in a writable directory are visible.
    let is_request = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(PREFIX.as_bytes()))
    };
    fs::read_dir(spools)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(is_request)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_directories_are_hidden_unless_needed() {
        let hidden = requests_in(Path::new("/srv/spools"), &[Path::new("/srv/work")]);
        assert_eq!(hidden, [PathBuf::from("/srv/spools")]);
        assert!(requests_in(Path::new("/tmp"), &[]).is_empty(), "every sandbox has its own");
        if ["/tmp", "/var/tmp", "/run"]
            .iter()
            .any(|own| Path::new(env!("CARGO_MANIFEST_DIR")).starts_with(own))
        {
            println!("SKIPPED: this checkout lies where every sandbox has a directory of its own");
            return;
        }
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let (other, work) = (directory.path().join("switchboard-x"), directory.path().join("work"));
        fs::create_dir(&other).unwrap();
        fs::create_dir(&work).unwrap();
        assert_eq!(requests_in(directory.path(), &[&work]), [other]);
    }

    #[test]
    fn state_directory_is_hidden_and_holds_proofs() {
        let environment = BTreeMap::from([("HOME".to_owned(), "/home/ana".to_owned())]);
        let config = ProviderConfig { sessions: Some("/srv/sessions".into()), ..ProviderConfig::default() };
        let host = for_request(&config, &environment, Path::new("/tmp"), &[]);
        let state = PathBuf::from("/home/ana/.local/state/switchboard");
        assert_eq!(host.state, [state.clone(), "/srv/sessions".into()]);
        assert_eq!(host.proofs, Some(state.join("proofs")));
    }
}
