//! Descendants of an agent, each known by its own pid file.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::cast::{Descendants, Live, eventually, is_alive, play_steps, stat, tests};

tests![
    a_child_in_the_same_group_outlives_the_agent,
    a_child_in_its_own_session_leads_it,
    a_daemon_is_an_orphan_of_a_session_without_a_leader,
    a_descendant_heeds_term_even_if_the_agent_does_not,
    a_descendant_that_ignores_term_needs_kill,
    a_descendant_with_stdout_keeps_the_stream_open,
    a_descendant_without_stdout_lets_the_stream_end,
    a_cleared_environment_is_empty,
    an_environment_is_kept_otherwise,
    a_descendant_lives_as_long_as_it_is_told,
    several_descendants_all_write_their_pid,
    a_spawn_that_fails_is_told,
    a_fork_bomb_keeps_replacing_itself_and_ends_by_itself,
];

fn a_child_in_the_same_group_outlives_the_agent() {
    let descendants = Descendants::new();
    let mut live = Live::start("", &[&descendants.pidfile(), "spawn same-group", "say spawned", "hang"]);
    live.read_to("spawned");
    let pid = descendants.one();
    assert_eq!(parent(pid), live.pid());
    assert_eq!(group(pid), group(live.pid()));
    drop(live);
    assert!(is_alive(pid));
}

fn a_child_in_its_own_session_leads_it() {
    let descendants = Descendants::new();
    let mut live = Live::start("", &[&descendants.pidfile(), "spawn setsid", "say spawned", "hang"]);
    live.read_to("spawned");
    let pid = descendants.one();
    assert_eq!(parent(pid), live.pid());
    assert_eq!((session(pid), group(pid)), (raw(pid), raw(pid)));
}

fn a_daemon_is_an_orphan_of_a_session_without_a_leader() {
    let descendants = Descendants::new();
    let mut live = Live::start("", &[&descendants.pidfile(), "spawn daemon", "say spawned", "hang"]);
    live.read_to("spawned");
    let pid = descendants.one();
    assert_ne!(parent(pid), live.pid());
    let leader = session(pid);
    assert!(leader != session(live.pid()) && leader != raw(pid), "{leader}");
    assert!(!is_alive(Pid::from_raw(leader).unwrap()));
}

fn a_descendant_heeds_term_even_if_the_agent_does_not() {
    let descendants = Descendants::new();
    play_steps("", &["ignore TERM", &descendants.pidfile(), "spawn setsid"]);
    kill_process(descendants.one(), Signal::TERM).unwrap();
    eventually("it ends", || !is_alive(descendants.one()));
}

fn a_descendant_that_ignores_term_needs_kill() {
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

fn a_descendant_with_stdout_keeps_the_stream_open() {
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

fn a_descendant_without_stdout_lets_the_stream_end() {
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

fn a_cleared_environment_is_empty() {
    for kind in ["same-group", "setsid", "daemon"] {
        let descendants = Descendants::new();
        play_steps("", &[&descendants.pidfile(), &format!("spawn {kind} clear-env")]);
        assert!(environment(descendants.one()).is_empty(), "{kind}");
    }
}

fn an_environment_is_kept_otherwise() {
    let descendants = Descendants::new();
    play_steps("", &[&descendants.pidfile(), "spawn daemon"]);
    assert!(!environment(descendants.one()).is_empty());
}

fn a_descendant_lives_as_long_as_it_is_told() {
    let descendants = Descendants::new();
    let start = Instant::now();
    play_steps("", &[&format!("spawn daemon for 300ms pid={}", descendants.path().display())]);
    let pid = descendants.one();
    eventually("it ends", || !is_alive(pid));
    assert!(start.elapsed() >= Duration::from_millis(300));
}

fn several_descendants_all_write_their_pid() {
    let descendants = Descendants::new();
    play_steps("", &[&descendants.pidfile(), "spawn same-group", "spawn setsid", "spawn daemon", "cut"]);
    let mut pids: Vec<_> = descendants.all().iter().map(|pid| pid.as_raw_nonzero()).collect();
    pids.sort_unstable();
    pids.dedup();
    assert_eq!(pids.len(), 3);
    assert!(descendants.all().into_iter().all(is_alive));
}

fn a_spawn_that_fails_is_told() {
    for kind in ["same-group", "daemon"] {
        let played = play_steps("", &[&format!("spawn {kind} pid=/nowhere/at/all")]);
        assert_eq!(played.code(), 70, "{kind}");
        assert!(played.stderr.starts_with("error: cannot play step `spawn`: "), "{}", played.stderr);
    }
}

fn a_fork_bomb_keeps_replacing_itself_and_ends_by_itself() {
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
