//! Confined file verbs: the only command a restricted agent has.
//!
//! Owns what such an agent may do with files, in three faces of one implementation: `file-tools <workspace> <verb> …` for a
//! shell, `file-tools <workspace> '<json>'`, and `file-tools mcp`, a server with one tool per verb. Refuses everything that is
//! not below the workspace, twice: every path is walked beneath it with `openat2` (`beneath`), and before the first path is
//! touched the process locks itself in (`lock`). Starts no program, opens no connection, keeps no state.
//!
//! What is confined by what, and what is not protected, stands in `docs/file-tools.md`.

mod beneath;
mod cli;
mod contents;
mod delete;
mod glob;
mod help;
mod ignored;
mod list;
mod lock;
mod mcp;
mod name;
mod patch;
mod pinned;
mod protected;
mod read;
mod refusal;
mod relocate;
mod request;
mod search;
mod stat;
mod tree;
mod verb;
mod workspace;
mod write;

#[cfg(not(target_os = "linux"))]
compile_error!("file-tools is confined by openat2, Landlock and seccomp, which only Linux has");

pub use delete::Deleted;
pub use list::{Listed, Listing};
pub use lock::{Held, Reach};
pub use patch::Patched;
pub use read::{Encoding, Endings, Lines};
pub use refusal::{Code, Refusal};
pub use relocate::Moved;
pub use request::{Case, Delete, Edit, List, Move, Patch, Read, Request, Search, Stat, Write};
pub use search::{Line, Matches, Skipped};
pub use stat::Facts;
pub use verb::Verb;
pub use workspace::{Answer, Setting, Workspace};
pub use write::Written;

use std::ffi::{OsStr, OsString};
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::cli::Order;

/// The operator's word on where the workspace is.
const ROOT: &str = "FILE_TOOLS_ROOT";
/// The operator's word on files with a second name.
const HARDLINKS: &str = "FILE_TOOLS_HARDLINKS";

/// The whole program: reads the command line and the environment, does what is asked, and returns the exit code.
pub fn main() -> ExitCode {
    run(std::env::args_os().skip(1))
}

/// The program with these arguments. Locks the calling process in, so it is the last thing that process does.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let done = cli::parse(args).and_then(carry_out);
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(refusal) => {
            let mut text = serde_json::to_vec(&refusal).unwrap_or_default();
            text.push(b'\n');
            let _ = io::stderr().write_all(&text);
            ExitCode::FAILURE
        }
    }
}

fn carry_out(order: Order) -> Result<(), Refusal> {
    match order {
        Order::Help => print(|out| out.write_all(help::text().as_bytes())),
        Order::Schema => print(|out| serde_json::to_writer_pretty(out, &verb::schema()).map_err(Into::into)),
        Order::Version => {
            // Held as a verb would be, since only the kernel can say what holds.
            let held =
                beneath::Root::open(Path::new("/")).map(|root| lock::lock(root.fd(), Reach::Read).summary());
            let held = held.unwrap_or_else(|refusal| refusal.to_string());
            print(|out| {
                write!(out, concat!("file-tools ", env!("CARGO_PKG_VERSION"), "\nconfined here by: {}"), held)
            })
        }
        Order::Once { workspace, asked } => {
            let path = settle_workspace(Some(&workspace), variable(ROOT).as_deref())?;
            let request = asked.complete()?;
            let workspace = Workspace::enter(&path, request.verb().reach(), setting()?)?;
            let answer = workspace.carry_out(&request)?;
            print(|out| serde_json::to_writer(out, &answer).map_err(Into::into))
        }
        Order::Serve { workspace, verbs } => {
            let path = settle_workspace(workspace.as_deref(), variable(ROOT).as_deref())?;
            let reach = if verbs.iter().any(|verb| verb.reach() == Reach::Write) {
                Reach::Write
            } else {
                Reach::Read
            };
            mcp::serve(Workspace::enter(&path, reach, setting()?)?, verbs)
        }
    }
}

/// The operator's variables.
#[expect(clippy::disallowed_methods, reason = "the program reads its environment here and nowhere else")]
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

fn setting() -> Result<Setting, Refusal> {
    match variable(HARDLINKS).as_deref().map(OsStr::to_str) {
        None => Ok(Setting::default()),
        Some(Some("read")) => Ok(Setting { read_hardlinks: true }),
        Some(_) => Err(Refusal::invalid(
            format!("{HARDLINKS} is set to something unknown"),
            "set it to `read`, or not at all",
        )),
    }
}

/// The workspace: the operator's where there is one, and then no other. Compared in words, so that asking for another tells nothing about it.
fn settle_workspace(asked: Option<&Path>, set: Option<&OsStr>) -> Result<PathBuf, Refusal> {
    let Some(set) = set else {
        return asked.map(Path::to_owned).ok_or_else(|| {
            Refusal::invalid(
                "there is no workspace",
                format!("name it: `file-tools mcp <workspace>`, or set {ROOT}"),
            )
        });
    };
    let set = Path::new(set);
    if !set.is_absolute() {
        return Err(Refusal::invalid(
            format!("{ROOT} is not an absolute path"),
            "the operator has to set it to one",
        ));
    }
    let same = |asked: &Path| {
        std::path::absolute(asked).is_ok_and(|asked| asked == std::path::absolute(set).unwrap_or_default())
    };
    match asked {
        Some(asked) if !same(asked) => Err(Refusal::new(
            Code::PathOutsideWorkspace,
            format!("`{}` is not the workspace", asked.display()),
            format!("the workspace is `{}`", set.display()),
        )),
        _ => Ok(set.to_owned()),
    }
}

/// Where an answer goes. Named, so that the four calls which each line of a large file costs are none in the end; and in pieces: memory
/// for the whole of it is dearer than writing it.
type Out = BufWriter<io::StdoutLock<'static>>;

/// Prints one answer. Whoever does not want it any more gets none.
fn print(write: impl FnOnce(&mut Out) -> io::Result<()>) -> Result<(), Refusal> {
    let mut out = BufWriter::with_capacity(64 * 1024, io::stdout().lock());
    write(&mut out).and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush()).map_err(|refused| {
        Refusal::new(Code::WriteFailed, "the answer could not be printed", "what was asked is done")
            .because(refused)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(asked: Option<&str>, set: Option<&str>) -> Result<PathBuf, Code> {
        settle_workspace(asked.map(Path::new), set.map(OsStr::new)).map_err(|refusal| refusal.code())
    }

    #[test]
    fn the_operators_workspace_is_the_only_one() {
        assert_eq!(settled(Some("/ws"), Some("/ws")), Ok("/ws".into()));
        assert_eq!(settled(Some("/ws/./"), Some("/ws")), Ok("/ws".into()));
        assert_eq!(settled(None, Some("/ws")), Ok("/ws".into()));
        for other in ["/", "/ws/..", "/ws-other", "/w", "ws", ".", "/ws/sub"] {
            assert_eq!(settled(Some(other), Some("/ws")), Err(Code::PathOutsideWorkspace), "{other}");
        }
    }

    #[test]
    fn a_variable_that_names_no_folder_opens_nothing() {
        for set in ["", "ws", "."] {
            assert_eq!(settled(Some("/ws"), Some(set)), Err(Code::InvalidInput), "{set:?}");
            assert_eq!(settled(None, Some(set)), Err(Code::InvalidInput), "{set:?}");
        }
        assert_eq!(settled(None, None), Err(Code::InvalidInput));
    }
}
