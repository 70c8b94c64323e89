//! Programs and links that an agent plants in its workspace for later commands of the user.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::harness::{Harness, stderr, stdout};

/// Runs a call in the working directory of the harness, which becomes an earlier workspace, and returns it.
fn work_in(harness: &Harness, options: &[&str]) -> PathBuf {
    let work = harness.work().canonicalize().unwrap();
    let call = ["call", "rehearsal", "--cwd", work.to_str().unwrap(), "@rehearse answer done"];
    let output = harness.run(&[&call, options].concat());
    assert_eq!(stdout(&output), "done\n", "{output:?}");
    work
}

/// Installs a program that leaves a file behind when it runs.
fn install(program: &Path, mark: &Path) {
    fs::create_dir_all(program.parent().unwrap()).unwrap();
    fs::write(program, format!("#!/bin/sh\necho \"$@\" > {}\n", mark.display())).unwrap();
    fs::set_permissions(program, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn setup_and_open_run_no_program_of_an_earlier_workspace() {
    let harness = Harness::new();
    let work = work_in(&harness, &[]);
    check_earlier_workspace(&harness, &work);
}

#[test]
fn workspace_of_a_call_that_the_ceiling_confines_is_remembered() {
    for direct in [false, true] {
        let harness = Harness::new();
        harness.configure("[sandbox]\nceiling = \"workspace\"\n");
        let work =
            work_in(&harness, if direct { &["--policy", "off", "--direct"] } else { &["--policy", "off"] });
        check_earlier_workspace(&harness, &work);
    }
}

/// Checks that no program in an earlier workspace is run.
fn check_earlier_workspace(harness: &Harness, work: &Path) {
    let scratch = harness.scratch().canonicalize().unwrap();
    let [planted, own] = [work.join("bin"), scratch.join("bin")];
    let mark = scratch.join("mark");
    for name in ["claude", "xdg-open", "open"] {
        install(&planted.join(name), &mark);
    }
    let run = |args: &[&str], directory: &Path| {
        let path = format!(".:{}:{}:/usr/bin:/bin", planted.display(), own.display());
        let mut command = harness.command(args);
        command.env("PATH", path).env("HOME", &scratch).env("DISPLAY", ":9").current_dir(directory);
        command.output().unwrap()
    };
    for directory in [&scratch, &work.join("bin")] {
        let output = run(&["setup", "claude"], directory);
        assert!(
            !output.status.success() && stderr(&output).contains("/claude` is in a workspace"),
            "{output:?}"
        );
        let output = run(&["open"], directory);
        assert!(stdout(&output).starts_with("http://"), "{output:?}");
        assert!(!mark.exists(), "{:?}", fs::read_to_string(&mark));
    }
    // One that is elsewhere in `PATH` is run.
    install(&own.join("xdg-open"), &mark);
    let output = run(&["open"], &scratch);
    assert!(fs::read_to_string(&mark).unwrap().starts_with("http://"), "{output:?}");
}

#[test]
fn link_in_an_earlier_workspace_redirects_no_call() {
    let harness = Harness::new();
    let work = work_in(&harness, &[]);
    let private = harness.scratch().canonicalize().unwrap().join("private");
    fs::create_dir(&private).unwrap();
    symlink(&private, work.join("sub")).unwrap();
    symlink(".", work.join("here")).unwrap();
    let sub = work.join("sub");
    let sub = sub.to_str().unwrap();
    let prompt = "@rehearse write planted x\n@rehearse answer done";
    let work = work.to_str().unwrap();
    for options in [&["--cwd", sub][..], &["--direct", "--cwd", sub], &["--cwd", work, "--add-dir", sub]] {
        let output = harness.run(&[&["call", "rehearsal", prompt][..], options].concat());
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(9), "{options:?}: {output:?}");
        let link = format!("`{sub}` is a link to `{}`", private.display());
        let hint = format!("pass the real path itself if you mean it: `{}`", private.display());
        assert!(said.contains(&link) && said.contains(&hint), "{said}");
    }
    // A shell that entered the directory through the link.
    let output =
        harness.command(&["call", "rehearsal", prompt]).env("PWD", sub).current_dir(sub).output().unwrap();
    assert_eq!(output.status.code(), Some(9), "{output:?}");
    assert!(!private.join("planted").exists());
    let answer = "@rehearse answer done";
    for directory in [format!("{work}/here"), private.display().to_string()] {
        let output = harness.run(&["call", "rehearsal", "--cwd", &directory, answer]);
        assert_eq!(stdout(&output), "done\n", "{output:?}");
    }
}
