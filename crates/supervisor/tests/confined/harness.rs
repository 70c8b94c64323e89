//! The harness of a test: a home directory with secrets, a workspace in it, and a policy for both.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use model::{
    AgentState, CallPolicy, Confined, Confinement, KeptPath, Limits, Policy, PolicyContext, Preset, RunPlan,
    RunReport, SandboxReport,
};
use sandbox::{Mechanisms, Tier};
use supervisor::{Run, Supervisor};
use tempfile::TempDir;
use testkit::eventually_async;

/// Returns the reason why no sandbox test can run on this machine.
pub fn missing_requirement() -> Option<String> {
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

pub struct Harness {
    directory: TempDir,
}

impl Harness {
    pub fn run_test<F: AsyncFnOnce(&Harness)>(test: F) {
        Self::run_test_in(&base(), test);
    }

    /// Runs a test below a directory.
    pub fn run_test_in<F: AsyncFnOnce(&Harness)>(base: &Path, test: F) {
        Self::run_test_at(base, Duration::from_mins(3), test);
    }

    /// Runs a test with the given timeout.
    pub fn run_test_within<F: AsyncFnOnce(&Harness)>(time: Duration, test: F) {
        Self::run_test_at(&base(), time, test);
    }

    fn run_test_at<F: AsyncFnOnce(&Harness)>(base: &Path, time: Duration, test: F) {
        let harness = Harness { directory: tempfile::Builder::new().prefix("sb-").tempdir_in(base).unwrap() };
        for name in ["home/shop/.git/hooks", "home/.ssh", "home/.agent", "home/outside", "state"] {
            fs::create_dir_all(harness.path(name)).unwrap();
        }
        for name in ["home/.ssh/id", "home/outside/file", "home/shop/.git/config", "state/database"] {
            fs::write(harness.path(name), "as it was").unwrap();
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            tokio::time::timeout(time, test(&harness)).await.expect("the test hangs");
        });
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().canonicalize().unwrap().join(name)
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
            states: vec![AgentState {
                directory: self.path("home/.agent"),
                variable: Some("AGENT_HOME".to_owned()),
                kept: vec![KeptPath::Directory("sessions".into()), KeptPath::File("login".into())],
                discarded: vec!["snapshots".to_owned()],
            }],
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

    /// Returns a plan for this test binary.
    pub fn plan(&self, confinement: Confinement, args: &[&str]) -> RunPlan {
        RunPlan {
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            limits: Limits { grace: Duration::from_millis(300), ..Limits::default() },
            policy: Policy::Confined(Box::new(confinement)),
            ..RunPlan::new(std::env::current_exe().unwrap(), self.workspace())
        }
    }

    /// Returns a plan for the scripted agent in the workspace.
    pub fn agent(&self, script: &str) -> RunPlan {
        let lines = script.trim().lines().map(|line| format!("@rehearse {}\n", line.trim()));
        RunPlan {
            input: lines.collect::<String>().into_bytes(),
            ..self.plan(self.confinement(Preset::Workspace), &[rehearsal::CUE, "--as", "plain"])
        }
    }

    /// Returns a plan for a shell script as the agent.
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

    pub async fn wait_for_output(&self, text: &str) {
        eventually_async(&format!("it says {text}"), async || self.output().contains(text)).await;
    }
}

/// Returns a directory that is not private in a sandbox.
fn base() -> PathBuf {
    let own = std::env::temp_dir();
    let is_private = ["/tmp", "/var/tmp", "/run"].iter().any(|directory| own.starts_with(directory));
    if is_private { Path::new(env!("CARGO_TARGET_TMPDIR")).to_owned() } else { own }
}

pub fn confined(report: &RunReport) -> &Confined {
    match &report.sandbox {
        Some(SandboxReport::Confined(confined)) => confined,
        other => panic!("{other:?} in {report:?}"),
    }
}
