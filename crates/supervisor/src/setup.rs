//! Process-wide setup of a supervisor, before it has a plan.

use std::io;

use model::ProcessIdentity;

use crate::os::{self, Signals};

/// What a supervisor is before it knows what is to be run.
#[derive(Debug)]
pub struct Ready {
    pub signals: Signals,
    pub this: ProcessIdentity,
}

impl Ready {
    pub fn get() -> io::Result<Self> {
        // First of all: a signal that was ignored until now must not end it.
        let signals = Signals::listen()?;
        os::heed_what_was_ignored();
        let HalfReady { this } = HalfReady::get()?;
        Ok(Self { signals, this })
    }
}

/// The same, as far as it can be had without listening to signals, in a process that heeds them all.
pub struct HalfReady {
    this: ProcessIdentity,
}

impl HalfReady {
    pub fn get() -> io::Result<Self> {
        os::boot_id()?;
        Ok(Self { this: os::this_process()? })
    }

    pub fn listens(self) -> io::Result<Ready> {
        Ok(Ready { signals: Signals::listen()?, this: self.this })
    }
}
