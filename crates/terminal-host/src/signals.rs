//! Signals to this process.

use std::process::ExitCode;

use rustix::process::{Resource, Rlimit, Signal, getpid, getrlimit, kill_process, setrlimit};

use crate::child_process::ChildExit;

/// The signals that ask a process to exit.
const TERMINATION: [Signal; 3] = [Signal::TERM, Signal::INT, Signal::HUP];

extern "C" fn ignore(_signal: libc::c_int) {}

/// Catches the signals that end an agent. The supervisor sends them to the whole process group: the agent gets them, too,
/// and may still print something. A handler, because an ignored signal would be ignored by the agent as well.
pub(crate) fn catch_termination() {
    let handler = ignore as extern "C" fn(libc::c_int);
    for signal in TERMINATION {
        set_action(signal, handler as libc::sighandler_t);
    }
}

/// Exits with the code of the agent, or by its signal.
#[expect(clippy::exit, reason = "other threads wait for input that may never come")]
pub(crate) fn exit_like(exit: ChildExit) -> ExitCode {
    let code = match exit {
        ChildExit::Code(code) => code,
        ChildExit::Signal(number) => {
            if let Some(signal) = Signal::from_named_raw(number) {
                // The core of the agent is the one that matters.
                let limit = Rlimit { current: Some(0), ..getrlimit(Resource::Core) };
                let _ = setrlimit(Resource::Core, limit);
                if signal != Signal::KILL && signal != Signal::STOP {
                    set_action(signal, libc::SIG_DFL);
                }
                let _ = kill_process(getpid(), signal);
            }
            128 + number
        }
    };
    std::process::exit(code)
}

#[expect(unsafe_code, reason = "no safe crate of this workspace sets a disposition")]
fn set_action(signal: Signal, action: libc::sighandler_t) {
    // SAFETY: the action is SIG_DFL or a function without any effect, which is safe at any point of the program.
    unsafe { libc::signal(signal.as_raw(), action) };
}
