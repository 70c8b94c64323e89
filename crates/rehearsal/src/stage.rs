//! Plays a script, step by step.
//!
//! Owns the order of events, the end of a turn, and all output. `voice` formats events; `script` defines the syntax.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;

use crate::live::LiveClient;
use crate::mistake::Mishap;
use crate::offspring;
use crate::script::{FloodTarget, Garbage, ScriptStep};
use crate::sight;
use crate::voice::{ScriptedFailure, ToolCall, ToolInput, VendorExit, Voice};
use crate::wire::StandardStream;

/// An agent during its turn.
pub(crate) struct RehearsalStage<'a> {
    voice: Box<dyn Voice>,
    /// The answer of a script without one.
    echo: String,
    prompt_bytes: usize,
    client: Option<&'a mut LiveClient>,
    said: Vec<String>,
    opened: bool,
    closed: bool,
    code: u8,
    pid_file: Option<PathBuf>,
    memory: Vec<Vec<u8>>,
    out: String,
}

/// The end of a script.
pub(crate) enum StageEnd {
    /// The turn has ended; a program without a client exits with this code.
    Turn(u8),
    /// The program exits with this code.
    Exit(u8),
}

/// Whether the script continues.
enum Flow {
    Next,
    End(u8),
}

impl<'a> RehearsalStage<'a> {
    pub(crate) fn new(
        voice: Box<dyn Voice>,
        echo: String,
        prompt_bytes: usize,
        client: Option<&'a mut LiveClient>,
    ) -> Self {
        Self {
            voice,
            echo,
            prompt_bytes,
            client,
            said: Vec::new(),
            opened: false,
            closed: false,
            code: 0,
            pid_file: None,
            memory: Vec::new(),
            out: String::new(),
        }
    }

    /// Plays all steps and ends the turn if none of them did.
    pub(crate) fn play(mut self, steps: Vec<ScriptStep>) -> Result<StageEnd, Mishap> {
        for step in steps {
            if let Flow::End(code) = self.step(step)? {
                return Ok(StageEnd::Exit(code));
            }
        }
        if !self.closed {
            let text = if self.said.is_empty() {
                let echo = std::mem::take(&mut self.echo);
                self.perform(|voice, out| voice.say(&echo, out));
                echo
            } else {
                self.said.join("\n")
            };
            self.perform(|voice, out| voice.finish(&text, out));
            self.flush()?;
        }
        Ok(StageEnd::Turn(self.code))
    }

    fn step(&mut self, step: ScriptStep) -> Result<Flow, Mishap> {
        match step {
            ScriptStep::Answer(text) => {
                self.perform(|voice, out| voice.say(&text, out));
                self.perform(|voice, out| voice.finish(&text, out));
                self.closed = true;
            }
            // Resolved before the script is played.
            ScriptStep::Choose(_) | ScriptStep::Only { .. } => {}
            ScriptStep::Say(text) => self.say(text),
            ScriptStep::Think(text) => self.perform(|voice, out| voice.think(&text, out)),
            ScriptStep::Tool(call) => self.perform(|voice, out| voice.tool(&call, out)),
            ScriptStep::Deny(tool) => {
                let call = ToolCall {
                    name: tool.clone(),
                    input: ToolInput::Json("{}".to_owned()),
                    result: String::new(),
                    failed: true,
                };
                self.ask(&call, false)?;
                self.perform(|voice, out| voice.deny(&tool, out));
            }
            ScriptStep::Ask(call) if self.ask(&call, true)? => {
                self.perform(|voice, out| voice.tool(&call, out));
            }
            ScriptStep::Ask(call) => self.perform(|voice, out| voice.deny(&call.name, out)),
            ScriptStep::Request(method) => self.request(&method)?,
            ScriptStep::Terminal(command) => {
                self.flush()?;
                if let Some(client) = &mut self.client {
                    let call = client.run_in_terminal(&command)?;
                    self.perform(|voice, out| voice.tool(&call, out));
                }
            }
            ScriptStep::StandardStream { pieces, bytes, every } => self.stream(pieces, bytes, every)?,
            ScriptStep::RetryNotice { status } => self.retry_notice(status)?,
            ScriptStep::Background { change, task } => {
                self.perform(|voice, out| voice.background(change, &task, out));
            }
            ScriptStep::Fail(failure) => self.fail(&failure)?,
            ScriptStep::MaxTurns => {
                self.open();
                let closing = self.voice.max_turns(&mut self.out);
                self.close(closing)?;
            }
            ScriptStep::Delay(time) => std::thread::sleep(time),
            ScriptStep::Hang => loop {
                std::thread::park();
            },
            ScriptStep::Exit(code) => return Ok(Flow::End(code)),
            ScriptStep::Cut => return Ok(Flow::End(0)),
            ScriptStep::Signal(signal) => signal.strike().map_err(Mishap::refused("step `signal`"))?,
            ScriptStep::Raw(text) => {
                self.out.push_str(&text);
                self.out.push('\n');
            }
            ScriptStep::Garbage(garbage) => garbage.print().map_err(Mishap::refused("step `garbage`"))?,
            ScriptStep::Flood { target, bytes } => self.flood(target, bytes)?,
            ScriptStep::Close(stream) => stream.close().map_err(Mishap::refused("step `close`"))?,
            ScriptStep::Ignore(signals) => {
                for signal in signals {
                    signal.ignore().map_err(Mishap::refused("step `ignore`"))?;
                }
            }
            ScriptStep::PidFile(path) => self.pid_file = Some(path),
            ScriptStep::Spawn(mut offspring) => {
                offspring.pid_file = offspring.pid_file.or_else(|| self.pid_file.clone());
                offspring.start().map_err(Mishap::refused("step `spawn`"))?;
            }
            ScriptStep::ForkBomb { width, life } => {
                offspring::start_bomb(width, life, self.pid_file.as_deref())
                    .map_err(Mishap::refused("step `fork-bomb`"))?;
            }
            ScriptStep::Write { path, text } => self.write(&path, &text),
            ScriptStep::Env(name) => self.say(sight::environment(name.as_deref())),
            ScriptStep::Args => self.say(sight::arguments()),
            ScriptStep::Cwd => self.say(sight::working_directory()),
            ScriptStep::Fds => self.say(sight::open_files().map_err(Mishap::refused("step `fds`"))?),
            ScriptStep::StdinBytes => self.say(self.prompt_bytes.to_string()),
            ScriptStep::Burn(time) => burn(time),
            ScriptStep::Alloc(bytes) => self.alloc(bytes)?,
        }
        self.flush()?;
        Ok(Flow::Next)
    }

    /// Lets the voice print events, after it has opened the session.
    fn perform(&mut self, act: impl FnOnce(&mut dyn Voice, &mut String)) {
        self.open();
        act(self.voice.as_mut(), &mut self.out);
    }

    fn open(&mut self) {
        if !self.opened {
            self.opened = true;
            self.voice.open(&mut self.out);
        }
    }

    /// One write for all lines of a step.
    fn flush(&mut self) -> Result<(), Mishap> {
        if !self.out.is_empty() {
            StandardStream::Stdout.write(self.out.as_bytes()).map_err(Mishap::refused("stdout"))?;
            self.out.clear();
        }
        Ok(())
    }

    fn say(&mut self, text: String) {
        self.perform(|voice, out| voice.say(&text, out));
        self.said.push(text);
    }

    fn stream(&mut self, pieces: u64, bytes: usize, every: Duration) -> Result<(), Mishap> {
        let mut whole = String::new();
        self.perform(|voice, out| voice.begin_pieces(out));
        for number in 0..pieces {
            if number > 0 {
                std::thread::sleep(every);
            }
            // One letter per delta, so that a missing or repeated one is visible.
            let letter = char::from(b'a' + u8::try_from(number % 26).unwrap_or(0));
            let piece: String = std::iter::repeat_n(letter, bytes).collect();
            self.perform(|voice, out| voice.piece(&piece, out));
            self.flush()?;
            whole.push_str(&piece);
        }
        self.perform(|voice, out| voice.end_pieces(&whole, out));
        self.said.push(whole);
        Ok(())
    }

    /// Asks the client for the permission to use a tool, and returns its answer. Nobody else can be asked.
    fn ask(&mut self, call: &ToolCall, can_allow: bool) -> Result<bool, Mishap> {
        let Some(request) = self.client.as_mut().map(|client| client.next_request()) else {
            return Ok(false);
        };
        self.perform(|voice, out| voice.ask(&request.to_string(), call, can_allow, out));
        let reply = self.wait_for_reply(&request)?;
        Ok(self.voice.is_allowed(&reply))
    }

    fn request(&mut self, method: &str) -> Result<(), Mishap> {
        let Some(request) = self.client.as_mut().map(|client| client.next_request()) else { return Ok(()) };
        self.open();
        self.out.push_str(&self.voice.request(&request.to_string(), method));
        self.out.push('\n');
        let reply = self.wait_for_reply(&request)?;
        let answer = if reply["error"].is_null() { &reply["result"] } else { &reply["error"]["message"] };
        self.say(format!("{method}: {answer}"));
        Ok(())
    }

    fn wait_for_reply(&mut self, request: &Value) -> Result<Value, Mishap> {
        self.flush()?;
        match &mut self.client {
            Some(client) => client.wait_for_reply(request),
            None => Ok(Value::Null),
        }
    }

    fn retry_notice(&mut self, status: Option<u16>) -> Result<(), Mishap> {
        self.open();
        match self.voice.retry_notice(status, &mut self.out) {
            Some(notice) => complain(&notice),
            None => Ok(()),
        }
    }

    fn fail(&mut self, failure: &ScriptedFailure) -> Result<(), Mishap> {
        if !failure.kind.comes_before_opening() {
            self.open();
        }
        let closing = self.voice.fail(failure, &mut self.out);
        self.close(closing)
    }

    fn close(&mut self, closing: VendorExit) -> Result<(), Mishap> {
        self.closed = true;
        self.code = closing.code;
        self.flush()?;
        closing.complaint.map_or(Ok(()), |complaint| complain(&complaint))
    }

    fn flood(&mut self, target: FloodTarget, bytes: u64) -> Result<(), Mishap> {
        let flooded = match target {
            FloodTarget::Noise(stream) => stream.flood(NOISE, bytes),
            FloodTarget::Events => {
                self.open();
                self.flush()?;
                self.voice.say(&"All work and no play. ".repeat(40), &mut self.out);
                let event = std::mem::take(&mut self.out);
                // Whole events only: the flood exceeds its size by at most one event.
                let length = event.len() as u64;
                StandardStream::Stdout.flood(event.as_bytes(), bytes.div_ceil(length) * length)
            }
        };
        flooded.map_err(Mishap::refused("step `flood`"))
    }

    /// Writes a file like an agent's file tool: a refusal is reported and does not end the turn.
    fn write(&mut self, path: &std::path::Path, text: &str) {
        let written = std::fs::write(path, text);
        let input = crate::json::Object::new()
            .string("file_path", &path.to_string_lossy())
            .string("content", text)
            .done();
        let call = ToolCall {
            name: "Write".to_owned(),
            input: ToolInput::Json(input),
            failed: written.is_err(),
            result: match written {
                Ok(()) => format!("wrote {} bytes to {}", text.len(), path.display()),
                Err(refusal) => format!("cannot write {}: {refusal}", path.display()),
            },
        };
        self.perform(|voice, out| voice.tool(&call, out));
    }

    fn alloc(&mut self, bytes: usize) -> Result<(), Mishap> {
        let mut memory = Vec::new();
        memory
            .try_reserve_exact(bytes)
            .map_err(|refusal| Mishap::refused("step `alloc`")(io::Error::other(refusal)))?;
        // Touched, or the kernel would not allocate the pages.
        memory.resize(bytes, 1);
        self.memory.push(std::hint::black_box(memory));
        Ok(())
    }
}

const NOISE: &[u8] = b"the quick brown fox jumps over the lazy dog, again and again...\n";

impl Garbage {
    fn print(self) -> io::Result<()> {
        let line: &[u8] = match self {
            Self::Json => b"{\"type\":\"assistant\",\"message\":{\"content\":[{\"type\":\"te\n",
            Self::Utf8 => b"{\"type\":\"text\",\"text\":\"\xff\xfe\xc3\x28\xed\xa0\x80\"}\n",
            Self::Nul => b"{\"type\":\"text\",\0\0\0\"text\":\"a\0b\"}\n",
            Self::Event => b"{\"type\":\"rehearsal.unheard_of\",\"payload\":{\"a\":[1,2,{\"b\":null}]}}\n",
            Self::Line(bytes) => {
                StandardStream::Stdout.flood(b"x", bytes)?;
                b"\n"
            }
            Self::Unended(bytes) => return StandardStream::Stdout.flood(b"x", bytes),
        };
        StandardStream::Stdout.write(line)
    }
}

fn complain(complaint: &str) -> Result<(), Mishap> {
    StandardStream::Stderr.write(format!("{complaint}\n").as_bytes()).map_err(Mishap::refused("stderr"))
}

/// Measured by the thread's CPU clock: wall time would burn less on a busy machine.
fn burn(time: Duration) {
    let used = || {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
    };
    let start = used();
    let mut heat = 0_u64;
    while used().saturating_sub(start) < time {
        for number in 0..10_000_u64 {
            heat = std::hint::black_box(heat.wrapping_add(number));
        }
    }
}
