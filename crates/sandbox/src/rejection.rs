//! The reasons why a command is not run in a sandbox.

use std::io;
use std::path::PathBuf;

use model::Escape;

use crate::report::join_paths;
use crate::repository_walk::MAX_DIRECTORIES;

/// A sandbox that cannot be prepared, or that failed its self-test.
#[derive(Debug, thiserror::Error)]
pub enum SandboxRejection {
    /// The machine lacks mechanisms that the policy requires.
    #[error("the policy requires mechanisms that this machine lacks: {}", missing.join("; "))]
    Missing {
        /// The missing mechanisms.
        missing: Vec<String>,
    },
    /// No mount can protect these paths.
    #[error("cannot protect symbolic links or the workspace itself: {}", join_paths(paths))]
    Unprotectable {
        /// The protected paths of the policy.
        paths: Vec<PathBuf>,
    },
    /// The search of a workspace for repositories reached its limit.
    #[error("cannot search `{}` for repositories: it has more than {MAX_DIRECTORIES} directories", workspace.display())]
    Unexaminable {
        /// The workspace.
        workspace: PathBuf,
    },
    /// Switchboard's own files lie in a workspace, where nothing protects them without namespaces.
    #[error(
        "`{}` lies in the workspace `{}`, and without namespaces the agent could reach it",
        state.display(),
        workspace.display()
    )]
    StateInWorkspace {
        /// Switchboard's own files.
        state: PathBuf,
        /// The workspace.
        workspace: PathBuf,
    },
    /// A path of the policy cannot be resolved or mounted.
    #[error("cannot build the file system view of the sandbox")]
    Layout(#[source] io::Error),
    /// A file or descriptor of the sandbox cannot be created.
    #[error("cannot prepare the sandbox")]
    Files(#[source] io::Error),
    /// Escape attempts of the probe succeeded.
    #[error(
        "the sandbox failed its self-test: {}",
        escapes.iter().map(|escape| format!("{} ({})", escape.tried, escape.said)).collect::<Vec<_>>().join("; ")
    )]
    Escaped {
        /// The successful escape attempts.
        escapes: Vec<Escape>,
    },
    /// The probe did not run to its end.
    #[error("the self-test of the sandbox could not run: {why}")]
    Unproven {
        /// The cause.
        why: String,
    },
}

impl SandboxRejection {
    /// Returns the remedy.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Missing { .. } => "install the missing mechanisms, or set the policy to `best-effort`",
            Self::Unprotectable { .. } => {
                "replace the link by the file itself, or set the policy to `best-effort`"
            }
            Self::Unexaminable { .. } => {
                "run the agent in a smaller directory, or set the policy to `best-effort`"
            }
            Self::StateInWorkspace { .. } => {
                "install bubblewrap, work in another directory, or set SWITCHBOARD_HOME to a directory outside of it"
            }
            Self::Layout(_) | Self::Files(_) => "see the error of the operating system",
            Self::Escaped { .. } => {
                "report this as a bug; nothing runs in a sandbox that fails its self-test"
            }
            Self::Unproven { .. } => "run `switchboard doctor` to see which mechanisms this machine lacks",
        }
    }
}
