//! The modules of the executables that tests reach.

#[expect(missing_docs, reason = "help texts document commands and options")]
pub mod cli;
#[expect(missing_docs, reason = "`ExitStatus::meaning` documents the codes")]
pub mod exit_status;
