//! Where Switchboard keeps what it owns: configuration, state, socket.
//!
//! The state folder is what makes a daemon *the* daemon: its lock is there, and the lock says where the socket is. So front-ends
//! that were started with different variables (an MCP host hands on hardly any) still find the same daemon.

mod folder;
pub mod socket;

use std::path::{Path, PathBuf};

pub use folder::{FolderError, OpenFolder};

use crate::environment::Environment;

/// The variable that puts everything under one folder.
pub const VARIABLE: &str = "SWITCHBOARD_HOME";

/// The folders and files of one installation. Finding them touches nothing; [`Home::make`] does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Home {
    /// The folder of `SWITCHBOARD_HOME`.
    root: Option<PathBuf>,
    config_file: PathBuf,
    state: PathBuf,
    /// Where the socket had best be.
    runtime: Option<PathBuf>,
}

impl Home {
    /// `SWITCHBOARD_HOME`, else the XDG folders, else their defaults under `HOME`.
    pub fn find(environment: &Environment) -> Result<Self, HomeError> {
        let home = Self::named(environment)?;
        // Requests, plans and the lock are JSON, which could not name it.
        let odd = [home.state(), home.config_file()].into_iter().find(|path| path.to_str().is_none());
        odd.map_or(Ok(()), |path| Err(HomeError::NoText(path.to_owned())))?;
        Ok(home)
    }

    fn named(environment: &Environment) -> Result<Self, HomeError> {
        if let Some(given) = environment.get(VARIABLE) {
            let root = PathBuf::from(given);
            return if root.is_absolute() { Ok(Self::under(root)) } else { Err(HomeError::Relative(root)) };
        }
        let xdg = |name: &str, below_home: &str| {
            let folder = environment
                .folder(name)
                .or_else(|| environment.folder("HOME").map(|home| home.join(below_home)));
            folder.map(|folder| folder.join("switchboard")).ok_or(HomeError::None)
        };
        Ok(Self {
            root: None,
            config_file: xdg("XDG_CONFIG_HOME", ".config")?.join("config.toml"),
            state: xdg("XDG_STATE_HOME", ".local/state")?,
            runtime: environment
                .folder("XDG_RUNTIME_DIR")
                .filter(|folder| folder.to_str().is_some())
                .map(|folder| folder.join("switchboard")),
        })
    }

    /// Everything under one folder.
    fn under(root: PathBuf) -> Self {
        Self {
            config_file: root.join("config.toml"),
            state: root.join("state"),
            runtime: Some(root.join("run")),
            root: Some(root),
        }
    }

    /// Makes the state folder when it is missing, and opens it; refuses one that somebody else could have prepared.
    pub fn make(&self) -> Result<OpenFolder, HomeError> {
        if let Some(root) = &self.root {
            OpenFolder::of_the_user(root)?;
        }
        Ok(OpenFolder::private(&self.state)?)
    }

    /// The file that a person writes.
    pub fn config_file(&self) -> &Path {
        &self.config_file
    }

    /// The folder that holds all that lasts.
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// The database of jobs.
    pub fn database(&self) -> PathBuf {
        self.state.join("switchboard.db")
    }

    /// The word that opens the door to HTTP.
    pub fn http_token(&self) -> PathBuf {
        self.state.join("http-token")
    }

    /// The folder with a folder for each job.
    pub fn jobs(&self) -> PathBuf {
        self.state.join("jobs")
    }

    /// The folder for a new job's files, named so that a listing is in the order of time.
    pub fn new_job(&self) -> PathBuf {
        self.jobs().join(uuid::Uuid::now_v7().to_string())
    }

    /// Where answers of the agents about themselves are kept.
    pub fn agents_cache(&self) -> PathBuf {
        self.state.join("agents.json")
    }

    /// The daemon's log, beside its older ones.
    pub fn log_file(&self) -> PathBuf {
        self.state.join("logs").join("daemon.log")
    }

    /// The folders in which the socket may be, the best first. The runtime folder is made for it; the state folder may be on a
    /// file system that knows no sockets.
    ///
    /// A socket whose path is too long for its address is listed by the kernel under another name, so a sandbox could not cover it:
    /// it is in the state folder, of which no confined agent sees anything.
    pub fn socket_folders(&self) -> Vec<PathBuf> {
        let listed = self.runtime.iter().filter(|folder| socket::fits(folder)).cloned();
        listed.chain([self.state.join("run")]).collect()
    }
}

/// Why there is no directory for Switchboard's files.
#[derive(Debug, thiserror::Error)]
pub enum HomeError {
    #[error("cannot determine a state directory")]
    None,
    #[error("SWITCHBOARD_HOME (`{}`) is not an absolute path", .0.display())]
    Relative(PathBuf),
    #[error("the path of Switchboard's files, `{}`, is not valid UTF-8", .0.display())]
    NoText(PathBuf),
    #[error(transparent)]
    Folder(#[from] FolderError),
}

impl HomeError {
    /// Returns the remedy, as an imperative.
    pub fn hint(&self) -> String {
        match self {
            Self::None => "set HOME, or set SWITCHBOARD_HOME to a directory of your own".to_owned(),
            Self::Relative(_) => "use an absolute path, for example /home/ana/switchboard".to_owned(),
            Self::NoText(_) => "set SWITCHBOARD_HOME to a path that is valid UTF-8".to_owned(),
            Self::Folder(error) => error.hint(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_variable_puts_everything_under_one_folder() {
        let home =
            Home::find(&[("SWITCHBOARD_HOME", "/sb"), ("XDG_STATE_HOME", "/x"), ("HOME", "/h")].into())
                .unwrap();
        assert_eq!(home.config_file(), Path::new("/sb/config.toml"));
        assert_eq!(home.state(), Path::new("/sb/state"));
        assert_eq!(home.socket_folders(), [Path::new("/sb/run"), Path::new("/sb/state/run")]);
    }

    #[test]
    fn without_it_the_xdg_folders_count_and_then_their_defaults() {
        let home = Home::find(
            &[("XDG_STATE_HOME", "/s"), ("XDG_CONFIG_HOME", "/c"), ("XDG_RUNTIME_DIR", "/run/user/7")].into(),
        )
        .unwrap();
        assert_eq!(home.config_file(), Path::new("/c/switchboard/config.toml"));
        assert_eq!(home.state(), Path::new("/s/switchboard"));
        assert_eq!(home.socket_folders()[0], Path::new("/run/user/7/switchboard"));
        let home = Home::find(&[("HOME", "/home/ana"), ("XDG_STATE_HOME", "relative")].into()).unwrap();
        assert_eq!(home.config_file(), Path::new("/home/ana/.config/switchboard/config.toml"));
        assert_eq!(home.state(), Path::new("/home/ana/.local/state/switchboard"));
        assert_eq!(home.socket_folders(), [Path::new("/home/ana/.local/state/switchboard/run")]);
    }

    #[test]
    fn a_socket_that_no_sandbox_could_cover_is_where_no_agent_looks() {
        let home = |length: usize| {
            let root = format!("/{}", "x".repeat(length - 1));
            Home::find(&[("SWITCHBOARD_HOME", root.as_str())].into()).unwrap().socket_folders()
        };
        assert!(home(64)[0].ends_with("run") && !home(64)[0].ends_with("state/run"));
        assert!(home(65)[0].ends_with("state/run") && home(65).len() == 1);
    }

    #[test]
    fn a_home_that_depends_on_where_one_stands_is_refused() {
        assert!(matches!(Home::find(&[("SWITCHBOARD_HOME", "sb")].into()), Err(HomeError::Relative(_))));
        assert!(matches!(Home::find(&[("XDG_STATE_HOME", "/s")].into()), Err(HomeError::None)));
    }
}
