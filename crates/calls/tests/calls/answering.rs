//! Answers, their files, and the events of the runs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use calls::{Answer, CallError, CallRequest, Followed, JobStatus, StatusFile, Stream, Until};
use model::{AgentEvent, JobId, StateName, Timestamp};

use crate::harness::{Harness, answered, close, ended, wait_for_line};
use testkit::tests;

tests![
    answer_contains_all_known_facts,
    files_of_a_job_match_its_answer,
    failure_has_a_kind_and_a_hint,
    running_job_is_reported_as_running,
    output_is_readable_in_parts,
    answer_includes_events_on_request,
    job_can_be_followed_at_any_time,
    wait_for_any_returns_the_first_ended_job,
    wait_returns_at_its_timeout,
    unknown_job_is_an_error,
    long_answer_keeps_head_and_tail,
    ended_job_can_be_retried,
    events_beyond_the_limit_are_one_named_gap,
    events_are_cut_like_the_answer,
    answer_includes_events_of_all_runs,
    cut_answer_of_several_runs_names_the_whole,
    secret_on_stderr_is_redacted_in_the_answer,
];

fn answer_contains_all_known_facts() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let answer = answered(&service, harness.request("answer It is done.")).await;
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Completed, "It is done."));
        assert_eq!((answer.exit_code, answer.num_turns), (Some(0), Some(1)));
        assert_eq!(answer.processes, Some(calls::Processes::NoneLeft));
        assert!(answer.session_id.is_some() && answer.usage.is_some() && answer.cost_usd.is_some());
        assert_eq!((answer.error, answer.stderr, answer.note), (None, None, None));
        assert_eq!((answer.task_name.as_str(), answer.agent.as_str()), ("call_cc", "rehearsal"));
        close(&service).await;
    });
}

fn files_of_a_job_match_its_answer() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let answer = answered(&service, harness.request("answer Committed down.")).await;
        // The record is written before the files; the store is authoritative.
        close(&service).await;
        let files = service.files(answer.job_id.parse().unwrap());
        let read = |path| fs::read(path).unwrap();
        let result: Answer = serde_json::from_slice(&read(files.result())).unwrap();
        assert_eq!(result, answer);
        let status: StatusFile = serde_json::from_slice(&read(files.status())).unwrap();
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

fn failure_has_a_kind_and_a_hint() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        for (script, status, kind) in [
            ("fail auth", JobStatus::Failed, "auth"),
            ("say half\ncut", JobStatus::Failed, "invalid_output"),
            ("cut", JobStatus::Failed, "empty_output"),
            ("say half\nexit 3", JobStatus::Failed, "invalid_output"),
            ("fail overloaded", JobStatus::Failed, "overloaded"),
        ] {
            let answer = answered(&service, harness.request(script)).await;
            let error = answer.error.expect(script);
            assert_eq!((answer.status, error.kind.as_str()), (status, kind), "{script}: {error:?}");
            assert!(!error.hint.is_empty());
        }
        let mut slow = harness.request("say half\nhang");
        slow.call.limits.wall = Some(Duration::from_millis(300));
        let answer = answered(&service, slow).await;
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Timeout, "half"));
        assert_eq!(answer.error.unwrap().deadline.as_deref(), Some("wall"));
        close(&service).await;
    });
}

fn running_job_is_reported_as_running() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let job = service.submit(harness.request("say working on it\nhang")).await.unwrap().job;
        wait_for_line(&service, job, "working on it").await;
        let answer = service.answer(job).await.unwrap();
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Running, ""));
        assert!(answer.note.unwrap().contains("working on it"));
        assert!(answer.session_id.is_some(), "the session is known while it runs");
        service.cancel(job).await.unwrap();
        ended(&service, job).await;
        close(&service).await;
    });
}

fn output_is_readable_in_parts() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let answer = answered(&service, harness.request("flood events 1MB\nanswer end")).await;
        let job: JobId = answer.job_id.parse().unwrap();
        let whole = fs::read(&answer.output_file).unwrap();
        let mut parts = Vec::new();
        loop {
            let part = service.output(job, Stream::Output, parts.len() as u64, 100_000).await.unwrap();
            assert_eq!(part.total, whole.len() as u64);
            if part.bytes.is_empty() {
                break;
            }
            parts.extend(part.bytes);
        }
        assert!(parts == whole, "{} bytes of {}", parts.len(), whole.len());
        close(&service).await;
    });
}

fn answer_includes_events_on_request() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let request = harness.request("tool Bash ls => a b\nanswer two files");
        assert_eq!(answered(&service, request.clone()).await.stream_events, None);
        let events =
            answered(&service, CallRequest { expose_stream: true, ..request }).await.stream_events.unwrap();
        let named = |name: &str| events.iter().any(|event| event["event"] == name);
        assert!(named("tool_use") && named("tool_result") && named("finished"), "{events:?}");
        close(&service).await;
    });
}

fn events_beyond_the_limit_are_one_named_gap() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let request = CallRequest {
            expose_stream: true,
            ..harness.request("flood events 4MB\nsay the end\nanswer done")
        };
        let answer = answered(&service, request).await;
        let events = answer.stream_events.as_ref().unwrap();
        assert!(serde_json::to_string(events).unwrap().len() < 2 << 20, "they are bounded");
        assert_eq!(events[0]["event"], "session_started", "the head is there");
        assert_eq!(events.last().unwrap()["event"], "finished", "and so is the tail");
        let truncated = serde_json::to_value(answer.truncated.unwrap()).unwrap();
        assert!(truncated["left_out_events"].as_u64().unwrap() > 0, "{truncated}");
        let gap = usize::try_from(truncated["events_before_gap"].as_u64().unwrap()).unwrap();
        assert!(gap > 0 && gap < events.len(), "{truncated}");
        close(&service).await;
    });
}

fn events_are_cut_like_the_answer() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let request =
            CallRequest { expose_stream: true, ..harness.request("flood events 100KB\nanswer done") };
        let answer = answered(&service, request).await;
        let all = answer.stream_events.as_ref().unwrap().len();
        assert_eq!(answer.truncated, None, "so many are kept");
        let cut = answer.cut_to(10_000);
        let events = cut.stream_events.unwrap();
        let chars: usize = events.iter().map(|event| event.to_string().chars().count()).sum();
        assert!(chars <= 10_000 && !events.is_empty(), "{chars} characters in {} events", events.len());
        assert_eq!(events.last().unwrap()["event"], "finished");
        let truncated = serde_json::to_value(cut.truncated.unwrap()).unwrap();
        assert_eq!(truncated["left_out_events"], all - events.len(), "{truncated}");
        close(&service).await;
    });
}

fn answer_includes_events_of_all_runs() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let script = "say so far\nfail rate-limit Too many requests, try again in 1 seconds";
        let answer = answered(&service, CallRequest { expose_stream: true, ..harness.request(script) }).await;
        let events = answer.stream_events.unwrap();
        let texts: Vec<_> = events.iter().filter(|event| event["event"] == "text").collect();
        assert!(texts.iter().any(|event| event["text"] == "so far"), "the first run is in {texts:?}");
        assert_eq!(events.iter().filter(|event| event["event"] == "finished").count(), 2, "{events:?}");
        close(&service).await;
    });
}

fn cut_answer_of_several_runs_names_the_whole() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let script = format!("say first {}\nmax-turns", "x".repeat(500));
        let answer = answered(&service, harness.request(&script)).await;
        assert_eq!(harness.runs(answer.job_id.parse().unwrap()).len(), 2);
        let cut = answer.clone().cut_to(60);
        let named = cut.output.split_once("is in ").unwrap().1.split_once(" …]").unwrap().0;
        let whole: Answer = serde_json::from_slice(&fs::read(named).unwrap()).unwrap();
        assert_eq!(whole.output, answer.output, "what is named has all of it");
        // The output is in several files, and the answer lists all of them.
        let files = serde_json::to_value(&answer).unwrap()["output_files"].clone();
        let files: Vec<String> = serde_json::from_value(files).unwrap();
        let printed: String = files.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
        let part = service.output(answer.job_id.parse().unwrap(), Stream::Output, 0, 1 << 20).await.unwrap();
        assert_eq!((files.len(), printed.into_bytes()), (2, part.bytes));
        close(&service).await;
    });
}

fn job_can_be_followed_at_any_time() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let job =
            service.submit(harness.request("say one\ndelay 200ms\nsay two\nanswer three")).await.unwrap().job;
        for _ in 0..2 {
            let mut follow = service.follow(job).await.unwrap();
            let (mut texts, mut ends) = (Vec::new(), Vec::new());
            while let Some(told) = follow.next().await.unwrap() {
                match told {
                    Followed::Event(event) => {
                        if let AgentEvent::Text { text, .. } = *event {
                            texts.extend(text.to_string().split_whitespace().map(str::to_owned));
                        }
                    }
                    Followed::Ended(state) => ends.push(state),
                    Followed::Run(number) => assert_eq!(number, 1),
                    Followed::Error(_) | Followed::Waiting(_) => {}
                }
            }
            assert_eq!((texts.join(" ").as_str(), ends), ("one two three", vec![StateName::Completed]));
        }
        close(&service).await;
    });
}

fn wait_for_any_returns_the_first_ended_job() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let slow = service.submit(harness.request("hang")).await.unwrap().job;
        let quick = service.submit(harness.request("answer quick")).await.unwrap().job;
        let ended = service.wait(&[slow, quick], Until::Any, crate::harness::LONG).await.unwrap();
        assert_eq!(ended, [quick]);
        service.cancel(slow).await.unwrap();
        let ended = service.wait(&[slow, quick], Until::All, crate::harness::LONG).await.unwrap();
        assert_eq!(ended, [slow, quick]);
        close(&service).await;
    });
}

fn wait_returns_at_its_timeout() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let job = service.submit(harness.request("hang")).await.unwrap().job;
        let ended = service.wait(&[job], Until::All, Duration::from_millis(50)).await.unwrap();
        assert_eq!(ended, []);
        service.cancel(job).await.unwrap();
        close(&service).await;
    });
}

fn unknown_job_is_an_error() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let unknown = JobId::new(Timestamp::from_millis(1), [7; 10]);
        let is_unknown = |error: &CallError| matches!(error, CallError::NoSuchJob { job } if *job == unknown);
        assert!(is_unknown(&service.wait(&[unknown], Until::All, crate::harness::LONG).await.unwrap_err()));
        assert!(is_unknown(&service.answer(unknown).await.unwrap_err()));
        assert!(is_unknown(&service.cancel(unknown).await.unwrap_err()));
        assert!(is_unknown(&service.output(unknown, Stream::Error, 0, 1).await.unwrap_err()));
        close(&service).await;
    });
}

fn long_answer_keeps_head_and_tail() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let answer =
            answered(&service, harness.request(&format!("answer begin{}end", "x".repeat(5000)))).await;
        assert_eq!(answer.truncated, None);
        let cut = answer.clone().cut_to(100);
        assert!(cut.output.starts_with("begin") && cut.output.ends_with("end"), "{}", cut.output);
        assert_eq!(cut.truncated.unwrap().left_out_chars, 4908);
        let result = service.files(answer.job_id.parse().unwrap()).result();
        assert!(cut.output.contains(result.to_str().unwrap()), "{}", cut.output);
        close(&service).await;
    });
}

fn ended_job_can_be_retried() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let first = answered(&service, harness.request("answer again")).await;
        let second = service.retry(first.job_id.parse().unwrap(), None).await.unwrap().job;
        let answer = ended(&service, second).await;
        assert_eq!((answer.status, answer.output.as_str()), (JobStatus::Completed, "again"));
        assert_ne!(answer.job_id, first.job_id);
        close(&service).await;
    });
}

fn secret_on_stderr_is_redacted_in_the_answer() {
    Harness::run(async |harness| {
        let service = harness.open().await;
        let job = service.submit(harness.request("exit 4")).await.unwrap().job;
        ended(&service, job).await;
        let token = format!("ghp_{}", "a1B2c3D4e5F6".repeat(3));
        let error = harness.state().join(format!("jobs/{job}/runs/1/error"));
        fs::write(error, format!("cannot log in with {token}\n")).unwrap();
        let stderr = service.answer(job).await.unwrap().stderr.unwrap();
        assert!(!stderr.contains(&token) && stderr.contains("[redacted]"), "{stderr}");
        close(&service).await;
    });
}
