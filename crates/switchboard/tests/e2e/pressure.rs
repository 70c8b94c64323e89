//! A host that floods its bridge and does not read.

use std::io::{ErrorKind, Write};
use std::thread;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionbio;
use serde_json::json;

use crate::harness::Harness;

/// More requests and replies than all pipes and sockets on their way can hold.
const FLOOD: u64 = 5_000;
/// How long the bridge must not read from its host. A slow bridge does not fail the test.
const STALLED: Timespec = Timespec { tv_sec: 3, tv_nsec: 0 };

#[test]
fn unread_replies_block_only_their_host() {
    let harness = Harness::new();
    harness.daemon();
    let mut host = harness.bridge();
    host.initialize();
    let params = json!({"_meta": {"padding": "x".repeat(400)}});
    let requests: String = (1..=FLOOD)
        .map(|id| json!({"jsonrpc": "2.0", "id": id, "method": "ping", "params": params}).to_string() + "\n")
        .collect();
    let mut input = host.input.take().unwrap();
    ioctl_fionbio(&input, true).unwrap();
    let mut unwritten = requests.as_bytes();
    while !unwritten.is_empty() {
        match input.write(unwritten) {
            Ok(written) => unwritten = &unwritten[written..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if poll(&mut [PollFd::new(&input, PollFlags::OUT)], Some(&STALLED)) == Ok(0) {
                    break;
                }
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(!unwritten.is_empty(), "all requests were read although no answer was");

    let mut other = harness.bridge();
    other.initialize();
    other.request(1, "tools/list", &json!({}));
    assert!(other.receive()["result"]["tools"].is_array());

    ioctl_fionbio(&input, false).unwrap();
    let mut ids: Vec<u64> = thread::scope(|scope| {
        scope.spawn(|| input.write_all(unwritten).unwrap());
        (1..=FLOOD).map(|_| host.receive()["id"].as_u64().unwrap()).collect()
    });
    ids.sort_unstable();
    assert!(ids.into_iter().eq(1..=FLOOD), "not every request was answered once");
}
