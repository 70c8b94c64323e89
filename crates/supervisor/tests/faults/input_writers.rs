//! The writers of an open input and of the commands beside it.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::process::{Command, ExitCode, Stdio};

use model::{End, Exit, RunPlan};
use supervisor::{InputLocked, attach};

use crate::harness::{Harness, input_of, numbered_bytes, open_shell, runtime};

testkit::tests![
    input_is_appended_after_starter_was_killed,
    second_writer_is_rejected_until_first_dies,
    closed_input_rejects_writes,
    sent_input_can_be_read_again,
    append_after_end_has_no_effect,
    removed_input_file_does_not_end_run,
    torn_command_is_not_obeyed,
    unknown_command_is_logged_once,
    complete_input_cannot_be_opened,
];

/// The argument of a process that holds the input of a run open until it is killed.
const WRITER: &str = "--hold-input";

/// The other half of `second_writer_is_rejected_until_first_dies`.
pub fn hold_if_asked() -> Option<ExitCode> {
    let mut args = std::env::args().skip(1);
    if args.next()? != WRITER {
        return None;
    }
    runtime().block_on(async {
        let run = attach(args.next().unwrap().as_ref()).await.unwrap();
        let mut input = run.input().unwrap().unwrap();
        input.write_all(b"from the first writer\n").unwrap();
        run.wait().await.unwrap();
    });
    Some(ExitCode::SUCCESS)
}

fn control_file(harness: &Harness) -> File {
    File::options().append(true).open(harness.spool().join("control")).unwrap()
}

fn input_is_appended_after_starter_was_killed() {
    Harness::run_test(async |harness: &Harness| {
        let plan = RunPlan { input: b"of the plan\n".to_vec(), ..open_shell("cat; echo end") };
        let mut starter = Command::new(std::env::current_exe().unwrap())
            .args(crate::lost::parent(harness, &plan))
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        harness.wait_for_output(b"of the plan\n").await;
        starter.kill().unwrap();
        starter.wait().unwrap();
        let run = attach(&harness.spool()).await.unwrap();
        let mut input = input_of(&run);
        assert!(!input.is_closed());
        input.write_all(b"of the next daemon\n").unwrap();
        harness.wait_for_output(b"of the plan\nof the next daemon\n").await;
        input.close().unwrap();
        assert_eq!(run.wait().await.unwrap().exit, Some(Exit::Code(0)));
        assert_eq!(harness.text(), "of the plan\nof the next daemon\nend\n");
    });
}

fn second_writer_is_rejected_until_first_dies() {
    Harness::run_test(async |harness: &Harness| {
        let run = harness.start(&open_shell("exec cat")).await;
        let mut first = Command::new(std::env::current_exe().unwrap())
            .args([WRITER.as_ref(), harness.spool().as_os_str()])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        harness.wait_for_output(b"from the first writer\n").await;
        let error = run.input().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ResourceBusy);
        let cause = error.get_ref().unwrap().downcast_ref::<InputLocked>().unwrap();
        assert_eq!(cause.path, run.spool().input());
        first.kill().unwrap();
        first.wait().unwrap();
        let mut second = input_of(&run);
        assert!(run.input().is_err(), "the lock holds within one process");
        second.write_all(b"from the second\n").unwrap();
        harness.wait_for_output(b"from the first writer\nfrom the second\n").await;
        drop(second);
        input_of(&run).close().unwrap();
        assert_eq!(run.wait().await.unwrap().end, End::Exited);
    });
}

fn closed_input_rejects_writes() {
    Harness::run_test(async |harness: &Harness| {
        let run = harness.start(&open_shell("exec cat")).await;
        let mut input = input_of(&run);
        input.close().unwrap();
        for _ in 0..2 {
            assert!(input.is_closed());
            assert_eq!(input.write(b"late").unwrap_err().kind(), ErrorKind::BrokenPipe);
            drop(input);
            input = input_of(&run);
        }
        run.wait().await.unwrap();
        assert_eq!(harness.text(), "");
    });
}

fn sent_input_can_be_read_again() {
    Harness::run_test(async |harness: &Harness| {
        let first = numbered_bytes(100_000);
        let run =
            harness.start(&RunPlan { input: first.clone(), ..open_shell("exec cat > /dev/null") }).await;
        input_of(&run).write_all(b"second").unwrap();
        let input = input_of(&run);
        let (mut replayed, mut chunk) = (Vec::<u8>::new(), [0; 4096]);
        loop {
            match input.read_at(replayed.len() as u64, &mut chunk).unwrap() {
                0 => break,
                count => replayed.extend(&chunk[..count]),
            }
        }
        assert_eq!(input.len().unwrap(), replayed.len() as u64);
        assert!(replayed == [&first[..], b"second"].concat());
        run.stop().unwrap();
        run.wait().await.unwrap();
    });
}

fn append_after_end_has_no_effect() {
    Harness::run_test(async |harness: &Harness| {
        let run = harness.start(&open_shell("echo done")).await;
        let mut input = input_of(&run);
        let report = run.wait().await.unwrap();
        input.write_all(b"late").unwrap();
        drop(input);
        let ended = attach(&harness.spool()).await.unwrap();
        let mut input = input_of(&ended);
        input.write_all(b"later").unwrap();
        input.close().unwrap();
        assert_eq!(input.len().unwrap(), 9);
        assert_eq!(ended.wait().await.unwrap(), report);
        assert_eq!((report.end, harness.text().as_str()), (End::Exited, "done\n"));
    });
}

fn removed_input_file_does_not_end_run() {
    Harness::run_test(async |harness: &Harness| {
        let run = harness.start(&open_shell("cat; echo end")).await;
        let mut input = input_of(&run);
        input.write_all(b"before\n").unwrap();
        fs::remove_file(run.spool().input()).unwrap();
        input.write_all(b"after\n").unwrap();
        harness.wait_for_output(b"before\nafter\n").await;
        assert_eq!(run.input().unwrap_err().kind(), ErrorKind::NotFound);
        input.close().unwrap();
        assert_eq!(run.wait().await.unwrap().end, End::Exited);
        assert_eq!(harness.text(), "before\nafter\nend\n");
    });
}

fn torn_command_is_not_obeyed() {
    Harness::run_test(async |harness: &Harness| {
        let run = harness.start(&open_shell("cat; echo end")).await;
        let mut control = control_file(harness);
        control.write_all(br#"{"command":"close_input"}"#).unwrap();
        let mut input = input_of(&run);
        // The supervisor reads the commands before it sends bytes.
        input.write_all(b"still open\n").unwrap();
        harness.wait_for_output(b"still open\n").await;
        input.write_all(b"and now\n").unwrap();
        harness.wait_for_output(b"still open\nand now\n").await;
        control.write_all(b"\n").unwrap();
        assert_eq!(run.wait().await.unwrap().end, End::Exited);
        assert_eq!(harness.text(), "still open\nand now\nend\n");
    });
    Harness::run_test(async |harness: &Harness| {
        let run = harness.start(&open_shell("cat; echo end")).await;
        control_file(harness).write_all(br#"{"command":"close_inp"#).unwrap();
        input_of(&run).close().unwrap();
        assert_eq!(run.wait().await.unwrap().end, End::Exited);
        assert_eq!(harness.text(), "end\n");
    });
}

fn unknown_command_is_logged_once() {
    Harness::run_test(async |harness: &Harness| {
        let run = harness.start(&open_shell("cat; echo end")).await;
        let mut control = control_file(harness);
        for _ in 0..3 {
            control.write_all(b"{\"command\":\"fly\",\"to\":\"the moon\"}\n").unwrap();
        }
        input_of(&run).close().unwrap();
        assert_eq!(run.wait().await.unwrap().end, End::Exited);
        assert_eq!(harness.text(), "end\n");
        let log = fs::read_to_string(harness.spool().join("supervisor.log")).unwrap();
        assert!(log.lines().count() == 1 && log.contains(r#"{"command":"fly""#), "{log}");
    });
}

fn complete_input_cannot_be_opened() {
    Harness::run_test(async |harness: &Harness| {
        let run = harness.start(&harness.agent("answer done")).await;
        assert!(run.input().unwrap().is_none());
        assert!(!harness.spool().join("control").exists());
        run.wait().await.unwrap();
    });
}
