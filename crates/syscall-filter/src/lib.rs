//! Compiles a list of denied system calls to a seccomp program and installs it.
//!
//! Owns the program; `sandbox` and `file-tools` own the lists. When a filter is installed, the kernel runs it once for every system call
//! number to find those that are always allowed. A linear program (as `seccompiler` generates) makes that the most expensive step of a
//! confined start, so the number is found here by binary search:
//!
//! ```text
//! another architecture? kill    number ≥ 336?  ─ no ─► number ≥ 101? ─ no ─► …
//! x32 number? ENOSYS                           ─ yes ► number ≥ 425? ─ no ─► …          each leaf: allow, deny, test an argument
//! ```
//! System call numbers differ between architectures. On an unsupported one nothing is compiled, and the caller reports the gap.

mod program;

use std::collections::BTreeMap;
use std::fmt;

pub use seccompiler::sock_filter as Instruction;

/// The denied system calls. The last rule for a system call replaces earlier ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SyscallDenyList(BTreeMap<u32, DenyRule>);

/// The rule for a denied system call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DenyRule {
    /// The error that the caller gets.
    pub errno: u16,
    /// The condition under which it is denied; `None` to deny it always.
    pub condition: Option<ArgumentCondition>,
}

/// A condition on an argument. Only its lower 32 bits are tested, as the kernel itself does for the arguments that are tested here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArgumentCondition {
    /// The index of the argument.
    pub position: u8,
    /// The tests, of which one has to match.
    pub any_of: Vec<ArgumentTest>,
}

/// A test of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArgumentTest {
    /// Matches this value.
    Equals(u32),
    /// Matches if at least one of these bits is set.
    HasAnyBit(u32),
    /// Matches an inclusive range.
    Between(u32, u32),
}

impl SyscallDenyList {
    /// Denies system calls with any arguments.
    #[must_use]
    pub fn deny(self, calls: &[i64], errno: i32) -> Self {
        calls.iter().fold(self, |list, call| list.add_rule(*call, errno, None))
    }

    /// Denies a system call if an argument matches.
    #[must_use]
    pub fn deny_if(self, call: i64, condition: ArgumentCondition, errno: i32) -> Self {
        self.add_rule(call, errno, Some(condition))
    }

    fn add_rule(mut self, call: i64, errno: i32, condition: Option<ArgumentCondition>) -> Self {
        // `libc` has no numbers outside of these ranges; denying too much is the safe default.
        let number = u32::try_from(call).unwrap_or(u32::MAX);
        let errno = u16::try_from(errno).ok().filter(|errno| (1..4096).contains(errno)).unwrap_or(1);
        self.0.insert(number, DenyRule { errno, condition });
        self
    }

    /// Compiles the program for this machine's architecture.
    pub fn compile(&self) -> Result<Vec<Instruction>, FilterError> {
        let architecture = program::Architecture::current().ok_or(FilterError::UnsupportedArchitecture)?;
        Ok(program::compile(&self.0, architecture))
    }

    /// Installs the program for this process and all of its descendants, irrevocably. Sets `PR_SET_NO_NEW_PRIVS`.
    pub fn install(&self) -> Result<(), FilterError> {
        seccompiler::apply_filter(&self.compile()?).map_err(FilterError::Rejected)
    }
}

/// A filter that is not in force.
#[derive(Debug)]
pub enum FilterError {
    /// The system call numbers of this architecture are unknown.
    UnsupportedArchitecture,
    /// The kernel rejected the program.
    Rejected(seccompiler::Error),
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnsupportedArchitecture => write!(f, "no seccomp filter for this processor architecture"),
            Self::Rejected(_) => write!(f, "the kernel rejected the seccomp filter"),
        }
    }
}

impl std::error::Error for FilterError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::UnsupportedArchitecture => None,
            Self::Rejected(error) => Some(error),
        }
    }
}
