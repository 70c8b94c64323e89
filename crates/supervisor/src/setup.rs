//! Process-wide setup of a supervisor, before it has a plan.

use std::io;

use model::ProcessIdentity;

use crate::os::{self, SignalReader};

/// The process state of a supervisor that is ready to execute a plan.
#[derive(Debug)]
pub struct ProcessSetup {
    pub signals: SignalReader,
    pub identity: ProcessIdentity,
}

impl ProcessSetup {
    pub fn new() -> io::Result<Self> {
        // Block first: restoring a default disposition would otherwise let a pending signal kill this process.
        let signals = SignalReader::block()?;
        os::reset_ignored_signals();
        let PreforkSetup { identity } = PreforkSetup::new()?;
        Ok(Self { signals, identity })
    }
}

/// The part of [`ProcessSetup`] that needs no signal mask. An idle preforked process still dies from any signal.
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
