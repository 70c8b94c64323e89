//! The harness of one test: a state directory, a service, and a check for leftover processes.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agents::doctor::Lookup;
use agents::{AcpRules, AgentFeature, AgentProfile, AgentProfiles, UsageReport};
use calls::{Answer, CallRequest, JobService, Settings, ShutdownMode, Until};
use model::{AgentKind, CallPolicy, CallSpec, JobId, Limits, ProfileName, RunStatus, SessionChoice};
use supervisor::Supervisor;
use tempfile::TempDir;
use testkit::{all_pids, command_line, eventually, eventually_async, is_running};

/// Long enough for a slow machine, short enough for a failing test.
pub const LONG: Duration = Duration::from_mins(2);

pub struct Harness {
    directory: TempDir,
}

impl Harness {
    /// Runs a test, then checks that no process is left.
    pub fn run<F: AsyncFnOnce(&Harness)>(test: F) {
        let harness = Harness { directory: tempfile::tempdir().unwrap() };
        runtime().block_on(async {
            tokio::time::timeout(LONG, test(&harness)).await.expect("the test hangs");
        });
        harness.assert_nothing_left();
    }

    /// Runs a test that may advance its clock, which needs a current-thread runtime.
    pub fn run_with_own_clock<F: AsyncFnOnce(&Harness)>(test: F) {
        let harness = Harness { directory: tempfile::tempdir().unwrap() };
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test(&harness));
        harness.assert_nothing_left();
    }

    pub fn state(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    /// Returns a directory for agents to work in.
    pub fn workspace(&self) -> PathBuf {
        let directory = self.directory.path().join("workspace");
        fs::create_dir_all(&directory).unwrap();
        directory
    }

    /// Returns the file to which the agents' descendants write their pids.
    pub fn pid_file(&self) -> PathBuf {
        self.directory.path().join("pids")
    }

    pub fn settings(&self) -> Settings {
        settings(&self.state())
    }

    pub async fn open(&self) -> JobService {
        self.open_with(|_| {}).await
    }

    pub async fn open_with(&self, change: impl FnOnce(&mut Settings)) -> JobService {
        let mut settings = self.settings();
        change(&mut settings);
        Box::pin(JobService::open(settings)).await.unwrap_or_else(|error| panic!("{error:?}"))
    }

    /// Returns a call to the scripted agent, one step per line.
    pub fn call(&self, script: &str) -> CallSpec {
        call(&self.workspace(), &self.pid_file(), script)
    }

    pub fn request(&self, script: &str) -> CallRequest {
        CallRequest::new(self.call(script), "call_cc")
    }

    pub fn descendants(&self) -> Vec<i32> {
        let text = fs::read_to_string(self.pid_file()).unwrap_or_default();
        text.lines().map(|line| line.trim().parse().unwrap()).collect()
    }

    /// Returns the statuses of all runs of a job in order.
    pub fn runs(&self, job: JobId) -> Vec<RunStatus> {
        runs(&self.state(), job)
    }

    /// Opens the database of the service, to change it behind the store's back.
    pub fn database(&self) -> rusqlite::Connection {
        rusqlite::Connection::open(self.state().join("switchboard.db")).unwrap()
    }

    /// Lets every operation of the store fail from now on.
    pub fn break_store(&self) {
        self.database().execute_batch("ALTER TABLE agent_jobs RENAME TO taken_away").unwrap();
    }

    pub fn repair_store(&self) {
        self.database().execute_batch("ALTER TABLE taken_away RENAME TO agent_jobs").unwrap();
    }

    pub fn assert_nothing_left(&self) {
        let directory = self.directory.path().to_str().unwrap().to_owned();
        eventually("a descendant is alive", || !self.descendants().into_iter().any(is_running));
        eventually("a supervisor is alive", || {
            !all_pids().any(|pid| is_running(pid) && command_line(pid).contains(&directory))
        });
    }
}

thread_local! {
    static AGENT: Cell<AgentKind> = const { Cell::new(AgentKind::Rehearsal) };
}

/// The scripted agent as any agent that speaks the Agent Client Protocol.
const ACP_AGENT: AgentKind = AgentKind::Profiled(ProfileName::built_in("scripted"));

/// Lets the calls of this thread's test go to the scripted agent over the Agent Client Protocol.
pub fn speak_acp() {
    AGENT.set(ACP_AGENT);
}

/// Returns the scripted agent, in the protocol of this thread's test.
pub fn agent() -> AgentKind {
    AGENT.get()
}

pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

pub fn settings(state: &Path) -> Settings {
    let this_program = std::env::current_exe().unwrap();
    Settings {
        lookup: Lookup {
            profiles: AgentProfiles::default().with([acp_profile(&this_program)]),
            programs: BTreeMap::from([(AgentKind::Rehearsal, this_program)]),
            inherited: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
            ..Lookup::default()
        },
        host: Some("here".to_owned()),
        ..Settings::new(state, Supervisor::this_program().unwrap())
    }
}

fn acp_profile(program: &Path) -> AgentProfile {
    let args = ["--as", "acp"].map(str::to_owned).into();
    let rules = AcpRules { args, usage: UsageReport::PerPrompt, ..AcpRules::default() };
    AgentProfile {
        version_args: Vec::new(),
        features: AgentFeature::ALL.into(),
        ..AgentProfile::acp(ACP_AGENT, "Scripted", program.to_str().unwrap(), rules)
    }
}

pub fn call(workspace: &Path, pid_file: &Path, script: &str) -> CallSpec {
    let lines = script.trim().lines().map(|line| format!("@rehearse {}\n", line.trim()));
    let pids = format!("@rehearse pidfile {}\n", pid_file.display());
    let prompt: String = std::iter::once(pids).chain(lines).collect();
    CallSpec {
        limits: Limits { grace: Duration::from_millis(300), ..Limits::default() },
        policy: CallPolicy::off(),
        ..CallSpec::new(agent(), prompt, workspace)
    }
}

/// Submits a call and waits for its end.
pub async fn answered(service: &JobService, request: CallRequest) -> Answer {
    let job = Box::pin(service.submit(request)).await.unwrap_or_else(|error| panic!("{error:?}")).job;
    ended(service, job).await
}

pub async fn ended(service: &JobService, job: JobId) -> Answer {
    assert_eq!(service.wait(&[job], Until::All, LONG).await.unwrap(), [job]);
    service.answer(job).await.unwrap()
}

/// Returns the files of a job that ended under a service that is closed.
pub async fn files_of_ended_job(harness: &Harness) -> calls::JobFiles {
    let service = harness.open().await;
    let answer = answered(&service, harness.request("answer kept")).await;
    close(&service).await;
    service.files(answer.job_id.parse().unwrap())
}

pub async fn close(service: &JobService) {
    service.close(ShutdownMode::Drain).await;
}

/// Submits a call that is blocked on the session of a running job, and returns its activity line.
pub async fn submit_behind(
    harness: &Harness,
    service: &JobService,
    first: JobId,
    script: &str,
) -> (JobId, String) {
    let session = service.answer(first).await.unwrap().session_id.unwrap();
    let mut request = harness.request(script);
    request.call.session = SessionChoice::Resume(session.parse().unwrap());
    let job = service.submit(request).await.unwrap().job;
    let waits = format!("waiting for session {session}, used by job {first}");
    wait_for_line(service, job, &waits).await;
    (job, waits)
}

/// Waits until the activity of a job is this line.
pub async fn wait_for_line(service: &JobService, job: JobId, text: &str) {
    eventually_async("the agent says its line", async || {
        service.activity(job).is_some_and(|activity| activity.borrow().line == text)
    })
    .await;
}

pub fn runs(state: &Path, job: JobId) -> Vec<RunStatus> {
    let directory = state.join("jobs").join(job.to_string()).join("runs");
    let mut numbers: Vec<u32> = fs::read_dir(&directory)
        .map(|entries| entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
        .unwrap_or_default();
    numbers.sort_unstable();
    let status = |number| fs::read(directory.join(u32::to_string(number)).join("status.json")).ok();
    let read = |bytes: Vec<u8>| serde_json::from_slice::<RunStatus>(&bytes).unwrap();
    // A service that dies between preparing a run and starting it leaves a directory in which nothing ever ran.
    numbers.iter().filter_map(status).map(read).filter(|run| run.supervisor.pid > 0).collect()
}
