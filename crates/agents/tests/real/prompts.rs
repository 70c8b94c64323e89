//! The request to the model: prompt, system prompt and model name.

use model::{AgentKind, CallSpec};
use model_api::{ConversationRole, ModelApi, Script};

use crate::harness::Harness;
use crate::pinned::Pinned;

crate::scenarios! {
    flag_like_prompt_is_text;
    slash_command_prompt_is_text;
    megabyte_prompt_arrives_complete;
    email_address_in_prompt_adds_no_file;
    system_prompt_reaches_model;
    named_model_reaches_the_vendor;
    omitted_model_is_chosen_by_agent;
}

fn flag_like_prompt_is_text(cli: &Pinned) {
    arrives(cli, "--help", "--help");
}

fn slash_command_prompt_is_text(cli: &Pinned) {
    // A leading slash starts a command of the CLI, unless something precedes it.
    let guarded = matches!(cli.kind, AgentKind::Claude | AgentKind::Gemini);
    arrives(cli, "/cost", if guarded { "\n/cost" } else { "/cost" });
}

fn megabyte_prompt_arrives_complete(cli: &Pinned) {
    // Numbered, so that a lost or repeated part is noticed.
    let mut lines =
        (0..).map(|number| format!("line {number:08}")).take(80_000).collect::<Vec<_>>().join("\n");
    lines.truncate(1_000_000 - "end.".len());
    arrives(cli, &format!("{lines}end."), &format!("{lines}end."));
}

/// Gemini would resolve `@g` to any file with a `g` in its path. Only a backslash prevents it, and the model sees it.
fn email_address_in_prompt_adds_no_file(cli: &Pinned) {
    Harness::play(cli, async |harness| {
        std::fs::write(harness.workspace().join("sup.log"), "heron").unwrap();
        let prompt = "git -c user.email=g@g commit, mail me@example.com\n";
        let api = ModelApi::start(Script::text("Understood.")).await;
        let done = harness.ask(&api, &harness.spec(prompt)).await;
        done.succeeded();
        let first = &api.turns()[0];
        let is_gemini = harness.kind() == AgentKind::Gemini;
        let expected = if is_gemini { prompt.replace("g@g", "g\\@g") } else { prompt.to_owned() };
        assert_eq!(first.prompt().as_deref(), Some(expected.as_str()), "{done}");
        assert!(!first.body.to_string().contains("heron"), "{done}");
    });
}

fn arrives(cli: &Pinned, prompt: &str, as_text: &str) {
    Harness::play(cli, async |harness| {
        let api = ModelApi::start(Script::text("Understood.")).await;
        let done = harness.ask(&api, &harness.spec(prompt)).await;
        assert_eq!(done.succeeded().text, "Understood.", "{done}");
        let arrived = api.turns()[0].prompt().unwrap();
        // Not `assert_eq`, which would print two megabytes.
        assert!(arrived == as_text, "{} of {} bytes arrived: {done}", arrived.len(), as_text.len());
    });
}

fn system_prompt_reaches_model(cli: &Pinned) {
    Harness::play(cli, async |harness| {
        let api = ModelApi::start(Script::text("Understood.")).await;
        let (own, more) = ("You are a heron,\n\"patient\" & quiet.", "Answer as a bird would: \\o/");
        // Gemini accepts a replacement of its system prompt, but no addition.
        let append = (harness.kind() != AgentKind::Gemini).then(|| more.to_owned());
        let spec = CallSpec {
            system_prompt: Some(own.to_owned()),
            append_system_prompt: append.clone(),
            ..harness.spec("Who are you?")
        };
        let done = harness.ask(&api, &spec).await;
        done.succeeded();
        let system = api.turns()[0].says(ConversationRole::System);
        let told = |words: &str| system.iter().any(|text| text.contains(words));
        assert!(told(own) && append.is_none_or(|more| told(&more)), "{system:#?}");
    });
}

fn named_model_reaches_the_vendor(cli: &Pinned) {
    // The CLI resolves its own alias, depending on its version.
    let (asked, family) = match cli.kind {
        AgentKind::Claude => ("Haiku", "claude-haiku-"),
        AgentKind::Codex => ("gpt-5.5", "gpt-5.5"),
        _ => ("flash", "gemini-"),
    };
    Harness::play(cli, async |harness| {
        let api = ModelApi::start(Script::text("Understood.")).await;
        let done = harness
            .ask(&api, &CallSpec { model: Some(asked.to_owned()), ..harness.spec("Say hello.") })
            .await;
        let turns = api.turns();
        done.succeeded();
        assert!(turns[0].model().is_some_and(|model| model.starts_with(family)), "{done}");
    });
}

/// A built-in default would one day be unknown to the CLI; codex warns about it.
fn omitted_model_is_chosen_by_agent(cli: &Pinned) {
    Harness::play(cli, async |harness| {
        let api = ModelApi::start(Script::text("Understood.")).await;
        for model in [None, Some(String::new())] {
            let done = harness.ask(&api, &CallSpec { model, ..harness.spec("Say hello.") }).await;
            done.succeeded();
            assert!(!done.launch.plan.args.iter().any(|word| word.starts_with("--model")), "{done}");
            assert!(!done.launch.plan.env.contains_key("ANTHROPIC_MODEL"), "{done}");
            assert!(!done.stdout.contains("Model metadata for"), "{done}");
            assert!(api.turns().last().unwrap().model().is_some(), "{done}");
        }
    });
}
