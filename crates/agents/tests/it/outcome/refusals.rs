//! Rejected tools, writes and hosts are listed and are not failures.

use model::{
    AgentKind, AgentState, Bounds, Confined, Confinement, FailureKind, HomeView, Network, PolicyRoot, Preset,
    Quarantined, RefusedKind, Requirement, SandboxReport,
};

use super::{DONE, Run};

#[test]
fn denied_tool_does_not_decide_the_verdict() {
    let claude = r#"{"type":"result","subtype":"success","is_error":false,"result":"could not","permission_denials":[{"tool_name":"Bash","tool_use_id":"t","tool_input":{"command":"ls"}},{"tool_name":"Bash","tool_use_id":"u","tool_input":{"command":"ls"}}]}"#;
    let codex = r#"{"type":"item.completed","item":{"id":"1","type":"file_change","status":"declined","changes":[]}}
{"type":"item.completed","item":{"type":"agent_message","text":"could not"}}
{"type":"turn.completed","usage":{"input_tokens":1}}"#;
    let gemini = r#"{"type":"tool_result","tool_id":"write_file__1","status":"error","error":{"type":"policy_violation","message":"no"}}
{"type":"message","role":"assistant","content":"could not","delta":true}
{"type":"result","status":"success","stats":{"input_tokens":1}}"#;
    for (agent, stdout, tool, count) in [
        (AgentKind::Claude, claude, "Bash", 2),
        (AgentKind::Rehearsal, claude, "Bash", 2),
        (AgentKind::Codex, codex, "file_change", 1),
        (AgentKind::Gemini, gemini, "write_file", 1),
    ] {
        let outcome = Run::of(agent, stdout).outcome();
        assert!(outcome.is_success(), "{outcome:?}");
        let [refusal] = outcome.refusals.as_slice() else { panic!("{outcome:?}") };
        assert_eq!((refusal.kind, refusal.subject.as_str(), refusal.count), (RefusedKind::Tool, tool, count));
        assert_eq!(outcome.permission_denials.len(), count as usize, "{agent}");
    }
}

#[test]
fn gemini_message_in_output_is_no_refused_write() {
    let call = |number: u32, command: &str, output: &str| {
        let id = format!("run_shell_command__{number}");
        format!(
            r#"{{"type":"tool_use","tool_name":"run_shell_command","tool_id":"{id}","parameters":{{"command":"{command}"}}}}
{{"type":"tool_result","tool_id":"{id}","status":"success","output":"{output}"}}"#
        )
    };
    let lines = [
        call(1, "cat build.log", "touch: cannot touch '/etc/a': Read-only file system"),
        call(2, "grep -r touch .", "something failed: Read-only file system"),
        call(3, "echo x > /etc/b; cat build.log", "bash: line 1: /etc/b: Read-only file system"),
        call(4, "npm install", "npm error EROFS: read-only file system, open '/ws/package-lock.json'"),
        r#"{"type":"result","status":"success"}"#.to_owned(),
    ];
    let run = Run { sandbox: Some(confined()), ..Run::of(AgentKind::Gemini, lines.join("\n").leak()) };
    let outcome = run.outcome();
    let writes = outcome.refusals.iter().filter(|refusal| refusal.kind == RefusedKind::Write);
    let found: Vec<_> = writes.map(|refusal| refusal.subject.as_str()).collect();
    assert_eq!(found, ["/etc/b", "/ws/package-lock.json"]);
}

#[test]
fn agent_and_sandbox_refusals_are_separate() {
    let stream = r#"{"type":"tool_use","tool_name":"write_file","tool_id":"write_file__1","parameters":{"file_path":"/etc/x","content":""}}
{"type":"tool_result","tool_id":"write_file__1","status":"error","output":"Path not in workspace: Attempted path \"/etc/x\" resolves outside","error":{"type":"invalid_tool_params","message":"Path not in workspace: Attempted path \"/etc/x\" resolves outside"}}
{"type":"tool_use","tool_name":"run_shell_command","tool_id":"run_shell_command__2","parameters":{"command":"touch /etc/x"}}
{"type":"tool_result","tool_id":"run_shell_command__2","status":"success","output":"touch: cannot touch '/etc/x': Read-only file system"}
{"type":"result","status":"success"}"#;
    let outcome = Run { sandbox: Some(confined()), ..Run::of(AgentKind::Gemini, stream) }.outcome();
    let notes = outcome.notes();
    assert_eq!(
        notes[0], "refused: write /etc/x (a rule of the agent), write /etc/x, host example.com:443",
        "{outcome:?}"
    );
}

#[test]
fn sandbox_refusals_need_a_sandboxed_run() {
    let erofs = r#"{"type":"user","message":{"content":[{"type":"tool_result","is_error":true,"content":"bash: line 1: /etc/x: Read-only file system\nmkdir: cannot create directory '/opt/y': Permission denied\nmkdir: cannot create directory '/desk/shop/z': Permission denied"}]}}"#;
    let run = Run::of(AgentKind::Claude, [erofs, DONE].join("\n").leak());
    assert_eq!(run.outcome().refusals, []);
    let confined = Run { sandbox: Some(confined()), ..run };
    let outcome = confined.outcome();
    assert!(outcome.is_success(), "{outcome:?}");
    let found: Vec<_> = outcome.refusals.iter().map(|r| (r.kind.name(), r.subject.as_str())).collect();
    // No evidence that the sandbox rejected a path that the policy makes writable.
    assert_eq!(found, [("write", "/etc/x"), ("write", "/opt/y"), ("host", "example.com:443")]);
    assert_eq!(outcome.notes(), ["refused: write /etc/x, write /opt/y, host example.com:443"]);
}

#[test]
fn hidden_home_path_hints_at_expose_setting() {
    let home = tempfile::tempdir().unwrap();
    for name in ["notes", "shown", ".claude/x"] {
        std::fs::create_dir_all(home.path().join(name)).unwrap();
    }
    let at = |name: &str| home.path().join(name);
    let lines = ["notes", "shown", ".claude/x", "nowhere", "notes/new", "no/where"]
        .map(|name| format!("cat: {}: No such file or directory", at(name).display()));
    let error = serde_json::json!({"type": "user", "message": {"content": [
        {"type": "tool_result", "is_error": true, "content": lines.join("\n")}
    ]}});
    let SandboxReport::Confined(mut report) = confined() else { unreachable!() };
    report.refused_hosts.clear();
    report.exposed.push(at("shown"));
    report.policy.states = vec![AgentState {
        directory: at(".claude"),
        variable: None,
        kept: Vec::new(),
        discarded: Vec::new(),
    }];
    report.policy.home = Some(HomeView {
        directory: home.path().to_owned(),
        exposed: Vec::new(),
        programs: Vec::new(),
        copies: Vec::new(),
    });
    let stream = format!("{error}\n{DONE}");
    let run =
        Run { sandbox: Some(SandboxReport::Confined(report)), ..Run::of(AgentKind::Claude, stream.leak()) };
    let [refused, expose] = &run.outcome().notes()[..] else { panic!("{:?}", run.outcome()) };
    let expected = format!("refused: read {}, write {}", at("notes").display(), at("notes/new").display());
    assert_eq!(*refused, expected);
    assert!(expose.contains("`sandbox.expose`"), "{expose}");
}

#[test]
fn unenforced_required_policy_is_failure() {
    for (requirement, moved_to, kind) in [
        (Requirement::Require, None, Some(FailureKind::PolicyViolation)),
        (Requirement::Require, Some("/job/quarantine/big".into()), None),
        (Requirement::BestEffort, None, None),
    ] {
        let SandboxReport::Confined(mut report) = confined() else { unreachable!() };
        report.policy.requirement = requirement;
        report.quarantined = vec![Quarantined { path: "/desk/shop/big".into(), moved_to, unexamined: true }];
        let sandbox = Some(SandboxReport::Confined(report));
        let outcome = Run { sandbox, ..Run::of(AgentKind::Claude, DONE) }.outcome();
        assert_eq!(outcome.failure().map(|failure| failure.kind.clone()), kind);
        assert_eq!(outcome.text, "fine");
    }
}

fn confined() -> SandboxReport {
    SandboxReport::Confined(Box::new(Confined {
        policy: Confinement {
            preset: Preset::Workspace,
            requirement: Requirement::BestEffort,
            must_hold: Vec::new(),
            roots: vec![PolicyRoot::writable("/desk/shop")],
            hidden: Vec::new(),
            protected: Vec::new(),
            network: Network::Full,
            unix_sockets: true,
            namespaces: true,
            bounds: Bounds::default(),
            proofs: None,
            env_if_held: std::collections::BTreeMap::new(),
            caches: None,
            states: Vec::new(),
            home: None,
            checkout: None,
            hosted_program: None,
        },
        safeguards: Vec::new(),
        proof: None,
        refused_hosts: vec!["example.com:443".to_owned()],
        git_read_only: None,
        exposed: Vec::new(),
        quarantined: Vec::new(),
        commits_without_hooks: 0,
        unsigned_commits: 0,
    }))
}
