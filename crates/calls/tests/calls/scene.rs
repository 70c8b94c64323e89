//! A place for one test: a state folder, a desk on it, and the check that nothing is left.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use agents::doctor::Lookup;
use calls::{Answer, CallRequest, JobService, Settings, ShutdownMode, Until};
use model::{AgentKind, CallPolicy, CallSpec, JobId, Limits, RunStatus, SessionChoice};
use supervisor::Supervisor;
use tempfile::TempDir;

/// Long enough for a slow machine, short enough for a test that fails.
pub const LONG: Duration = Duration::from_mins(2);

pub struct Scene {
    folder: TempDir,
}

impl Scene {
    /// Plays a test and then looks for what it has left running.
    pub fn play<F: AsyncFnOnce(&Scene)>(test: F) {
        let scene = Scene { folder: tempfile::tempdir().unwrap() };
        runtime().block_on(async {
            tokio::time::timeout(LONG, test(&scene)).await.expect("the test hangs");
        });
        scene.nothing_is_left();
    }

    /// Plays a test that may put its clock forward: only a runtime of one thread has a clock of its own.
    pub fn play_with_own_clock<F: AsyncFnOnce(&Scene)>(test: F) {
        let scene = Scene { folder: tempfile::tempdir().unwrap() };
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test(&scene));
        scene.nothing_is_left();
    }

    pub fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// A folder for agents to work in.
    pub fn workspace(&self) -> PathBuf {
        let folder = self.folder.path().join("workspace");
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    /// Where the agents' descendants write their pids.
    pub fn pid_file(&self) -> PathBuf {
        self.folder.path().join("pids")
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
        JobService::open(settings).await.unwrap_or_else(|error| panic!("{error:?}"))
    }

    /// A call to the scripted agent: one step a line.
    pub fn call(&self, script: &str) -> CallSpec {
        call(&self.workspace(), &self.pid_file(), script)
    }

    pub fn order(&self, script: &str) -> CallRequest {
        CallRequest::new(self.call(script), "call_cc")
    }

    pub fn descendants(&self) -> Vec<i32> {
        let text = fs::read_to_string(self.pid_file()).unwrap_or_default();
        text.lines().map(|line| line.trim().parse().unwrap()).collect()
    }

    /// The statuses of all runs of a job, in their order.
    pub fn runs(&self, job: JobId) -> Vec<RunStatus> {
        runs(&self.state(), job)
    }

    /// The database of the desk, for what the store would not do.
    pub fn database(&self) -> rusqlite::Connection {
        rusqlite::Connection::open(self.state().join("switchboard.db")).unwrap()
    }

    /// Lets the store fail at everything from now on.
    pub fn take_the_store_away(&self) {
        self.database().execute_batch("ALTER TABLE agent_jobs RENAME TO taken_away").unwrap();
    }

    pub fn bring_the_store_back(&self) {
        self.database().execute_batch("ALTER TABLE taken_away RENAME TO agent_jobs").unwrap();
    }

    pub fn nothing_is_left(&self) {
        let folder = self.folder.path().to_str().unwrap().to_owned();
        eventually("a descendant is alive", || !self.descendants().into_iter().any(is_running));
        eventually("a supervisor is alive", || {
            !processes().any(|pid| is_running(pid) && command_line(pid).contains(&folder))
        });
    }
}

pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

pub fn settings(state: &Path) -> Settings {
    let this_program = std::env::current_exe().unwrap();
    Settings {
        lookup: Lookup {
            programs: BTreeMap::from([(AgentKind::Rehearsal, this_program)]),
            inherited: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
            ..Lookup::default()
        },
        host: Some("here".to_owned()),
        ..Settings::new(state, Supervisor::this_program().unwrap())
    }
}

pub fn call(workspace: &Path, pid_file: &Path, script: &str) -> CallSpec {
    let lines = script.trim().lines().map(|line| format!("@rehearse {}\n", line.trim()));
    let pids = format!("@rehearse pidfile {}\n", pid_file.display());
    let prompt: String = std::iter::once(pids).chain(lines).collect();
    CallSpec {
        limits: Limits { grace: Duration::from_millis(300), ..Limits::default() },
        policy: CallPolicy::off(),
        ..CallSpec::new(AgentKind::Rehearsal, prompt, workspace)
    }
}

/// Places a call and waits for its end.
pub async fn answered(desk: &JobService, order: CallRequest) -> Answer {
    let job = desk.submit(order).await.unwrap_or_else(|error| panic!("{error:?}")).job;
    ended(desk, job).await
}

pub async fn ended(desk: &JobService, job: JobId) -> Answer {
    assert_eq!(desk.wait(&[job], Until::All, LONG).await.unwrap(), [job]);
    desk.answer(job).await.unwrap()
}

/// The files of a job that ended under a desk which has closed since.
pub async fn files_of_an_ended_job(scene: &Scene) -> calls::JobFiles {
    let desk = scene.open().await;
    let answer = answered(&desk, scene.order("answer kept")).await;
    close(&desk).await;
    desk.files(answer.job_id.parse().unwrap())
}

pub async fn close(desk: &JobService) {
    desk.close(ShutdownMode::Drain).await;
}

/// Places a call that has to wait until a running one has finished with its session, and what it says meanwhile.
pub async fn waiting_behind(scene: &Scene, desk: &JobService, first: JobId, script: &str) -> (JobId, String) {
    let session = desk.answer(first).await.unwrap().session_id.unwrap();
    let mut order = scene.order(script);
    order.call.session = SessionChoice::Resume(session.parse().unwrap());
    let job = desk.submit(order).await.unwrap().job;
    let waits = format!("waiting for session {session}, used by job {first}");
    until_it_says(desk, job, &waits).await;
    (job, waits)
}

/// Waits until the agent of a job says so.
pub async fn until_it_says(desk: &JobService, job: JobId, text: &str) {
    eventually_async("the agent says its line", async || {
        desk.activity(job).is_some_and(|activity| activity.borrow().line == text)
    })
    .await;
}

pub fn runs(state: &Path, job: JobId) -> Vec<RunStatus> {
    let folder = state.join("jobs").join(job.to_string()).join("runs");
    let mut numbers: Vec<u32> = fs::read_dir(&folder)
        .map(|entries| entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
        .unwrap_or_default();
    numbers.sort_unstable();
    let status = |number| fs::read(folder.join(u32::to_string(number)).join("status.json")).ok();
    let read = |bytes: Vec<u8>| serde_json::from_slice::<RunStatus>(&bytes).unwrap();
    // A desk that dies between laying a plan down and handing it over leaves a folder in which nothing ever ran.
    numbers.iter().filter_map(status).map(read).filter(|run| run.supervisor.pid > 0).collect()
}

pub fn is_running(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

pub fn processes() -> impl Iterator<Item = i32> {
    fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

pub fn command_line(pid: i32) -> String {
    String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default()).into_owned()
}

pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let give_up_at = Instant::now() + LONG;
    while !holds() {
        assert!(Instant::now() < give_up_at, "{what}: not within {LONG:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub async fn eventually_async(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let give_up_at = Instant::now() + LONG;
    while !holds().await {
        assert!(Instant::now() < give_up_at, "{what}: not within {LONG:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
