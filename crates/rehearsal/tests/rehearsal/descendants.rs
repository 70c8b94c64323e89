//! Descendants of an agent, each known by its own pid file.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{Descendants, Live, eventually, is_alive, play_steps, stat, tests};

tests![
    child_in_same_group_outlives_the_agent,
    setsid_child_leads_its_session,
    daemon_is_orphaned_in_a_leaderless_session,
    descendant_obeys_sigterm_even_if_agent_ignores_it,
    descendant_can_ignore_sigterm,
    descendant_with_stdout_keeps_the_stream_open,
    descendant_without_stdout_lets_the_stream_close,
    cleared_environment_is_empty,
    environment_is_inherited_by_default,
    descendant_lives_for_the_given_time,
    every_descendant_writes_its_pid,
    spawn_failure_is_reported,
    fork_bomb_replaces_itself_and_expires,
];

fn child_in_same_group_outlives_the_agent() {
    let descendants = Descendants::new();
    let mut live = Live::start("", &[&descendants.pidfile(), "spawn same-group", "say spawned", "hang"]);
    live.read_to("spawned");
    let pid = descendants.one();
    assert_eq!(parent(pid), live.pid());
    assert_eq!(group(pid), group(live.pid()));
    drop(live);
    assert!(is_alive(pid));
}

fn setsid_child_leads_its_session() {
    let descendants = Descendants::new();
    let mut live = Live::start("", &[&descendants.pidfile(), "spawn setsid", "say spawned", "hang"]);
    live.read_to("spawned");
    let pid = descendants.one();
    assert_eq!(parent(pid), live.pid());
    assert_eq!((session(pid), group(pid)), (raw(pid), raw(pid)));
}

fn daemon_is_orphaned_in_a_leaderless_session() {
    let descendants = Descendants::new();
    let mut live = Live::start("", &[&descendants.pidfile(), "spawn daemon", "say spawned", "hang"]);
    live.read_to("spawned");
    let pid = descendants.one();
    assert_ne!(parent(pid), live.pid());
    let leader = session(pid);
    assert!(leader != session(live.pid()) && leader != raw(pid), "{leader}");
    assert!(!is_alive(Pid::from_raw(leader).unwrap()));
}

fn descendant_obeys_sigterm_even_if_agent_ignores_it() {
    let descendants = Descendants::new();
    play_steps("", &["ignore TERM", &descendants.pidfile(), "spawn setsid"]);
    kill_process(descendants.one(), Signal::TERM).unwrap();
    eventually("it ends", || !is_alive(descendants.one()));
}

fn descendant_can_ignore_sigterm() {
    for kind in ["same-group", "setsid", "daemon"] {
        let descendants = Descendants::new();
        play_steps("", &[&descendants.pidfile(), &format!("spawn {kind} ignore-term")]);
        let pid = descendants.one();
        assert!(ignores(pid, Signal::TERM), "{kind}");
        kill_process(pid, Signal::TERM).unwrap();
        assert!(is_alive(pid), "{kind}");
        kill_process(pid, Signal::KILL).unwrap();
        eventually("it ends", || !is_alive(pid));
    }
}

fn descendant_with_stdout_keeps_the_stream_open() {
    for kind in ["same-group", "setsid", "daemon"] {
        let descendants = Descendants::new();
        let mut live = Live::start("", &[&descendants.pidfile(), &format!("spawn {kind} keep-stdout")]);
        live.read_to("\"type\":\"result\"");
        assert!(live.wait().success(), "{kind}");
        assert!(live.stream_is_open(), "{kind}");
        kill_process(descendants.one(), Signal::KILL).unwrap();
        assert!(live.read_to_end().is_empty(), "{kind}");
    }
}

fn descendant_without_stdout_lets_the_stream_close() {
    let descendants = Descendants::new();
    let steps = [&descendants.pidfile(), "spawn daemon", "spawn setsid no-stdout"];
    let mut live = Live::start("", &steps);
    live.read_to("\"type\":\"result\"");
    assert!(live.wait().success() && !live.stream_is_open());
    for pid in descendants.all() {
        for fd in 0..3 {
            let target = fs::read_link(format!("/proc/{}/fd/{fd}", pid.as_raw_nonzero())).unwrap();
            assert_eq!(target.to_str(), Some("/dev/null"));
        }
    }
}

fn cleared_environment_is_empty() {
    for kind in ["same-group", "setsid", "daemon"] {
        let descendants = Descendants::new();
        play_steps("", &[&descendants.pidfile(), &format!("spawn {kind} clear-env")]);
        assert!(environment(descendants.one()).is_empty(), "{kind}");
    }
}

fn environment_is_inherited_by_default() {
    let descendants = Descendants::new();
    play_steps("", &[&descendants.pidfile(), "spawn daemon"]);
    assert!(!environment(descendants.one()).is_empty());
}

fn descendant_lives_for_the_given_time() {
    let descendants = Descendants::new();
    let start = Instant::now();
    play_steps("", &[&format!("spawn daemon for 300ms pid={}", descendants.path().display())]);
    let pid = descendants.one();
    eventually("it ends", || !is_alive(pid));
    assert!(start.elapsed() >= Duration::from_millis(300));
}

fn every_descendant_writes_its_pid() {
    let descendants = Descendants::new();
    play_steps("", &[&descendants.pidfile(), "spawn same-group", "spawn setsid", "spawn daemon", "cut"]);
    let mut pids: Vec<_> = descendants.all().iter().map(|pid| pid.as_raw_nonzero()).collect();
    pids.sort_unstable();
    pids.dedup();
    assert_eq!(pids.len(), 3);
    assert!(descendants.all().into_iter().all(is_alive));
}

fn spawn_failure_is_reported() {
    for kind in ["same-group", "daemon"] {
        let played = play_steps("", &[&format!("spawn {kind} pid=/nowhere/at/all")]);
        assert_eq!(played.code(), 70, "{kind}");
        assert!(played.stderr.starts_with("error: cannot play step `spawn`: "), "{}", played.stderr);
    }
}

fn fork_bomb_replaces_itself_and_expires() {
    let descendants = Descendants::new();
    let played = play_steps("", &[&descendants.pidfile(), "fork-bomb 3 for 400ms"]);
    assert_eq!(played.code(), 0);
    eventually("a second generation", || descendants.all().len() > 6);
    // A generation may be between its start and its pid file, so the end is a period without new ones.
    eventually("the end", || {
        let known = descendants.all();
        std::thread::sleep(Duration::from_millis(200));
        descendants.all().len() == known.len() && !known.into_iter().any(is_alive)
    });
}

fn parent(pid: Pid) -> Pid {
    Pid::from_raw(stat(pid).unwrap()[1].parse().unwrap()).unwrap()
}

// Groups and sessions from `/proc`: in a container the leader may be outside, which is group or session 0 in here and not a
// `Pid`.
fn group(pid: Pid) -> i32 {
    stat(pid).unwrap()[2].parse().unwrap()
}

fn session(pid: Pid) -> i32 {
    stat(pid).unwrap()[3].parse().unwrap()
}

fn raw(pid: Pid) -> i32 {
    pid.as_raw_nonzero().get()
}

fn environment(pid: Pid) -> Vec<u8> {
    fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero())).unwrap()
}

fn ignores(pid: Pid, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() >> (signal.as_raw() - 1) & 1 == 1
}
