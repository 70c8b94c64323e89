//! The page in headless Chromium. `browser.mjs` runs the scenarios; screenshots are in `artefacts/web` of the target directory.
//!
//! Without Chromium, Node or playwright-core, the scenarios are skipped with the reason. `scripts/chromium` installs them.

use std::path::PathBuf;
use std::process::Command;

use crate::bed::Harness as Bed;

const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts");
const SCENARIOS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/web/browser.mjs");

/// Returns the paths of Chromium and Playwright, or the reason why they are missing.
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

/// Returns the directory of the screenshots. This program is three levels below the target directory.
fn artefacts() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.ancestors().nth(3).unwrap().join("artefacts/web")
}

fn run_scenario(scenario: &str) {
    let (chromium, playwright) = match browser() {
        Ok(found) => found,
        Err(reason) => {
            println!("SKIPPED the scenario `{scenario}` in a browser: {reason}");
            return;
        }
    };
    let bed = Bed::new();
    let output = Command::new("node")
        .args([SCENARIOS, scenario])
        .env("CHROMIUM", chromium)
        .env("PLAYWRIGHT", playwright)
        .env("SWITCHBOARD", env!("CARGO_BIN_EXE_switchboard"))
        .env("SWITCHBOARD_HOME", &bed.home)
        .env("WORK", bed.work())
        .env("ARTEFACTS", artefacts())
        // Chromium writes to its home directory.
        .env("HOME", bed.scratch())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{scenario}: {errors}\nthe daemon: {}", bed.log());
}

#[test]
fn browser_login_link_works_once() {
    run_scenario("login");
}

#[test]
fn browser_list_shows_new_jobs_live() {
    run_scenario("list");
}

#[test]
fn browser_stops_polling_without_a_daemon() {
    run_scenario("gone");
}

#[test]
fn browser_transcript_grows_until_the_end() {
    run_scenario("transcript");
}

#[test]
fn browser_cancels_and_retries_after_confirmation() {
    run_scenario("cancel");
}

#[test]
fn browser_applies_and_undoes_changes() {
    run_scenario("changes");
}

#[test]
fn browser_compares_and_keeps_a_contender() {
    run_scenario("groups");
}

#[test]
fn browser_draws_the_charts() {
    run_scenario("plots");
}

#[test]
fn browser_runs_no_agent_markup() {
    run_scenario("hostile");
}

#[test]
fn browser_layout_fits_a_phone() {
    run_scenario("narrow");
}

#[test]
fn browser_pages_work_without_javascript() {
    run_scenario("plain");
}

#[test]
fn browser_pages_are_keyboard_accessible() {
    run_scenario("keyboard");
}
