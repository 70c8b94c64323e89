//! Kills a writing process at random times and checks that every confirmed write survives.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write, stdout};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, SystemTime};
use std::{env, thread};

use model::{JobId, StateName};
use store::{Store, StoreOptions, StoreSetting};

use crate::fixtures::{new_job, request, success};
use crate::harness::{EngineKind, Harness, block_on};

testkit::tests![confirmed_writes_survive_sigkill];

const WRITE: &str = "STORE_TEST_WRITE";
/// The number of kills; 200 in a long run.
const ROUNDS: &str = "STORE_CRASH_ROUNDS";

/// Runs the process to kill: several concurrent writers that print each confirmed write.
pub fn write_if_requested() -> Option<ExitCode> {
    let setting: StoreSetting = env::var(WRITE).ok()?.parse().unwrap();
    block_on(async {
        let store = Store::open(StoreOptions::new(setting, "unused")).await.unwrap();
        let mut writers = tokio::task::JoinSet::new();
        for writer in 0..6 {
            writers.spawn(write_forever(store.clone(), writer));
        }
        writers.join_all().await;
    });
    Some(ExitCode::SUCCESS)
}

async fn write_forever(store: Store, writer: usize) {
    let owner = format!("writer {writer} of {}", std::process::id());
    for round in 0.. {
        let id = store.submit(new_job(&"prompt ".repeat(round % 300))).await.unwrap().job.id;
        print_state(id, StateName::Queued);
        if round % 4 == 3 {
            let reply = store.request_cancel(id).await.unwrap();
            if reply.now == StateName::Cancelled {
                print_state(id, StateName::Cancelled);
            }
        }
        if let Some(job) = store.claim(request(&owner)).await.unwrap() {
            print_state(job.id, StateName::Running);
            let text = "answer ".repeat(round % 500);
            if store.finish(&job.claim().unwrap(), success(&text)).await.is_ok() {
                print_state(job.id, StateName::Completed);
            }
        }
    }
}

/// Prints a line with one write(2), so that it is either complete or absent.
fn print_state(id: JobId, state: StateName) {
    stdout().lock().write_all(format!("{id} {state}\n").as_bytes()).unwrap();
}

/// Returns the rank of a state, which never decreases without a rescue.
fn rank(state: StateName) -> u8 {
    match state {
        StateName::Queued => 0,
        StateName::Running => 1,
        _ => 2,
    }
}

fn confirmed_writes_survive_sigkill() {
    kill_writers_of(EngineKind::SqliteFile, 20);
}

/// Kills writers `rounds` times, or as often as the variable requests.
pub fn kill_writers_of(engine: EngineKind, rounds: usize) {
    let rounds = env::var(ROUNDS).ok().and_then(|text| text.parse().ok()).unwrap_or(rounds);
    let harness = Harness::new(engine);
    let mut acknowledged = 0;
    for round in 0..rounds {
        // Random enough: the scheduler adds its own jitter.
        let nanos = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().subsec_nanos();
        let reported = run_and_kill(Duration::from_micros(u64::from(nanos % 80_000)), &harness);
        acknowledged += reported.len();
        block_on(async {
            let store = harness.open().await;
            store.check().await.unwrap();
            for (id, reported) in reported {
                let job = store.get(id).await.unwrap();
                let job = job.unwrap_or_else(|| panic!("round {round}: {id} was {reported} and is gone"));
                let now = job.progress.state.name();
                assert!(rank(now) >= rank(reported), "round {round}: {id} was {reported} and is {now}");
                if now == StateName::Completed {
                    let exchange = store.exchange(id).await.unwrap().expect("a finished job has an exchange");
                    assert_eq!(exchange.said.response, job.outcome.unwrap().text);
                }
            }
        });
    }
    assert!(acknowledged > rounds, "the writer hardly wrote: {acknowledged} in {rounds} rounds");
}

/// Starts a writer, kills it a while after its first line, and returns the last printed state of each job.
fn run_and_kill(delay: Duration, harness: &Harness) -> HashMap<JobId, StateName> {
    let mut command = Command::new(env::current_exe().unwrap());
    let mut child = command.env(WRITE, harness.setting()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut reported = HashMap::new();
    let mut record = |line: String| {
        let (id, state) = line.split_once(' ').unwrap();
        reported.insert(id.parse().unwrap(), state.parse().unwrap());
    };
    record(lines.next().unwrap().unwrap());
    thread::scope(|scope| {
        let kill = scope.spawn(|| {
            thread::sleep(delay);
            child.kill().unwrap();
            child.wait().unwrap();
        });
        // Ignore a line that the kill truncated.
        lines
            .map_while(Result::ok)
            .filter(|line| line.split_once(' ').is_some_and(is_complete))
            .for_each(&mut record);
        kill.join().unwrap();
    });
    reported
}

fn is_complete((id, state): (&str, &str)) -> bool {
    id.parse::<JobId>().is_ok() && state.parse::<StateName>().is_ok()
}
