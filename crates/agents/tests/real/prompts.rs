//! What is said to the model: the prompt as it stands, the system prompt, the model's own name.

use model::{AgentKind, CallSpec};
use model_api::{ModelApi, Role, Script};

use crate::desk::Desk;
use crate::pinned::Pinned;

crate::scenarios! {
    a_prompt_that_looks_like_a_flag_is_text;
    a_prompt_that_looks_like_a_command_is_text;
    a_prompt_of_a_megabyte_arrives_whole;
    address_in_a_prompt_pulls_in_no_file;
    the_system_prompt_reaches_the_model;
    named_model_reaches_the_vendor;
    unnamed_model_is_the_agents_own_choice;
}

fn a_prompt_that_looks_like_a_flag_is_text(cli: &Pinned) {
    arrives(cli, "--help", "--help");
}

fn a_prompt_that_looks_like_a_command_is_text(cli: &Pinned) {
    // What begins with a slash is a command of the CLI's own, unless something stands before it.
    let guarded = matches!(cli.kind, AgentKind::Claude | AgentKind::Gemini);
    arrives(cli, "/cost", if guarded { "\n/cost" } else { "/cost" });
}

fn a_prompt_of_a_megabyte_arrives_whole(cli: &Pinned) {
    // Numbered, so that a piece that is lost or doubled does not go unseen.
    let mut lines =
        (0..).map(|number| format!("line {number:08}")).take(80_000).collect::<Vec<_>>().join("\n");
    lines.truncate(1_000_000 - "end.".len());
    arrives(cli, &format!("{lines}end."), &format!("{lines}end."));
}

/// Gemini would take `@g` for any file with a `g` in its path. It knows no other way to be told than a backslash, which the model sees.
fn address_in_a_prompt_pulls_in_no_file(cli: &Pinned) {
    Desk::play(cli, async |desk| {
        std::fs::write(desk.workspace().join("sup.log"), "heron").unwrap();
        let prompt = "git -c user.email=g@g commit, mail me@example.com\n";
        let api = ModelApi::start(Script::text("Understood.")).await;
        let done = desk.ask(&api, &desk.spec(prompt)).await;
        done.succeeded();
        let first = &api.turns()[0];
        let is_gemini = desk.kind() == AgentKind::Gemini;
        let expected = if is_gemini { prompt.replace("g@g", "g\\@g") } else { prompt.to_owned() };
        assert_eq!(first.prompt().as_deref(), Some(expected.as_str()), "{done}");
        assert!(!first.body.to_string().contains("heron"), "{done}");
    });
}

fn arrives(cli: &Pinned, prompt: &str, as_text: &str) {
    Desk::play(cli, async |desk| {
        let api = ModelApi::start(Script::text("Understood.")).await;
        let done = desk.ask(&api, &desk.spec(prompt)).await;
        assert_eq!(done.succeeded().text, "Understood.", "{done}");
        let arrived = api.turns()[0].prompt().unwrap();
        // Not `assert_eq`: nobody wants to read two megabytes.
        assert!(arrived == as_text, "{} of {} bytes arrived: {done}", arrived.len(), as_text.len());
    });
}

fn the_system_prompt_reaches_the_model(cli: &Pinned) {
    Desk::play(cli, async |desk| {
        let api = ModelApi::start(Script::text("Understood.")).await;
        let (own, more) = ("You are a heron,\n\"patient\" & quiet.", "Answer as a bird would: \\o/");
        // Gemini takes a system prompt in the place of its own, and none after it.
        let append = (desk.kind() != AgentKind::Gemini).then(|| more.to_owned());
        let spec = CallSpec {
            system_prompt: Some(own.to_owned()),
            append_system_prompt: append.clone(),
            ..desk.spec("Who are you?")
        };
        let done = desk.ask(&api, &spec).await;
        done.succeeded();
        let system = api.turns()[0].says(Role::System);
        let told = |words: &str| system.iter().any(|text| text.contains(words));
        assert!(told(own) && append.is_none_or(|more| told(&more)), "{system:#?}");
    });
}

fn named_model_reaches_the_vendor(cli: &Pinned) {
    // The CLI resolves its own alias: which model that is moves with its version.
    let (asked, family) = match cli.kind {
        AgentKind::Claude => ("Haiku", "claude-haiku-"),
        AgentKind::Codex => ("gpt-5.5", "gpt-5.5"),
        _ => ("flash", "gemini-"),
    };
    Desk::play(cli, async |desk| {
        let api = ModelApi::start(Script::text("Understood.")).await;
        let done =
            desk.ask(&api, &CallSpec { model: Some(asked.to_owned()), ..desk.spec("Say hello.") }).await;
        let turns = api.turns();
        done.succeeded();
        assert!(turns[0].model().is_some_and(|model| model.starts_with(family)), "{done}");
    });
}

/// A default of ours would one day be a model that the CLI does not know; codex warns about it.
fn unnamed_model_is_the_agents_own_choice(cli: &Pinned) {
    Desk::play(cli, async |desk| {
        let api = ModelApi::start(Script::text("Understood.")).await;
        for model in [None, Some(String::new())] {
            let done = desk.ask(&api, &CallSpec { model, ..desk.spec("Say hello.") }).await;
            done.succeeded();
            assert!(!done.launch.plan.args.iter().any(|word| word.starts_with("--model")), "{done}");
            assert!(!done.launch.plan.env.contains_key("ANTHROPIC_MODEL"), "{done}");
            assert!(!done.stdout.contains("Model metadata for"), "{done}");
            assert!(api.turns().last().unwrap().model().is_some(), "{done}");
        }
    });
}
