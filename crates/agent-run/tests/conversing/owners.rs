//! Several owners and readers of one conversation.

use agent_run::{RunFollower, RunStep};
use model::AgentEvent;

use crate::Test;
use crate::harness::{ALL, Conversation, LiveProtocol, WITH_OPENING, read_to_end};

pub const TESTS: &[Test] = &[
    ("later_owner_continues_the_conversation", ALL, later_owner_continues_the_conversation),
    ("reader_sends_nothing", WITH_OPENING, reader_sends_nothing),
    ("run_has_one_owner", WITH_OPENING, run_has_one_owner),
];

/// The owner is replaced after every step, as if each had been killed.
fn later_owner_continues_the_conversation(protocol: LiveProtocol) {
    let script = "say One.\ndelay 50ms\ntool Bash ls => x\ndelay 50ms\nanswer Done.";
    let conversation = Conversation::new(protocol, script);
    let ended = conversation.end_with(async |run, patience| {
        loop {
            let mut events = Vec::new();
            let mut follower = RunFollower::new(&run, conversation.agent(), Some(patience)).unwrap();
            // Reads the output from the start again, then the first new one.
            let before = std::fs::metadata(run.spool().output()).unwrap().len();
            loop {
                match follower
                    .next(&mut |event: AgentEvent<'_>| events.push(event.into_owned()))
                    .await
                    .unwrap()
                {
                    RunStep::Ended(end) => return (*end, events),
                    _ if follower.output_read() > before => break,
                    _ => {}
                }
            }
        }
    });
    assert_eq!(ended.answer(), "Done.");
    assert!(ended.sent_once(), "{}", ended.input);
    let calls = ended.events.iter().filter(|event| matches!(event, AgentEvent::ToolUse { .. }));
    assert_eq!(calls.count(), 1);
}

fn reader_sends_nothing(protocol: LiveProtocol) {
    let conversation = Conversation::new(protocol, "answer Done.");
    let ended = conversation.end_with(async |run, patience| {
        let mut reader = RunFollower::new(&run, conversation.agent(), None).unwrap();
        let first = run.spool().input();
        let sent = std::fs::read(&first).unwrap();
        // The reply to `initialize`, which an owner would answer.
        let step = reader.next(&mut |_: AgentEvent<'_>| ()).await.unwrap();
        assert!(matches!(step, RunStep::Output));
        assert_eq!(std::fs::read(&first).unwrap(), sent);
        let mut owner = RunFollower::new(&run, conversation.agent(), Some(patience)).unwrap();
        let (mut events, mut read) = (Vec::new(), Vec::new());
        let end = read_to_end(&mut owner, &mut events).await;
        let same = read_to_end(&mut reader, &mut read).await;
        assert_eq!(same.summary.text(), end.summary.text());
        (end, events)
    });
    assert_eq!(ended.answer(), "Done.");
    assert!(ended.sent_once(), "{}", ended.input);
}

fn run_has_one_owner(protocol: LiveProtocol) {
    let conversation = Conversation::new(protocol, "answer Done.");
    let ended = conversation.end_with(async |run, patience| {
        let mut owner = RunFollower::new(&run, conversation.agent(), Some(patience)).unwrap();
        let second = RunFollower::new(&run, conversation.agent(), Some(patience)).unwrap_err();
        assert_eq!(second.kind(), std::io::ErrorKind::ResourceBusy);
        let mut events = Vec::new();
        (read_to_end(&mut owner, &mut events).await, events)
    });
    assert_eq!(ended.answer(), "Done.");
}
