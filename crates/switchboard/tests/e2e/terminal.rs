//! A real terminal: tmux sends keys, and the tests read the screen.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::thread::sleep;
use std::time::{Duration, Instant};
use testkit::eventually;

use crate::harness::{Harness, stdout};
use crate::shop::Shop;

/// Bounds every wait. Longer than any step takes on a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// A shell in a private tmux server.
struct Terminal<'a> {
    harness: &'a Harness,
    socket: PathBuf,
}

impl<'a> Terminal<'a> {
    /// Returns `None`, and reports a skip, without tmux.
    fn open(harness: &'a Harness) -> Option<Self> {
        let found = Command::new("tmux").arg("-V").output();
        if !found.is_ok_and(|found| found.status.success()) {
            println!("SKIPPED: there is no tmux here (Debian: apt install tmux)");
            return None;
        }
        let terminal = Self { harness, socket: harness.scratch().join("tmux") };
        let shell = "env 'PS1=> ' bash --noprofile --norc";
        let begun = terminal.tmux(&["-f", "/dev/null", "new-session", "-d", "-x", "110", "-y", "40", shell]);
        assert!(begun.status.success(), "{begun:?}");
        terminal.until(">");
        Some(terminal)
    }

    fn tmux(&self, words: &[&str]) -> Output {
        let directory = PathBuf::from(env!("CARGO_BIN_EXE_switchboard"));
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin", directory.parent().unwrap().display());
        Command::new("tmux")
            .env_clear()
            .envs([("TERM", "xterm-256color"), ("SHELL", "/bin/bash"), ("LANG", "C.UTF-8"), ("PATH", &path)])
            .env("SWITCHBOARD_HOME", &self.harness.home)
            .arg("-S")
            .arg(&self.socket)
            .args(words)
            .output()
            .unwrap()
    }

    fn enter(&self, line: &str) {
        self.tmux(&["send-keys", "-l", line]);
        self.tmux(&["send-keys", "Enter"]);
    }

    fn press(&self, key: &str) {
        self.tmux(&["send-keys", key]);
    }

    /// Waits until the screen contains a text.
    fn until(&self, text: &str) -> String {
        let patience = Instant::now() + PATIENCE;
        loop {
            let screen = stdout(&self.tmux(&["capture-pane", "-p"]));
            if screen.contains(text) {
                return screen;
            }
            assert!(Instant::now() < patience, "no `{text}` on the screen:\n{screen}");
            sleep(LOOK_AGAIN);
        }
    }
}

impl Drop for Terminal<'_> {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

#[test]
fn ctrl_c_cancels_call_on_terminal() {
    let harness = Harness::new();
    let Some(terminal) = Terminal::open(&harness) else { return };
    terminal.enter(r"switchboard call rehearsal $'@rehearse say I am at it\n@rehearse hang'; echo it was $?");
    terminal.until("\nI am at it");
    terminal.press("C-c");
    let screen = terminal.until("it was 4");
    assert!(screen.contains("cancelled after "), "{screen}");
    let jobs = stdout(&harness.run(&["jobs"]));
    assert!(jobs.contains("cancelled"), "{jobs}");
}

#[test]
fn tool_calls_are_printed_on_terminal() {
    let harness = Harness::new();
    let Some(terminal) = Terminal::open(&harness) else { return };
    terminal.enter(concat!(
        "switchboard call rehearsal $'@rehearse tool-error Bash cargo test => Exit code 101\\n",
        "@rehearse tool Edit {\"file_path\":\"'$PWD$'/src/lib.rs\"}\\n",
        "@rehearse answer done'; echo it was $?"
    ));
    let screen = terminal.until("it was 0");
    let failed = screen.find("\n· Bash  cargo test  ✗ exit 101").unwrap_or_else(|| panic!("{screen}"));
    let edited = screen.find("\n· Edit  src/lib.rs  ✓").unwrap_or_else(|| panic!("{screen}"));
    let answer = screen.find("\ndone\n").unwrap_or_else(|| panic!("{screen}"));
    assert!(failed < edited && edited < answer, "{screen}");
}

#[test]
fn watched_table_is_updated() {
    let harness = Harness::new();
    let Some(terminal) = Terminal::open(&harness) else { return };
    terminal.enter("switchboard jobs --watch");
    let id = stdout(&harness.run(&["call", "rehearsal", "--background", "@rehearse hang"]));
    terminal.until(&id[..8]);
    terminal.until("running");
    assert!(harness.run(&["cancel", id.trim()]).status.success());
    terminal.until("cancelled");
    terminal.press("C-c");
    // The shell has the terminal again.
    terminal.enter("echo over$((1 + 1))");
    terminal.until("over2");
}

#[test]
fn partial_line_is_shown_once() {
    let harness = Harness::new();
    let Some(terminal) = Terminal::open(&harness) else { return };
    // Half a line, and no more until it is cancelled.
    terminal.enter(
        r"switchboard call rehearsal $'@rehearse stream 2 4 1ms\n@rehearse stream 2 4 3600s'; echo it was $?",
    );
    terminal.until("aaaabbbb\naaaa");
    let screen = terminal.until("· answering");
    let progress = screen.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    assert!(progress.ends_with("· answering"), "the line of progress is below:\n{screen}");
    terminal.press("C-c");
    let screen = terminal.until("it was 4");
    assert_eq!(screen.matches("aaaa").count(), 2, "every word is there once:\n{screen}");
    assert!(
        !screen.contains("answering") && !screen.contains("^C"),
        "nothing is left of the drawing:\n{screen}"
    );
    terminal.enter("stty -a");
    terminal.until(" echoctl");
}

/// Control sequences and invisible characters, each kind at least once.
fn hostile() -> String {
    let controls = (1..0x20).chain(0x7f..0xa0).filter_map(char::from_u32).filter(|c| !"\n\t\r".contains(*c));
    let sequences = [
        "\u{1b}]52;c;SEVMRA==\u{7}",
        "\u{1b}]0;title\u{1b}\\",
        "\u{1b}[2J",
        "\u{1b}[8mX",
        "\u{1b}P1$q\u{1b}\\",
        "\u{1b}c",
    ];
    let turns =
        "\u{61c}\u{200e}\u{200f}\u{202a}\u{202b}\u{202d}\u{202e}\u{2028}\u{2029}\u{2066}\u{2069}\u{e0041}";
    format!("<{}{}{turns}>", sequences.concat(), controls.collect::<String>())
}

/// Fails if bytes for a terminal contain more than text and our own drawing sequences.
fn assert_harmless(sent: &str) {
    let own = ["[0m", "[1m", "[31m", "[32m", "[33m", "[36m", "[2K", "[1A", "[J", "[H", "[G"];
    let mut rest = sent;
    while let Some(at) = rest.find(|c: char| c.is_control() && !"\n\r\t".contains(c)) {
        let from = &rest[at..];
        let sequence =
            from.strip_prefix('\u{1b}').and_then(|from| own.iter().find(|own| from.starts_with(**own)));
        let Some(sequence) = sequence else {
            panic!("{:?} after {:?}", from.chars().take(12).collect::<String>(), &rest[..at])
        };
        rest = &from[1 + sequence.len()..];
    }
    let turn = |c: char| matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{e0000}'..='\u{e007f}');
    assert!(!sent.contains(turn), "{sent}");
}

#[test]
fn agent_output_cannot_control_terminal() {
    let harness = Harness::new();
    let Some(terminal) = Terminal::open(&harness) else { return };
    let hostile = hostile();
    let directory = harness.scratch().join(hostile.replace(['/', '<', '>'], "_"));
    fs::create_dir(&directory).unwrap();
    let input = serde_json::json!({ "command": hostile, "file_path": hostile });
    let prompt = format!(
        "{hostile}\n@rehearse think {hostile}\n@rehearse tool-error Bash {input} => {hostile}\n@rehearse tool {hostile} {input}\n\
         @rehearse say {hostile}\n@rehearse raw {hostile}\n@rehearse fail other {hostile}"
    );
    fs::write(harness.scratch().join("prompt"), &prompt).unwrap();
    fs::write(harness.scratch().join("hostile"), &hostile).unwrap();
    harness.run(&["call", "rehearsal", &prompt]);
    let jobs: serde_json::Value = serde_json::from_str(&stdout(&harness.run(&["jobs", "--json"]))).unwrap();
    let id = jobs["jobs"][0]["job_id"].as_str().unwrap_or_else(|| panic!("{jobs}"));
    // What its stderr would be.
    fs::write(harness.state().join("jobs").join(id).join("runs/1/error"), &hostile).unwrap();
    let script = format!(
        "cd '{scratch}'; H=$(cat hostile); echo it starts\n\
         switchboard call rehearsal --cwd '{cwd}' \"$(cat prompt)\"\n\
         switchboard call rehearsal --direct --cwd '{cwd}' \"$(cat prompt)\"\n\
         for how in '' --raw --error --json -f; do switchboard logs $how {id}; done\n\
         switchboard jobs; switchboard jobs --json; switchboard status {id}; switchboard wait {id}; switchboard stats\n\
         switchboard status \"$H\"; switchboard \"$H\"; switchboard call \"$H\" x; switchboard call rehearsal --cwd \"/$H\" x\n\
         switchboard call rehearsal --model \"$H\" --session \"$H\" x; switchboard cancel \"$H\"; switchboard config; switchboard doctor\n\
         echo it is over\n",
        scratch = harness.scratch().display(),
        cwd = directory.display(),
    );
    fs::write(harness.scratch().join("script"), script).unwrap();
    let sent = harness.scratch().join("sent");
    terminal.tmux(&["pipe-pane", &format!("cat > '{}'", sent.display())]);
    terminal.enter(&format!("sh '{}/script'", harness.scratch().display()));
    eventually("the commands are over", || {
        fs::read(&sent).is_ok_and(|sent| String::from_utf8_lossy(&sent).contains("it is over"))
    });
    let sent = fs::read(sent).unwrap();
    let sent = String::from_utf8(sent).unwrap();
    // What is before and after is the shell's.
    let (_, sent) = sent.split_once("it starts\r\n").unwrap();
    let (sent, _) = sent.split_once("it is over").unwrap();
    assert!(sent.contains("␇") && sent.contains("⟨U+202E⟩"), "{sent}");
    assert_harmless(sent);
}

#[test]
fn keep_asks_before_it_discards_others() {
    let shop = Shop::new();
    let Some(terminal) = Terminal::open(&shop.harness) else { return };
    terminal.enter(&format!("cd {}", shop.root.display()));
    terminal.enter(
        r"switchboard race $'@rehearse only a write a.txt a\n@rehearse only b write a.txt b' --with rehearsal:a,rehearsal:b; echo it was $?",
    );
    let screen = terminal.until("it was 0");
    assert!(screen.contains("changed by several: a.txt (1, 2)"), "{screen}");
    let row = screen.lines().find(|line| line.starts_with("1  rehearsal:a ")).unwrap();
    let job = row.split_whitespace().last().unwrap();
    terminal.enter(&format!("switchboard keep {job}"));
    let screen = terminal.until("cancel and discard the others? [y/N]");
    assert!(screen.contains("\n2 (rehearsal:b, "), "{screen}");
    terminal.enter("n");
    terminal.until("the others stay as they are");
    assert_eq!((shop.checkouts(), shop.read("a.txt").as_str()), (1, "a"));
    terminal.enter(&format!("switchboard keep {job}"));
    terminal.until("the changes are already applied");
    terminal.enter("y");
    terminal.until("\ndiscarded: ");
    assert_eq!(shop.checkouts(), 0);
}
