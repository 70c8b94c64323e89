//! Measures what Switchboard claims, and prints it as a table.
//!
//! Every figure is a ratio against a baseline that runs in turn with ours, since wall times of different days and machines say
//! nothing about each other. Refuses to judge: a missed target is printed and is no failure, so that no build depends on how
//! busy the machine was.
#![expect(clippy::disallowed_methods, reason = "a bench starts the baselines it measures against")]

mod cost;
mod executables;
mod interruption;
mod machine;
mod output;
mod report;
mod spread;
mod supervising;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs, iter};

use clap::{Args, Parser, Subcommand};

use crate::executables::Executables;
use crate::interruption::Interruption;
use crate::machine::Machine;
use crate::report::Report;
use crate::supervising::{Figure, Scale};

/// Why a bench could not be carried out. For the person who runs it, so a text is enough.
type Failure = Box<dyn Error + Send + Sync>;

/// Measures what Switchboard claims.
#[derive(Debug, Parser)]
#[command(version)]
struct CommandLine {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// What the supervisor adds to a run: time, memory, throughput, and many at once
    Supervisor(Options),
}

#[derive(Debug, Args)]
struct Options {
    /// One round with few runs, to see that the bench still works; its figures mean little
    #[arg(long)]
    quick: bool,
    /// Also write the table to bench/results/
    #[arg(long, conflicts_with = "quick")]
    save: bool,
    /// Take this figure alone, to profile it
    #[arg(long, value_name = "FIGURE", conflicts_with = "save")]
    only: Option<Figure>,
    /// Where the files of the runs go; needs 3 GB [default: beside this program]
    #[arg(long, value_name = "FOLDER")]
    work: Option<PathBuf>,
}

fn main() -> ExitCode {
    let CommandLine { bench: Bench::Supervisor(options) } = CommandLine::parse();
    match measure_supervising(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::complain(failure.as_ref());
            ExitCode::FAILURE
        }
    }
}

fn measure_supervising(options: &Options) -> Result<(), Failure> {
    let executables = Executables::beside_this_program()?;
    let work = options.work.as_deref().unwrap_or(executables.folder());
    // Dropped at every way out, so nothing of it stays.
    let folder = tempfile::Builder::new().prefix("bench-").tempdir_in(work)?;
    let machine = Machine::look(folder.path())?;
    let scale = if options.quick { Scale::QUICK } else { Scale::FULL };

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let rows = runtime.block_on(async {
        let interruption = Interruption::listen()?;
        supervising::measure(&executables, folder.path(), &scale, options.only, interruption).await
    })?;
    folder.close()?;

    let report = Report {
        title: "What the supervisor costs",
        // Without the folder it happened to be built in.
        command: iter::once("bench".to_owned()).chain(env::args().skip(1)).collect::<Vec<_>>().join(" "),
        machine,
        method: scale.method(),
        rows,
    };
    let text = report.to_string();
    output::table(&text);
    if options.save {
        save("supervisor.md", &text)?;
    }
    Ok(())
}

fn save(name: &str, text: &str) -> Result<(), Failure> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("results");
    fs::create_dir_all(&folder)?;
    let file = folder.join(name);
    fs::write(&file, text)?;
    output::progress(&format!("written to {}", file.display()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn quick_figures_cannot_be_saved_over_real_ones() {
        let refused = CommandLine::try_parse_from(["bench", "supervisor", "--quick", "--save"]).unwrap_err();
        assert_eq!(refused.kind(), clap::error::ErrorKind::ArgumentConflict);
    }
}
