//! Sessions: created, resumed, found again, and confined as before.

use std::fs;
use std::time::Duration;

use futures_util::StreamExt;
use provider::{
    Access, AgentEvent, AgentSpec, FileVerb, Provider, ProviderError, RehearsalProvider, Session, Update,
    Warning,
};

use crate::harness::Harness;

crate::tests! {
    session_starts_with_first_message_and_continues,
    session_is_found_by_another_provider_of_same_kind,
    unwritable_session_record_is_a_warning,
    failed_first_message_restarts_the_session,
    messages_to_one_session_are_serialized,
    abandoned_message_stops_before_the_next_starts,
    abandoned_message_never_overlaps_the_next,
    restricted_agent_has_only_the_file_tools,
    session_without_file_tools_is_rejected,
    session_in_missing_directory_is_rejected,
    tool_results_are_rejected,
    session_of_another_provider_is_rejected,
}

fn full() -> AgentSpec {
    AgentSpec { access: Access::Full, ..AgentSpec::new("You are terse.") }
}

async fn session(harness: &Harness, provider: &RehearsalProvider) -> Session {
    provider.create_session(&full(), &harness.path("work")).await.unwrap()
}

fn session_starts_with_first_message_and_continues() {
    Harness::run(async |harness| {
        let provider = harness.provider();
        let session = session(harness, &provider).await;
        assert_eq!(
            (session.id(), session.workspace()),
            (None, &*harness.path("work").canonicalize().unwrap())
        );
        let first =
            provider.send_message(&session, "@rehearse tool Read {} => x\n@rehearse args").await.unwrap();
        let id = session.id().unwrap();
        assert_eq!(first.metadata.session_id.as_ref(), Some(&id));
        assert!(first.text.contains("--system-prompt=You are terse."), "{}", first.text);
        assert!(first.text.contains(&format!("--session-id={id}")), "{}", first.text);
        assert_eq!((first.tool_uses[0].name.as_str(), first.tool_uses[0].failed), ("Read", Some(false)));
        let second = provider.send_message(&session, "@rehearse args").await.unwrap();
        assert!(second.text.contains(&format!("--resume={id}")), "{}", second.text);
        assert!(second.tool_uses.is_empty());
    });
}

fn session_is_found_by_another_provider_of_same_kind() {
    Harness::run(async |harness| {
        let provider = harness.provider();
        let first = session(harness, &provider).await;
        provider.send_message(&first, "Hello.").await.unwrap();
        let id = first.id().unwrap().to_string();
        drop((provider, first));
        let later = harness.provider();
        let found = later.resume_session(&id).await.unwrap().unwrap();
        // The provider's settings are part of the record by now.
        let agent = AgentSpec { policy: Some(provider::CallPolicy::off()), ..full() };
        assert_eq!((found.agent(), found.id().unwrap().as_str()), (&agent, id.as_str()));
        let text = later.send_message(&found, "@rehearse args").await.unwrap().text;
        assert!(text.contains(&format!("--resume={id}")), "{text}");
        for unknown in ["0000abcd-0000-4000-8000-00000000000a", "../../etc/passwd", ""] {
            assert!(later.resume_session(unknown).await.unwrap().is_none(), "{unknown}");
        }
    });
}

fn unwritable_session_record_is_a_warning() {
    Harness::run(async |harness| {
        fs::write(harness.path("no-directory"), "").unwrap();
        let provider = harness.provider_with(|config| config.sessions = Some(harness.path("no-directory")));
        let session = session(harness, &provider).await;
        let response = provider.send_message(&session, "Hello.").await.unwrap();
        assert_eq!(response.text, "You said: Hello.");
        assert!(
            matches!(&*response.metadata.warnings, [Warning::SessionNotKept { .. }]),
            "{:?}",
            response.metadata
        );
        // It lasts as long as the program.
        let text = provider.send_message(&session, "@rehearse args").await.unwrap().text;
        assert!(text.contains("--resume="), "{text}");
    });
}

fn failed_first_message_restarts_the_session() {
    Harness::run(async |harness| {
        let provider = harness.provider();
        let session = session(harness, &provider).await;
        let error = provider.send_message(&session, "@rehearse fail auth").await.unwrap_err();
        assert!(matches!(error, ProviderError::Authentication { .. }), "{error:?}");
        assert_eq!(session.id(), None, "there is nothing to resume");
        let text = provider.send_message(&session, "@rehearse args").await.unwrap().text;
        assert!(text.contains("--session-id=") && !text.contains("--resume="), "{text}");
    });
}

fn messages_to_one_session_are_serialized() {
    Harness::run(async |harness| {
        let log = harness.path("log");
        let provider = harness.provider();
        let session = session(harness, &provider).await;
        // Each run logs its start and end; concurrent runs would interleave.
        harness.agent(&format!("echo in >> '{0}'; sleep 0.2; echo out >> '{0}'", log.display()));
        let (one, two) =
            tokio::join!(provider.send_message(&session, "One."), provider.send_message(&session, "Two."));
        assert_eq!(
            (one.unwrap().text.as_str(), two.unwrap().text.as_str()),
            ("You said: One.", "You said: Two.")
        );
        assert_eq!(fs::read_to_string(log).unwrap(), "in\nout\nin\nout\n");
    });
}

fn abandoned_message_stops_before_the_next_starts() {
    Harness::run(async |harness| {
        let provider = harness.provider();
        let session = session(harness, &provider).await;
        let pids = harness.path("pids");
        let steps = format!(
            "@rehearse pidfile {}\n@rehearse spawn setsid\n@rehearse say Up.\n@rehearse hang",
            pids.display()
        );
        let mut updates = provider.send_message_stream(&session, &steps);
        loop {
            if let Update::Event(AgentEvent::Text { .. }) = updates.next().await.unwrap().unwrap() {
                break;
            }
        }
        let id = session.id().expect("it has spoken, so it can be resumed");
        drop(updates);
        // The view of the next run at its start.
        harness.agent(&format!("kill -0 $(cat '{0}') 2>/dev/null && touch '{0}.alive'", pids.display()));
        let text = provider.send_message(&session, "@rehearse args").await.unwrap().text;
        assert!(text.contains(&format!("--resume={id}")), "{text}");
        assert!(!harness.path("pids.alive").exists(), "the run before was still there");
    });
}

fn abandoned_message_never_overlaps_the_next() {
    Harness::run(async |harness| {
        let provider = harness.provider();
        let session = session(harness, &provider).await;
        provider.send_message(&session, "Hello.").await.unwrap();
        // Each run records its pid, and whether an earlier one is still alive.
        let pids = harness.path("pids");
        harness.agent(&format!(
            "for pid in $(cat '{0}' 2>/dev/null); do kill -0 $pid 2>/dev/null && echo $pid >> '{0}.met'; done; echo $$ >> '{0}'",
            pids.display()
        ));
        for delay in (0..30).map(|step| Duration::from_millis(step * 2)) {
            let request = provider.send_message(&session, "@rehearse say Up.\n@rehearse hang");
            assert!(tokio::time::timeout(delay, request).await.is_err(), "it cannot be over");
        }
        provider.send_message(&session, "Hello again.").await.unwrap();
        let (all, met) = (fs::read_to_string(&pids).unwrap(), fs::read_to_string(harness.path("pids.met")));
        assert!(met.is_err(), "{met:?} of {all}");
        assert!(all.lines().count() > 1, "none was given up late enough to start: {all}");
    });
}

fn restricted_agent_has_only_the_file_tools() {
    Harness::run(async |harness| {
        let file_tools = harness.program("file-tools", "exit 0");
        harness.agent(&format!(
            "for a in \"$@\"; do case $a in --mcp-config=*) cp \"${{a#*=}}\" '{}';; esac; done",
            harness.path("config").display()
        ));
        let provider = harness.provider();
        let agent = AgentSpec { access: Access::Files(vec![FileVerb::Read]), ..AgentSpec::new("Read.") };
        let session = provider.create_session(&agent, &harness.path("work")).await.unwrap();
        let text = provider.send_message(&session, "@rehearse args").await.unwrap().text;
        let arguments: Vec<String> = serde_json::from_str(&text).unwrap();
        for expected in
            ["--tools=", "--strict-mcp-config", "--setting-sources=", "--allowedTools=mcp__files__read"]
        {
            assert!(arguments.iter().any(|argument| argument == expected), "{expected} is not in {text}");
        }
        assert!(!text.contains("skip-permissions") && !text.contains("mcp__files__*"), "{text}");
        let config: serde_json::Value =
            serde_json::from_slice(&fs::read(harness.path("config")).unwrap()).unwrap();
        let workspace = harness.path("work").canonicalize().unwrap();
        let expected = serde_json::json!({"mcpServers": {"files": {
            "type": "stdio", "command": file_tools, "args": ["mcp", "--verbs=read"], "env": {"FILE_TOOLS_ROOT": workspace},
        }}});
        assert_eq!(config, expected);
    });
}

fn session_without_file_tools_is_rejected() {
    Harness::run(async |harness| {
        let provider = harness.provider();
        let by_shell =
            AgentSpec { access: Access::FilesByShell(vec![FileVerb::Read]), ..AgentSpec::default() };
        for agent in [by_shell, AgentSpec::default()] {
            let error = provider.create_session(&agent, &harness.path("work")).await.unwrap_err();
            assert_eq!(error.to_string(), "`file-tools` not found beside this program or in PATH");
        }
    });
}

fn session_in_missing_directory_is_rejected() {
    Harness::run(async |harness| {
        let error = harness.provider().create_session(&full(), &harness.path("nowhere")).await.unwrap_err();
        assert!(error.to_string().starts_with("cannot work in"));
    });
}

fn tool_results_are_rejected() {
    Harness::run(async |harness| {
        let provider = harness.provider();
        let session = session(harness, &provider).await;
        let error = provider.submit_tool_results(&session, &[]).await.unwrap_err();
        assert_eq!(error.to_string(), "rehearsal CLI runs its tools itself and accepts no results");
    });
}

fn session_of_another_provider_is_rejected() {
    Harness::run(async |harness| {
        let other = Session::adopt("codex", "abc".parse().unwrap(), full(), harness.path("work"));
        let error = harness.provider().send_message(&other, "Hello.").await.unwrap_err();
        assert!(matches!(error, ProviderError::Unsupported { .. }), "{error:?}");
    });
}
