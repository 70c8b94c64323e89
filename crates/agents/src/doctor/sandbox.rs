//! The sandbox mechanisms of the machine. Checks their presence only; the self-test of `sandbox` verifies them at every start.

use std::fs;
use std::path::PathBuf;

use serde::Serialize;

use super::Finding;

/// The sandbox mechanisms of this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SandboxPrimitives {
    /// The bubblewrap that the sandbox uses.
    pub bubblewrap: Option<PathBuf>,
    /// The kernel has Landlock. `None` if unknown.
    pub landlock: Option<bool>,
    /// Unprivileged user namespaces are allowed.
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
                "bubblewrap is not installed, so agents cannot be sandboxed with namespaces",
                "install it: `apt install bubblewrap`, `dnf install bubblewrap` or `pacman -S bubblewrap`; one elsewhere in PATH is used if \
                 it belongs to root",
            ));
        }
        if self.landlock == Some(false) {
            findings.push(Finding::notice(
                "the kernel has no Landlock",
                "use Linux 5.13 or newer with `landlock` in its list of security modules",
            ));
        }
        if !self.user_namespaces {
            findings.push(Finding::notice(
                "unprivileged users cannot create namespaces",
                "`sysctl -w user.max_user_namespaces=15000` (and `kernel.unprivileged_userns_clone=1` on Debian)",
            ));
        }
        findings
    }
}

/// Looks for the symbols of the system calls, which the kernel exports even if securityfs is not mounted.
fn landlock() -> Option<bool> {
    let symbols = fs::read("/proc/kallsyms").ok().filter(|symbols| !symbols.is_empty())?;
    Some(memchr::memmem::find(&symbols, b"sys_landlock_create_ruleset").is_some())
}

fn user_namespaces() -> bool {
    let number = |file: &str| fs::read_to_string(file).ok().and_then(|text| text.trim().parse::<u64>().ok());
    let allowed = number("/proc/sys/user/max_user_namespaces").is_some_and(|most| most > 0);
    allowed && number("/proc/sys/kernel/unprivileged_userns_clone") != Some(0)
}
