//! The shutdown of the daemon.

use std::fs;
use std::process::Stdio;
use testkit::eventually;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{PidfdFlags, Signal, pidfd_open};
use serde_json::json;

use crate::harness::{EXIT_TIMEOUT, Harness, stderr, stdout};

#[test]
fn stop_returns_after_daemon_exit() {
    for args in [&["stop"][..], &["stop", "--now"], &["stop", "--cancel"]] {
        let harness = Harness::new();
        let daemon = harness.daemon();
        let output = harness.run(args);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(stdout(&output), format!("stopped the daemon (pid {})\n", daemon.pid.as_raw_pid()));
        assert!(harness.running_daemon().is_none());
        assert!(!daemon.socket.as_ref().unwrap().exists());
        daemon.wait();
    }
}

#[test]
fn stop_and_status_start_no_daemon() {
    let harness = Harness::new();
    let stopped = harness.run(&["stop"]);
    assert!(stopped.status.success());
    assert_eq!(stdout(&stopped), "no daemon is running\n");
    let status = harness.run(&["status"]);
    assert_eq!(status.status.code(), Some(1));
    assert!(!harness.state().exists(), "a look leaves nothing behind");
}

#[test]
fn stop_cancels_jobs_that_run_without_daemon() {
    let harness = Harness::new();
    let pids = harness.scratch().join("pids");
    let prompt = format!(
        "@rehearse pidfile {}\n@rehearse spawn setsid\n@rehearse say up\n@rehearse hang",
        pids.display()
    );
    let call = ["call", "rehearsal", "--background", "--policy", "off", &prompt];
    let job = stdout(&harness.run(&call)).trim().to_owned();
    let output = harness.state().join("jobs").join(&job).join("output");
    eventually("the agent runs", || fs::read_to_string(&output).is_ok_and(|said| said.contains("up")));
    harness.running_daemon().unwrap().kill();
    // By another spelling of the same directory.
    let mut stop = harness.command(&["stop", "--cancel"]);
    let stopped = stop.env("SWITCHBOARD_HOME", harness.home.join("../home/.")).output().unwrap();
    assert!(stopped.status.success(), "{stopped:?}");
    assert!(harness.running_daemon().is_none());
    let result = fs::read_to_string(harness.state().join("jobs").join(&job).join("status.json")).unwrap();
    assert!(result.contains("cancelled"), "{result}");
    for pid in fs::read_to_string(&pids).unwrap().lines() {
        assert!(!std::path::Path::new("/proc").join(pid.trim()).exists(), "process {pid} is left");
    }
}

#[test]
fn sigterm_stops_daemon_and_sighup_does_not() {
    let harness = Harness::new();
    let daemon = harness.daemon();
    daemon.signal(Signal::HUP);
    let status = harness.run(&["status"]);
    assert!(stdout(&status).contains(&format!("pid {}", daemon.pid.as_raw_pid())), "{status:?}");
    daemon.signal(Signal::TERM);
    daemon.wait();
    assert!(!daemon.socket.as_ref().unwrap().exists());
    assert!(harness.log().trim_end().ends_with("stopped"), "{}", harness.log());
}

#[test]
fn foreground_daemon_logs_to_terminal() {
    use std::io::{BufRead, BufReader};
    let harness = Harness::new();
    let mut child = harness.command(&["serve"]).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("ready"), "{line}");
    harness.running_daemon().unwrap().signal(Signal::INT);
    assert!(child.wait().unwrap().success());
    assert!(harness.running_daemon().is_none());
}

/// Waits until the run of a job has started, and returns its supervisor.
fn wait_for_supervisor(harness: &Harness, id: &str) -> rustix::process::Pid {
    let status = harness.state().join("jobs").join(id).join("status.json");
    loop {
        let status: serde_json::Value = serde_json::from_slice(&fs::read(&status).unwrap()).unwrap();
        if let Some(pid) = status["pid"].as_i64() {
            return rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        }
        std::thread::yield_now();
    }
}

#[test]
fn removed_state_directory_stops_daemon_and_jobs() {
    let harness = Harness::new();
    let placed = harness.run(&["call", "rehearsal", "--background", "@rehearse say up\n@rehearse hang"]);
    let id = stdout(&placed);
    let watched = pidfd_open(wait_for_supervisor(&harness, id.trim()), PidfdFlags::empty()).unwrap();
    let daemon = harness.running_daemon().unwrap();
    fs::remove_dir_all(harness.state()).unwrap();
    daemon.wait();
    let mut gone = [PollFd::new(&watched, PollFlags::IN)];
    assert_eq!(poll(&mut gone, Some(&EXIT_TIMEOUT)), Ok(1), "the run goes on, and nobody knows of it");
    assert!(harness.run(&["call", "rehearsal", "hi"]).status.success(), "the next daemon begins anew");
}

#[test]
fn moved_state_directory_loses_no_job() {
    let harness = Harness::new();
    let prompt = "@rehearse say up\n@rehearse delay 2s\n@rehearse answer done";
    let id = stdout(&harness.run(&["call", "rehearsal", "--background", prompt]));
    wait_for_supervisor(&harness, id.trim());
    let daemon = harness.running_daemon().unwrap();
    let moved = harness.scratch().join("moved");
    fs::rename(harness.state(), &moved).unwrap();
    daemon.wait();
    assert!(!harness.state().exists(), "nothing is written to the old path");
    fs::rename(&moved, harness.state()).unwrap();
    let waited = harness.run(&["wait", id.trim()]);
    assert!(waited.status.success(), "{waited:?}");
    let job = stdout(&harness.run(&["status", "--json", id.trim()]));
    assert!(job.contains("\"completed\"") && job.contains("done"), "{job}");
}

#[test]
fn removed_lock_and_socket_stop_no_job() {
    let harness = Harness::new();
    let placed = harness.run(&["call", "rehearsal", "--background", "@rehearse say up\n@rehearse hang"]);
    let id = stdout(&placed);
    let daemon = harness.running_daemon().unwrap();
    for name in ["daemon.lock", "start.lock"] {
        fs::remove_file(harness.state().join(name)).unwrap();
    }
    fs::remove_file(daemon.socket.as_ref().unwrap()).unwrap();
    let status = harness.run(&["status"]);
    assert!(stdout(&status).contains(&format!("(pid {}", daemon.pid.as_raw_pid())), "{status:?}");
    assert!(stdout(&status).contains("jobs: 1 running"), "{status:?}");
    let job = harness.run(&["status", "--json", id.trim()]);
    assert!(stdout(&job).contains("\"running\""), "{job:?}");
    assert_eq!(harness.ready_count(), 1, "a second daemon was started");
    let stopped = harness.run(&["stop", "--cancel"]);
    assert!(stopped.status.success(), "{stopped:?}");
    daemon.wait();
}

#[test]
fn copied_state_directory_is_rejected() {
    let harness = Harness::new();
    let daemon = harness.daemon();
    let copy = harness.scratch().join("copy");
    let copied = std::process::Command::new("cp").arg("-a").arg(&harness.home).arg(&copy).status().unwrap();
    assert!(copied.success());
    let run = |args: &[&str]| harness.command(args).env("SWITCHBOARD_HOME", &copy).output().unwrap();
    let status = run(&["status"]);
    assert_eq!(stdout(&status), "no daemon is running; the next command starts one\n");
    // Refused every time, and not only the first.
    for _ in 0..2 {
        let refused = run(&["call", "rehearsal", "hi"]);
        let expected = format!("is a copy of one whose daemon is running (pid {})", daemon.pid.as_raw_pid());
        assert!(!refused.status.success() && stderr(&refused).contains(&expected), "{refused:?}");
    }
    assert!(harness.run(&["stop"]).status.success());
    let served = run(&["call", "rehearsal", "hi"]);
    assert!(served.status.success(), "{served:?}");
    assert!(run(&["stop"]).status.success());
}

#[test]
fn idle_bridge_does_not_restart_stopped_daemon() {
    let harness = Harness::new();
    let mut host = harness.bridge();
    host.initialize();
    assert!(harness.run(&["stop"]).status.success());
    let status = harness.run(&["status"]);
    assert_eq!(status.status.code(), Some(1), "{status:?}");
    assert_eq!(harness.ready_count(), 1);
    assert_eq!(host.ping(1)["result"], json!({}));
    assert_eq!(harness.ready_count(), 2);
    let (rest, _) = host.finish();
    assert_eq!(rest, "", "the answer to the second greeting is nobody's");
}

#[test]
fn idle_daemon_stops_despite_connected_bridge() {
    let harness = Harness::new();
    harness.configure("idle_stop = \"100ms\"\n");
    let mut host = harness.bridge();
    host.initialize();
    if let Some(daemon) = harness.running_daemon() {
        daemon.wait();
    }
    assert_eq!(host.ping(1)["result"], json!({}));
}

#[test]
fn stop_inside_call_does_not_wait_for_it() {
    let harness = Harness::new();
    assert!(harness.run(&["serve", "--background"]).status.success());
    let output = harness.command(&["stop"]).env("SWITCHBOARD_RUN_ID", "0").output().unwrap();
    assert!(!output.status.success(), "{output:?}");
    assert!(stderr(&output).contains("would wait for the call it runs in"), "{output:?}");
    assert!(harness.run(&["status"]).status.success());
}

#[test]
fn stop_with_cancel_reports_jobs_it_waits_for() {
    let harness = Harness::new();
    let played = crate::fake_daemon::FakeDaemon::new(&harness);
    let stop = ["stop", "--cancel"];
    let child = harness.command(&stop).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut line = played.accept();
    assert_eq!(line.receive(), json!({"request": "stop", "how": "cancel"}));
    line.send(&json!({"reply": "draining", "running": 1, "more": true}));
    line.send(&json!({"reply": "error", "message": "no", "hint": "ask later"}));
    let text = stderr(&child.wait_with_output().unwrap());
    assert!(text.contains("waiting until 1 running job is canceled"), "{text}");
}

#[test]
fn draining_daemon_reports_jobs_and_rejects_calls() {
    let harness = Harness::new();
    let played = crate::fake_daemon::FakeDaemon::new(&harness);
    let child = harness.command(&["stop"]).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut line = played.accept();
    assert_eq!(line.receive(), json!({"request": "stop", "how": "drain"}));
    line.send(&json!({"reply": "draining", "running": 2, "more": true}));
    line.send(&json!({"reply": "error", "message": "no", "hint": "ask later"}));
    let output = child.wait_with_output().unwrap();
    let text = stderr(&output);
    assert!(text.contains("waiting for 2 jobs"), "{text}");
    assert!(
        text.contains("the daemon rejected the request: no") && text.contains("hint: ask later"),
        "{text}"
    );
}

#[test]
fn unresponsive_daemon_error_names_pid() {
    let harness = Harness::new();
    let daemon = harness.daemon();
    daemon.signal(Signal::STOP);
    let output = harness.run(&["status"]);
    let text = stderr(&output);
    assert!(
        text.contains(&format!("the daemon (pid {}) does not respond", daemon.pid.as_raw_pid())),
        "{text}"
    );
    assert!(text.contains("kill -CONT"), "{text}");
    daemon.signal(Signal::CONT);
    assert!(harness.run(&["status"]).status.success());
}

/// A process that listens as a daemon of another protocol and exits on SIGTERM.
#[test]
fn daemon_of_other_protocol_is_stopped() {
    let harness = Harness::new();
    let socket = harness.scratch().join("old.sock");
    let script = format!(
        "import socket, json, os, fcntl\n\
         lock = open({lock:?}, 'w'); fcntl.flock(lock, fcntl.LOCK_EX)\n\
         s = socket.socket(socket.AF_UNIX); s.bind({socket:?}); s.listen()\n\
         lock.write(json.dumps(dict(pid=os.getpid(), version='0.0.1', socket={socket:?}))); lock.flush()\n\
         print('ready', flush=True)\n\
         while True:\n c = s.accept()[0]\n c.recv(65536)\n c.sendall(b'{{\"switchboard\":{{\"protocol\":0,\"version\":\"0.0.1\"}}}}\\n')\n",
        lock = harness.state().join("daemon.lock"),
    );
    drop(crate::harness::hold_lock(&harness));
    let python = std::process::Command::new("python3").args(["-c", &script]).stdout(Stdio::piped()).spawn();
    let Ok(mut old) = python else {
        println!("SKIPPED: python3 is not here to play an old daemon");
        return;
    };
    let mut said = [0; 6];
    std::io::Read::read_exact(old.stdout.as_mut().unwrap(), &mut said).unwrap();
    let output = harness.run(&["stop"]);
    assert!(output.status.success(), "{output:?}");
    assert!(stderr(&output).contains("the daemon (version 0.0.1) uses protocol 0"), "{output:?}");
    assert_eq!(stdout(&output), format!("stopped the daemon (pid {})\n", old.id()));
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&old.wait().unwrap()), Some(15));
}
