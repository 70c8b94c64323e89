//! Which system calls are refused, made into one program for the kernel and put on this process.
//!
//! Owns the program; which calls they are is the business of `sandbox` and `file-tools`. The kernel runs a filter for every number
//! that a system call may have when it is put on, to remember which are always allowed. A list that is gone through from its beginning
//! to its end (as `seccompiler` writes it) makes that the dearest step of a confined start, so the numbers are looked up here:
//!
//! ```text
//! another processor? kill       number ≥ 336?  ─ no ─► number ≥ 101? ─ no ─► …
//! no number of ours? "absent"                  ─ yes ► number ≥ 425? ─ no ─► …          each end: allow, refuse, look at an argument
//! ```
//! Knows a processor by the numbers of its calls: on one that is not listed nothing is compiled, and whoever asked says so.

mod program;

use std::collections::BTreeMap;
use std::fmt;

pub use seccompiler::sock_filter as Instruction;

/// A number of a system call, as `libc` has it.
pub type Call = i64;

/// What is refused. A call that is named twice is refused as it was named last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Refusals(BTreeMap<u32, Refused>);

/// How a call is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refused {
    /// What the kernel answers.
    pub errno: u16,
    /// With which argument; none: with any.
    pub only: Option<Argument>,
}

/// An argument with which a call is refused. Its lower half is looked at: what the kernel itself takes of those that are tested here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argument {
    /// Which, from 0 on.
    pub position: u8,
    /// Any of these is a reason.
    pub any_of: Vec<Test>,
}

/// A reason to refuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Test {
    /// It is this number.
    Is(u32),
    /// At least one of these bits is set.
    HasAnyBit(u32),
    /// It is one of these numbers, the last one included.
    Between(u32, u32),
}

impl Refusals {
    /// Refuses calls, whatever their arguments.
    #[must_use]
    pub fn always(self, calls: &[Call], errno: i32) -> Self {
        calls.iter().fold(self, |all, call| all.with(*call, errno, None))
    }

    /// Refuses a call with certain arguments.
    #[must_use]
    pub fn when(self, call: Call, argument: Argument, errno: i32) -> Self {
        self.with(call, errno, Some(argument))
    }

    fn with(mut self, call: Call, errno: i32, only: Option<Argument>) -> Self {
        // What is no number of a call, or no error, cannot come from `libc`; refusing too much is the harmless mistake.
        let number = u32::try_from(call).unwrap_or(u32::MAX);
        let errno = u16::try_from(errno).ok().filter(|errno| (1..4096).contains(errno)).unwrap_or(1);
        self.0.insert(number, Refused { errno, only });
        self
    }

    /// The program for this machine's processor.
    pub fn compile(&self) -> Result<Vec<Instruction>, NoFilter> {
        Ok(program::compile(&self.0, program::Processor::this().ok_or(NoFilter::Processor)?))
    }

    /// Puts the program on this process and everything that it starts, for good. No privilege can be gained from then on.
    pub fn apply(&self) -> Result<(), NoFilter> {
        seccompiler::apply_filter(&self.compile()?).map_err(NoFilter::Refused)
    }
}

/// Why nothing is filtered.
#[derive(Debug)]
pub enum NoFilter {
    /// The numbers of this processor's calls are not known here.
    Processor,
    /// The kernel did not take it.
    Refused(seccompiler::Error),
}

impl fmt::Display for NoFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Processor => write!(f, "there is no filter for this processor"),
            Self::Refused(_) => write!(f, "the kernel refuses the filter"),
        }
    }
}

impl std::error::Error for NoFilter {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Processor => None,
            Self::Refused(error) => Some(error),
        }
    }
}
