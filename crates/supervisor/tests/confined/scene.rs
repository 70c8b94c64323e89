//! A place for one test: a home with secrets, a workspace in it, and a policy for them.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use model::{
    AgentState, CallPolicy, Confined, Confinement, KeptPath, Limits, Policy, PolicyContext, Preset, RunPlan,
    RunReport, SandboxReport,
};
use sandbox::{Mechanisms, Tier};
use supervisor::{Run, Supervisor};
use tempfile::TempDir;

/// Why nothing can be tried here.
pub fn lacks() -> Option<String> {
    let missing = Mechanisms::detect("").missing_for_tier(Tier::Namespaces);
    if !missing.is_empty() {
        return Some(missing.join("; "));
    }
    let made = std::process::Command::new("/usr/bin/bwrap")
        .args([
            "--unshare-user",
            "--unshare-pid",
            "--ro-bind",
            "/",
            "/",
            "--proc",
            "/proc",
            "--",
            "/bin/true",
        ])
        .output();
    match made {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Some(error.to_string()),
    }
}

pub struct Scene {
    folder: TempDir,
}

impl Scene {
    pub fn play<F: AsyncFnOnce(&Scene)>(test: F) {
        Self::play_in(&base(), test);
    }

    /// Plays a test in a place below a directory.
    pub fn play_in<F: AsyncFnOnce(&Scene)>(base: &Path, test: F) {
        Self::play_at(base, Duration::from_mins(3), test);
    }

    /// Plays a test that may take so long.
    pub fn play_within<F: AsyncFnOnce(&Scene)>(time: Duration, test: F) {
        Self::play_at(&base(), time, test);
    }

    fn play_at<F: AsyncFnOnce(&Scene)>(base: &Path, time: Duration, test: F) {
        let scene = Scene { folder: tempfile::Builder::new().prefix("sb-").tempdir_in(base).unwrap() };
        for name in ["home/shop/.git/hooks", "home/.ssh", "home/.agent", "home/outside", "state"] {
            fs::create_dir_all(scene.path(name)).unwrap();
        }
        for name in ["home/.ssh/id", "home/outside/file", "home/shop/.git/config", "state/database"] {
            fs::write(scene.path(name), "as it was").unwrap();
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            tokio::time::timeout(time, test(&scene)).await.expect("the test hangs");
        });
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().canonicalize().unwrap().join(name)
    }

    pub fn workspace(&self) -> PathBuf {
        self.path("home/shop")
    }

    pub fn spool(&self) -> PathBuf {
        self.path("state/spool")
    }

    pub fn confinement(&self, policy: impl Into<CallPolicy>) -> Confinement {
        let ground = PolicyContext {
            workspaces: vec![self.workspace()],
            state: Some(AgentState {
                directory: self.path("home/.agent"),
                variable: Some("AGENT_HOME".to_owned()),
                kept: vec![KeptPath::Directory("sessions".into()), KeptPath::File("login".into())],
                discarded: vec!["snapshots".to_owned()],
            }),
            home: Some(self.path("home")),
            own: vec![self.path("state")],
            visible: vec![self.spool().join("private")],
            proofs: Some(self.path("state/proofs")),
            ..PolicyContext::default()
        };
        match policy.into().confine(&ground).unwrap() {
            Policy::Confined(confinement) => *confinement,
            Policy::Off => panic!("no policy"),
        }
    }

    /// A plan for this very program.
    pub fn plan(&self, confinement: Confinement, args: &[&str]) -> RunPlan {
        RunPlan {
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            limits: Limits { grace: Duration::from_millis(300), ..Limits::default() },
            policy: Policy::Confined(Box::new(confinement)),
            ..RunPlan::new(std::env::current_exe().unwrap(), self.workspace())
        }
    }

    /// A plan for the scripted agent in the workspace.
    pub fn agent(&self, script: &str) -> RunPlan {
        let lines = script.trim().lines().map(|line| format!("@rehearse {}\n", line.trim()));
        RunPlan {
            stdin: lines.collect::<String>().into_bytes(),
            ..self.plan(self.confinement(Preset::Workspace), &[rehearsal::CUE, "--as", "plain"])
        }
    }

    /// A shell command as the agent.
    pub fn shell(&self, script: &str) -> RunPlan {
        let plan = self.agent("");
        RunPlan {
            program: "/bin/sh".into(),
            args: vec!["-c".into(), script.into()],
            env: [
                ("PATH".to_owned(), "/usr/bin:/bin".to_owned()),
                ("HOME".to_owned(), self.path("home").display().to_string()),
            ]
            .into(),
            ..plan
        }
    }

    pub async fn start(&self, plan: &RunPlan) -> Run {
        Supervisor::this_program().unwrap().start(&self.spool(), plan).await.unwrap()
    }

    pub async fn run(&self, plan: &RunPlan) -> RunReport {
        self.start(plan).await.wait().await.unwrap()
    }

    pub fn output(&self) -> String {
        fs::read_to_string(self.spool().join("output")).unwrap_or_default()
    }

    pub fn error(&self) -> String {
        fs::read_to_string(self.spool().join("error")).unwrap_or_default()
    }

    pub async fn says(&self, text: &str) {
        eventually(&format!("it says {text}"), || self.output().contains(text)).await;
    }
}

/// A folder that a sandbox has no own of.
fn base() -> PathBuf {
    let own = std::env::temp_dir();
    let is_private = ["/tmp", "/var/tmp", "/run"].iter().any(|folder| own.starts_with(folder));
    if is_private { Path::new(env!("CARGO_TARGET_TMPDIR")).to_owned() } else { own }
}

pub fn confined(report: &RunReport) -> &Confined {
    match &report.sandbox {
        Some(SandboxReport::Confined(confined)) => confined,
        other => panic!("{other:?} in {report:?}"),
    }
}

pub async fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let give_up_at = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < give_up_at, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The processes of this machine, by pid, with the pid that each has in its own namespace.
pub fn processes_below(pid: i32) -> Vec<i32> {
    let mut family = vec![pid];
    let mut at = 0;
    while at < family.len() {
        let of = family[at];
        let list = fs::read_to_string(format!("/proc/{of}/task/{of}/children")).unwrap_or_default();
        family.extend(list.split_ascii_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
        at += 1;
    }
    family.remove(0);
    family
}

pub fn is_running(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap().trim_start().starts_with(['Z', 'X']))
}
