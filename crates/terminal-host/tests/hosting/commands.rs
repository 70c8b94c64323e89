//! Commands in terminals.

use serde_json::json;

use crate::harness::{Host, create, create_with, exists};

crate::tests![
    command_runs_with_its_output_and_exit_code,
    command_has_directory_variables_and_empty_stdin,
    exit_is_awaited,
    output_before_the_exit_is_complete,
    output_of_a_running_command_has_no_exit_status,
    long_output_is_cut_at_its_start,
    kill_ends_the_process_group,
    release_ends_the_process_group_and_the_terminal,
    background_process_does_not_delay_the_exit,
    background_output_is_read_after_the_exit,
    exit_of_the_agent_ends_all_commands,
    ids_of_any_type_are_echoed,
    unknown_terminal_is_an_error,
    command_that_cannot_start_is_an_error,
    missing_directory_is_named,
    malformed_request_is_an_error,
    number_of_terminals_is_bounded,
    terminals_run_at_the_same_time,
    notification_gets_no_reply,
    command_does_not_share_the_stream_of_the_agent,
    client_gets_the_output_before_the_agent_learns_of_the_exit,
    client_gets_the_output_of_a_killed_command,
];

const WAIT: &str = "ask terminal/wait_for_exit \"$this\"; tell\n";
const OUTPUT: &str = "ask terminal/output \"$this\"; tell\n";
const KILL: &str = "ask terminal/kill \"$this\"; tell\n";
const RELEASE: &str = "ask terminal/release \"$this\"; tell\n";

fn start(steps: &[&str]) -> Host {
    Host::start(&steps.concat())
}

fn command_runs_with_its_output_and_exit_code() {
    let mut host = start(&[&create("echo out; echo err >&2; exit 3"), "tell\n", WAIT, OUTPUT, RELEASE]);
    let created = host.json();
    assert_eq!(created, json!({ "jsonrpc": "2.0", "id": 1, "result": { "terminalId": "terminal-1" } }));
    let status = json!({ "exitCode": 3, "signal": null });
    assert_eq!(host.json(), json!({ "jsonrpc": "2.0", "id": 2, "result": status }));
    let output = json!({ "output": "out\nerr\n", "truncated": false, "exitStatus": status });
    assert_eq!(host.json()["result"], output);
    assert_eq!(host.json()["result"], json!({}));
}

fn command_has_directory_variables_and_empty_stdin() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path().canonicalize().unwrap();
    let command = "pwd; echo \"$GREETING $FROM_THE_AGENT\"; wc -c; echo loud > /dev/stderr";
    let params = json!({
        "command": "sh", "args": ["-c", command], "cwd": directory,
        "env": [{ "name": "GREETING", "value": "it's me" }],
    });
    let mut host = start(&[&create_with(params), WAIT, OUTPUT]);
    assert_eq!(host.json()["result"]["exitCode"], 0);
    let expected = format!("{}\nit's me inherited\n0\nloud\n", directory.display());
    assert_eq!(host.json()["result"]["output"], expected.as_str());
}

fn exit_is_awaited() {
    let directory = tempfile::tempdir().unwrap();
    let fifo = directory.path().join("fifo");
    let command = format!("mkfifo {0}; cat {0}", fifo.display());
    let release = format!("while [ ! -p {0} ]; do :; done; echo done > {0}\n", fifo.display());
    let steps = [
        &create(&command),
        "request terminal/wait_for_exit \"$this\"\n",
        OUTPUT,
        &release,
        "IFS= read -r reply; tell\n",
    ];
    let mut host = start(&steps);
    // The reply to the later request comes first.
    let output = host.json();
    assert_eq!((&output["id"], &output["result"]["exitStatus"]), (&json!(3), &json!(null)));
    assert_eq!(
        host.json(),
        json!({ "jsonrpc": "2.0", "id": 2, "result": { "exitCode": 0, "signal": null } })
    );
}

fn output_before_the_exit_is_complete() {
    let steps = [&create("head -c 300000 /dev/zero | tr '\\0' x; echo end"), WAIT, OUTPUT];
    let mut host = start(&steps);
    host.json();
    let output = host.json();
    let text = output["result"]["output"].as_str().unwrap();
    assert!(text.len() == 300_004 && text.ends_with("xend\n"), "{}", text.len());
}

fn output_of_a_running_command_has_no_exit_status() {
    let until_printed =
        "while :; do ask terminal/output \"$this\"; case $reply in *ready*) break;; esac; done; tell\n";
    let mut host = start(&[&create("echo ready; sleep 1000"), until_printed]);
    assert_eq!(host.json()["result"], json!({ "output": "ready\n", "truncated": false }));
}

fn long_output_is_cut_at_its_start() {
    let params =
        json!({ "command": "sh", "args": ["-c", "echo 1234567890; printf äöü"], "outputByteLimit": 5 });
    let mut host = start(&[&create_with(params), WAIT, OUTPUT]);
    host.json();
    let output = host.json();
    assert_eq!((&output["result"]["output"], &output["result"]["truncated"]), (&json!("öü"), &json!(true)));
}

/// A command with a descendant, which prints the pid of it.
const WITH_DESCENDANT: &str = "sleep 1000 & echo pid=$!; wait";
/// Prints the pid of the descendant of a running command.
const TELL_PID: &str =
    "while :; do ask terminal/output \"$this\"; case $reply in *pid=*n*) break;; esac; done
pid=${reply#*pid=}; echo \"${pid%%\\\\*}\"\n";

fn kill_ends_the_process_group() {
    let mut host = start(&[&create(WITH_DESCENDANT), TELL_PID, KILL, WAIT, OUTPUT, "read -r line\n"]);
    let descendant = host.pid();
    assert_eq!(host.json()["result"], json!({}));
    assert_eq!(host.json()["result"], json!({ "exitCode": null, "signal": "SIGKILL" }));
    assert_eq!(host.json()["result"]["exitStatus"]["signal"], "SIGKILL");
    crate::harness::wait_until_dead(descendant);
}

fn release_ends_the_process_group_and_the_terminal() {
    let steps = [&create(WITH_DESCENDANT), TELL_PID, RELEASE, OUTPUT, "read -r line\n"];
    let mut host = start(&steps);
    let descendant = host.pid();
    assert_eq!(host.json()["result"], json!({}));
    assert_eq!(host.json()["error"]["message"], "there is no terminal `terminal-1`");
    crate::harness::wait_until_dead(descendant);
}

fn background_process_does_not_delay_the_exit() {
    let mut host = start(&[&create("sleep 1000 & echo started"), WAIT, OUTPUT, RELEASE]);
    assert_eq!(host.json()["result"]["exitCode"], 0);
    assert_eq!(host.json()["result"]["output"], "started\n");
    assert_eq!(host.json()["result"], json!({}));
}

fn background_output_is_read_after_the_exit() {
    let until_later =
        "while :; do ask terminal/output \"$this\"; case $reply in *later*) break;; esac; done; tell\n";
    let directory = tempfile::tempdir().unwrap();
    let fifo = directory.path().join("fifo");
    let command = format!("mkfifo {0}; {{ read -r line < {0}; echo later; }} &", fifo.display());
    let go = format!("echo go > {}\n", fifo.display());
    let mut host = start(&[&create(&command), WAIT, &go, until_later]);
    assert_eq!(host.json()["result"]["exitCode"], 0);
    let output = host.json();
    assert_eq!(
        (&output["result"]["output"], &output["result"]["exitStatus"]["exitCode"]),
        (&json!("later\n"), &json!(0))
    );
}

fn exit_of_the_agent_ends_all_commands() {
    let mut host = start(&[&create(WITH_DESCENDANT), TELL_PID, "exit 5\n"]);
    let descendant = host.pid();
    assert_eq!(host.wait().code(), Some(5));
    crate::harness::wait_until_dead(descendant);
}

fn ids_of_any_type_are_echoed() {
    for id in [json!(0), json!("a\"b"), json!(null), json!(-1.5), json!([1, {}])] {
        let line = json!({ "jsonrpc": "2.0", "id": id, "method": "terminal/output", "params": { "terminalId": "x" } });
        let mut host = Host::start(&format!("echo '{line}'; IFS= read -r reply; tell"));
        assert_eq!(host.json()["id"], id);
    }
}

fn unknown_terminal_is_an_error() {
    let steps = "this='{\"terminalId\":\"no\"}'\n";
    let mut host = start(&[steps, OUTPUT, WAIT, KILL, RELEASE]);
    for id in 1..=4 {
        let expected = json!({ "code": -32002, "message": "there is no terminal `no`" });
        assert_eq!(host.json(), json!({ "jsonrpc": "2.0", "id": id, "error": expected }));
    }
}

fn command_that_cannot_start_is_an_error() {
    let mut host = start(&[&create_with(json!({ "command": "/nowhere/tool" })), "tell\n"]);
    let error = host.json()["error"].clone();
    assert_eq!(error["code"], -32603);
    assert!(
        error["message"].as_str().unwrap().starts_with("cannot start `/nowhere/tool`: No such file"),
        "{error}"
    );
}

fn missing_directory_is_named() {
    let mut host = start(&[&create_with(json!({ "command": "true", "cwd": "/nowhere" })), "tell\n"]);
    assert_eq!(host.json()["error"]["message"], "cannot start `true`: `/nowhere` is not a directory");
}

fn malformed_request_is_an_error() {
    let mut host = start(&[&create_with(json!({ "args": [] })), "tell\n", "this='{}'\n", OUTPUT]);
    assert_eq!(host.json()["error"], json!({ "code": -32602, "message": "`command` is not a string" }));
    assert_eq!(host.json()["error"], json!({ "code": -32602, "message": "`terminalId` is not a string" }));
}

fn number_of_terminals_is_bounded() {
    let one = create("sleep 1000");
    let many = format!("n=0; while [ $n -lt 64 ]; do {one} n=$((n + 1)); done\n");
    let mut host = start(&[
        &many,
        &one,
        "tell\n",
        RELEASE,
        "this='{\"terminalId\":\"terminal-1\"}'\n",
        RELEASE,
        &one,
        "tell\n",
    ]);
    assert_eq!(host.json()["error"]["message"], "64 terminals are open; release one first");
    host.json();
    assert_eq!(host.json()["result"], json!({}));
    assert_eq!(host.json()["result"]["terminalId"], "terminal-65");
}

fn terminals_run_at_the_same_time() {
    let directory = tempfile::tempdir().unwrap();
    let fifo = directory.path().join("fifo");
    let reader = format!("mkfifo {0}; cat {0}", fifo.display());
    let writer = format!("while [ ! -p {0} ]; do :; done; echo hello > {0}", fifo.display());
    let mut host =
        start(&[&create(&reader), "first=$this\n", &create(&writer), "this=$first\n", WAIT, OUTPUT]);
    host.json();
    assert_eq!(host.json()["result"]["output"], "hello\n");
}

fn notification_gets_no_reply() {
    let steps =
        [&create("true"), "printf '{\"method\":\"terminal/release\",\"params\":%s}\\n' \"$this\"\n", OUTPUT];
    assert_eq!(start(&steps).json()["error"]["code"], -32002);
}

fn command_does_not_share_the_stream_of_the_agent() {
    let mut host = start(&[&create("ls -l /proc/self/fd | grep -c socket"), WAIT, OUTPUT]);
    host.json();
    assert_eq!(host.json()["result"]["output"], "0\n");
    assert!(exists(host.own_pid()));
}

fn client_gets_the_output_before_the_agent_learns_of_the_exit() {
    let mut host = start(&[&create("printf '{\"a\":1}\\n'; exit 3"), WAIT]);
    let notification: serde_json::Value = serde_json::from_str(&host.line()).unwrap();
    let status = json!({ "exitCode": 3, "signal": null });
    let params = json!({ "terminalId": "terminal-1", "output": "{\"a\":1}\n", "truncated": false, "exitStatus": status });
    let expected = json!({ "jsonrpc": "2.0", "method": "_switchboard/terminal_output", "params": params });
    assert_eq!(notification, expected);
    assert_eq!(host.json()["result"], status);
}

fn client_gets_the_output_of_a_killed_command() {
    let until_printed =
        "while :; do ask terminal/output \"$this\"; case $reply in *ready*) break;; esac; done\n";
    for end in [KILL, RELEASE] {
        let mut host = start(&[&create("echo ready; sleep 1000"), until_printed, end]);
        let notification: serde_json::Value = serde_json::from_str(&host.line()).unwrap();
        assert_eq!(notification["params"]["output"], "ready\n");
        assert_eq!(notification["params"]["exitStatus"]["signal"], "SIGKILL");
        assert_eq!(host.json()["result"], json!({}));
    }
}
