//! The streams and the exit of the agent.

use std::os::unix::process::ExitStatusExt;

use crate::harness::{Host, create, terminate};

crate::tests![
    messages_are_forwarded_both_ways,
    other_lines_are_forwarded_unchanged,
    huge_line_is_forwarded,
    last_line_without_a_line_feed_is_forwarded,
    end_of_stdin_is_passed_on,
    agent_that_reads_nothing_can_still_print,
    stdin_closed_by_the_agent_is_discarded,
    reply_does_not_break_a_forwarded_line,
    streams_of_the_agent_are_sockets,
    exit_code_is_that_of_the_agent,
    signal_of_the_agent_ends_the_program,
    agent_handles_a_termination_itself,
    descendant_with_the_stream_does_not_delay_the_exit,
    missing_agent_is_reported,
    missing_arguments_are_reported,
];

fn messages_are_forwarded_both_ways() {
    let mut host = Host::start(r#"IFS= read -r line; echo "got $line"; IFS= read -r line; echo "got $line""#);
    host.send("one\n");
    assert_eq!(host.line(), "got one");
    host.send("two\n");
    assert_eq!(host.line(), "got two");
}

fn other_lines_are_forwarded_unchanged() {
    let lines = [
        r#"{"jsonrpc":"2.0","id":1,"method":"terminal/resize"}"#,
        r#"{"jsonrpc":"2.0", "method":"session/update","params":{"text":"terminal/create"}}"#,
        "terminal/create is not JSON",
        "",
    ];
    let mut host = Host::start(&format!("cat <<'E'\n{}\nE\n", lines.join("\n")));
    for line in lines {
        assert_eq!(host.line(), line);
    }
}

fn huge_line_is_forwarded() {
    let mut host = Host::start("head -c 20000000 /dev/zero | tr '\\0' x; echo; echo next");
    let line = host.line();
    assert!(line.len() == 20_000_000 && line.bytes().all(|byte| byte == b'x'), "{}", line.len());
    assert_eq!(host.line(), "next");
}

fn last_line_without_a_line_feed_is_forwarded() {
    let mut host = Host::start("printf 'a\\nend'");
    assert_eq!(host.rest(), b"a\nend");
}

fn end_of_stdin_is_passed_on() {
    let mut host = Host::start("wc -c");
    host.send("no line feed");
    host.close_stdin();
    assert_eq!(host.line().trim(), "12");
    assert!(host.wait().success());
}

fn agent_that_reads_nothing_can_still_print() {
    // It prints before it reads the input, which fits into no stream on the way.
    let script = format!("{}tell; kill -STOP $$; echo awake; exec wc -c", create("sleep 1000"));
    let mut host = Host::start(&script);
    assert!(host.json()["result"]["terminalId"].is_string());
    let input = vec![b'x'; 10_000_000];
    let agent = child_of(&host);
    let mut stdin = host.take_stdin();
    let writer = std::thread::scope(|scope| {
        let writer = scope.spawn(move || std::io::Write::write_all(&mut stdin, &input));
        crate::harness::wake(agent);
        assert_eq!(host.line(), "awake");
        assert_eq!(host.line().trim(), "10000000");
        writer.join().unwrap()
    });
    writer.unwrap();
}

fn stdin_closed_by_the_agent_is_discarded() {
    let mut host = Host::start("exec 0</dev/null; echo closed; kill -STOP $$; echo done");
    assert_eq!(host.line(), "closed");
    host.send(vec![b'x'; 5_000_000]);
    crate::harness::wake(child_of(&host));
    assert_eq!(host.line(), "done");
}

fn reply_does_not_break_a_forwarded_line() {
    // The agent asks after it has read half of a line. The reply comes after the other half.
    let script = "dd bs=11 count=1 2>/dev/null; echo; request terminal/output '{}'; echo asked; \
                  IFS= read -r line; echo \"$line\"; IFS= read -r line; echo \"$line\"";
    let mut host = Host::start(script);
    host.send("first half,");
    assert_eq!(host.line(), "first half,");
    assert_eq!(host.line(), "asked");
    host.send("second half\n");
    assert_eq!(host.line(), "second half");
    assert!(host.line().contains("`terminalId` is not a string"));
}

fn streams_of_the_agent_are_sockets() {
    let mut host = Host::start("readlink /proc/$$/fd/0 /proc/$$/fd/1");
    for _ in 0..2 {
        let target = host.line();
        assert!(target.starts_with("socket:"), "{target}");
    }
}

fn exit_code_is_that_of_the_agent() {
    assert_eq!(Host::start("exit 7").wait().code(), Some(7));
}

fn signal_of_the_agent_ends_the_program() {
    for (name, number) in [("KILL", 9), ("TERM", 15), ("SEGV", 11)] {
        assert_eq!(Host::start(&format!("kill -{name} $$")).wait().signal(), Some(number), "{name}");
    }
}

fn agent_handles_a_termination_itself() {
    let mut host = Host::start("trap 'echo saved; exit 3' TERM; echo ready; while :; do read -r line; done");
    assert_eq!(host.line(), "ready");
    terminate(host.own_pid());
    terminate(child_of(&host));
    assert_eq!(host.line(), "saved");
    assert_eq!(host.wait().code(), Some(3));
}

fn descendant_with_the_stream_does_not_delay_the_exit() {
    let mut host = Host::start("sleep 1000 & echo $!; echo last");
    let descendant = host.pid();
    assert_eq!(host.line(), "last");
    assert_eq!(host.wait().code(), Some(0));
    crate::harness::kill(descendant);
}

fn missing_agent_is_reported() {
    let mut host = Host::start_program("/nowhere/agent", &[]);
    assert_eq!(host.wait().code(), Some(127));
    let stderr = host.stderr();
    assert!(stderr.starts_with("error: cannot start `/nowhere/agent`: No such file"), "{stderr}");
}

fn missing_arguments_are_reported() {
    let mut host = Host::start_with(&[]);
    assert_eq!(host.wait().code(), Some(2));
    assert_eq!(host.stderr(), "usage: terminal-host PROGRAM [ARGUMENT…]\n");
}

/// Returns the agent's process.
fn child_of(host: &Host) -> rustix::process::Pid {
    let own = host.own_pid().as_raw_nonzero();
    let children = std::fs::read_to_string(format!("/proc/{own}/task/{own}/children")).unwrap();
    let first = children.split_whitespace().next().unwrap();
    rustix::process::Pid::from_raw(first.parse().unwrap()).unwrap()
}
