//! Proofs that are kept, each with the circumstances that it is valid for.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use model::{Confinement, Escape, Network};
use serde::{Deserialize, Serialize};

use crate::machine::{Machine, Tier};

/// The circumstances that a proof is valid for.
#[derive(Debug, Serialize, Deserialize, PartialEq)]
pub(super) struct Record {
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
    /// The reason why nothing could be proven; none for a proof.
    #[serde(default)]
    unproven: Option<String>,
}

/// An earlier result.
pub(super) enum Found {
    Proof(Vec<Escape>),
    Unproven(String),
}

/// For how long it is believed that nothing could be proven: somebody may mend it.
const UNPROVEN_FOR: Duration = Duration::from_mins(10);

/// What decides whether namespaces can be made; a change of it is a reason to try again.
const NAMESPACES: [&str; 3] = [
    "/proc/sys/user/max_user_namespaces",
    "/proc/sys/kernel/unprivileged_userns_clone",
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
];

impl Record {
    pub fn of(confinement: &Confinement, tier: Tier, machine: &Machine, executable: BorrowedFd<'_>) -> Self {
        let text = |file: &str| fs::read_to_string(file).unwrap_or_default().trim().to_owned();
        let looks = |path: &Path| {
            let file = fs::metadata(path).ok()?;
            // Not when its inode changed: a link to it is no other program.
            let times = (file.mtime(), file.mtime_nsec());
            Some(format!("{}:{}:{}:{times:?}", file.dev(), file.ino(), file.len()))
        };
        let opened = PathBuf::from(format!("/proc/self/fd/{}", executable.as_raw_fd()));
        let Confinement { preset, requirement, must_hold, network, unix_sockets, bounds, .. } = confinement;
        // Whichever hosts are named, the namespace is the same.
        let reach = match network {
            Network::Full => "full",
            Network::None => "none",
            Network::Hosts(_) => "hosts",
        };
        Self {
            boot: text("/proc/sys/kernel/random/boot_id"),
            kernel: text("/proc/sys/kernel/version"),
            user: rustix::process::geteuid().as_raw(),
            bubblewrap: machine.bubblewrap.as_deref().and_then(looks),
            landlock: machine.landlock,
            executable: looks(&opened).unwrap_or_default(),
            tier: format!("{tier:?}"),
            kind: format!("{preset} {requirement:?} {must_hold:?} {reach} {unix_sockets} {bounds:?}"),
            namespaces: NAMESPACES.map(text).join(" "),
            escapes: Vec::new(),
            unproven: None,
        }
    }

    /// One file for each kind: a newer proof takes the place of one that is not valid any more.
    pub fn file_name(&self) -> String {
        let word = |text: &str| {
            text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect::<String>()
        };
        let mut name = format!("proof-{}-{}-{}", self.user, word(&self.tier), word(&self.kind));
        name.truncate(200);
        name + ".json"
    }

    pub fn read(&self, kept: &Path) -> Option<Found> {
        let mut found: Self = serde_json::from_slice(&fs::read(kept).ok()?).ok()?;
        let escapes = std::mem::take(&mut found.escapes);
        let unproven = found.unproven.take();
        if found != *self || self.boot.is_empty() || self.executable.is_empty() {
            return None;
        }
        match unproven {
            None => Some(Found::Proof(escapes)),
            Some(why) => {
                let age = fs::metadata(kept).ok()?.modified().ok()?.elapsed().ok()?;
                (age < UNPROVEN_FOR).then_some(Found::Unproven(why))
            }
        }
    }

    pub fn keep(&self, kept: &Path, escapes: &[Escape], unproven: Option<&str>) -> io::Result<()> {
        if let Some(folder) = kept.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        let json = serde_json::to_vec(&Self {
            escapes: escapes.to_vec(),
            unproven: unproven.map(str::to_owned),
            ..serde_json::from_value(serde_json::to_value(self)?)?
        })?;
        // Whole or not at all: others may read it at the same time.
        let next = kept.with_extension(format!("{}.next", std::process::id()));
        fs::write(&next, json)?;
        fs::rename(&next, kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let text = |word: &str| word.to_owned();
        Record {
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

    #[test]
    fn that_nothing_could_be_proven_is_believed_for_a_while_and_until_something_changes() {
        let folder = tempfile::tempdir().unwrap();
        let kept = folder.path().join("proof.json");
        record().keep(&kept, &[], Some("no namespaces")).unwrap();
        assert!(matches!(record().read(&kept), Some(Found::Unproven(why)) if why == "no namespaces"));
        let mended = Record { namespaces: "15000".to_owned(), ..record() };
        assert!(mended.read(&kept).is_none());
        let file = fs::File::open(&kept).unwrap();
        file.set_modified(std::time::SystemTime::now() - 2 * UNPROVEN_FOR).unwrap();
        assert!(record().read(&kept).is_none());
        record().keep(&kept, &[], None).unwrap();
        assert!(matches!(record().read(&kept), Some(Found::Proof(_))));
    }
}
