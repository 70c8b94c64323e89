//! Much input, and agents that do not read it.

use std::fs;
use std::io::Write;
use std::process::Command;
use std::time::Duration;

use model::{Deadline, End, Exit, Limits, RunPlan};
use supervisor::RunInput;

use crate::harness::{Harness, input_of, numbered_bytes, open_shell, read_to_end};

testkit::tests![
    long_round_trip_is_complete,
    pending_input_takes_no_memory,
    run_with_unread_input_is_stopped,
    run_with_unread_input_meets_each_deadline,
    output_is_copied_while_input_is_unread,
];

/// Much more than fits in any buffer, and little enough for a disk that is nearly full. `bench supervisor` sends a gigabyte.
const LONG: u64 = 128 << 20;

fn append_long_input(input: &mut RunInput) {
    let block = numbered_bytes(1 << 20);
    while input.len().unwrap() < LONG {
        input.write_all(&block).unwrap();
    }
}

/// Returns the memory of a process in KiB: all its pages, and those of no file. Its share of the pages depends on the tests
/// that run beside this one.
fn memory_of(pid: i32) -> [u64; 2] {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    ["Rss:", "Anonymous:"].map(|name| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse().unwrap()
    })
}

/// Returns a script that prints `up`, waits for a file, prints `again`, and never reads its stdin.
fn unread_input(harness: &Harness) -> RunPlan {
    let go = harness.directory().join("go");
    open_shell(&format!(
        "echo up; until test -e {}; do sleep 0.01; done; echo again; exec sleep 600",
        go.display()
    ))
}

fn long_round_trip_is_complete() {
    Harness::run_test(async |harness: &Harness| {
        let plan = open_shell("exec cat");
        let limits = Limits { output_bytes: None, ..plan.limits.clone() };
        let run = harness.start(&RunPlan { limits, ..plan }).await;
        let mut input = input_of(&run);
        append_long_input(&mut input);
        input.close().unwrap();
        let report = run.wait().await.unwrap();
        assert_eq!((report.end, report.output_bytes), (End::Exited, LONG));
        let (sent, received) = (run.spool().input(), run.spool().output());
        assert!(Command::new("cmp").arg(sent).arg(received).status().unwrap().success());
    });
}

fn pending_input_takes_no_memory() {
    Harness::run_test(async |harness: &Harness| {
        let run = harness.start(&unread_input(harness)).await;
        let mut input = input_of(&run);
        // More than the socket has room for.
        input.write_all(&numbered_bytes(10_000_000)).unwrap();
        harness.wait_for_output(b"up\n").await;
        let supervisor = run.supervisor().unwrap().pid;
        let before = memory_of(supervisor);
        append_long_input(&mut input);
        input.close().unwrap();
        fs::write(harness.directory().join("go"), "").unwrap();
        // The supervisor copies this after it has noticed the input.
        harness.wait_for_output(b"up\nagain\n").await;
        for (before, after) in before.into_iter().zip(memory_of(supervisor)) {
            assert!(after < before + 300, "{before} KiB before, {after} KiB after");
        }
        run.stop().unwrap();
        assert_eq!(run.wait().await.unwrap().end, End::Stopped);
    });
}

fn run_with_unread_input_is_stopped() {
    Harness::run_test(async |harness: &Harness| {
        let run = harness.start(&unread_input(harness)).await;
        let mut input = input_of(&run);
        input.write_all(&numbered_bytes(10_000_000)).unwrap();
        input.close().unwrap();
        harness.wait_for_output(b"up\n").await;
        run.stop().unwrap();
        let report = run.wait().await.unwrap();
        assert_eq!((report.end, report.exit), (End::Stopped, Some(Exit::Signal(15))));
    });
}

fn run_with_unread_input_meets_each_deadline() {
    let short = Some(Duration::from_millis(300));
    for (which, limits) in [
        (Deadline::Start, Limits { start: short, ..Limits::default() }),
        (Deadline::Idle, Limits { start: None, idle: short, ..Limits::default() }),
        (Deadline::Wall, Limits { wall: short, ..Limits::default() }),
    ] {
        Harness::run_test(async |harness: &Harness| {
            let run =
                harness.start(&RunPlan { limits: limits.clone(), ..open_shell("exec sleep 600") }).await;
            let mut input = input_of(&run);
            input.write_all(&numbered_bytes(10_000_000)).unwrap();
            let appends = async {
                loop {
                    input.write_all(b"more").unwrap();
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            let report = tokio::select! {
                report = run.wait() => report.unwrap(),
                () = appends => unreachable!(),
            };
            assert_eq!(report.end, End::Deadline { which });
        });
    }
}

fn output_is_copied_while_input_is_unread() {
    Harness::run_test(async |harness: &Harness| {
        let run = harness
            .start(&open_shell("head -c 50000000 /dev/zero; head -c 1000 /dev/zero >&2; exit 3"))
            .await;
        input_of(&run).write_all(&numbered_bytes(10_000_000)).unwrap();
        let (output, error, report) = read_to_end(&run).await;
        assert_eq!((report.end, report.exit), (End::Exited, Some(Exit::Code(3))));
        assert_eq!((output.len(), error.len()), (50_000_000, 1000));
    });
}
