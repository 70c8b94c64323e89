//! The environment variables of this process.

use std::collections::BTreeMap;
use std::env;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// A snapshot of the environment variables.
#[derive(Debug, Clone, Default)]
pub struct ProcessEnvironment(BTreeMap<OsString, OsString>);

impl ProcessEnvironment {
    /// Reads the environment of this process.
    pub fn current() -> Self {
        Self(env::vars_os().collect())
    }

    /// Returns a variable unless it is unset or empty.
    pub fn get(&self, name: &str) -> Option<&OsStr> {
        self.0.get(OsStr::new(name)).map(OsString::as_os_str).filter(|value| !value.is_empty())
    }

    /// Returns a variable that contains an absolute path. Relative paths are ignored, as the XDG specification requires.
    pub fn directory(&self, name: &str) -> Option<PathBuf> {
        self.get(name).map(PathBuf::from).filter(|path| path.is_absolute())
    }

    /// Returns the names of all variables whose names are valid UTF-8.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().filter_map(|name| name.to_str())
    }

    /// Returns every variable that is valid UTF-8. `PATH` is converted lossily, so only its invalid directories are lost.
    pub fn utf8_variables(&self) -> BTreeMap<String, String> {
        let text = |(name, value): (&OsString, &OsString)| {
            let name = name.to_str()?;
            let value = if name == "PATH" {
                value.to_string_lossy().into_owned()
            } else {
                value.to_str()?.to_owned()
            };
            Some((name.to_owned(), value))
        };
        self.0.iter().filter_map(text).collect()
    }
}

impl<const N: usize> From<[(&str, &str); N]> for ProcessEnvironment {
    fn from(variables: [(&str, &str); N]) -> Self {
        Self(variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}
