//! The cache of self-test results, each with the conditions under which it is valid.

use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use model::{Confinement, Escape, Network};
use regular_file::{create_private_directory, create_regular, read_regular};
use serde::{Deserialize, Serialize};

use crate::mechanisms::{Mechanisms, Tier};

/// The conditions under which a result is valid, and the result.
#[derive(Debug, Serialize, Deserialize, PartialEq)]
pub(super) struct SelfTestRecord {
    boot: String,
    kernel: String,
    user: u32,
    bubblewrap: Option<String>,
    landlock: i32,
    executable: String,
    tier: String,
    kind: String,
    /// The kernel's settings for new namespaces.
    #[serde(default)]
    namespaces: String,
    #[serde(default)]
    escapes: Vec<Escape>,
    /// The reason why the probe could not run; `None` if it did.
    #[serde(default)]
    unproven: Option<String>,
}

/// A result of an earlier self-test.
pub(super) enum CachedResult {
    Proof(Vec<Escape>),
    Unproven(String),
}

/// The lifetime of a failure: the user may fix the cause.
const FAILURE_LIFETIME: Duration = Duration::from_mins(10);

/// The kernel settings that allow user namespaces. A change of one invalidates the record.
const NAMESPACE_SETTINGS: [&str; 3] = [
    "/proc/sys/user/max_user_namespaces",
    "/proc/sys/kernel/unprivileged_userns_clone",
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
];

impl SelfTestRecord {
    /// Returns the present conditions, without a result.
    pub fn new(
        confinement: &Confinement,
        tier: Tier,
        mechanisms: &Mechanisms,
        executable: BorrowedFd<'_>,
    ) -> Self {
        let text = |file: &str| fs::read_to_string(file).unwrap_or_default().trim().to_owned();
        let fingerprint = |path: &Path| {
            let file = fs::metadata(path).ok()?;
            // Not the ctime, which changes when the file is hard-linked.
            let times = (file.mtime(), file.mtime_nsec());
            Some(format!("{}:{}:{}:{times:?}", file.dev(), file.ino(), file.len()))
        };
        let opened = PathBuf::from(format!("/proc/self/fd/{}", executable.as_raw_fd()));
        let Confinement { preset, requirement, must_hold, network, unix_sockets, bounds, .. } = confinement;
        // The namespace is the same for all lists of hosts.
        let reach = match network {
            Network::Full => "full",
            Network::None => "none",
            Network::Hosts(_) => "hosts",
        };
        Self {
            boot: text("/proc/sys/kernel/random/boot_id"),
            kernel: text("/proc/sys/kernel/version"),
            user: rustix::process::geteuid().as_raw(),
            bubblewrap: mechanisms.bubblewrap.as_deref().and_then(fingerprint),
            landlock: mechanisms.landlock,
            executable: fingerprint(&opened).unwrap_or_default(),
            tier: format!("{tier:?}"),
            kind: format!("{preset} {requirement:?} {must_hold:?} {reach} {unix_sockets} {bounds:?}"),
            namespaces: NAMESPACE_SETTINGS.map(text).join(" "),
            escapes: Vec::new(),
            unproven: None,
        }
    }

    /// Returns the file name of this kind of policy. A new record replaces one that is not valid any more.
    pub fn file_name(&self) -> String {
        let sanitize = |text: &str| {
            text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect::<String>()
        };
        let mut name = format!("proof-{}-{}-{}", self.user, sanitize(&self.tier), sanitize(&self.kind));
        name.truncate(200);
        name + ".json"
    }

    /// Loads a result that is valid under these conditions.
    pub fn load(&self, file: &Path) -> Option<CachedResult> {
        let mut found: Self = serde_json::from_slice(&read_regular(file).ok()?).ok()?;
        let escapes = std::mem::take(&mut found.escapes);
        let unproven = found.unproven.take();
        if found != *self || self.boot.is_empty() || self.executable.is_empty() {
            return None;
        }
        match unproven {
            None => Some(CachedResult::Proof(escapes)),
            Some(why) => {
                let age = fs::metadata(file).ok()?.modified().ok()?.elapsed().ok()?;
                (age < FAILURE_LIFETIME).then_some(CachedResult::Unproven(why))
            }
        }
    }

    /// Saves a result.
    pub fn save(&self, file: &Path, escapes: &[Escape], unproven: Option<&str>) -> io::Result<()> {
        if let Some(directory) = file.parent() {
            create_private_directory(directory)?;
        }
        let json = serde_json::to_vec(&Self {
            escapes: escapes.to_vec(),
            unproven: unproven.map(str::to_owned),
            ..serde_json::from_value(serde_json::to_value(self)?)?
        })?;
        // An atomic rename: other processes may read the file at the same time.
        let next = file.with_extension(format!("{}.next", std::process::id()));
        create_regular(&next)?.write_all(&json)?;
        fs::rename(&next, file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> SelfTestRecord {
        let text = str::to_owned;
        SelfTestRecord {
            boot: text("boot"),
            kernel: text("kernel"),
            user: 1,
            bubblewrap: None,
            landlock: 7,
            executable: text("executable"),
            tier: text("Namespaces"),
            kind: text("workspace"),
            namespaces: text("0"),
            escapes: Vec::new(),
            unproven: None,
        }
    }

    fn save_failure() -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("proof.json");
        record().save(&file, &[], Some("no namespaces")).unwrap();
        (directory, file)
    }

    #[test]
    fn failed_self_test_is_cached_until_settings_change() {
        let (_directory, file) = save_failure();
        assert!(matches!(record().load(&file), Some(CachedResult::Unproven(why)) if why == "no namespaces"));
        let fixed = SelfTestRecord { namespaces: "15000".to_owned(), ..record() };
        assert!(fixed.load(&file).is_none());
    }

    #[test]
    fn cached_failure_expires() {
        let (_directory, file) = save_failure();
        let opened = fs::File::open(&file).unwrap();
        opened.set_modified(std::time::SystemTime::now() - 2 * FAILURE_LIFETIME).unwrap();
        assert!(record().load(&file).is_none());
    }

    #[test]
    fn successful_self_test_replaces_cached_failure() {
        let (_directory, file) = save_failure();
        record().save(&file, &[], None).unwrap();
        assert!(matches!(record().load(&file), Some(CachedResult::Proof(_))));
    }
}
