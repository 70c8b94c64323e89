//! Requests that run out of turns, and the lifetime of their private files.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use futures_util::StreamExt;
use provider::{Context, McpServer, Provider, ProviderError, Update};

use crate::harness::Harness;
use crate::outside;
use testkit::eventually_async;

crate::tests! {
    request_out_of_turns_resumes_its_session,
    resume_limit_keeps_the_partial_text,
    callers_turn_limit_is_not_resumed,
    private_mcp_file_lasts_until_the_request_ends,
    mcp_file_is_removed_after_an_error,
    mcp_file_is_removed_after_a_drop,
    mcp_file_is_removed_after_a_panic,
}

const OUT_OF_TURNS: &str = "@rehearse say One.\n@rehearse max-turns";

fn request_out_of_turns_resumes_its_session() {
    Harness::run(async |harness| {
        let mut updates = harness.provider().complete_stream(&Context::new(OUT_OF_TURNS));
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

fn resume_limit_keeps_the_partial_text() {
    Harness::run(async |harness| {
        // Always runs out of turns; the second run has the session id of the first.
        let script = harness.path("script");
        fs::write(&script, "say One.\nmax-turns\n").unwrap();
        harness.agent(&format!(
            "echo \"$*\" >> '{0}/log'; set -- \"$@\" --script '{0}/script'",
            harness.path("").display()
        ));
        let provider = harness.provider_with(|config| config.max_resume_attempts = 1);
        let error = provider.complete(&Context::new("Go.")).await.unwrap_err();
        assert!(matches!(error, ProviderError::MaxTurns { .. }), "{error:?}");
        let so_far = error.so_far().unwrap();
        assert_eq!((so_far.text.as_str(), so_far.metadata.resumes), ("One.\n\nOne.", 1));
        let id = so_far.metadata.session_id.clone().unwrap();
        let log = fs::read_to_string(harness.path("log")).unwrap();
        assert!(
            log.lines().count() == 2 && log.lines().last().unwrap().contains(&format!("--resume={id}")),
            "{log}"
        );
    });
}

fn callers_turn_limit_is_not_resumed() {
    Harness::run(async |harness| {
        let context = Context { max_turns: Some(7), ..Context::new(OUT_OF_TURNS) };
        let error = harness.provider().complete(&context).await.unwrap_err();
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
    Harness::run(async |harness| {
        let own = harness.path("work/.claude/settings.local.json");
        fs::create_dir(own.parent().unwrap()).unwrap();
        fs::write(&own, "{ \"mine\" :1}\n").unwrap();
        // Each run prints what it finds at the given path.
        harness.agent(&format!(
            "for a in \"$@\"; do case $a in --mcp-config=*) stat -c %a \"${{a#*=}}\" >> '{0}'; \
             grep -o secret-of-the-server \"${{a#*=}}\" >> '{0}';; esac; done",
            harness.path("seen").display()
        ));
        let message = harness.provider().complete(&with_server(OUT_OF_TURNS)).await.unwrap();
        assert_eq!(message.metadata.resumes, 1);
        let seen = fs::read_to_string(harness.path("seen")).unwrap();
        assert_eq!(seen, "600\nsecret-of-the-server\n600\nsecret-of-the-server\n");
        assert!(harness.spooled().is_empty());
        assert_eq!(fs::read(&own).unwrap(), b"{ \"mine\" :1}\n", "the user's own file is never touched");
    });
}

fn mcp_file_is_removed_after_an_error() {
    Harness::run(async |harness| {
        let error = harness.provider().complete(&with_server("@rehearse fail auth")).await.unwrap_err();
        assert!(matches!(error, ProviderError::Authentication { .. }), "{error:?}");
        assert!(harness.spooled().is_empty());
    });
}

/// Polls until the agent's first output, with its private file present.
async fn until_it_speaks(harness: &Harness) -> provider::Updates<provider::OutgoingMessage> {
    let mut updates = harness.provider().complete_stream(&with_server("@rehearse say Up.\n@rehearse hang"));
    assert!(matches!(updates.next().await, Some(Ok(Update::Event(_)))));
    let files = harness.private_files();
    assert_eq!(files.len(), 1, "{files:?}");
    assert_eq!(fs::metadata(&files[0]).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(fs::read_to_string(&files[0]).unwrap().contains("secret-of-the-server"));
    updates
}

fn mcp_file_is_removed_after_a_drop() {
    Harness::run(async |harness| {
        drop(until_it_speaks(harness).await);
        assert!(harness.spooled().is_empty(), "at once, not only when the agent has ended");
    });
}

fn mcp_file_is_removed_after_a_panic() {
    Harness::run(async |harness| {
        let updates = until_it_speaks(harness).await;
        let panicked = tokio::task::spawn_blocking(move || {
            let _held = updates;
            std::panic::resume_unwind(Box::new("a panic in the program"));
        });
        assert!(panicked.await.unwrap_err().is_panic());
        assert!(harness.spooled().is_empty());
        let gone = async || outside::processes_of(&harness.path("work")).is_empty();
        eventually_async("no process is left", gone).await;
    });
}
