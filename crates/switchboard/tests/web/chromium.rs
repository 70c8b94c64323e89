//! The page in headless Chromium. Each scene is played by `browser.mjs`; pictures are kept in `artefacts/web` of the build folder.
//!
//! Where there is no Chromium, no Node or no playwright-core, the scenes are skipped with the reason: `scripts/chromium` installs them.

use std::path::PathBuf;
use std::process::Command;

use crate::bed::Harness as Bed;

const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts");
const SCENES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/web/browser.mjs");

/// Where the browser is, and what drives it; or why not.
fn browser() -> Result<(PathBuf, PathBuf), String> {
    let mut command = Command::new(format!("{SCRIPTS}/chromium"));
    command.arg("--if-here");
    if std::env::var_os("SWITCHBOARD_TOOLS").is_none()
        && let Some(home) = std::env::var_os("HOME")
    {
        command.env("SWITCHBOARD_TOOLS", PathBuf::from(home).join(".cache/switchboard-tools"));
    }
    let output = command.output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).replace('\n', " "));
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let named = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map(PathBuf::from).ok_or_else(|| format!("scripts/chromium names no {name}"))
    };
    Ok((named("chromium")?, named("playwright")?))
}

/// The build folder, in which this test's own program is three folders down.
fn artefacts() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.ancestors().nth(3).unwrap().join("artefacts/web")
}

fn plays(scene: &str) {
    let (chromium, playwright) = match browser() {
        Ok(found) => found,
        Err(reason) => {
            println!("SKIPPED the scene `{scene}` in a browser: {reason}");
            return;
        }
    };
    let bed = Bed::new();
    let output = Command::new("node")
        .args([SCENES, scene])
        .env("CHROMIUM", chromium)
        .env("PLAYWRIGHT", playwright)
        .env("SWITCHBOARD", env!("CARGO_BIN_EXE_switchboard"))
        .env("SWITCHBOARD_HOME", &bed.home)
        .env("WORK", bed.work())
        .env("ARTEFACTS", artefacts())
        // Chromium writes to its home, which is nobody's here.
        .env("HOME", bed.scratch())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{scene}: {told}\nthe daemon: {}", bed.log());
}

#[test]
fn a_link_opens_the_page_in_one_browser_and_no_other() {
    plays("login");
}

#[test]
fn a_job_that_is_placed_later_appears_in_the_list() {
    plays("list");
}

#[test]
fn page_stops_asking_when_the_daemon_is_gone() {
    plays("gone");
}

#[test]
fn the_transcript_of_a_running_job_grows_and_its_end_is_seen() {
    plays("transcript");
}

#[test]
fn a_job_is_cancelled_and_placed_again_after_a_question() {
    plays("cancel");
}

#[test]
fn the_figures_are_drawn() {
    plays("plots");
}

#[test]
fn what_an_agent_says_stays_text() {
    plays("hostile");
}

#[test]
fn nothing_is_wider_than_a_telephone() {
    plays("narrow");
}

#[test]
fn everything_can_be_read_without_a_script() {
    plays("plain");
}

#[test]
fn everything_is_reached_by_the_keyboard_and_has_a_name() {
    plays("keyboard");
}
