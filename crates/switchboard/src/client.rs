//! The command line's access to the daemon.
//!
//! Adds the configuration to the client of `protocol`: the variables that calls carry, and the type of an answer.

use std::collections::BTreeMap;
use std::process::ExitCode;

use calls::Answer;
use protocol::{
    DaemonConnector, DaemonReply, DaemonRequest, HomeError, ProcessEnvironment, RequestError, SwitchboardHome,
};

use crate::config::Config;
use crate::failure::CommandFailure;
use crate::output;

/// A reply of the daemon about jobs.
pub type JobReply = DaemonReply<Answer>;

/// Creates a connector for the daemon of this environment.
pub fn connector() -> Result<DaemonConnector, HomeError> {
    let environment = ProcessEnvironment::current();
    let home = SwitchboardHome::from_environment(&environment)?;
    let call_environment = call_environment(&home, &environment);
    Ok(DaemonConnector::new(home, environment, call_environment))
}

/// Requests the answer of a job.
pub fn fetch_answer(connector: &mut DaemonConnector, job: &str) -> Result<Box<Answer>, RequestError> {
    match protocol::request(connector, &DaemonRequest::Job { job: job.to_owned() })? {
        JobReply::Answer(answer) => Ok(answer),
        _ => Err(RequestError::UnexpectedReply),
    }
}

/// Sends a request for each job. A rejection does not affect the others, and decides the exit code.
pub fn for_each_job(
    ids: &[String],
    mut send: impl FnMut(&mut DaemonConnector, &str) -> Result<(), RequestError>,
) -> Result<ExitCode, CommandFailure> {
    let mut connector = connector()?;
    let mut code = ExitCode::SUCCESS;
    for id in ids {
        match send(&mut connector, id) {
            Err(error @ RequestError::Rejected { .. }) => {
                output::error(&error, error.hint().as_deref());
                code = CommandFailure::from(error).exit_code();
            }
            reply => reply?,
        }
    }
    Ok(code)
}

/// Returns the variables that calls carry. An unreadable configuration is reported by the commands that need it.
fn call_environment(home: &SwitchboardHome, environment: &ProcessEnvironment) -> BTreeMap<String, String> {
    let (profiles, pass_env) = Config::read(Some(home), environment, &[])
        .map(|config| (config.profiles, config.pass_env))
        .unwrap_or_default();
    calls::agent_variables(&profiles, &environment.utf8_variables(), &pass_env)
}
