//! Measures the claims about Switchboard, and prints tables.
//!
//! Every figure is a ratio against a baseline that alternates with ours, because wall times of different days and machines are
//! not comparable. A missed target is printed and is not a failure, so that no build depends on the load of the machine.
#![expect(clippy::disallowed_methods, reason = "a bench starts the baselines it measures against")]

mod census;
mod checking_out;
mod client;
mod confining;
mod cost;
mod executables;
mod faults;
mod filing;
mod installation;
mod instructions;
mod interruption;
mod library;
mod machine;
mod output;
mod paging;
mod peers;
mod plot;
mod process;
mod random;
mod recovering;
mod report;
mod scale;
mod serving;
mod snapshotting;
mod soak;
mod spread;
mod supervising;
mod turns;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use std::{env, fs, iter};

use clap::{Args, Parser, Subcommand};

use crate::executables::Executables;
use crate::interruption::Interruption;
use crate::machine::BenchMachine;
use crate::report::{Report, Row};
use crate::supervising::{SupervisingFigure, SupervisingScale};

/// An error of a bench. A text is enough for the person who runs it.
type Failure = Box<dyn Error + Send + Sync>;

/// Measure the claims about Switchboard.
#[derive(Debug, Parser)]
#[command(version)]
struct CommandLine {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// Cost of the supervisor: time, memory, throughput, concurrency
    Supervisor(Options),
    /// Cost of confined file operations: start, read, search
    FileTools(Common),
    /// Cost of a sandbox at the start of a run
    Sandbox(Common),
    /// Cost of a call through the MCP server: start, time, memory, concurrency, a long transcript
    Serving(ServingOptions),
    /// Cost of the libraries compared with plain `serde_json` and `rusqlite`
    Library(Common),
    /// Outcomes of calls under injected faults, for ours and every installed peer; fails if ours breaks a promise
    Faults(FaultOptions),
    /// Random faults and kills for a long time, with invariants; fails if one is violated
    Soak(SoakOptions),
    /// Instruction counts of the hot paths, compared with the baseline
    Instructions(InstructionOptions),
    /// Scaling limits of many daemons on one database: a simulation
    Scale(ScaleOptions),
    /// Cost of the web page with 10,000 jobs: first byte, whole page, watchers; and the start of the command line
    Page(Common),
    /// Cost of `switchboard recover` with 10,000 jobs: time and memory
    Recover(Common),
    /// Cost of the snapshots before and after a job in a git repository
    Changes(Common),
    /// Fill a new home with jobs of the past weeks, to look at; nothing is measured
    Fill(Past),
}

#[derive(Debug, Args)]
struct Past {
    /// The directory that becomes `SWITCHBOARD_HOME`
    home: PathBuf,
    /// Number of jobs
    #[arg(long, default_value_t = 400)]
    jobs: u64,
}

/// Options of every bench.
#[derive(Debug, Args)]
struct Common {
    /// One round with little work, to see that the bench still works; its figures mean little
    #[arg(long)]
    quick: bool,
    /// Also write the table to bench/results/
    #[arg(long, conflicts_with = "quick")]
    save: bool,
    /// Work directory; needs 6 GB [default: beside this program]
    #[arg(long, value_name = "DIRECTORY")]
    work: Option<PathBuf>,
}

impl Common {
    /// Returns the command line without the directories of this machine.
    fn command(&self, args: impl Iterator<Item = String>) -> String {
        let work = self.work.as_deref().map(|work| work.to_string_lossy().into_owned());
        let hide = |arg: String| match &work {
            Some(work) if arg == *work => "DIRECTORY".to_owned(),
            Some(work) if arg == format!("--work={work}") => "--work=DIRECTORY".to_owned(),
            _ => arg,
        };
        iter::once("bench".to_owned()).chain(args.skip(1).map(hide)).collect::<Vec<_>>().join(" ")
    }
}

#[derive(Debug, Args)]
struct Options {
    #[command(flatten)]
    common: Common,
    /// Take this figure alone, to profile it
    #[arg(long, value_name = "FIGURE", conflicts_with = "save")]
    only: Option<SupervisingFigure>,
}

#[derive(Debug, Args)]
struct ServingOptions {
    #[command(flatten)]
    common: Common,
    /// Take this figure alone, to profile it
    #[arg(long, value_name = "FIGURE", conflicts_with = "save")]
    only: Option<serving::ServingFigure>,
    /// Also measure the other servers that `scripts/peers-install` has installed
    #[arg(long)]
    peers: bool,
}

#[derive(Debug, Args)]
struct FaultOptions {
    #[command(flatten)]
    common: Common,
    /// Try this fault alone
    #[arg(long, value_name = "FAULT", conflicts_with = "save")]
    only: Option<faults::InjectedFault>,
    /// Try this server alone, by its name in the table
    #[arg(long, value_name = "NAME", conflicts_with = "save")]
    server: Option<String>,
}

#[derive(Debug, Args)]
struct SoakOptions {
    #[command(flatten)]
    common: Common,
    /// Duration in minutes
    #[arg(long, value_name = "N", default_value_t = 3, conflicts_with = "seconds")]
    minutes: u64,
    /// Duration in seconds
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,
    /// Seed of the calls and kills [default: random]
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
}

#[derive(Debug, Args)]
struct InstructionOptions {
    /// Store the counts as the baseline
    #[arg(long)]
    keep: bool,
}

#[derive(Debug, Args)]
struct ScaleOptions {
    /// Another seed gives other chances
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Also write the tables and the charts to bench/results/
    #[arg(long)]
    save: bool,
}

fn main() -> ExitCode {
    let measured = match CommandLine::parse().bench {
        Bench::Supervisor(options) => measure_supervising(&options),
        Bench::FileTools(common) => measure_filing(&common),
        Bench::Sandbox(common) => measure_confining(&common),
        Bench::Serving(options) => measure_serving(&options),
        Bench::Page(common) => measure_paging(&common),
        Bench::Recover(common) => measure_recovering(&common),
        Bench::Changes(common) => measure_snapshotting(&common),
        Bench::Fill(past) => fill(&past),
        Bench::Library(common) => measure_library(&common),
        Bench::Faults(options) => try_faults(&options),
        Bench::Soak(options) => soak_for_long(&options),
        Bench::Instructions(options) => count_instructions(&options),
        Bench::Scale(options) => simulate(&options),
    };
    match measured {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::complain(failure.as_ref());
            ExitCode::FAILURE
        }
    }
}

fn measure_supervising(options: &Options) -> Result<(), Failure> {
    let scale = if options.common.quick { SupervisingScale::QUICK } else { SupervisingScale::FULL };
    let page = Page { title: "Supervisor overhead", file: "supervisor.md", method: scale.method() };
    page.fill(&options.common, |executables, directory| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let interruption = Interruption::listen()?;
            supervising::measure(executables, directory, &scale, options.only, interruption).await
        })
    })
}

fn measure_filing(common: &Common) -> Result<(), Failure> {
    let scale = if common.quick { filing::FilingScale::QUICK } else { filing::FilingScale::FULL };
    let searcher = filing::Searcher::find();
    let page = Page { title: "file-tools overhead", file: "file-tools.md", method: scale.method(&searcher) };
    page.fill(common, |executables, directory| filing::measure(executables, directory, &scale, &searcher))
}

fn measure_serving(options: &ServingOptions) -> Result<(), Failure> {
    let scale = if options.common.quick { serving::ServingScale::QUICK } else { serving::ServingScale::FULL };
    let page = Page { title: "Call overhead", file: "serving.md", method: scale.method() };
    let mut plots = Vec::new();
    page.fill(&options.common, |executables, directory| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let interruption = Interruption::listen()?;
            let measured =
                serving::measure(executables, directory, &scale, options.only, options.peers, interruption)
                    .await?;
            plots = measured.plots;
            Ok(measured.rows)
        })
    })?;
    if options.common.save {
        plots.iter().try_for_each(|(name, plot)| save(name, plot))?;
    }
    Ok(())
}

fn measure_library(common: &Common) -> Result<(), Failure> {
    let scale = if common.quick { library::LibraryScale::QUICK } else { library::LibraryScale::FULL };
    let page = Page { title: "Library overhead", file: "library.md", method: scale.method() };
    page.fill(common, |_, directory| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let interruption = Interruption::listen()?;
            library::measure(directory, &scale, interruption).await
        })
    })
}

fn measure_paging(common: &Common) -> Result<(), Failure> {
    let scale = if common.quick { paging::PagingScale::QUICK } else { paging::PagingScale::FULL };
    let page = Page { title: "Dashboard overhead", file: "page.md", method: scale.method() };
    page.fill(common, |executables, directory| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let interruption = Interruption::listen()?;
            paging::measure(executables, directory, &scale, interruption).await
        })
    })
}

fn measure_recovering(common: &Common) -> Result<(), Failure> {
    let scale =
        if common.quick { recovering::RecoveringScale::QUICK } else { recovering::RecoveringScale::FULL };
    let page = Page { title: "Recovery time", file: "recover.md", method: scale.method() };
    page.fill(common, |executables, directory| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(recovering::measure(executables, directory, &scale))
    })
}

fn measure_snapshotting(common: &Common) -> Result<(), Failure> {
    let scale = if common.quick {
        snapshotting::SnapshottingScale::QUICK
    } else {
        snapshotting::SnapshottingScale::FULL
    };
    let checkouts = if common.quick {
        checking_out::CheckingOutScale::QUICK
    } else {
        checking_out::CheckingOutScale::FULL
    };
    let method = format!("{}\n{}", scale.method(), checkouts.method());
    let page = Page { title: "Snapshot and checkout overhead", file: "changes.md", method };
    page.fill(common, |_, directory| {
        let mut rows = snapshotting::measure(directory, &scale)?;
        rows.extend(checking_out::measure(directory, &checkouts)?);
        Ok(rows)
    })
}

fn fill(past: &Past) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(paging::fill(&past.home, past.jobs, 30))
}

fn try_faults(options: &FaultOptions) -> Result<(), Failure> {
    let scale = faults::FaultsScale {
        megabytes: if options.common.quick { 20 } else { 200 },
        only: options.only,
        server: options.server.clone(),
    };
    let page = Page {
        title: "Call outcomes under injected faults",
        file: "faults.md",
        method: faults::method(&scale),
    };
    let mut broken = Vec::new();
    page.write(&options.common, |executables, directory| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let tried = runtime.block_on(async {
            faults::table(executables, directory, &scale, Interruption::listen()?).await
        })?;
        broken = tried.broken;
        Ok(tried.table)
    })?;
    if broken.is_empty() {
        Ok(())
    } else {
        Err(format!("a guarantee was violated: {}", broken.join("; ")).into())
    }
}

fn soak_for_long(options: &SoakOptions) -> Result<(), Failure> {
    let seconds = if options.common.quick { 10 } else { options.seconds.unwrap_or(options.minutes * 60) };
    let seed = options.seed.unwrap_or_else(|| u64::from(std::process::id()));
    let scale = soak::SoakScale { time: Duration::from_secs(seconds), seed };
    output::progress(&format!("soaking for {seconds} s, seed {seed}"));
    let page = Page { title: "Soak test", file: "soak.md", method: soak::method(&scale) };
    let mut violations = 0;
    page.write(&options.common, |executables, directory| {
        let soaked = soak::soak(executables, directory, scale)?;
        violations = soaked.violations.len();
        Ok(soaked.table)
    })?;
    match violations {
        0 => Ok(()),
        count => Err(format!("{count} violations (see above); the seed was {seed}").into()),
    }
}

fn count_instructions(options: &InstructionOptions) -> Result<(), Failure> {
    if let Some(reason) = instructions::missing() {
        output::progress(&format!("SKIPPED: {reason}"));
        return Ok(());
    }
    let executables = Executables::beside_this_program()?;
    let directory = tempfile::tempdir()?;
    output::table(&instructions::table(&executables, directory.path(), options.keep)?);
    Ok(())
}

fn simulate(options: &ScaleOptions) -> Result<(), Failure> {
    let simulated = scale::simulate(options.seed)?;
    let command = format!("bench scale --seed {}", options.seed);
    let text = format!(
        "# Many daemons on one database, simulated\n\n```console\n$ {command}\n```\n\n\
         Calibrated by [`bench/scale.toml`](../scale.toml), explained in [docs/scale.md](../../docs/scale.md).\n\n{}",
        simulated.tables
    );
    output::table(&text);
    if options.save {
        save("scale.md", &text)?;
        simulated.plots.iter().try_for_each(|(name, plot)| save(name, plot))?;
    }
    Ok(())
}

/// A page that is still without figures.
struct Page {
    title: &'static str,
    file: &'static str,
    method: String,
}

impl Page {
    /// Takes the figures in a work directory, prints the page, and saves it on request.
    fn fill(
        self,
        common: &Common,
        measure: impl FnOnce(&Executables, &Path) -> Result<Vec<Row>, Failure>,
    ) -> Result<(), Failure> {
        self.write(common, |executables, directory| Ok(report::table(&measure(executables, directory)?)))
    }

    /// Prints a table that is not a comparison.
    fn write(
        self,
        common: &Common,
        measure: impl FnOnce(&Executables, &Path) -> Result<String, Failure>,
    ) -> Result<(), Failure> {
        let executables = Executables::beside_this_program()?;
        let work = common.work.as_deref().unwrap_or(executables.directory());
        // Dropped at every way out, so nothing of it stays.
        let directory = tempfile::Builder::new().prefix("bench-").tempdir_in(work)?;
        let machine = BenchMachine::look(directory.path())?;
        let table = measure(&executables, directory.path())?;
        directory.close()?;
        let report = Report {
            title: self.title,
            command: common.command(env::args()),
            machine,
            method: self.method,
            table,
        };
        let text = report.to_string();
        output::table(&text);
        if common.save {
            save(self.file, &text)?;
        }
        Ok(())
    }
}

fn measure_confining(common: &Common) -> Result<(), Failure> {
    let scale = if common.quick { confining::ConfiningScale::QUICK } else { confining::ConfiningScale::FULL };
    let page = Page { title: "Sandbox overhead", file: "sandbox.md", method: scale.method() };
    page.fill(common, |executables, directory| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let interruption = Interruption::listen()?;
            confining::measure(executables, directory, &scale, interruption).await
        })
    })
}

fn save(name: &str, text: &str) -> Result<(), Failure> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("results");
    fs::create_dir_all(&directory)?;
    let file = directory.join(name);
    fs::write(&file, text)?;
    output::progress(&format!("written to {}", file.display()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn command_line_definition_is_valid() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn saved_command_names_no_directory() {
        for args in [&["/b/bench", "changes", "--save", "--work", "/w"][..], &["bench", "page", "--work=/w"]]
        {
            let CommandLine { bench: Bench::Changes(common) | Bench::Page(common) } =
                CommandLine::try_parse_from(args).unwrap()
            else {
                unreachable!()
            };
            let command = common.command(args.iter().map(|arg| (*arg).to_owned()));
            assert!(command.contains("DIRECTORY") && !command.contains('/'), "{command}");
        }
    }

    #[test]
    fn quick_run_cannot_be_saved() {
        let refused = CommandLine::try_parse_from(["bench", "supervisor", "--quick", "--save"]).unwrap_err();
        assert_eq!(refused.kind(), clap::error::ErrorKind::ArgumentConflict);
    }
}
