//! Calls from inside a call: the permissions that the daemon grants them, regardless of their claims.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::harness::{Harness, stderr, stdout};

/// Creates an agent that runs a shell command if its prompt starts with `sh:`, and is the scripted one otherwise. Its answer is the output of
/// the command.
fn install_shell_agent(harness: &Harness, more: &str) {
    let program = harness.scratch().join("shell-agent");
    let rehearsal = env!("CARGO_BIN_EXE_rehearsal");
    let script = format!(
        r#"#!/bin/sh
case "$*" in *--version*|*--help*) exec {rehearsal} "$@";; esac
prompt=$(cat)
case "$prompt" in
sh:*) answer=$(sh -c "${{prompt#sh:}}" 2>&1 | tr '\n"' '  '); printf '@rehearse answer %s' "$answer" | {rehearsal} "$@";;
*) printf '%s' "$prompt" | {rehearsal} "$@";;
esac
"#
    );
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    harness.configure(&format!("{more}\n[programs]\nrehearsal = \"{}\"\n", program.display()));
}

/// A shell command that submits a call without a policy.
fn nested_call(harness: &Harness) -> String {
    let (home, program) = (harness.home.display(), env!("CARGO_BIN_EXE_switchboard"));
    let inner = "@rehearse answer inner";
    format!("env -i SWITCHBOARD_HOME={home} {program} call rehearsal --policy off \"{inner}\"")
}

#[test]
fn nested_call_uses_slot_of_parent() {
    let harness = Harness::new();
    install_shell_agent(&harness, "[limits]\nat_once = 1");
    let prompt = format!("sh:{}", nested_call(&harness));
    let output = harness.run(&["call", "rehearsal", "--policy", "off", &prompt]);
    assert!(stdout(&output).starts_with("inner"), "{output:?}");
}

/// The sandbox sets `no_new_privs`; the shell above it has the variable of a run.
#[test]
fn process_of_sandboxed_run_is_rejected() {
    let harness = Harness::new();
    harness.daemon();
    let call = |prefix: &str| {
        let mut command = Command::new("sh");
        command
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("SWITCHBOARD_HOME", &harness.home)
            .env("SWITCHBOARD_RUN_ID", "0190a3b400004000800000000000000a")
            .args(["-c", &format!("{prefix} {}; exit $?", nested_call(&harness))]);
        command.output().unwrap()
    };
    assert_eq!(stdout(&call("")), "inner\n");
    let refused = call("setpriv --no-new-privs");
    assert!(!refused.status.success(), "{refused:?}");
    let said = stderr(&refused);
    assert!(said.contains(CONFINED), "{said}");
    assert!(said.contains("place the call outside"), "{said}");
}

#[test]
fn error_inside_call_has_hint() {
    let harness = Harness::new();
    let call = |prefix: &[&str]| {
        let mut command = Command::new(prefix[0]);
        command.args(&prefix[1..]).arg(env!("CARGO_BIN_EXE_switchboard")).args(["call", "rehearsal", "x"]);
        let variables =
            [("PATH", "/usr/bin:/bin"), ("SWITCHBOARD_RUN_ID", "0190a3b400004000800000000000000a")];
        command.env_clear().env("SWITCHBOARD_HOME", &harness.home).envs(variables);
        stderr(&command.output().unwrap())
    };
    // A sandbox hides the daemon, whether it runs or not.
    assert_eq!(
        call(&["setpriv", "--no-new-privs"]),
        "error: the daemon cannot be reached from inside a sandboxed call\n  hint: place the call outside, or run the outer call with policy `off`\n"
    );
    assert_eq!(
        call(&["env"]),
        "error: no daemon is running, and none can be started inside a call\n  hint: start one outside the call with `switchboard serve --background`; a daemon started here would be killed when the call ends\n"
    );
}

/// A child that exits leaves its connection to its parent, so its pid does not identify the peer anymore.
#[test]
fn connection_of_exited_process_is_rejected() {
    let harness = Harness::new();
    let daemon = harness.daemon();
    // The daemon accepts the connection only after the process that made it has exited.
    let script = format!(
        "import os, signal, socket\n\
         s = socket.socket(socket.AF_UNIX)\n\
         os.kill({pid}, signal.SIGSTOP)\n\
         os.fork() or (s.connect({socket:?}), os._exit(0))\n\
         os.wait()\n\
         os.kill({pid}, signal.SIGCONT)\n\
         print(s.recv(65536).decode())",
        pid = daemon.pid,
        socket = daemon.socket.as_ref().unwrap().display().to_string()
    );
    let output = Command::new("python3").args(["-c", &script]).output().unwrap();
    assert!(stdout(&output).contains("processes inside a sandboxed call"), "{output:?}");
}

/// Sends an HTTP request with the token and prints the rejection.
const HTTP_CLIENT: &str = "
import sys, urllib.request, urllib.error
request = urllib.request.Request(sys.argv[1], method='POST', data=b'{}')
request.add_header('Authorization', 'Bearer ' + sys.argv[2])
request.add_header('Content-Type', 'application/json')
try: urllib.request.urlopen(request)
except urllib.error.HTTPError as error: print(error.code, error.read().decode())
";

const CONFINED: &str = "the daemon does not serve processes inside a sandboxed call";

/// Starts a daemon with an HTTP server and returns its address and token.
fn serve_http(harness: &Harness) -> (String, String) {
    let started = stdout(&harness.run(&["serve", "--background", "--http", "127.0.0.1:0"]));
    let url = started.split_ascii_whitespace().find(|word| word.starts_with("http://")).unwrap();
    (url.to_owned(), fs::read_to_string(harness.state().join("http-token")).unwrap())
}

/// A token does not extend the permissions of a sandboxed agent. Clients outside are served meanwhile.
#[test]
fn http_client_in_sandboxed_run_is_rejected() {
    let harness = Harness::new();
    let (url, token) = serve_http(&harness);
    let work = harness.work();
    let placed = harness.run(&[
        "call",
        "rehearsal",
        "--background",
        "--cwd",
        work.to_str().unwrap(),
        "@rehearse say up\n@rehearse hang",
    ]);
    let job = stdout(&placed);
    let is_up = || stdout(&harness.run(&["logs", job.trim()])).contains("up");
    while !is_up() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let ask = |prefix: &[&str], variable: &str| {
        let mut command = Command::new("env");
        command.env_clear().env("PATH", "/usr/bin:/bin").env(variable, "0190a3b400004000800000000000000a");
        command.args(prefix).args(["python3", "-c", HTTP_CLIENT, &url, &token]).output().unwrap()
    };
    let no_new_privileges = ["setpriv", "--no-new-privs"];
    for (prefix, variable, is_refused) in [
        (&no_new_privileges[..], "SWITCHBOARD_RUN_ID", true),
        (&no_new_privileges, "OTHER", false),
        (&[], "SWITCHBOARD_RUN_ID", false),
    ] {
        let said = stdout(&ask(prefix, variable));
        assert!(!said.is_empty());
        assert_eq!(said.starts_with("403") && said.contains(CONFINED), is_refused, "{said}");
    }
    assert!(harness.run(&["cancel", job.trim()]).status.success());
}

#[test]
fn sandboxed_agent_with_http_token_is_rejected() {
    let harness = Harness::new();
    install_shell_agent(&harness, "");
    let (url, token) = serve_http(&harness);
    fs::write(harness.work().join("client.py"), HTTP_CLIENT).unwrap();
    fs::write(harness.work().join("token"), &token).unwrap();
    let prompt = format!("sh:python3 client.py {url} $(cat token)");
    for (policy, is_refused) in [("workspace", true), ("off", false)] {
        let work = harness.work();
        let output =
            harness.run(&["call", "rehearsal", "--policy", policy, "--cwd", work.to_str().unwrap(), &prompt]);
        let said = stdout(&output);
        assert!(said.starts_with('4'), "{output:?}");
        assert_eq!(said.contains(CONFINED), is_refused, "{said}");
    }
}

/// Sends a request through a socket that no process visibly has open, and prints the response.
const HIDING_CLIENT: &str = "
import ctypes, socket, sys, threading, time
url, token, trick = sys.argv[1:]
host, path = url.removeprefix('http://').split('/')
address, port = host.split(':')
libc = ctypes.CDLL(None)
def send():
    connection = socket.create_connection((address, int(port)))
    head = f'POST /{path} HTTP/1.1\\r\\nHost: {host}\\r\\nAuthorization: Bearer {token}\\r\\nConnection: close\\r\\n'
    connection.sendall((head + 'Content-Type: application/json\\r\\nContent-Length: 2\\r\\n\\r\\n{}').encode())
    return connection
def receive(connection):
    answer = b''
    while part := connection.recv(65536): answer += part
    print(answer.decode())
def in_thread():
    if libc.unshare(0x400) == 0: receive(send())
if trick == 'thread':
    thread = threading.Thread(target=in_thread)
    thread.start()
    thread.join()
elif trick == 'flight':
    ours, theirs = socket.socketpair()
    connection = send()
    socket.send_fds(ours, [b'x'], [connection.fileno()])
    connection.close()
    # The answer cannot be waited for without the socket.
    time.sleep(2)
    receive(socket.socket(fileno=socket.recv_fds(theirs, 1, 1)[1][0]))
elif trick == 'dumpable':
    libc.prctl(4, 0, 0, 0, 0)
    receive(send())
";

/// Covers a thread with its own descriptor table, a socket in flight, and a process that is not dumpable (visible only to root).
#[test]
fn sandboxed_http_client_with_hidden_socket_is_rejected() {
    let harness = Harness::new();
    install_shell_agent(&harness, "");
    let (url, token) = serve_http(&harness);
    let work = harness.work();
    fs::write(work.join("client.py"), HIDING_CLIENT).unwrap();
    fs::write(work.join("token"), &token).unwrap();
    for trick in ["thread", "flight", "dumpable"] {
        let prompt = format!("sh:python3 client.py {url} $(cat token) {trick}");
        let output = harness.run(&["call", "rehearsal", "--cwd", work.to_str().unwrap(), &prompt]);
        let said = stdout(&output);
        assert!(said.starts_with("HTTP/1.1 403 "), "{trick}: {output:?}");
        assert!(said.contains(CONFINED) || said.contains("cannot identify the process"), "{trick}: {said}");
    }
}

/// Prints the status of each address that is requested with the token.
const STATUS_CLIENT: &str = "
import sys, urllib.request, urllib.error
for url in sys.argv[2:]:
    request = urllib.request.Request(url, headers={'Authorization': 'Bearer ' + sys.argv[1]})
    try: print(urllib.request.urlopen(request).status)
    except urllib.error.HTTPError as error: print(error.code)
";

#[test]
fn sandboxed_http_client_is_rejected_on_every_path() {
    let harness = Harness::new();
    install_shell_agent(&harness, "");
    let (mcp, token) = serve_http(&harness);
    let link = stdout(&harness.run(&["open", "--print"]));
    let web = link.split("/login").next().unwrap();
    let work = harness.work();
    fs::write(work.join("client.py"), STATUS_CLIENT).unwrap();
    // Not in the prompt, where the token would be redacted.
    fs::write(work.join("token"), &token).unwrap();
    let urls = format!("{web}/metrics {web}/healthz {web}/ {web}/login {web}/none {mcp} {mcp}/none");
    let prompt = format!("sh:python3 client.py $(cat token) {urls}");
    let call = |options: &[&str]| {
        let fixed = ["call", "rehearsal", "--cwd", work.to_str().unwrap(), &prompt];
        stdout(&harness.run(&[&fixed, options].concat()))
    };
    let rejected = ["403"; 7].join(" ");
    let direct = call(&[]);
    assert!(direct.starts_with(&rejected), "{direct}");
    // The connections of the proxy belong to the supervisor. Without namespaces there is no proxy, and no connection at all.
    let proxied = call(&["--network", "127.0.0.1"]);
    let has_bubblewrap = fs::metadata("/usr/bin/bwrap").is_ok_and(|found| found.is_file());
    let expected = if has_bubblewrap { rejected.as_str() } else { "Traceback" };
    assert!(proxied.starts_with(expected), "{proxied}");
    let outside = call(&["--policy", "off"]);
    assert!(outside.starts_with("200 200 401"), "{outside}");
}

/// Without bubblewrap, the daemon's socket is visible to a sandboxed agent.
#[test]
fn sandboxed_agent_without_namespaces_cannot_call() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let harness = Harness::new();
    install_shell_agent(&harness, "");
    let prompt = format!("sh:{}; echo done", nested_call(&harness));
    let without_bubblewrap = "mount --bind /dev/null /usr/bin/bwrap 2>/dev/null; exec \"$0\" \"$@\"";
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", without_bubblewrap, env!("CARGO_BIN_EXE_switchboard")])
        .args(["call", "rehearsal", "--policy", "workspace", "--cwd"])
        .arg(harness.work())
        .arg(&prompt)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("SWITCHBOARD_HOME", &harness.home);
    let output = command.output().unwrap();
    if stderr(&output).contains("unshare failed") {
        return;
    }
    let said = format!("{}{}", stdout(&output), stderr(&output));
    assert!(!said.contains("inner") && said.contains("done"), "{said}");
}
