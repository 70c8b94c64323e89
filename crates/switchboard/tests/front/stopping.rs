//! How daemons end.

use std::fs;
use std::process::Stdio;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{PidfdFlags, Signal, pidfd_open};
use serde_json::json;

use crate::bed::{AT_MOST, Bed, eventually, stderr, stdout};

#[test]
fn stop_returns_after_daemon_exit() {
    for args in [&["stop"][..], &["stop", "--now"], &["stop", "--cancel"]] {
        let bed = Bed::new();
        let daemon = bed.daemon();
        let output = bed.run(args);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(stdout(&output), format!("the daemon (pid {}) has ended\n", daemon.pid.as_raw_pid()));
        assert!(bed.running().is_none());
        assert!(!daemon.socket.as_ref().unwrap().exists());
        daemon.wait();
    }
}

#[test]
fn stop_and_status_start_no_daemon() {
    let bed = Bed::new();
    let stopped = bed.run(&["stop"]);
    assert!(stopped.status.success());
    assert_eq!(stdout(&stopped), "no daemon is running\n");
    let status = bed.run(&["status"]);
    assert_eq!(status.status.code(), Some(1));
    assert!(!bed.state().exists(), "a look leaves nothing behind");
}

#[test]
fn stop_cancels_jobs_that_run_without_daemon() {
    let bed = Bed::new();
    let pids = bed.scratch().join("pids");
    let prompt = format!(
        "@rehearse pidfile {}\n@rehearse spawn setsid\n@rehearse say up\n@rehearse hang",
        pids.display()
    );
    let call = ["call", "rehearsal", "--background", "--policy", "off", &prompt];
    let job = stdout(&bed.run(&call)).trim().to_owned();
    let output = bed.state().join("jobs").join(&job).join("output");
    eventually("the agent runs", || fs::read_to_string(&output).is_ok_and(|said| said.contains("up")));
    bed.running().unwrap().kill();
    // By another spelling of the same directory.
    let mut stop = bed.command(&["stop", "--cancel"]);
    let stopped = stop.env("SWITCHBOARD_HOME", bed.home.join("../home/.")).output().unwrap();
    assert!(stopped.status.success(), "{stopped:?}");
    assert!(bed.running().is_none());
    let result = fs::read_to_string(bed.state().join("jobs").join(&job).join("status.json")).unwrap();
    assert!(result.contains("cancelled"), "{result}");
    for pid in fs::read_to_string(&pids).unwrap().lines() {
        assert!(!std::path::Path::new("/proc").join(pid.trim()).exists(), "process {pid} is left");
    }
}

#[test]
fn sigterm_stops_daemon_and_sighup_does_not() {
    let bed = Bed::new();
    let daemon = bed.daemon();
    daemon.signal(Signal::HUP);
    let status = bed.run(&["status"]);
    assert!(stdout(&status).contains(&format!("pid {}", daemon.pid.as_raw_pid())), "{status:?}");
    daemon.signal(Signal::TERM);
    daemon.wait();
    assert!(!daemon.socket.as_ref().unwrap().exists());
    assert!(bed.log().trim_end().ends_with("ended"), "{}", bed.log());
}

#[test]
fn foreground_daemon_logs_to_terminal() {
    use std::io::{BufRead, BufReader};
    let bed = Bed::new();
    let mut child = bed.command(&["serve"]).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("ready"), "{line}");
    bed.running().unwrap().signal(Signal::INT);
    assert!(child.wait().unwrap().success());
    assert!(bed.running().is_none());
}

#[test]
fn removed_state_directory_stops_daemon_and_jobs() {
    let bed = Bed::new();
    let placed = bed.run(&["call", "rehearsal", "--background", "@rehearse say up\n@rehearse hang"]);
    let id = stdout(&placed);
    let status = bed.state().join("jobs").join(id.trim()).join("status.json");
    let supervisor = loop {
        let status: serde_json::Value = serde_json::from_slice(&fs::read(&status).unwrap()).unwrap();
        if let Some(pid) = status["pid"].as_i64() {
            break rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        }
        std::thread::yield_now();
    };
    let watched = pidfd_open(supervisor, PidfdFlags::empty()).unwrap();
    let daemon = bed.running().unwrap();
    fs::remove_dir_all(bed.state()).unwrap();
    daemon.wait();
    let mut gone = [PollFd::new(&watched, PollFlags::IN)];
    assert_eq!(poll(&mut gone, Some(&AT_MOST)), Ok(1), "the run goes on, and nobody knows of it");
    assert!(bed.run(&["call", "rehearsal", "hi"]).status.success(), "the next daemon begins anew");
}

#[test]
fn removed_lock_and_socket_stop_no_job() {
    let bed = Bed::new();
    let placed = bed.run(&["call", "rehearsal", "--background", "@rehearse say up\n@rehearse hang"]);
    let id = stdout(&placed);
    let daemon = bed.running().unwrap();
    for name in ["daemon.lock", "start.lock"] {
        fs::remove_file(bed.state().join(name)).unwrap();
    }
    fs::remove_file(daemon.socket.as_ref().unwrap()).unwrap();
    let status = bed.run(&["status"]);
    assert!(stdout(&status).contains(&format!("(pid {}", daemon.pid.as_raw_pid())), "{status:?}");
    assert!(stdout(&status).contains("jobs: 1 running"), "{status:?}");
    let job = bed.run(&["status", "--json", id.trim()]);
    assert!(stdout(&job).contains("\"running\""), "{job:?}");
    assert_eq!(bed.ready(), 1, "a second daemon was started");
    let stopped = bed.run(&["stop", "--cancel"]);
    assert!(stopped.status.success(), "{stopped:?}");
    daemon.wait();
}

#[test]
fn copied_state_directory_is_rejected() {
    let bed = Bed::new();
    let daemon = bed.daemon();
    let copy = bed.scratch().join("copy");
    let copied = std::process::Command::new("cp").arg("-a").arg(&bed.home).arg(&copy).status().unwrap();
    assert!(copied.success());
    let run = |args: &[&str]| bed.command(args).env("SWITCHBOARD_HOME", &copy).output().unwrap();
    let status = run(&["status"]);
    assert_eq!(stdout(&status), "no daemon is running; the next call starts one\n");
    // Refused every time, and not only the first.
    for _ in 0..2 {
        let refused = run(&["call", "rehearsal", "hi"]);
        let expected = format!("is a copy of one whose daemon is running (pid {})", daemon.pid.as_raw_pid());
        assert!(!refused.status.success() && stderr(&refused).contains(&expected), "{refused:?}");
    }
    assert!(bed.run(&["stop"]).status.success());
    let served = run(&["call", "rehearsal", "hi"]);
    assert!(served.status.success(), "{served:?}");
    assert!(run(&["stop"]).status.success());
}

#[test]
fn idle_bridge_does_not_restart_stopped_daemon() {
    let bed = Bed::new();
    let mut host = bed.bridge();
    host.greet();
    assert!(bed.run(&["stop"]).status.success());
    let status = bed.run(&["status"]);
    assert_eq!(status.status.code(), Some(1), "{status:?}");
    assert_eq!(bed.ready(), 1);
    assert_eq!(host.ping(1)["result"], json!({}));
    assert_eq!(bed.ready(), 2);
    let (rest, _) = host.end();
    assert_eq!(rest, "", "the answer to the second greeting is nobody's");
}

#[test]
fn idle_daemon_stops_despite_connected_bridge() {
    let bed = Bed::new();
    bed.configure("idle_stop = \"100ms\"\n");
    let mut host = bed.bridge();
    host.greet();
    if let Some(daemon) = bed.running() {
        daemon.wait();
    }
    assert_eq!(host.ping(1)["result"], json!({}));
}

#[test]
fn stop_inside_call_does_not_wait_for_it() {
    let bed = Bed::new();
    assert!(bed.run(&["serve", "--background"]).status.success());
    let output = bed.command(&["stop"]).env("SWITCHBOARD_RUN_ID", "0").output().unwrap();
    assert!(!output.status.success(), "{output:?}");
    assert!(stderr(&output).contains("would wait for the call it runs in"), "{output:?}");
    assert!(bed.run(&["status"]).status.success());
}

#[test]
fn stop_with_cancel_reports_jobs_it_waits_for() {
    let bed = Bed::new();
    let played = crate::played::Played::at(&bed);
    let stop = ["stop", "--cancel"];
    let child = bed.command(&stop).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut line = played.accept();
    assert_eq!(line.hear(), json!({"request": "stop", "how": "cancel"}));
    line.say(&json!({"reply": "draining", "running": 1, "more": true}));
    line.say(&json!({"reply": "error", "message": "no", "hint": "ask later"}));
    let text = stderr(&child.wait_with_output().unwrap());
    assert!(text.contains("waiting until 1 running job is canceled"), "{text}");
}

#[test]
fn draining_daemon_reports_jobs_and_rejects_calls() {
    let bed = Bed::new();
    let played = crate::played::Played::at(&bed);
    let child = bed.command(&["stop"]).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut line = played.accept();
    assert_eq!(line.hear(), json!({"request": "stop", "how": "drain"}));
    line.say(&json!({"reply": "draining", "running": 2, "more": true}));
    line.say(&json!({"reply": "error", "message": "no", "hint": "ask later"}));
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
    let bed = Bed::new();
    let daemon = bed.daemon();
    daemon.signal(Signal::STOP);
    let output = bed.run(&["status"]);
    let text = stderr(&output);
    assert!(
        text.contains(&format!("the daemon (pid {}) does not respond", daemon.pid.as_raw_pid())),
        "{text}"
    );
    assert!(text.contains("kill -CONT"), "{text}");
    daemon.signal(Signal::CONT);
    assert!(bed.run(&["status"]).status.success());
}

/// A process that listens as a daemon of another protocol, and ends when it is asked to in the way that all understand.
#[test]
fn daemon_of_other_protocol_is_stopped() {
    let bed = Bed::new();
    let socket = bed.scratch().join("old.sock");
    let script = format!(
        "import socket, json, os, fcntl\n\
         lock = open({lock:?}, 'w'); fcntl.flock(lock, fcntl.LOCK_EX)\n\
         s = socket.socket(socket.AF_UNIX); s.bind({socket:?}); s.listen()\n\
         lock.write(json.dumps(dict(pid=os.getpid(), version='0.0.1', socket={socket:?}))); lock.flush()\n\
         print('ready', flush=True)\n\
         while True:\n c = s.accept()[0]\n c.recv(65536)\n c.sendall(b'{{\"switchboard\":{{\"protocol\":0,\"version\":\"0.0.1\"}}}}\\n')\n",
        lock = bed.state().join("daemon.lock"),
    );
    drop(crate::bed::hold_lock(&bed));
    let python = std::process::Command::new("python3").args(["-c", &script]).stdout(Stdio::piped()).spawn();
    let Ok(mut old) = python else {
        println!("SKIPPED: python3 is not here to play an old daemon");
        return;
    };
    let mut said = [0; 6];
    std::io::Read::read_exact(old.stdout.as_mut().unwrap(), &mut said).unwrap();
    let output = bed.run(&["stop"]);
    assert!(output.status.success(), "{output:?}");
    assert!(stderr(&output).contains("the daemon (version 0.0.1) uses protocol 0"), "{output:?}");
    assert_eq!(stdout(&output), format!("the daemon (pid {}) has ended\n", old.id()));
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&old.wait().unwrap()), Some(15));
}
