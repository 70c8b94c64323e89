//! A visitor who speaks plain HTTP: what a browser would hide is seen here.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::bed::{Harness as Bed, stdout};

/// Longer than anything takes on a busy machine; a test that needs it has failed.
const PATIENCE: Duration = Duration::from_mins(1);

pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.into_iter().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// The value of the first thing in the page that looks like this.
    pub fn between(&self, before: &str, after: &str) -> &str {
        let rest = self.body.split_once(before).unwrap_or_else(|| panic!("no {before} in {}", self.body)).1;
        rest.split_once(after).unwrap().0
    }
}

/// Somebody at an address, with or without a cookie.
#[derive(Clone)]
pub struct Visitor {
    pub address: String,
    pub cookie: Option<String>,
}

impl Visitor {
    /// Somebody who has been let in.
    pub fn of(bed: &Bed) -> Self {
        let (address, path) = link(bed);
        let mut visitor = Self { address, cookie: None };
        let answer = visitor.get(&path);
        assert_eq!(answer.status, 200, "{}", answer.body);
        let cookie = answer.header("set-cookie").unwrap();
        visitor.cookie = Some(cookie.split(';').next().unwrap().to_owned());
        visitor
    }

    pub fn stranger(&self) -> Self {
        Self { cookie: None, ..self.clone() }
    }

    pub fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[], "")
    }

    /// A form of our own page, with that token.
    pub fn send(&self, path: &str, token: &str) -> Answer {
        let origin = format!("http://{}", self.address);
        self.ask("POST", path, &[("Origin", &origin)], &format!("token={token}"))
    }

    pub fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let mut stream = self.request(method, path, headers, body);
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, head: head.to_owned(), body: body.to_owned() }
    }

    /// Sends a request and reads nothing yet. `Host` may be among the headers.
    pub fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
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

    /// Begins to watch.
    pub fn watch(&self, path: &str) -> Watcher {
        let mut reader = BufReader::new(self.request("GET", path, &[], ""));
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        assert!(line.contains(" 200 "), "{line}");
        Watcher { reader }
    }

    /// The token of the forms on a page.
    pub fn form_token(&self) -> String {
        self.get("/").between("name=\"token\" value=\"", "\"").to_owned()
    }
}

/// Where a fresh link leads: the address of the page, and the path with the word.
pub fn link(bed: &Bed) -> (String, String) {
    let output = bed.run(&["open", "--print"]);
    assert!(output.status.success(), "{output:?}");
    let url = stdout(&output);
    let rest = url.trim().strip_prefix("http://").unwrap();
    let at = rest.find('/').unwrap();
    (rest[..at].to_owned(), rest[at..].to_owned())
}

/// Somebody who hears what happens.
pub struct Watcher {
    reader: BufReader<TcpStream>,
}

impl Watcher {
    /// The next event: its name and its data. None when the daemon has hung up.
    pub fn next(&mut self) -> Option<(String, serde_json::Value)> {
        let mut name = String::new();
        loop {
            let mut line = String::new();
            // A connection that was cut is an end like another.
            if self.reader.read_line(&mut line).unwrap_or(0) == 0 {
                return None;
            }
            let line = line.trim_end();
            if let Some(told) = line.strip_prefix("event: ") {
                told.clone_into(&mut name);
            } else if let Some(data) = line.strip_prefix("data: ") {
                return Some((name, serde_json::from_str(data).unwrap()));
            }
        }
    }

    /// Hears until something comes that is as wanted.
    pub fn until(&mut self, mut wanted: impl FnMut(&str, &str) -> bool) -> String {
        loop {
            let (name, data) = self.next().expect("the daemon has hung up");
            let html = data["html"].as_str().unwrap_or_default().to_owned();
            if wanted(&name, &html) {
                return html;
            }
        }
    }
}

/// Places a call of the scripted agent and waits for nothing; its id.
pub fn place(bed: &Bed, prompt: &str, task: &str) -> String {
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
    let placed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    placed["job_id"].as_str().unwrap().to_owned()
}

/// Places a call and waits for its end; its id.
pub fn play(bed: &Bed, prompt: &str, task: &str) -> String {
    let job = place(bed, prompt, task);
    let output = bed.run(&["wait", &job]);
    assert!(output.status.code().is_some_and(|code| code < 5), "{output:?}");
    job
}
