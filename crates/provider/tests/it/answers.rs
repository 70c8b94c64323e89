//! Answers: texts, numbers, events and warnings.

use futures_util::StreamExt;
use provider::{AgentEvent, Context, NO_ANSWER, Provider, Update, Warning};

use crate::harness::Harness;

crate::tests! {
    answer_reports_provider_and_usage,
    requested_model_is_reported_if_agent_reports_none,
    events_precede_the_answer,
    answer_follows_an_unterminated_line,
    request_options_reach_the_agent,
    plain_text_output_becomes_the_answer,
    empty_output_returns_the_placeholder,
    error_without_text_is_named,
    eight_concurrent_requests_are_answered,
}

fn answer_reports_provider_and_usage() {
    Harness::run(async |harness| {
        let provider = harness.provider();
        let prompt = "@rehearse tool Read {\"path\":\"a\"} => text\n@rehearse answer Four.";
        let message = provider.complete(&Context::new(prompt)).await.unwrap();
        let metadata = message.metadata;
        assert_eq!((message.text.as_str(), metadata.provider.as_str()), ("Four.", "rehearsal"));
        assert!(metadata.session_id.is_some() && metadata.tokens.is_some() && metadata.turns.is_some());
        assert!(!metadata.processing_time.is_zero());
        assert_eq!((metadata.resumes, metadata.warnings), (0, vec![]));
        assert!(provider.is_available().await);
        provider.validate_environment().await.unwrap();
    });
}

fn requested_model_is_reported_if_agent_reports_none() {
    Harness::run(async |harness| {
        let result =
            r#"{"type":"result","subtype":"success","is_error":false,"result":"ok","session_id":"s"}"#;
        let provider = harness.provider_with(|config| config.model = Some("opus".to_owned()));
        let message =
            provider.complete(&Context::new(format!("@rehearse raw {result}\n@rehearse cut"))).await.unwrap();
        assert_eq!((message.text.as_str(), message.metadata.model.as_deref()), ("ok", Some("opus")));
    });
}

fn events_precede_the_answer() {
    Harness::run(async |harness| {
        let prompt = "@rehearse say First.\n@rehearse delay 300ms\n@rehearse tool Bash ls => a\n@rehearse answer Last.";
        let mut updates = harness.provider().complete_stream(&Context::new(prompt));
        let mut heard = Vec::new();
        while let Some(update) = updates.next().await {
            heard.push(match update.unwrap() {
                Update::Event(AgentEvent::SessionStarted { .. }) => "session".to_owned(),
                Update::Event(AgentEvent::Text { text, .. }) => {
                    assert!(!harness.spooled().is_empty(), "the run is under way");
                    text.decode().into_owned()
                }
                Update::Event(AgentEvent::ToolUse { name, .. }) => name.decode().into_owned(),
                Update::Event(AgentEvent::Finished { .. }) => "finished".to_owned(),
                Update::Event(_) => continue,
                Update::Resuming { .. } => "resuming".to_owned(),
                Update::Done(message) => {
                    assert!(harness.spooled().is_empty(), "whoever hears the answer finds no file of it");
                    format!("done: {}", message.text)
                }
            });
        }
        assert_eq!(heard, ["session", "First.", "Bash", "Last.", "finished", "done: Last."]);
    });
}

fn answer_follows_an_unterminated_line() {
    Harness::run(async |harness| {
        let steps = "@rehearse answer Four.\n@rehearse garbage unended 20B\n@rehearse exit 0";
        let updates = harness.provider().complete_stream(&Context::new(steps));
        let mut heard: Vec<_> = updates.map(Result::unwrap).collect().await;
        assert!(matches!(heard.pop(), Some(Update::Done(message)) if message.text == "Four."), "{heard:?}");
        assert!(matches!(heard.pop(), Some(Update::Event(AgentEvent::Unreadable { .. }))), "{heard:?}");
    });
}

fn request_options_reach_the_agent() {
    Harness::run(async |harness| {
        let asks = |steps: &str| Context::new(steps.to_owned());
        let provider = harness.provider();
        let text = async |context: Context| provider.complete(&context).await.unwrap().text;
        assert_eq!(text(asks("@rehearse cwd")).await, harness.path("work").to_str().unwrap());
        assert!(text(asks("@rehearse args")).await.contains("--max-turns=25"));
        let environment = text(asks("@rehearse env")).await;
        assert!(environment.contains(harness.path("home").to_str().unwrap()), "{environment}");
        // Variables of this process were not passed on.
        assert!(!environment.contains("CARGO_"), "{environment}");
        let bounded = Context { max_turns: Some(3), allowed_tools: Some(vec![]), ..asks("@rehearse args") };
        let arguments = text(bounded).await;
        assert!(arguments.contains("--max-turns=3") && arguments.contains("\"--tools=\""), "{arguments}");
    });
}

fn plain_text_output_becomes_the_answer() {
    Harness::run(async |harness| {
        let steps = "@rehearse raw Four, I think.\n@rehearse raw Or five.\n@rehearse cut";
        let message = harness.provider().complete(&Context::new(steps)).await.unwrap();
        assert_eq!(message.text, "Four, I think.\nOr five.");
        assert_eq!(message.metadata.warnings, [Warning::NotJson]);
    });
}

fn empty_output_returns_the_placeholder() {
    Harness::run(async |harness| {
        let nothing_printed = "@rehearse close stdout\n@rehearse exit 0";
        let nothing_said = r#"@rehearse raw {"type":"result","subtype":"success","is_error":false,"result":"","session_id":"s"}
@rehearse cut"#;
        for steps in [nothing_printed, nothing_said] {
            let message = harness.provider().complete(&Context::new(steps)).await.unwrap();
            assert_eq!(
                (message.text.as_str(), &*message.metadata.warnings),
                (NO_ANSWER, &[Warning::NoText][..])
            );
        }
    });
}

fn error_without_text_is_named() {
    Harness::run(async |harness| {
        let result =
            r#"{"type":"result","subtype":"error_during_execution","is_error":true,"session_id":"s"}"#;
        let steps = format!("@rehearse raw {result}\n@rehearse exit 1");
        let message = harness.provider().complete(&Context::new(steps)).await.unwrap();
        assert_eq!(message.text, "Error from Claude: error_during_execution");
        let warning = Warning::ErrorWithoutText { message: "error_during_execution".to_owned() };
        assert_eq!(message.metadata.warnings, [warning]);
    });
}

fn eight_concurrent_requests_are_answered() {
    Harness::run(async |harness| {
        let provider = harness.provider();
        let ask = |number: u32| {
            let provider = &provider;
            async move {
                let steps = format!("@rehearse delay 100ms\n@rehearse answer {number}");
                provider.complete(&Context::new(steps)).await.unwrap().text
            }
        };
        let answers = futures_util::future::join_all((0..8).map(ask)).await;
        assert_eq!(answers, ["0", "1", "2", "3", "4", "5", "6", "7"]);
    });
}
