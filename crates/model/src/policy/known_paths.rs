//! The well-known paths that a policy hides or protects.

use std::path::Path;

use super::{OnCreate, Protected};

/// Credential locations below `$HOME`: keys, logins, browser profiles, shell histories.
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

/// Paths in a workspace that make git, an agent, an editor or a shell run commands with the user's permissions.
///
/// Shell prompts and editors run git unasked, so a new path that git obeys is quarantined immediately. The other programs ask the
/// user first, and the agent's task may be to write their files.
const PROTECTED: &[(&str, OnCreate)] = &[
    (".git/hooks", OnCreate::QuarantineAtOnce),
    (".git/config", OnCreate::QuarantineAtOnce),
    // Both redirect git to another configuration.
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
    ("opencode.json", OnCreate::QuarantineAtEnd),
    ("opencode.jsonc", OnCreate::QuarantineAtEnd),
    (".qwen", OnCreate::QuarantineAtEnd),
    (".github/hooks", OnCreate::QuarantineAtEnd),
    (".hg/hgrc", OnCreate::QuarantineAtEnd),
    (".cursor/hooks.json", OnCreate::QuarantineAtEnd),
    (".cursor/mcp.json", OnCreate::QuarantineAtEnd),
];

/// Returns the protected paths of a workspace, or of a repository in it.
pub fn protected_in(workspace: &Path) -> impl Iterator<Item = Protected> {
    PROTECTED.iter().map(|(name, on_create)| Protected { path: workspace.join(name), on_create: *on_create })
}

/// Directories of packages and build products. They may contain most directories of a workspace, are replaced as a whole, and
/// tests create and delete repositories in them.
const PRODUCTS: [&str; 6] = ["node_modules", "target", ".venv", "venv", ".tox", "__pycache__"];

/// Returns whether a relative path is in a directory of packages or build products.
pub fn is_in_products(relative: &Path) -> bool {
    relative.iter().any(|name| PRODUCTS.iter().any(|product| name == *product))
}
