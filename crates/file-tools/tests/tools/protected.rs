//! Protected names are not changed, in any spelling and from any side.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::json;

use crate::desk::Desk;

crate::tests![
    no_verb_changes_a_protected_path,
    nothing_becomes_protected_by_a_move,
    a_folder_with_something_protected_in_it_stays,
    a_link_does_not_hide_a_protected_path,
    the_other_side_of_a_protected_link_is_protected_too,
    no_link_on_the_way_of_a_protected_link_can_be_replaced,
    a_repository_under_another_name_is_protected_too,
    protected_paths_can_be_read,
    a_bare_repository_cannot_be_planted,
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

fn no_verb_changes_a_protected_path() {
    let desk = Desk::new();
    desk.put(".git/config", "[core]\n");
    desk.put(".git/hooks/pre-commit", "#!/bin/sh\n");
    desk.put(".claude/settings.json", "{}");
    desk.put(".mcp.json", "{}");
    desk.put("sub/.git/config", "[core]\n");
    let before = desk.inventory();
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
            let refused = desk.json(&request).refused();
            assert_eq!(refused, "protected_path", "{request}");
        }
    }
    assert_eq!(desk.inventory(), before, "nothing was changed, and no folder made on the way");
}

fn nothing_becomes_protected_by_a_move() {
    let desk = Desk::new();
    desk.put("evil/hooks/pre-commit", "#!/bin/sh\n");
    desk.put("evil/settings.json", "{}");
    for to in [".git", ".claude", "sub/.git", ".GIT", ".codex", ".mcp.json", ".envrc", "x/.vscode"] {
        assert_eq!(desk.run(["move", "evil", to]).refused(), "protected_path", "{to}");
        assert_eq!(desk.run(["move", "a.txt", to]).refused(), "protected_path", "{to}");
    }
}

fn a_folder_with_something_protected_in_it_stays() {
    let desk = Desk::new();
    desk.put("project/deep/.git/config", "[core]\n");
    desk.put("clean/deep/config", "x");
    for (from, to) in [("project", "moved"), ("project/deep", "deep"), ("project/deep/.git", "git")] {
        assert_eq!(desk.run(["move", from, to]).refused(), "protected_path", "{from}");
    }
    desk.run(["move", "clean", "moved"]).answer();
}

fn a_link_does_not_hide_a_protected_path() {
    let desk = Desk::new();
    desk.put(".git/config", "[core]\n");
    desk.put(".git/hooks/x", "x");
    symlink(".git", desk.at("innocent")).unwrap();
    symlink(".git/hooks", desk.at("hooks")).unwrap();
    symlink(".git/config", desk.at("config")).unwrap();
    symlink(".git/hooks/new", desk.at("dangling")).unwrap();
    let before = desk.inventory();
    for path in ["innocent/config", "innocent/hooks/x", "hooks/x", "hooks/new", "config", "dangling"] {
        assert_eq!(desk.run(["write", path, "--content", "x"]).refused(), "protected_path", "{path}");
    }
    for path in ["innocent/config", "hooks/x", "config"] {
        assert_eq!(
            desk.run(["patch", path, "--find", "o", "--replace", "x"]).refused(),
            "protected_path",
            "{path}"
        );
    }
    for path in ["innocent/config", "hooks/x"] {
        assert_eq!(desk.run(["delete", path]).refused(), "protected_path", "{path}");
        assert_eq!(desk.run(["move", path, "x"]).refused(), "protected_path", "{path}");
        assert_eq!(desk.run(["move", "a.txt", &format!("{path}2")]).refused(), "protected_path", "{path}");
    }
    assert_eq!(desk.inventory(), before);
}

fn the_other_side_of_a_protected_link_is_protected_too() {
    let desk = Desk::new();
    desk.put("real-claude/settings.json", "{}");
    symlink("real-claude", desk.at(".claude")).unwrap();
    desk.put("store/config", "[core]\n");
    desk.put(".git", "gitdir: store\n");
    desk.put("env", "x");
    symlink("env", desk.at(".envrc")).unwrap();
    for path in ["real-claude/settings.json", "real-claude/new.json", "store/config", "store/hooks/x", "env"]
    {
        assert_eq!(desk.run(["write", path, "--content", "x"]).refused(), "protected_path", "{path}");
    }
    assert_eq!(desk.run(["move", "store", "x"]).refused(), "protected_path");
    assert_eq!(desk.run(["move", "env", "x"]).refused(), "protected_path");
}

fn no_link_on_the_way_of_a_protected_link_can_be_replaced() {
    let desk = Desk::new();
    desk.put("one/two/claude/settings.json", "{}");
    symlink("link", desk.at(".claude")).unwrap();
    symlink("again", desk.at("link")).unwrap();
    symlink("one/two/claude", desk.at("again")).unwrap();
    symlink("not/there/yet", desk.at(".codex")).unwrap();
    let before = desk.inventory();
    for path in ["link", "again"] {
        assert_eq!(desk.run(["delete", path]).refused(), "protected_path", "{path}");
    }
    for path in ["one", "one/two", "one/two/claude"] {
        assert_eq!(desk.run(["move", path, "away"]).refused(), "protected_path", "{path}");
    }
    for path in ["not/there/yet/config.toml", "not/there/yet", "not/there", "not"] {
        assert_eq!(desk.run(["write", path, "--content", "x"]).refused(), "protected_path", "{path}");
        assert_eq!(desk.run(["move", "a.txt", path]).refused(), "protected_path", "{path}");
    }
    assert_eq!(desk.inventory(), before);
    desk.run(["write", "one/two/other.txt", "--content", "beside it"]).answer();
    desk.run(["write", "notes/yet.txt", "--content", "not it"]).answer();
}

fn a_repository_under_another_name_is_protected_too() {
    let desk = Desk::new();
    for path in
        ["deep/store.git/HEAD", "deep/store.git/config", "deep/store.git/objects/x", "deep/store.git/refs/x"]
    {
        desk.put(path, "x");
    }
    for path in ["deep/store.git/config", "deep/store.git/hooks/post-checkout", "deep/store.git/objects/new"]
    {
        assert_eq!(desk.run(["write", path, "--content", "x"]).refused(), "protected_path", "{path}");
    }
    assert_eq!(desk.run(["delete", "deep/store.git/config"]).refused(), "protected_path");
    assert_eq!(desk.run(["move", "deep/store.git", "x"]).refused(), "protected_path");
    desk.run(["write", "deep/beside.txt", "--content", "x"]).answer();
}

fn protected_paths_can_be_read() {
    let desk = Desk::new();
    desk.put(".git/config", "[core]\n");
    assert_eq!(desk.run(["read", ".git/config"]).answer()["content"], "1\t[core]\n");
    assert_eq!(desk.run(["list", ".git"]).answer()["entries"][0]["path"], ".git/config");
}

fn a_bare_repository_cannot_be_planted() {
    let desk = Desk::new();
    desk.put("sub/x", "ref: refs/heads/main\n");
    assert_eq!(
        desk.run(["write", "sub/HEAD", "--content", "ref: refs/heads/main\n"]).refused(),
        "protected_path"
    );
    assert_eq!(desk.run(["move", "sub/x", "sub/HEAD"]).refused(), "protected_path");
    fs::create_dir(desk.at("head")).unwrap();
    desk.run(["write", "head/x", "--content", "an ordinary name"]).answer();
}
