//! The faults: the agent's actions, the actions on the server, and the true outcome.

use clap::ValueEnum;

/// Something that goes wrong while an agent works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum InjectedFault {
    /// No fault: a failure here is a wrong setup
    None,
    /// The agent fails after some words
    Failure,
    /// The agent is over its time
    Timeout,
    /// The host cancels the request
    Cancel,
    /// The host goes away, and the call is to be ended with it
    ClientGone,
    /// The host goes away, and the answer is to be had later
    ClientBack,
    /// The server is killed
    ServerKilled,
    /// The process between the server and the agent is killed
    SupervisorKilled,
    /// Lines that no parser likes
    Garbage,
    /// Very much output
    Flood,
    /// One line that does not end
    Line,
    /// The agent answers, closes its stdout and lives on
    ClosedStdout,
    /// The agent and its child ignore SIGTERM and are over their time
    IgnoredTerm,
    /// The agent answers and leaves a child of another session behind that holds its stdout
    Setsid,
    /// The disk on which the server keeps its things is full
    DiskFull,
}

/// The action while the agent works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deed {
    /// Nothing.
    Wait,
    /// `notifications/cancelled`.
    Cancel,
    /// Both ends of the host are closed.
    HangUp,
    /// SIGKILL to the process that owns the calls.
    KillServer,
    /// SIGKILL to the parent of the agent.
    KillSupervisor,
}

/// The true outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Truth {
    /// The agent's last word, as a success.
    Done,
    /// A failure.
    Failed,
    /// Either, as long as a success has the agent's last word.
    Either,
    /// No reply: the host is gone, or has cancelled.
    Nothing,
}

impl InjectedFault {
    /// For the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "no fault",
            Self::Failure => "the agent fails (exit 1) after some output",
            Self::Timeout => "timeout: the agent hangs, with a child",
            Self::Cancel => "cancel: the host cancels, the agent has a child",
            Self::ClientGone => "client gone, cancel on disconnect: the agent hangs, with a child",
            Self::ClientBack => "client gone, job continues: the agent answers 3 s later",
            Self::ServerKilled => "daemon or server killed: the agent answers 3 s later, its child stays",
            Self::SupervisorKilled => "supervisor killed: the agent hangs, with a child",
            Self::Garbage => "garbage: bad JSON, bad UTF-8, NUL, an unknown event, then the answer",
            Self::Flood => "flood: much output, then the answer",
            Self::Line => "one very long line, then the answer",
            Self::ClosedStdout => "closed stdout: the agent answers, closes it and keeps running",
            Self::IgnoredTerm => "ignored SIGTERM: the agent and its child hang and ignore it",
            Self::Setsid => "setsid grandchild keeps stdout open; the agent answers and exits",
            Self::DiskFull => "disk full: 4 MB for the server, 6 MB of output, then the answer",
        }
    }

    /// Returns the action.
    pub fn deed(self) -> Deed {
        match self {
            Self::Cancel => Deed::Cancel,
            Self::ClientGone | Self::ClientBack => Deed::HangUp,
            Self::ServerKilled => Deed::KillServer,
            Self::SupervisorKilled => Deed::KillSupervisor,
            _ => Deed::Wait,
        }
    }

    /// Returns whether the server must stop the call by its own time limit.
    pub fn is_over_its_time(self) -> bool {
        matches!(self, Self::Timeout | Self::IgnoredTerm)
    }

    /// Returns the true outcome.
    pub fn truth(self) -> Truth {
        match self {
            Self::Failure | Self::Timeout | Self::IgnoredTerm => Truth::Failed,
            Self::Cancel | Self::ClientGone | Self::ClientBack => Truth::Nothing,
            Self::DiskFull => Truth::Either,
            _ => Truth::Done,
        }
    }

    /// Returns whether the agent's last text must be kept; otherwise the first, which is all that was printed or that there was
    /// space for.
    pub fn is_finished(self) -> bool {
        !matches!(
            self,
            Self::Failure
                | Self::Timeout
                | Self::IgnoredTerm
                | Self::Cancel
                | Self::ClientGone
                | Self::DiskFull
        )
    }

    /// The steps of the agent; `up` is the file that is there once all of it is true that the fault needs.
    pub fn script(self, half: &str, done: &str, up: &str, megabytes: u32) -> String {
        let child = format!("say {half}\nspawn same-group for 600s pid={up}\n");
        match self {
            Self::None => format!("say {half}\nanswer {done}\n"),
            Self::Failure => format!("say {half}\nfail other The work could not be done.\n"),
            Self::Timeout | Self::Cancel | Self::ClientGone | Self::SupervisorKilled => {
                format!("{child}hang\n")
            }
            Self::ClientBack => {
                format!("say {half}\nspawn same-group for 2s pid={up}\ndelay 3s\nanswer {done}\n")
            }
            Self::ServerKilled => format!("{child}delay 3s\nanswer {done}\n"),
            Self::Garbage => format!(
                "say {half}\ngarbage json\ngarbage utf8\ngarbage nul\ngarbage event\nraw stray words\nanswer {done}\n"
            ),
            Self::Flood => format!("say {half}\nflood events {megabytes}MB\nanswer {done}\n"),
            Self::Line => format!("say {half}\ngarbage line {}MB\nanswer {done}\n", megabytes / 2),
            Self::ClosedStdout => format!("{child}answer {done}\nclose stdout\nclose stderr\nhang\n"),
            Self::IgnoredTerm => {
                format!("ignore TERM\nsay {half}\nspawn same-group ignore-term for 600s pid={up}\nhang\n")
            }
            Self::Setsid => {
                format!("say {half}\nspawn setsid keep-stdout for 600s pid={up}\nanswer {done}\n")
            }
            Self::DiskFull => format!("say {half}\nflood events 6MB\nanswer {done}\n"),
        }
    }
}
