//! A browser as far as the figures need one: it logs in, loads pages and watches.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::Failure;

const PATIENCE: Duration = Duration::from_mins(1);

/// A page that was loaded.
#[derive(Debug)]
pub struct Loaded {
    /// The time to the first byte.
    pub first_byte: Duration,
    /// And to the last.
    pub whole: Duration,
    /// All of it, with its head.
    pub text: String,
}

/// A browser that has been let in.
#[derive(Debug)]
pub struct PageVisitor {
    address: String,
    cookie: String,
}

impl PageVisitor {
    /// Comes in by a link of `switchboard open`.
    pub fn enter(link: &str) -> Result<Self, Failure> {
        let rest = link.trim().strip_prefix("http://").ok_or("the link is not a URL")?;
        let at = rest.find('/').ok_or("the link cannot be opened")?;
        let (address, path) = rest.split_at(at);
        let mut visitor = Self { address: address.to_owned(), cookie: String::new() };
        let answer = visitor.load(path)?.text;
        let cookie = answer
            .lines()
            .find_map(|line| line.strip_prefix("set-cookie: "))
            .ok_or("the link does not log in")?;
        cookie.split(';').next().unwrap_or_default().clone_into(&mut visitor.cookie);
        Ok(visitor)
    }

    /// Loads a page over a connection of its own.
    pub fn load(&self, path: &str) -> Result<Loaded, Failure> {
        let began = Instant::now();
        let mut stream = self.ask(path)?;
        let mut bytes = vec![0];
        stream.read_exact(&mut bytes)?;
        let first_byte = began.elapsed();
        stream.read_to_end(&mut bytes)?;
        let (whole, text) = (began.elapsed(), String::from_utf8_lossy(&bytes).into_owned());
        if text.starts_with("HTTP/1.1 200") {
            Ok(Loaded { first_byte, whole, text })
        } else {
            Err(text.into())
        }
    }

    /// Begins to watch; over when the stream is dropped.
    pub fn watch(&self, path: &str) -> Result<TcpStream, Failure> {
        let mut stream = self.ask(path)?;
        let mut heard = Vec::new();
        while !String::from_utf8_lossy(&heard).contains("hello") {
            let mut piece = [0; 4096];
            let length = stream.read(&mut piece)?;
            if length == 0 {
                return Err("the event stream closed at once".into());
            }
            heard.extend_from_slice(&piece[..length]);
        }
        Ok(stream)
    }

    fn ask(&self, path: &str) -> Result<TcpStream, Failure> {
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        let (address, cookie) = (&self.address, &self.cookie);
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: {address}\r\nCookie: {cookie}\r\nConnection: close\r\n\r\n"
        )?;
        Ok(stream)
    }
}
