//! The paths of one installation: configuration, state directory, socket.
//!
//! The state directory identifies the daemon: it contains the daemon's lock, and the lock contains the address of the socket. Clients
//! with different environments (an MCP host passes hardly any variables on) therefore find the same daemon.

use std::path::{Path, PathBuf};

use crate::directory::{DirectoryError, PrivateDirectory};
use crate::environment::ProcessEnvironment;
use crate::socket;

/// The variable that moves all files below one directory.
pub const HOME_VARIABLE: &str = "SWITCHBOARD_HOME";

/// The paths of one installation. [`SwitchboardHome::create`] creates the state directory; all other methods only compute paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwitchboardHome {
    /// The directory of `SWITCHBOARD_HOME`.
    root: Option<PathBuf>,
    config_file: PathBuf,
    state: PathBuf,
    /// The preferred directory of the socket.
    runtime: Option<PathBuf>,
}

impl SwitchboardHome {
    /// Resolves the paths from `SWITCHBOARD_HOME`, the XDG variables, or their defaults below `HOME`.
    pub fn from_environment(environment: &ProcessEnvironment) -> Result<Self, HomeError> {
        let home = Self::resolve(environment)?;
        // Requests, plans and the lock contain these paths as JSON.
        let non_utf8 = [home.state(), home.config_file()].into_iter().find(|path| path.to_str().is_none());
        non_utf8.map_or(Ok(()), |path| Err(HomeError::NotUtf8(path.to_owned())))?;
        Ok(home)
    }

    fn resolve(environment: &ProcessEnvironment) -> Result<Self, HomeError> {
        if let Some(value) = environment.get(HOME_VARIABLE) {
            let root = PathBuf::from(value);
            return if root.is_absolute() {
                Ok(Self::from_root(root))
            } else {
                Err(HomeError::Relative(root))
            };
        }
        let xdg = |name: &str, below_home: &str| {
            let directory = environment
                .directory(name)
                .or_else(|| environment.directory("HOME").map(|home| home.join(below_home)));
            directory.map(|directory| directory.join("switchboard")).ok_or(HomeError::NotFound)
        };
        Ok(Self {
            root: None,
            config_file: xdg("XDG_CONFIG_HOME", ".config")?.join("config.toml"),
            state: xdg("XDG_STATE_HOME", ".local/state")?,
            runtime: environment
                .directory("XDG_RUNTIME_DIR")
                .filter(|directory| directory.to_str().is_some())
                .map(|directory| directory.join("switchboard")),
        })
    }

    fn from_root(root: PathBuf) -> Self {
        Self {
            config_file: root.join("config.toml"),
            state: root.join("state"),
            runtime: Some(root.join("run")),
            root: Some(root),
        }
    }

    /// Creates and opens the state directory. Rejects one that another user can write to.
    pub fn create(&self) -> Result<PrivateDirectory, HomeError> {
        if let Some(root) = &self.root {
            PrivateDirectory::open_owned(root)?;
        }
        Ok(PrivateDirectory::open_private(&self.state)?)
    }

    /// Returns the path of the configuration file.
    pub fn config_file(&self) -> &Path {
        &self.config_file
    }

    /// Returns the state directory.
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// Returns the path of the job database.
    pub fn database(&self) -> PathBuf {
        self.state.join("switchboard.db")
    }

    /// Returns the path of the HTTP bearer token.
    pub fn http_token(&self) -> PathBuf {
        self.state.join("http-token")
    }

    /// Returns the directory that contains one directory per job.
    pub fn jobs_directory(&self) -> PathBuf {
        self.state.join("jobs")
    }

    /// Returns the directory for a new job. Its name is a `UUIDv7`, so that listings are chronological.
    pub fn new_job_directory(&self) -> PathBuf {
        self.jobs_directory().join(uuid::Uuid::now_v7().to_string())
    }

    /// Returns the path of the cached agent lookups.
    pub fn agents_cache(&self) -> PathBuf {
        self.state.join("agents.json")
    }

    /// Returns the path of the daemon's log. Rotated logs are beside it.
    pub fn log_file(&self) -> PathBuf {
        self.state.join("logs").join("daemon.log")
    }

    /// Returns the possible directories of the socket, best first. The runtime directory is preferred: the state directory may be on
    /// a file system without sockets.
    ///
    /// The kernel lists a socket whose path exceeds `sun_path` under another name, so a sandbox cannot mask it. Such a socket is
    /// created in the state directory, which is hidden from sandboxed agents.
    pub fn socket_directories(&self) -> Vec<PathBuf> {
        let runtime = self.runtime.iter().filter(|directory| socket::fits(directory)).cloned();
        runtime.chain([self.state.join("run")]).collect()
    }
}

/// The paths of the installation cannot be determined, or its directory is unusable.
#[derive(Debug, thiserror::Error)]
pub enum HomeError {
    /// No variable names a directory.
    #[error("cannot determine a state directory")]
    NotFound,
    /// `SWITCHBOARD_HOME` is a relative path.
    #[error("SWITCHBOARD_HOME (`{}`) is not an absolute path", .0.display())]
    Relative(PathBuf),
    /// A path is not valid UTF-8.
    #[error("the path of Switchboard's files, `{}`, is not valid UTF-8", .0.display())]
    NotUtf8(PathBuf),
    /// The directory is unusable.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
}

impl HomeError {
    /// Returns the remedy, as an imperative.
    pub fn hint(&self) -> String {
        match self {
            Self::NotFound => "set HOME, or set SWITCHBOARD_HOME to a directory of your own".to_owned(),
            Self::Relative(_) => "use an absolute path, for example /home/ana/switchboard".to_owned(),
            Self::NotUtf8(_) => "set SWITCHBOARD_HOME to a path that is valid UTF-8".to_owned(),
            Self::Directory(error) => error.hint(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switchboard_home_contains_all_paths() {
        let home = SwitchboardHome::from_environment(
            &[("SWITCHBOARD_HOME", "/sb"), ("XDG_STATE_HOME", "/x"), ("HOME", "/h")].into(),
        )
        .unwrap();
        assert_eq!(home.config_file(), Path::new("/sb/config.toml"));
        assert_eq!(home.state(), Path::new("/sb/state"));
        assert_eq!(home.socket_directories(), [Path::new("/sb/run"), Path::new("/sb/state/run")]);
    }

    #[test]
    fn xdg_variables_and_defaults_are_used_without_it() {
        let home = SwitchboardHome::from_environment(
            &[("XDG_STATE_HOME", "/s"), ("XDG_CONFIG_HOME", "/c"), ("XDG_RUNTIME_DIR", "/run/user/7")].into(),
        )
        .unwrap();
        assert_eq!(home.config_file(), Path::new("/c/switchboard/config.toml"));
        assert_eq!(home.state(), Path::new("/s/switchboard"));
        assert_eq!(home.socket_directories()[0], Path::new("/run/user/7/switchboard"));
        let home = SwitchboardHome::from_environment(
            &[("HOME", "/home/ana"), ("XDG_STATE_HOME", "relative")].into(),
        )
        .unwrap();
        assert_eq!(home.config_file(), Path::new("/home/ana/.config/switchboard/config.toml"));
        assert_eq!(home.state(), Path::new("/home/ana/.local/state/switchboard"));
        assert_eq!(home.socket_directories(), [Path::new("/home/ana/.local/state/switchboard/run")]);
    }

    #[test]
    fn socket_with_long_path_is_in_state_directory() {
        let home = |length: usize| {
            let root = format!("/{}", "x".repeat(length - 1));
            SwitchboardHome::from_environment(&[("SWITCHBOARD_HOME", root.as_str())].into())
                .unwrap()
                .socket_directories()
        };
        assert!(home(64)[0].ends_with("run") && !home(64)[0].ends_with("state/run"));
        assert!(home(65)[0].ends_with("state/run") && home(65).len() == 1);
    }

    #[test]
    fn relative_home_is_rejected() {
        assert!(matches!(
            SwitchboardHome::from_environment(&[("SWITCHBOARD_HOME", "sb")].into()),
            Err(HomeError::Relative(_))
        ));
        assert!(matches!(
            SwitchboardHome::from_environment(&[("XDG_STATE_HOME", "/s")].into()),
            Err(HomeError::NotFound)
        ));
    }
}
