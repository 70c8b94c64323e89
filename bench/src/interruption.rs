//! Ctrl-C: the bench ends between two runs, so that none is left behind and the work folder can be removed.

use std::io;
use std::task::{Context, Poll, Waker};

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::Failure;

/// The signals with which a person ends the bench.
#[derive(Debug)]
pub struct Interruption([Signal; 2]);

impl Interruption {
    /// From here on SIGINT and SIGTERM no longer end this program by themselves.
    ///
    /// Must be called within a tokio runtime; a signal is noticed when the runtime has waited for something after it.
    pub fn listen() -> io::Result<Self> {
        Ok(Self([signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?]))
    }

    /// Fails once somebody wants the bench to end.
    pub fn check(&mut self) -> Result<(), Failure> {
        let mut context = Context::from_waker(Waker::noop());
        if self.0.iter_mut().any(|signal| matches!(signal.poll_recv(&mut context), Poll::Ready(Some(())))) {
            return Err("interrupted".into());
        }
        Ok(())
    }
}
