//! Groups: `race` and `keep`, and the commands that accept the id of a group.

use std::process::{Command, Output};

use serde_json::Value;
use testkit::eventually;

use crate::harness::{stderr, stdout};
use crate::shop::{Shop, prompt};

/// Two contenders that change one file, and a judge that prefers the first.
const WRITING: &str = "only fast write a.txt fast
only fast write new.txt n
only slow write a.txt slow
only judge choose +fast";

fn race(shop: &Shop, script: &str, options: &[&str]) -> Output {
    let prompt = prompt(script);
    shop.run(&[&["race", &prompt, "--with", "rehearsal:fast,rehearsal:slow"], options].concat())
}

/// Runs a race, and returns its report.
fn report(shop: &Shop, script: &str, options: &[&str]) -> Value {
    let output = race(shop, script, &[&["--json"], options].concat());
    serde_json::from_str(&stdout(&output)).unwrap_or_else(|_| panic!("{output:?}"))
}

fn job(report: &Value, contender: usize) -> &str {
    report["contenders"][contender]["job_id"].as_str().unwrap_or_else(|| panic!("{report}"))
}

fn group(report: &Value) -> &str {
    report["group_id"].as_str().unwrap_or_else(|| panic!("{report}"))
}

fn state(shop: &Shop, job: &str) -> String {
    shop.answer(job)["changes"]["checkout"]["state"].as_str().unwrap_or_default().to_owned()
}

/// Returns the rows of a table by their first cells.
fn row<'a>(table: &'a str, number: &str) -> Vec<&'a str> {
    let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.into_iter().find(|row| row.first() == Some(&number)).unwrap_or_else(|| panic!("{table}"))
}

#[test]
fn race_prints_table_and_verdict() {
    let shop = Shop::new();
    let before = shop.status();
    let output = race(&shop, WRITING, &["--judge", "rehearsal:judge", "--verify", "test -e new.txt"]);
    let (table, remarks) = (stdout(&output), stderr(&output));
    assert_eq!(output.status.code(), Some(0), "{remarks}");
    assert_eq!(row(&table, "#")[..5], ["#", "AGENT", "STATUS", "VERIFIED", "FILES"]);
    assert_eq!(row(&table, "1")[..6], ["1", "rehearsal:fast", "completed", "passed", "2", "+2"]);
    assert_eq!(row(&table, "2")[..6], ["2", "rehearsal:slow", "failed", "failed", "1", "+1"]);
    assert!(remarks.contains("2 (rehearsal:slow) failed: "), "{remarks}");
    assert!(remarks.contains("\nchanged by several: a.txt (1, 2)\n"), "{remarks}");
    // One result is nothing to compare.
    assert!(remarks.contains("verdict: fewer than two agents completed the task"), "{remarks}");
    assert_eq!(shop.status(), before);
}

#[test]
fn race_names_the_winner_for_keep() {
    let shop = Shop::new();
    let output = race(&shop, WRITING, &["--judge", "rehearsal:judge"]);
    let (table, remarks) = (stdout(&output), stderr(&output));
    assert!(remarks.contains("verdict: the judge chose contender 1 in both orders"), "{remarks}");
    let winner = *row(&table, "1").last().unwrap();
    assert!(remarks.contains(&format!("`switchboard keep {winner}`")), "{remarks}");
    let group = remarks.lines().find_map(|line| line.strip_prefix("group: ")).unwrap();
    let status = shop.succeed(&["status", group]);
    assert!(status.starts_with(&format!("{group}: 2 of 2 agents completed the task\n")), "{status}");
    assert!(status.contains("verdict: the judge chose contender 1"), "{status}");
    assert!(shop.succeed(&["status", winner]).contains(&format!("\ngroup: {group}\n")));
}

#[test]
fn race_fails_if_no_agent_completes() {
    let shop = Shop::new();
    let output = race(&shop, "fail auth", &[]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(stderr(&output).contains("1 (rehearsal:fast) failed: "), "{output:?}");
}

#[test]
fn keep_applies_one_and_discards_others() {
    let shop = Shop::new();
    let report = report(&shop, WRITING, &[]);
    let (fast, slow) = (job(&report, 0), job(&report, 1));
    // Without a terminal there is no answer to the question.
    let kept = shop.run(&["keep", fast]);
    assert!(kept.status.success(), "{kept:?}");
    assert!(stderr(&kept).contains("discard them with `switchboard keep --yes"), "{kept:?}");
    assert_eq!((shop.read("a.txt").as_str(), state(&shop, slow).as_str()), ("fast", "open"));

    let kept = shop.run(&["keep", "--yes", fast]);
    assert!(kept.status.success(), "{kept:?}");
    assert!(stderr(&kept).contains("the changes are already applied\ndiscarded: "), "{kept:?}");
    assert_eq!((state(&shop, fast).as_str(), state(&shop, slow).as_str()), ("applied", "discarded"));
    assert_eq!((shop.checkouts(), shop.git(&["branch", "--list", "switchboard/*"])), (0, String::new()));
}

#[test]
fn discard_of_a_group_drops_all_changes() {
    let shop = Shop::new();
    let report = report(&shop, WRITING, &[]);
    assert_eq!(shop.succeed(&["discard", group(&report)]).lines().count(), 2);
    assert_eq!((shop.checkouts(), shop.git(&["branch", "--list", "switchboard/*"])), (0, String::new()));
    let again = shop.succeed(&["discard", group(&report)]);
    assert_eq!(again, format!("{}: no open changes\n", group(&report)));
}

#[test]
fn collisions_with_other_races_are_one_line() {
    let shop = Shop::new();
    report(&shop, WRITING, &[]);
    let output = race(&shop, WRITING, &[]);
    let line =
        "also in open changes of 2 other calls: a.txt, new.txt; see `switchboard jobs --open-changes`\n";
    assert!(stderr(&output).contains(line), "{output:?}");
    assert!(!stderr(&output).contains("collisions:"), "{output:?}");
}

#[test]
fn keep_with_conflicts_discards_nothing() {
    let shop = Shop::new();
    let report = report(&shop, WRITING, &[]);
    std::fs::write(shop.root.join("a.txt"), "edited meanwhile\n").unwrap();
    let kept = shop.run(&["keep", "--yes", job(&report, 0)]);
    assert_eq!(kept.status.code(), Some(1), "{kept:?}");
    assert!(stdout(&kept).contains("conflict: a.txt"), "{kept:?}");
    assert_eq!(shop.read("a.txt"), "edited meanwhile\n");
    assert_eq!(
        (state(&shop, job(&report, 0)), state(&shop, job(&report, 1))),
        ("open".into(), "open".into())
    );
}

#[test]
fn keep_rejects_jobs_without_changes_to_keep() {
    let shop = Shop::new();
    let report = report(&shop, WRITING, &["--judge", "rehearsal:judge"]);
    let judge = report["reviews"][0]["job_id"].as_str().unwrap();
    let alone = shop.call("write a.txt x", &["--worktree"]);
    for (job, error) in
        [(judge, "has no changes to keep"), (alone["job_id"].as_str().unwrap(), "is not part of a race")]
    {
        let kept = shop.run(&["keep", "--yes", job]);
        assert_eq!(kept.status.code(), Some(2), "{kept:?}");
        assert!(stderr(&kept).contains(error), "{kept:?}");
    }
    assert_eq!(state(&shop, job(&report, 0)), "open");
}

#[test]
fn observed_group_prints_one_synthesis() {
    let shop = Shop::new();
    let script =
        "only fast answer It is A.\nonly slow answer It is B.\nonly judge answer They disagree. It is A.";
    let output = race(&shop, script, &["--observe", "--judge", "rehearsal:judge"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(stdout(&output), "They disagree. It is A.\n");
    assert!(stderr(&output).contains("\n1  rehearsal:fast  completed"), "{output:?}");
    assert_eq!(shop.checkouts(), 0);
}

#[test]
fn observed_group_without_synthesis_prints_the_only_answer() {
    let shop = Shop::new();
    let output = race(&shop, "only fast answer A\nonly slow fail auth", &["--observe"]);
    let only = "answer 1 (rehearsal:fast):\nA\n";
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(1), only), "{output:?}");
    assert!(stderr(&output).contains("synthesis failed: fewer than two calls"), "{output:?}");
}

#[test]
fn group_is_awaited_and_cancelled_as_a_whole() {
    let shop = Shop::new();
    let script = "only fast answer done\nonly slow hang\nonly judge choose x";
    let output = race(&shop, script, &["--background", "--judge", "rehearsal:judge"]);
    let group = stdout(&output).trim().to_owned();
    let prefix = &group[..24];
    assert_eq!(shop.run(&["wait", prefix, "--timeout", "100ms"]).status.code(), Some(7));
    assert!(shop.run(&["wait", prefix, "--any"]).status.success());
    let status = shop.run(&["status", prefix]);
    assert_eq!(status.status.code(), Some(7), "{status:?}");
    assert!(stdout(&status).contains("1 of 2 agents have finished"), "{status:?}");

    assert_eq!(shop.succeed(&["cancel", prefix]).lines().count(), 3);
    assert!(shop.run(&["wait", &group]).status.success(), "one agent has completed the task");
    let again = shop.run(&["cancel", &group]);
    assert_eq!(again.status.code(), Some(2), "{again:?}");
    assert!(stderr(&again).contains("has already finished"), "{again:?}");
}

#[test]
fn detached_race_continues() {
    let shop = Shop::new();
    let output = race(&shop, "delay 1s\nwrite a.txt x", &["--wait", "100ms", "--json"]);
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    let detached: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(detached["has_ended"], false);
    assert!(shop.run(&["wait", group(&detached)]).status.success());
}

#[test]
fn ctrl_c_cancels_the_whole_race() {
    let shop = Shop::new();
    let prompt = prompt("only fast answer done\nonly slow hang");
    let mut command = shop.harness.command(&["race", &prompt, "--with", "rehearsal:fast,rehearsal:slow"]);
    let race = command.current_dir(&shop.root).stdout(std::process::Stdio::piped()).spawn().unwrap();
    eventually("one agent has finished and one runs", || {
        shop.succeed(&["jobs", "--status", "completed"]).contains("fast")
            && shop.succeed(&["jobs", "--status", "running"]).contains("slow")
    });
    let pid = rustix::process::Pid::from_child(&race);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = race.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    assert_eq!(row(&stdout(&output), "2")[2], "cancelled");
}

#[test]
fn loser_that_fills_the_disk_does_not_end_the_race() {
    let shop = Shop::new();
    // In namespaces of its own, in which an ordinary user may mount a small disk for the state.
    let namespaces = ["--user", "--map-root-user", "--mount", "--"];
    if !Command::new("unshare").args(namespaces).arg("true").status().unwrap().success() {
        println!("SKIPPED: this user may make no namespace, so there is no small disk");
        return;
    }
    std::fs::create_dir_all(&shop.harness.home).unwrap();
    let script = "only slow flood stdout 200MB\nonly fast write a.txt fast\nonly fast delay 2s\nonly fast write new.txt n";
    let commands = "mount -t tmpfs -o size=48m,mode=0700 none \"$SWITCHBOARD_HOME\" &&
        \"$0\" race \"$1\" --with rehearsal:fast,rehearsal:slow --policy off --json;
        \"$0\" stop >/dev/null 2>&1";
    let mut race = Command::new("unshare");
    race.args(namespaces).args(["sh", "-c", commands, env!("CARGO_BIN_EXE_switchboard"), &prompt(script)]);
    race.env_clear().env("SWITCHBOARD_HOME", &shop.harness.home).env("PATH", "/usr/local/bin:/usr/bin:/bin");
    let output = race.current_dir(&shop.root).output().unwrap();
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap_or_else(|_| panic!("{output:?}"));
    let (fast, slow) = (&report["contenders"][0], &report["contenders"][1]);
    assert_eq!(
        (&slow["status"], &slow["error"]["kind"]),
        (&"failed".into(), &"spool_failed".into()),
        "{slow}"
    );
    assert_eq!(
        (&fast["status"], &fast["changes"]["files_changed"]),
        (&"completed".into(), &2.into()),
        "{fast}"
    );
    let branch = fast["changes"]["checkout"]["branch"].as_str().unwrap_or_else(|| panic!("{fast}"));
    assert_eq!(shop.git(&["show", &format!("{branch}:a.txt")]), "fast");
}

#[test]
fn group_id_where_a_job_is_needed_lists_its_jobs() {
    let shop = Shop::new();
    let report = report(&shop, WRITING, &[]);
    for command in ["logs", "diff", "undo", "apply", "retry", "keep"] {
        let output = shop.run(&[command, group(&report)]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let error = stderr(&output);
        assert!(error.contains("is a group of 2 jobs") && error.contains(&job(&report, 1)[..13]), "{error}");
    }
}

#[test]
fn invalid_race_is_rejected_with_a_remedy() {
    let shop = Shop::new();
    let nine = ["rehearsal"; 9].join(",");
    for (arguments, error, hint) in [
        (vec!["--with", "rehearsal"], "a group has 2 to 8 agents, not 1", "name at least two"),
        (vec!["--with", &nine], "a group has 2 to 8 agents, not 9", "at most eight"),
        (vec!["--with", "rehearsal,gpt"], "there is no agent `gpt`", "define your own as `[agents.gpt]`"),
        (vec!["--with", "rehearsal,GPT 5"], "`GPT 5` is not the name of an agent", "codex:MODEL"),
        (vec!["--with", "rehearsal,"], "an agent is missing beside a comma", "claude, codex, gemini"),
        (vec!["--with", "rehearsal:,codex"], "the model after the colon is missing", "--help"),
        (vec!["--with", "rehearsal,rehearsal", "--cwd", "/"], "is not in the worktree of a git", "--observe"),
        (vec!["--with", "rehearsal,claude"], "claude CLI not found", "npm install"),
    ] {
        let output = shop.run(&[&["race", "x"], arguments.as_slice()].concat());
        let message = stderr(&output);
        assert!(!output.status.success(), "{output:?}");
        assert!(message.contains(error) && message.contains(hint), "{message}");
    }
    assert_eq!(shop.succeed(&["jobs"]), "no jobs\n");
}
