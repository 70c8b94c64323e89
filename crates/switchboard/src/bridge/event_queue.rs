//! The event queue between the threads of the bridge.
//!
//! Lines of the host are bounded: a host that keeps sending while the daemon is away blocks on its own pipe. Events of the daemon's reader
//! are not bounded, so that it never waits for the writer, which may be waiting for it.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The limits of queued lines. A single line is always accepted.
const MAX_LINES: usize = 64;
const MAX_BYTES: usize = 1 << 20;

/// An event for the thread that writes to the daemon.
#[derive(Debug, PartialEq, Eq)]
pub enum BridgeEvent {
    /// A line of the host.
    Line(Vec<u8>),
    /// The daemon with this number closed its connection.
    DaemonGone(u64),
    /// The host closed its end of stdout.
    StdoutClosed,
    /// The host closed its end of stdin.
    StdinClosed,
    /// A reply was forwarded, or the deadline has passed.
    Progress,
}

#[derive(Debug, Default)]
struct State {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    stdin_closed: bool,
    stdout_closed: bool,
    gone: Option<u64>,
    progress: Progress,
}

/// Records forwarded replies since the last check.
#[derive(Debug, Default, PartialEq, Eq)]
enum Progress {
    #[default]
    None,
    /// The writer waits for it.
    Awaited,
    Made,
}

/// The queue.
#[derive(Debug, Default)]
pub struct EventQueue {
    state: Mutex<State>,
    changed: Condvar,
}

impl EventQueue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Queues a line of the host. Blocks while the queue is full.
    pub fn push_line(&self, line: Vec<u8>) {
        let is_full = |state: &mut State| {
            !state.lines.is_empty()
                && (state.lines.len() >= MAX_LINES || state.bytes + line.len() > MAX_BYTES)
        };
        let mut state = self.changed.wait_while(self.lock(), is_full).unwrap_or_else(PoisonError::into_inner);
        state.bytes += line.len();
        state.lines.push_back(line);
        drop(state);
        self.changed.notify_all();
    }

    /// Reports that the host closed its end of stdin.
    pub fn close_stdin(&self) {
        self.update(|state| state.stdin_closed = true);
    }

    /// Reports that the host closed its end of stdout.
    pub fn close_stdout(&self) {
        self.update(|state| state.stdout_closed = true);
    }

    /// Reports that a daemon closed its connection.
    pub fn push_daemon_gone(&self, number: u64) {
        self.update(|state| state.gone = Some(number));
    }

    /// Reports that a reply was forwarded.
    pub fn push_progress(&self) {
        // Waiting for it is rare, so the writer is not woken for every reply.
        if std::mem::replace(&mut self.lock().progress, Progress::Made) == Progress::Awaited {
            self.changed.notify_all();
        }
    }

    /// Returns the next event; [`BridgeEvent::Progress`] after the deadline.
    pub fn next(&self, deadline: Option<Instant>) -> BridgeEvent {
        let mut state = self.lock();
        loop {
            if let Some(event) = state.pop() {
                drop(state);
                self.changed.notify_all();
                return event;
            }
            let Some(deadline) = deadline else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || std::mem::replace(&mut state.progress, Progress::Awaited) == Progress::Made {
                return BridgeEvent::Progress;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl State {
    fn pop(&mut self) -> Option<BridgeEvent> {
        if self.stdout_closed {
            return Some(BridgeEvent::StdoutClosed);
        }
        if let Some(number) = self.gone.take() {
            return Some(BridgeEvent::DaemonGone(number));
        }
        if let Some(line) = self.lines.pop_front() {
            self.bytes -= line.len();
            return Some(BridgeEvent::Line(line));
        }
        // Reported once; only the daemon sends events afterwards.
        std::mem::take(&mut self.stdin_closed).then_some(BridgeEvent::StdinClosed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn progress_before_wait_is_reported_once() {
        let (queue, soon) = (EventQueue::default(), || Some(Instant::now() + Duration::from_millis(1)));
        queue.push_progress();
        queue.push_line(b"first".to_vec());
        assert_eq!(queue.next(None), BridgeEvent::Line(b"first".to_vec()));
        assert_eq!(queue.next(Some(Instant::now() + Duration::from_hours(1))), BridgeEvent::Progress);
        // No progress: the deadline has passed.
        assert_eq!(queue.next(soon()), BridgeEvent::Progress);
    }
}
