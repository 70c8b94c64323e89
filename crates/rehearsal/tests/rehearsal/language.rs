//! The script as a caller writes it: files, directives, mistakes, help.

use std::time::{Duration, Instant};

use crate::harness::{play, play_steps, tests, write_script};

tests![
    directives_are_not_echoed,
    script_file_does_not_affect_the_prompt,
    empty_prompt_is_answered,
    intermediate_texts_are_joined_in_the_result,
    script_continues_after_the_answer,
    exit_code_follows_the_result,
    delay_step_waits,
    raw_line_is_printed_verbatim,
    invalid_step_is_rejected_before_the_first_event,
    invalid_flag_is_named,
    missing_script_is_named,
    help_lists_every_flag_and_version_is_one_line,
];

fn directives_are_not_echoed() {
    let played = play("", "one\n@rehearse delay 1ms\ntwo\n");
    assert_eq!(played.text(), "You said: one\ntwo");
}

fn script_file_does_not_affect_the_prompt() {
    let directory = tempfile::tempdir().unwrap();
    let script = write_script(directory.path(), "# greet\n\nsay hello\nstdin-bytes\n");
    let played = play(&format!("--script {script}"), "@rehearse exit 9\n");
    assert_eq!(played.code(), 0);
    assert_eq!(played.text(), "hello\n17");
    let silent = play(&format!("--script {script} --ignore-stdin"), "unread");
    assert_eq!(silent.text(), "hello\n0");
}

fn empty_prompt_is_answered() {
    assert_eq!(play("", "").text(), "You said nothing.");
}

fn intermediate_texts_are_joined_in_the_result() {
    assert_eq!(play_steps("", &["say one", r#"say "two\nthree""#]).text(), "one\ntwo\nthree");
}

fn script_continues_after_the_answer() {
    let played = play_steps("", &["answer done", "say afterthought"]);
    let kinds: Vec<_> = played.events().iter().map(|e| e["type"].as_str().unwrap().to_owned()).collect();
    assert_eq!(kinds, ["system", "assistant", "result", "assistant"]);
}

fn exit_code_follows_the_result() {
    let played = play_steps("", &["answer done", "exit 7"]);
    assert_eq!((played.code(), played.text().as_str()), (7, "done"));
}

fn delay_step_waits() {
    let start = Instant::now();
    play_steps("", &["delay 120ms"]);
    assert!(start.elapsed() >= Duration::from_millis(120));
}

fn raw_line_is_printed_verbatim() {
    let played = play_steps("--as plain", &["raw  Loading {config}…", "answer ok"]);
    assert_eq!(String::from_utf8(played.stdout).unwrap(), "Loading {config}…\nok\n");
}

fn invalid_step_is_rejected_before_the_first_event() {
    let played = play_steps("", &["say hello", "slep 1s"]);
    assert_eq!((played.code(), played.stdout.len()), (2, 0));
    assert_eq!(
        played.stderr,
        "error: line 2: unknown step `slep`\nhint: list the steps with `rehearsal --help`\n"
    );
}

fn invalid_flag_is_named() {
    let played = play("--as siri", "x");
    assert_eq!((played.code(), played.stdout.len()), (2, 0));
    assert!(played.stderr.contains("`siri`") && played.stderr.contains("\nhint: "), "{}", played.stderr);
}

fn missing_script_is_named() {
    let played = play("--script /nowhere/at/all", "x");
    assert_eq!(played.code(), 2);
    assert!(played.stderr.contains("`/nowhere/at/all`"), "{}", played.stderr);
}

fn help_lists_every_flag_and_version_is_one_line() {
    let help = play("--help", "");
    let text = String::from_utf8(help.stdout).unwrap();
    for word in ["--as", "--script", "--ignore-stdin", "--resume", "@rehearse", "spawn", "keep-stdout"] {
        assert!(text.contains(word), "{word}");
    }
    let version = String::from_utf8(play("--version", "").stdout).unwrap();
    assert_eq!(version, concat!("rehearsal ", env!("CARGO_PKG_VERSION"), "\n"));
}
