//! Errors, worded so that a person can act on them.

use std::time::Duration;

use futures_util::StreamExt;
use provider::{
    ClaudeCodeProvider, CodexProvider, Context, Deadline, GeminiProvider, Provider, ProviderConfig,
    ProviderError, RehearsalProvider, SupervisorProgram, Update,
};

use crate::outside;
use crate::scene::Scene;

crate::tests! {
    missing_agent_is_reported_with_install_hint,
    program_in_the_workspace_is_not_taken_for_an_agent,
    an_agent_that_is_not_logged_in_is_told_before_a_session,
    the_check_of_the_cli_looks_in_the_programs_own_path,
    a_supervisor_that_is_missing_is_told,
    each_failure_of_the_agent_is_its_own_error,
    a_time_limit_tells_which_one_and_keeps_the_text,
    a_cli_that_breaks_off_tells_its_exit_and_stderr,
    an_agent_that_is_stopped_from_outside_is_cancelled,
    what_an_agent_has_no_means_for_is_refused,
    invalid_request_is_rejected_before_start,
}

fn missing_agent_is_reported_with_install_hint() {
    Scene::play(async |scene| {
        let config = || ProviderConfig {
            environment: Some([("PATH".to_owned(), "/nowhere".to_owned())].into()),
            ..scene.config()
        };
        let providers: [Box<dyn Provider>; 3] = [
            Box::new(ClaudeCodeProvider::from_config(config())),
            Box::new(CodexProvider::from_config(config())),
            Box::new(GeminiProvider::from_config(config())),
        ];
        for (provider, name) in providers.iter().zip(["claude", "codex", "gemini"]) {
            assert!(!provider.is_available().await);
            let ask = provider.complete(&Context::new("Hello.")).await.map(drop);
            let session = provider.create_session(&full(), &scene.path("work")).await.map(drop);
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
    Scene::play(async |scene| {
        let asked = scene.path("asked");
        scene.program("codex", &format!("touch '{}'", asked.display()));
        let provider = CodexProvider::from_config(ProviderConfig {
            working_dir: Some(scene.path("bin")),
            ..scene.config()
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

fn an_agent_that_is_not_logged_in_is_told_before_a_session() {
    Scene::play(async |scene| {
        // The output of the real program, without a login.
        let claude = "case \"$1\" in --version) echo '2.1.325 (Claude Code)';; --help) echo '  --tools <x>';; \
                      auth) echo '{\"loggedIn\": false}'; exit 1;; esac";
        let program = scene.program("claude", claude);
        let provider =
            ClaudeCodeProvider::from_config(ProviderConfig { program: Some(program), ..scene.config() });
        assert!(provider.is_available().await);
        let error = provider.create_session(&full(), &scene.path("work")).await.unwrap_err();
        assert_eq!(error.to_string(), "claude is not logged in");
        assert!(error.hint().contains("/login"), "{}", error.hint());
    });
}

fn the_check_of_the_cli_looks_in_the_programs_own_path() {
    Scene::play(async |_| {
        let path = std::env::var("PATH").unwrap();
        let is_here = agents::doctor::find_in_path("rehearsal", &path).is_some();
        let beside = std::env::current_exe().unwrap().with_file_name("rehearsal").exists();
        assert_eq!(RehearsalProvider::check_cli().await, is_here || beside);
    });
}

fn a_supervisor_that_is_missing_is_told() {
    Scene::play(async |scene| {
        let provider = scene
            .provider_with(|config| config.supervisor = SupervisorProgram::At("/nowhere/supervisor".into()));
        let error = provider.complete(&Context::new("Hello.")).await.unwrap_err();
        assert!(matches!(error, ProviderError::Environment { source: Some(_), .. }), "{error:?}");
    });
}

fn each_failure_of_the_agent_is_its_own_error() {
    Scene::play(async |scene| {
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
            let error = scene.provider().complete(&Context::new(steps)).await.unwrap_err();
            assert!(is_right(&error), "{step}: {error:?}");
            assert!(!error.hint().is_empty());
            if let Some(so_far) = error.so_far() {
                assert_eq!(so_far.text, "So far.", "{step}");
            }
        }
    });
}

fn a_time_limit_tells_which_one_and_keeps_the_text() {
    Scene::play(async |scene| {
        let hang = Context::new("@rehearse say So far.\n@rehearse hang");
        let second = Duration::from_secs(1);
        let wall = scene.provider_with(|config| config.timeout = second).complete(&hang).await.unwrap_err();
        assert_eq!(wall.to_string(), "rehearsal CLI timed out after 1s");
        assert!(matches!(wall, ProviderError::Timeout { deadline: Deadline::Wall, .. }), "{wall:?}");
        let idle = scene
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

fn a_cli_that_breaks_off_tells_its_exit_and_stderr() {
    Scene::play(async |scene| {
        scene.program("rehearsal", "echo 'cannot find module x' >&2; exit 3");
        let error = scene.provider().complete(&Context::new("Hello.")).await.unwrap_err();
        assert_eq!(error.to_string(), "rehearsal CLI exited with exit code 3: cannot find module x");
    });
}

fn an_agent_that_is_stopped_from_outside_is_cancelled() {
    Scene::play(async |scene| {
        let mut updates =
            scene.provider().complete_stream(&Context::new("@rehearse say Up.\n@rehearse hang"));
        assert!(matches!(updates.next().await, Some(Ok(Update::Event(_)))));
        let status = scene.spooled().into_iter().find(|file| file.ends_with("status.json")).unwrap();
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
        outside::eventually("it is left", || scene.spooled().is_empty().then_some(())).await;
    });
}

fn what_an_agent_has_no_means_for_is_refused() {
    Scene::play(async |scene| {
        let codex = scene
            .program("codex", "case \"$*\" in *--version*) echo codex-cli 0.166.0;; *) echo help;; esac");
        let codex = CodexProvider::from_config(ProviderConfig { program: Some(codex), ..scene.config() });
        let turns = Context { max_turns: Some(3), ..Context::new("Hello.") };
        let tools = Context { allowed_tools: Some(vec![]), ..Context::new("Hello.") };
        for context in [turns, tools] {
            let error = codex.complete(&context).await.unwrap_err();
            assert!(matches!(error, ProviderError::Request(_)), "{error:?}");
        }
    });
}

fn invalid_request_is_rejected_before_start() {
    Scene::play(async |scene| {
        scene.agent(&format!("touch '{}'", scene.path("started").display()));
        let both = Context {
            agent_name: "reviewer".parse().ok(),
            session_id: "0000abcd-0000-4000-8000-00000000000a".parse().ok(),
            ..Context::new("Hello.")
        };
        let unknown = Context { model: Some("--help".to_owned()), ..Context::new("Hello.") };
        for context in [Context::new(" \n"), both, unknown] {
            let error = scene.provider().complete(&context).await.unwrap_err();
            assert!(matches!(error, ProviderError::Request(_)), "{error:?}");
            assert!(!error.hint().is_empty());
        }
        assert!(!scene.path("started").exists());
        let missing = RehearsalProvider::from_config(ProviderConfig {
            working_dir: Some(scene.path("nowhere")),
            ..scene.config()
        });
        let error = missing.complete(&Context::new("Hello.")).await.unwrap_err();
        assert!(error.to_string().starts_with("cannot work in"), "{error}");
    });
}
