//! A conversation that is continued by another process after every line and every byte.

use agents::{Driver, DriverSpec, ParseLimits};

use super::acp::{RESUME, TURN, resume, spec};
use super::app_server::{THREAD_TURN, thread};
use super::recorded::recordings;
use super::{Course, converse, take_unsent};

/// Continues a conversation after `printed` lines of output, when these bytes of the input were written.
fn continue_after(
    spec: &DriverSpec,
    lines: &[&str],
    printed: usize,
    written: &[u8],
) -> (Vec<u8>, String, bool) {
    let mut driver = Driver::new(spec, ParseLimits::default());
    let mut input = written.to_vec();
    // The first bytes are written before the agent starts.
    let first = take_unsent(&mut driver);
    assert!(written.starts_with(&first) || first.starts_with(written));
    driver.replay_input(written);
    let mut on_event = |_: model::AgentEvent<'_>| {};
    for (number, line) in lines.iter().enumerate() {
        driver.feed(format!("{line}\n").as_bytes(), &mut on_event);
        let is_live = number + 1 >= printed;
        if is_live && driver.awaits_silence().is_some() {
            driver.on_silence();
        }
        input.extend(take_unsent(&mut driver));
    }
    let closed = driver.closes_input();
    (input, driver.finish(&mut on_event).text(), closed)
}

fn check(spec: &DriverSpec, lines: &[&str]) {
    let Course { input, summary, closed, .. } = converse(spec, lines);
    let whole = input.concat();
    for printed in 0..=lines.len() {
        // The process died somewhere between its last message before the line, and all replies to it.
        let before: usize = input[..printed.max(1)].iter().map(Vec::len).sum();
        let after: usize = input[..=printed].iter().map(Vec::len).sum();
        for written in before..=after {
            let (sent, text, is_closed) = continue_after(spec, lines, printed, &whole[..written]);
            assert_eq!(
                String::from_utf8_lossy(&sent),
                String::from_utf8_lossy(&whole),
                "after {printed} lines and {written} bytes"
            );
            assert_eq!((text, is_closed), (summary.text(), closed));
        }
    }
}

#[test]
fn acp_conversation_is_continued_without_repeating() {
    check(&spec(), TURN);
}

#[test]
fn replay_of_a_loaded_session_is_continued_without_repeating() {
    check(&resume(), RESUME);
}

#[test]
fn app_server_conversation_is_continued_without_repeating() {
    check(&thread(), THREAD_TURN);
}

#[test]
fn recorded_conversation_is_continued_without_repeating() {
    for recording in recordings() {
        check(&recording.spec, &recording.lines());
    }
}
