//! Parses the output of a run again after it was written.

use std::io::{self, Read};
use std::path::Path;

use agents::{ParseLimits, Parser};
use model::{AgentEvent, AgentKind, SessionId};

const READ_BYTES: usize = 64 * 1024;
/// An agent reports its session within this many bytes.
const SESSION_BYTES: u64 = 256 * 1024;

/// Parses a whole output file. A missing file has no events.
pub fn replay_output(
    output: &Path,
    agent: AgentKind,
    observe: &mut impl FnMut(AgentEvent<'_>),
) -> io::Result<()> {
    let mut file = match regular_file::open_regular(output) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        file => file?,
    };
    let mut parser = Parser::new(agent, ParseLimits::default());
    let mut chunk = vec![0; READ_BYTES];
    loop {
        match file.read(&mut chunk)? {
            0 => break,
            count => parser.feed(&chunk[..count], observe),
        }
    }
    parser.finish(observe);
    Ok(())
}

/// Returns the session that the agent itself reported in an output file.
pub fn reported_session(output: &Path, agent: AgentKind) -> Option<SessionId> {
    let mut head = Vec::new();
    regular_file::open_regular(output).ok()?.take(SESSION_BYTES).read_to_end(&mut head).ok()?;
    let mut session = None;
    Parser::new(agent, ParseLimits::default()).feed(&head, &mut |event| {
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

    #[test]
    fn session_is_read_from_the_head_of_the_output() {
        let directory = tempfile::tempdir().unwrap();
        let output = directory.path().join("output");
        std::fs::write(&output, format!("{INIT}\n{{\"type\":\"unfinis")).unwrap();
        let session = reported_session(&output, AgentKind::Claude);
        assert_eq!(session.map(String::from).as_deref(), Some("s-1"));
    }

    #[test]
    fn missing_output_has_no_events() {
        let directory = tempfile::tempdir().unwrap();
        let mut events = 0;
        replay_output(&directory.path().join("output"), AgentKind::Claude, &mut |_| events += 1).unwrap();
        assert_eq!(events, 0);
    }
}
