//! Streamable HTTP: who may come in, what is bounded, and that a call is the same there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use switchboard::mcp::http::{self, Gate, Token};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::scene::Scene;

crate::tests![
    only_the_token_opens_the_door,
    who_is_let_in_counts_as_asking,
    only_named_hosts_and_origins_come_in,
    a_page_of_a_named_origin_can_use_it_from_a_browser,
    a_call_over_http_is_the_same_call,
    a_call_of_the_newest_revision_needs_no_session,
    a_connection_that_breaks_ends_no_job,
    a_call_that_is_open_when_the_daemon_ends_is_answered_with_its_job,
    a_session_that_its_client_deletes_ends_no_job,
    a_client_that_is_stuck_in_its_request_does_not_hold_the_daemon,
    a_cancelled_request_over_http_cancels_its_job,
    too_much_is_refused_in_json,
    what_cannot_be_read_is_refused_in_json,
    the_socket_speaks_too,
];

/// A server over HTTP.
pub struct Door {
    pub address: std::net::SocketAddr,
    pub token: String,
    asked: Arc<AtomicU64>,
}

impl Door {
    pub async fn open(scene: &Scene) -> Self {
        Self::open_with(scene, |_| {}).await
    }

    pub async fn open_with(scene: &Scene, limit: impl FnOnce(&mut http::ClientLimits)) -> Self {
        let token = Token::in_file(&scene.folder.path().join("token")).unwrap();
        let word = token.reveal().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (desk, options) = (scene.desk.clone(), Arc::clone(&scene.options));
        let asked = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&asked);
        let ask = move || {
            count.fetch_add(1, Ordering::SeqCst);
        };
        let mut gate = Gate::loopback(token);
        limit(&mut gate.limits);
        let served = http::serve(listener, desk, options, gate, scene.shutdown.clone(), ask);
        scene.served.lock().await.spawn(served);
        Self { address, token: word, asked }
    }

    /// A request with these headers beside the usual ones; one that is given twice is given as it is here.
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

    /// A session of a client of today: its id.
    pub async fn session(&self) -> String {
        let reply = self.post(&[], &introduction()).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        let session = reply.header("mcp-session-id").unwrap();
        let done = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        self.post(&[("Mcp-Session-Id", &session)], &done).await;
        session
    }
}

/// A response, as it came over the wire.
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

    /// The messages in it: one object, or the data of its events. Chunk sizes stand on lines of their own.
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

pub fn introduction() -> Value {
    json!({
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": { "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } },
    })
}

fn call(id: u64, arguments: &Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": { "name": "call_rehearsal", "arguments": arguments } })
}

fn only_the_token_opens_the_door() {
    Scene::play(async |scene| {
        let door = Door::open(scene).await;
        for wrong in ["", "Bearer", "Bearer x", "Basic x", &format!("Bearer {}x", door.token)] {
            let reply = door.post(&[("Authorization", wrong)], &introduction()).await;
            assert_eq!(reply.status, 401, "{wrong}: {reply:?}");
            assert_eq!(reply.header("www-authenticate").as_deref(), Some("Bearer"));
            assert!(reply.error().contains("token") && !reply.body.contains(&door.token), "{reply:?}");
        }
        assert_eq!(door.post(&[], &introduction()).await.status, 200);
    });
}

fn who_is_let_in_counts_as_asking() {
    Scene::play(async |scene| {
        let door = Door::open(scene).await;
        door.post(&[("Authorization", "Bearer x")], &introduction()).await;
        assert_eq!(
            door.asked.load(Ordering::SeqCst),
            0,
            "nobody keeps a daemon from ending without the token"
        );
        door.post(&[], &introduction()).await;
        assert_eq!(door.asked.load(Ordering::SeqCst), 1);
    });
}

fn only_named_hosts_and_origins_come_in() {
    Scene::play(async |scene| {
        let door = Door::open(scene).await;
        for (name, value) in [
            ("Host", "evil.example"),
            ("Host", "127.0.0.1.evil.example"),
            ("Origin", "https://evil.example"),
            ("Origin", "https://localhost.evil.example"),
            ("Origin", "http://localhost:80@evil.example"),
            ("Origin", "null"),
        ] {
            let reply = door.post(&[(name, value)], &introduction()).await;
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
            assert_eq!(door.post(&[(name, value)], &introduction()).await.status, 200, "{name}: {value}");
        }
    });
}

fn a_page_of_a_named_origin_can_use_it_from_a_browser() {
    Scene::play(async |scene| {
        let door = Door::open(scene).await;
        // What a browser asks before it sends the page's request, without the token.
        let ask_first = async |origin: &str| {
            let wanted = "authorization,content-type,mcp-protocol-version";
            let headers = [
                ("Origin", origin),
                ("Authorization", ""),
                ("Access-Control-Request-Method", "POST"),
                ("Access-Control-Request-Headers", wanted),
            ];
            let request = door.request(&headers, "").replace("POST /mcp", "OPTIONS /mcp");
            let mut stream = TcpStream::connect(door.address).await.unwrap();
            stream.write_all(request.as_bytes()).await.unwrap();
            (Reply::read(stream).await, wanted)
        };
        let (reply, wanted) = ask_first("http://localhost:3000").await;
        assert_eq!(reply.status, 204, "{reply:?}");
        let header = |name: &str| reply.header(name).unwrap_or_else(|| panic!("{name}: {reply:?}"));
        assert_eq!(header("access-control-allow-origin"), "http://localhost:3000");
        assert_eq!(header("access-control-allow-headers"), wanted);
        assert!(header("access-control-allow-methods").contains("DELETE"));
        assert_eq!(door.asked.load(Ordering::SeqCst), 0, "that is not yet a request");
        let (reply, _) = ask_first("https://evil.example").await;
        assert_eq!((reply.status, reply.header("access-control-allow-origin")), (401, None), "{reply:?}");

        let reply = door.post(&[("Origin", "http://localhost:3000")], &introduction()).await;
        assert_eq!(reply.header("access-control-allow-origin").as_deref(), Some("http://localhost:3000"));
        assert!(
            reply.header("access-control-expose-headers").unwrap().contains("mcp-session-id"),
            "{reply:?}"
        );
        for headers in [&[("Origin", "https://evil.example")][..], &[]] {
            let reply = door.post(headers, &introduction()).await;
            assert_eq!(reply.header("access-control-allow-origin"), None, "{reply:?}");
        }
    });
}

fn a_call_over_http_is_the_same_call() {
    Scene::play(async |scene| {
        let door = Door::open(scene).await;
        let session = door.session().await;
        let mut request = call(
            2,
            &json!({ "prompt": "@rehearse say on it\n@rehearse delay 500ms\n@rehearse answer done", "cwd": scene.work() }),
        );
        request["params"]["_meta"] = json!({ "progressToken": "p" });
        let reply = door
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
        // Nobody knows where a client over HTTP is.
        let reply = door.post(&[("Mcp-Session-Id", &session)], &call(3, &json!({ "prompt": "x" }))).await;
        let result = &reply.messages()[0]["result"];
        assert_eq!(
            (&result["isError"], &result["_meta"]["switchboard/error"]["field"]),
            (&json!(true), &json!("cwd")),
            "{reply:?}"
        );
    });
}

/// A call as the revision 2026-07-28 sends it.
fn newest(arguments: &Value) -> (Vec<(&'static str, &'static str)>, Value) {
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

fn a_call_of_the_newest_revision_needs_no_session() {
    Scene::play(async |scene| {
        let door = Door::open(scene).await;
        let (headers, request) = newest(&json!({ "prompt": "Hello", "cwd": scene.work() }));
        let reply = door.post(&headers, &request).await;
        assert_eq!(
            reply.messages()[0]["result"]["structuredContent"]["output"],
            "You said: Hello",
            "{reply:?}"
        );
    });
}

/// Begins a call that hangs, and waits until its agent has said something.
async fn begin(scene: &Scene, request: String) -> (TcpStream, model::JobId) {
    let mut stream = TcpStream::connect(request_address(&request)).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    loop {
        let jobs =
            scene.desk.list(&calls::JobFilter::default(), calls::PageRequest::default()).await.unwrap().jobs;
        if let Some(job) = jobs.first()
            && scene.desk.activity(job.id).is_some_and(|activity| activity.borrow().line == "on it")
        {
            return (stream, job.id);
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

fn request_address(request: &str) -> String {
    request.lines().find_map(|line| line.strip_prefix("Host: ")).unwrap().to_owned()
}

fn a_connection_that_breaks_ends_no_job() {
    Scene::play(async |scene| {
        let door = Door::open(scene).await;
        let arguments = json!({ "prompt": "@rehearse say on it\n@rehearse delay 1s\n@rehearse answer done", "cwd": scene.work() });
        let (headers, request) = newest(&arguments);
        let (stream, job) = begin(scene, door.request(&headers, &request.to_string())).await;
        drop(stream);
        scene.desk.wait(&[job], calls::Until::All, crate::scene::LONG).await.unwrap();
        assert_eq!(scene.desk.job(job).await.unwrap().progress.state.name(), model::StateName::Completed);
    });
}

fn a_call_that_is_open_when_the_daemon_ends_is_answered_with_its_job() {
    for with_session in [true, false] {
        Scene::play(async |scene| {
            let door = Door::open(scene).await;
            let session = door.session().await;
            let arguments = json!({ "prompt": "@rehearse say on it\n@rehearse hang", "cwd": scene.work() });
            let text = if with_session {
                door.request(&[("Mcp-Session-Id", session.as_str())], &call(9, &arguments).to_string())
            } else {
                let (headers, request) = newest(&arguments);
                door.request(&headers, &request.to_string())
            };
            let (stream, job) = begin(scene, text).await;
            scene.shutdown.cancel();
            let reply = Reply::read(stream).await;
            let mut answers = reply.messages().into_iter().filter(|message| message.get("result").is_some());
            let answer = answers.next_back().unwrap_or_else(|| panic!("no answer: {reply:?}"));
            let told = &answer["result"]["structuredContent"];
            assert_eq!(told["job_id"], json!(job.to_string()), "{answer}");
            assert_eq!(told["status"], "running", "{answer}");
            scene.desk.cancel(job).await.unwrap();
        });
    }
}

fn a_session_that_its_client_deletes_ends_no_job() {
    Scene::play(async |scene| {
        let door = Door::open(scene).await;
        let session = door.session().await;
        let headers = [("Mcp-Session-Id", session.as_str())];
        // Longer than rmcp waits, at the end of a session, for those who still work on an answer: 5 s.
        let prompt = "@rehearse say on it\n@rehearse delay 8s\n@rehearse answer done";
        let request = call(9, &json!({ "prompt": prompt, "cwd": scene.work() }));
        let (_stream, job) = begin(scene, door.request(&headers, &request.to_string())).await;
        let mut stream = TcpStream::connect(door.address).await.unwrap();
        let delete = door.request(&headers, "").replace("POST /mcp", "DELETE /mcp");
        stream.write_all(delete.as_bytes()).await.unwrap();
        let reply = Reply::read(stream).await;
        assert!((200..300).contains(&reply.status), "{reply:?}");
        scene.desk.wait(&[job], calls::Until::All, crate::scene::LONG).await.unwrap();
        assert_eq!(scene.desk.job(job).await.unwrap().progress.state.name(), model::StateName::Completed);
    });
}

fn a_client_that_is_stuck_in_its_request_does_not_hold_the_daemon() {
    Scene::play(async |scene| {
        let door = Door::open(scene).await;
        // Without a token, and without an end of the headers.
        let mut stuck = TcpStream::connect(door.address).await.unwrap();
        stuck.write_all(b"POST /mcp HTTP/1.1\r\nHost: x\r\n").await.unwrap();
        // Whoever came after it was taken in, so it was, too.
        door.session().await;
        scene.shutdown.cancel();
        scene.served.lock().await.join_next().await.unwrap().unwrap();
        drop(stuck);
    });
}

fn a_cancelled_request_over_http_cancels_its_job() {
    Scene::play(async |scene| {
        let door = Door::open(scene).await;
        let session = door.session().await;
        let headers = [("Mcp-Session-Id", session.as_str())];
        let request =
            call(9, &json!({ "prompt": "@rehearse say on it\n@rehearse hang", "cwd": scene.work() }));
        let (_stream, job) = begin(scene, door.request(&headers, &request.to_string())).await;
        let cancel =
            json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 9 } });
        door.post(&headers, &cancel).await;
        scene.desk.wait(&[job], calls::Until::All, crate::scene::LONG).await.unwrap();
        assert_eq!(scene.desk.job(job).await.unwrap().progress.state.name(), model::StateName::Cancelled);
    });
}

fn too_much_is_refused_in_json() {
    Scene::play(async |scene| {
        let door = Door::open(scene).await;
        let session = door.session().await;
        let request = call(2, &json!({ "prompt": "x".repeat(50_000_000), "cwd": scene.work() }));
        let reply = door.post(&[("Mcp-Session-Id", &session)], &request).await;
        assert_eq!(reply.status, 413, "{}", reply.head);
        assert!(reply.error().contains("`prompt`") && reply.error().contains("into a file"), "{reply:?}");
        assert_eq!(scene.jobs().await, 0);
        assert_eq!(door.post(&[], &introduction()).await.status, 200);
    });
}

fn what_cannot_be_read_is_refused_in_json() {
    Scene::play(async |scene| {
        let door = Door::open(scene).await;
        for (headers, body) in [
            (vec![], "{"),
            (vec![], "{\"foo\":1}"),
            (vec![("Content-Type", "text/plain")], "{}"),
            (vec![("Accept", "text/html")], "{}"),
            (vec![("Mcp-Session-Id", "made-up")], "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/list\"}"),
        ] {
            let mut stream = TcpStream::connect(door.address).await.unwrap();
            stream.write_all(door.request(&headers, body).as_bytes()).await.unwrap();
            let reply = Reply::read(stream).await;
            assert!((400..500).contains(&reply.status), "{reply:?}");
            assert!(!reply.error().is_empty());
        }
        let session = door.session().await;
        for id in [json!(1.5), json!(null), json!([7])] {
            let request = json!({ "jsonrpc": "2.0", "id": id, "method": "ping" });
            let reply = door.post(&[("Mcp-Session-Id", &session)], &request).await;
            assert_eq!(reply.status, 400, "{reply:?}");
            assert!(reply.error().contains("a string or an integer"), "{reply:?}");
        }
        let mut stream = TcpStream::connect(door.address).await.unwrap();
        let request = door.request(&[], "{}").replace("POST /mcp", "POST /other");
        stream.write_all(request.as_bytes()).await.unwrap();
        let reply = Reply::read(stream).await;
        assert!(reply.status == 404 && reply.error().contains("/mcp"), "{reply:?}");
    });
}

fn the_socket_speaks_too() {
    Scene::play(async |scene| {
        let path = scene.folder.path().join("socket");
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        let here = tokio::net::UnixStream::connect(&path).await.unwrap();
        let (there, _) = listener.accept().await.unwrap();
        scene.serve(there).await;
        let mut client = crate::client::Client::over(here);
        client.initialize().await;
        let answer = client.done("call_rehearsal", json!({ "prompt": "Hello" })).await;
        assert_eq!(answer["output"], "You said: Hello");
    });
}
