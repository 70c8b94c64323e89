//! The variables of a caller's environment that agents use: `PATH`, keys and tokens.
//!
//! A daemon outlives the shell that started it. A call carries the variables of its own shell, so that a newly installed agent or a newly
//! exported key is used. They may contain secrets: each environment is in a file that only the user can read, until its job ends, and
//! never in the store.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use agents::AgentProfiles;
use model::JobId;
use serde::{Deserialize, Serialize};

/// The suffixes of variables that contain secrets.
const SECRET_SUFFIXES: [&str; 6] = ["_KEY", "_TOKEN", "_SECRET", "_PASSWORD", "_PASSWD", "_CREDENTIALS"];

/// The caller's variables that agents may inherit.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallerEnvironment {
    variables: BTreeMap<String, String>,
    /// Is true if a missing variable is unset. An MCP host passes few variables on, so a missing one means nothing there.
    is_complete: bool,
    /// The variables that MCP servers of the call refer to.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    server_variables: BTreeMap<String, String>,
}

impl CallerEnvironment {
    /// Returns the environment of a shell, where a missing variable is unset.
    pub fn of_shell(variables: BTreeMap<String, String>) -> Self {
        Self { variables, is_complete: true, server_variables: BTreeMap::new() }
    }

    /// Adds the values of the variables that MCP servers of the call refer to (`${NAME}`).
    #[must_use]
    pub fn with_server_variables(self, server_variables: BTreeMap<String, String>) -> Self {
        Self { server_variables, ..self }
    }

    /// Returns the value of a variable that an MCP server refers to.
    pub(crate) fn server_variable(&self, name: &str) -> Option<String> {
        self.server_variables.get(name).cloned()
    }

    /// Returns the environment of an MCP host's server, which the daemon's own completes.
    pub fn of_mcp_host(variables: BTreeMap<String, String>) -> Self {
        Self { variables, is_complete: false, server_variables: BTreeMap::new() }
    }

    /// Applies the caller's variables to the daemon's environment. Only variables that agents may inherit are replaced.
    pub(crate) fn applied_to(
        &self,
        profiles: &AgentProfiles,
        own: &BTreeMap<String, String>,
        pass_on: &BTreeSet<String>,
    ) -> BTreeMap<String, String> {
        let carried = agent_variables(profiles, &self.variables, pass_on);
        let mut combined = own.clone();
        if self.is_complete {
            for name in agent_variables(profiles, own, pass_on).keys() {
                combined.remove(name);
            }
            combined.extend(carried);
            return combined;
        }
        let paths = [self.variables.get("PATH"), own.get("PATH")];
        let path: Vec<&str> = paths.into_iter().flatten().map(String::as_str).collect();
        combined.extend(carried);
        if !path.is_empty() {
            combined.insert("PATH".to_owned(), path.join(":"));
        }
        combined
    }

    /// Returns the values that must be redacted in stored texts.
    pub(crate) fn secrets(&self) -> Vec<&str> {
        let named = self.server_variables.values().map(String::as_str);
        secret_values(&self.variables).into_iter().chain(named).collect()
    }
}

/// Prints the names of the variables and none of their values.
impl fmt::Debug for CallerEnvironment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallerEnvironment")
            .field("variables", &self.variables.keys())
            .field("server_variables", &self.server_variables.keys())
            .field("is_complete", &self.is_complete)
            .finish()
    }
}

/// The directory of the callers' environments, one file per job.
///
/// A file is written before its job is stored, so that the claiming daemon finds it. If the job was never stored, the next daemon removes
/// the file (see `janitor`).
#[derive(Debug)]
pub(crate) struct CallerEnvironments {
    directory: PathBuf,
}

impl CallerEnvironments {
    /// Creates the directory below the state directory.
    pub fn open(state: &Path) -> io::Result<Self> {
        let directory = state.join("environments");
        crate::files::create_private(&directory)?;
        Ok(Self { directory })
    }

    pub fn write(&self, job: JobId, environment: &CallerEnvironment) -> io::Result<()> {
        let text = serde_json::to_vec(environment)?;
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(self.file(job))?;
        file.write_all(&text)
    }

    /// Returns the environment of a job's caller.
    pub fn read(&self, job: JobId) -> Option<CallerEnvironment> {
        serde_json::from_slice(&regular_file::read_regular(&self.file(job)).ok()?).ok()
    }

    /// Removes the environment of a job, if there is one.
    pub fn remove(&self, job: JobId) {
        match fs::remove_file(self.file(job)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%job, %error, "cannot remove the environment of the job's caller");
            }
            _ => {}
        }
    }

    /// Returns the jobs with a caller environment.
    pub fn jobs(&self) -> io::Result<Vec<JobId>> {
        let names =
            fs::read_dir(&self.directory)?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        Ok(names.filter_map(|name| name.strip_suffix(".json")?.parse().ok()).collect())
    }

    fn file(&self, job: JobId) -> PathBuf {
        self.directory.join(format!("{job}.json"))
    }
}

/// Returns the variables that any agent may inherit, including the operator's (`pass_env`).
pub fn agent_variables(
    profiles: &AgentProfiles,
    variables: &BTreeMap<String, String>,
    pass_on: &BTreeSet<String>,
) -> BTreeMap<String, String> {
    let mut kept = BTreeMap::new();
    for profile in profiles.iter() {
        kept.extend(agents::environment(&profile.variables, variables));
    }
    let named = pass_on.iter().filter(|name| agents::forbidden_variable(name).is_none());
    kept.extend(named.filter_map(|name| Some((name.clone(), variables.get(name)?.clone()))));
    kept
}

/// Returns the values of variables that are secrets by their names.
pub fn secret_values(variables: &BTreeMap<String, String>) -> Vec<&str> {
    let is_secret = |name: &str| SECRET_SUFFIXES.iter().any(|suffix| name.ends_with(suffix));
    variables.iter().filter(|(name, _)| is_secret(name)).map(|(_, value)| value.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn daemon() -> BTreeMap<String, String> {
        variables(&[
            ("PATH", "/usr/bin"),
            ("ANTHROPIC_API_KEY", "old"),
            ("HOME", "/home/ana"),
            ("OTHER", "x"),
        ])
    }

    #[test]
    fn environment_of_a_shell_replaces_agent_variables() {
        let shell = variables(&[("PATH", "/opt/bin"), ("HOME", "/home/ana"), ("LD_PRELOAD", "/evil.so")]);
        let combined = CallerEnvironment::of_shell(shell).applied_to(
            &AgentProfiles::default(),
            &daemon(),
            &BTreeSet::new(),
        );
        assert_eq!(combined, variables(&[("PATH", "/opt/bin"), ("HOME", "/home/ana"), ("OTHER", "x")]));
    }

    #[test]
    fn environment_of_an_mcp_host_is_completed_by_the_daemons() {
        let host = variables(&[("PATH", "/opt/bin"), ("ANTHROPIC_API_KEY", "new")]);
        let combined = CallerEnvironment::of_mcp_host(host).applied_to(
            &AgentProfiles::default(),
            &daemon(),
            &BTreeSet::new(),
        );
        assert_eq!(combined["PATH"], "/opt/bin:/usr/bin");
        assert_eq!((combined["ANTHROPIC_API_KEY"].as_str(), combined["HOME"].as_str()), ("new", "/home/ana"));
    }

    #[test]
    fn variables_of_the_operator_are_carried_by_name() {
        let shell = variables(&[("FAKE_KEY", "secret-value"), ("UNRELATED", "x")]);
        let named = BTreeSet::from(["FAKE_KEY".to_owned()]);
        let profiles = AgentProfiles::default();
        assert_eq!(agent_variables(&profiles, &shell, &named), variables(&[("FAKE_KEY", "secret-value")]));
        let carried = CallerEnvironment::of_shell(shell);
        assert_eq!(carried.secrets(), ["secret-value"]);
        assert!(!format!("{carried:?}").contains("secret-value"));
    }
}
