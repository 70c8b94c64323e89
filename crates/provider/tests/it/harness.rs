//! A harness for one test: a directory with a home, a workspace and a scripted agent, which is this binary.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use provider::{CallPolicy, ProviderConfig, RehearsalProvider};
use tempfile::TempDir;

use crate::outside;
use testkit::eventually_async;

/// The timeout of a test.
const LONG: Duration = Duration::from_mins(2);

pub struct Harness {
    directory: TempDir,
}

impl Harness {
    /// Runs a test, and then checks from outside that nothing is left.
    pub fn run<F: AsyncFnOnce(&Self)>(test: F) {
        let harness = Self::new();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            tokio::time::timeout(LONG, test(&harness)).await.expect("the test hangs");
            harness.nothing_is_left().await;
        });
    }

    /// Creates a harness for a test in a separate process.
    pub fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("provider-it-").tempdir_in("/var/tmp").unwrap();
        for name in ["bin", "home", "spools", "work"] {
            fs::create_dir(directory.path().join(name)).unwrap();
        }
        let harness = Self { directory };
        harness.agent("");
        harness
    }

    /// Creates the agent: first these shell lines, then the prompt's script. `$@` are its arguments.
    pub fn agent(&self, first: &str) {
        let this = std::env::current_exe().unwrap();
        let cue = rehearsal::CUE;
        self.program("rehearsal", &format!("{first}\nexec '{}' {cue} \"$@\"", this.display()));
    }

    /// Creates a program in `PATH`.
    pub fn program(&self, name: &str, body: &str) -> PathBuf {
        let path = self.path("bin").join(name);
        // Created beside its path and renamed: a file that is open for writing cannot be executed (ETXTBSY).
        let fresh = self.path("bin").join(format!("{name}.new"));
        fs::write(&fresh, format!("#!/bin/sh\n{body}\n")).unwrap();
        fs::set_permissions(&fresh, fs::Permissions::from_mode(0o755)).unwrap();
        fs::rename(&fresh, &path).unwrap();
        path
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn config(&self) -> ProviderConfig {
        ProviderConfig {
            working_dir: Some(self.path("work")),
            environment: Some(self.environment()),
            spools: Some(self.path("spools")),
            timeout: Duration::from_mins(1),
            policy: CallPolicy::off(),
            ..ProviderConfig::default()
        }
    }

    /// Returns a complete environment without variables of this process.
    pub fn environment(&self) -> BTreeMap<String, String> {
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        BTreeMap::from([
            ("HOME".to_owned(), text(&self.path("home"))),
            // Includes the directory of this program: a confined agent executes it, and below /tmp it sees only the directories
            // in PATH.
            (
                "PATH".to_owned(),
                format!("{}:/usr/bin:/bin:{}", text(&self.path("bin")), text(&own_directory())),
            ),
        ])
    }

    pub fn provider(&self) -> RehearsalProvider {
        self.provider_with(|_| {})
    }

    pub fn provider_with(&self, change: impl FnOnce(&mut ProviderConfig)) -> RehearsalProvider {
        let mut config = self.config();
        change(&mut config);
        RehearsalProvider::from_config(config)
    }

    /// Lists all files of running requests.
    pub fn spooled(&self) -> Vec<PathBuf> {
        files_in(&self.path("spools"))
    }

    /// Lists the private files of the current run.
    pub fn private_files(&self) -> Vec<PathBuf> {
        self.spooled()
            .into_iter()
            .filter(|file| file.parent().is_some_and(|p| p.ends_with("private")))
            .collect()
    }

    /// Waits until no process and no file of any request is left.
    pub async fn nothing_is_left(&self) {
        let gone = async || outside::processes_of(self.directory.path()).is_empty();
        eventually_async("no process is left", gone).await;
        let names: Vec<_> =
            fs::read_dir(self.path("spools")).unwrap().flatten().map(|entry| entry.path()).collect();
        assert_eq!(names, Vec::<PathBuf>::new());
    }
}

fn files_in(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .flat_map(|entry| match entry.file_type() {
            Ok(kind) if kind.is_dir() => files_in(&entry.path()),
            _ => vec![entry.path()],
        })
        .collect()
}

fn own_directory() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}
