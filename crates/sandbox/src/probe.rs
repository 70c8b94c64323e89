//! The probe: runs inside the real sandbox, in the agent's place, and tries what must fail.
//!
//! Says what happened to it; what really happened is also judged from outside ([`crate::proof`]).

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

use crate::sockets::Address;

/// The first argument with which a program is asked to be a probe, or what one needs.
pub const PROBE: &str = "--switchboard-probe";
/// A process outside that must not be reached.
pub(crate) const VICTIM: &str = "victim";
/// A process inside that must not outlive the sandbox.
const LINGER: &str = "linger";
/// Protected paths that do not exist and that a probe creates.
pub(crate) const PLANTED: [&str; 2] = [".mcp.json", ".git/commondir"];
/// Paths of the agent's own state that a probe changes or creates; the first one exists.
pub(crate) const PLANTED_IN_STATE: [&str; 3] = ["settings", "rules/planted", "planted"];
/// The directory of the agent's own state that outlives a run.
pub(crate) const STATE_KEPT: &str = "sessions";
/// The file in the home directory that is exposed.
pub(crate) const EXPOSED: &str = "exposed";
/// The last thing that a probe says.
pub(crate) const DONE: &str = "done";

/// What a probe is to try.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Errand {
    /// A folder that can be seen and not written.
    pub outside: PathBuf,
    /// A file that cannot be read.
    pub secret: PathBuf,
    /// A folder that can be written, with protected paths in it.
    pub workspace: PathBuf,
    /// The agent's own state.
    pub state: PathBuf,
    /// A home directory with a secret and an exposed file.
    pub home: PathBuf,
    /// Folders of the policy itself in which nothing must be seen.
    pub hidden: Vec<PathBuf>,
    pub victim: i32,
    pub socket: PathBuf,
    pub abstract_socket: String,
    /// Somebody who listens outside and must not be reached.
    pub listener: Option<SocketAddr>,
    /// Whether there are namespaces, which hold more.
    pub namespaces: bool,
}

pub(crate) fn main(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    match args.next().and_then(|part| part.into_string().ok()).as_deref() {
        Some(VICTIM) => wait_for_the_end_of_stdin(),
        Some(LINGER) => std::thread::sleep(Duration::from_secs(30)),
        Some(errand) => match serde_json::from_str(errand) {
            Ok(errand) => run(&errand),
            Err(_) => return ExitCode::from(2),
        },
        None => return ExitCode::from(2),
    }
    ExitCode::SUCCESS
}

/// Ends with the one who started it.
fn wait_for_the_end_of_stdin() {
    let _ = io::stdin().read(&mut [0]);
}

fn run(errand: &Errand) {
    let mut escapes = Vec::new();
    let mut tried = |tried: &str, safeguard, result: io::Result<()>| {
        let (stopped, said) = match result {
            Ok(()) => (false, "it worked".to_owned()),
            Err(error) => (true, error.to_string()),
        };
        escapes.push(Escape { tried: tried.to_owned(), safeguard, stopped, said });
    };
    tried("write outside", SafeguardName::Writes, fs::write(errand.outside.join("written"), "x"));
    tried("change a file outside", SafeguardName::Writes, append(&errand.outside.join("file")));
    tried(
        "change a setting of the kernel",
        SafeguardName::Writes,
        rewrite(Path::new("/proc/sys/kernel/core_pattern")),
    );
    tried("read a hidden file", SafeguardName::HiddenPaths, fs::read(&errand.secret).map(drop));
    let link = errand.workspace.join("link");
    let through_link = symlink(&errand.secret, &link).and_then(|()| fs::read(&link).map(drop));
    tried("read a hidden file through a link", SafeguardName::HiddenPaths, through_link);
    tried(
        "read the home directory",
        SafeguardName::HiddenPaths,
        fs::read(errand.home.join("secret")).map(drop),
    );
    for hidden in &errand.hidden {
        tried(&format!("look into {}", hidden.display()), SafeguardName::HiddenPaths, look_into(hidden));
    }
    tried("kill a process outside", SafeguardName::Processes, kill(errand.victim));
    tried(
        "connect to an abstract socket",
        SafeguardName::UnixSockets,
        connect_abstract(&errand.abstract_socket),
    );
    if let Some(listener) = errand.listener {
        let reached = TcpStream::connect_timeout(&listener, Duration::from_secs(2)).map(drop);
        tried("connect to a port outside", SafeguardName::Network, reached);
    }
    if errand.namespaces {
        tried("connect to a socket in the file system", SafeguardName::UnixSockets, connect(&errand.socket));
        let hook = errand.workspace.join(".git/hooks/pre-commit");
        tried("plant a hook", SafeguardName::ProtectedPaths, fs::write(&hook, "x"));
        tried(
            "change the configuration of git",
            SafeguardName::ProtectedPaths,
            append(&errand.workspace.join(".git/config")),
        );
        let (git, other) = (errand.workspace.join(".git"), errand.workspace.join("other"));
        tried("rename the folder of protected paths", SafeguardName::ProtectedPaths, fs::rename(git, other));
        let (above, other) = (errand.workspace.join("deploy"), errand.workspace.join("moved"));
        tried("rename a directory above a hidden one", SafeguardName::HiddenPaths, fs::rename(above, other));
    }
    // Both succeed, and must be gone when the run is over.
    let _ = append(&errand.workspace.join(PLANTED[0])).and(append(&errand.workspace.join(PLANTED[1])));
    // Some succeed, in a private copy.
    for name in PLANTED_IN_STATE {
        let _ = append(&errand.state.join(name));
    }
    // The other way round: a sandbox that stops everything would pass all of the above.
    let works = fs::write(errand.workspace.join("works"), "x");
    let works = works.and(fs::write(errand.state.join(STATE_KEPT).join("works"), "x"));
    let works = works.and(fs::read(errand.home.join(EXPOSED)).map(drop));
    let mut out = io::stdout();
    for escape in &escapes {
        let _ = writeln!(out, "{}", serde_json::to_string(escape).unwrap_or_default());
    }
    match works {
        Ok(()) if !errand.namespaces || linger() => drop(writeln!(out, "{DONE}")),
        Ok(()) => drop(writeln!(out, "no process can be started")),
        Err(error) => drop(writeln!(out, "the workspace or the state cannot be used: {error}")),
    }
    let _ = out.flush();
    // Ended from outside, with everything that it has left.
    std::thread::sleep(Duration::from_secs(30));
}

fn append(path: &Path) -> io::Result<()> {
    OpenOptions::new().append(true).create(true).open(path)?.write_all(b"x")
}

/// Writes what is there already, so that a try that is not stopped does no harm.
fn rewrite(path: &Path) -> io::Result<()> {
    fs::write(path, fs::read(path)?)
}

fn look_into(hidden: &Path) -> io::Result<()> {
    if fs::metadata(hidden)?.is_dir() {
        fs::read_dir(hidden)?
            .next()
            .map_or_else(|| Err(io::Error::other("it is empty")), |entry| entry.map(drop))
    } else if fs::read(hidden)?.is_empty() {
        Err(io::Error::other("it is empty"))
    } else {
        Ok(())
    }
}

fn kill(victim: i32) -> io::Result<()> {
    match Pid::from_raw(victim) {
        // In a namespace of few processes the same number is this very one.
        Some(pid) if pid != getpid() && victim > 8 => Ok(kill_process(pid, Signal::KILL)?),
        _ => Err(io::Error::other("another process has its number here")),
    }
}

/// By a path that fits: one that is too long would fail whatever the sandbox does, and prove nothing.
fn connect(socket: &Path) -> io::Result<()> {
    UnixStream::connect(&Address::of(socket)?.path).map(drop)
}

fn connect_abstract(name: &str) -> io::Result<()> {
    UnixStream::connect_addr(&UnixAddr::from_abstract_name(name)?).map(drop)
}

/// Leaves a process of another session that holds on to stdout.
#[expect(clippy::disallowed_methods, reason = "a probe leaves a process behind, to see it end")]
fn linger() -> bool {
    use std::os::unix::process::CommandExt;
    // Not `setsid`, which may be missing: a group of its own is all that the kill goes by.
    let again = PathBuf::from("/proc/self/exe");
    Command::new(again)
        .args([PROBE, LINGER])
        .env_clear()
        .stdin(Stdio::null())
        .process_group(0)
        .spawn()
        .is_ok()
}
