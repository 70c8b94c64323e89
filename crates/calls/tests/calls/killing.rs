//! A daemon that is killed repeatedly while calls run.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::time::Duration;

use calls::{CallRequest, JobService, JobStatus};
use model::{JobId, RunState};

use crate::harness::{Harness, call, close, ended, runs, runtime, settings};
use testkit::{all_pids, eventually, is_running, tests};

tests![killing_the_daemon_neither_loses_nor_repeats_a_call];

/// The argument that turns this program into a daemon.
const SERVE: &str = "--serve";
/// The number of concurrent calls.
const CALLS: usize = 20;

/// Runs a daemon that submits a call for every line of stdin until it is killed.
pub fn serve_if_asked() -> Option<ExitCode> {
    let mut arguments = std::env::args().skip(1);
    if arguments.next()? != SERVE {
        return None;
    }
    let (state, workspace, pids) = (arguments.next()?, arguments.next()?, arguments.next()?);
    runtime().block_on(async {
        let mut settings = settings(Path::new(&state));
        settings.at_once = 32;
        let service = JobService::open(settings).await.unwrap();
        println!("open");
        let lines = std::io::stdin().lines();
        for line in lines {
            let line = line.unwrap();
            let (key, script) = line.split_once(' ').unwrap();
            let script = script.replace(';', "\n");
            let request = CallRequest {
                idempotency_key: Some(key.to_owned()),
                ..CallRequest::new(call(Path::new(&workspace), Path::new(&pids), &script), "call_cc")
            };
            let placed = service.submit(request).await.unwrap();
            println!("{}", placed.job);
        }
    });
    Some(ExitCode::SUCCESS)
}

struct Daemon {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Daemon {
    fn start(harness: &Harness) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .arg(SERVE)
            .args([harness.state(), harness.workspace(), harness.pid_file()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        let mut daemon = Self { child, said };
        assert_eq!(daemon.line(), "open");
        daemon
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn place(&mut self, key: &str, script: &str) -> JobId {
        writeln!(self.child.stdin.as_mut().unwrap(), "{key} {script}").unwrap();
        self.line().parse().unwrap()
    }
}

impl Daemon {
    /// Returns its supervisors, including the idle one of the fork server.
    fn children(&self) -> Vec<i32> {
        let is_child = |pid: &i32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok());
            parent == Some(self.child.id())
        };
        all_pids().filter(is_child).collect()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn killing_the_daemon_neither_loses_nor_repeats_a_call() {
    // A campaign kills it 100 times.
    let rounds = std::env::var("CALLS_KILLS").ok().and_then(|count| count.parse().ok()).unwrap_or(3);
    for round in 0..rounds {
        Harness::run(async |harness| {
            let mut jobs = Vec::new();
            let mut daemon = Daemon::start(harness);
            // Runs of different lengths, so that the kill finds each at another point.
            let script = |number: usize| {
                format!("say begun;stream {} 200B 5ms;spawn setsid;answer call {number}", 10 + number * 4)
            };
            for number in 0..CALLS {
                jobs.push(daemon.place(&format!("{round}-{number}"), &script(number)));
            }
            // At another moment within the total run time in every round.
            let moments = [0_u64, 3, 20, 60, 110, 170, 240, 330, 450, 600];
            std::thread::sleep(Duration::from_millis(
                moments[round % moments.len()] + (round as u64 * 7) % 50,
            ));
            let waiting = daemon.children();
            drop(daemon);
            let service = harness.open_with(|settings| settings.at_once = 32).await;
            for (number, &job) in jobs.iter().enumerate() {
                let answer = ended(&service, job).await;
                assert_eq!(answer.status, JobStatus::Completed, "{answer:?}");
                assert_eq!(answer.output, format!("call {number}"));
                is_whole(&harness.state(), job, number);
            }
            assert_eq!(service.count(&store::JobFilter::default()).await.unwrap(), CALLS as u64);
            close(&service).await;
            // The supervisors of runs exit with their runs, the idle one with its daemon.
            eventually("a supervisor is left", || !waiting.iter().copied().any(is_running));
            assert!(!harness.descendants().into_iter().any(is_running));
        });
    }
}

/// Asserts that the job has one run with a complete output.
fn is_whole(state: &Path, job: JobId, number: usize) {
    let runs = runs(state, job);
    assert_eq!(runs.len(), 1, "job {job} ran {} times", runs.len());
    let RunState::Ended(report) = &runs[0].state else { panic!("{runs:?}") };
    let output = fs::read(state.join("jobs").join(job.to_string()).join("output")).unwrap();
    assert_eq!(output.len() as u64, report.output_bytes);
    let text = String::from_utf8(output).unwrap();
    assert!(text.lines().count() > 10 + number * 4, "lines are missing in {text}");
    assert!(text.ends_with("}\n"), "the last line is not whole: {text}");
}
