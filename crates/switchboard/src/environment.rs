//! The environment that the user started this program with. The one place that reads it.

use std::collections::BTreeMap;
use std::env;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// Every variable, as it was when it was looked at.
#[derive(Debug, Clone, Default)]
pub struct Environment(BTreeMap<OsString, OsString>);

impl Environment {
    /// The one of this process.
    pub fn of_this_process() -> Self {
        Self(env::vars_os().collect())
    }

    /// A variable that is set to something.
    pub fn get(&self, name: &str) -> Option<&OsStr> {
        self.0.get(OsStr::new(name)).map(OsString::as_os_str).filter(|value| !value.is_empty())
    }

    /// A variable that names a folder from the root on. The XDG specification wants relative ones ignored.
    pub fn folder(&self, name: &str) -> Option<PathBuf> {
        self.get(name).map(PathBuf::from).filter(|path| path.is_absolute())
    }

    /// The names of all variables that are text.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().filter_map(|name| name.to_str())
    }

    /// Every variable that is text. What is not cannot be handed on; of `PATH` only the folders that are not are lost.
    pub fn texts(&self) -> BTreeMap<String, String> {
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

impl<const N: usize> From<[(&str, &str); N]> for Environment {
    fn from(variables: [(&str, &str); N]) -> Self {
        Self(variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}
