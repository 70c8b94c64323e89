//! Calls through the daemon, submitted, watched and canceled from the command line.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::fake_daemon::FakeDaemon;
use crate::harness::{Harness, stderr, stdout};

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Submits a job that hangs after its first output, and waits for that output.
fn hanging(harness: &Harness) -> String {
    let id = stdout(&harness.run(&["call", "rehearsal", "--background", "@rehearse say up\n@rehearse hang"]));
    let id = id.trim().to_owned();
    let mut following =
        harness.command(&["logs", "-f", &id]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(following.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "up\n");
    following.kill().unwrap();
    following.wait().unwrap();
    id
}

#[test]
fn call_starts_daemon_and_prints_only_answer() {
    let harness = Harness::new();
    let output = harness.run(&["call", "rehearsal", "@rehearse tool Bash ls => a\n@rehearse answer done"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(stdout(&output), "done\n");
    let aside = stderr(&output);
    assert!(aside.contains("· Bash  ls  ✓") && aside.contains("\ncompleted in "), "{aside}");
    assert!(aside.contains(" · rehearsal · 2 turns · ") && aside.contains("\nresume: "), "{aside}");
    assert!(aside.contains("\npolicy: workspace ("), "{aside}");
    assert!(!aside.contains('\x1b'), "a pipe is not painted: {aside}");
    assert!(harness.running_daemon().is_some());
}

#[test]
fn added_directories_reach_agent_and_must_exist() {
    let harness = Harness::new();
    let (one, other) = (harness.scratch().join("one"), harness.scratch().join("other"));
    for direct in [&[][..], &["--direct"]] {
        std::fs::create_dir_all(&one).unwrap();
        std::fs::create_dir_all(&other).unwrap();
        let (one, other) = (one.to_str().unwrap(), other.to_str().unwrap());
        let arguments = ["call", "rehearsal", "--add-dir", one, "--add-dir", other, "@rehearse args"];
        let output = harness.run(&[&arguments, direct].concat());
        assert!(stdout(&output).contains(one) && stdout(&output).contains(other), "{output:?}");
        std::fs::remove_dir(other).unwrap();
        let output = harness.run(&[&arguments, direct].concat());
        assert_eq!(output.status.code(), Some(9), "{output:?}");
        assert!(stderr(&output).contains("pass an existing directory with `--add-dir`"), "{output:?}");
    }
}

#[test]
fn unfinished_work_is_reported_with_and_without_daemon() {
    let harness = Harness::new();
    for direct in [&[][..], &["--direct"]] {
        let run = |steps: &[&str]| {
            let prompt: Vec<_> = steps.iter().map(|step| format!("@rehearse {step}")).collect();
            harness.run(&[&["call", "rehearsal", &prompt.join("\n")], direct].concat())
        };
        let output = run(&["background start npm test", "answer found it"]);
        assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(1), "found it\n"), "{output:?}");
        let aside = stderr(&output);
        assert!(aside.contains("· waiting for 1 background task: npm test\n"), "{aside}");
        assert!(
            aside.contains("background work did not complete: npm test (killed) (incomplete)"),
            "{aside}"
        );
        assert!(!aside.contains("note: 1 background task"), "said once: {aside}");

        let output = run(&["deny Bash", "answer could not"]);
        assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(0), "could not\n"), "{output:?}");
        assert!(stderr(&output).contains("\nnote: refused: tool Bash\n"), "{output:?}");

        let output = run(&["retry-notice 401", "retry-notice 401", "hang"]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(stderr(&output).contains("(auth)"), "{output:?}");
    }
}

#[test]
fn call_is_sandboxed_in_deep_home() {
    let harness = Harness::with_deep_home();
    for direct in [&[][..], &["--direct"]] {
        let output = harness.run(&[&["call", "rehearsal", "Hello"], direct].concat());
        assert_eq!(stdout(&output), "You said: Hello\n", "{output:?}");
        assert!(stderr(&output).contains("\npolicy: workspace ("), "{output:?}");
    }
    let checkup = json(&stdout(&harness.run(&["doctor", "--json"])));
    assert_eq!(checkup["sandbox_problem"], Value::Null);
}

#[test]
fn non_utf8_directory_is_rejected_by_name() {
    use std::os::unix::ffi::OsStringExt;
    let harness = Harness::new();
    let directory = harness.scratch().join(std::ffi::OsString::from_vec(b"d\xffx".to_vec()));
    std::fs::create_dir(&directory).unwrap();
    let said = [&[][..], &["--direct"]].map(|direct| {
        let mut call = harness.command(&["call", "rehearsal", "Hello"]);
        let output = call.args(direct).arg("--cwd").arg(&directory).output().unwrap();
        assert_eq!(output.status.code(), Some(9), "{output:?}");
        stderr(&output)
    });
    assert_eq!(said[0], said[1]);
    assert!(said[0].contains("d\u{fffd}x` is not valid Unicode\n  hint: rename it"), "{}", said[0]);
    let home = harness
        .command(&["call", "rehearsal", "Hello"])
        .env("SWITCHBOARD_HOME", &directory)
        .output()
        .unwrap();
    assert_eq!(home.status.code(), Some(2), "{home:?}");
    assert!(stderr(&home).contains("d\u{fffd}x/state`, is not valid UTF-8"), "{home:?}");
    assert!(stderr(&home).contains("hint: set SWITCHBOARD_HOME to a path"), "{home:?}");
}

#[test]
fn required_process_limit_is_enforced_or_call_fails() {
    let harness = Harness::new();
    harness.configure("[sandbox]\nprocesses = 100\n");
    let output = harness.run(&["call", "rehearsal", "Hello", "--require"]);
    let aside = stderr(&output);
    let ran = output.status.code() == Some(0) && !aside.contains("NOT enforced: process count");
    let refused = output.status.code() == Some(8)
        && aside.contains("the policy requires mechanisms that this machine lacks")
        && stdout(&output).is_empty();
    assert!(ran || refused, "{aside}");
    // The doctor says beforehand which of the two it will be, where it can be proven at all.
    let doctor = stdout(&harness.run(&["doctor"]));
    if doctor.contains("sandbox: enforced by namespaces") {
        assert_eq!(doctor.contains("the process limit is not enforced"), refused, "{doctor}{aside}");
    }
}

#[test]
fn default_call_can_write_only_its_directory() {
    let harness = Harness::new();
    let (work, outside) = (harness.scratch().join("work"), harness.scratch().join("outside"));
    for directory in [&work, &outside] {
        std::fs::create_dir(directory).unwrap();
    }
    let tries = |direct: &[&str]| {
        let prompt = format!(
            "@rehearse write {} in\n@rehearse write {} out\n@rehearse answer done",
            work.join("file").display(),
            outside.join("file").display()
        );
        harness.run(&[&["call", "rehearsal", "--cwd", work.to_str().unwrap(), &prompt], direct].concat())
    };
    for direct in [&[][..], &["--direct"]] {
        let output = tries(direct);
        let aside = stderr(&output);
        assert_eq!(std::fs::read_to_string(work.join("file")).unwrap().trim(), "in", "{aside}");
        // Where a kernel has nothing to hold it with, that is said; nothing else is.
        let held = !outside.join("file").exists();
        let open = aside.lines().any(|line| line.contains("NOT enforced") && line.contains("writes"));
        assert!(held != open && aside.contains("policy: workspace ("), "{aside}");
        std::fs::remove_file(work.join("file")).unwrap();
    }
    let prompt = format!("@rehearse write {} out", outside.join("file").display());
    let aside = stderr(&harness.run(&["call", "rehearsal", &prompt, "--policy", "off"]));
    assert!(outside.join("file").exists() && aside.contains("policy: OFF"), "{aside}");
}

#[test]
fn call_in_home_directory_is_rejected_with_hint() {
    let harness = Harness::new();
    let home = harness.scratch().join("person");
    std::fs::create_dir(&home).unwrap();
    let call = |more: &[&str]| {
        let args = [&["call", "rehearsal", "hi", "--cwd", home.to_str().unwrap(), "--direct"], more].concat();
        harness.command(&args).env("HOME", &home).output().unwrap()
    };
    for more in [&[][..], &["--observe"], &["--policy", "observe"]] {
        let refused = stderr(&call(more));
        assert!(refused.contains("is your home directory") && refused.contains("`off`"), "{refused}");
    }
    assert_eq!(stdout(&call(&["--policy", "off"])), "You said: hi\n");
}

#[test]
fn call_in_own_directories_is_rejected() {
    let harness = Harness::new();
    let root = harness.scratch().join("own");
    std::fs::create_dir_all(root.join("sub")).unwrap();
    for cwd in [&root, &root.join("sub"), &harness.scratch().to_path_buf()] {
        let call = |more: &[&str]| {
            let args = [&["call", "rehearsal", "hi", "--direct"], more].concat();
            harness.command(&args).env("SWITCHBOARD_HOME", &root).output().unwrap()
        };
        let cwd = cwd.to_str().unwrap();
        for more in [&["--cwd", cwd][..], &["--cwd", cwd, "--observe"]] {
            let refused = stderr(&call(more));
            let is_named = refused.contains("of Switchboard") || refused.contains("hidden from agents");
            assert!(is_named && refused.contains("work in another directory"), "{more:?}: {refused}");
        }
    }
}

#[test]
fn text_json_and_event_answers_agree() {
    let harness = Harness::new();
    let answer = json(&stdout(&harness.run(&["call", "rehearsal", "--json", "hi"])));
    assert_eq!(
        (answer["status"].as_str(), answer["output"].as_str()),
        (Some("completed"), Some("You said: hi"))
    );
    let output = stdout(&harness.run(&["call", "rehearsal", "--events", "hi"]));
    let lines: Vec<Value> = output.lines().map(json).collect();
    assert_eq!(lines[0]["event"], "session_started");
    assert!(lines.iter().any(|line| line["event"] == "text" && line["text"] == "You said: hi"), "{output}");
    assert_eq!(lines.last().unwrap()["output"], "You said: hi");
    let id = answer["job_id"].as_str().unwrap();
    assert_eq!(json(&stdout(&harness.run(&["status", id, "--json"])))["output"], "You said: hi");
    assert_eq!(stdout(&harness.run(&["logs", id])), "You said: hi\n");
    let raw = stdout(&harness.run(&["logs", "--raw", id]));
    assert_eq!(raw, std::fs::read_to_string(answer["output_file"].as_str().unwrap()).unwrap());
    assert_eq!(harness.run(&["logs", "--error", id]).stdout, b"");
}

#[test]
fn every_outcome_has_its_exit_code() {
    let harness = Harness::new();
    let code = |args: &[&str]| harness.run(&[&["call"], args].concat()).status.code();
    assert_eq!(code(&["rehearsal", "@rehearse exit 7"]), Some(1));
    assert_eq!(code(&["rehearsal", "  "]), Some(2));
    assert_eq!(code(&["rehearsal", "hi", "--cwd", "/nowhere"]), Some(9));
    assert_eq!(code(&["rehearsal", "hi", "--cwd", "/etc/passwd"]), Some(9));
    assert_eq!(code(&["rehearsal", "hi", "--observe", "--policy", "workspace"]), Some(2));
    assert_eq!(code(&["rehearsal", "hi", "--continue", "--task", "none yet"]), Some(2));
    assert_eq!(code(&["rehearsal", "@rehearse hang", "--timeout", "1s"]), Some(3));
    assert_eq!(code(&["claude", "hi"]), Some(5));
    assert_eq!(code(&["rehearsal", "@rehearse hang", "--wait", "1ms"]), Some(7));
}

#[test]
fn startup_timeout_is_configurable() {
    let harness = Harness::new();
    let deadline = |script: &str, options: &[&str]| {
        let output = harness.run(&[&["call", "rehearsal", "--json", script], options].concat());
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        json(&stdout(&output))["error"]["deadline"].clone()
    };
    assert_eq!(deadline("@rehearse hang", &["--start", "300ms"]), "start");
    assert_eq!(deadline("@rehearse hang", &["--idle", "300ms"]), "idle");
    assert_eq!(deadline("@rehearse say up\n@rehearse hang", &["--start", "1m", "--idle", "300ms"]), "idle");
    harness.configure("[limits]\nstart = \"300ms\"\nidle = \"1m\"\n");
    assert_eq!(deadline("@rehearse hang", &[]), "start");
    assert_eq!(deadline("@rehearse hang", &["--start", "1m", "--timeout", "1s"]), "wall");
}

#[test]
fn continue_resumes_last_session_of_directory() {
    let harness = Harness::new();
    let first = json(&stdout(&harness.run(&["call", "rehearsal", "--json", "one"])));
    let second = json(&stdout(&harness.run(&["call", "rehearsal", "--json", "--continue", "two"])));
    assert!(first["session_id"].is_string());
    assert_eq!(first["session_id"], second["session_id"]);
}

#[test]
fn ctrl_c_cancels_job_and_leaves_no_process() {
    let harness = Harness::new();
    let pids = harness.scratch().join("pids");
    let prompt = format!(
        "@rehearse pidfile {}\n@rehearse spawn setsid\n@rehearse say up\n@rehearse hang",
        pids.display()
    );
    // Without a namespace of its own, so that the number it writes down is this machine's.
    let mut child = harness
        .command(&["call", "rehearsal", &prompt, "--policy", "off"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "up\n");
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let mut aside = String::new();
    child.stderr.take().unwrap().read_to_string(&mut aside).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(4), "{aside}");
    assert!(aside.contains("cancelled after"), "{aside}");
    let pid = std::fs::read_to_string(&pids).unwrap();
    assert!(!Path::new("/proc").join(pid.trim()).exists(), "the descendant {pid} is alive");
}

#[test]
fn second_ctrl_c_detaches_with_hint() {
    let harness = Harness::new();
    let mut child = harness
        .command(&["call", "rehearsal", "@rehearse ignore TERM\n@rehearse say up\n@rehearse hang"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let interrupt =
        |id: u32| Command::new("kill").args(["-INT", &id.to_string()]).status().unwrap().success();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut aside = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert!(line == "up\n" && interrupt(child.id()));
    line.clear();
    aside.read_line(&mut line).unwrap();
    assert!(line.starts_with("cancelling") && interrupt(child.id()), "{line}");
    let mut rest = String::new();
    aside.read_to_string(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(7), "{rest}");
    assert!(rest.contains("is being stopped; follow it with `switchboard logs -f "), "{rest}");
}

#[test]
fn call_is_followed_across_daemon_kill() {
    let harness = Harness::new();
    let prompt = "@rehearse say one\n@rehearse delay 500ms\n@rehearse answer two";
    let mut child = harness
        .command(&["call", "rehearsal", prompt])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "one\n");
    harness.running_daemon().unwrap().kill();
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(rest, "two\n", "nothing is told twice, and nothing is missing");
}

#[test]
fn background_job_can_be_managed() {
    let harness = Harness::new();
    let id = hanging(&harness);
    let short = &id[..13];
    let jobs = stdout(&harness.run(&["jobs"]));
    assert!(jobs.starts_with("ID ") && jobs.contains(short) && jobs.contains("running"), "{jobs}");
    let jobs =
        json(&stdout(&harness.run(&["jobs", "--json", "--status", "running", "--agent", "rehearsal"])));
    assert_eq!((jobs["total"].as_u64(), jobs["jobs"][0]["job_id"].as_str()), (Some(1), Some(id.as_str())));
    assert_eq!(json(&stdout(&harness.run(&["jobs", "--json", "--status", "failed"])))["total"], 0);
    assert_eq!(json(&stdout(&harness.run(&["jobs", "--json", "--tool", "call_cc"])))["total"], 0);
    assert_eq!(harness.run(&["wait", short, "--timeout", "1ms"]).status.code(), Some(7));
    assert_eq!(harness.run(&["retry", short]).status.code(), Some(2), "it has not ended");
    assert!(harness.run(&["cancel", short]).status.success());
    let output = harness.run(&["wait", short]);
    assert_eq!(output.status.code(), Some(4));
    assert!(stdout(&output).starts_with(&format!("{id}: cancelled after")), "{output:?}");
    let again = stdout(&harness.run(&["retry", short]));
    assert!(again.trim() != id && harness.run(&["cancel", again.trim()]).status.success(), "{again}");
}

#[test]
fn ambiguous_id_prefix_is_rejected() {
    let harness = Harness::new();
    let ids: Vec<String> = (0..2).map(|_| hanging(&harness)).collect();
    let shared = ids[0].bytes().zip(ids[1].bytes()).take_while(|(one, other)| one == other).count();
    let output = harness.run(&["status", &ids[0][..shared]]);
    assert_eq!(output.status.code(), Some(2));
    let aside = stderr(&output);
    assert!(
        aside.contains("several job ids start with") && ids.iter().all(|id| aside.contains(&id[..=shared])),
        "{aside}"
    );
    assert_eq!(harness.run(&["status", &ids[0][..=shared]]).status.code(), Some(7));
    let output = harness.run(&["cancel", "ffffffff", &ids[0], &ids[1]]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("there is no job ffffffff"), "{output:?}");
    assert_eq!(stdout(&output).lines().count(), 2, "the others are cancelled all the same: {output:?}");
}

#[test]
fn stats_count_ended_jobs() {
    let harness = Harness::new();
    assert_eq!(stdout(&harness.run(&["stats"])), "no jobs\n");
    for prompt in ["one", "two", "@rehearse exit 7"] {
        harness.run(&["call", "rehearsal", prompt]);
    }
    let sums = json(&stdout(&harness.run(&["stats", "--json"])));
    let rows = sums["rows"].as_array().unwrap();
    let sum = |name: &str| rows.iter().map(|row| row[name].as_u64().unwrap()).sum::<u64>();
    assert_eq!((sum("calls"), sum("completed")), (3, 2), "{sums}");
    assert!(rows.iter().any(|row| row["p95_ms"].is_u64()), "{sums}");
    let text = stdout(&harness.run(&["stats"]));
    assert!(text.contains("1 failed, ") || text.contains("2 completed"), "{text}");
    assert!(text.contains('█') && !text.contains('\x1b'), "{text}");
    assert!(stdout(&harness.run(&["stats", "--color", "always"])).contains('\x1b'));
}

#[test]
fn progress_line_is_removed_below_answer() {
    let harness = Harness::new();
    let program = env!("CARGO_BIN_EXE_switchboard");
    let shown = Command::new("script")
        .args(["-qec", &format!("{program} call rehearsal 'hello there'"), "/dev/null"])
        .env("SWITCHBOARD_HOME", &harness.home)
        .env("TERM", "xterm")
        .env_remove("NO_COLOR")
        .stdin(Stdio::null())
        .output();
    let Ok(output) = shown else {
        println!("skipped: there is no `script`");
        return;
    };
    let text = stdout(&output);
    assert!(text.contains("You said: hello there\r\n"), "{text:?}");
    assert!(text.contains("\x1b[32mcompleted\x1b[0m in "), "{text:?}");
}

#[test]
fn daemon_unavailable_error_names_job() {
    let harness = Harness::new();
    let played = FakeDaemon::new(&harness);
    let mut call = harness.command(&["call", "rehearsal", "x"]);
    let call = call.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let job = "01a1dde2-642d-7027-95b7-67d9f29d1836";
    // Accepts the call, and exits whenever the call is followed.
    let mut followed = 0;
    while followed < 5 {
        let mut line = played.accept();
        match line.receive()["request"].as_str() {
            Some("place") => {
                let file = |name: &str| format!("/nowhere/{name}");
                line.send(&serde_json::json!({
                    "reply": "placed", "job_id": job, "directory": "/nowhere", "status_file": file("status.json"),
                    "output_file": file("output"), "error_file": file("error"), "result_file": file("result.json"),
                }));
            }
            Some("follow") => followed += 1,
            _ => {}
        }
    }
    let output = call.wait_with_output().unwrap();
    let told = stderr(&output);
    assert!(told.contains(&format!("the daemon exited 5 times in a row while handling job {job}")), "{told}");
}
