//! The reasons for which a job waits before its next run.
//!
//! Owns their text.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use model::{AgentKind, JobId, SessionId, Timestamp};

use crate::slots::{FullPool, Slots};

const DAY: Duration = Duration::from_hours(24);

/// A resource or a time that a job waits for. The wait does not count as run time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WaitReason {
    /// Another job uses the same session.
    Session {
        /// The session.
        session: SessionId,
        /// The job that uses it.
        holder: Option<JobId>,
    },
    /// Another job may change the same directory, and the operator allows one at a time.
    Directory {
        /// The directory.
        directory: PathBuf,
        /// The job that works there.
        holder: Option<JobId>,
    },
    /// All slots are in use.
    Slot {
        /// The number of jobs that hold one.
        used: usize,
        /// The number of slots.
        limit: usize,
        /// The agent that has this limit; none if the limit is for all agents.
        agent: Option<AgentKind>,
    },
    /// The account's quota is used up.
    Quota {
        /// The time of its reset.
        until: Timestamp,
        /// The remaining time.
        left: Duration,
    },
    /// The last run used up its turns, and the next one resumes its session.
    Backoff {
        /// The delay.
        delay: Duration,
    },
    /// The other calls of the group, whose results the job reviews, have not ended.
    Contenders {
        /// The number of those calls.
        unfinished: usize,
    },
    /// A command prepares the private checkout.
    Setup {
        /// The command.
        command: String,
    },
    /// A command verifies the work of the agent.
    Verification {
        /// The command.
        command: String,
    },
}

impl WaitReason {
    /// Returns the full pool that a job of this agent waits for; none if a slot is free.
    pub(crate) fn for_slot(slots: &Slots, agent: AgentKind) -> Option<Self> {
        let FullPool { used, capacity, is_per_agent } = slots.full_pool(agent)?;
        Some(Self::Slot { used, limit: capacity, agent: is_per_agent.then_some(agent) })
    }
}

impl fmt::Display for WaitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by =
            |holder: &Option<JobId>| holder.map(|job| format!(", used by job {job}")).unwrap_or_default();
        match self {
            Self::Session { session, holder } => write!(f, "waiting for session {session}{}", by(holder)),
            Self::Directory { directory, holder } => {
                write!(f, "waiting for `{}`{}", directory.display(), by(holder))
            }
            Self::Slot { used, limit, agent } => {
                let whose = agent.map(|agent| format!("{agent} ")).unwrap_or_default();
                write!(f, "queued: {used} of {limit} {whose}slots in use")
            }
            Self::Quota { until, left } => {
                let minutes = until.as_millis() / 60_000;
                let (hour, minute) = (minutes / 60 % 24, minutes % 60);
                let days = left.as_secs() / DAY.as_secs();
                let later = if days > 0 { format!(" in {days} days") } else { String::new() };
                write!(f, "paused until {hour:02}:{minute:02} UTC{later} (quota)")
            }
            Self::Backoff { delay } => {
                write!(f, "resuming in {} s: the last run used up its turns", delay.as_secs())
            }
            Self::Contenders { unfinished: 1 } => write!(f, "waiting for 1 call of the group"),
            Self::Contenders { unfinished } => write!(f, "waiting for {unfinished} calls of the group"),
            Self::Setup { command } => write!(f, "preparing the checkout: `{}`", one_line(command)),
            Self::Verification { command } => write!(f, "verifying: `{}`", one_line(command)),
        }
    }
}

/// Joins the words of a text on one line.
pub(crate) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_reason_names_the_resource() {
        let session: SessionId = "5f6d0c3e-6b5e-4a7e-9a39-0d5d7f6f8a11".parse().unwrap();
        let holder = Some(JobId::first_of(Timestamp::from_millis(1_700_000_000_000)));
        let until = Timestamp::from_millis(1_700_000_000_000);
        let hour = Duration::from_hours(1);
        for (reason, expected) in [
            (
                WaitReason::Session { session: session.clone(), holder },
                "waiting for session 5f6d0c3e-6b5e-4a7e-9a39-0d5d7f6f8a11, used by job 018bcfe5-6800-7000-8000-000000000000",
            ),
            (WaitReason::Directory { directory: "/shop".into(), holder: None }, "waiting for `/shop`"),
            (WaitReason::Slot { used: 4, limit: 4, agent: None }, "queued: 4 of 4 slots in use"),
            (
                WaitReason::Slot { used: 1, limit: 1, agent: Some(AgentKind::Claude) },
                "queued: 1 of 1 claude slots in use",
            ),
            (WaitReason::Quota { until, left: hour }, "paused until 22:13 UTC (quota)"),
            (WaitReason::Quota { until, left: hour * 50 }, "paused until 22:13 UTC in 2 days (quota)"),
            (
                WaitReason::Backoff { delay: Duration::from_secs(4) },
                "resuming in 4 s: the last run used up its turns",
            ),
            (WaitReason::Contenders { unfinished: 2 }, "waiting for 2 calls of the group"),
            (WaitReason::Setup { command: "npm ci".into() }, "preparing the checkout: `npm ci`"),
            (WaitReason::Verification { command: "just\ntest".into() }, "verifying: `just test`"),
        ] {
            assert_eq!(reason.to_string(), expected);
        }
    }
}
