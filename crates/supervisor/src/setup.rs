//! Process-wide setup of a supervisor, before it has a plan.

use std::io;

use model::ProcessIdentity;

use crate::os::{self, SignalReader};

/// What a supervisor is before it knows what is to be run.
#[derive(Debug)]
pub struct ProcessSetup {
    pub signals: SignalReader,
    pub identity: ProcessIdentity,
}

impl ProcessSetup {
    pub fn new() -> io::Result<Self> {
        // First of all: a signal that was ignored until now must not end it.
        let signals = SignalReader::block()?;
        os::reset_ignored_signals();
        let PreforkSetup { identity } = PreforkSetup::new()?;
        Ok(Self { signals, identity })
    }
}

/// The same, as far as it can be had without listening to signals, in a process that heeds them all.
pub struct PreforkSetup {
    identity: ProcessIdentity,
}

impl PreforkSetup {
    pub fn new() -> io::Result<Self> {
        os::boot_id()?;
        Ok(Self { identity: os::this_process()? })
    }

    pub fn block_signals(self) -> io::Result<ProcessSetup> {
        Ok(ProcessSetup { signals: SignalReader::block()?, identity: self.identity })
    }
}
