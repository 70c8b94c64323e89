//! What is said to the model: the prompt as it stands, the system prompt, the model's own name.

use model::{AgentKind, CallSpec};
use model_api::{ModelApi, Role, Script};

use crate::desk::Desk;
use crate::pinned::Pinned;

crate::scenarios! {
    a_prompt_that_looks_like_a_flag_is_text;
    a_prompt_that_looks_like_a_command_is_text;
    a_prompt_of_a_megabyte_arrives_whole;
    the_system_prompt_reaches_the_model;
    the_model_is_asked_for_by_its_full_name;
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

fn the_model_is_asked_for_by_its_full_name(cli: &Pinned) {
    let (asked, full) = match cli.kind {
        AgentKind::Claude => ("Haiku", "claude-haiku-4-5"),
        AgentKind::Codex => ("codex", "gpt-5.2-codex"),
        // Gemini's aliases are its own to resolve.
        _ => ("gemini-2.5-flash", "gemini-2.5-flash"),
    };
    Desk::play(cli, async |desk| {
        let api = ModelApi::start(Script::text("Understood.")).await;
        let done =
            desk.ask(&api, &CallSpec { model: Some(asked.to_owned()), ..desk.spec("Say hello.") }).await;
        assert_eq!(done.succeeded().model.as_deref(), Some(full), "{done}");
        assert_eq!(api.turns()[0].model(), Some(full), "{done}");
    });
}
