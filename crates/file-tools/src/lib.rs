//! Confined file operations: the only command of a restricted agent.
//!
//! One implementation with three interfaces: `file-tools <workspace> <verb> …` for a shell, `file-tools <workspace> '<json>'`,
//! and `file-tools mcp`, a server with one tool per verb. Paths outside the workspace are rejected twice: every path is
//! resolved beneath it with `openat2` (`beneath`), and the process confines itself before it touches the first path (`lock`).
//! Starts no program, opens no connection, keeps no state.
//!
//! `docs/file-tools.md` lists the confinement mechanisms and their limits.

mod beneath;
mod cli;
mod contents;
mod delete;
mod dispatch;
mod glob;
mod help;
mod ignored;
mod list;
mod lock;
mod mcp;
mod name;
mod patch;
mod protected;
mod read;
mod rejection;
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

pub use delete::DeleteReply;
pub use dispatch::VerbReply;
pub use list::{ListReply, ListedEntry};
pub use lock::{AppliedConfinement, Reach};
pub use patch::PatchReply;
pub use read::{Encoding, LineEndings, ReadReply};
pub use rejection::{FileRejection, RejectionCode};
pub use relocate::MoveReply;
pub use request::{
    CaseSensitivity, DeleteRequest, Edit, FileRequest, ListRequest, MoveRequest, PatchRequest, ReadRequest,
    SearchRequest, StatRequest, WriteRequest,
};
pub use search::{MatchLine, SearchReply, SkippedFiles};
pub use stat::StatReply;
pub use verb::Verb;
pub use workspace::{OperatorSetting, Workspace};
pub use write::WriteReply;

use std::ffi::{OsStr, OsString};
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::cli::FileToolsInvocation;

/// Set by the operator: the only workspace that is allowed.
const ROOT: &str = "FILE_TOOLS_ROOT";
/// Set by the operator: whether files with hard links may be read.
const HARDLINKS: &str = "FILE_TOOLS_HARDLINKS";

/// The exit code of a call without arguments.
const NO_ARGUMENTS: u8 = 2;

/// Runs the program with the arguments and environment of this process, and returns the exit code.
pub fn main() -> ExitCode {
    run(std::env::args_os().skip(1))
}

/// Runs the program with these arguments. Confines the calling process for good.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let invocation = cli::parse(args);
    if matches!(invocation, Ok(FileToolsInvocation::Usage)) {
        let _ = io::stderr().write_all(help::text().as_bytes());
        return ExitCode::from(NO_ARGUMENTS);
    }
    match invocation.and_then(execute) {
        Ok(()) => ExitCode::SUCCESS,
        Err(refusal) => {
            let mut text = serde_json::to_vec(&refusal).unwrap_or_default();
            text.push(b'\n');
            let _ = io::stderr().write_all(&text);
            ExitCode::FAILURE
        }
    }
}

fn execute(order: FileToolsInvocation) -> Result<(), FileRejection> {
    match order {
        FileToolsInvocation::Help | FileToolsInvocation::Usage => {
            print(|out| out.write_all(help::text().as_bytes()))
        }
        FileToolsInvocation::Schema => {
            print(|out| serde_json::to_writer_pretty(out, &verb::schema()).map_err(Into::into))
        }
        FileToolsInvocation::Version => {
            // Confined like a verb: only the kernel can report the mechanisms in force.
            let held = beneath::WorkspaceRoot::open(Path::new("/"))
                .map(|root| lock::lock(root.fd(), Reach::Read).summary());
            let held = held.unwrap_or_else(|refusal| refusal.to_string());
            print(|out| {
                write!(out, concat!("file-tools ", env!("CARGO_PKG_VERSION"), "\nconfined here by: {}"), held)
            })
        }
        FileToolsInvocation::Once { workspace, asked } => {
            let path = settle_workspace(Some(&workspace), variable(ROOT).as_deref())?;
            let request = asked.complete()?;
            let workspace = Workspace::enter(&path, request.verb().reach(), setting()?)?;
            let answer = workspace.execute(&request)?;
            print(|out| serde_json::to_writer(out, &answer).map_err(Into::into))
        }
        FileToolsInvocation::Serve { workspace, verbs } => {
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

/// Reads the operator's variables.
#[expect(clippy::disallowed_methods, reason = "the program reads its environment here and nowhere else")]
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

fn setting() -> Result<OperatorSetting, FileRejection> {
    match variable(HARDLINKS).as_deref().map(OsStr::to_str) {
        None => Ok(OperatorSetting::default()),
        Some(Some("read")) => Ok(OperatorSetting { read_hardlinks: true }),
        Some(_) => Err(FileRejection::invalid(
            format!("{HARDLINKS} has an unknown value"),
            "set it to `read`, or unset it",
        )),
    }
}

/// Selects the workspace. The operator's setting excludes all others. Paths are compared as text, so that a request for another
/// workspace reveals nothing about it.
fn settle_workspace(asked: Option<&Path>, set: Option<&OsStr>) -> Result<PathBuf, FileRejection> {
    let Some(set) = set else {
        return asked.map(Path::to_owned).ok_or_else(|| {
            FileRejection::invalid(
                "no workspace is given",
                format!("pass it: `file-tools mcp <workspace>`, or set {ROOT}"),
            )
        });
    };
    let set = Path::new(set);
    if !set.is_absolute() {
        return Err(FileRejection::invalid(
            format!("{ROOT} is not an absolute path"),
            "the operator must set it to an absolute path",
        ));
    }
    let same = |asked: &Path| {
        std::path::absolute(asked).is_ok_and(|asked| asked == std::path::absolute(set).unwrap_or_default())
    };
    match asked {
        Some(asked) if !same(asked) => Err(FileRejection::new(
            RejectionCode::PathOutsideWorkspace,
            format!("`{}` is not the workspace", asked.display()),
            format!("the workspace is `{}`", set.display()),
        )),
        _ => Ok(set.to_owned()),
    }
}

/// The destination of a reply. A concrete type, so that the four writes for each line of a large file are inlined; buffered,
/// because memory for the whole reply costs more than writing it in parts.
type Out = BufWriter<io::StdoutLock<'static>>;

/// Prints one reply. A closed pipe is not an error.
fn print(write: impl FnOnce(&mut Out) -> io::Result<()>) -> Result<(), FileRejection> {
    let mut out = BufWriter::with_capacity(64 * 1024, io::stdout().lock());
    write(&mut out).and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush()).map_err(|refused| {
        FileRejection::new(
            RejectionCode::WriteFailed,
            "the result could not be printed",
            "the operation was carried out",
        )
        .because(refused)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(asked: Option<&str>, set: Option<&str>) -> Result<PathBuf, RejectionCode> {
        settle_workspace(asked.map(Path::new), set.map(OsStr::new)).map_err(|refusal| refusal.code())
    }

    #[test]
    fn unconfigured_workspace_is_rejected() {
        assert_eq!(settled(Some("/ws"), Some("/ws")), Ok("/ws".into()));
        assert_eq!(settled(Some("/ws/./"), Some("/ws")), Ok("/ws".into()));
        assert_eq!(settled(None, Some("/ws")), Ok("/ws".into()));
        for other in ["/", "/ws/..", "/ws-other", "/w", "ws", ".", "/ws/sub"] {
            assert_eq!(
                settled(Some(other), Some("/ws")),
                Err(RejectionCode::PathOutsideWorkspace),
                "{other}"
            );
        }
    }

    #[test]
    fn unusable_root_variable_is_rejected() {
        for set in ["", "ws", "."] {
            assert_eq!(settled(Some("/ws"), Some(set)), Err(RejectionCode::InvalidInput), "{set:?}");
            assert_eq!(settled(None, Some(set)), Err(RejectionCode::InvalidInput), "{set:?}");
        }
        assert_eq!(settled(None, None), Err(RejectionCode::InvalidInput));
    }
}
