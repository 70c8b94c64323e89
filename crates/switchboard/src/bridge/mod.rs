//! `switchboard mcp`: a pipe between an MCP host and the daemon, and nothing else.
//!
//! Owns the connection and what is open on it. Knows no tool, keeps no state of its own, and writes nothing but the protocol to
//! stdout. When the daemon goes away with requests open, it finds or starts the next one, greets it as the host did, and says again
//! what is open; every tool call has a mark by which the daemon knows it again, so no job is run twice. Without anything open it
//! waits for the host's next word, so that `switchboard stop` does not start what it stops.
//!
//! Three threads, since none of the four ends may wait for another: one reads the host, one reads the daemon (and writes to the
//! host), and this one writes to the daemon.

mod inbox;
mod ledger;
mod lines;
mod message;
mod resident;

use std::io::{self, BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::environment::Environment;
use crate::failure::Failure;
use crate::front::{FrontError, Starter};
use crate::output;
use crate::wire::{self, Role};
use inbox::{Inbox, Word};
use ledger::{FromHost, Ledger, Line, failure};
use lines::Next;

/// Longer lines are refused. A prompt of 50 MB fits well.
const LONGEST_LINE: usize = 256 << 20;
/// How long the answers to what a host asked before it closed its end are waited for, should it still listen. The daemon answers within
/// 3 s of being told that no more comes, and another may have to be started for it.
const LAST_ANSWERS_WITHIN: Duration = Duration::from_secs(8);
/// How long to wait before the same request is said for the third time, the fourth and so on.
const PAUSE: Duration = Duration::from_millis(100);
/// The threads hold no data on their stacks.
const STACK: usize = 128 * 1024;

/// Is the bridge, until the host closes its end.
pub fn run() -> Result<ExitCode, Failure> {
    let shared = Arc::new(Shared::default());
    let host = shared.clone();
    // Not joined: reading stdin cannot be interrupted, and it ends with the process.
    spawn("host", move || read_host(&host)).map_err(Failure::Runtime)?;
    let mut bridge = Bridge { shared, starter: None, daemon: None, daemons: 0, told_of_skew: false };
    bridge.reconnect();
    bridge.carry();
    Ok(ExitCode::SUCCESS)
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name(name.to_owned()).stack_size(STACK).spawn(work)
}

/// What the threads share.
#[derive(Debug, Default)]
struct Shared {
    inbox: Inbox,
    ledger: Mutex<Ledger>,
}

impl Shared {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads the host until it says no more, and then watches whether it listens.
fn read_host(shared: &Shared) {
    read_lines(shared);
    shared.inbox.host_silent();
    // Nothing is asked of it but the end of its reader, for which one need not ask.
    let stdout = io::stdout();
    let mut ends = [PollFd::new(&stdout, PollFlags::empty())];
    while poll(&mut ends, None) == Err(Errno::INTR) {}
    if ends[0].revents().intersects(PollFlags::ERR | PollFlags::HUP) {
        shared.inbox.host_deaf();
    }
}

fn read_lines(shared: &Shared) {
    let Ok(stdin) = io::stdin().as_fd().try_clone_to_owned() else { return };
    let mut reader = BufReader::with_capacity(64 * 1024, std::fs::File::from(stdin));
    loop {
        match lines::next(&mut reader, LONGEST_LINE) {
            Ok(Next::Line(line)) => shared.inbox.line(line),
            Ok(Next::TooLong) => {
                let message =
                    format!("a line is longer than {LONGEST_LINE} bytes. hint: put large input into a file");
                tell_host(shared, &failure("null", &message));
            }
            Ok(Next::End) | Err(_) => return,
        }
    }
}

/// Reads a daemon until it says no more, and passes on whole lines only: half an answer is none.
fn read_daemon(shared: &Shared, mut reader: BufReader<UnixStream>, number: u64) {
    // The start is over, and the daemon has yet to think about the first line.
    resident::give_back();
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line).is_ok() && line.ends_with(b"\n") {
        if shared.ledger().daemon_says(&line) {
            tell_host(shared, &line);
        }
        shared.inbox.news();
        line.clear();
        // One long answer must not be paid for ever after.
        line.shrink_to(64 * 1024);
    }
    shared.inbox.daemon_gone(number);
}

fn tell_host(shared: &Shared, line: &[u8]) {
    if output::protocol(line).is_err() {
        shared.inbox.host_deaf();
    }
}

/// The thread that writes to the daemon, and finds the next when one is gone.
struct Bridge {
    shared: Arc<Shared>,
    starter: Option<Starter>,
    daemon: Option<Daemon>,
    daemons: u64,
    told_of_skew: bool,
}

/// A daemon that is being talked to.
struct Daemon {
    number: u64,
    writer: UnixStream,
    reading: JoinHandle<()>,
}

impl Bridge {
    /// Carries words until the host says no more, or hears none.
    fn carry(&mut self) {
        loop {
            match self.shared.inbox.next(None) {
                Word::Line(line) => self.pass_on(line),
                Word::DaemonGone(number) => self.gone(number),
                Word::HostDeaf => return,
                Word::HostSilent => return self.last_answers(),
                Word::News => {}
            }
        }
    }

    fn pass_on(&mut self, line: Vec<u8>) {
        let noted = self.shared.ledger().host_says(line);
        match noted {
            FromHost::Stale => {}
            FromHost::Refused(answer) => tell_host(&self.shared, &answer),
            FromHost::Kept(line) => {
                // What is kept is said by the reconnection, with all else that is open.
                if !self.say(&line) {
                    self.reconnect();
                }
            }
            FromHost::Loose(line) => {
                if !self.say(&line) && self.reconnect() {
                    self.say(&line);
                }
            }
        }
    }

    /// Says a line to the daemon. False: there is none any more.
    fn say(&mut self, line: &Line) -> bool {
        let said = self.daemon.as_mut().is_some_and(|daemon| daemon.writer.write_all(line).is_ok());
        if !said {
            self.leave();
        }
        said
    }

    fn gone(&mut self, number: u64) {
        if self.daemon.as_ref().is_some_and(|daemon| daemon.number == number) {
            self.leave();
            if self.shared.ledger().is_waiting() {
                self.reconnect();
            }
        }
    }

    /// Leaves a daemon, once all that it has said is passed on: nothing it has answered is to be asked again.
    fn leave(&mut self) {
        if let Some(daemon) = self.daemon.take() {
            let _ = daemon.writer.shutdown(Shutdown::Both);
            let _ = daemon.reading.join();
        }
    }

    /// Finds or starts a daemon and says everything that is open. False: there is none; whoever waits has been told why.
    fn reconnect(&mut self) -> bool {
        loop {
            let (worn, tries) = {
                let mut ledger = self.shared.ledger();
                (ledger.give_up_worn(), ledger.tries())
            };
            for answer in worn {
                tell_host(&self.shared, &answer);
            }
            if tries > 1 {
                thread::sleep(PAUSE * tries);
            }
            if let Err(error) = self.connect() {
                let message =
                    format!("{}. A call that was placed goes on: call_jobs lists it", explain(&error));
                let answers = self.shared.ledger().give_up_all(&message);
                for answer in answers {
                    tell_host(&self.shared, &answer);
                }
                return false;
            }
            let again = self.shared.ledger().again();
            if again.iter().all(|line| self.say(line)) {
                return true;
            }
            if !self.shared.ledger().is_waiting() {
                return false;
            }
        }
    }

    fn connect(&mut self) -> Result<(), FrontError> {
        let starter = match &mut self.starter {
            Some(starter) => starter,
            none => none.insert(Starter::new(Environment::of_this_process())?),
        };
        let connection = starter.connect_or_start(Role::Mcp)?;
        if let Some(skew) = wire::skew(&connection.welcome.speaker).filter(|_| !self.told_of_skew) {
            self.told_of_skew = true;
            output::aside(&format!("switchboard: {skew}"));
        }
        self.daemons += 1;
        let (shared, number) = (self.shared.clone(), self.daemons);
        let reader = connection.reader;
        let reading =
            spawn("daemon", move || read_daemon(&shared, reader, number)).map_err(FrontError::Turn)?;
        self.daemon = Some(Daemon { number, writer: connection.writer, reading });
        Ok(())
    }

    /// The host has closed its end, as hosts do when they end, and pipelines when all is said. One that still listens hears what has
    /// become of its requests; jobs go on.
    fn last_answers(&mut self) {
        let until = Instant::now() + LAST_ANSWERS_WITHIN;
        self.say_no_more();
        while self.daemon.is_some() && self.shared.ledger().is_waiting() && Instant::now() < until {
            match self.shared.inbox.next(Some(until)) {
                Word::HostDeaf => return,
                Word::DaemonGone(number) => {
                    self.gone(number);
                    self.say_no_more();
                }
                Word::Line(_) | Word::HostSilent | Word::News => {}
            }
        }
    }

    /// Tells the daemon that no more comes: it then answers what is open, with where the jobs stand.
    fn say_no_more(&self) {
        if let Some(daemon) = &self.daemon {
            let _ = daemon.writer.shutdown(Shutdown::Write);
        }
    }
}

/// An error in one line: what, why, and what to do.
fn explain(error: &FrontError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(deeper) = cause {
        text = format!("{text}: {deeper}");
        cause = deeper.source();
    }
    format!("{text}. hint: {}", error.hint())
}
