//! Compares the store with hand-written rusqlite code, alternating in one run, and prints a report.
//!
//! A missed target is printed but does not fail the process, so that no build depends on the load of the machine.
//! `cargo bench -p store` takes about ten minutes; `cargo bench -p store -- --quick` is a smoke test.
#![expect(
    clippy::disallowed_methods,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a bench prints its table, spawns a server, and panics on errors"
)]

mod baseline;
mod filled_store;
#[path = "../../../../bench/src/machine.rs"]
#[cfg_attr(test, expect(unused_imports, reason = "its own tests run where it lives"))]
mod machine;
mod measure;
#[path = "../../../../bench/src/report.rs"]
#[expect(dead_code, reason = "other benches use more of it")]
mod report;
#[path = "../../tests/store/server.rs"]
#[expect(dead_code, reason = "the tests use more of it")]
mod server;
#[path = "../../../../bench/src/spread.rs"]
#[cfg_attr(test, expect(unused_imports, reason = "its own tests run where it lives"))]
mod spread;
mod subject;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs};

use crate::machine::{BenchMachine, file_system_of};
use crate::measure::{FULL, QUICK, Scale};
use crate::report::{Report, table};

const USAGE: &str = "cargo bench -p store --bench store -- [--quick | --save] [--work DIRECTORY]...

  --quick           run a smoke test: one round with few jobs, whose figures mean little
  --save            also write the report to bench/results/store.md
  --work DIRECTORY  create the files there, with one table per directory [default: the temporary directory]";

#[derive(Debug, Default, PartialEq, Eq)]
struct Arguments {
    quick: bool,
    save: bool,
    work: Vec<PathBuf>,
}

impl Arguments {
    fn read(arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let (mut read, mut arguments) = (Self::default(), arguments);
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                // Added by cargo.
                "--bench" => {}
                "--quick" | "--test" => read.quick = true,
                "--save" => read.save = true,
                "--work" => read.work.push(arguments.next().ok_or("--work needs a directory")?.into()),
                other => return Err(format!("unknown argument `{other}`")),
            }
        }
        if read.quick && read.save {
            return Err("--quick and --save cannot be combined".to_owned());
        }
        if read.work.is_empty() {
            read.work.push(env::temp_dir());
        }
        Ok(read)
    }
}

fn main() -> ExitCode {
    let arguments = match Arguments::read(env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("error: {error}\n\n{USAGE}");
            return ExitCode::FAILURE;
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let scale = if arguments.quick { QUICK } else { FULL };
    let page = runtime.block_on(page(&arguments, scale));
    println!("{page}");
    if arguments.save {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/results/store.md");
        fs::write(&file, page).unwrap();
        eprintln!("written to {}", file.canonicalize().unwrap().display());
    }
    ExitCode::SUCCESS
}

async fn page(arguments: &Arguments, scale: Scale) -> String {
    let machine = BenchMachine::look(&arguments.work[0]).unwrap();
    let mut tables = String::new();
    for work in &arguments.work {
        // Removed on drop.
        let directory = tempfile::Builder::new().prefix("bench-store-").tempdir_in(work).unwrap();
        let system = file_system_of(directory.path()).unwrap();
        eprintln!("measuring on {system}");
        let rows = measure::measure_sqlite(scale, directory.path()).await;
        tables.extend(["## SQLite, on ", &system, "\n\n", &table(&rows), "\n"]);
    }
    let directory = tempfile::Builder::new().prefix("bench-store-").tempdir_in(&arguments.work[0]).unwrap();
    let rows = match measure::measure_server(scale, directory.path()).await {
        Ok(rows) => table(&rows),
        Err(reason) => format!("Left out: {reason}.\n"),
    };
    tables.extend(["## A SurrealDB server, for orientation\n\n", &rows]);
    let given = env::args().skip(1).filter(|argument| argument != "--bench");
    let command =
        ["cargo bench -p store --".to_owned()].into_iter().chain(given).collect::<Vec<_>>().join(" ");
    Report { title: "What the store costs", command, machine, method: scale.method(), table: tables }
        .to_string()
}
