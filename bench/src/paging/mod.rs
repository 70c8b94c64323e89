//! The cost of the web page with many jobs: its latency, the cost of watchers, and the start of the command line.
//!
//! The baseline of a page is `/healthz` of the same daemon, which does nothing, also over a new connection; that of the command
//! line is `true`.

mod past;
mod visitor;
mod watchers;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::executables::Executables;
use crate::interruption::Interruption;
use crate::process;
use crate::report::{Baseline, Row, Target, Unit};
use crate::spread::Spread;
use crate::{Failure, output};

use visitor::{Loaded, PageVisitor};
use watchers::Watchers;

pub use past::fill;

/// The number of watching browsers.
const WATCHERS: usize = 20;

/// The amount of work.
#[derive(Debug)]
pub struct PagingScale {
    /// Jobs that are kept.
    jobs: u64,
    /// The number of rounds in which baseline and ours alternate.
    rounds: u32,
}

impl PagingScale {
    /// For figures to be quoted.
    pub const FULL: Self = Self { jobs: 10_000, rounds: 50 };
    /// To see that everything still works.
    pub const QUICK: Self = Self { jobs: 300, rounds: 3 };

    /// Describes the method for the reader of the table.
    pub fn method(&self) -> String {
        let Self { jobs, rounds } = self;
        format!(
            "- {jobs} ended jobs of the last 30 days in an SQLite store; median (min–max) of {rounds} rounds, in each of which the\n  \
             baseline and ours alternate\n\
             - a page: requested over a new connection and read to its end; the list has 50 jobs per page, counts and filters\n\
             - baseline of a page: `/healthz` of the same daemon, requested in the same way; of the command line: `true`\n\
             - watchers: {WATCHERS} pages in headless Chromium, each in a profile of its own that a link of its own has let in; without Chromium\n  \
             connections that hear the same, and the row says so. The memory is the resident memory of the daemon"
        )
    }
}

/// A daemon with a past, which ends when this is dropped.
struct Installation {
    switchboard: PathBuf,
    home: PathBuf,
}

impl Installation {
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.switchboard);
        command
            .args(args)
            .env_clear()
            .env("SWITCHBOARD_HOME", &self.home)
            .env("PATH", "/usr/bin:/bin")
            .stdin(Stdio::null());
        command
    }

    fn run_command(&self, args: &[&str]) -> Result<String, Failure> {
        let output = self.command(args).output()?;
        if !output.status.success() {
            return Err(format!("`switchboard {}` failed: {output:?}", args.join(" ")).into());
        }
        Ok(String::from_utf8(output.stdout)?)
    }
}

impl Drop for Installation {
    fn drop(&mut self) {
        let _ = self.run_command(&["stop", "--cancel"]);
    }
}

/// Takes all figures.
pub async fn measure(
    executables: &Executables,
    work: &Path,
    scale: &PagingScale,
    mut interruption: Interruption,
) -> Result<Vec<Row>, Failure> {
    let home = work.canonicalize()?.join("home");
    output::progress(&format!("storing {} jobs", scale.jobs));
    fill(&home, scale.jobs, 30).await?;
    let installation = Installation { switchboard: executables.switchboard.clone(), home };
    let visitor = PageVisitor::enter(&installation.run_command(&["open", "--print"])?)?;
    let mut rows = Vec::new();
    let pages = [
        ("job list", "/", Some(Target::Below(50.0))),
        ("job list, prompt search", "/?q=gift+note", None),
        ("failed jobs, prompt search", "/?state=failed&q=checkout", None),
        ("overview with charts", "/overview", None),
        ("metrics", "/metrics", None),
    ];
    for (what, path, target) in pages {
        output::progress(&format!("measuring: {what}"));
        rows.extend(page(&visitor, scale, (what, path, target), &mut interruption)?);
    }
    rows.extend(watching(&installation, &visitor)?);
    rows.push(starting(&installation, scale, &mut interruption)?);
    Ok(rows)
}

fn page(
    visitor: &PageVisitor,
    scale: &PagingScale,
    (what, path, target): (&str, &str, Option<Target>),
    interruption: &mut Interruption,
) -> Result<[Row; 2], Failure> {
    let (mut plain, mut ours) = (Vec::new(), Vec::new());
    visitor.load(path)?;
    for _ in 0..scale.rounds {
        interruption.check()?;
        plain.push(visitor.load("/healthz")?);
        ours.push(visitor.load(path)?);
    }
    let size = ours.last().map_or(0, |loaded| loaded.text.len()) / 1000;
    let row = |what: String, pick: fn(&Loaded) -> Duration, target| {
        let of = |loaded: &[Loaded]| loaded.iter().map(|loaded| millis(pick(loaded))).collect::<Vec<_>>();
        let (plain, ours) = (of(&plain), of(&ours));
        let baseline = Some(Baseline::of("/healthz", &plain, &ours));
        Row { what, unit: Unit::Milliseconds, baseline, ours: Spread::of(ours), target }
    };
    Ok([
        row(format!("{what}: first byte"), |loaded| loaded.first_byte, target),
        row(format!("{what}: complete ({size} kB)"), |loaded| loaded.whole, None),
    ])
}

/// Returns the cost of watchers, and the latency of their updates.
fn watching(installation: &Installation, visitor: &PageVisitor) -> Result<Vec<Row>, Failure> {
    output::progress("measuring: watchers");
    let status: serde_json::Value = serde_json::from_str(&installation.run_command(&["status", "--json"])?)?;
    let pid = u32::try_from(status["pid"].as_u64().ok_or("the daemon reports no pid")?)?;
    let alone = process::memory(pid).ok_or("cannot read the daemon's memory")?;
    let mut watchers = Watchers::open(installation, visitor, WATCHERS)?;
    let with = process::memory(pid).ok_or("cannot read the daemon's memory")?;
    let answer: serde_json::Value =
        serde_json::from_str(&installation.run_command(&["call", "rehearsal", "Hello", "--json"])?)?;
    watchers.hear_of(answer["job_id"].as_str().ok_or("a call has no job")?)?;
    let after = process::memory(pid).ok_or("cannot read the daemon's memory")?;
    let row = |what: &str, value: f64, target| Row {
        what: what.to_owned(),
        unit: Unit::Megabytes,
        baseline: Some(Baseline::of("without watchers", &[alone], &[value])),
        ours: Spread::of([value]),
        target,
    };
    Ok(vec![
        row(&format!("daemon memory with {WATCHERS} {} watching the job list", watchers.name()), with, None),
        row("… after a job that all of them were notified of", after, Some(Target::Below(60.0))),
    ])
}

/// A command that asks the daemon, against one that does nothing.
fn starting(
    installation: &Installation,
    scale: &PagingScale,
    interruption: &mut Interruption,
) -> Result<Row, Failure> {
    output::progress("measuring: the command line");
    let took = |mut command: Command| -> Result<f64, Failure> {
        let began = Instant::now();
        let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status()?;
        if status.success() { Ok(millis(began.elapsed())) } else { Err(format!("{command:?} failed").into()) }
    };
    let (mut plain, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..scale.rounds {
        interruption.check()?;
        plain.push(took(Command::new("/bin/true"))?);
        ours.push(took(installation.command(&["jobs"]))?);
    }
    Ok(Row {
        what: "`switchboard jobs`".to_owned(),
        unit: Unit::Milliseconds,
        baseline: Some(Baseline::of("`true`", &plain, &ours)),
        ours: Spread::of(ours),
        target: Some(Target::Below(50.0)),
    })
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
