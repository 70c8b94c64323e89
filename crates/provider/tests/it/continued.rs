//! Requests that run out of turns, and the lifetime of their private files.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use futures_util::StreamExt;
use provider::{Context, McpServer, Provider, ProviderError, Update};

use crate::outside;
use crate::scene::Scene;

crate::tests! {
    a_request_out_of_turns_goes_on_in_its_session,
    at_the_limit_the_text_so_far_is_kept,
    a_turn_limit_of_the_caller_is_kept,
    private_mcp_file_lasts_until_the_request_ends,
    the_mcp_file_is_gone_after_an_error,
    the_mcp_file_is_gone_after_a_drop,
    the_mcp_file_is_gone_after_a_panic,
}

const OUT_OF_TURNS: &str = "@rehearse say One.\n@rehearse max-turns";

fn a_request_out_of_turns_goes_on_in_its_session() {
    Scene::play(async |scene| {
        let mut updates = scene.provider().complete_stream(&Context::new(OUT_OF_TURNS));
        let mut resumed = Vec::new();
        let message = loop {
            match updates.next().await.unwrap().unwrap() {
                Update::Resuming { attempt, after } => resumed.push((attempt, after.as_secs())),
                Update::Done(message) => break message,
                Update::Event(_) => {}
            }
        };
        assert_eq!(resumed, [(1, 2)]);
        let expected = format!("One.\n\nYou said: {}", agents::CONTINUE_PROMPT);
        assert_eq!((message.text, message.metadata.resumes), (expected, 1));
    });
}

fn at_the_limit_the_text_so_far_is_kept() {
    Scene::play(async |scene| {
        // Always runs out of turns; the second run has the session id of the first.
        let script = scene.path("script");
        fs::write(&script, "say One.\nmax-turns\n").unwrap();
        scene.agent(&format!(
            "echo \"$*\" >> '{0}/log'; set -- \"$@\" --script '{0}/script'",
            scene.path("").display()
        ));
        let provider = scene.provider_with(|config| config.max_resume_attempts = 1);
        let error = provider.complete(&Context::new("Go.")).await.unwrap_err();
        assert!(matches!(error, ProviderError::MaxTurns { .. }), "{error:?}");
        let so_far = error.so_far().unwrap();
        assert_eq!((so_far.text.as_str(), so_far.metadata.resumes), ("One.\n\nOne.", 1));
        let id = so_far.metadata.session_id.clone().unwrap();
        let log = fs::read_to_string(scene.path("log")).unwrap();
        assert!(
            log.lines().count() == 2 && log.lines().last().unwrap().contains(&format!("--resume={id}")),
            "{log}"
        );
    });
}

fn a_turn_limit_of_the_caller_is_kept() {
    Scene::play(async |scene| {
        let context = Context { max_turns: Some(7), ..Context::new(OUT_OF_TURNS) };
        let error = scene.provider().complete(&context).await.unwrap_err();
        assert!(matches!(error, ProviderError::MaxTurns { .. }), "{error:?}");
        assert_eq!(
            (error.so_far().unwrap().text.as_str(), error.so_far().unwrap().metadata.resumes),
            ("One.", 0)
        );
    });
}

fn with_server(prompt: &str) -> Context {
    let server = McpServer {
        name: "echo".to_owned(),
        command: "/bin/true".to_owned(),
        args: vec![],
        env: [("TOKEN".to_owned(), "secret-of-the-server".to_owned())].into(),
    };
    Context { mcp_servers: vec![server], ..Context::new(prompt) }
}

fn private_mcp_file_lasts_until_the_request_ends() {
    Scene::play(async |scene| {
        let own = scene.path("work/.claude/settings.local.json");
        fs::create_dir(own.parent().unwrap()).unwrap();
        fs::write(&own, "{ \"mine\" :1}\n").unwrap();
        // Each run prints what it finds at the given path.
        scene.agent(&format!(
            "for a in \"$@\"; do case $a in --mcp-config=*) stat -c %a \"${{a#*=}}\" >> '{0}'; \
             grep -o secret-of-the-server \"${{a#*=}}\" >> '{0}';; esac; done",
            scene.path("seen").display()
        ));
        let message = scene.provider().complete(&with_server(OUT_OF_TURNS)).await.unwrap();
        assert_eq!(message.metadata.resumes, 1);
        let seen = fs::read_to_string(scene.path("seen")).unwrap();
        assert_eq!(seen, "600\nsecret-of-the-server\n600\nsecret-of-the-server\n");
        assert!(scene.spooled().is_empty());
        assert_eq!(fs::read(&own).unwrap(), b"{ \"mine\" :1}\n", "the user's own file is never touched");
    });
}

fn the_mcp_file_is_gone_after_an_error() {
    Scene::play(async |scene| {
        let error = scene.provider().complete(&with_server("@rehearse fail auth")).await.unwrap_err();
        assert!(matches!(error, ProviderError::Authentication { .. }), "{error:?}");
        assert!(scene.spooled().is_empty());
    });
}

/// Polls until the agent's first output, with its private file present.
async fn until_it_speaks(scene: &Scene) -> provider::Updates<provider::OutgoingMessage> {
    let mut updates = scene.provider().complete_stream(&with_server("@rehearse say Up.\n@rehearse hang"));
    assert!(matches!(updates.next().await, Some(Ok(Update::Event(_)))));
    let files = scene.private_files();
    assert_eq!(files.len(), 1, "{files:?}");
    assert_eq!(fs::metadata(&files[0]).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(fs::read_to_string(&files[0]).unwrap().contains("secret-of-the-server"));
    updates
}

fn the_mcp_file_is_gone_after_a_drop() {
    Scene::play(async |scene| {
        drop(until_it_speaks(scene).await);
        assert!(scene.spooled().is_empty(), "at once, not only when the agent has ended");
    });
}

fn the_mcp_file_is_gone_after_a_panic() {
    Scene::play(async |scene| {
        let updates = until_it_speaks(scene).await;
        let panicked = tokio::task::spawn_blocking(move || {
            let _held = updates;
            std::panic::resume_unwind(Box::new("a panic in the program"));
        });
        assert!(panicked.await.unwrap_err().is_panic());
        assert!(scene.spooled().is_empty());
        outside::eventually("a process is left", || {
            outside::processes_of(&scene.path("work")).is_empty().then_some(())
        })
        .await;
    });
}
