//! Parses the output of a run again after it was written.

use std::io::{self, ErrorKind, Read};

use agents::{Driver, DriverSpec, ParseLimits};
use model::{AgentEvent, AgentKind, SessionId};
use regular_file::{open_regular, read_regular};
use supervisor::{RunInput, Spool};

const READ_BYTES: usize = 64 * 1024;
/// An agent reports its session within this many bytes. Some list all models and commands before.
const SESSION_BYTES: u64 = 1 << 20;

const MISSING: &str = "`driver.json` is missing, so the output of the run cannot be read";

/// Returns the driver of a run: the one that its starter noted, or that of a single prompt.
pub(crate) fn read_driver(spool: &Spool, agent: AgentKind) -> io::Result<Driver> {
    let spec = match read_regular(&spool.driver()) {
        Err(error) if error.kind() == ErrorKind::NotFound => match DriverSpec::one_shot(agent) {
            Some(spec) => spec,
            // The run was not started, and its files were removed. No other output would be an answer for this driver.
            None if has_no_output(spool) => DriverSpec::Claude,
            None => return Err(io::Error::new(ErrorKind::InvalidData, MISSING)),
        },
        spec => serde_json::from_slice(&spec?)?,
    };
    Ok(Driver::new(&spec, ParseLimits::default()))
}

fn has_no_output(spool: &Spool) -> bool {
    std::fs::metadata(spool.output()).is_ok_and(|output| output.len() == 0)
}

/// Replays the messages that earlier owners of a run sent to its agent.
pub(crate) fn replay_input(input: &RunInput, driver: &mut Driver) -> io::Result<()> {
    let mut chunk = vec![0; READ_BYTES];
    let mut offset = 0;
    loop {
        let count = input.read_at(offset, &mut chunk)?;
        if count == 0 {
            return Ok(());
        }
        driver.replay_input(&chunk[..count]);
        offset += count as u64;
    }
}

/// Parses the whole output of a run. A missing file has no events.
pub fn replay_output(
    spool: &Spool,
    agent: AgentKind,
    observe: &mut impl FnMut(AgentEvent<'_>),
) -> io::Result<()> {
    let mut file = match open_regular(&spool.output()) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        file => file?,
    };
    let mut driver = read_driver(spool, agent)?;
    let mut chunk = vec![0; READ_BYTES];
    loop {
        match file.read(&mut chunk)? {
            0 => break,
            count => driver.feed(&chunk[..count], observe),
        }
    }
    driver.finish(observe);
    Ok(())
}

/// Returns the session that the agent itself reported in a run.
pub fn reported_session(spool: &Spool, agent: AgentKind) -> Option<SessionId> {
    let mut head = Vec::new();
    open_regular(&spool.output()).ok()?.take(SESSION_BYTES).read_to_end(&mut head).ok()?;
    let mut session = None;
    read_driver(spool, agent).ok()?.feed(&head, &mut |event| {
        if let AgentEvent::SessionStarted { session_id, .. } = event {
            session = session_id.decode().parse().ok();
        }
    });
    session
}

#[cfg(test)]
mod tests {
    use super::*;

    const INIT: &str = r#"{"type":"system","subtype":"init","session_id":"s-1"}"#;
    const THREAD: &str = r#"{"type":"thread.started","thread_id":"t-1"}"#;

    #[test]
    fn session_is_read_from_the_head_of_the_output() {
        let directory = tempfile::tempdir().unwrap();
        let spool = Spool::at(directory.path());
        std::fs::write(spool.output(), format!("{INIT}\n{{\"type\":\"unfinis")).unwrap();
        let session = reported_session(&spool, AgentKind::Claude);
        assert_eq!(session.map(String::from).as_deref(), Some("s-1"));
    }

    #[test]
    fn driver_of_the_starter_reads_the_output() {
        let directory = tempfile::tempdir().unwrap();
        let spool = Spool::at(directory.path());
        std::fs::write(spool.output(), format!("{THREAD}\n")).unwrap();
        assert_eq!(reported_session(&spool, AgentKind::Claude), None);
        std::fs::write(spool.driver(), serde_json::to_vec(&DriverSpec::CodexExec).unwrap()).unwrap();
        let session = reported_session(&spool, AgentKind::Claude);
        assert_eq!(session.map(String::from).as_deref(), Some("t-1"));
    }

    #[test]
    fn output_without_driver_is_rejected() {
        let directory = tempfile::tempdir().unwrap();
        let spool = Spool::at(directory.path());
        let agent: AgentKind = "opencode".parse().unwrap();
        std::fs::write(spool.output(), "").unwrap();
        assert!(read_driver(&spool, agent).is_ok());
        std::fs::write(spool.output(), "{}\n").unwrap();
        assert_eq!(read_driver(&spool, agent).unwrap_err().kind(), ErrorKind::InvalidData);
    }

    #[test]
    fn missing_output_has_no_events() {
        let directory = tempfile::tempdir().unwrap();
        let mut events = 0;
        replay_output(&Spool::at(directory.path()), AgentKind::Claude, &mut |_| events += 1).unwrap();
        assert_eq!(events, 0);
    }
}
