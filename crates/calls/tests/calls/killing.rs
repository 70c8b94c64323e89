//! A daemon that is killed, again and again, while calls run.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::time::Duration;

use calls::{CallRequest, JobService, JobStatus};
use model::{JobId, RunState};

use crate::scene::{Scene, call, close, ended, eventually, is_running, processes, runs, runtime, settings};
use crate::tests;

tests![no_kill_of_the_daemon_loses_a_call_or_runs_it_twice];

/// What a process is told to be a daemon.
const SERVE: &str = "--serve";
/// How many calls run at once.
const CALLS: usize = 20;

/// The whole daemon: it places a call for every line it is given, and works until it is killed.
pub fn serve_if_asked() -> Option<ExitCode> {
    let mut arguments = std::env::args().skip(1);
    if arguments.next()? != SERVE {
        return None;
    }
    let (state, workspace, pids) = (arguments.next()?, arguments.next()?, arguments.next()?);
    runtime().block_on(async {
        let mut settings = settings(Path::new(&state));
        settings.at_once = 32;
        let desk = JobService::open(settings).await.unwrap();
        println!("open");
        let lines = std::io::stdin().lines();
        for line in lines {
            let line = line.unwrap();
            let (key, script) = line.split_once(' ').unwrap();
            let script = script.replace(';', "\n");
            let order = CallRequest {
                idempotency_key: Some(key.to_owned()),
                ..CallRequest::new(call(Path::new(&workspace), Path::new(&pids), &script), "call_cc")
            };
            let placed = desk.submit(order).await.unwrap();
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
    fn start(scene: &Scene) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .arg(SERVE)
            .args([scene.state(), scene.workspace(), scene.pid_file()])
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
    /// Its supervisors, the one that waits for the next run among them.
    fn children(&self) -> Vec<i32> {
        let is_child = |pid: &i32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok());
            parent == Some(self.child.id())
        };
        processes().filter(is_child).collect()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn no_kill_of_the_daemon_loses_a_call_or_runs_it_twice() {
    // A campaign kills it 100 times.
    let rounds = std::env::var("CALLS_KILLS").ok().and_then(|count| count.parse().ok()).unwrap_or(3);
    for round in 0..rounds {
        Scene::play(async |scene| {
            let mut jobs = Vec::new();
            let mut daemon = Daemon::start(scene);
            // Runs of different lengths, so that the kill finds each at another point.
            let script = |number: usize| {
                format!("say begun;stream {} 200B 5ms;spawn setsid;answer call {number}", 10 + number * 4)
            };
            for number in 0..CALLS {
                jobs.push(daemon.place(&format!("{round}-{number}"), &script(number)));
            }
            // Somewhere within the time that all of it takes, another moment in every round.
            let moments = [0_u64, 3, 20, 60, 110, 170, 240, 330, 450, 600];
            std::thread::sleep(Duration::from_millis(
                moments[round % moments.len()] + (round as u64 * 7) % 50,
            ));
            let waiting = daemon.children();
            drop(daemon);
            let desk = scene.open_with(|settings| settings.at_once = 32).await;
            for (number, &job) in jobs.iter().enumerate() {
                let answer = ended(&desk, job).await;
                assert_eq!(answer.status, JobStatus::Completed, "{answer:?}");
                assert_eq!(answer.output, format!("call {number}"));
                is_whole(&scene.state(), job, number);
            }
            assert_eq!(desk.count(&store::JobFilter::default()).await.unwrap(), CALLS as u64);
            close(&desk).await;
            // Those of runs have ended with them, the one that waited for another run with its daemon.
            eventually("a supervisor is left", || !waiting.iter().copied().any(is_running));
            assert!(!scene.descendants().into_iter().any(is_running));
        });
    }
}

/// One run, and every byte of it.
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
