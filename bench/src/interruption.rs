//! Ctrl-C: the bench stops between two runs, so that none is left behind and the work directory can be removed.

use std::io;
use std::task::{Context, Poll, Waker};

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::Failure;

/// The signals with which a person ends the bench.
#[derive(Debug)]
pub struct Interruption([Signal; 2]);

impl Interruption {
    /// Handles SIGINT and SIGTERM from now on.
    ///
    /// Must be called within a tokio runtime; a signal is noticed after the runtime's next wait.
    pub fn listen() -> io::Result<Self> {
        Ok(Self([signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?]))
    }

    /// Fails after a signal.
    pub fn check(&mut self) -> Result<(), Failure> {
        let mut context = Context::from_waker(Waker::noop());
        if self.0.iter_mut().any(|signal| matches!(signal.poll_recv(&mut context), Poll::Ready(Some(())))) {
            return Err("interrupted".into());
        }
        Ok(())
    }
}
