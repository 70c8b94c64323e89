//! What there is to confine an agent with. Presence only: whether it really holds is proven by `sandbox` at every start.

use std::fs;
use std::path::PathBuf;

use serde::Serialize;

use super::Finding;

/// What an agent can be confined with on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SandboxPrimitives {
    /// The bubblewrap that the sandbox uses.
    pub bubblewrap: Option<PathBuf>,
    /// Whether the kernel was built with Landlock; none when it does not say.
    pub landlock: Option<bool>,
    /// Whether an ordinary user may make a user namespace.
    pub user_namespaces: bool,
}

impl SandboxPrimitives {
    pub(super) fn new(bubblewrap: Option<PathBuf>) -> Self {
        Self { bubblewrap, landlock: landlock(), user_namespaces: user_namespaces() }
    }

    pub(super) fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        if self.bubblewrap.is_none() {
            findings.push(Finding::notice(
                "bubblewrap is not there, so agents cannot be confined in namespaces",
                "install it: `apt install bubblewrap`, `dnf install bubblewrap` or `pacman -S bubblewrap`; one elsewhere in PATH is used if \
                 it belongs to root",
            ));
        }
        if self.landlock == Some(false) {
            findings.push(Finding::notice(
                "the kernel has no Landlock",
                "use a kernel from 5.13 on with `landlock` in its list of security modules",
            ));
        }
        if !self.user_namespaces {
            findings.push(Finding::notice(
                "an ordinary user may not make namespaces",
                "`sysctl -w user.max_user_namespaces=15000` (and `kernel.unprivileged_userns_clone=1` on Debian)",
            ));
        }
        findings
    }
}

/// The kernel exports the symbols of its system calls, whether or not the security file system is mounted.
fn landlock() -> Option<bool> {
    let symbols = fs::read("/proc/kallsyms").ok().filter(|symbols| !symbols.is_empty())?;
    Some(memchr::memmem::find(&symbols, b"sys_landlock_create_ruleset").is_some())
}

fn user_namespaces() -> bool {
    let number = |file: &str| fs::read_to_string(file).ok().and_then(|text| text.trim().parse::<u64>().ok());
    let allowed = number("/proc/sys/user/max_user_namespaces").is_some_and(|most| most > 0);
    allowed && number("/proc/sys/kernel/unprivileged_userns_clone") != Some(0)
}
