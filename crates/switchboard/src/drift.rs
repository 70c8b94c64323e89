//! Compares the program and the configuration of the running daemon with the current ones.
//!
//! The daemon reads its configuration once. Later changes of a file or a variable, and an upgrade of the program, have no effect until it
//! restarts. This note is the only indication of that.

use std::collections::BTreeMap;
use std::fmt;

use protocol::{ClientRole, DaemonConnection, DaemonRequest, ProcessEnvironment, SwitchboardHome, connect};
use serde::Serialize;

use crate::client::JobReply;
use crate::config::EffectiveSettings;
use crate::output;

/// Returns the hint to restart the daemon.
fn restart_hint(change: &str) -> String {
    format!(
        "`switchboard stop --now` stops the daemon and the next call starts one with the {change}; running jobs continue"
    )
}

/// A setting whose value differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChangedSetting {
    /// The key.
    pub key: String,
    /// The value of the daemon, as TOML; `None` if it is not set.
    pub daemon: Option<String>,
    /// The value in the current configuration.
    pub configured: Option<String>,
}

/// The differences between the daemon's configuration and the current one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConfigDrift {
    /// The process id of the daemon.
    pub pid: i32,
    /// The settings that differ.
    pub changed: Vec<ChangedSetting>,
    /// The reason why the current configuration is unreadable; the daemon keeps its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<String>,
    /// Is true if the daemon's program was replaced, for example by an upgrade. Settings are not compared then.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub program_replaced: bool,
}

impl ConfigDrift {
    /// Queries the daemon; `None` if none is running, it is too old to reply, or there is no difference.
    pub fn find(home: &SwitchboardHome, environment: &ProcessEnvironment) -> Option<Self> {
        Self::query(&mut connect(home, ClientRole::Control, None).ok()?, home, environment)
    }

    /// Queries a connected daemon.
    pub fn query(
        connection: &mut DaemonConnection,
        home: &SwitchboardHome,
        environment: &ProcessEnvironment,
    ) -> Option<Self> {
        let pid = connection.process.as_raw_pid();
        if is_program_replaced(pid) {
            return Some(Self { pid, changed: Vec::new(), unreadable: None, program_replaced: true });
        }
        let Ok(JobReply::Settings { settings: daemon }) =
            protocol::exchange(connection, &DaemonRequest::Settings, |_| {})
        else {
            return None;
        };
        let (changed, unreadable) = match EffectiveSettings::read(Some(home), environment, &[]) {
            Ok(settings) => (find_changes(&daemon, &settings.to_toml_values()), None),
            Err(error) => (Vec::new(), Some(model::error_chain(&error))),
        };
        let drift = Self { pid, changed, unreadable, program_replaced: false };
        (!drift.changed.is_empty() || drift.unreadable.is_some()).then_some(drift)
    }

    /// Prints the differences and the hint to stderr.
    pub fn print(&self) {
        output::aside(&format!("note: {self}"));
        if self.unreadable.is_none() {
            let change = if self.program_replaced { "new program" } else { "new configuration" };
            output::aside(&format!("  hint: {}", restart_hint(change)));
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

/// Returns whether the executable of a process was deleted or replaced, which `/proc/PID/exe` shows.
fn is_program_replaced(pid: i32) -> bool {
    std::fs::read_link(format!("/proc/{pid}/exe"))
        .is_ok_and(|program| program.as_os_str().as_encoded_bytes().ends_with(b" (deleted)"))
}

/// Returns the keys whose values differ. The daemon omits the values that options of `serve` set.
fn find_changes(
    daemon: &BTreeMap<String, Option<String>>,
    now: &BTreeMap<String, Option<String>>,
) -> Vec<ChangedSetting> {
    let is_set_by_option = |key: &str| daemon.get(key) == Some(&None);
    let keys: std::collections::BTreeSet<&String> = daemon.keys().chain(now.keys()).collect();
    let value = |settings: &BTreeMap<String, Option<String>>, key: &str| settings.get(key).cloned().flatten();
    keys.into_iter()
        .filter(|key| !is_set_by_option(key) && value(daemon, key) != value(now, key))
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
            changed: find_changes(&daemon, &now),
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
