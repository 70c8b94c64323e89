//! The harness of a test: a directory, a scripted agent, and the check that nothing is left behind.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use model::{InputMode, Limits, RunId, RunPlan, RunReport, RunStatus, TreeEnd};
use supervisor::{Run, RunEvent, RunInput, StartError, Supervisor};
use tempfile::TempDir;
use testkit::{LONGEST_WAIT, all_pids, children_of, eventually_async, is_running};

pub struct Harness {
    directory: TempDir,
    /// The input mode of the scripted agents.
    mode: InputMode,
    scripts: AtomicUsize,
    run_ids: Mutex<Vec<RunId>>,
}

impl Harness {
    /// Runs a test, and again with scripted agents whose input stays open.
    pub fn run_test_in_each_mode<F: AsyncFnMut(&Harness)>(mut test: F) {
        for mode in [InputMode::Complete, InputMode::Open] {
            Self::run_test_in(mode, &mut test);
        }
    }

    /// Runs a test and then checks that it leaves no descendant, no zombie and no open file.
    pub fn run_test<F: AsyncFnOnce(&Harness)>(test: F) {
        Self::run_test_in(InputMode::Complete, test);
    }

    fn run_test_in<F: AsyncFnOnce(&Harness)>(mode: InputMode, test: F) {
        // The first runtime of a process opens a pair of files for signals and never closes them.
        drop(runtime());
        let directory = tempfile::tempdir().unwrap();
        runtime().block_on(async {
            let (scripts, run_ids) = Default::default();
            let harness = Harness { directory, mode, scripts, run_ids };
            let files_before = open_files();
            tokio::time::timeout(3 * LONGEST_WAIT, test(&harness)).await.expect("the test hangs");
            harness.assert_nothing_left().await;
            // The runtime closes the file of a supervisor once that has exited, which is after its last notification.
            eventually_async("files of the caller are closed", async || open_files() == files_before).await;
        });
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub fn spool(&self) -> PathBuf {
        self.directory.path().join("spool")
    }

    /// Returns the file to which the agent's descendants write their pids.
    pub fn pid_file(&self) -> PathBuf {
        self.directory.path().join("pids")
    }

    /// Returns the input mode of the scripted agents.
    pub fn mode(&self) -> InputMode {
        self.mode
    }

    /// Returns a plan for the scripted agent, with one step per line and a short grace period to keep tests fast. The agent
    /// reads a complete input to its end before the first step, and never reads an open one.
    pub fn agent(&self, script: &str) -> RunPlan {
        let pids = format!("pidfile {}", self.pid_file().display());
        let steps: Vec<&str> =
            std::iter::once(pids.as_str()).chain(script.trim().lines().map(str::trim)).collect();
        let mut args = [rehearsal::CUE, "--as", "plain"].map(str::to_owned).to_vec();
        let mut input = Vec::new();
        match self.mode {
            InputMode::Complete => {
                input = format!("@rehearse {}\n", steps.join("\n@rehearse ")).into_bytes();
            }
            InputMode::Open => {
                let name = format!("script-{}", self.scripts.fetch_add(1, Ordering::Relaxed));
                let script = self.directory().join(name);
                fs::write(&script, steps.join("\n")).unwrap();
                args.extend(["--ignore-stdin", "--script", script.to_str().unwrap()].map(str::to_owned));
            }
        }
        RunPlan {
            args,
            input,
            input_mode: self.mode,
            limits: Limits { grace: Duration::from_millis(300), ..Limits::default() },
            ..RunPlan::new(std::env::current_exe().unwrap(), self.directory())
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

    /// Waits until the agent has printed exactly this.
    pub async fn wait_for_output(&self, expected: &[u8]) {
        let output = self.spool().join("output");
        eventually_async("the output is there", async || {
            fs::read(&output).is_ok_and(|bytes| bytes == expected)
        })
        .await;
    }

    /// Returns the pids that the agent's descendants have written so far.
    pub fn descendants(&self) -> Vec<i32> {
        let text = fs::read_to_string(self.pid_file()).unwrap_or_default();
        text.lines().map(|line| line.trim().parse().unwrap()).collect()
    }

    /// Returns whether a process belongs to this test. A supervisor has its spool in its command line; an agent and its
    /// descendants have the run id in their environment.
    fn belongs_to_test(&self, pid: i32) -> bool {
        let of_spools = fs::read_dir(self.directory()).unwrap().filter_map(|entry| {
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
            && (holds("cmdline", self.directory().to_str().unwrap().as_bytes())
                || ids.iter().any(|id| holds("environ", id.to_string().as_bytes())))
    }

    async fn assert_nothing_left(&self) {
        // The supervisor has found the processes dead, but orphans may not be reaped yet.
        eventually_async("no descendant is alive", async || !self.descendants().into_iter().any(is_running))
            .await;
        eventually_async("no supervisor or agent is alive", async || {
            !all_pids().any(|pid| self.belongs_to_test(pid))
        })
        .await;
        eventually_async("no child of the caller is left", async || own_children().is_empty()).await;
    }
}

/// Returns the plan of a shell script with an open input.
pub fn open_shell(script: &str) -> RunPlan {
    RunPlan {
        args: vec!["-c".into(), script.into()],
        env: [("PATH".to_owned(), "/usr/bin:/bin".to_owned())].into(),
        input_mode: InputMode::Open,
        limits: Limits { grace: Duration::from_millis(300), ..Limits::default() },
        ..RunPlan::new("/bin/sh", "/")
    }
}

/// Opens the input of a run, which must be open.
pub fn input_of(run: &Run) -> RunInput {
    run.input().unwrap().unwrap()
}

/// Returns bytes in which a lost, repeated or swapped piece shows.
pub fn numbered_bytes(length: usize) -> Vec<u8> {
    (0_u32..).flat_map(u32::to_le_bytes).take(length).collect()
}

pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Reads a run to its end. Returns its stdout, its stderr and its report.
pub async fn read_to_end(run: &Run) -> (Vec<u8>, Vec<u8>, RunReport) {
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

/// Lists the children of this process, zombies included.
pub fn own_children() -> Vec<i32> {
    children_of(i32::try_from(std::process::id()).unwrap())
}

pub fn parent_of(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Returns the number of open files of this process.
fn open_files() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Parses the lines `NAME=value` of an environment.
pub fn environment(text: &str) -> BTreeMap<String, String> {
    text.lines()
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (name.into(), value.into()))
        .collect()
}
