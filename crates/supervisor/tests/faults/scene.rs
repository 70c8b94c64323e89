//! A place for one test: a folder, an agent to be scripted, and the check that nothing is left.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use model::{Limits, RunId, RunPlan, RunReport, RunStatus, TreeEnd};
use supervisor::{Run, RunEvent, StartError, Supervisor};
use tempfile::TempDir;

/// Long enough for a slow machine, short enough for a test that fails.
const LONG: Duration = Duration::from_mins(1);

pub struct Scene {
    folder: TempDir,
    run_ids: Mutex<Vec<RunId>>,
}

impl Scene {
    /// Plays a test and then looks for what it has left: no descendant, no zombie, no open file.
    pub fn play<F: AsyncFnOnce(&Scene)>(test: F) {
        // The first runtime of a process opens a pair of files for signals and keeps them for good.
        drop(runtime());
        let folder = tempfile::tempdir().unwrap();
        runtime().block_on(async {
            let scene = Scene { folder, run_ids: Mutex::default() };
            let files_before = open_files();
            tokio::time::timeout(3 * LONG, test(&scene)).await.expect("the test hangs");
            scene.nothing_is_left().await;
            assert_eq!(open_files(), files_before, "files of the caller are left open");
        });
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn spool(&self) -> PathBuf {
        self.folder.path().join("spool")
    }

    /// Where the agent's descendants write their pids.
    pub fn pid_file(&self) -> PathBuf {
        self.folder.path().join("pids")
    }

    /// A plan for the scripted agent: one step a line. It has little grace, so that tests are quick.
    pub fn agent(&self, script: &str) -> RunPlan {
        let lines = script.trim().lines().map(|line| format!("@rehearse {}\n", line.trim()));
        let pids = format!("@rehearse pidfile {}\n", self.pid_file().display());
        let stdin = std::iter::once(pids).chain(lines).collect::<String>().into_bytes();
        RunPlan {
            args: [rehearsal::CUE, "--as", "plain"].map(str::to_owned).to_vec(),
            stdin,
            limits: Limits { grace: Duration::from_millis(300), ..Limits::default() },
            ..RunPlan::new(std::env::current_exe().unwrap(), self.folder())
        }
    }

    pub async fn start(&self, plan: &RunPlan) -> Run {
        let run = self.try_start(plan).await.unwrap_or_else(|error| panic!("{error:?}"));
        self.run_ids.lock().unwrap().push(run.id());
        run
    }

    pub async fn try_start(&self, plan: &RunPlan) -> Result<Run, StartError> {
        Supervisor::this_program()?.start(&self.spool(), plan).await
    }

    /// Runs a plan to its end.
    pub async fn run(&self, plan: &RunPlan) -> RunReport {
        let run = self.start(plan).await;
        let report = run.wait().await.unwrap();
        assert_eq!(report.tree, TreeEnd::ProvenEmpty, "{report:?}");
        let size = |path: PathBuf| fs::metadata(path).unwrap().len();
        assert_eq!(report.output_bytes, size(run.spool().output()), "{report:?}");
        assert_eq!(report.error_bytes, size(run.spool().error()), "{report:?}");
        report
    }

    pub fn output(&self) -> Vec<u8> {
        fs::read(self.spool().join("output")).unwrap()
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.output()).into_owned()
    }

    /// The pids that the agent's descendants have written down so far.
    pub fn descendants(&self) -> Vec<i32> {
        let text = fs::read_to_string(self.pid_file()).unwrap_or_default();
        text.lines().map(|line| line.trim().parse().unwrap()).collect()
    }

    /// A supervisor names its spool in its command line; an agent and what kept its environment carry the run's id.
    fn is_ours(&self, pid: i32) -> bool {
        let of_spools = fs::read_dir(self.folder()).unwrap().filter_map(|entry| {
            let status = fs::read(entry.unwrap().path().join("status.json")).ok()?;
            Some(serde_json::from_slice::<RunStatus>(&status).ok()?.run_id)
        });
        let ids = self.run_ids.lock().unwrap().iter().copied().chain(of_spools).collect::<Vec<_>>();
        let holds = |file: &str, needle: &[u8]| {
            fs::read(format!("/proc/{pid}/{file}"))
                .is_ok_and(|bytes| bytes.windows(needle.len()).any(|window| window == needle))
        };
        is_running(pid)
            && pid.cast_unsigned() != std::process::id()
            && (holds("cmdline", self.folder().to_str().unwrap().as_bytes())
                || ids.iter().any(|id| holds("environ", id.to_string().as_bytes())))
    }

    async fn nothing_is_left(&self) {
        // The processes were found dead by their supervisor; what may lag behind is the reaping of what fell to others.
        eventually("a descendant is alive", || !self.descendants().into_iter().any(is_running)).await;
        eventually("a supervisor or an agent is alive", || !processes().any(|pid| self.is_ours(pid))).await;
        eventually("a child of the caller is left", || children_of_this_process().is_empty()).await;
    }
}

pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Reads a run to its end and gives back what it printed to stdout, stderr, and how it ended.
pub async fn read_along(run: &Run) -> (Vec<u8>, Vec<u8>, RunReport) {
    let mut events = run.events(supervisor::Offsets::default()).unwrap();
    let (mut output, mut error) = (Vec::new(), Vec::new());
    loop {
        match events.next().await.unwrap().expect("the events end with the report") {
            RunEvent::Output(bytes) => output.extend(bytes),
            RunEvent::Error(bytes) => error.extend(bytes),
            RunEvent::Ended(report) => {
                assert_eq!(events.next().await.unwrap(), None);
                return (output, error, report);
            }
        }
    }
}

/// Waits for a thing that must come true soon.
pub async fn eventually(otherwise: &str, mut is_true: impl FnMut() -> bool) {
    let patience = Instant::now() + LONG;
    while !is_true() {
        assert!(Instant::now() < patience, "{otherwise}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Whether a process runs, in whichever of its threads; a zombie does not.
pub fn is_running(pid: i32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
    threads.filter_map(Result::ok).any(|thread| thread_is_running(&thread.path()))
}

/// Whether a process is suspended by a signal.
pub fn is_suspended(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|fields| fields.trim_start().starts_with('T'))
}

fn thread_is_running(thread: &Path) -> bool {
    fs::read_to_string(thread.join("stat")).is_ok_and(|stat| {
        !matches!(stat.rsplit(')').next().unwrap().trim_start().chars().next(), Some('Z' | 'X'))
    })
}

pub fn processes() -> impl Iterator<Item = i32> {
    fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// Children of this process, zombies included.
pub fn children_of_this_process() -> Vec<i32> {
    children_of(i32::try_from(std::process::id()).unwrap())
}

pub fn children_of(parent: i32) -> Vec<i32> {
    processes().filter(|pid| parent_of(*pid) == Some(parent)).collect()
}

pub fn parent_of(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// How many files this process has open.
fn open_files() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// The lines `NAME=value` of an environment.
pub fn environment(text: &str) -> BTreeMap<String, String> {
    text.lines()
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (name.into(), value.into()))
        .collect()
}
