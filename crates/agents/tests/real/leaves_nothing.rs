//! A default call in a real git repository, observed before, during and after it: no file appears that neither the user nor the
//! agent has created.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use model::{AgentKind, CallPolicy, CallSpec, End, RunReport, SandboxReport};
use model_api::{ModelApi, ModelTurn, Script};
use rustix::process::{Pid, Signal, kill_process};

use crate::confined::can_confine;
use crate::harness::Harness;
use crate::pinned::Pinned;
use crate::story::Done;
use testkit::eventually_async;

crate::scenarios! {
    default_call_commits_only_its_own_file;
    killed_supervisor_leaves_no_files;
    created_settings_are_quarantined_and_reported;
    call_in_subdirectory_commits;
    tracked_settings_are_unchanged_by_commit, not for Gemini: "it does not see its settings in the workspace";
}

/// A snapshot of a repository.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    /// Type, mode, size and hash of each file, except for `.git`.
    tree: BTreeMap<PathBuf, (u32, u64, u64)>,
    /// The names in `.git`, without those that every git command creates.
    git: BTreeSet<PathBuf>,
    status: String,
    objects: BTreeSet<String>,
}

impl Seen {
    fn of(repository: &Path) -> Self {
        let (mut tree, mut git) = (BTreeMap::new(), BTreeSet::new());
        for path in entries_below(repository) {
            let name = path.strip_prefix(repository).unwrap().to_owned();
            if name.starts_with(".git") {
                let comes_with_a_commit = ["objects", "logs", "refs", "COMMIT_EDITMSG", "index", "ORIG_HEAD"];
                if !comes_with_a_commit.iter().any(|part| name.starts_with(Path::new(".git").join(part))) {
                    git.insert(name);
                }
                continue;
            }
            let found = fs::symlink_metadata(&path).unwrap();
            let mut hasher = DefaultHasher::new();
            fs::read(&path).unwrap_or_default().hash(&mut hasher);
            let size = if found.is_dir() { 0 } else { found.size() };
            tree.insert(name, (found.mode(), size, hasher.finish()));
        }
        let status = git_in(repository, "status --porcelain --ignored");
        let objects = git_in(repository, "cat-file --batch-all-objects --batch-check");
        Self { tree, git, status, objects: objects.lines().map(str::to_owned).collect() }
    }

    /// Returns the names that are only in the other snapshot.
    fn added_in(&self, other: &Self) -> Vec<PathBuf> {
        other.tree.keys().filter(|name| !self.tree.contains_key(*name)).cloned().collect()
    }
}

fn entries_below(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| {
            let is_directory = fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir());
            let below = if is_directory { entries_below(&path) } else { Vec::new() };
            std::iter::once(path).chain(below)
        })
        .collect()
}

fn git_in(directory: &Path, args: &str) -> String {
    let mut git = Command::new("git");
    git.args(["-c", "user.name=a", "-c", "user.email=a@b", "-C"]).arg(directory).args(args.split(' '));
    let output = git.env("HOME", "/nonexistent").env("GIT_CONFIG_NOSYSTEM", "1").output().unwrap();
    assert!(output.status.success(), "git {args}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Creates a repository with a commit and an ignored file.
fn make_repository(at: &Path) {
    git_in(at, "init -q -b main");
    fs::create_dir_all(at.join("web/src")).unwrap();
    for (name, text) in [("README.md", "A shop.\n"), (".gitignore", "ignored\n"), ("web/src/main.ts", "//\n")]
    {
        fs::write(at.join(name), text).unwrap();
    }
    git_in(at, "add -A");
    git_in(at, "commit -q -m first");
    fs::write(at.join("ignored"), "by git").unwrap();
}

/// Runs a scenario in a repository, if this machine can sandbox agents.
fn in_repository(cli: &Pinned, scenario: impl AsyncFnOnce(&Harness, &Path)) {
    if can_confine() {
        Harness::play(cli, async |harness| {
            make_repository(&harness.workspace());
            scenario(harness, &harness.workspace()).await;
        });
    }
}

/// Runs a call whose model runs one command, and expects success.
async fn run_shell(harness: &Harness, spec: &CallSpec, command: &str) -> Done {
    let api = ModelApi::start(Script::turns(vec![ModelTurn::shell(command), ModelTurn::text("Done.")])).await;
    let done = harness.ask(&api, spec).await;
    assert_eq!(done.succeeded().text, "Done.", "{done}");
    done
}

fn spec(harness: &Harness, prompt: &str) -> CallSpec {
    CallSpec { policy: CallPolicy::default(), ..harness.spec(prompt) }
}

/// Returns the agent's state, without the files of the scripted API.
fn state_of(harness: &Harness) -> Vec<PathBuf> {
    let (directory, ours): (_, &[&str]) = match harness.kind() {
        AgentKind::Claude => (
            ".claude",
            &["settings.json", "settings.local.json", "CLAUDE.md", "agents", "commands", "hooks", "skills"],
        ),
        AgentKind::Codex => (".codex", &["hooks.json", "rules", "prompts"]),
        _ => (".gemini", &[".env", "commands", "extensions", "policies"]),
    };
    let directory = harness.directory().join("home").join(directory);
    ours.iter().map(|name| directory.join(name)).filter(|path| path.exists()).collect()
}

fn quarantined(report: &RunReport) -> Vec<PathBuf> {
    let Some(SandboxReport::Confined(confined)) = &report.sandbox else { panic!("not confined: {report:?}") };
    confined.quarantined.iter().map(|entry| entry.path.clone()).collect()
}

/// Creates a file, waits for the snapshot, and commits.
const WORK: &str = "echo heron > own; touch .git/waiting; while [ -e .git/waiting ]; do sleep 0.05; done; \
                    git add -A && git -c user.name=a -c user.email=a@b commit -q -m own; echo committed $?";

fn default_call_commits_only_its_own_file(cli: &Pinned) {
    in_repository(cli, async |harness, work| {
        let before = Seen::of(work);
        let api =
            ModelApi::start(Script::turns(vec![ModelTurn::shell(WORK), ModelTurn::text("Done.")])).await;
        let started = harness.place(&api, &spec(harness, "Commit the word.")).await;
        let waiting = work.join(".git/waiting");
        eventually_async("the agent has worked", async || waiting.exists()).await;
        let during = Seen::of(work);
        assert_eq!(before.added_in(&during), [Path::new("own")]);
        assert_eq!(during.git.difference(&before.git).collect::<Vec<_>>(), [Path::new(".git/waiting")]);
        assert_eq!((during.status.as_str(), &during.objects), ("?? own\n!! ignored\n", &before.objects));
        assert_eq!(state_of(harness), Vec::<PathBuf>::new(), "during the run");
        fs::remove_file(&waiting).unwrap();
        let done = started.end(None).await;
        assert_eq!(done.succeeded().text, "Done.", "{done}");
        let after = Seen::of(work);
        assert_eq!(before.added_in(&after), [Path::new("own")], "{done}");
        assert!(before.tree.iter().all(|(name, seen)| after.tree.get(name) == Some(seen)), "{done}");
        assert_eq!((&after.git, &after.status), (&before.git, &"!! ignored\n".to_owned()), "{done}");
        assert_eq!(git_in(work, "show --format=%s --name-status").trim(), "own\n\nA\town", "{done}");
        // A commit, its tree, and the file.
        assert_eq!(after.objects.difference(&before.objects).count(), 3, "{done}");
        assert_eq!(quarantined(&done.report), Vec::<PathBuf>::new(), "{done}");
        assert_eq!(state_of(harness), Vec::<PathBuf>::new(), "{done}");
    });
}

fn killed_supervisor_leaves_no_files(cli: &Pinned) {
    in_repository(cli, async |harness, work| {
        let before = Seen::of(work);
        let command = "echo heron > own; while :; do sleep 1; done";
        let api =
            ModelApi::start(Script::turns(vec![ModelTurn::shell(command), ModelTurn::text("Done.")])).await;
        let started = harness.place(&api, &spec(harness, "Wait.")).await;
        eventually_async("the agent works", async || work.join("own").exists()).await;
        let supervisor = started.run.spool().status().unwrap().unwrap().supervisor.pid;
        kill_process(Pid::from_raw(supervisor).unwrap(), Signal::KILL).unwrap();
        let gone = async || harness.processes().is_empty();
        eventually_async("everything is gone without a recovery", gone).await;
        // No leftovers, even without a recovery.
        for recovered in [false, true] {
            if recovered {
                assert_eq!(started.run.wait().await.unwrap().end, End::SupervisorLost);
            }
            let after = Seen::of(work);
            assert_eq!(before.added_in(&after), [Path::new("own")]);
            assert_eq!((&after.git, &after.objects), (&before.git, &before.objects));
            assert_eq!(after.status, "?? own\n!! ignored\n");
            assert_eq!(state_of(harness), Vec::<PathBuf>::new());
        }
    });
}

fn created_settings_are_quarantined_and_reported(cli: &Pinned) {
    in_repository(cli, async |harness, work| {
        let before = Seen::of(work);
        let command = "echo x > .envrc; mkdir -p .claude .vscode; echo '{}' > .claude/settings.json; \
                       echo '{}' > .vscode/launch.json; cat .vscode/launch.json; echo x > .git/commondir";
        let done = run_shell(harness, &spec(harness, "Set it up."), command).await;
        assert_eq!(Seen::of(work), before, "{done}");
        let expected = [".git/commondir", ".claude", ".envrc", ".vscode"].map(|name| work.join(name));
        let found: BTreeSet<_> = quarantined(&done.report).into_iter().collect();
        assert_eq!(found, expected.into(), "{done}");
    });
}

fn call_in_subdirectory_commits(cli: &Pinned) {
    in_repository(cli, async |harness, work| {
        let before = Seen::of(work);
        let command = "echo heron > own; git add -A && git -c user.name=a -c user.email=a@b commit -q -m own";
        let done =
            run_shell(harness, &CallSpec { cwd: work.join("web"), ..spec(harness, "Commit.") }, command)
                .await;
        let after = Seen::of(work);
        assert_eq!(git_in(work, "show --format=%s --name-status").trim(), "own\n\nA\tweb/own", "{done}");
        assert_eq!((&after.git, &after.status), (&before.git, &"!! ignored\n".to_owned()), "{done}");
    });
}

/// Tracked settings of every agent are neither obeyed nor changed, and a commit of everything does not delete them.
fn tracked_settings_are_unchanged_by_commit(cli: &Pinned) {
    in_repository(cli, async |harness, work| {
        let settings = [
            ".claude/settings.json",
            ".codex/config.toml",
            ".gemini/settings.json",
            ".mcp.json",
            ".vscode/settings.json",
            ".env",
            ".envrc",
        ];
        for name in settings {
            fs::create_dir_all(work.join(name).parent().unwrap()).unwrap();
            fs::write(work.join(name), if name.ends_with("json") { "{}\n" } else { "# nothing\n" }).unwrap();
        }
        git_in(work, "add -A");
        git_in(work, "commit -q -m settings");
        let before = Seen::of(work);
        let command = "git status --porcelain > status; echo heron > own; git add -A && \
                       git -c user.name=a -c user.email=a@b commit -q -m own";
        let done = run_shell(harness, &spec(harness, "Commit."), command).await;
        let committed = git_in(work, "show --format=%s --name-status");
        assert_eq!(committed.trim(), "own\n\nA\town\nA\tstatus", "{done}");
        let after = Seen::of(work);
        assert!(before.tree.iter().all(|(name, seen)| after.tree.get(name) == Some(seen)), "{done}");
        assert_eq!(fs::read_to_string(work.join("status")).unwrap(), "?? status\n", "{done}");
    });
}
