//! The agent that both sides run, and the two ways to run it.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use model::{End, Exit, RunPlan, RunReport};
use supervisor::{Run, Supervisor};
use tempfile::TempDir;

use crate::Failure;
use crate::executables::Executables;

const PROMPT: &[u8] = b"Say hello.\n@rehearse answer Hello.\n";
const ANSWER: &[u8] = b"Hello.\n";

/// Everything a run needs.
#[derive(Debug, Clone)]
pub struct Scene {
    supervisor: Supervisor,
    rehearsal: PathBuf,
    work: PathBuf,
    /// The prompt as a file, for the plain spawn.
    prompt: PathBuf,
    plan: RunPlan,
}

impl Scene {
    /// Prepares the files of the runs.
    pub fn set(executables: &Executables, work: &Path) -> Result<Self, Failure> {
        let work = work.canonicalize()?;
        let prompt = work.join("prompt");
        fs::write(&prompt, PROMPT)?;
        let plan = RunPlan {
            args: vec!["--as".to_owned(), "plain".to_owned()],
            input: PROMPT.to_vec(),
            ..RunPlan::new(&executables.rehearsal, &work)
        };
        Ok(Self {
            supervisor: Supervisor::at(&executables.supervisor),
            rehearsal: executables.rehearsal.clone(),
            work,
            prompt,
            plan,
        })
    }

    /// Returns the directory of all files.
    pub fn work(&self) -> &Path {
        &self.work
    }

    /// The plan of the agent that answers.
    pub fn plan(&self) -> &RunPlan {
        &self.plan
    }

    /// Creates a directory for the small files of many runs, which remains until the bench exits.
    ///
    /// Removing thousands of files between two rounds would slow the next one down: an ext4 without a journal skips every inode
    /// that was freed in the last minute whenever it creates a file.
    pub fn lasting_directory(&self) -> Result<PathBuf, Failure> {
        Ok(self.fresh_directory()?.keep())
    }

    /// Creates a directory for one large copy, removed on drop; the removal is not measured.
    pub fn fresh_directory(&self) -> Result<TempDir, Failure> {
        Ok(TempDir::new_in(&self.work)?)
    }

    /// Starts the agent as any program would.
    pub fn spawn_plainly(&self) -> Result<Child, Failure> {
        let child = Command::new(&self.rehearsal)
            .args(&self.plan.args)
            // As under the supervisor, so that the agent does the same work.
            .env_clear()
            .current_dir(&self.work)
            .stdin(File::open(&self.prompt)?)
            .stdout(Stdio::piped())
            .spawn()?;
        Ok(child)
    }

    /// Starts a run under the supervisor.
    pub async fn start(&self, spool: &Path, plan: &RunPlan) -> Result<Run, Failure> {
        Ok(self.supervisor.start(spool, plan).await?)
    }

    /// Runs the answering agent under the supervisor, to its end.
    pub async fn run_supervised(&self, spool: &Path) -> Result<(), Failure> {
        let run = self.start(spool, &self.plan).await?;
        let report = run.wait().await?;
        check_report(&report)?;
        check_answer(&fs::read(run.spool().output())?)
    }
}

/// Reads the output of a plainly started agent to its end.
pub fn finish_plainly(mut child: Child) -> Result<(), Failure> {
    let mut answer = Vec::new();
    if let Some(mut stdout) = child.stdout.take() {
        stdout.read_to_end(&mut answer)?;
    }
    let status = child.wait()?;
    if !status.success() {
        return Err(format!("the plain spawn exited with {status}").into());
    }
    check_answer(&answer)
}

/// A run that failed fast must not pass for a fast run.
pub fn check_report(report: &RunReport) -> Result<(), Failure> {
    if report.end == End::Exited && report.exit == Some(Exit::Code(0)) {
        Ok(())
    } else {
        Err(format!("unexpected end of a supervised run: {report:?}").into())
    }
}

fn check_answer(answer: &[u8]) -> Result<(), Failure> {
    if answer == ANSWER {
        Ok(())
    } else {
        Err(format!("an agent answered `{}`", String::from_utf8_lossy(answer).escape_debug()).into())
    }
}
