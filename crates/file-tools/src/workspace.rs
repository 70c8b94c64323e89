//! A workspace that the process is confined to. `dispatch` executes the verbs in it.

use std::path::Path;

use crate::beneath::WorkspaceRoot;
use crate::lock::{self, AppliedConfinement, Reach};
use crate::rejection::FileRejection;

/// Settings of the operator, never of a caller.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OperatorSetting {
    /// Allows reading files with hard links, whose other name may be outside of the workspace.
    pub read_hardlinks: bool,
}

/// A workspace that this process is confined to.
#[derive(Debug)]
pub struct Workspace {
    pub(crate) root: WorkspaceRoot,
    pub(crate) held: AppliedConfinement,
    pub(crate) setting: OperatorSetting,
}

impl Workspace {
    /// Opens a workspace and confines this process to it for good.
    ///
    /// Must be called before a second thread exists: the kernel confines the calling thread and its later children.
    pub fn enter(path: &Path, reach: Reach, setting: OperatorSetting) -> Result<Self, FileRejection> {
        let root = WorkspaceRoot::open(path)?;
        let held = lock::lock(root.fd(), reach);
        Ok(Self::within(root, held, setting))
    }

    fn within(root: WorkspaceRoot, held: AppliedConfinement, setting: OperatorSetting) -> Self {
        Self { root, held, setting }
    }

    /// Returns the confinement in force.
    pub fn held(&self) -> &AppliedConfinement {
        &self.held
    }

    /// Opens a workspace that is confined by `openat2` alone, as on an old kernel: for tests, which share one process.
    #[doc(hidden)]
    pub fn enter_unlocked(path: &Path) -> Result<Self, FileRejection> {
        let held = AppliedConfinement {
            openat2: true,
            landlock_abi: None,
            seccomp: false,
            no_new_privileges: false,
        };
        Ok(Self::within(WorkspaceRoot::open(path)?, held, OperatorSetting::default()))
    }
}
