//! Watchers of the list: browsers if Chromium is installed, otherwise connections with the same stream.
//!
//! Chromium is found by `scripts/chromium` and driven by `browsers.mjs`. It is killed on drop.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::Installation;
use super::visitor::PageVisitor;
use crate::{Failure, output};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The watchers.
pub enum Watchers {
    Browsers(Browsers),
    Connections(Vec<TcpStream>),
}

impl Watchers {
    /// Begins to watch; returns when all do.
    pub fn open(installation: &Installation, visitor: &PageVisitor, number: usize) -> Result<Self, Failure> {
        match chromium() {
            Ok(place) => Ok(Self::Browsers(Browsers::open(installation, &place, number)?)),
            Err(reason) => {
                output::progress(&format!("connections instead of browsers: {reason}"));
                let watchers: Result<_, _> = (0..number).map(|_| visitor.watch("/live")).collect();
                Ok(Self::Connections(watchers?))
            }
        }
    }

    /// Returns their name in a row.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Browsers(_) => "browsers (Chromium)",
            Self::Connections(_) => "connections (Chromium is not installed)",
        }
    }

    /// Returns when all of them know that a job was completed.
    pub fn hear_of(&mut self, job: &str) -> Result<(), Failure> {
        match self {
            Self::Browsers(browsers) => browsers.ask(job, "seen"),
            Self::Connections(connections) => connections.iter_mut().try_for_each(hear),
        }
    }
}

fn hear(connection: &mut TcpStream) -> Result<(), Failure> {
    let (mut heard, mut piece) = (String::new(), [0; 8192]);
    while !heard.contains("is-completed") {
        let length = connection.read(&mut piece)?;
        if length == 0 {
            return Err("a watcher was disconnected".into());
        }
        heard += &String::from_utf8_lossy(&piece[..length]);
    }
    Ok(())
}

/// The browser and its driver.
struct Chromium {
    program: PathBuf,
    playwright: PathBuf,
}

/// Or why there is none.
fn chromium() -> Result<Chromium, String> {
    let output = Command::new(Path::new(ROOT).join("scripts/chromium")).arg("--if-here").output();
    let output = output.map_err(|error| format!("scripts/chromium cannot be started: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().replace('\n', " "));
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let named = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map(PathBuf::from).ok_or_else(|| format!("scripts/chromium names no {name}"))
    };
    Ok(Chromium { program: named("chromium")?, playwright: named("playwright")? })
}

/// Pages in browsers of their own.
pub struct Browsers {
    child: Child,
    /// Closed, they end.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Browsers {
    fn open(installation: &Installation, chromium: &Chromium, number: usize) -> Result<Self, Failure> {
        let links: Result<Vec<String>, Failure> = (0..number)
            .map(|_| Ok(installation.run_command(&["open", "--print"])?.trim().to_owned()))
            .collect();
        let mut child = Command::new("node")
            .arg(Path::new(ROOT).join("bench/src/paging/browsers.mjs"))
            .env("CHROMIUM", &chromium.program)
            .env("PLAYWRIGHT", &chromium.playwright)
            // Chromium writes to its home directory.
            .env("HOME", &installation.home)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().ok_or("the browsers have no stdout")?);
        let mut browsers = Self { child, input, output };
        browsers.ask(&links?.join(" "), "watching")?;
        Ok(browsers)
    }

    fn ask(&mut self, line: &str, expected: &str) -> Result<(), Failure> {
        let input = self.input.as_mut().ok_or("the browsers were closed")?;
        writeln!(input, "{line}")?;
        let mut answer = String::new();
        self.output.read_line(&mut answer)?;
        if answer.trim() == expected {
            Ok(())
        } else {
            Err(format!("the browsers answered `{}` and not `{expected}`", answer.trim()).into())
        }
    }
}

impl Drop for Browsers {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}
