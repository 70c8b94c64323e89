//! Streamable HTTP: access checks, limits and calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http_listener::BearerToken;
use mcp_server::http::{self, HttpAccess};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::harness::McpHarness;

testkit::tests![
    request_without_token_is_unauthorized,
    authenticated_request_counts_as_activity,
    unknown_host_or_origin_is_forbidden,
    allowed_origin_gets_cors_headers,
    call_over_http_returns_answer_and_progress,
    newest_revision_needs_no_session,
    broken_connection_does_not_cancel_the_job,
    open_call_is_answered_at_shutdown,
    deleted_session_does_not_cancel_its_job,
    half_sent_request_does_not_delay_shutdown,
    cancelled_http_request_cancels_its_job,
    oversized_body_is_rejected_in_json,
    malformed_http_request_is_rejected_in_json,
    unix_socket_is_served,
];

/// A server over HTTP, with its address and token.
pub struct HttpFixture {
    pub address: std::net::SocketAddr,
    pub token: String,
    requests: Arc<AtomicU64>,
}

impl HttpFixture {
    pub async fn serve(harness: &McpHarness) -> Self {
        Self::serve_with(harness, |_| {}).await
    }

    pub async fn serve_with(harness: &McpHarness, limit: impl FnOnce(&mut http::ClientLimits)) -> Self {
        let token = BearerToken::load_or_create(&harness.directory.path().join("token")).unwrap();
        let value = token.reveal().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (service, options) = (harness.service.clone(), Arc::clone(&harness.options));
        let requests = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&requests);
        let on_request = move || {
            count.fetch_add(1, Ordering::SeqCst);
        };
        let mut access = HttpAccess::loopback(token);
        limit(&mut access.limits);
        let served = http::serve(listener, service, options, access, harness.shutdown.clone(), on_request);
        harness.served.lock().await.spawn(served);
        Self { address, token: value, requests }
    }

    /// Returns a request with default headers, overridden by the given ones.
    pub fn request(&self, headers: &[(&str, &str)], body: &str) -> String {
        let host = self.address.to_string();
        let authorization = format!("Bearer {}", self.token);
        let usual = [
            ("Host", host.as_str()),
            ("Authorization", authorization.as_str()),
            ("Content-Type", "application/json"),
            ("Accept", "application/json, text/event-stream"),
            ("Connection", "close"),
        ];
        let usual =
            usual.iter().filter(|(name, _)| !headers.iter().any(|(own, _)| own.eq_ignore_ascii_case(name)));
        let given = usual.chain(headers).filter(|(_, value)| !value.is_empty());
        let lines = given.map(|(name, value)| format!("{name}: {value}\r\n")).collect::<Vec<_>>().concat();
        let length = format!("Content-Length: {}\r\n", body.len());
        let length = if lines.contains("Content-Length") { "" } else { &length };
        format!("POST /mcp HTTP/1.1\r\n{lines}{length}\r\n{body}")
    }

    pub async fn post(&self, headers: &[(&str, &str)], body: &Value) -> Reply {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(self.request(headers, &body.to_string()).as_bytes()).await.unwrap();
        Reply::read(stream).await
    }

    /// Opens a session and returns its id.
    pub async fn session(&self) -> String {
        let reply = self.post(&[], &initialize_request()).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        let session = reply.header("mcp-session-id").unwrap();
        let done = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        self.post(&[("Mcp-Session-Id", &session)], &done).await;
        session
    }
}

/// A response, as received.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    head: String,
    pub body: String,
}

impl Reply {
    async fn read(mut stream: TcpStream) -> Self {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.unwrap();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).unwrap_or_else(|| panic!("{text}")).parse().unwrap();
        Self { status, head: head.to_owned(), body: body.to_owned() }
    }

    pub fn header(&self, name: &str) -> Option<String> {
        self.head.lines().find_map(|line| {
            let (own, value) = line.split_once(": ")?;
            own.eq_ignore_ascii_case(name).then(|| value.to_owned())
        })
    }

    /// Returns its messages: one object, or the data of its events. Chunk sizes are separate lines.
    pub fn messages(&self) -> Vec<Value> {
        let lines = self.body.lines().map(|line| line.strip_prefix("data:").unwrap_or(line).trim());
        lines.filter_map(|line| serde_json::from_str(line).ok()).filter(Value::is_object).collect()
    }

    pub fn error(&self) -> String {
        let body: Value =
            serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"));
        body["error"]["message"].as_str().unwrap_or_else(|| panic!("{self:?}")).to_owned()
    }
}

pub fn initialize_request() -> Value {
    json!({
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": { "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } },
    })
}

fn call(id: u64, arguments: &Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": { "name": "call_rehearsal", "arguments": arguments } })
}

fn request_without_token_is_unauthorized() {
    McpHarness::run(async |harness| {
        let server = HttpFixture::serve(harness).await;
        for wrong in ["", "Bearer", "Bearer x", "Basic x", &format!("Bearer {}x", server.token)] {
            let reply = server.post(&[("Authorization", wrong)], &initialize_request()).await;
            assert_eq!(reply.status, 401, "{wrong}: {reply:?}");
            assert_eq!(reply.header("www-authenticate").as_deref(), Some("Bearer"));
            assert!(reply.error().contains("token") && !reply.body.contains(&server.token), "{reply:?}");
        }
        assert_eq!(server.post(&[], &initialize_request()).await.status, 200);
    });
}

fn authenticated_request_counts_as_activity() {
    McpHarness::run(async |harness| {
        let server = HttpFixture::serve(harness).await;
        server.post(&[("Authorization", "Bearer x")], &initialize_request()).await;
        assert_eq!(
            server.requests.load(Ordering::SeqCst),
            0,
            "a request without the token does not postpone an idle stop"
        );
        server.post(&[], &initialize_request()).await;
        assert_eq!(server.requests.load(Ordering::SeqCst), 1);
    });
}

fn unknown_host_or_origin_is_forbidden() {
    McpHarness::run(async |harness| {
        let server = HttpFixture::serve(harness).await;
        for (name, value) in [
            ("Host", "evil.example"),
            ("Host", "127.0.0.1.evil.example"),
            ("Origin", "https://evil.example"),
            ("Origin", "https://localhost.evil.example"),
            ("Origin", "http://localhost:80@evil.example"),
            ("Origin", "null"),
        ] {
            let reply = server.post(&[(name, value)], &initialize_request()).await;
            assert_eq!(reply.status, 403, "{name}: {value}: {reply:?}");
            assert!(reply.error().contains(name), "{reply:?}");
            let key = if name == "Host" { "`http.allowed_hosts`" } else { "`http.allowed_origins`" };
            assert!(
                reply.error().contains(&format!("`{value}`")) && reply.error().contains(key),
                "{reply:?}"
            );
        }
        for (name, value) in
            [("Host", "localhost:1"), ("Origin", "http://localhost:3000"), ("Origin", "http://[::1]:1")]
        {
            assert_eq!(
                server.post(&[(name, value)], &initialize_request()).await.status,
                200,
                "{name}: {value}"
            );
        }
    });
}

fn allowed_origin_gets_cors_headers() {
    McpHarness::run(async |harness| {
        let server = HttpFixture::serve(harness).await;
        // The preflight request of a browser, without the token.
        let preflight = async |origin: &str| {
            let requested = "authorization,content-type,mcp-protocol-version";
            let headers = [
                ("Origin", origin),
                ("Authorization", ""),
                ("Access-Control-Request-Method", "POST"),
                ("Access-Control-Request-Headers", requested),
            ];
            let request = server.request(&headers, "").replace("POST /mcp", "OPTIONS /mcp");
            let mut stream = TcpStream::connect(server.address).await.unwrap();
            stream.write_all(request.as_bytes()).await.unwrap();
            (Reply::read(stream).await, requested)
        };
        let (reply, requested) = preflight("http://localhost:3000").await;
        assert_eq!(reply.status, 204, "{reply:?}");
        let header = |name: &str| reply.header(name).unwrap_or_else(|| panic!("{name}: {reply:?}"));
        assert_eq!(header("access-control-allow-origin"), "http://localhost:3000");
        assert_eq!(header("access-control-allow-headers"), requested);
        assert!(header("access-control-allow-methods").contains("DELETE"));
        assert_eq!(server.requests.load(Ordering::SeqCst), 0, "a preflight request does not count");
        let (reply, _) = preflight("https://evil.example").await;
        assert_eq!((reply.status, reply.header("access-control-allow-origin")), (401, None), "{reply:?}");

        let reply = server.post(&[("Origin", "http://localhost:3000")], &initialize_request()).await;
        assert_eq!(reply.header("access-control-allow-origin").as_deref(), Some("http://localhost:3000"));
        assert!(
            reply.header("access-control-expose-headers").unwrap().contains("mcp-session-id"),
            "{reply:?}"
        );
        for headers in [&[("Origin", "https://evil.example")][..], &[]] {
            let reply = server.post(headers, &initialize_request()).await;
            assert_eq!(reply.header("access-control-allow-origin"), None, "{reply:?}");
        }
    });
}

fn call_over_http_returns_answer_and_progress() {
    McpHarness::run(async |harness| {
        let server = HttpFixture::serve(harness).await;
        let session = server.session().await;
        let mut request = call(
            2,
            &json!({ "prompt": "@rehearse say on it\n@rehearse delay 500ms\n@rehearse answer done", "cwd": harness.work() }),
        );
        request["params"]["_meta"] = json!({ "progressToken": "p" });
        let reply = server
            .post(&[("Mcp-Session-Id", &session), ("MCP-Protocol-Version", "2025-11-25")], &request)
            .await;
        let messages = reply.messages();
        let answer =
            &messages.iter().find(|message| message["id"] == 2).unwrap()["result"]["structuredContent"];
        assert_eq!(
            (&answer["status"], &answer["output"]),
            (&json!("completed"), &json!("done")),
            "{reply:?}"
        );
        assert!(messages.iter().any(|message| message["params"]["message"] == "on it"), "{messages:?}");
        // A client over HTTP has no working directory.
        let reply = server.post(&[("Mcp-Session-Id", &session)], &call(3, &json!({ "prompt": "x" }))).await;
        let result = &reply.messages()[0]["result"];
        assert_eq!(
            (&result["isError"], &result["_meta"]["switchboard/error"]["field"]),
            (&json!(true), &json!("cwd")),
            "{reply:?}"
        );
    });
}

/// Returns a call in the format of revision 2026-07-28.
fn newest_revision_call(arguments: &Value) -> (Vec<(&'static str, &'static str)>, Value) {
    let mut request = call(5, arguments);
    request["params"]["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": { "name": "t", "version": "1" },
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let headers = vec![
        ("MCP-Protocol-Version", "2026-07-28"),
        ("Mcp-Method", "tools/call"),
        ("Mcp-Name", "call_rehearsal"),
    ];
    (headers, request)
}

fn newest_revision_needs_no_session() {
    McpHarness::run(async |harness| {
        let server = HttpFixture::serve(harness).await;
        let (headers, request) = newest_revision_call(&json!({ "prompt": "Hello", "cwd": harness.work() }));
        let reply = server.post(&headers, &request).await;
        assert_eq!(
            reply.messages()[0]["result"]["structuredContent"]["output"],
            "You said: Hello",
            "{reply:?}"
        );
    });
}

/// Sends a call and waits for the first output of its agent.
async fn start_call(harness: &McpHarness, request: String) -> (TcpStream, model::JobId) {
    let mut stream = TcpStream::connect(request_address(&request)).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    loop {
        let jobs = harness
            .service
            .list(&calls::JobFilter::default(), calls::PageRequest::default())
            .await
            .unwrap()
            .jobs;
        if let Some(job) = jobs.first()
            && harness.service.activity(job.id).is_some_and(|activity| activity.borrow().line == "on it")
        {
            return (stream, job.id);
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

fn request_address(request: &str) -> String {
    request.lines().find_map(|line| line.strip_prefix("Host: ")).unwrap().to_owned()
}

fn broken_connection_does_not_cancel_the_job() {
    McpHarness::run(async |harness| {
        let server = HttpFixture::serve(harness).await;
        let arguments = json!({ "prompt": "@rehearse say on it\n@rehearse delay 1s\n@rehearse answer done", "cwd": harness.work() });
        let (headers, request) = newest_revision_call(&arguments);
        let (stream, job) = start_call(harness, server.request(&headers, &request.to_string())).await;
        drop(stream);
        harness.service.wait(&[job], calls::Until::All, testkit::LONGEST_WAIT).await.unwrap();
        assert_eq!(
            harness.service.job(job).await.unwrap().progress.state.name(),
            model::StateName::Completed
        );
    });
}

fn open_call_is_answered_at_shutdown() {
    for with_session in [true, false] {
        McpHarness::run(async |harness| {
            let server = HttpFixture::serve(harness).await;
            let session = server.session().await;
            let arguments = json!({ "prompt": "@rehearse say on it\n@rehearse hang", "cwd": harness.work() });
            let text = if with_session {
                server.request(&[("Mcp-Session-Id", session.as_str())], &call(9, &arguments).to_string())
            } else {
                let (headers, request) = newest_revision_call(&arguments);
                server.request(&headers, &request.to_string())
            };
            let (stream, job) = start_call(harness, text).await;
            harness.shutdown.cancel();
            let reply = Reply::read(stream).await;
            let mut answers = reply.messages().into_iter().filter(|message| message.get("result").is_some());
            let answer = answers.next_back().unwrap_or_else(|| panic!("no answer: {reply:?}"));
            let content = &answer["result"]["structuredContent"];
            assert_eq!(content["job_id"], json!(job.to_string()), "{answer}");
            assert_eq!(content["status"], "running", "{answer}");
            harness.service.cancel(job).await.unwrap();
        });
    }
}

fn deleted_session_does_not_cancel_its_job() {
    McpHarness::run(async |harness| {
        let server = HttpFixture::serve(harness).await;
        let session = server.session().await;
        let headers = [("Mcp-Session-Id", session.as_str())];
        // Longer than the 5 s for which rmcp waits for handlers when a session ends.
        let prompt = "@rehearse say on it\n@rehearse delay 8s\n@rehearse answer done";
        let request = call(9, &json!({ "prompt": prompt, "cwd": harness.work() }));
        let (_stream, job) = start_call(harness, server.request(&headers, &request.to_string())).await;
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let delete = server.request(&headers, "").replace("POST /mcp", "DELETE /mcp");
        stream.write_all(delete.as_bytes()).await.unwrap();
        let reply = Reply::read(stream).await;
        assert!((200..300).contains(&reply.status), "{reply:?}");
        harness.service.wait(&[job], calls::Until::All, testkit::LONGEST_WAIT).await.unwrap();
        assert_eq!(
            harness.service.job(job).await.unwrap().progress.state.name(),
            model::StateName::Completed
        );
    });
}

fn half_sent_request_does_not_delay_shutdown() {
    McpHarness::run(async |harness| {
        let server = HttpFixture::serve(harness).await;
        // No token, and no end of the headers.
        let mut stuck = TcpStream::connect(server.address).await.unwrap();
        stuck.write_all(b"POST /mcp HTTP/1.1\r\nHost: x\r\n").await.unwrap();
        // A later connection is served, so the first one was accepted.
        server.session().await;
        harness.shutdown.cancel();
        harness.served.lock().await.join_next().await.unwrap().unwrap();
        drop(stuck);
    });
}

fn cancelled_http_request_cancels_its_job() {
    McpHarness::run(async |harness| {
        let server = HttpFixture::serve(harness).await;
        let session = server.session().await;
        let headers = [("Mcp-Session-Id", session.as_str())];
        let request =
            call(9, &json!({ "prompt": "@rehearse say on it\n@rehearse hang", "cwd": harness.work() }));
        let (_stream, job) = start_call(harness, server.request(&headers, &request.to_string())).await;
        let cancel =
            json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 9 } });
        server.post(&headers, &cancel).await;
        harness.service.wait(&[job], calls::Until::All, testkit::LONGEST_WAIT).await.unwrap();
        assert_eq!(
            harness.service.job(job).await.unwrap().progress.state.name(),
            model::StateName::Cancelled
        );
    });
}

fn oversized_body_is_rejected_in_json() {
    McpHarness::run(async |harness| {
        let server = HttpFixture::serve(harness).await;
        let session = server.session().await;
        let request = call(2, &json!({ "prompt": "x".repeat(50_000_000), "cwd": harness.work() }));
        let reply = server.post(&[("Mcp-Session-Id", &session)], &request).await;
        assert_eq!(reply.status, 413, "{}", reply.head);
        assert!(reply.error().contains("`prompt`") && reply.error().contains("into a file"), "{reply:?}");
        assert_eq!(harness.job_count().await, 0);
        assert_eq!(server.post(&[], &initialize_request()).await.status, 200);
    });
}

fn malformed_http_request_is_rejected_in_json() {
    McpHarness::run(async |harness| {
        let server = HttpFixture::serve(harness).await;
        for (headers, body) in [
            (vec![], "{"),
            (vec![], "{\"foo\":1}"),
            (vec![("Content-Type", "text/plain")], "{}"),
            (vec![("Accept", "text/html")], "{}"),
            (vec![("Mcp-Session-Id", "made-up")], "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/list\"}"),
        ] {
            let mut stream = TcpStream::connect(server.address).await.unwrap();
            stream.write_all(server.request(&headers, body).as_bytes()).await.unwrap();
            let reply = Reply::read(stream).await;
            assert!((400..500).contains(&reply.status), "{reply:?}");
            assert!(!reply.error().is_empty());
        }
        let session = server.session().await;
        for id in [json!(1.5), json!(null), json!([7])] {
            let request = json!({ "jsonrpc": "2.0", "id": id, "method": "ping" });
            let reply = server.post(&[("Mcp-Session-Id", &session)], &request).await;
            assert_eq!(reply.status, 400, "{reply:?}");
            assert!(reply.error().contains("a string or an integer"), "{reply:?}");
        }
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let request = server.request(&[], "{}").replace("POST /mcp", "POST /other");
        stream.write_all(request.as_bytes()).await.unwrap();
        let reply = Reply::read(stream).await;
        assert!(reply.status == 404 && reply.error().contains("/mcp"), "{reply:?}");
    });
}

fn unix_socket_is_served() {
    McpHarness::run(async |harness| {
        let path = harness.directory.path().join("socket");
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        let here = tokio::net::UnixStream::connect(&path).await.unwrap();
        let (there, _) = listener.accept().await.unwrap();
        harness.serve(there).await;
        let mut client = crate::client::Client::new(here);
        client.initialize().await;
        let answer = client.call_tool_ok("call_rehearsal", json!({ "prompt": "Hello" })).await;
        assert_eq!(answer["output"], "You said: Hello");
    });
}
