//! A user with a repository, for the tests of private checkouts.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::harness::{Harness, stdout};

/// A user with a git repository that has a modified and an untracked file.
pub struct Shop {
    pub harness: Harness,
    pub root: PathBuf,
}

impl Shop {
    /// Creates the repository and a home for the daemon.
    pub fn new() -> Self {
        let harness = Harness::new();
        let root = harness.work().canonicalize().unwrap();
        fs::create_dir(root.join("src")).unwrap();
        fs::write(root.join("a.txt"), "1\n2\n3\n4\n5\n6\n7\n8\n9\n").unwrap();
        fs::write(root.join("src/b.txt"), "b\n").unwrap();
        let shop = Self { harness, root };
        for args in [
            &["init", "-q", "-b", "main"] as &[&str],
            &["config", "user.name", "Ana"],
            &["config", "user.email", "ana@example.org"],
            &["add", "-A"],
            &["commit", "-q", "-m", "first"],
        ] {
            shop.git(args);
        }
        fs::write(shop.root.join("src/b.txt"), "edited\n").unwrap();
        fs::write(shop.root.join("untracked.txt"), "untracked\n").unwrap();
        shop
    }

    /// Runs git in the repository, and returns its stdout.
    pub fn git(&self, args: &[&str]) -> String {
        let output = Command::new("git").current_dir(&self.root).args(args).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        stdout(&output)
    }

    /// Returns the output of `git status`.
    pub fn status(&self) -> String {
        self.git(&["status", "--porcelain"])
    }

    /// Runs a command in a directory of the repository.
    pub fn run_in(&self, directory: &str, args: &[&str]) -> Output {
        let mut command = self.harness.command(args);
        command.current_dir(self.root.join(directory)).env("PATH", "/usr/local/bin:/usr/bin:/bin");
        command.output().unwrap()
    }

    /// Runs a command in the repository.
    pub fn run(&self, args: &[&str]) -> Output {
        self.run_in(".", args)
    }

    /// Runs a command that succeeds, and returns its stdout.
    pub fn succeed(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {output:?}");
        stdout(&output)
    }

    /// Places a call and returns its result.
    pub fn call(&self, script: &str, options: &[&str]) -> Value {
        let prompt = prompt(script);
        let output = self.run(&[&["call", "rehearsal", &prompt, "--json"], options].concat());
        assert!(output.status.success(), "{output:?}");
        serde_json::from_str(&stdout(&output)).unwrap()
    }

    /// Returns the result of a job.
    pub fn answer(&self, job: &str) -> Value {
        serde_json::from_str(&stdout(&self.run(&["status", job, "--json"]))).unwrap()
    }

    /// Reads a file of the repository.
    pub fn read(&self, path: &str) -> String {
        fs::read_to_string(self.root.join(path)).unwrap()
    }

    /// Returns the number of private checkouts.
    pub fn checkouts(&self) -> usize {
        fs::read_dir(self.harness.state().join("checkouts")).map_or(0, Iterator::count)
    }
}

/// Returns a prompt that plays a script.
pub fn prompt(script: &str) -> String {
    format!("@rehearse {}\n", script.replace('\n', "\n@rehearse "))
}

/// Returns the job of an answer.
pub fn id(answer: &Value) -> &str {
    answer["job_id"].as_str().unwrap()
}

/// Returns the contents of all files below a directory, links by their targets.
pub fn contents(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()) {
        let kind = fs::symlink_metadata(&entry).unwrap().file_type();
        if kind.is_dir() {
            found.extend(contents(&entry));
        } else {
            let content = if kind.is_symlink() { Vec::new() } else { fs::read(&entry).unwrap() };
            found.insert(entry, content);
        }
    }
    found
}

/// Checks that the files of a repository are as before, byte for byte, except for new branches of Switchboard with their objects and logs.
pub fn assert_only_branches_are_new(before: &BTreeMap<PathBuf, Vec<u8>>, root: &Path) {
    let mut after = contents(root);
    let new: Vec<PathBuf> = after.keys().filter(|path| !before.contains_key(*path)).cloned().collect();
    after.retain(|path, _| !new.contains(path));
    assert!(after == *before, "files of the user were changed or removed");
    let git = root.join(".git");
    let is_of_branch = |path: &PathBuf| {
        ["objects", "refs/heads/switchboard", "logs/refs/heads/switchboard"]
            .iter()
            .any(|own| path.starts_with(git.join(own)))
    };
    assert!(new.iter().all(is_of_branch), "{new:?}");
}
