//! Jobs in private checkouts: `call --worktree`, `apply`, `discard` and `jobs --open-changes`.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;
use testkit::eventually;

use crate::harness::{stderr, stdout};
use crate::shop::{Shop, assert_only_branches_are_new, contents, id, prompt};

fn directory(answer: &Value) -> PathBuf {
    answer["changes"]["checkout"]["directory"].as_str().unwrap_or_else(|| panic!("{answer}")).into()
}

#[test]
fn worktree_call_changes_nothing_but_a_branch() {
    let shop = Shop::new();
    let before = contents(&shop.root);
    let output = shop.run(&[
        "call",
        "rehearsal",
        &prompt("write a.txt job\nwrite new.txt n\nanswer done"),
        "--worktree",
    ]);
    let closing = stderr(&output);
    assert!(output.status.success(), "{closing}");
    let id = closing.lines().find_map(|line| line.strip_prefix("job: ")).unwrap();
    let short = &id[..13];
    let line = format!("changed: 2 files (+2 −9) on branch switchboard/{short}; switchboard apply {short}");
    assert!(closing.lines().any(|found| found == line), "{closing}");
    assert_only_branches_are_new(&before, &shop.root);
    assert_eq!(shop.git(&["show", &format!("switchboard/{short}:a.txt")]), "job");

    let status = shop.succeed(&["status", id]);
    let answer = shop.answer(id);
    let place = directory(&answer);
    let checkout = format!("checkout: {} (open, branch switchboard/{short}, ", place.display());
    assert!(status.contains(&line) && status.contains(&checkout), "{status}");
    let diff = shop.run(&["diff", id]);
    assert!(stdout(&diff).contains("+++ b/new.txt"), "{diff:?}");
    assert!(stderr(&diff).contains(&format!("not applied: on branch switchboard/{short}; ")), "{diff:?}");
}

#[test]
fn applied_changes_are_undone_and_redone() {
    let shop = Shop::new();
    let before = shop.status();
    let answer = shop.call("write a.txt job\nwrite new.txt n\nanswer done", &["--worktree"]);
    let dry = shop.run(&["apply", "--dry-run", id(&answer)]);
    assert_eq!(stdout(&dry), "would be applied: a.txt\nwould be applied: new.txt\n");
    assert_eq!(shop.status(), before);
    let applied = shop.run(&["apply", id(&answer)]);
    assert_eq!(stdout(&applied), "applied: a.txt\napplied: new.txt\n");
    assert!(stderr(&applied).contains(&format!("switchboard undo {}", &id(&answer)[..13])), "{applied:?}");
    assert_eq!((shop.read("a.txt"), shop.read("src/b.txt")), ("job".into(), "edited\n".into()));
    assert_eq!((shop.checkouts(), shop.git(&["branch", "--list", "switchboard/*"])), (0, String::new()));
    let again = shop.run(&["apply", id(&answer)]);
    assert_eq!(again.status.code(), Some(2), "{again:?}");
    assert!(
        stderr(&again).contains("are applied\n  hint: take them back with `switchboard undo "),
        "{again:?}"
    );
    assert_eq!(shop.succeed(&["undo", id(&answer)]), "restored: a.txt\ndeleted: new.txt\n");
    assert_eq!(shop.status(), before);
    shop.succeed(&["undo", "--redo", id(&answer)]);
    assert_eq!(shop.read("new.txt"), "n");
}

#[test]
fn apply_merges_with_edits_and_lists_conflicts() {
    let shop = Shop::new();
    let answer = shop.call("write a.txt job\nwrite src/b.txt job\nanswer done", &["--worktree"]);
    fs::write(shop.root.join("src/b.txt"), "mine\n").unwrap();
    let refused = shop.run(&["apply", id(&answer)]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert_eq!(stdout(&refused), "conflict: src/b.txt: edited since in the same or adjacent lines\n");
    assert!(stderr(&refused).contains("1 file with conflicts\n  hint: no file was changed; "), "{refused:?}");
    assert!(stderr(&refused).contains("`switchboard apply --conflicts "), "{refused:?}");
    assert_eq!(shop.read("src/b.txt"), "mine\n");

    let json = shop.run(&["apply", "--json", id(&answer)]);
    let reply: Value = serde_json::from_str(&stdout(&json)).unwrap();
    assert_eq!(
        (json.status.code(), &reply["conflicts"][0]["path"]),
        (Some(1), &"src/b.txt".into()),
        "{reply}"
    );

    let marked = shop.run(&["apply", "--conflicts", id(&answer)]);
    assert_eq!(marked.status.code(), Some(1), "{marked:?}");
    assert_eq!(stdout(&marked), "applied: a.txt\nconflicted: src/b.txt\n");
    assert!(stderr(&marked).contains("resolve the conflicts in 1 file"), "{marked:?}");
    let text = shop.read("src/b.txt");
    assert!(text.contains("<<<<<<<") && text.contains("mine\n") && text.contains("job"), "{text}");
}

#[test]
fn apply_stages_or_commits_only_the_files_of_the_job() {
    let shop = Shop::new();
    let first = shop.call("write a.txt job\nanswer done", &["--worktree"]);
    let second = shop.call("write c.txt c\nanswer done", &["--worktree"]);
    shop.succeed(&["apply", "--index", id(&first)]);
    assert_eq!(shop.status(), "M  a.txt\n M src/b.txt\n?? untracked.txt\n");
    let applied = shop.run(&["apply", "--commit", id(&second)]);
    assert!(applied.status.success(), "{applied:?}");
    let commit = shop.git(&["rev-parse", "HEAD"]);
    assert!(stderr(&applied).contains(&format!("commit: {}", &commit[..12])), "{applied:?}");
    assert_eq!(shop.git(&["show", "--format=%an", "--name-only", "HEAD"]), "Ana\n\nc.txt\n");
    assert_eq!(shop.status(), "M  a.txt\n M src/b.txt\n?? untracked.txt\n");
}

#[test]
fn commit_of_a_file_with_own_edits_is_refused() {
    let shop = Shop::new();
    let answer = shop.call("write src/b.txt job\nanswer done", &["--worktree"]);
    let refused = shop.run(&["apply", "--commit", id(&answer)]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(stdout(&refused).starts_with("conflict: src/b.txt: "), "{refused:?}");
    assert!(!stderr(&refused).contains("--conflicts"), "{refused:?}");
    assert_eq!(shop.read("src/b.txt"), "edited\n");
}

#[test]
fn verification_decides_the_exit_status() {
    let shop = Shop::new();
    let script = "write src/b.txt good\nanswer done";
    let check = ["--worktree", "--verify", "grep -q good src/b.txt", "--expect-changes"];
    let answer = shop.call(script, &check);
    assert_eq!(answer["verified"]["state"], "passed", "{answer}");

    let prompt = prompt("answer done");
    let repaired = "echo '@rehearse answer again'; exit 3";
    let failed = shop.run(&["call", "rehearsal", &prompt, "--verify", repaired, "--repair", "1"]);
    assert_eq!(failed.status.code(), Some(1), "{failed:?}");
    let closing = stderr(&failed);
    assert!(closing.contains("ended with exit code 3 (verification_failed)"), "{closing}");
    assert!(closing.contains("after 1 repair)\n  @rehearse answer again\n"), "{closing}");

    let refused = shop.run(&["call", "rehearsal", &prompt, "--direct", "--verify", "true"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
}

#[test]
fn closing_lines_name_collisions() {
    let shop = Shop::new();
    let first = shop.call("write a.txt job\nanswer done", &["--worktree"]);
    fs::write(shop.root.join("src/b.txt"), "mine\n").unwrap();
    // The second checkout has this edit, and the user goes on.
    let second = shop.run(&[
        "call",
        "rehearsal",
        "--worktree",
        "--background",
        &prompt("write a.txt other\nwrite src/b.txt job\nsay here\nhang"),
    ]);
    let second = stdout(&second).trim().to_owned();
    eventually("the files are written", || shop.succeed(&["logs", "--raw", &second]).contains("here"));
    fs::write(shop.root.join("src/b.txt"), "mine again\n").unwrap();
    shop.succeed(&["cancel", &second]);
    shop.run(&["wait", &second]);
    let status = stdout(&shop.run(&["status", &second]));
    let line = format!(
        "collisions: src/b.txt cannot be merged: edited since in the same or adjacent lines; a.txt also changed by {}",
        &id(&first)[..13]
    );
    assert!(status.lines().any(|found| found == line), "{status}");
}

#[test]
fn apply_of_some_files_keeps_the_rest_open() {
    let shop = Shop::new();
    let answer = shop.call("write a.txt job\nwrite src/b.txt job\nanswer done", &["--worktree"]);
    let part = shop.run_in("src", &["apply", id(&answer), "b.txt"]);
    assert_eq!(stdout(&part), "applied: src/b.txt\n");
    assert!(stderr(&part).contains("the changes stay open; apply the rest with"), "{part:?}");
    assert_eq!((shop.read("a.txt").len(), shop.checkouts()), (18, 1));
    assert_eq!(shop.succeed(&["apply", id(&answer)]), "applied: a.txt\nalready applied: src/b.txt\n");
    assert_eq!(shop.checkouts(), 0);
}

#[test]
fn discarded_changes_remain_visible_in_diff() {
    let shop = Shop::new();
    let before = shop.status();
    let answer = shop.call("write a.txt job\nanswer done", &["--worktree"]);
    let open = shop.run(&["undo", id(&answer)]);
    assert_eq!(open.status.code(), Some(2), "{open:?}");
    assert!(stderr(&open).contains("or drop them with `switchboard discard "), "{open:?}");
    let discarded = shop.run(&["discard", id(&answer), "ffffffff"]);
    assert_eq!(stdout(&discarded), format!("{}: discarded 1 file (+1 −9)\n", id(&answer)));
    assert!(stderr(&discarded).contains("see the patch with `switchboard diff "), "{discarded:?}");
    assert!(stderr(&discarded).contains("there is no job ffffffff"), "{discarded:?}");
    assert_eq!(discarded.status.code(), Some(2));
    assert_eq!((shop.status(), shop.checkouts()), (before, 0));
    assert_eq!(shop.git(&["branch", "--list", "switchboard/*"]), "");
    assert!(shop.succeed(&["diff", id(&answer)]).contains("+job"));
    assert!(
        shop.succeed(&["status", id(&answer)])
            .contains("changed: 1 file (+1 −9), discarded; switchboard diff ")
    );
}

#[test]
fn open_changes_are_listed() {
    let shop = Shop::new();
    assert_eq!(shop.succeed(&["jobs", "--open-changes"]), "no open changes\n");
    shop.call("write a.txt job\nanswer done", &[]);
    let first = shop.call("write a.txt 1\nanswer done", &["--worktree"]);
    let second = shop.call("write new.txt 2\nanswer done", &["--worktree"]);
    let table = shop.succeed(&["jobs", "--open-changes"]);
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["ID", "STATUS", "FILES", "LINES", "DISK", "BRANCH", "DIRECTORY"]);
    assert_eq!(rows.len(), 3, "{table}");
    assert!(id(&second).starts_with(rows[1][0]), "{table}");
    let branch = format!("switchboard/{}", &id(&second)[..13]);
    assert_eq!(rows[1][1..5], ["completed", "1", "+1", "−0"]);
    assert_eq!(rows[1][7..], [&*branch, shop.root.to_str().unwrap()], "{table}");
    let listed: Value = serde_json::from_str(&shop.succeed(&["jobs", "--open-changes", "--json"])).unwrap();
    let entry = &listed["open_changes"][1];
    assert_eq!((&entry["job_id"], &entry["files_changed"]), (&first["job_id"], &1.into()), "{listed}");
    assert!(entry["disk_bytes"].as_u64().unwrap() > 0 && entry["checkout"].is_string(), "{listed}");
    assert_eq!(shop.run(&["jobs", "--open-changes", "--agent", "claude"]).status.code(), Some(2));
}

#[test]
fn call_from_a_subdirectory_works_there() {
    let shop = Shop::new();
    let output = shop.run_in(
        "src",
        &["call", "rehearsal", "--worktree", "--json", &prompt("write b.txt job\nanswer done")],
    );
    let answer: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(answer["changes"]["files"][0]["path"], "src/b.txt");
    assert_eq!(shop.read("src/b.txt"), "edited\n");
    assert_eq!(fs::read_to_string(directory(&answer).join("src/b.txt")).unwrap(), "job");
}

#[test]
fn call_from_a_subdirectory_can_use_the_repository() {
    let shop = Shop::new();
    let denied =
        ["../.git/config", "../.git/objects/info/alternates", "../.git/hooks/pre-commit", "../a.txt"];
    let writes = denied.map(|path| format!("write {path} x\n")).concat();
    let script = prompt(&format!("write ../.git/own x\n{writes}write b.txt job\nanswer done"));
    let options = ["--worktree", "--policy", "workspace"];
    let output =
        shop.run_in("src", &[&["call", "rehearsal", "--json", &script] as &[&str], &options].concat());
    let answer: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let git_read_only = &answer["sandbox"]["git_read_only"];
    if git_read_only.as_str().is_some_and(|reason| reason.contains("needs bubblewrap")) {
        return println!("SKIPPED: {git_read_only}");
    }
    assert_eq!(git_read_only, &Value::Null, "{answer}");
    let checkout = directory(&answer);
    assert_eq!(fs::read_to_string(checkout.join(".git/own")).unwrap(), "x");
    for path in denied {
        assert_ne!(fs::read_to_string(checkout.join("src").join(path)).unwrap_or_default(), "x", "{path}");
    }
    assert_eq!(answer["changes"]["files_changed"], 1, "{answer}");
}

#[test]
fn programs_of_the_users_git_are_protected_in_a_checkout() {
    let shop = Shop::new();
    for (path, text) in [(".husky/pre-commit", "hook"), ("tools/clean.sh", "filter"), ("linked-hook", "link")]
    {
        fs::create_dir_all(shop.root.join(path).parent().unwrap()).unwrap();
        fs::write(shop.root.join(path), text).unwrap();
    }
    let absolute = shop.root.join("tools/clean.sh");
    shop.git(&["config", "core.hooksPath", ".husky"]);
    shop.git(&["config", "filter.f.clean", absolute.to_str().unwrap()]);
    std::os::unix::fs::symlink("../../linked-hook", shop.root.join(".git/hooks/pre-push")).unwrap();
    let script =
        "write .husky/pre-commit x\nwrite tools/clean.sh x\nwrite linked-hook x\nwrite c.txt c\nanswer done";
    let answer = shop.call(script, &["--worktree", "--policy", "workspace"]);
    let checkout = directory(&answer);
    for (path, text) in [(".husky/pre-commit", "hook"), ("tools/clean.sh", "filter"), ("linked-hook", "link")]
    {
        assert_eq!(fs::read_to_string(checkout.join(path)).unwrap(), text, "{path}: {answer}");
    }
    assert_eq!(answer["changes"]["files_changed"], 1, "{answer}");
}

#[test]
fn tool_lines_are_relative_to_the_checkout() {
    let shop = Shop::new();
    let first = shop.call("write a.txt job\nanswer done", &["--worktree"]);
    let input = serde_json::json!({ "file_path": directory(&first).join("a.txt") });
    let script = prompt(&format!("tool Read {input} => job\nanswer done"));
    let session = first["session_id"].as_str().unwrap();
    let output = shop.run(&["call", "rehearsal", "--session", session, &script]);
    assert!(stderr(&output).contains("· Read  a.txt  ✓"), "{output:?}");
}

#[test]
fn configured_repository_is_overridden_by_no_worktree() {
    let shop = Shop::new();
    // A link to the repository, and the real one.
    let link = shop.harness.scratch().join("link");
    std::os::unix::fs::symlink(&shop.root, &link).unwrap();
    shop.harness.configure(&format!("[repositories.\"{}\"]\nworktree = true\n", link.display()));
    let answer = shop.call("write a.txt job\nanswer done", &[]);
    assert_eq!(answer["changes"]["checkout"]["state"], "open", "{answer}");
    let direct = shop.run(&["call", "rehearsal", "--direct", "@rehearse answer done"]);
    assert!(
        stderr(&direct).contains("note: with `--direct`, the agent works in the directory itself"),
        "{direct:?}"
    );
    let config = shop.succeed(&["config"]);
    assert!(config.contains(&format!("[repositories.\"{}\"]\nworktree = true ", link.display())), "{config}");
    let answer = shop.call("write a.txt job\nanswer done", &["--no-worktree"]);
    assert_eq!(
        (&answer["changes"]["checkout"], shop.read("a.txt")),
        (&Value::Null, "job".into()),
        "{answer}"
    );
}

#[test]
fn retry_keeps_the_private_checkout() {
    let shop = Shop::new();
    let answer = shop.call("write a.txt job\nanswer done", &["--worktree"]);
    let retried = shop.succeed(&["retry", id(&answer)]);
    shop.succeed(&["wait", retried.trim()]);
    let retried = shop.answer(retried.trim());
    assert_eq!(retried["changes"]["checkout"]["state"], "open", "{retried}");
    assert_ne!(directory(&retried), directory(&answer));
    assert_eq!(shop.status(), " M src/b.txt\n?? untracked.txt\n");
}

#[test]
fn impossible_checkouts_are_refused() {
    let shop = Shop::new();
    let outside = shop.harness.scratch().join("outside");
    fs::create_dir(&outside).unwrap();
    for (options, expected) in [
        (&["--direct"] as &[&str], "`--direct` has no daemon that keeps a private checkout"),
        (&["--observe"], "hint: call with `--no-worktree`"),
        (
            &["--cwd", outside.to_str().unwrap()],
            "is not in the worktree of a git repository\n  hint: run `git init` in",
        ),
        (&["--no-worktree"], "cannot be used with"),
    ] {
        let output = shop.run(&[&["call", "rehearsal", "hi", "--worktree"], options].concat());
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(stderr(&output).contains(expected), "{options:?}: {output:?}");
    }
    let in_place = shop.call("write a.txt job\nanswer done", &[]);
    let output = shop.run(&["apply", id(&in_place)]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(stderr(&output).contains("has no private checkout"), "{output:?}");
}

#[test]
fn agent_in_a_checkout_cannot_write_outside_of_it() {
    let shop = Shop::new();
    let other = shop.call("write new.txt n\nanswer done", &["--worktree"]);
    let before = contents(&shop.root);
    let targets = [
        "a.txt",
        "planted.txt",
        ".git/config",
        ".git/hooks/pre-commit",
        ".git/HEAD",
        ".git/refs/heads/main",
        ".git/objects/info/alternates",
        ".git/info/exclude",
    ]
    .map(|path| shop.root.join(path));
    let state = shop.harness.state();
    let elsewhere =
        [directory(&other).join("new.txt"), state.join("planted"), shop.harness.home.join("config.toml")];
    let writes = targets.iter().chain(&elsewhere).map(|path| format!("write {} x\n", path.display()));
    let script = format!("{}write own.txt own\nanswer done", writes.collect::<String>());
    let output = shop.run(&["call", "rehearsal", &prompt(&script), "--worktree", "--policy", "workspace"]);
    let closing = stderr(&output);
    let job = closing.lines().find_map(|line| line.strip_prefix("job: ")).unwrap();
    let answer = shop.answer(job);
    assert_eq!(answer["changes"]["files_changed"], 1, "{answer}");
    if closing.contains("NOT enforced: writes") {
        return;
    }
    let mut after = contents(&shop.root);
    after.retain(|path, _| before.contains_key(path) || targets.contains(path));
    assert_eq!(after, before, "{closing}");
    assert_eq!(fs::read_to_string(directory(&other).join("new.txt")).unwrap(), "n");
    assert!(!state.join("planted").exists() && !shop.harness.home.join("config.toml").exists());
}

#[test]
fn killed_daemon_loses_and_leaves_no_checkout() {
    let shop = Shop::new();
    let output = shop.run(&[
        "call",
        "rehearsal",
        "--worktree",
        "--background",
        &prompt("write a.txt job\nsay here\ndelay 2s\nwrite new.txt n\nanswer done"),
    ]);
    let job = stdout(&output).trim().to_owned();
    eventually("the file is written", || shop.succeed(&["logs", "--raw", &job]).contains("here"));
    let status = stdout(&shop.run(&["status", &job]));
    let place = shop.harness.state().join("checkouts").join(&job).join("work");
    assert!(status.contains(&format!("checkout: {} (", place.display())), "{status}");
    shop.harness.running_daemon().unwrap().kill();
    shop.succeed(&["wait", &job]);
    let answer = shop.answer(&job);
    assert_eq!(
        (&answer["status"], &answer["changes"]["files_changed"]),
        (&"completed".into(), &2.into()),
        "{answer}"
    );
    assert_eq!((shop.status(), shop.checkouts()), (" M src/b.txt\n?? untracked.txt\n".into(), 1));
    // Killed again while the changes are open.
    shop.harness.running_daemon().unwrap().kill();
    assert_eq!(shop.succeed(&["apply", &job]), "applied: a.txt\napplied: new.txt\n");
    assert_eq!((shop.checkouts(), shop.git(&["branch", "--list", "switchboard/*"])), (0, String::new()));
}
