//! The generated documents: the reference in `docs/cli.md`, completions and manual pages.

use std::fmt::Write;

use clap::{Arg, Command, CommandFactory};
use switchboard::cli::CommandLine;

use crate::harness::{Harness, stdout};

/// Marks the start of the generated part.
const BEGIN: &str = "<!-- generated: the commands -->\n";
const COMMANDS: [&str; 26] = [
    "call",
    "jobs",
    "status",
    "logs",
    "diff",
    "undo",
    "apply",
    "discard",
    "race",
    "keep",
    "wait",
    "cancel",
    "retry",
    "stats",
    "open",
    "agents",
    "doctor",
    "setup",
    "setup service",
    "completions",
    "man",
    "config",
    "mcp",
    "serve",
    "stop",
    "recover",
];

/// The maximum length of a help summary.
const MAX_SUMMARY_CHARS: usize = 80;

/// The arguments of all commands.
fn words() -> impl Iterator<Item = &'static str> {
    COMMANDS.iter().flat_map(|name| name.split(' '))
}

fn reference(harness: &Harness) -> String {
    let mut text = String::new();
    for name in COMMANDS {
        let words: Vec<&str> = name.split(' ').chain(["--help"]).collect();
        let help = stdout(&harness.run(&words));
        let help: Vec<&str> = help.lines().map(str::trim_end).collect();
        writeln!(text, "\n## `switchboard {name}`\n\n```text\n{}\n```", help.join("\n")).unwrap();
    }
    text
}

#[test]
fn cli_reference_matches_help() {
    let harness = Harness::new();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (words, generated) = text.split_once(BEGIN).unwrap();
    let reference = reference(&harness);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, format!("{words}{BEGIN}{reference}")).unwrap();
    } else {
        assert_eq!(generated, reference, "docs/cli.md is out of date: run this test with UPDATE_DOCS=1");
    }
}

#[test]
fn documented_exit_codes_match_help() {
    let harness = Harness::new();
    let help = stdout(&harness.run(&["call", "--help"])).replace('`', "");
    let (_, table) = help.split_once("Exit codes:\n").unwrap();
    let rows: Vec<String> = table
        .lines()
        .filter_map(|line| line.trim().split_once("  "))
        .map(|(code, meaning)| format!("| {code} | {meaning} |"))
        .collect();
    assert_eq!(rows.len(), 11, "{table}");
    let page = include_str!("../../../../docs/cli.md").replace('`', "");
    let missing: Vec<&String> = rows.iter().filter(|row| !page.contains(row.as_str())).collect();
    assert_eq!(missing, Vec::<&String>::new(), "docs/cli.md lacks them");
}

#[test]
fn every_command_is_documented() {
    let harness = Harness::new();
    let help = stdout(&harness.run(&["--help"]));
    let listed = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let listed: Vec<&str> =
        listed.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next()).collect();
    let mut missing: Vec<&str> = listed.into_iter().filter(|name| !["", "help"].contains(name)).collect();
    missing.retain(|name| !COMMANDS.contains(name));
    assert_eq!(missing, Vec::<&str>::new(), "the reference lacks them");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = stdout(&harness.run(&["completions", shell]));
        assert!(words().all(|name| script.contains(name)), "{shell}");
    }
    assert!(stdout(&harness.run(&["man"])).contains(".TH switchboard 1"));
    let directory = harness.scratch().join("man");
    assert!(harness.run(&["man", "--out", directory.to_str().unwrap()]).status.success());
    for name in COMMANDS {
        assert!(directory.join(format!("switchboard-{}.1", name.replace(' ', "-"))).is_file(), "{name}");
    }
}

/// Returns the summaries of a command, its options and its subcommands that are too long.
fn long_summaries(command: &Command) -> Vec<String> {
    let about = command.get_about().map(ToString::to_string);
    let options: Vec<&Arg> = command.get_arguments().collect();
    let values = options.iter().flat_map(|option| option.get_possible_values());
    let values = values.filter_map(|value| value.get_help().map(ToString::to_string));
    let options = options.iter().filter_map(|option| option.get_help().map(ToString::to_string));
    let is_long = |text: &String| text.lines().next().unwrap_or_default().chars().count() > MAX_SUMMARY_CHARS;
    let own = about.into_iter().chain(options).chain(values).filter(is_long);
    own.chain(command.get_subcommands().flat_map(long_summaries)).collect()
}

#[test]
fn help_summaries_fit_80_characters() {
    let command = CommandLine::command();
    assert!(command.get_subcommands().count() >= 19);
    assert_eq!(long_summaries(&command), Vec::<String>::new());
}
