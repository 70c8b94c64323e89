//! The server by itself: what it says on the wire, and how it ends.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use model_api::{ApiVendor, Call, ConversationRole, ModelApi, ModelTurn, Purpose, Script};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

const VENDORS: [(ApiVendor, &str); 4] = [
    (ApiVendor::Anthropic, "/v1/messages"),
    (ApiVendor::OpenAi, "/v1/responses"),
    (ApiVendor::OpenAiChat, "/v1/chat/completions"),
    (ApiVendor::Gemini, "/v1beta/models/gemini-test:streamGenerateContent?alt=sse"),
];

async fn send(api: &ModelApi, path: &str, body: &Value) -> TcpStream {
    let address = api.url().strip_prefix("http://").unwrap().to_owned();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let body = body.to_string();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body.as_bytes()).await.unwrap();
    stream
}

async fn post(api: &ModelApi, path: &str, body: &Value) -> String {
    let mut answer = Vec::new();
    // A cut connection is an error after what was said; what was said is what counts here.
    let _ = send(api, path, body).await.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

fn ask(vendor: ApiVendor, prompt: &str) -> Value {
    match vendor {
        ApiVendor::Anthropic => {
            json!({"model": "claude-test", "stream": true, "messages": [{"role": "user", "content": prompt}]})
        }
        ApiVendor::OpenAi => json!({
            "model": "gpt-test", "stream": true,
            "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": prompt}]}],
        }),
        ApiVendor::OpenAiChat => json!({
            "model": "gpt-test", "stream": true, "messages": [{"role": "user", "content": prompt}],
            "tools": [{"type": "function", "function": {"name": "run_shell_command"}}],
        }),
        ApiVendor::Gemini => json!({"contents": [{"role": "user", "parts": [{"text": prompt}]}]}),
    }
}

#[tokio::test]
async fn one_server_serves_all_apis() {
    let api = ModelApi::start(Script::text("hello there")).await;
    for (vendor, path) in VENDORS {
        let answer = post(&api, path, &ask(vendor, "hi")).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{vendor:?}: {answer}");
        assert!(answer.contains("hello ") && answer.contains("there"), "{vendor:?}: {answer}");
        let last = api.requests().pop().unwrap();
        assert_eq!((last.vendor, last.purpose), (Some(vendor), Purpose::ModelTurn));
        assert_eq!(last.says(ConversationRole::User), ["hi"]);
        assert!(last.model().unwrap().ends_with("-test"));
    }
}

#[tokio::test]
async fn turns_are_served_in_order_and_the_last_repeats() {
    let api = ModelApi::start(Script::turns(vec![ModelTurn::text("one"), ModelTurn::text("two")])).await;
    for expected in ["one", "two", "two"] {
        assert!(post(&api, "/v1/messages", &ask(ApiVendor::Anthropic, "next")).await.contains(expected));
    }
}

#[tokio::test]
async fn housekeeping_requests_use_no_turn() {
    let api = ModelApi::start(Script::turns(vec![ModelTurn::text("first"), ModelTurn::text("second")])).await;
    let schema = json!({"type": "OBJECT", "properties": {"complexity_score": {"type": "INTEGER"}}, "required": ["complexity_score"]});
    let route =
        json!({"generationConfig": {"responseMimeType": "application/json", "responseJsonSchema": schema}});
    let routed = post(&api, "/v1beta/models/gemini-test:generateContent", &route).await;
    assert!(routed.contains(r#"{\"complexity_score\":1}"#), "{routed}");
    let quota = json!({"max_tokens": 1, "messages": [{"role": "user", "content": "quota"}]});
    assert!(post(&api, "/v1/messages", &quota).await.starts_with("HTTP/1.1 200"));
    assert!(post(&api, "/v1/messages/count_tokens", &quota).await.contains("input_tokens"));
    assert!(post(&api, "/v1/responses", &ask(ApiVendor::OpenAi, "go")).await.contains("first"));
    assert_eq!(api.requests().len(), 4);
    assert_eq!(api.turns().len(), 1);
}

#[tokio::test]
async fn rejection_uses_each_vendors_format() {
    let expected = [
        (ApiVendor::Anthropic, 401, "authentication_error"),
        (ApiVendor::Anthropic, 403, "permission_error"),
        (ApiVendor::Anthropic, 404, "not_found_error"),
        (ApiVendor::Anthropic, 429, "rate_limit_error"),
        (ApiVendor::Anthropic, 500, "api_error"),
        (ApiVendor::Anthropic, 529, "overloaded_error"),
        (ApiVendor::OpenAi, 401, "invalid_api_key"),
        (ApiVendor::OpenAi, 404, "model_not_found"),
        (ApiVendor::OpenAi, 429, "rate_limit_exceeded"),
        (ApiVendor::OpenAi, 500, "server_error"),
        (ApiVendor::OpenAi, 503, "server_is_overloaded"),
        (ApiVendor::Gemini, 400, "API_KEY_INVALID"),
        (ApiVendor::Gemini, 401, "UNAUTHENTICATED"),
        (ApiVendor::Gemini, 403, "PERMISSION_DENIED"),
        (ApiVendor::Gemini, 404, "NOT_FOUND"),
        (ApiVendor::Gemini, 429, "RESOURCE_EXHAUSTED"),
        (ApiVendor::Gemini, 500, "INTERNAL"),
        (ApiVendor::Gemini, 503, "UNAVAILABLE"),
    ];
    for (vendor, status, words) in expected {
        let api = ModelApi::start(Script::always(ModelTurn::refuse(status))).await;
        let (_, path) = VENDORS.into_iter().find(|(of, _)| *of == vendor).unwrap();
        let answer = post(&api, path, &ask(vendor, "hi")).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{vendor:?} {status}: {answer}");
        assert!(answer.contains(words), "{vendor:?} {status}: {answer}");
        assert!(!answer.contains("retry-after"), "{vendor:?} {status}: {answer}");
    }
}

#[tokio::test]
async fn rate_limit_has_a_retry_after_header() {
    let api = ModelApi::start(Script::always(ModelTurn::rate_limited(Some(Duration::from_secs(7))))).await;
    for (vendor, path) in VENDORS {
        let answer = post(&api, path, &ask(vendor, "hi")).await;
        let told = if vendor == ApiVendor::Gemini { r#""retryDelay":"7s""# } else { "retry-after: 7" };
        assert!(answer.contains(told), "{vendor:?}: {answer}");
    }
}

#[tokio::test]
async fn truncated_reply_closes_after_its_text() {
    let api = ModelApi::start(Script::always(ModelTurn::cut_after("half a"))).await;
    for (vendor, path) in VENDORS {
        let answer = post(&api, path, &ask(vendor, "hi")).await;
        assert!(answer.contains("half "), "{vendor:?}: {answer}");
        assert!(!answer.ends_with("0\r\n\r\n"), "{vendor:?} was ended properly: {answer}");
    }
}

#[tokio::test]
async fn reply_can_hang_before_and_after_its_first_byte() {
    let script = Script::turns(vec![ModelTurn::HangBeforeFirstByte, ModelTurn::hang_after("half")]);
    let api = ModelApi::start(script).await;
    let mut silent = send(&api, "/v1/messages", &ask(ApiVendor::Anthropic, "hi")).await;
    api.turn(0).await;
    let mut byte = [0];
    let short = Duration::from_millis(100);
    assert!(timeout(short, silent.read(&mut byte)).await.is_err());

    let mut half = send(&api, "/v1/messages", &ask(ApiVendor::Anthropic, "hi")).await;
    let mut said = String::new();
    while !said.contains("half") {
        let mut chunk = [0; 4096];
        let read = half.read(&mut chunk).await.unwrap();
        said.push_str(&String::from_utf8_lossy(&chunk[..read]));
    }
    assert!(timeout(short, half.read(&mut byte)).await.is_err());

    drop(api);
    assert_eq!(timeout(Duration::from_secs(5), silent.read(&mut byte)).await.unwrap().unwrap_or(0), 0);
}

#[tokio::test]
async fn dropped_server_closes_its_port() {
    let api = ModelApi::start(Script::text("hello")).await;
    let address = api.url().strip_prefix("http://").unwrap().to_owned();
    assert!(TcpStream::connect(&address).await.is_ok());
    drop(api);
    let closed = async {
        while TcpStream::connect(&address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    assert!(timeout(Duration::from_secs(5), closed).await.is_ok(), "the port is still open");
}

#[tokio::test]
async fn mcp_call_has_each_vendors_tool_name() {
    let call = Call::Mcp { server: "echo".to_owned(), tool: "say".to_owned(), input: json!({"text": "x"}) };
    let api = ModelApi::start(Script::endless(call)).await;
    for (vendor, path) in VENDORS {
        let answer = post(&api, path, &ask(vendor, "hi")).await;
        let name = match vendor {
            ApiVendor::Anthropic | ApiVendor::OpenAiChat => "mcp__echo__say",
            ApiVendor::OpenAi => r#""namespace":"mcp__echo""#,
            ApiVendor::Gemini => "mcp_echo_say",
        };
        assert!(answer.contains(name), "{vendor:?}: {answer}");
    }
}

/// A conversation in which the model has called one tool for the prompt.
fn after_one_tool(vendor: ApiVendor, prompt: &str) -> Value {
    match vendor {
        ApiVendor::Anthropic => json!({"model": "claude-test", "stream": true, "messages": [
            {"role": "user", "content": prompt},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "Bash", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "one"}]},
        ]}),
        ApiVendor::OpenAi => json!({"model": "gpt-test", "stream": true, "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": prompt}]},
            {"type": "function_call", "call_id": "1", "name": "exec_command", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "one"},
        ]}),
        ApiVendor::OpenAiChat => {
            let call = json!({"id": "1", "type": "function", "function": {"name": "run_shell_command", "arguments": "{}"}});
            let mut body = ask(vendor, prompt);
            body["messages"] = json!([
                {"role": "user", "content": prompt},
                {"role": "assistant", "content": null, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "1", "content": "one"},
            ]);
            body
        }
        ApiVendor::Gemini => json!({"contents": [
            {"role": "user", "parts": [{"text": prompt}]},
            {"role": "model", "parts": [{"functionCall": {"name": "run_shell_command", "args": {}}}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "run_shell_command", "response": {"output": "one"}}}]},
        ]}),
    }
}

#[tokio::test]
async fn obey_runs_prompt_steps_in_order() {
    let api = ModelApi::start(Script::obey()).await;
    for (vendor, path) in VENDORS {
        let first = post(&api, path, &ask(vendor, "$ echo first\nAll fine.")).await;
        assert!(first.contains("echo first"), "{vendor:?}: {first}");
        let second = post(&api, path, &after_one_tool(vendor, "$ echo first\n& sleep 9\nAll fine.")).await;
        assert!(second.contains("sleep 9") && !second.contains("echo first"), "{vendor:?}: {second}");
        let last = post(&api, path, &after_one_tool(vendor, "$ echo first\nFine.")).await;
        assert!(last.contains("Fine.") && last.contains("one"), "{vendor:?}: {last}");
    }
}
