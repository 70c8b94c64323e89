//! An open input arrives in order and complete, and no other process can write to stdin.

use std::fs;
use std::io::Write;

use model::{End, Exit, RunPlan};
use rustix::process::{Pid, Signal, kill_process};
use supervisor::Run;
use testkit::{eventually_async, is_suspended};

use crate::harness::{Harness, input_of, numbered_bytes, open_shell, read_to_end};

testkit::tests![
    appended_input_arrives_in_order,
    input_of_plan_precedes_appended_input,
    end_of_input_arrives_after_close,
    input_closed_before_agent_reads_arrives,
    input_appended_to_suspended_supervisor_arrives,
    input_arrives_without_inotify_watch,
    stdin_cannot_be_opened_by_other_processes,
    agent_that_writes_to_stdin_reads_its_input,
    closed_stdin_of_agent_ends_only_the_pump,
    agent_inherits_no_file_of_the_pump,
    complete_input_has_no_pump,
];

/// Returns the targets of the supervisor's descriptors.
fn supervisor_files(run: &Run) -> Vec<String> {
    let directory = format!("/proc/{}/fd", run.supervisor().unwrap().pid);
    let entries = fs::read_dir(directory).unwrap().filter_map(Result::ok);
    let targets = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
    targets.map(|target| target.to_string_lossy().into_owned()).collect()
}

fn count_sockets(run: &Run) -> usize {
    supervisor_files(run).iter().filter(|file| file.starts_with("socket:")).count()
}

fn appended_input_arrives_in_order() {
    Harness::run_test(async |harness: &Harness| {
        let run = harness.start(&open_shell("exec cat")).await;
        let mut input = input_of(&run);
        let bytes = numbered_bytes(8_000_000);
        let (mut rest, mut size) = (&bytes[..], 1);
        while !rest.is_empty() {
            let (piece, others) = rest.split_at(size.min(rest.len()));
            input.write_all(piece).unwrap();
            (rest, size) = (others, (size * 3) % 100_003);
        }
        // All of it, without an end of the input.
        harness.wait_for_output(&bytes).await;
        for letter in ["a", "b", "c"] {
            let before = harness.output().len();
            input.write_all(letter.as_bytes()).unwrap();
            eventually_async("the letter arrives", async || harness.output().len() > before).await;
        }
        input.close().unwrap();
        let (output, _, report) = read_to_end(&run).await;
        assert_eq!((report.end, report.exit), (End::Exited, Some(Exit::Code(0))));
        assert!(output == [&bytes[..], b"abc"].concat());
    });
}

fn input_of_plan_precedes_appended_input() {
    Harness::run_test(async |harness: &Harness| {
        let first = numbered_bytes(3_000_000);
        let run = harness.start(&RunPlan { input: first.clone(), ..open_shell("exec cat") }).await;
        let mut input = input_of(&run);
        input.write_all(b"second").unwrap();
        input.close().unwrap();
        assert_eq!(run.wait().await.unwrap().exit, Some(Exit::Code(0)));
        assert!(harness.output() == [&first[..], b"second"].concat());
    });
}

fn end_of_input_arrives_after_close() {
    Harness::run_test(async |harness: &Harness| {
        let run = harness.start(&open_shell("cat; echo end")).await;
        let mut input = input_of(&run);
        input.write_all(b"one\n").unwrap();
        harness.wait_for_output(b"one\n").await;
        let long = vec![b'x'; 1_000_000];
        input.write_all(&long).unwrap();
        input.close().unwrap();
        input.close().unwrap();
        assert_eq!(run.wait().await.unwrap().exit, Some(Exit::Code(0)));
        assert!(harness.output() == [b"one\n", &long[..], b"end\n"].concat());
    });
    Harness::run_test(async |harness: &Harness| {
        let run = harness.start(&open_shell("cat; echo end")).await;
        input_of(&run).close().unwrap();
        assert_eq!(run.wait().await.unwrap().exit, Some(Exit::Code(0)));
        assert_eq!(harness.text(), "end\n");
    });
}

fn input_closed_before_agent_reads_arrives() {
    for length in [6, 5_000_000] {
        Harness::run_test(async |harness: &Harness| {
            let go = harness.directory().join("go");
            let script = format!("until test -e {}; do sleep 0.01; done; cat; echo end", go.display());
            let run = harness.start(&open_shell(&script)).await;
            let bytes = numbered_bytes(length);
            let mut input = input_of(&run);
            input.write_all(&bytes).unwrap();
            input.close().unwrap();
            drop(input);
            fs::write(go, "").unwrap();
            assert_eq!(run.wait().await.unwrap().exit, Some(Exit::Code(0)));
            assert!(harness.output() == [&bytes[..], b"end\n"].concat());
        });
    }
}

fn input_appended_to_suspended_supervisor_arrives() {
    Harness::run_test(async |harness: &Harness| {
        let run = harness.start(&open_shell("cat; echo end")).await;
        let supervisor = run.supervisor().unwrap().pid;
        let send = |signal| kill_process(Pid::from_raw(supervisor).unwrap(), signal).unwrap();
        send(Signal::STOP);
        eventually_async("the supervisor is suspended", async || is_suspended(supervisor)).await;
        let mut input = input_of(&run);
        input.write_all(b"hello\n").unwrap();
        input.close().unwrap();
        send(Signal::CONT);
        assert_eq!(run.wait().await.unwrap().end, End::Exited);
        assert_eq!(harness.text(), "hello\nend\n");
    });
}

fn input_arrives_without_inotify_watch() {
    // The limit of a new user namespace, so that other processes of this user keep their watches.
    let limit = "/proc/sys/user/max_inotify_instances";
    if fs::read_to_string(limit).unwrap().trim() != "0" {
        let script = format!("echo 0 > {limit} && exec \"$0\" \"$@\"");
        return crate::spooling::run_in_namespaces("input_arrives_without_inotify_watch", &script);
    }
    Harness::run_test(async |harness: &Harness| {
        let run = harness.start(&open_shell("cat; echo end")).await;
        assert!(!supervisor_files(&run).iter().any(|file| file.contains("inotify")));
        let mut input = input_of(&run);
        for piece in 1..=3 {
            input.write_all(b"piece\n").unwrap();
            harness.wait_for_output("piece\n".repeat(piece).as_bytes()).await;
        }
        input.close().unwrap();
        assert_eq!(run.wait().await.unwrap().end, End::Exited);
        assert_eq!(harness.text(), "piece\n".repeat(3) + "end\n");
    });
}

/// Otherwise, a tool of the agent could send a message or grant a permission in the user's place.
fn stdin_cannot_be_opened_by_other_processes() {
    Harness::run_test(async |harness: &Harness| {
        // By name, through the inherited descriptor, and through the supervisor's end.
        let forge = "sh -c 'echo forged > /proc/$PPID/fd/0'; sh -c 'echo forged >&0'; \
                     for end in $(find /proc/$PPID/fd -lname 'socket:*'); do (echo forged > $end); done; \
                     cat; echo end";
        let run = harness.start(&open_shell(forge)).await;
        let mut input = input_of(&run);
        input.write_all(b"genuine\n").unwrap();
        // Only now: the supervisor's end is open while the tools try it.
        harness.wait_for_output(b"genuine\n").await;
        input.close().unwrap();
        assert_eq!(run.wait().await.unwrap().end, End::Exited);
        assert_eq!(harness.text(), "genuine\nend\n");
        assert_eq!(fs::read(run.spool().input()).unwrap(), b"genuine\n");
        let error = fs::read_to_string(run.spool().error()).unwrap();
        assert!(error.matches("No such device or address").count() >= 3, "{error}");
    });
}

fn agent_that_writes_to_stdin_reads_its_input() {
    Harness::run_test(async |harness: &Harness| {
        let run = harness.start(&open_shell("trap '' PIPE; echo noise >&0; cat && echo end")).await;
        let mut input = input_of(&run);
        input.write_all(&numbered_bytes(1_000_000)).unwrap();
        input.close().unwrap();
        assert_eq!(run.wait().await.unwrap().exit, Some(Exit::Code(0)));
        assert!(harness.output() == [&numbered_bytes(1_000_000)[..], b"end\n"].concat());
    });
}

fn closed_stdin_of_agent_ends_only_the_pump() {
    Harness::run_test(async |harness: &Harness| {
        let go = harness.directory().join("go");
        let script = format!(
            "head -c 3; exec 0<&-; echo up; until test -e {}; do sleep 0.01; done; exit 7",
            go.display()
        );
        let run = harness.start(&open_shell(&script)).await;
        let mut input = input_of(&run);
        input.write_all(b"abc").unwrap();
        harness.wait_for_output(b"abcup\n").await;
        assert_eq!(count_sockets(&run), 2);
        input.write_all(&numbered_bytes(1_000_000)).unwrap();
        // The other socket is the agent's stdout.
        eventually_async("the supervisor closes stdin", async || count_sockets(&run) == 1).await;
        input.write_all(b"more").unwrap();
        input.close().unwrap();
        fs::write(go, "").unwrap();
        let report = run.wait().await.unwrap();
        assert_eq!((report.end, report.exit), (End::Exited, Some(Exit::Code(7))));
    });
}

fn agent_inherits_no_file_of_the_pump() {
    Harness::run_test(async |harness: &Harness| {
        let list =
            RunPlan { program: "/bin/ls".into(), args: vec!["/proc/self/fd".into()], ..open_shell("") };
        harness.run(&list).await;
        // 3 is the directory that `ls` itself is reading.
        assert_eq!(harness.text(), "0\n1\n2\n3\n");
    });
}

fn complete_input_has_no_pump() {
    Harness::run_test(async |harness: &Harness| {
        let run = harness.start(&harness.agent("say up\nhang")).await;
        harness.wait_for_output(b"up\n").await;
        let files = supervisor_files(&run);
        assert_eq!(count_sockets(&run), 1, "{files:?}");
        assert!(!files.iter().any(|file| file.contains("inotify") || file.ends_with("/input")), "{files:?}");
        run.stop().unwrap();
        run.wait().await.unwrap();
    });
}
