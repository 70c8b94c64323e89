//! Measures the store against rusqlite by hand, in turn and in one run, and prints a page.
//!
//! Refuses to judge: a missed target is printed and is no failure, so that no build depends on how busy the machine was.
//! `cargo bench -p store` takes some ten minutes; `cargo bench -p store -- --quick` only shows that it works.
#![expect(
    clippy::disallowed_methods,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a bench prints its table, starts its server, and ends when something fails"
)]

mod by_hand;
mod filled;
#[path = "../../../../bench/src/machine.rs"]
#[cfg_attr(test, expect(unused_imports, reason = "its own tests run where it lives"))]
mod machine;
mod measuring;
mod ours;
#[path = "../../../../bench/src/report.rs"]
#[expect(dead_code, reason = "other benches use more of it")]
mod report;
#[path = "../../tests/store/server.rs"]
#[expect(dead_code, reason = "the tests use more of it")]
mod server;
#[path = "../../../../bench/src/spread.rs"]
#[cfg_attr(test, expect(unused_imports, reason = "its own tests run where it lives"))]
mod spread;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs};

use crate::machine::{Machine, file_system_of};
use crate::measuring::{FULL, QUICK, Scale};
use crate::report::{Report, table};

const USAGE: &str = "cargo bench -p store --bench store -- [--quick | --save] [--work FOLDER]...

  --quick        one round with little work, to see that the bench still works; its figures mean little
  --save         also write the page to bench/results/store.md
  --work FOLDER  where the files go; each folder gets a table of its own [default: the system's for temporary files]";

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
                // What cargo itself adds.
                "--bench" => {}
                "--quick" | "--test" => read.quick = true,
                "--save" => read.save = true,
                "--work" => read.work.push(arguments.next().ok_or("--work needs a folder")?.into()),
                other => return Err(format!("`{other}` is not understood")),
            }
        }
        if read.quick && read.save {
            return Err("quick figures are not saved over real ones".to_owned());
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
        Err(mistake) => {
            eprintln!("error: {mistake}\n\n{USAGE}");
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
    let machine = Machine::look(&arguments.work[0]).unwrap();
    let mut tables = String::new();
    for work in &arguments.work {
        // Dropped at every way out, so nothing of it stays.
        let folder = tempfile::Builder::new().prefix("bench-store-").tempdir_in(work).unwrap();
        let system = file_system_of(folder.path()).unwrap();
        eprintln!("measuring on {system}");
        let rows = measuring::on_sqlite(scale, folder.path()).await;
        tables.extend(["## SQLite, on ", &system, "\n\n", &table(&rows), "\n"]);
    }
    let folder = tempfile::Builder::new().prefix("bench-store-").tempdir_in(&arguments.work[0]).unwrap();
    let rows = match measuring::on_a_server(scale, folder.path()).await {
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
