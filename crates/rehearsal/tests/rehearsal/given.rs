//! The agent reports its inputs correctly.

use crate::harness::{Live, agent, cpu_ticks, play, play_command, play_steps, prompt_of, tests};

tests![
    environment_is_reported,
    command_line_is_reported,
    working_directory_is_reported,
    only_inherited_descriptors_are_open,
    prompt_size_is_counted_in_bytes,
    non_utf8_prompt_is_echoed_with_replacements,
    large_prompt_is_read_completely,
    write_step_writes_a_file,
    failed_write_is_reported_and_not_fatal,
    burn_step_uses_the_given_cpu_time,
    allocated_memory_is_resident,
];

fn environment_is_reported() {
    let mut command = agent("");
    command.env_clear().env("COLOUR", "blue").env("SHAPE", "round");
    let played = play_command(command, prompt_of(&["env COLOUR", "env NOTHING", "env"]).as_bytes());
    assert_eq!(played.text(), "COLOUR=blue\nNOTHING is not set\nCOLOUR=blue\nSHAPE=round");
}

fn command_line_is_reported() {
    let mut command = agent("-p");
    command.arg("two words\n");
    let played = play_command(command, prompt_of(&["args"]).as_bytes());
    let args: Vec<String> = serde_json::from_str(&played.text()).unwrap();
    assert_eq!(args[1..], [rehearsal::CUE, "-p", "two words\n"]);
}

fn working_directory_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = agent("");
    command.current_dir(directory.path());
    let played = play_command(command, prompt_of(&["cwd"]).as_bytes());
    assert_eq!(played.text(), directory.path().canonicalize().unwrap().to_str().unwrap());
    assert_eq!(played.events()[0]["cwd"], played.text());
}

fn only_inherited_descriptors_are_open() {
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

fn prompt_size_is_counted_in_bytes() {
    assert_eq!(play("", "@rehearse stdin-bytes\né\n").text(), "25");
}

fn non_utf8_prompt_is_echoed_with_replacements() {
    assert_eq!(play("", b"a\xffb\0c").text(), "You said: a\u{fffd}b\0c");
}

fn large_prompt_is_read_completely() {
    let prompt = format!("{}\n@rehearse stdin-bytes", "x".repeat(10_000_000));
    assert_eq!(play("", &prompt).text(), prompt.len().to_string());
}

fn write_step_writes_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a file");
    let step = format!("write \"{}\" some text", path.display());
    let played = play_steps("", &[&step]);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "some text");
    assert_eq!(played.events()[1]["message"]["content"][0]["name"], "Write");
}

fn failed_write_is_reported_and_not_fatal() {
    let played = play_steps("", &["write /nowhere/at/all text", "answer I could not."]);
    assert_eq!((played.code(), played.text().as_str()), (0, "I could not."));
    assert_eq!(played.events()[2]["message"]["content"][0]["is_error"], true);
}

fn burn_step_uses_the_given_cpu_time() {
    let mut live = Live::start("", &["burn 100ms", "say burnt", "hang"]);
    live.read_to("burnt");
    let ticks = cpu_ticks(live.pid());
    assert!((9..=20).contains(&ticks), "{ticks} hundredths of a second");
}

fn allocated_memory_is_resident() {
    let mut live = Live::start("", &["alloc 50MB", "say settled", "hang"]);
    live.read_to("settled");
    let path = format!("/proc/{}/status", live.pid().as_raw_nonzero());
    let status = std::fs::read_to_string(path).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let kilobytes: u64 = resident.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kilobytes > 48_000, "{kilobytes} kB");
}
