//! The probe: runs in the real sandbox in place of the agent and attempts escapes that must fail.
//!
//! Prints the result of each attempt. The self-test also examines the targets from outside ([`crate::self_test`]).

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::symlink;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use model::{Escape, SafeguardName};
use rustix::process::{Pid, Signal, getpid, kill_process};
use serde::{Deserialize, Serialize};

use crate::sockets::SocketPath;

/// The first argument with which a program is started as a probe, or as one of its helpers.
pub const PROBE_ARGUMENT: &str = "--switchboard-probe";
/// The helper outside of the sandbox that must not be reached.
pub(crate) const VICTIM: &str = "victim";
/// The helper inside of the sandbox that must not outlive it.
const LINGER: &str = "linger";
/// Protected paths that do not exist and that a probe creates.
pub(crate) const PLANTED: [&str; 2] = [".mcp.json", ".git/commondir"];
/// Paths of the agent's own state that a probe changes or creates; the first one exists.
pub(crate) const PLANTED_IN_STATE: [&str; 3] = ["settings", "rules/planted", "planted"];
/// The directory of the agent's own state that outlives a run.
pub(crate) const STATE_KEPT: &str = "sessions";
/// The file in the home directory that is exposed.
pub(crate) const EXPOSED: &str = "exposed";
/// The last line of a probe.
pub(crate) const DONE: &str = "done";

/// The escape attempts of a probe.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ProbePlan {
    /// A visible directory that is not writable.
    pub outside: PathBuf,
    /// A hidden file.
    pub secret: PathBuf,
    /// A writable directory with protected paths in it.
    pub workspace: PathBuf,
    /// The agent's own state.
    pub state: PathBuf,
    /// A home directory with a secret and an exposed file.
    pub home: PathBuf,
    /// Hidden paths of the policy itself.
    pub hidden: Vec<PathBuf>,
    pub victim: i32,
    pub socket: PathBuf,
    pub abstract_socket: String,
    /// A listener outside that must not be reached.
    pub listener: Option<SocketAddr>,
    /// Is true if the sandbox has namespaces, which enforce more.
    pub namespaces: bool,
}

/// Runs a probe or one of its helpers.
pub(crate) fn main(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    match args.next().and_then(|part| part.into_string().ok()).as_deref() {
        Some(VICTIM) => wait_for_stdin_eof(),
        Some(LINGER) => std::thread::sleep(Duration::from_secs(30)),
        Some(plan) => match serde_json::from_str(plan) {
            Ok(plan) => attempt_escapes(&plan),
            Err(_) => return ExitCode::from(2),
        },
        None => return ExitCode::from(2),
    }
    ExitCode::SUCCESS
}

/// Exits with the parent process, which holds the other end.
fn wait_for_stdin_eof() {
    let _ = io::stdin().read(&mut [0]);
}

fn attempt_escapes(plan: &ProbePlan) {
    let mut escapes = Vec::new();
    let mut attempt = |tried: &str, safeguard, result: io::Result<()>| {
        let (stopped, said) = match result {
            Ok(()) => (false, "succeeded".to_owned()),
            Err(error) => (true, error.to_string()),
        };
        escapes.push(Escape { tried: tried.to_owned(), safeguard, stopped, said });
    };
    attempt("write outside", SafeguardName::Writes, fs::write(plan.outside.join("written"), "x"));
    attempt("change a file outside", SafeguardName::Writes, append(&plan.outside.join("file")));
    attempt(
        "change a kernel setting",
        SafeguardName::Writes,
        rewrite(Path::new("/proc/sys/kernel/core_pattern")),
    );
    attempt("read a hidden file", SafeguardName::HiddenPaths, fs::read(&plan.secret).map(drop));
    let link = plan.workspace.join("link");
    let through_link = symlink(&plan.secret, &link).and_then(|()| fs::read(&link).map(drop));
    attempt("read a hidden file through a link", SafeguardName::HiddenPaths, through_link);
    attempt(
        "read the home directory",
        SafeguardName::HiddenPaths,
        fs::read(plan.home.join("secret")).map(drop),
    );
    for hidden in &plan.hidden {
        attempt(&format!("list {}", hidden.display()), SafeguardName::HiddenPaths, list_hidden(hidden));
    }
    attempt("kill a process outside", SafeguardName::Processes, kill(plan.victim));
    attempt(
        "connect to an abstract socket",
        SafeguardName::UnixSockets,
        connect_abstract(&plan.abstract_socket),
    );
    if let Some(listener) = plan.listener {
        let reached = TcpStream::connect_timeout(&listener, Duration::from_secs(2)).map(drop);
        attempt("connect to a port outside", SafeguardName::Network, reached);
    }
    if plan.namespaces {
        attempt("connect to a socket in the file system", SafeguardName::UnixSockets, connect(&plan.socket));
        let hook = plan.workspace.join(".git/hooks/pre-commit");
        attempt("plant a hook", SafeguardName::ProtectedPaths, fs::write(&hook, "x"));
        attempt(
            "change the git configuration",
            SafeguardName::ProtectedPaths,
            append(&plan.workspace.join(".git/config")),
        );
        let (git, other) = (plan.workspace.join(".git"), plan.workspace.join("other"));
        attempt(
            "rename the directory of protected paths",
            SafeguardName::ProtectedPaths,
            fs::rename(git, other),
        );
        let (above, other) = (plan.workspace.join("deploy"), plan.workspace.join("moved"));
        attempt(
            "rename a directory above a hidden one",
            SafeguardName::HiddenPaths,
            fs::rename(above, other),
        );
    }
    // Both succeed, and must be quarantined when the run is over.
    let _ = append(&plan.workspace.join(PLANTED[0])).and(append(&plan.workspace.join(PLANTED[1])));
    // Some succeed, in a private copy.
    for name in PLANTED_IN_STATE {
        let _ = append(&plan.state.join(name));
    }
    // A sandbox that blocks everything would pass all of the above, so allowed accesses must succeed.
    let works = fs::write(plan.workspace.join("works"), "x");
    let works = works.and(fs::write(plan.state.join(STATE_KEPT).join("works"), "x"));
    let works = works.and(fs::read(plan.home.join(EXPOSED)).map(drop));
    let mut out = io::stdout();
    for escape in &escapes {
        let _ = writeln!(out, "{}", serde_json::to_string(escape).unwrap_or_default());
    }
    match works {
        Ok(()) if !plan.namespaces || leave_process() => drop(writeln!(out, "{DONE}")),
        Ok(()) => drop(writeln!(out, "cannot start a process")),
        Err(error) => drop(writeln!(out, "cannot use the workspace or the state directory: {error}")),
    }
    let _ = out.flush();
    // The self-test kills this process with all of its descendants.
    std::thread::sleep(Duration::from_secs(30));
}

fn append(path: &Path) -> io::Result<()> {
    OpenOptions::new().append(true).create(true).open(path)?.write_all(b"x")
}

/// Writes the present contents again, so that a successful attempt does no harm.
fn rewrite(path: &Path) -> io::Result<()> {
    fs::write(path, fs::read(path)?)
}

fn list_hidden(hidden: &Path) -> io::Result<()> {
    if fs::metadata(hidden)?.is_dir() {
        fs::read_dir(hidden)?.next().map_or_else(|| Err(io::Error::other("empty")), |entry| entry.map(drop))
    } else if fs::read(hidden)?.is_empty() {
        Err(io::Error::other("empty"))
    } else {
        Ok(())
    }
}

fn kill(victim: i32) -> io::Result<()> {
    match Pid::from_raw(victim) {
        // In a small pid namespace, this process may have the same pid.
        Some(pid) if pid != getpid() && victim > 8 => Ok(kill_process(pid, Signal::KILL)?),
        _ => Err(io::Error::other("another process has this pid")),
    }
}

/// Connects by a path that fits into `sun_path`: a longer one would fail without any sandbox and prove nothing.
fn connect(socket: &Path) -> io::Result<()> {
    UnixStream::connect(&SocketPath::new(socket)?.path).map(drop)
}

fn connect_abstract(name: &str) -> io::Result<()> {
    UnixStream::connect_addr(&UnixAddr::from_abstract_name(name)?).map(drop)
}

/// Leaves a process of another process group that keeps stdout open.
#[expect(clippy::disallowed_methods, reason = "a probe leaves a process behind that the kill must reach")]
fn leave_process() -> bool {
    use std::os::unix::process::CommandExt;
    // Its own process group is enough to escape a kill of the group; the program `setsid` may be missing.
    Command::new("/proc/self/exe")
        .args([PROBE_ARGUMENT, LINGER])
        .env_clear()
        .stdin(Stdio::null())
        .process_group(0)
        .spawn()
        .is_ok()
}
