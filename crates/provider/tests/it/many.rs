//! A thousand sequential requests: neither memory nor files grow.

use std::fs;
use std::process::{Command, ExitCode};

use provider::{Context, Provider};

use crate::harness::Harness;

crate::tests! { many_requests_leak_no_memory_and_no_files }

/// The argument that turns this binary into the measured program; the number of requests follows.
const ASKED: &str = "--measure-requests";
/// The default number of requests.
const SLICE: u32 = 120;
/// The variable that sets the number of requests (`just requests`).
const WHOLE: &str = "PROVIDER_REQUESTS";
/// The memory that an allocator may retain.
const SLACK_KB: u64 = 1024;

/// The memory and the open files of a process.
#[derive(Debug, Clone, Copy)]
struct Held {
    rss_kb: u64,
    files: usize,
}

fn many_requests_leak_no_memory_and_no_files() {
    let requests = std::env::var(WHOLE).ok().and_then(|text| text.parse().ok()).unwrap_or(SLICE);
    // A separate process, so that no other test adds to the figures.
    let this = std::env::current_exe().unwrap();
    let output = Command::new(this).args([ASKED, &requests.to_string()]).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    println!("{said}");
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let held: Vec<Held> = said.lines().filter_map(read).collect();
    let (first, last) = (held[0], held[held.len() - 1]);
    assert_eq!(first.files, last.files, "{said}");
    assert!(last.rss_kb <= first.rss_kb + SLACK_KB, "{said}");
}

fn read(line: &str) -> Option<Held> {
    let mut numbers = line.split(' ').filter_map(|word| word.parse::<u64>().ok()).skip(1);
    let (rss_kb, files) = (numbers.next()?, usize::try_from(numbers.next()?).ok()?);
    Some(Held { rss_kb, files })
}

/// Sends the requests, if this process was started to be measured.
pub fn measure_if_asked() -> Option<ExitCode> {
    let mut arguments = std::env::args().skip(1);
    if arguments.next()? != ASKED {
        return None;
    }
    let requests: u32 = arguments.next()?.parse().ok()?;
    let harness = Harness::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let provider = harness.provider();
        for number in 1..=requests {
            let answer =
                provider.complete(&Context::new(format!("@rehearse answer {number}"))).await.unwrap();
            assert_eq!(answer.text, number.to_string());
            // The first tenth fills caches.
            if number % (requests / 10).max(1) == 0 {
                let Held { rss_kb, files } = held();
                println!("after {number} requests: {rss_kb} kB, {files} files");
            }
        }
        harness.nothing_is_left().await;
    });
    Some(ExitCode::SUCCESS)
}

fn held() -> Held {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let rss_kb = line.trim().trim_end_matches(" kB").parse().unwrap();
    Held { rss_kb, files: fs::read_dir("/proc/self/fd").unwrap().count() }
}
