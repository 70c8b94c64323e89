//! A default call in a real git repository, seen from outside before, during and after it: nothing is there that neither the user
//! nor the agent has made.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use model::{AgentKind, CallPolicy, CallSpec, End, RunReport, SandboxReport};
use model_api::{ModelApi, Script, Turn};
use rustix::process::{Pid, Signal, kill_process};

use crate::confined::can_confine;
use crate::desk::Desk;
use crate::outside;
use crate::pinned::Pinned;
use crate::story::Done;

crate::scenarios! {
    default_call_commits_its_own_file_and_nothing_else;
    default_call_leaves_nothing_after_a_killed_supervisor;
    created_settings_are_quarantined_and_reported;
    call_in_a_subdirectory_commits;
    tracked_settings_stay_as_they_are_in_a_commit, not for Gemini: "it does not see its settings in the workspace";
}

/// Everything that can be seen of a repository from outside.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    /// Type and mode, size, hash of the content; of all but the repository's own directory.
    tree: BTreeMap<PathBuf, (u32, u64, u64)>,
    /// The names in the repository's own directory, without those that git makes for every command.
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

    /// The names that are in another and not in this.
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

/// A repository with a commit and an ignored file.
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

/// Plays a scenario in a repository, where agents can be confined.
fn in_repository(cli: &Pinned, scenario: impl AsyncFnOnce(&Desk, &Path)) {
    if can_confine() {
        Desk::play(cli, async |desk| {
            make_repository(&desk.workspace());
            scenario(desk, &desk.workspace()).await;
        });
    }
}

/// Places a call whose model runs one command, and waits for its success.
async fn run_shell(desk: &Desk, spec: &CallSpec, command: &str) -> Done {
    let api = ModelApi::start(Script::turns(vec![Turn::shell(command), Turn::text("Done.")])).await;
    let done = desk.ask(&api, spec).await;
    assert_eq!(done.succeeded().text, "Done.", "{done}");
    done
}

fn spec(desk: &Desk, prompt: &str) -> CallSpec {
    CallSpec { policy: CallPolicy::default(), ..desk.spec(prompt) }
}

/// The agent's own state, without what the scripted API has written there.
fn state_of(desk: &Desk) -> Vec<PathBuf> {
    let (directory, ours): (_, &[&str]) = match desk.kind() {
        AgentKind::Claude => (
            ".claude",
            &["settings.json", "settings.local.json", "CLAUDE.md", "agents", "commands", "hooks", "skills"],
        ),
        AgentKind::Codex => (".codex", &["hooks.json", "rules", "prompts"]),
        _ => (".gemini", &[".env", "commands", "extensions", "policies"]),
    };
    let directory = desk.folder().join("home").join(directory);
    ours.iter().map(|name| directory.join(name)).filter(|path| path.exists()).collect()
}

fn quarantined(report: &RunReport) -> Vec<PathBuf> {
    let Some(SandboxReport::Confined(confined)) = &report.sandbox else { panic!("not confined: {report:?}") };
    confined.quarantined.iter().map(|entry| entry.path.clone()).collect()
}

/// Makes a file, waits until it was looked at from outside, and commits.
const WORK: &str = "echo heron > own; touch .git/waiting; while [ -e .git/waiting ]; do sleep 0.05; done; \
                    git add -A && git -c user.name=a -c user.email=a@b commit -q -m own; echo committed $?";

fn default_call_commits_its_own_file_and_nothing_else(cli: &Pinned) {
    in_repository(cli, async |desk, work| {
        let before = Seen::of(work);
        let api = ModelApi::start(Script::turns(vec![Turn::shell(WORK), Turn::text("Done.")])).await;
        let placed = desk.place(&api, &spec(desk, "Commit the word.")).await;
        let waiting = work.join(".git/waiting");
        outside::eventually("the agent has worked", || waiting.exists().then_some(())).await;
        let during = Seen::of(work);
        assert_eq!(before.added_in(&during), [Path::new("own")]);
        assert_eq!(during.git.difference(&before.git).collect::<Vec<_>>(), [Path::new(".git/waiting")]);
        assert_eq!((during.status.as_str(), &during.objects), ("?? own\n!! ignored\n", &before.objects));
        assert_eq!(state_of(desk), Vec::<PathBuf>::new(), "during the run");
        fs::remove_file(&waiting).unwrap();
        let done = placed.end(None).await;
        assert_eq!(done.succeeded().text, "Done.", "{done}");
        let after = Seen::of(work);
        assert_eq!(before.added_in(&after), [Path::new("own")], "{done}");
        assert!(before.tree.iter().all(|(name, seen)| after.tree.get(name) == Some(seen)), "{done}");
        assert_eq!((&after.git, &after.status), (&before.git, &"!! ignored\n".to_owned()), "{done}");
        assert_eq!(git_in(work, "show --format=%s --name-status").trim(), "own\n\nA\town", "{done}");
        // A commit, its tree, and the one file.
        assert_eq!(after.objects.difference(&before.objects).count(), 3, "{done}");
        assert_eq!(quarantined(&done.report), Vec::<PathBuf>::new(), "{done}");
        assert_eq!(state_of(desk), Vec::<PathBuf>::new(), "{done}");
    });
}

fn default_call_leaves_nothing_after_a_killed_supervisor(cli: &Pinned) {
    in_repository(cli, async |desk, work| {
        let before = Seen::of(work);
        let command = "echo heron > own; while :; do sleep 1; done";
        let api = ModelApi::start(Script::turns(vec![Turn::shell(command), Turn::text("Done.")])).await;
        let placed = desk.place(&api, &spec(desk, "Wait.")).await;
        outside::eventually("the agent works", || work.join("own").exists().then_some(())).await;
        let supervisor = placed.run.spool().status().unwrap().unwrap().supervisor.pid;
        kill_process(Pid::from_raw(supervisor).unwrap(), Signal::KILL).unwrap();
        let gone = || desk.processes().is_empty().then_some(());
        outside::eventually("everything is gone without a recovery", gone).await;
        // Nothing of ours is there, whether or not anybody recovers the run.
        for recovered in [false, true] {
            if recovered {
                assert_eq!(placed.run.wait().await.unwrap().end, End::SupervisorLost);
            }
            let after = Seen::of(work);
            assert_eq!(before.added_in(&after), [Path::new("own")]);
            assert_eq!((&after.git, &after.objects), (&before.git, &before.objects));
            assert_eq!(after.status, "?? own\n!! ignored\n");
            assert_eq!(state_of(desk), Vec::<PathBuf>::new());
        }
    });
}

fn created_settings_are_quarantined_and_reported(cli: &Pinned) {
    in_repository(cli, async |desk, work| {
        let before = Seen::of(work);
        let command = "echo x > .envrc; mkdir -p .claude .vscode; echo '{}' > .claude/settings.json; \
                       echo '{}' > .vscode/launch.json; cat .vscode/launch.json; echo x > .git/commondir";
        let done = run_shell(desk, &spec(desk, "Set it up."), command).await;
        assert_eq!(Seen::of(work), before, "{done}");
        let expected = [".git/commondir", ".claude", ".envrc", ".vscode"].map(|name| work.join(name));
        let found: BTreeSet<_> = quarantined(&done.report).into_iter().collect();
        assert_eq!(found, expected.into(), "{done}");
    });
}

fn call_in_a_subdirectory_commits(cli: &Pinned) {
    in_repository(cli, async |desk, work| {
        let before = Seen::of(work);
        let command = "echo heron > own; git add -A && git -c user.name=a -c user.email=a@b commit -q -m own";
        let done =
            run_shell(desk, &CallSpec { cwd: work.join("web"), ..spec(desk, "Commit.") }, command).await;
        let after = Seen::of(work);
        assert_eq!(git_in(work, "show --format=%s --name-status").trim(), "own\n\nA\tweb/own", "{done}");
        assert_eq!((&after.git, &after.status), (&before.git, &"!! ignored\n".to_owned()), "{done}");
    });
}

/// Settings that the project has for every agent are neither obeyed nor changed, and a commit of everything does not delete them.
fn tracked_settings_stay_as_they_are_in_a_commit(cli: &Pinned) {
    in_repository(cli, async |desk, work| {
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
        let done = run_shell(desk, &spec(desk, "Commit."), command).await;
        let committed = git_in(work, "show --format=%s --name-status");
        assert_eq!(committed.trim(), "own\n\nA\town\nA\tstatus", "{done}");
        let after = Seen::of(work);
        assert!(before.tree.iter().all(|(name, seen)| after.tree.get(name) == Some(seen)), "{done}");
        assert_eq!(fs::read_to_string(work.join("status")).unwrap(), "?? status\n", "{done}");
    });
}
