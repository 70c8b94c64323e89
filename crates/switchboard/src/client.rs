//! The command line's access to the daemon.
//!
//! Adds the configuration to the client of `protocol`: the variables that calls carry, and the type of an answer.

use std::collections::BTreeMap;

use calls::Answer;
use protocol::{DaemonConnector, DaemonReply, HomeError, ProcessEnvironment, SwitchboardHome};

use crate::config::Config;

/// A reply of the daemon about jobs.
pub type JobReply = DaemonReply<Answer>;

/// Creates a connector for the daemon of this environment.
pub fn connector() -> Result<DaemonConnector, HomeError> {
    let environment = ProcessEnvironment::current();
    let home = SwitchboardHome::from_environment(&environment)?;
    let call_environment = call_environment(&home, &environment);
    Ok(DaemonConnector::new(home, environment, call_environment))
}

/// Returns the variables that calls carry. An unreadable configuration is reported by the commands that need it.
fn call_environment(home: &SwitchboardHome, environment: &ProcessEnvironment) -> BTreeMap<String, String> {
    let pass_env = Config::read(Some(home), environment, &[]).map(|config| config.pass_env);
    calls::agent_variables(&environment.utf8_variables(), &pass_env.unwrap_or_default())
}
