//! Records the changes that a job makes in place in the worktree of a git repository, shows them and undoes them.
//!
//! A snapshot before and one after the job are stored in a private git directory beside the files of the job. The
//! repository itself is only read: its index, objects, refs, stash, configuration and hooks stay as they are. No command
//! that the repository or the configuration of the user names is run: no hook, filter, `textconv`, fsmonitor or pager.
//!
//! Everything here blocks. Knows no job and no scheduler (see `calls`).

mod after;
mod before;
mod beneath;
mod checkout;
mod config;
mod difference;
mod directories;
mod entry;
mod error;
mod files;
mod git;
mod head;
mod ignored;
mod index_file;
mod index_flags;
mod kept_objects;
mod layout;
mod listing;
mod modified_files;
mod objects;
mod pack;
mod parallel;
mod private_git;
mod process;
mod protection;
mod publish;
mod raw_files;
mod record;
mod repository;
mod restore;
mod selection;
mod snapshot;
mod staging;
mod stat_data;
mod state;
mod tree;
mod user_objects;
mod worktree_files;

pub use checkout::{NewCheckout, create_checkout, remove_checkout};
pub use error::ChangesError;
pub use git::GitProgram;
pub use protection::{ProtectedFiles, find_files};
pub use publish::BranchRequest;
pub use record::ChangeRecord;
pub use repository::GitRepository;
pub use restore::{
    Conflict, ConflictReason, Destination, Direction, Obstacle, Restoration, RestoreAction, RestoreError,
    Restored, RestoredFile,
};
