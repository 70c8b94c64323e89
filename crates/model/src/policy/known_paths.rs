//! The paths that a policy hides and protects by their names.

use std::path::Path;

use super::{OnCreate, Protected};

/// Paths of a home directory that lend somebody else's power: keys, logins, browsers, and histories of commands.
pub(super) const SECRETS: &[&str] = &[
    ".ssh",
    ".aws",
    ".azure",
    ".gnupg",
    ".kube",
    ".docker",
    ".netrc",
    ".pgpass",
    ".pypirc",
    ".git-credentials",
    ".vault-token",
    ".password-store",
    ".1password",
    ".my.cnf",
    ".oci",
    ".s3cfg",
    ".boto",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".gem/credentials",
    ".terraform.d/credentials.tfrc.json",
    ".config/containers/auth.json",
    ".config/git/credentials",
    ".config/rclone",
    ".config/sops",
    ".config/gcloud",
    ".config/gh",
    ".config/hub",
    ".config/op",
    ".local/share/keyrings",
    ".bash_history",
    ".zsh_history",
    ".local/share/fish/fish_history",
    ".mysql_history",
    ".psql_history",
    ".python_history",
    ".mozilla",
    ".thunderbird",
    ".config/BraveSoftware",
    ".config/chromium",
    ".config/google-chrome",
    ".config/microsoft-edge",
    ".config/opera",
    ".config/vivaldi",
    "snap/chromium",
    "snap/firefox",
    ".var/app",
];

/// Paths of a workspace that make git, an agent, an editor or a shell run commands, with the rights of the user.
///
/// Git runs in shell prompts and editors without being asked, so a new path that it obeys is moved at once. The other programs ask
/// the user first, and an agent may have been asked to write their files.
const PROTECTED: &[(&str, OnCreate)] = &[
    (".git/hooks", OnCreate::QuarantineAtOnce),
    (".git/config", OnCreate::QuarantineAtOnce),
    // Either leads git to another configuration.
    (".git/config.worktree", OnCreate::QuarantineAtOnce),
    (".git/commondir", OnCreate::QuarantineAtOnce),
    (".git/worktrees", OnCreate::Keep),
    (".claude", OnCreate::QuarantineAtEnd),
    (".codex", OnCreate::QuarantineAtEnd),
    (".gemini", OnCreate::QuarantineAtEnd),
    (".mcp.json", OnCreate::QuarantineAtEnd),
    (".envrc", OnCreate::QuarantineAtEnd),
    (".vscode", OnCreate::QuarantineAtEnd),
    (".opencode", OnCreate::QuarantineAtEnd),
    (".hg/hgrc", OnCreate::QuarantineAtEnd),
    (".cursor/hooks.json", OnCreate::QuarantineAtEnd),
    (".cursor/mcp.json", OnCreate::QuarantineAtEnd),
];

/// Returns the protected paths of a workspace, or of a repository in it.
pub fn protected_in(workspace: &Path) -> impl Iterator<Item = Protected> {
    PROTECTED.iter().map(|(name, on_create)| Protected { path: workspace.join(name), on_create: *on_create })
}

/// Directories of packages and build products. They may hold most directories of a workspace, they are replaced as a whole, and tests
/// remove and recreate repositories in them.
const PRODUCTS: [&str; 6] = ["node_modules", "target", ".venv", "venv", ".tox", "__pycache__"];

/// Returns whether a relative path is, or lies in, a directory of packages or build products.
pub fn is_in_products(relative: &Path) -> bool {
    relative.iter().any(|name| PRODUCTS.iter().any(|product| name == *product))
}
