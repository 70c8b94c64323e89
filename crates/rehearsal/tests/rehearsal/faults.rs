//! Faults of an agent by itself.

use std::io::Read;
use std::os::unix::process::ExitStatusExt;

use rustix::process::Signal;

use crate::harness::{Live, agent, play_steps, prompt_of, tests};

tests![
    exit_without_answer_has_no_result,
    truncated_stream_exits_zero_without_result,
    agent_dies_of_the_given_signal,
    agent_dies_of_an_ignored_signal,
    garbage_is_not_json,
    long_line_has_the_requested_size,
    unterminated_line_merges_with_the_next,
    flood_has_the_requested_size,
    stderr_flood_does_not_affect_stdout,
    event_flood_consists_of_complete_events,
    stdout_can_be_closed_before_exit,
    stderr_can_be_closed_before_exit,
    ignored_signal_does_not_kill_the_agent,
    agent_hangs_before_the_first_byte,
    agent_hangs_mid_stream,
    agent_hangs_after_the_result,
    closed_pipe_ends_the_agent_silently,
];

fn exit_without_answer_has_no_result() {
    let played = play_steps("", &["say partial", "exit 1"]);
    assert_eq!((played.code(), &played.last()["type"]), (1, &"assistant".into()));
    let silent = play_steps("", &["exit 143"]);
    assert_eq!((silent.code(), silent.stdout.len()), (143, 0));
}

fn truncated_stream_exits_zero_without_result() {
    for vendor in ["claude", "codex", "gemini"] {
        let played = play_steps(&format!("--as {vendor}"), &["say partial", "cut", "answer never"]);
        assert_eq!(played.code(), 0, "{vendor}");
        let text = String::from_utf8(played.stdout).unwrap();
        assert!(
            text.contains("partial") && !text.contains("never") && !text.contains("\"result\""),
            "{text}"
        );
    }
}

fn agent_dies_of_the_given_signal() {
    for (name, number) in [("SEGV", 11), ("TERM", 15), ("SIGKILL", 9), ("PIPE", 13), ("6", 6), ("BUS", 7)] {
        let played = play_steps("", &["say partial", &format!("signal {name}")]);
        assert_eq!(played.status.signal(), Some(number), "{name}");
        assert!(!played.status.core_dumped(), "{name}");
        assert_eq!(played.events().len(), 2, "{name}");
    }
}

fn agent_dies_of_an_ignored_signal() {
    let played = play_steps("", &["ignore TERM", "signal TERM"]);
    assert_eq!(played.status.signal(), Some(15));
}

fn garbage_is_not_json() {
    for (kind, is_wrong) in [
        ("json", (|line| serde_json::from_slice::<serde_json::Value>(line).is_err()) as fn(&[u8]) -> bool),
        ("utf8", |line| std::str::from_utf8(line).is_err()),
        ("nul", |line| line.contains(&0)),
        ("event", |line| line.starts_with(b"{\"type\":\"rehearsal.unheard_of\"")),
    ] {
        let played = play_steps("", &[&format!("garbage {kind}"), "answer still here"]);
        let line = played.stdout.split(|byte| *byte == b'\n').next().unwrap();
        assert!(is_wrong(line), "{kind}");
        assert!(String::from_utf8_lossy(&played.stdout).contains("\"result\":\"still here\""), "{kind}");
    }
}

fn long_line_has_the_requested_size() {
    let played = play_steps("--as plain", &["garbage line 100MB", "answer ok"]);
    assert_eq!(played.stdout.len(), 100_000_001 + 3);
    assert_eq!(played.stdout.iter().position(|byte| *byte == b'\n'), Some(100_000_000));
}

fn unterminated_line_merges_with_the_next() {
    let played = play_steps("--as plain", &["garbage unended 5", "answer ok"]);
    assert_eq!(played.stdout, b"xxxxxok\n");
}

fn flood_has_the_requested_size() {
    for size in ["1", "63", "64", "65", "262144", "262145", "3MB"] {
        let played = play_steps("", &[&format!("flood stdout {size}"), "cut"]);
        let bytes = size.replace("MB", "000000").parse::<usize>().unwrap();
        assert_eq!(played.stdout.len(), bytes);
        assert_eq!(played.stdout.last(), Some(&b'\n'), "{size}");
    }
}

fn stderr_flood_does_not_affect_stdout() {
    let played = play_steps("", &["flood stderr 2MB", "answer ok"]);
    assert_eq!((played.stderr.len(), played.text().as_str()), (2_000_000, "ok"));
}

fn event_flood_consists_of_complete_events() {
    let played = play_steps("", &["flood events 1MB", "answer ok"]);
    assert!(played.stdout.len() > 1_000_000 && played.stdout.len() < 1_010_000);
    assert!(played.events().len() > 500);
    assert_eq!(played.text(), "ok");
}

fn stdout_can_be_closed_before_exit() {
    let mut live = Live::start("", &["say hello", "close stdout", "say unheard", "hang"]);
    live.read_to("hello");
    assert!(live.read_to_end().is_empty());
    assert!(live.is_running());
}

fn stderr_can_be_closed_before_exit() {
    let mut child = agent("").spawn().unwrap();
    let prompt = prompt_of(&["close stderr", "hang"]);
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), prompt.as_bytes()).unwrap();
    let mut rest = Vec::new();
    child.stderr.take().unwrap().read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty() && child.try_wait().unwrap().is_none());
    child.kill().unwrap();
    child.wait().unwrap();
}

fn ignored_signal_does_not_kill_the_agent() {
    let mut live = Live::start("", &["ignore TERM INT HUP", "say deaf", "hang"]);
    live.read_to("deaf");
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        live.signal(signal);
    }
    live.assert_silent();
    live.signal(Signal::KILL);
    assert_eq!(live.wait().signal(), Some(9));
    let mut heeding = Live::start("", &["say listening", "hang"]);
    heeding.read_to("listening");
    heeding.signal(Signal::TERM);
    assert_eq!(heeding.wait().signal(), Some(15));
}

fn agent_hangs_before_the_first_byte() {
    Live::start("", &["hang", "answer never"]).assert_silent();
}

fn agent_hangs_mid_stream() {
    let mut live = Live::start("--as codex", &["say so far", "hang", "answer never"]);
    live.read_to("so far");
    live.assert_silent();
}

fn agent_hangs_after_the_result() {
    let mut live = Live::start("", &["answer done", "hang"]);
    live.read_to("\"type\":\"result\"");
    live.assert_silent();
}

fn closed_pipe_ends_the_agent_silently() {
    let mut child = agent("").spawn().unwrap();
    drop(child.stdout.take());
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"@rehearse flood stdout 1GB\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(141));
    assert!(output.stderr.is_empty());
}
