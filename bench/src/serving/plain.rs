//! The baseline: the stub agent, started like any program.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::Failure;
use crate::installation::PROMPT;

/// The stub, started directly.
#[derive(Debug)]
pub struct PlainSpawn {
    stub: PathBuf,
    directory: PathBuf,
}

impl PlainSpawn {
    /// Creates it in that directory, which also holds the prompts.
    pub fn new(stub: &Path, directory: &Path) -> Self {
        Self { stub: stub.to_owned(), directory: directory.to_owned() }
    }

    /// Starts it with that prompt.
    pub fn spawn(&self, prompt: &str) -> Result<Child, Failure> {
        self.started_by(&mut Command::new(&self.stub), prompt)
    }

    /// Starts it under a tracer that gets an output file and the command.
    pub fn spawn_under(&self, tracer: &[&str], to: &Path, prompt: &str) -> Result<Child, Failure> {
        let [program, args @ ..] = tracer else { return Err("no program to run it under".into()) };
        self.started_by(Command::new(program).args(args).arg(to).arg(&self.stub), prompt)
    }

    fn started_by(&self, command: &mut Command, prompt: &str) -> Result<Child, Failure> {
        let file = self.directory.join("prompt");
        if fs::read(&file).ok().as_deref() != Some(prompt.as_bytes()) {
            fs::write(&file, prompt)?;
        }
        let child = command
            .args(["-p", "--output-format=stream-json", "--verbose"])
            .env_clear()
            .current_dir(&self.directory)
            .stdin(File::open(&file)?)
            .stdout(Stdio::piped())
            .spawn()?;
        Ok(child)
    }

    /// Runs it to its end.
    pub fn run(&self) -> Result<(), Failure> {
        finish(self.spawn(PROMPT)?).map(drop)
    }
}

/// Reads the output to the end and returns its length.
pub fn finish(mut child: Child) -> Result<usize, Failure> {
    let mut said = Vec::new();
    if let Some(mut stdout) = child.stdout.take() {
        stdout.read_to_end(&mut said)?;
    }
    let status = child.wait()?;
    if status.success() && said.ends_with(b"}\n") {
        Ok(said.len())
    } else {
        Err(format!("the plain spawn exited with {status}").into())
    }
}
