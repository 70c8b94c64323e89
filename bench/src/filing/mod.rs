//! The cost of a confined file operation, compared with the ordinary programs for the same task.

mod searching;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::cost::Meter;
use crate::executables::Executables;
use crate::report::{Row, Target};
use crate::turns::Turns;
use crate::{Failure, output};

pub use searching::Searcher;

/// A verb is to start as fast as this, in milliseconds.
const START: f64 = 2.0;
/// The maximum duration of a search, as a multiple of the other program's.
const SEARCH: f64 = 1.5;

/// The amount of work.
#[derive(Debug)]
pub struct FilingScale {
    /// The number of rounds in which baseline and ours alternate.
    rounds: u32,
    /// Starts and small reads in a round.
    starts: u32,
    /// Large reads in a round.
    reads: u32,
    /// Searches in a round.
    searches: u32,
    /// Files in the tree that is searched.
    files: u32,
}

impl FilingScale {
    /// For figures to be quoted.
    pub const FULL: Self = Self { rounds: 7, starts: 200, reads: 20, searches: 2, files: 100_000 };
    /// To see that everything still works.
    pub const QUICK: Self = Self { rounds: 1, starts: 10, reads: 2, searches: 1, files: 2000 };

    /// Describes the method for the reader of the table.
    pub fn method(&self, searcher: &Searcher) -> String {
        let Self { rounds, starts, reads, searches, files } = self;
        format!(
            "- rounds: {rounds}, in each of which the baseline and ours alternate; median (min–max)\n\
             - a round: {starts} starts, {starts} reads of 1 KB, {reads} reads of 10 MB, {searches} searches of each kind\n\
             - start: `file-tools <workspace> stat`, locked in and all, against `true`\n\
             - read: all lines, numbered, as JSON through a pipe, against `cat` through a pipe\n\
             - search: {files} files of about 1 KB in directories of 50, in the page cache, a `.gitignore` among them, against {}\n\
             - CPU time: of the bench and of every process below it; 1 MB is 10⁶ bytes",
            searcher.describe()
        )
    }
}

/// Takes all figures.
pub fn measure(
    executables: &Executables,
    work: &Path,
    scale: &FilingScale,
    searcher: &Searcher,
) -> Result<Vec<Row>, Failure> {
    let tools = Tools { program: &executables.file_tools, workspace: work };
    output::progress("measuring: start");
    let mut rows = tools.start(scale)?;
    output::progress("measuring: read");
    rows.extend(tools.read("1 KB", 1000, scale.starts, scale)?);
    rows.extend(tools.read("10 MB", 10_000_000, scale.reads, scale)?);
    output::progress("measuring: search");
    rows.extend(searching::measure(&tools, searcher, scale)?);
    Ok(rows)
}

/// The program and where it works.
#[derive(Debug, Clone, Copy)]
pub struct Tools<'a> {
    program: &'a Path,
    workspace: &'a Path,
}

impl Tools<'_> {
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.program);
        command.arg(self.workspace).args(args).env_clear();
        command
    }

    fn start(&self, scale: &FilingScale) -> Result<Vec<Row>, Failure> {
        let mut nothing = Command::new("true");
        nothing.env_clear();
        let turns =
            take_turns(&mut nothing, &mut self.command(&["stat"]), scale.starts, scale, |_, _| Ok(()))?;
        let mut rows = turns.rows("start", "`true`");
        rows[0].target = Some(Target::Below(START));
        Ok(rows.into())
    }

    fn read(&self, what: &str, size: usize, times: u32, scale: &FilingScale) -> Result<Vec<Row>, Failure> {
        let line = "fn a_line_of_a_program_that_is_about_as_long_as_most() {}\n";
        let text: String = line.chars().cycle().take(size).collect();
        fs::write(self.workspace.join("read.txt"), &text)?;
        let mut cat = Command::new("cat");
        cat.arg(self.workspace.join("read.txt")).env_clear();
        let mut ours = self.command(&["read", "read.txt", "--limit", "100000000"]);
        let turns = take_turns(&mut cat, &mut ours, times, scale, |plain, told| {
            // A read that was cut short must not pass for a fast one.
            if plain != text.as_bytes() || told.len() <= text.len() {
                return Err("a file was not read to its end".into());
            }
            Ok(())
        })?;
        fs::remove_file(self.workspace.join("read.txt"))?;
        Ok(turns.rows(&format!("read of {what}"), "`cat`").into())
    }
}

/// Runs both in turn, so many times each in a round.
fn take_turns(
    baseline: &mut Command,
    ours: &mut Command,
    times: u32,
    scale: &FilingScale,
    check: impl Fn(&[u8], &[u8]) -> Result<(), Failure>,
) -> Result<Turns, Failure> {
    // Warms the page cache, and compares both outputs.
    check(&said_by(baseline)?, &said_by(ours)?)?;
    let mut turns = Turns::default();
    for _ in 0..scale.rounds {
        for (command, costs) in [(&mut *baseline, &mut turns.baseline), (&mut *ours, &mut turns.ours)] {
            let meter = Meter::start()?;
            for _ in 0..times {
                said_by(command)?;
            }
            costs.push(meter.stop()? / times);
        }
    }
    Ok(turns)
}

/// Returns the output of a successful program.
fn said_by(command: &mut Command) -> Result<Vec<u8>, Failure> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    if output.status.success() {
        Ok(output.stdout)
    } else {
        Err(format!("{command:?} exited with {}", output.status).into())
    }
}
