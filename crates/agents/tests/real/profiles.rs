//! The paths that each tested version of an agent reads and writes in the home directory, traced with `strace`.
//!
//! The profiles are in `crates/agents/profiles`, one path per line: `w` for a path that is written at or below, `r` for one that
//! is read or looked up. The persistent paths in `src/state.rs` follow them. A version that touches another path fails here;
//! `UPDATE_PROFILES=1` adds it to the profile.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use model::{CallSpec, SessionChoice};
use model_api::{ModelApi, ModelTurn, Script};

use crate::harness::Harness;
use crate::pinned::Pinned;

crate::scenarios! {
    home_directory_access_matches_profile;
}

/// System calls that write, whatever they return.
const WRITING: &[&str] = &[
    "mkdir",
    "mkdirat",
    "rename",
    "renameat",
    "renameat2",
    "unlink",
    "unlinkat",
    "rmdir",
    "link",
    "linkat",
    "symlink",
    "symlinkat",
    "truncate",
    "mknod",
    "mknodat",
    "creat",
];

fn home_directory_access_matches_profile(cli: &Pinned) {
    if Command::new("strace").arg("-V").output().is_err() {
        eprintln!("SKIPPED: strace is not installed");
        return;
    }
    Harness::play(cli, async |harness| {
        let api = ModelApi::start(Script::turns(vec![
            ModelTurn::shell("echo heron > word"),
            ModelTurn::text("Done."),
            ModelTurn::shell("cat word"),
            ModelTurn::text("Done again."),
        ]))
        .await;
        let traces = [harness.directory().join("first"), harness.directory().join("second")];
        let mut session = SessionChoice::New;
        for trace in &traces {
            let spec = CallSpec { session, ..harness.spec("Write the word.") };
            let started = harness.place_with(&api, &spec, |plan| {
                let program = std::mem::replace(&mut plan.program, "/usr/bin/strace".into());
                let options = ["-f", "-qq", "-y", "-s", "4096", "-e", "trace=%file", "-o"];
                let mut args: Vec<String> = options.map(str::to_owned).to_vec();
                args.extend([trace, &program].map(|path| path.display().to_string()));
                plan.args.splice(0..0, args);
            });
            let done = started.await.end(None).await;
            assert!(done.succeeded().text.starts_with("Done"), "{done}");
            session = SessionChoice::Resume(done.session());
        }
        let home = harness.directory().join("home");
        let mut found = BTreeMap::new();
        for trace in &traces {
            read_trace(&fs::read_to_string(trace).unwrap(), &home, &mut found);
        }
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("profiles").join(format!("{cli}.txt"));
        let mut profile = read_profile(&path);
        if std::env::var_os("UPDATE_PROFILES").is_some() {
            for (path, is_written) in &found {
                *profile.entry(path.clone()).or_default() |= is_written;
            }
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let text: String = profile.iter().map(|(path, is_written)| line(path, *is_written)).collect();
            fs::write(&path, text).unwrap();
        }
        let drift = drift(&profile, &found);
        assert!(
            drift.is_empty(),
            "{cli} touches paths of the home directory that its profile does not have:\n{drift}"
        );
        // Otherwise the trace was not parsed.
        let kept = ["~/.claude/projects", "~/.codex/sessions", "~/.gemini/tmp"];
        assert!(kept.iter().any(|path| found.get(*path) == Some(&true)), "{found:?}");
    });
}

/// Returns the measured lines that are missing in the profile. Lines missing in the measurement depend on timing.
fn drift(profile: &BTreeMap<String, bool>, measured: &BTreeMap<String, bool>) -> String {
    let is_new = |(path, is_written): &(&String, &bool)| match profile.get(*path) {
        Some(known) => **is_written && !known,
        None => true,
    };
    measured.iter().filter(is_new).map(|(path, is_written)| line(path, *is_written)).collect()
}

fn line(path: &str, is_written: bool) -> String {
    format!("{} {path}\n", if is_written { 'w' } else { 'r' })
}

fn read_profile(path: &Path) -> BTreeMap<String, bool> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().map(|line| (line[2..].to_owned(), line.starts_with('w'))).collect()
}

/// Adds the paths of a trace as patterns, and whether each is written.
fn read_trace(trace: &str, home: &Path, found: &mut BTreeMap<String, bool>) {
    let home = home.to_str().unwrap();
    for line in trace.lines().filter(|line| line.contains(home)) {
        let Some((call, rest)) = line.split_once(' ').and_then(|(_, call)| call.trim_start().split_once('('))
        else {
            continue;
        };
        // The result of an interrupted call is on a later line.
        let has_failed = line.contains(") = -1 ") || line.contains("<unfinished");
        let opens_to_write = call.starts_with("open")
            && ["O_WRONLY", "O_RDWR", "O_CREAT"].iter().any(|flag| rest.contains(flag));
        let is_written = !has_failed && (WRITING.contains(&call) || opens_to_write);
        for path in paths_of(rest).filter(|path| path.starts_with(home)) {
            let pattern = pattern(path.to_str().unwrap(), home);
            if let Some(pattern) = pattern {
                *found.entry(pattern).or_default() |= is_written;
            }
        }
    }
}

/// Returns the paths of a call: relative ones below the directory that `strace -y` shows.
fn paths_of(arguments: &str) -> impl Iterator<Item = PathBuf> {
    let mut words = arguments.split('"');
    let mut before = words.next().unwrap_or_default();
    std::iter::from_fn(move || {
        let path = Path::new(words.next()?);
        let base =
            before.rsplit_once('<').and_then(|(_, base)| base.split_once('>')).map_or("/", |(base, _)| base);
        before = words.next().unwrap_or_default();
        Some(Path::new(base).join(path))
    })
}

/// Returns the first names of a path, without the parts that differ between runs. `None` for temporary files, which the test
/// keeps in the home directory.
fn pattern(path: &str, home: &str) -> Option<String> {
    let relative = path.strip_prefix(home)?;
    let parts: Vec<&str> = relative.split('/').filter(|part| !part.is_empty()).take(2).collect();
    if parts.first() == Some(&"tmp") {
        return None;
    }
    Some(
        std::iter::once("~".to_owned())
            .chain(parts.into_iter().map(pattern_of_name))
            .collect::<Vec<_>>()
            .join("/"),
    )
}

/// Returns a name with `*` in place of ids, numbers and random strings.
fn pattern_of_name(name: &str) -> String {
    for start in [".tmp", ".claude.json.tmp.", "projects.json."] {
        let is_random = name.strip_prefix(start).is_some_and(|rest| !rest.is_empty() && rest != "lock");
        if is_random {
            return format!("{start}*");
        }
    }
    name.to_owned()
}
