//! Compares the program and the configuration that the running daemon started with and those that are there now.
//!
//! The daemon reads its configuration once. A file or a variable that was changed since has no effect on it, and neither has a new program;
//! nothing else would say so.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::connect::{Connection, connect};
use super::control::say;
use crate::config::Settings;
use crate::environment::Environment;
use crate::home::Home;
use crate::output;
use crate::wire::{Reply, Request, Role};

/// What a restart of the daemon brings.
fn restart(brings: &str) -> String {
    format!(
        "`switchboard stop --now` ends the daemon and the next call starts one with the {brings}; running jobs go on"
    )
}

/// A setting that the daemon has otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChangedSetting {
    /// Its name.
    pub key: String,
    /// What the daemon has, as TOML; none when it has none.
    pub daemon: Option<String>,
    /// What the configuration says now.
    pub configured: Option<String>,
}

/// How the daemon's configuration differs from the one that holds now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConfigDrift {
    /// The daemon's process.
    pub pid: i32,
    /// The settings that differ.
    pub changed: Vec<ChangedSetting>,
    /// Why the configuration cannot be read now; the daemon keeps the one that it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<String>,
    /// Whether the daemon's program was replaced, by an upgrade for instance. Settings may differ for that reason, and are not compared.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub program_replaced: bool,
}

impl ConfigDrift {
    /// Asks the daemon, if one runs; none when both agree, and when it is too old to say.
    pub fn find(home: &Home, environment: &Environment) -> Option<Self> {
        Self::ask(&mut connect(home, Role::Control, None).ok()?, home, environment)
    }

    /// Asks a daemon that is connected.
    pub fn ask(connection: &mut Connection, home: &Home, environment: &Environment) -> Option<Self> {
        let pid = connection.process.as_raw_pid();
        if is_program_replaced(pid) {
            return Some(Self { pid, changed: Vec::new(), unreadable: None, program_replaced: true });
        }
        let Ok(Reply::Settings { settings: daemon }) = say(connection, &Request::Settings, |_| {}) else {
            return None;
        };
        let (changed, unreadable) = match Settings::read(Some(home), environment, &[]) {
            Ok(settings) => (changed(&daemon, &settings.texts()), None),
            Err(error) => (Vec::new(), Some(model::error_chain(&error))),
        };
        let drift = Self { pid, changed, unreadable, program_replaced: false };
        (!drift.changed.is_empty() || drift.unreadable.is_some()).then_some(drift)
    }

    /// Prints it beside the answer of a command.
    pub fn print(&self) {
        output::aside(&format!("note: {self}"));
        if self.unreadable.is_none() {
            let brings = if self.program_replaced { "new program" } else { "new configuration" };
            output::aside(&format!("  hint: {}", restart(brings)));
        }
    }
}

impl fmt::Display for ConfigDrift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pid = self.pid;
        if self.program_replaced {
            return write!(
                f,
                "the program was replaced since the daemon (pid {pid}) started, which still runs the old one"
            );
        }
        if let Some(why) = &self.unreadable {
            return write!(f, "the daemon (pid {pid}) keeps the configuration it started with: {why}");
        }
        let not_set = || "not set".to_owned();
        let one = |setting: &ChangedSetting| {
            let [old, new] = [&setting.daemon, &setting.configured];
            let [old, new] = [old, new].map(|value| value.clone().unwrap_or_else(not_set));
            format!("`{}` was {old} and is now {new}", setting.key)
        };
        let changed: Vec<String> = self.changed.iter().map(one).collect();
        write!(
            f,
            "the configuration has changed since the daemon (pid {pid}) started: {}",
            changed.join(", ")
        )
    }
}

/// Returns whether the file that a process was started from is no longer there, or is another one: the kernel says so in the link.
fn is_program_replaced(pid: i32) -> bool {
    std::fs::read_link(format!("/proc/{pid}/exe"))
        .is_ok_and(|program| program.as_os_str().as_encoded_bytes().ends_with(b" (deleted)"))
}

/// Returns the keys whose values differ. What an option of `serve` has set is not told by the daemon.
fn changed(
    daemon: &BTreeMap<String, Option<String>>,
    now: &BTreeMap<String, Option<String>>,
) -> Vec<ChangedSetting> {
    let by_option = |key: &str| daemon.get(key) == Some(&None);
    let keys: std::collections::BTreeSet<&String> = daemon.keys().chain(now.keys()).collect();
    let value = |settings: &BTreeMap<String, Option<String>>, key: &str| settings.get(key).cloned().flatten();
    keys.into_iter()
        .filter(|key| !by_option(key) && value(daemon, key) != value(now, key))
        .map(|key| ChangedSetting {
            key: key.clone(),
            daemon: value(daemon, key),
            configured: value(now, key),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differing_keys_are_named_with_both_values() {
        let settings = |pairs: &[(&str, Option<&str>)]| {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), value.map(str::to_owned))).collect()
        };
        let daemon: BTreeMap<_, _> =
            settings(&[("a", Some("1")), ("b", Some("2")), ("gone", Some("3")), ("http.address", None)]);
        let now =
            settings(&[("a", Some("1")), ("b", Some("9")), ("new", Some("4")), ("http.address", Some("x"))]);
        let drift = ConfigDrift {
            pid: 7,
            changed: changed(&daemon, &now),
            unreadable: None,
            program_replaced: false,
        };
        assert_eq!(
            drift.to_string(),
            "the configuration has changed since the daemon (pid 7) started: `b` was 2 and is now 9, \
             `gone` was 3 and is now not set, `new` was not set and is now 4"
        );
    }
}
