//! Protected names are not changed, in any spelling and from any side.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::json;

use crate::harness::Harness;

crate::tests![
    protected_path_is_immutable_for_every_verb,
    move_to_protected_path_is_rejected,
    directory_with_protected_content_is_not_moved,
    protected_path_behind_a_link_is_immutable,
    target_of_protected_link_is_immutable,
    links_on_a_protected_path_are_irreplaceable,
    renamed_git_directory_is_protected,
    protected_path_is_readable,
    bare_repository_cannot_be_created,
];

const PATHS: [&str; 18] = [
    ".git/hooks/pre-commit",
    ".git/config",
    ".git",
    ".GIT/config",
    ".Git/hooks/x",
    ".git./config",
    ".g\u{200c}it/config",
    "GIT~1/config",
    "sub/.git/config",
    ".claude/settings.json",
    ".CLAUDE/settings.json",
    ".codex/config.toml",
    ".gemini/settings.json",
    ".mcp.json",
    ".MCP.json",
    ".envrc",
    ".vscode/tasks.json",
    "new/sub/.vscode/tasks.json",
];

fn protected_path_is_immutable_for_every_verb() {
    let harness = Harness::new();
    harness.put(".git/config", "[core]\n");
    harness.put(".git/hooks/pre-commit", "#!/bin/sh\n");
    harness.put(".claude/settings.json", "{}");
    harness.put(".mcp.json", "{}");
    harness.put("sub/.git/config", "[core]\n");
    let before = harness.inventory();
    for path in PATHS {
        for request in [
            json!({"verb": "write", "path": path, "content": "x"}),
            json!({"verb": "create", "path": path, "content": "x"}),
            json!({"verb": "patch", "path": path, "edits": [{"find": "c", "replace": "x"}]}),
            json!({"verb": "delete", "path": path}),
            json!({"verb": "move", "from": path, "to": "x"}),
            json!({"verb": "move", "from": "a.txt", "to": path}),
            json!({"verb": "write", "path": format!("./sub/../{path}"), "content": "x"}),
        ] {
            let refused = harness.json(&request).refused();
            assert_eq!(refused, "protected_path", "{request}");
        }
    }
    assert_eq!(harness.inventory(), before, "nothing was changed, and no directory made on the way");
}

fn move_to_protected_path_is_rejected() {
    let harness = Harness::new();
    harness.put("evil/hooks/pre-commit", "#!/bin/sh\n");
    harness.put("evil/settings.json", "{}");
    for to in [".git", ".claude", "sub/.git", ".GIT", ".codex", ".mcp.json", ".envrc", "x/.vscode"] {
        assert_eq!(harness.run(["move", "evil", to]).refused(), "protected_path", "{to}");
        assert_eq!(harness.run(["move", "a.txt", to]).refused(), "protected_path", "{to}");
    }
}

fn directory_with_protected_content_is_not_moved() {
    let harness = Harness::new();
    harness.put("project/deep/.git/config", "[core]\n");
    harness.put("clean/deep/config", "x");
    for (from, to) in [("project", "moved"), ("project/deep", "deep"), ("project/deep/.git", "git")] {
        assert_eq!(harness.run(["move", from, to]).refused(), "protected_path", "{from}");
    }
    harness.run(["move", "clean", "moved"]).answer();
}

fn protected_path_behind_a_link_is_immutable() {
    let harness = Harness::new();
    harness.put(".git/config", "[core]\n");
    harness.put(".git/hooks/x", "x");
    symlink(".git", harness.at("innocent")).unwrap();
    symlink(".git/hooks", harness.at("hooks")).unwrap();
    symlink(".git/config", harness.at("config")).unwrap();
    symlink(".git/hooks/new", harness.at("dangling")).unwrap();
    let before = harness.inventory();
    for path in ["innocent/config", "innocent/hooks/x", "hooks/x", "hooks/new", "config", "dangling"] {
        assert_eq!(harness.run(["write", path, "--content", "x"]).refused(), "protected_path", "{path}");
    }
    for path in ["innocent/config", "hooks/x", "config"] {
        assert_eq!(
            harness.run(["patch", path, "--find", "o", "--replace", "x"]).refused(),
            "protected_path",
            "{path}"
        );
    }
    for path in ["innocent/config", "hooks/x"] {
        assert_eq!(harness.run(["delete", path]).refused(), "protected_path", "{path}");
        assert_eq!(harness.run(["move", path, "x"]).refused(), "protected_path", "{path}");
        assert_eq!(harness.run(["move", "a.txt", &format!("{path}2")]).refused(), "protected_path", "{path}");
    }
    assert_eq!(harness.inventory(), before);
}

fn target_of_protected_link_is_immutable() {
    let harness = Harness::new();
    harness.put("real-claude/settings.json", "{}");
    symlink("real-claude", harness.at(".claude")).unwrap();
    harness.put("store/config", "[core]\n");
    harness.put(".git", "gitdir: store\n");
    harness.put("env", "x");
    symlink("env", harness.at(".envrc")).unwrap();
    for path in ["real-claude/settings.json", "real-claude/new.json", "store/config", "store/hooks/x", "env"]
    {
        assert_eq!(harness.run(["write", path, "--content", "x"]).refused(), "protected_path", "{path}");
    }
    assert_eq!(harness.run(["move", "store", "x"]).refused(), "protected_path");
    assert_eq!(harness.run(["move", "env", "x"]).refused(), "protected_path");
}

fn links_on_a_protected_path_are_irreplaceable() {
    let harness = Harness::new();
    harness.put("one/two/claude/settings.json", "{}");
    symlink("link", harness.at(".claude")).unwrap();
    symlink("again", harness.at("link")).unwrap();
    symlink("one/two/claude", harness.at("again")).unwrap();
    symlink("not/there/yet", harness.at(".codex")).unwrap();
    let before = harness.inventory();
    for path in ["link", "again"] {
        assert_eq!(harness.run(["delete", path]).refused(), "protected_path", "{path}");
    }
    for path in ["one", "one/two", "one/two/claude"] {
        assert_eq!(harness.run(["move", path, "away"]).refused(), "protected_path", "{path}");
    }
    for path in ["not/there/yet/config.toml", "not/there/yet", "not/there", "not"] {
        assert_eq!(harness.run(["write", path, "--content", "x"]).refused(), "protected_path", "{path}");
        assert_eq!(harness.run(["move", "a.txt", path]).refused(), "protected_path", "{path}");
    }
    assert_eq!(harness.inventory(), before);
    harness.run(["write", "one/two/other.txt", "--content", "beside it"]).answer();
    harness.run(["write", "notes/yet.txt", "--content", "not it"]).answer();
}

fn renamed_git_directory_is_protected() {
    let harness = Harness::new();
    for path in
        ["deep/store.git/HEAD", "deep/store.git/config", "deep/store.git/objects/x", "deep/store.git/refs/x"]
    {
        harness.put(path, "x");
    }
    for path in ["deep/store.git/config", "deep/store.git/hooks/post-checkout", "deep/store.git/objects/new"]
    {
        assert_eq!(harness.run(["write", path, "--content", "x"]).refused(), "protected_path", "{path}");
    }
    assert_eq!(harness.run(["delete", "deep/store.git/config"]).refused(), "protected_path");
    assert_eq!(harness.run(["move", "deep/store.git", "x"]).refused(), "protected_path");
    harness.run(["write", "deep/beside.txt", "--content", "x"]).answer();
}

fn protected_path_is_readable() {
    let harness = Harness::new();
    harness.put(".git/config", "[core]\n");
    assert_eq!(harness.run(["read", ".git/config"]).answer()["content"], "1\t[core]\n");
    assert_eq!(harness.run(["list", ".git"]).answer()["entries"][0]["path"], ".git/config");
}

fn bare_repository_cannot_be_created() {
    let harness = Harness::new();
    harness.put("sub/x", "ref: refs/heads/main\n");
    assert_eq!(
        harness.run(["write", "sub/HEAD", "--content", "ref: refs/heads/main\n"]).refused(),
        "protected_path"
    );
    assert_eq!(harness.run(["move", "sub/x", "sub/HEAD"]).refused(), "protected_path");
    fs::create_dir(harness.at("head")).unwrap();
    harness.run(["write", "head/x", "--content", "an ordinary name"]).answer();
}
