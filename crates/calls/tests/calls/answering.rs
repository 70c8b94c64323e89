//! What a caller is told: the answer, its files, the events on the way.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use calls::{Answer, CallError, CallRequest, Followed, JobStatus, Status, Stream, Until};
use model::{AgentEvent, JobId, StateName, Timestamp};

use crate::scene::{Scene, answered, close, ended, until_it_says};
use crate::tests;

tests![
    a_call_is_answered_with_all_that_is_known,
    the_files_of_a_job_say_the_same_as_its_answer,
    a_failure_is_told_with_its_kind_and_a_hint,
    a_running_call_is_told_as_running,
    the_output_is_there_byte_for_byte_and_in_parts,
    the_events_come_with_the_answer_when_asked_for,
    a_job_can_be_followed_while_it_runs_and_afterwards,
    waiting_for_any_ends_with_the_first,
    waiting_ends_with_its_time,
    an_unknown_job_is_an_error_and_not_waited_for,
    a_long_answer_keeps_head_and_tail,
    a_job_is_placed_again,
    of_too_many_events_head_and_tail_are_kept_and_the_gap_is_named,
    events_are_cut_like_the_answer,
    the_events_of_all_runs_come_with_the_answer,
    the_cut_of_an_answer_of_several_runs_names_where_all_of_it_is,
];

fn a_call_is_answered_with_all_that_is_known() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        let answer = answered(&desk, scene.order("answer It is done.")).await;
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Completed, "It is done."));
        assert_eq!((answer.exit_code, answer.num_turns), (Some(0), Some(1)));
        assert_eq!(answer.processes, Some(calls::Processes::NoneLeft));
        assert!(answer.session_id.is_some() && answer.usage.is_some() && answer.cost_usd.is_some());
        assert_eq!((answer.error, answer.stderr, answer.note), (None, None, None));
        assert_eq!((answer.task_name.as_str(), answer.agent.as_str()), ("call_cc", "rehearsal"));
        close(&desk).await;
    });
}

fn the_files_of_a_job_say_the_same_as_its_answer() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        let answer = answered(&desk, scene.order("answer Committed down.")).await;
        // The record comes before the files: the daemon's word is the store's.
        close(&desk).await;
        let files = desk.files(answer.job_id.parse().unwrap());
        let read = |path| fs::read(path).unwrap();
        let result: Answer = serde_json::from_slice(&read(files.result())).unwrap();
        assert_eq!(result, answer);
        let status: Status = serde_json::from_slice(&read(files.status())).unwrap();
        assert_eq!((status.status, status.attempt), (StateName::Completed, 1));
        assert!(status.completed_at_ms >= status.started_at_ms && status.started_at_ms.is_some());
        let output = String::from_utf8(read(files.stream(Stream::Output))).unwrap();
        assert!(output.lines().count() > 2 && output.contains("Committed down."), "{output}");
        assert_eq!(answer.output_file, files.stream(Stream::Output).to_str().unwrap());
        let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(
            (mode(files.directory()), mode(&files.result()), mode(&files.status())),
            (0o700, 0o600, 0o600)
        );
    });
}

fn a_failure_is_told_with_its_kind_and_a_hint() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        for (script, status, kind) in [
            ("fail auth", JobStatus::Failed, "auth"),
            ("say half\ncut", JobStatus::Failed, "invalid_output"),
            ("cut", JobStatus::Failed, "empty_output"),
            ("say half\nexit 3", JobStatus::Failed, "invalid_output"),
            ("fail overloaded", JobStatus::Failed, "overloaded"),
        ] {
            let answer = answered(&desk, scene.order(script)).await;
            let error = answer.error.expect(script);
            assert_eq!((answer.status, error.kind.as_str()), (status, kind), "{script}: {error:?}");
            assert!(!error.hint.is_empty());
        }
        let mut slow = scene.order("say half\nhang");
        slow.call.limits.wall = Some(Duration::from_millis(300));
        let answer = answered(&desk, slow).await;
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Timeout, "half"));
        assert_eq!(answer.error.unwrap().deadline.as_deref(), Some("wall"));
        close(&desk).await;
    });
}

fn a_running_call_is_told_as_running() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        let job = desk.submit(scene.order("say working on it\nhang")).await.unwrap().job;
        until_it_says(&desk, job, "working on it").await;
        let answer = desk.answer(job).await.unwrap();
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Running, ""));
        assert!(answer.note.unwrap().contains("working on it"));
        assert!(answer.session_id.is_some(), "the session is known while it runs");
        desk.cancel(job).await.unwrap();
        ended(&desk, job).await;
        close(&desk).await;
    });
}

fn the_output_is_there_byte_for_byte_and_in_parts() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        let answer = answered(&desk, scene.order("flood events 1MB\nanswer end")).await;
        let job: JobId = answer.job_id.parse().unwrap();
        let whole = fs::read(&answer.output_file).unwrap();
        let mut parts = Vec::new();
        loop {
            let part = desk.output(job, Stream::Output, parts.len() as u64, 100_000).await.unwrap();
            assert_eq!(part.total, whole.len() as u64);
            if part.bytes.is_empty() {
                break;
            }
            parts.extend(part.bytes);
        }
        assert!(parts == whole, "{} bytes of {}", parts.len(), whole.len());
        close(&desk).await;
    });
}

fn the_events_come_with_the_answer_when_asked_for() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        let order = scene.order("tool Bash ls => a b\nanswer two files");
        assert_eq!(answered(&desk, order.clone()).await.stream_events, None);
        let events =
            answered(&desk, CallRequest { expose_stream: true, ..order }).await.stream_events.unwrap();
        let named = |name: &str| events.iter().any(|event| event["event"] == name);
        assert!(named("tool_use") && named("tool_result") && named("finished"), "{events:?}");
        close(&desk).await;
    });
}

fn of_too_many_events_head_and_tail_are_kept_and_the_gap_is_named() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        let order =
            CallRequest { expose_stream: true, ..scene.order("flood events 4MB\nsay the end\nanswer done") };
        let answer = answered(&desk, order).await;
        let events = answer.stream_events.as_ref().unwrap();
        assert!(serde_json::to_string(events).unwrap().len() < 2 << 20, "they are bounded");
        assert_eq!(events[0]["event"], "session_started", "the head is there");
        assert_eq!(events.last().unwrap()["event"], "finished", "and so is the tail");
        let truncated = serde_json::to_value(answer.truncated.unwrap()).unwrap();
        assert!(truncated["left_out_events"].as_u64().unwrap() > 0, "{truncated}");
        let gap = usize::try_from(truncated["events_before_gap"].as_u64().unwrap()).unwrap();
        assert!(gap > 0 && gap < events.len(), "{truncated}");
        close(&desk).await;
    });
}

fn events_are_cut_like_the_answer() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        let order = CallRequest { expose_stream: true, ..scene.order("flood events 100KB\nanswer done") };
        let answer = answered(&desk, order).await;
        let all = answer.stream_events.as_ref().unwrap().len();
        assert_eq!(answer.truncated, None, "so many are kept");
        let cut = answer.cut_to(10_000);
        let events = cut.stream_events.unwrap();
        let chars: usize = events.iter().map(|event| event.to_string().chars().count()).sum();
        assert!(chars <= 10_000 && !events.is_empty(), "{chars} characters in {} events", events.len());
        assert_eq!(events.last().unwrap()["event"], "finished");
        let truncated = serde_json::to_value(cut.truncated.unwrap()).unwrap();
        assert_eq!(truncated["left_out_events"], all - events.len(), "{truncated}");
        close(&desk).await;
    });
}

fn the_events_of_all_runs_come_with_the_answer() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        let script = "say so far\nfail rate-limit Too many requests, try again in 1 seconds";
        let answer = answered(&desk, CallRequest { expose_stream: true, ..scene.order(script) }).await;
        let events = answer.stream_events.unwrap();
        let texts: Vec<_> = events.iter().filter(|event| event["event"] == "text").collect();
        assert!(texts.iter().any(|event| event["text"] == "so far"), "the first run is in {texts:?}");
        assert_eq!(events.iter().filter(|event| event["event"] == "finished").count(), 2, "{events:?}");
        close(&desk).await;
    });
}

fn the_cut_of_an_answer_of_several_runs_names_where_all_of_it_is() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        let script = format!("say first {}\nmax-turns", "x".repeat(500));
        let answer = answered(&desk, scene.order(&script)).await;
        assert_eq!(scene.runs(answer.job_id.parse().unwrap()).len(), 2);
        let cut = answer.clone().cut_to(60);
        let named = cut.output.split_once("is in ").unwrap().1.split_once(" …]").unwrap().0;
        let whole: Answer = serde_json::from_slice(&fs::read(named).unwrap()).unwrap();
        assert_eq!(whole.output, answer.output, "what is named has all of it");
        // What was printed is in several files, and the answer names all of them.
        let files = serde_json::to_value(&answer).unwrap()["output_files"].clone();
        let files: Vec<String> = serde_json::from_value(files).unwrap();
        let printed: String = files.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
        let part = desk.output(answer.job_id.parse().unwrap(), Stream::Output, 0, 1 << 20).await.unwrap();
        assert_eq!((files.len(), printed.into_bytes()), (2, part.bytes));
        close(&desk).await;
    });
}

fn a_job_can_be_followed_while_it_runs_and_afterwards() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        let job = desk.submit(scene.order("say one\ndelay 200ms\nsay two\nanswer three")).await.unwrap().job;
        for _ in 0..2 {
            let mut follow = desk.follow(job).await.unwrap();
            let (mut texts, mut ends) = (Vec::new(), Vec::new());
            while let Some(told) = follow.next().await.unwrap() {
                match told {
                    Followed::Event(event) => {
                        if let AgentEvent::Text { text, .. } = *event {
                            texts.push(text.to_string());
                        }
                    }
                    Followed::Ended(state) => ends.push(state),
                    Followed::Run(number) => assert_eq!(number, 1),
                    Followed::Error(_) | Followed::Waiting(_) => {}
                }
            }
            assert_eq!((texts.join(" ").as_str(), ends), ("one two three", vec![StateName::Completed]));
        }
        close(&desk).await;
    });
}

fn waiting_for_any_ends_with_the_first() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        let slow = desk.submit(scene.order("hang")).await.unwrap().job;
        let quick = desk.submit(scene.order("answer quick")).await.unwrap().job;
        let ended = desk.wait(&[slow, quick], Until::Any, crate::scene::LONG).await.unwrap();
        assert_eq!(ended, [quick]);
        desk.cancel(slow).await.unwrap();
        let ended = desk.wait(&[slow, quick], Until::All, crate::scene::LONG).await.unwrap();
        assert_eq!(ended, [slow, quick]);
        close(&desk).await;
    });
}

fn waiting_ends_with_its_time() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        let job = desk.submit(scene.order("hang")).await.unwrap().job;
        let ended = desk.wait(&[job], Until::All, Duration::from_millis(50)).await.unwrap();
        assert_eq!(ended, []);
        desk.cancel(job).await.unwrap();
        close(&desk).await;
    });
}

fn an_unknown_job_is_an_error_and_not_waited_for() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        let unknown = JobId::new(Timestamp::from_millis(1), [7; 10]);
        let is_unknown = |error: &CallError| matches!(error, CallError::NoSuchJob { job } if *job == unknown);
        assert!(is_unknown(&desk.wait(&[unknown], Until::All, crate::scene::LONG).await.unwrap_err()));
        assert!(is_unknown(&desk.answer(unknown).await.unwrap_err()));
        assert!(is_unknown(&desk.cancel(unknown).await.unwrap_err()));
        assert!(is_unknown(&desk.output(unknown, Stream::Error, 0, 1).await.unwrap_err()));
        close(&desk).await;
    });
}

fn a_long_answer_keeps_head_and_tail() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        let answer = answered(&desk, scene.order(&format!("answer begin{}end", "x".repeat(5000)))).await;
        assert_eq!(answer.truncated, None);
        let cut = answer.clone().cut_to(100);
        assert!(cut.output.starts_with("begin") && cut.output.ends_with("end"), "{}", cut.output);
        assert_eq!(cut.truncated.unwrap().left_out_chars, 4908);
        let result = desk.files(answer.job_id.parse().unwrap()).result();
        assert!(cut.output.contains(result.to_str().unwrap()), "{}", cut.output);
        close(&desk).await;
    });
}

fn a_job_is_placed_again() {
    Scene::play(async |scene| {
        let desk = scene.open().await;
        let first = answered(&desk, scene.order("answer again")).await;
        let second = desk.retry(first.job_id.parse().unwrap(), None).await.unwrap().job;
        let answer = ended(&desk, second).await;
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Completed, "again"));
        assert_ne!(answer.job_id, first.job_id);
        close(&desk).await;
    });
}
