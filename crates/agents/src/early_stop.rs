//! Decides whether a run can be stopped although its process is alive.
//!
//! Shared by the daemon, the library and `call --direct`. Pure; the caller watches the clock and stops the run.

use std::time::Duration;

use crate::driver::Summary;

/// The silence of an agent before its process is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// During the handshake. Some start servers before they reply.
    pub handshake: Duration,
    /// After the answer.
    pub answered: Duration,
    /// After the answer, once its input is closed: nothing but its exit is left. Some take two seconds.
    pub closed: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            handshake: Duration::from_mins(2),
            answered: Duration::from_secs(15),
            closed: Duration::from_secs(5),
        }
    }
}

/// The number of rejected attempts of one request that stop a run. The first may be caused by an expired token, which the agent
/// refreshes.
const LOGIN_REFUSALS: u32 = 2;

/// The reason for stopping a run before its process exits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EarlyStop {
    /// The agent has answered and has no running work, but its process does not exit.
    Answered,
    /// The model's API rejects the login, and the agent would retry for minutes.
    LoginRefused,
    /// The agent does not answer a request of the handshake.
    Unresponsive {
        /// Its silence.
        silence: Duration,
    },
}

/// Returns the reason for stopping a run, and the idle time to wait first. Returns `None` while the agent has work.
///
/// A running background task and a further turn count as work, however long the agent is silent: only the limits of the call stop
/// it.
pub fn early_stop(summary: &Summary, patience: Patience, is_closed: bool) -> Option<(EarlyStop, Duration)> {
    if is_login_refused(summary) {
        return Some((EarlyStop::LoginRefused, Duration::ZERO));
    }
    if summary.unanswered.is_some() {
        let silence = patience.handshake;
        return Some((EarlyStop::Unresponsive { silence }, silence));
    }
    let silence = if is_closed { patience.closed.min(patience.answered) } else { patience.answered };
    summary.has_answered().then_some((EarlyStop::Answered, silence))
}

/// Returns whether the agent has no answer because its login was rejected.
pub(crate) fn is_login_refused(summary: &Summary) -> bool {
    summary.login_refusals >= LOGIN_REFUSALS && (summary.reported.is_none() || summary.is_in_further_turn())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Driver, DriverSpec, ParseLimits};
    use model::AgentKind;

    const DONE: &str = r#"{"type":"result","subtype":"success","is_error":false,"result":"fine"}"#;
    const INIT: &str = r#"{"type":"system","subtype":"init","session_id":"s"}"#;
    const STARTED: &str = r#"{"type":"system","subtype":"task_started","task_id":"t","description":"build","is_backgrounded":true}"#;
    const LISTED: &str = r#"{"type":"system","subtype":"background_tasks_changed","tasks":[{"task_id":"t","description":"build"}]}"#;
    const ENDED: &str =
        r#"{"type":"system","subtype":"task_notification","task_id":"t","status":"completed"}"#;
    const REFUSED: &str = r#"{"type":"system","subtype":"api_retry","attempt":1,"error_status":401,"error":"authentication_failed"}"#;
    const REFUSED_AGAIN: &str = r#"{"type":"system","subtype":"api_retry","attempt":2,"error_status":401,"error":"authentication_failed"}"#;
    const OVERLOADED: &str =
        r#"{"type":"system","subtype":"api_retry","error_status":529,"error":"overloaded"}"#;

    #[test]
    fn busy_run_is_not_stopped_early() {
        let answered = Some((EarlyStop::Answered, Patience::default().answered));
        let refused = Some((EarlyStop::LoginRefused, Duration::ZERO));
        let table: [(&[&str], _); 14] = [
            (&[], None),
            (&[INIT], None),
            (&[INIT, DONE], answered),
            (&[INIT, STARTED, DONE], None),
            (&[INIT, LISTED, DONE], None),
            (&[INIT, LISTED, DONE, ENDED], answered),
            (&[INIT, STARTED, DONE, ENDED], answered),
            (&[INIT, STARTED, DONE, ENDED, INIT], None),
            (&[INIT, STARTED, DONE, ENDED, INIT, DONE], answered),
            (&[INIT, REFUSED], None),
            (&[INIT, REFUSED, REFUSED], None),
            (&[INIT, REFUSED, REFUSED_AGAIN], refused),
            (&[INIT, REFUSED, OVERLOADED, REFUSED], None),
            (&[INIT, REFUSED, REFUSED_AGAIN, DONE], answered),
        ];
        for (lines, expected) in table {
            assert_eq!(decide(AgentKind::Claude, lines), expected, "{lines:?}");
        }
    }

    fn decide(agent: AgentKind, lines: &[&str]) -> Option<(EarlyStop, Duration)> {
        let mut driver = Driver::new(&DriverSpec::one_shot(agent).unwrap(), ParseLimits::default());
        driver.feed(format!("{}\n", lines.join("\n")).as_bytes(), &mut |_| {});
        early_stop(driver.summary(), Patience::default(), false)
    }

    #[test]
    fn codex_is_stopped_after_two_login_refusals() {
        const TURN: &str = r#"{"type":"turn.started"}"#;
        const FIRST: &str =
            r#"{"type":"error","message":"Reconnecting... 1/5 (unexpected status 401 Unauthorized: no)"}"#;
        const SECOND: &str =
            r#"{"type":"error","message":"Reconnecting... 2/5 (unexpected status 401 Unauthorized: no)"}"#;
        const TIMEOUT: &str = r#"{"type":"error","message":"Reconnecting... 2/5 (timeout)"}"#;
        const SAID: &str = r#"{"type":"item.completed","item":{"type":"agent_message","text":"x"}}"#;
        let refused = Some((EarlyStop::LoginRefused, Duration::ZERO));
        let table: [(&[&str], _); 4] = [
            (&[TURN, FIRST], None),
            (&[TURN, FIRST, SECOND], refused),
            (&[TURN, FIRST, TIMEOUT], None),
            (&[TURN, FIRST, SECOND, SAID], None),
        ];
        for (lines, expected) in table {
            assert_eq!(decide(AgentKind::Codex, lines), expected, "{lines:?}");
        }
    }
}
