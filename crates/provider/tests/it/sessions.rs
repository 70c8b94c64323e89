//! Sessions: created, resumed, found again, and confined as before.

use std::fs;
use std::time::Duration;

use futures_util::StreamExt;
use provider::{
    Access, AgentEvent, AgentSpec, FileVerb, Provider, ProviderError, RehearsalProvider, Session, Update,
    Warning,
};

use crate::scene::Scene;

crate::tests! {
    session_starts_with_first_message_and_continues,
    session_is_found_by_another_provider_of_same_kind,
    unwritable_session_record_is_a_warning,
    a_first_message_that_fails_before_a_word_begins_anew,
    messages_to_one_session_take_turns,
    a_message_that_was_given_up_is_over_before_the_next_begins,
    abandoned_message_never_overlaps_the_next,
    restricted_agent_has_only_the_file_tools,
    a_session_with_bounds_that_cannot_be_held_is_refused,
    tool_results_are_refused_and_so_are_sessions_of_others,
}

fn full() -> AgentSpec {
    AgentSpec { access: Access::Full, ..AgentSpec::new("You are terse.") }
}

async fn session(scene: &Scene, provider: &RehearsalProvider) -> Session {
    provider.create_session(&full(), &scene.path("work")).await.unwrap()
}

fn session_starts_with_first_message_and_continues() {
    Scene::play(async |scene| {
        let provider = scene.provider();
        let session = session(scene, &provider).await;
        assert_eq!((session.id(), session.workspace()), (None, &*scene.path("work").canonicalize().unwrap()));
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
    Scene::play(async |scene| {
        let provider = scene.provider();
        let first = session(scene, &provider).await;
        provider.send_message(&first, "Hello.").await.unwrap();
        let id = first.id().unwrap().to_string();
        drop((provider, first));
        let later = scene.provider();
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
    Scene::play(async |scene| {
        fs::write(scene.path("no-folder"), "").unwrap();
        let provider = scene.provider_with(|config| config.sessions = Some(scene.path("no-folder")));
        let session = session(scene, &provider).await;
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

fn a_first_message_that_fails_before_a_word_begins_anew() {
    Scene::play(async |scene| {
        let provider = scene.provider();
        let session = session(scene, &provider).await;
        let error = provider.send_message(&session, "@rehearse fail auth").await.unwrap_err();
        assert!(matches!(error, ProviderError::Authentication { .. }), "{error:?}");
        assert_eq!(session.id(), None, "there is nothing to resume");
        let text = provider.send_message(&session, "@rehearse args").await.unwrap().text;
        assert!(text.contains("--session-id=") && !text.contains("--resume="), "{text}");
    });
}

fn messages_to_one_session_take_turns() {
    Scene::play(async |scene| {
        let log = scene.path("log");
        let provider = scene.provider();
        let session = session(scene, &provider).await;
        // Each run logs its start and end; concurrent runs would interleave.
        scene.agent(&format!("echo in >> '{0}'; sleep 0.2; echo out >> '{0}'", log.display()));
        let (one, two) =
            tokio::join!(provider.send_message(&session, "One."), provider.send_message(&session, "Two."));
        assert_eq!(
            (one.unwrap().text.as_str(), two.unwrap().text.as_str()),
            ("You said: One.", "You said: Two.")
        );
        assert_eq!(fs::read_to_string(log).unwrap(), "in\nout\nin\nout\n");
    });
}

fn a_message_that_was_given_up_is_over_before_the_next_begins() {
    Scene::play(async |scene| {
        let provider = scene.provider();
        let session = session(scene, &provider).await;
        let pids = scene.path("pids");
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
        scene.agent(&format!("kill -0 $(cat '{0}') 2>/dev/null && touch '{0}.alive'", pids.display()));
        let text = provider.send_message(&session, "@rehearse args").await.unwrap().text;
        assert!(text.contains(&format!("--resume={id}")), "{text}");
        assert!(!scene.path("pids.alive").exists(), "the run before was still there");
    });
}

fn abandoned_message_never_overlaps_the_next() {
    Scene::play(async |scene| {
        let provider = scene.provider();
        let session = session(scene, &provider).await;
        provider.send_message(&session, "Hello.").await.unwrap();
        // Each run records its pid, and whether an earlier one is still alive.
        let pids = scene.path("pids");
        scene.agent(&format!(
            "for pid in $(cat '{0}' 2>/dev/null); do kill -0 $pid 2>/dev/null && echo $pid >> '{0}.met'; done; echo $$ >> '{0}'",
            pids.display()
        ));
        for delay in (0..30).map(|step| Duration::from_millis(step * 2)) {
            let request = provider.send_message(&session, "@rehearse say Up.\n@rehearse hang");
            assert!(tokio::time::timeout(delay, request).await.is_err(), "it cannot be over");
        }
        provider.send_message(&session, "Hello again.").await.unwrap();
        let (all, met) = (fs::read_to_string(&pids).unwrap(), fs::read_to_string(scene.path("pids.met")));
        assert!(met.is_err(), "{met:?} of {all}");
        assert!(all.lines().count() > 1, "none was given up late enough to start: {all}");
    });
}

fn restricted_agent_has_only_the_file_tools() {
    Scene::play(async |scene| {
        let file_tools = scene.program("file-tools", "exit 0");
        scene.agent(&format!(
            "for a in \"$@\"; do case $a in --mcp-config=*) cp \"${{a#*=}}\" '{}';; esac; done",
            scene.path("config").display()
        ));
        let provider = scene.provider();
        let agent = AgentSpec { access: Access::Files(vec![FileVerb::Read]), ..AgentSpec::new("Read.") };
        let session = provider.create_session(&agent, &scene.path("work")).await.unwrap();
        let text = provider.send_message(&session, "@rehearse args").await.unwrap().text;
        let arguments: Vec<String> = serde_json::from_str(&text).unwrap();
        for expected in
            ["--tools=", "--strict-mcp-config", "--setting-sources=", "--allowedTools=mcp__files__read"]
        {
            assert!(arguments.iter().any(|argument| argument == expected), "{expected} is not in {text}");
        }
        assert!(!text.contains("skip-permissions") && !text.contains("mcp__files__*"), "{text}");
        let config: serde_json::Value =
            serde_json::from_slice(&fs::read(scene.path("config")).unwrap()).unwrap();
        let workspace = scene.path("work").canonicalize().unwrap();
        let expected = serde_json::json!({"mcpServers": {"files": {
            "type": "stdio", "command": file_tools, "args": ["mcp", "--verbs=read"], "env": {"FILE_TOOLS_ROOT": workspace},
        }}});
        assert_eq!(config, expected);
    });
}

fn a_session_with_bounds_that_cannot_be_held_is_refused() {
    Scene::play(async |scene| {
        let provider = scene.provider();
        let create = async |agent: AgentSpec, folder: &str| {
            provider.create_session(&agent, &scene.path(folder)).await.unwrap_err()
        };
        let by_shell =
            AgentSpec { access: Access::FilesByShell(vec![FileVerb::Read]), ..AgentSpec::default() };
        for without_tools in [create(by_shell, "work").await, create(AgentSpec::default(), "work").await] {
            assert_eq!(without_tools.to_string(), "`file-tools` not found beside this program or in PATH");
        }
        assert!(create(full(), "nowhere").await.to_string().starts_with("cannot work in"));
    });
}

fn tool_results_are_refused_and_so_are_sessions_of_others() {
    Scene::play(async |scene| {
        let provider = scene.provider();
        let session = session(scene, &provider).await;
        let error = provider.submit_tool_results(&session, &[]).await.unwrap_err();
        assert_eq!(error.to_string(), "rehearsal CLI runs its tools itself and takes no results");
        let other = Session::adopt("codex", "abc".parse().unwrap(), full(), scene.path("work"));
        let error = provider.send_message(&other, "Hello.").await.unwrap_err();
        assert!(matches!(error, ProviderError::Unsupported { .. }), "{error:?}");
    });
}
