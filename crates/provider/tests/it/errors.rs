//! Errors, worded so that a person can act on them.

use std::time::Duration;

use futures_util::StreamExt;
use provider::{
    ClaudeCodeProvider, CodexProvider, Context, Deadline, GeminiProvider, Provider, ProviderConfig,
    ProviderError, RehearsalProvider, SupervisorProgram, Update,
};

use crate::harness::Harness;
use testkit::eventually_async;

crate::tests! {
    missing_agent_is_reported_with_install_hint,
    program_in_the_workspace_is_not_taken_for_an_agent,
    missing_login_is_reported_before_a_session,
    check_cli_searches_the_programs_path,
    missing_supervisor_is_reported,
    agent_failures_map_to_their_errors,
    timeout_names_its_deadline_and_keeps_the_text,
    crashed_cli_reports_exit_status_and_stderr,
    agent_stopped_from_outside_is_cancelled,
    unsupported_options_are_rejected,
    invalid_request_is_rejected_before_start,
}

fn missing_agent_is_reported_with_install_hint() {
    Harness::run(async |harness| {
        let config = || ProviderConfig {
            environment: Some([("PATH".to_owned(), "/nowhere".to_owned())].into()),
            ..harness.config()
        };
        let providers: [Box<dyn Provider>; 3] = [
            Box::new(ClaudeCodeProvider::from_config(config())),
            Box::new(CodexProvider::from_config(config())),
            Box::new(GeminiProvider::from_config(config())),
        ];
        for (provider, name) in providers.iter().zip(["claude", "codex", "gemini"]) {
            assert!(!provider.is_available().await);
            let ask = provider.complete(&Context::new("Hello.")).await.map(drop);
            let session = provider.create_session(&full(), &harness.path("work")).await.map(drop);
            for error in [provider.validate_environment().await, ask, session] {
                let error = error.unwrap_err();
                assert!(matches!(error, ProviderError::Environment { .. }), "{error:?}");
                assert_eq!(error.to_string(), format!("{name} CLI not found in PATH"));
                assert!(error.hint().contains("npm install"), "{}", error.hint());
            }
        }
    });
}

/// A confined agent could leave such a program: it must not run outside of a sandbox, not even for its version.
fn program_in_the_workspace_is_not_taken_for_an_agent() {
    Harness::run(async |harness| {
        let asked = harness.path("asked");
        harness.program("codex", &format!("touch '{}'", asked.display()));
        let provider = CodexProvider::from_config(ProviderConfig {
            working_dir: Some(harness.path("bin")),
            ..harness.config()
        });
        let ask = provider.complete(&Context::new("Hello.")).await.map(drop);
        let error = ask.unwrap_err();
        assert!(error.to_string().contains("codex is only at `"), "{error}");
        assert!(!asked.exists());
    });
}

fn full() -> provider::AgentSpec {
    provider::AgentSpec { access: provider::Access::Full, ..provider::AgentSpec::default() }
}

fn missing_login_is_reported_before_a_session() {
    Harness::run(async |harness| {
        // The output of the real program, without a login.
        let claude = "case \"$1\" in --version) echo '2.1.325 (Claude Code)';; --help) echo '  --tools <x>';; \
                      auth) echo '{\"loggedIn\": false}'; exit 1;; esac";
        let program = harness.program("claude", claude);
        let provider =
            ClaudeCodeProvider::from_config(ProviderConfig { program: Some(program), ..harness.config() });
        assert!(provider.is_available().await);
        let error = provider.create_session(&full(), &harness.path("work")).await.unwrap_err();
        assert_eq!(error.to_string(), "claude is not logged in");
        assert!(error.hint().contains("/login"), "{}", error.hint());
    });
}

fn check_cli_searches_the_programs_path() {
    Harness::run(async |_| {
        let path = std::env::var("PATH").unwrap();
        let is_here = agents::doctor::find_in_path("rehearsal", &path).is_some();
        let beside = std::env::current_exe().unwrap().with_file_name("rehearsal").exists();
        assert_eq!(RehearsalProvider::check_cli().await, is_here || beside);
    });
}

fn missing_supervisor_is_reported() {
    Harness::run(async |harness| {
        let provider = harness
            .provider_with(|config| config.supervisor = SupervisorProgram::At("/nowhere/supervisor".into()));
        let error = provider.complete(&Context::new("Hello.")).await.unwrap_err();
        assert!(matches!(error, ProviderError::Environment { source: Some(_), .. }), "{error:?}");
    });
}

fn agent_failures_map_to_their_errors() {
    Harness::run(async |harness| {
        type Check = fn(&ProviderError) -> bool;
        let table: [(&str, Check); 9] = [
            ("fail auth", |e| matches!(e, ProviderError::Authentication { .. })),
            ("fail rate-limit", |e| matches!(e, ProviderError::RateLimit { .. })),
            ("fail overloaded", |e| matches!(e, ProviderError::Overloaded { .. })),
            ("fail network", |e| matches!(e, ProviderError::Network { .. })),
            ("fail budget", |e| matches!(e, ProviderError::Budget { .. })),
            ("fail session-not-found", |e| matches!(e, ProviderError::SessionNotFound { .. })),
            (
                "deny Bash",
                |e| matches!(e, ProviderError::ToolPermission { denials, .. } if denials[0].tool == "Bash"),
            ),
            ("background start npm test", |e| {
                let ProviderError::Incomplete { so_far, .. } = e else { return false };
                so_far.metadata.background[0].description == "npm test"
            }),
            // The agent keeps retrying, and is not waited for.
            ("retry-notice 401\n@rehearse retry-notice 401\n@rehearse hang", |e| {
                matches!(e, ProviderError::Authentication { .. })
            }),
        ];
        for (step, is_right) in table {
            let steps = format!("@rehearse say So far.\n@rehearse {step}");
            let error = harness.provider().complete(&Context::new(steps)).await.unwrap_err();
            assert!(is_right(&error), "{step}: {error:?}");
            assert!(!error.hint().is_empty());
            if let Some(so_far) = error.so_far() {
                assert_eq!(so_far.text, "So far.", "{step}");
            }
        }
    });
}

fn timeout_names_its_deadline_and_keeps_the_text() {
    Harness::run(async |harness| {
        let hang = Context::new("@rehearse say So far.\n@rehearse hang");
        let second = Duration::from_secs(1);
        let wall = harness.provider_with(|config| config.timeout = second).complete(&hang).await.unwrap_err();
        assert_eq!(wall.to_string(), "rehearsal CLI timed out after 1s");
        assert!(matches!(wall, ProviderError::Timeout { deadline: Deadline::Wall, .. }), "{wall:?}");
        let idle = harness
            .provider_with(|config| config.idle_timeout = Some(second))
            .complete(&hang)
            .await
            .unwrap_err();
        assert_eq!(idle.to_string(), "rehearsal CLI timed out after 1s of silence");
        for error in [wall, idle] {
            assert_eq!(error.so_far().unwrap().text, "So far.");
            assert!(error.session_id().is_some(), "to go on with");
        }
    });
}

fn crashed_cli_reports_exit_status_and_stderr() {
    Harness::run(async |harness| {
        harness.program("rehearsal", "echo 'cannot find module x' >&2; exit 3");
        let error = harness.provider().complete(&Context::new("Hello.")).await.unwrap_err();
        assert_eq!(error.to_string(), "rehearsal CLI exited with exit code 3: cannot find module x");
    });
}

fn agent_stopped_from_outside_is_cancelled() {
    Harness::run(async |harness| {
        let mut updates =
            harness.provider().complete_stream(&Context::new("@rehearse say Up.\n@rehearse hang"));
        assert!(matches!(updates.next().await, Some(Ok(Update::Event(_)))));
        let status = harness.spooled().into_iter().find(|file| file.ends_with("status.json")).unwrap();
        let run = supervisor::attach(status.parent().unwrap()).await.unwrap();
        run.stop().unwrap();
        let error = loop {
            match updates.next().await.unwrap() {
                Ok(Update::Event(_)) => {}
                Ok(other) => panic!("{other:?}"),
                Err(error) => break error,
            }
        };
        assert_eq!(error.to_string(), "rehearsal CLI was stopped");
        assert_eq!(error.so_far().unwrap().text, "Up.");
        assert!(updates.next().await.is_none(), "nothing follows an end");
        eventually_async("no spool is left", async || harness.spooled().is_empty()).await;
    });
}

fn unsupported_options_are_rejected() {
    Harness::run(async |harness| {
        let codex = harness
            .program("codex", "case \"$*\" in *--version*) echo codex-cli 0.166.0;; *) echo help;; esac");
        let codex = CodexProvider::from_config(ProviderConfig { program: Some(codex), ..harness.config() });
        let turns = Context { max_turns: Some(3), ..Context::new("Hello.") };
        let tools = Context { allowed_tools: Some(vec![]), ..Context::new("Hello.") };
        for context in [turns, tools] {
            let error = codex.complete(&context).await.unwrap_err();
            assert!(matches!(error, ProviderError::Request(_)), "{error:?}");
        }
    });
}

fn invalid_request_is_rejected_before_start() {
    Harness::run(async |harness| {
        harness.agent(&format!("touch '{}'", harness.path("started").display()));
        let both = Context {
            agent_name: "reviewer".parse().ok(),
            session_id: "0000abcd-0000-4000-8000-00000000000a".parse().ok(),
            ..Context::new("Hello.")
        };
        let unknown = Context { model: Some("--help".to_owned()), ..Context::new("Hello.") };
        for context in [Context::new(" \n"), both, unknown] {
            let error = harness.provider().complete(&context).await.unwrap_err();
            assert!(matches!(error, ProviderError::Request(_)), "{error:?}");
            assert!(!error.hint().is_empty());
        }
        assert!(!harness.path("started").exists());
        let missing = RehearsalProvider::from_config(ProviderConfig {
            working_dir: Some(harness.path("nowhere")),
            ..harness.config()
        });
        let error = missing.complete(&Context::new("Hello.")).await.unwrap_err();
        assert!(error.to_string().starts_with("cannot work in"), "{error}");
    });
}
