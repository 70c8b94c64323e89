//! A client over plain HTTP, which sees everything that a browser hides.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::bed::{Harness as Bed, stdout};

/// Read timeout. A test that needs it has failed.
const READ_TIMEOUT: Duration = Duration::from_mins(1);

pub struct HttpResponse {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl HttpResponse {
    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.into_iter().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// Returns the text between two markers.
    pub fn between(&self, before: &str, after: &str) -> &str {
        let rest = self.body.split_once(before).unwrap_or_else(|| panic!("no {before} in {}", self.body)).1;
        rest.split_once(after).unwrap().0
    }
}

/// A client of the dashboard, with or without a cookie.
#[derive(Clone)]
pub struct WebClient {
    pub address: String,
    pub cookie: Option<String>,
}

impl WebClient {
    /// Logs in with a new link.
    pub fn log_in(bed: &Bed) -> Self {
        let (address, path) = login_link(bed);
        let mut visitor = Self { address, cookie: None };
        let answer = visitor.get(&path);
        assert_eq!(answer.status, 200, "{}", answer.body);
        let cookie = answer.header("set-cookie").unwrap();
        visitor.cookie = Some(cookie.split(';').next().unwrap().to_owned());
        visitor
    }

    /// Returns the same client without the cookie.
    pub fn logged_out(&self) -> Self {
        Self { cookie: None, ..self.clone() }
    }

    pub fn get(&self, path: &str) -> HttpResponse {
        self.send("GET", path, &[], "")
    }

    /// Submits a form of our own page with a token.
    pub fn submit_form(&self, path: &str, token: &str) -> HttpResponse {
        let origin = format!("http://{}", self.address);
        self.send("POST", path, &[("Origin", &origin)], &format!("token={token}"))
    }

    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> HttpResponse {
        let mut stream = self.start_request(method, path, headers, body);
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        HttpResponse { status, head: head.to_owned(), body: body.to_owned() }
    }

    /// Sends a request without reading the response. `Host` may be among the headers.
    pub fn start_request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(READ_TIMEOUT)).unwrap();
        let mut lines = vec![format!("{method} {path} HTTP/1.1"), "Connection: close".to_owned()];
        if !headers.iter().any(|(name, _)| *name == "Host") {
            lines.push(format!("Host: {}", self.address));
        }
        lines.extend(self.cookie.iter().map(|cookie| format!("Cookie: {cookie}")));
        lines.extend(headers.iter().map(|(name, value)| format!("{name}: {value}")));
        if !body.is_empty() {
            lines.push("Content-Type: application/x-www-form-urlencoded".to_owned());
            lines.push(format!("Content-Length: {}", body.len()));
        }
        stream.write_all(format!("{}\r\n\r\n{body}", lines.join("\r\n")).as_bytes()).unwrap();
        stream
    }

    /// Opens a live stream.
    pub fn watch(&self, path: &str) -> Watcher {
        let mut reader = BufReader::new(self.start_request("GET", path, &[], ""));
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        assert!(line.contains(" 200 "), "{line}");
        Watcher { reader }
    }

    /// Returns the anti-CSRF token of the forms.
    pub fn form_token(&self) -> String {
        self.get("/").between("name=\"token\" value=\"", "\"").to_owned()
    }
}

/// Returns the address and the path of a new login link.
pub fn login_link(bed: &Bed) -> (String, String) {
    let output = bed.run(&["open", "--print"]);
    assert!(output.status.success(), "{output:?}");
    let url = stdout(&output);
    let rest = url.trim().strip_prefix("http://").unwrap();
    let at = rest.find('/').unwrap();
    (rest[..at].to_owned(), rest[at..].to_owned())
}

/// A live stream.
pub struct Watcher {
    reader: BufReader<TcpStream>,
}

impl Watcher {
    /// Returns the name and data of the next event; none at the end of the stream.
    pub fn next(&mut self) -> Option<(String, serde_json::Value)> {
        let mut name = String::new();
        loop {
            let mut line = String::new();
            // A reset connection counts as the end.
            if self.reader.read_line(&mut line).unwrap_or(0) == 0 {
                return None;
            }
            let line = line.trim_end();
            if let Some(event) = line.strip_prefix("event: ") {
                event.clone_into(&mut name);
            } else if let Some(data) = line.strip_prefix("data: ") {
                return Some((name, serde_json::from_str(data).unwrap()));
            }
        }
    }

    /// Reads until an event matches, and returns its HTML.
    pub fn until(&mut self, mut wanted: impl FnMut(&str, &str) -> bool) -> String {
        loop {
            let (name, data) = self.next().expect("the stream has ended");
            let html = data["html"].as_str().unwrap_or_default().to_owned();
            if wanted(&name, &html) {
                return html;
            }
        }
    }
}

/// Submits a call to the scripted agent and returns its job id.
pub fn submit(bed: &Bed, prompt: &str, task: &str) -> String {
    let cwd = bed.work();
    let output = bed.run(&[
        "call",
        "rehearsal",
        prompt,
        "--cwd",
        cwd.to_str().unwrap(),
        "--task",
        task,
        "--background",
        "--json",
    ]);
    assert!(output.status.success(), "{output:?}");
    let submitted: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    submitted["job_id"].as_str().unwrap().to_owned()
}

/// Submits a call, waits until it has finished, and returns its job id.
pub fn run_job(bed: &Bed, prompt: &str, task: &str) -> String {
    let job = submit(bed, prompt, task);
    let output = bed.run(&["wait", &job]);
    assert!(output.status.code().is_some_and(|code| code < 5), "{output:?}");
    job
}
