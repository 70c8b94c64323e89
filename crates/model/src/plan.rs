//! The plan of a run: everything that a supervisor needs to spawn an agent.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{Limits, Policy, RunId};

/// A process to spawn. Contains everything that a supervisor knows about an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunPlan {
    /// The executable, as an absolute path: the agent's environment starts empty, so there is no `PATH` to search.
    pub program: PathBuf,
    /// The arguments after the program name.
    pub args: Vec<String>,
    /// The complete environment, except for [`RunId::VARIABLE`].
    pub env: BTreeMap<String, String>,
    /// The working directory, as an absolute path.
    pub cwd: PathBuf,
    /// The first bytes on stdin. Stored in a separate file, because a prompt may have 10 MB.
    #[serde(skip)]
    pub input: Vec<u8>,
    /// Whether more bytes follow during the run.
    #[serde(default)]
    pub input_mode: InputMode,
    /// The starter's own notes on how to talk to the program, kept in the spool for every later reader. Empty: no file.
    #[serde(skip)]
    pub driver: Vec<u8>,
    /// Private files of the run (an MCP configuration with secrets, a schema), by plain name. They exist in the spool's `private`
    /// directory, with mode 0600, from before the start until the run has exited.
    #[serde(skip)]
    pub private_files: BTreeMap<String, Vec<u8>>,
    /// The limits.
    pub limits: Limits,
    /// The sandbox policy.
    pub policy: Policy,
    /// The crash that its status file survives.
    #[serde(default, rename = "status_outlives")]
    pub status_durability: StatusDurability,
    /// The lifetime of the run relative to its starter.
    #[serde(default, rename = "lasts")]
    pub lifetime: RunLifetime,
}

/// The input of a program over the time of its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InputMode {
    /// The program reads the bytes of the plan, then the end of its stdin.
    #[default]
    Complete,
    /// The input file grows during the run, and stdin stays open until the input is closed.
    Open,
}

/// The lifetime of a run relative to the process that started it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunLifetime {
    /// The run survives its starter. For a starter that re-attaches to its runs, or whose successor does.
    #[default]
    #[serde(rename = "to_its_end")]
    Detached,
    /// The run is stopped when its starter exits, for whatever reason: no process would read the result.
    #[serde(rename = "as_long_as_its_starter")]
    BoundToStarter,
}

/// The crash that the status file of a run survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StatusDurability {
    /// A power loss: each write is fsynced.
    #[default]
    #[serde(rename = "power")]
    PowerLoss,
    /// The exit of every process, but not a power loss: no fsync. For a starter with a durable record of its own.
    #[serde(rename = "processes")]
    ProcessExit,
}

impl RunPlan {
    /// Returns a plan with an empty environment and default limits.
    pub fn new(program: impl Into<PathBuf>, cwd: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            args: Vec::new(),
            env: BTreeMap::new(),
            cwd: cwd.into(),
            input: Vec::new(),
            input_mode: InputMode::Complete,
            driver: Vec::new(),
            private_files: BTreeMap::new(),
            limits: Limits::default(),
            policy: Policy::default(),
            status_durability: StatusDurability::default(),
            lifetime: RunLifetime::default(),
        }
    }

    /// Rejects a plan that is invalid on every machine, before anything is written or spawned.
    pub fn check(&self) -> Result<(), PlanError> {
        for (what, path) in [("program", &self.program), ("cwd", &self.cwd)] {
            let Some(text) = path.to_str() else {
                return Err(PlanError::NotUnicode { what, path: path.clone() });
            };
            if text.contains('\0') {
                return Err(PlanError::Nul { what: format!("{what} `{}`", text.escape_debug()) });
            }
            if !path.is_absolute() {
                return Err(PlanError::NotAbsolute { what, path: path.clone() });
            }
        }
        if let Some(position) = self.args.iter().position(|arg| arg.contains('\0')) {
            return Err(PlanError::Nul { what: format!("argument {}", position + 1) });
        }
        for (name, value) in &self.env {
            if name.is_empty() || name.contains(['=', '\0']) || name == RunId::VARIABLE {
                return Err(PlanError::BadVariable { name: name.escape_debug().to_string() });
            }
            if value.contains('\0') {
                return Err(PlanError::Nul { what: format!("environment variable `{name}`") });
            }
        }
        match self.private_files.keys().find(|name| !is_plain_name(name)) {
            Some(name) => Err(PlanError::BadFileName { name: name.escape_debug().to_string() }),
            None => Ok(()),
        }
    }
}

fn is_plain_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\0'])
}

/// An invalid plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A relative path.
    #[error("{what} `{}` is not an absolute path", path.display())]
    NotAbsolute {
        /// The part of the plan.
        what: &'static str,
        /// The path.
        path: PathBuf,
    },
    /// A path that cannot be serialized.
    #[error("{what} `{}` is not valid Unicode", path.display())]
    NotUnicode {
        /// The part of the plan.
        what: &'static str,
        /// The path.
        path: PathBuf,
    },
    /// A NUL byte, which terminates a string for the kernel.
    #[error("{what} contains a NUL character")]
    Nul {
        /// The part of the plan.
        what: String,
    },
    /// An invalid name of a variable, or the supervisor's own variable.
    #[error("`{name}` cannot be the name of an environment variable of the agent")]
    BadVariable {
        /// The name, escaped for display.
        name: String,
    },
    /// A name that would leave the private directory.
    #[error("`{name}` cannot be the name of a private file")]
    BadFileName {
        /// The name, escaped for display.
        name: String,
    },
}

impl PlanError {
    /// Returns the remedy.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NotAbsolute { .. } => "pass an absolute path",
            Self::NotUnicode { .. } => "rename it, or use a symbolic link with a UTF-8 name",
            Self::Nul { .. } => "remove the NUL, or pass the text on stdin",
            Self::BadVariable { .. } => "use a name without `=` that is not empty and not SWITCHBOARD_RUN_ID",
            Self::BadFileName { .. } => "use a name without `/` that does not start with a dot",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> RunPlan {
        RunPlan::new("/bin/true", "/")
    }

    #[test]
    fn status_survives_power_loss_by_default() {
        let plan = RunPlan::new("/bin/true", "/");
        assert_eq!(plan.status_durability, StatusDurability::PowerLoss);
        let mut json = serde_json::to_value(&plan).unwrap();
        json.as_object_mut().unwrap().remove("status_outlives");
        assert_eq!(serde_json::from_value::<RunPlan>(json).unwrap(), plan);
    }

    #[test]
    fn run_is_detached_by_default() {
        let mut json = serde_json::to_value(plan()).unwrap();
        json.as_object_mut().unwrap().remove("lasts");
        assert_eq!(serde_json::from_value::<RunPlan>(json).unwrap().lifetime, RunLifetime::Detached);
    }

    #[test]
    fn input_is_complete_by_default() {
        let mut json = serde_json::to_value(plan()).unwrap();
        json.as_object_mut().unwrap().remove("input_mode");
        assert_eq!(serde_json::from_value::<RunPlan>(json).unwrap().input_mode, InputMode::Complete);
    }

    #[test]
    fn plan_round_trips_without_its_input() {
        let plan = RunPlan { args: vec!["-p".into()], input: b"hello".to_vec(), ..plan() };
        assert_eq!(plan.check(), Ok(()));
        let read: RunPlan = serde_json::from_str(&serde_json::to_string(&plan).unwrap()).unwrap();
        assert_eq!(read, RunPlan { input: Vec::new(), ..plan });
    }

    #[test]
    fn relative_paths_are_rejected_by_name() {
        let error = RunPlan::new("claude", "/").check().unwrap_err();
        assert_eq!(error.to_string(), "program `claude` is not an absolute path");
        let error = RunPlan::new("/bin/true", "shop").check().unwrap_err();
        assert_eq!(error.to_string(), "cwd `shop` is not an absolute path");
    }

    #[test]
    fn nul_is_rejected_in_every_field() {
        for bad in [
            RunPlan { program: "/bin/\0".into(), ..plan() },
            RunPlan { cwd: "/\0".into(), ..plan() },
            RunPlan { args: vec!["ok".into(), "a\0b".into()], ..plan() },
            RunPlan { env: BTreeMap::from([("A".into(), "\0".into())]), ..plan() },
        ] {
            assert!(matches!(bad.check(), Err(PlanError::Nul { .. })), "{bad:?}");
        }
    }

    #[test]
    fn malformed_variable_names_are_rejected() {
        for name in ["", "A=B", "A\0", RunId::VARIABLE] {
            let bad = RunPlan { env: BTreeMap::from([(name.into(), "x".into())]), ..plan() };
            assert!(matches!(bad.check(), Err(PlanError::BadVariable { .. })), "{name:?}");
        }
    }

    #[test]
    fn private_file_name_cannot_leave_its_directory() {
        for name in ["", ".", "..", "../status.json", "a/b", "a\0"] {
            let bad = RunPlan { private_files: BTreeMap::from([(name.into(), Vec::new())]), ..plan() };
            assert!(matches!(bad.check(), Err(PlanError::BadFileName { .. })), "{name:?}");
        }
    }

    #[test]
    fn plan_with_unknown_policy_is_rejected() {
        let json =
            serde_json::to_string(&plan()).unwrap().replace(r#""policy":"off""#, r#""policy":"vault""#);
        let error = serde_json::from_str::<RunPlan>(&json).unwrap_err();
        assert!(error.to_string().contains("vault"), "{error}");
    }
}
