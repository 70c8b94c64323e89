//! The agent reports its inputs correctly.

use crate::cast::{Live, agent, cpu_ticks, play, play_command, play_steps, prompt_of, tests};

tests![
    the_environment_is_told,
    the_command_line_is_told,
    the_working_directory_is_told,
    no_descriptor_is_open_that_was_not_given,
    prompt_bytes_are_counted_not_characters,
    a_prompt_that_is_not_utf8_is_echoed_with_replacements,
    a_large_prompt_is_read_to_its_end,
    a_file_is_written,
    a_refused_file_is_told_and_not_the_end,
    burning_uses_that_much_cpu,
    allocated_memory_is_really_used,
];

fn the_environment_is_told() {
    let mut command = agent("");
    command.env_clear().env("COLOUR", "blue").env("SHAPE", "round");
    let played = play_command(command, prompt_of(&["env COLOUR", "env NOTHING", "env"]).as_bytes());
    assert_eq!(played.text(), "COLOUR=blue\nNOTHING is not set\nCOLOUR=blue\nSHAPE=round");
}

fn the_command_line_is_told() {
    let mut command = agent("-p");
    command.arg("two words\n");
    let played = play_command(command, prompt_of(&["args"]).as_bytes());
    let args: Vec<String> = serde_json::from_str(&played.text()).unwrap();
    assert_eq!(args[1..], [rehearsal::CUE, "-p", "two words\n"]);
}

fn the_working_directory_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = agent("");
    command.current_dir(folder.path());
    let played = play_command(command, prompt_of(&["cwd"]).as_bytes());
    assert_eq!(played.text(), folder.path().canonicalize().unwrap().to_str().unwrap());
    assert_eq!(played.events()[0]["cwd"], played.text());
}

fn no_descriptor_is_open_that_was_not_given() {
    let text = play_steps("", &["fds"]).text();
    let lines: Vec<_> = text.lines().collect();
    for (number, line) in lines[..3].iter().enumerate() {
        assert!(line.starts_with(&format!("{number} pipe:[")), "{line}");
    }
    for line in &lines[3..] {
        let (number, target) = line.split_once(' ').unwrap();
        let ours = std::fs::read_link(format!("/proc/self/fd/{number}"));
        assert_eq!(ours.ok().as_deref(), Some(std::path::Path::new(target)), "{line}");
    }
}

fn prompt_bytes_are_counted_not_characters() {
    assert_eq!(play("", "@rehearse stdin-bytes\né\n").text(), "25");
}

fn a_prompt_that_is_not_utf8_is_echoed_with_replacements() {
    assert_eq!(play("", b"a\xffb\0c").text(), "You said: a\u{fffd}b\0c");
}

fn a_large_prompt_is_read_to_its_end() {
    let prompt = format!("{}\n@rehearse stdin-bytes", "x".repeat(10_000_000));
    assert_eq!(play("", &prompt).text(), prompt.len().to_string());
}

fn a_file_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a file");
    let step = format!("write \"{}\" some text", path.display());
    let played = play_steps("", &[&step]);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "some text");
    assert_eq!(played.events()[1]["message"]["content"][0]["name"], "Write");
}

fn a_refused_file_is_told_and_not_the_end() {
    let played = play_steps("", &["write /nowhere/at/all text", "answer I could not."]);
    assert_eq!((played.code(), played.text().as_str()), (0, "I could not."));
    assert_eq!(played.events()[2]["message"]["content"][0]["is_error"], true);
}

fn burning_uses_that_much_cpu() {
    let mut live = Live::start("", &["burn 100ms", "say burnt", "hang"]);
    live.read_to("burnt");
    let ticks = cpu_ticks(live.pid());
    assert!((9..=20).contains(&ticks), "{ticks} hundredths of a second");
}

fn allocated_memory_is_really_used() {
    let mut live = Live::start("", &["alloc 50MB", "say settled", "hang"]);
    live.read_to("settled");
    let path = format!("/proc/{}/status", live.pid().as_raw_nonzero());
    let status = std::fs::read_to_string(path).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let kilobytes: u64 = resident.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kilobytes > 48_000, "{kilobytes} kB");
}
