//! What the threads of the bridge tell each other.
//!
//! The host's lines are bounded: a host that talks on while the daemon is away waits on its own pipe. Word from the daemon's side is
//! not, so its reader never waits for whoever waits for it.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// How many lines are taken ahead, and how many bytes. One line always is, however long.
const MOST_LINES: usize = 64;
const MOST_BYTES: usize = 1 << 20;

/// Something to be dealt with.
#[derive(Debug, PartialEq, Eq)]
pub enum Word {
    /// A line of the host.
    Line(Vec<u8>),
    /// The daemon of that number speaks no more.
    DaemonGone(u64),
    /// The host reads no more.
    HostDeaf,
    /// The host says no more.
    HostSilent,
    /// Nothing, but an answer was passed on or the time is over.
    News,
}

#[derive(Debug, Default)]
struct State {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    host_silent: bool,
    host_deaf: bool,
    gone: Option<u64>,
    news: News,
}

/// Word that an answer was passed on.
#[derive(Debug, Default, PartialEq, Eq)]
enum News {
    #[default]
    None,
    /// Somebody waits for it.
    Awaited,
    There,
}

/// The words between the threads.
#[derive(Debug, Default)]
pub struct Inbox {
    state: Mutex<State>,
    changed: Condvar,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, what: impl FnOnce(&mut State)) {
        what(&mut self.lock());
        self.changed.notify_all();
    }

    /// A line of the host. Waits while there are many.
    pub fn line(&self, line: Vec<u8>) {
        let full = |state: &mut State| {
            !state.lines.is_empty()
                && (state.lines.len() >= MOST_LINES || state.bytes + line.len() > MOST_BYTES)
        };
        let mut state = self.changed.wait_while(self.lock(), full).unwrap_or_else(PoisonError::into_inner);
        state.bytes += line.len();
        state.lines.push_back(line);
        drop(state);
        self.changed.notify_all();
    }

    /// The host says no more.
    pub fn host_silent(&self) {
        self.tell(|state| state.host_silent = true);
    }

    /// The host reads no more.
    pub fn host_deaf(&self) {
        self.tell(|state| state.host_deaf = true);
    }

    /// That daemon speaks no more.
    pub fn daemon_gone(&self, number: u64) {
        self.tell(|state| state.gone = Some(number));
    }

    /// An answer was passed on.
    pub fn news(&self) {
        // Nearly always nobody waits for it, and need not be woken up for every answer.
        if std::mem::replace(&mut self.lock().news, News::There) == News::Awaited {
            self.changed.notify_all();
        }
    }

    /// The next word; [`Word::News`] when none came in time.
    pub fn next(&self, until: Option<Instant>) -> Word {
        let mut state = self.lock();
        loop {
            if let Some(word) = state.take() {
                drop(state);
                self.changed.notify_all();
                return word;
            }
            let Some(until) = until else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || std::mem::replace(&mut state.news, News::Awaited) == News::There {
                return Word::News;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl State {
    fn take(&mut self) -> Option<Word> {
        if self.host_deaf {
            return Some(Word::HostDeaf);
        }
        if let Some(number) = self.gone.take() {
            return Some(Word::DaemonGone(number));
        }
        if let Some(line) = self.lines.pop_front() {
            self.bytes -= line.len();
            return Some(Word::Line(line));
        }
        // Said once: what comes after it is only the daemon's.
        std::mem::take(&mut self.host_silent).then_some(Word::HostSilent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn news_that_came_before_somebody_waits_is_told_once() {
        let (inbox, soon) = (Inbox::default(), || Some(Instant::now() + Duration::from_millis(1)));
        inbox.news();
        inbox.line(b"first".to_vec());
        assert_eq!(inbox.next(None), Word::Line(b"first".to_vec()));
        assert_eq!(inbox.next(Some(Instant::now() + Duration::from_hours(1))), Word::News);
        // Nothing new: it is the time that is over.
        assert_eq!(inbox.next(soon()), Word::News);
    }
}
