//! The files, sockets and the process outside of a sandbox that a probe tries to reach.

use std::fs::{self, DirBuilder};
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use model::{
    AgentState, Confinement, Escape, HomeView, KeptPath, Network, OnCreate, PolicyRoot, Protected,
    Quarantined, SafeguardName,
};

use crate::mechanisms::Tier;
use crate::probe::{EXPOSED, PLANTED, PLANTED_IN_STATE, PROBE_ARGUMENT, ProbePlan, STATE_KEPT, VICTIM};
use crate::sockets::SocketPath;

/// The targets of a probe.
pub(super) struct ProbeTargets {
    pub directory: PathBuf,
    victim: Child,
    socket: UnixListener,
    /// Keeps the socket's path valid: the layout finds and masks the socket by it.
    _path: SocketPath,
    abstract_name: String,
    abstract_socket: UnixListener,
    listener: Option<TcpListener>,
}

impl ProbeTargets {
    /// Creates the targets below `scratch`.
    pub fn create(scratch: &Path, confinement: &Confinement, executable: BorrowedFd<'_>) -> io::Result<Self> {
        let id = format!("{}-{}", std::process::id(), Instant::now().elapsed().as_nanos());
        regular_file::create_private_directory(scratch)?;
        let directory = scratch.canonicalize()?.join(format!("probe-{}", std::process::id()));
        // A killed process with the same pid may have left it.
        let _ = fs::remove_dir_all(&directory);
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700);
        for name in
            ["outside", "hidden", "workspace/.git/hooks", "workspace/deploy/secrets", "state/rules", "home"]
        {
            builder.create(directory.join(name))?;
        }
        let settings = format!("state/{}", PLANTED_IN_STATE[0]);
        for name in ["outside/file", "hidden/secret", "workspace/.git/config", &settings, "home/secret"] {
            fs::write(directory.join(name), "as it was")?;
        }
        fs::write(directory.join("home").join(EXPOSED), "as it was")?;
        let abstract_name = format!("switchboard-probe-{id}");
        let listeners = (|| {
            let path = SocketPath::new(&directory.join("outside/s"))?;
            let socket = UnixListener::bind(&path.path)?;
            let abstract_socket = UnixListener::bind_addr(&UnixAddr::from_abstract_name(&abstract_name)?)?;
            let listener = (confinement.network != Network::Full)
                .then(|| TcpListener::bind("127.0.0.1:0"))
                .transpose()?;
            socket.set_nonblocking(true)?;
            abstract_socket.set_nonblocking(true)?;
            listener.as_ref().map(|listener| listener.set_nonblocking(true)).transpose()?;
            Ok::<_, io::Error>(((socket, path), abstract_socket, listener, spawn_victim(executable)?))
        })();
        match listeners {
            Ok(((socket, path), abstract_socket, listener, victim)) => {
                Ok(Self { directory, victim, socket, _path: path, abstract_name, abstract_socket, listener })
            }
            Err(error) => {
                let _ = fs::remove_dir_all(&directory);
                Err(error)
            }
        }
    }

    /// Returns the probe's workspace.
    pub fn workspace(&self) -> PathBuf {
        self.directory.join("workspace")
    }

    /// Returns the attempts of the probe for a policy.
    pub fn probe_plan(&self, tier: Tier, confinement: &Confinement) -> ProbePlan {
        // A hidden directory with a visible path in it is not empty; these targets may be such a path.
        let has_visible_path = |path: &Path| {
            self.directory.starts_with(path)
                || confinement.roots.iter().any(|root| root.path.starts_with(path))
        };
        let hidden = confinement.hidden.iter().filter(|path| path.exists() && !has_visible_path(path));
        ProbePlan {
            outside: self.directory.join("outside"),
            secret: self.directory.join("hidden/secret"),
            workspace: self.workspace(),
            state: self.directory.join("state"),
            home: self.directory.join("home"),
            hidden: hidden.cloned().collect(),
            victim: i32::try_from(self.victim.id()).unwrap_or_default(),
            socket: self.directory.join("outside/s"),
            abstract_socket: self.abstract_name.clone(),
            listener: self.listener.as_ref().and_then(|listener| listener.local_addr().ok()),
            namespaces: tier == Tier::Namespaces,
        }
    }

    /// Returns a policy extended by the targets.
    pub fn add_to_policy(&self, policy: &Confinement) -> Confinement {
        let protected = |name: &str, on_create| Protected { path: self.workspace().join(name), on_create };
        let mut probed = policy.clone();
        probed.caches = None;
        probed.home = Some(HomeView {
            directory: self.directory.join("home"),
            exposed: vec![self.directory.join("home").join(EXPOSED)],
            programs: Vec::new(),
            copies: Vec::new(),
        });
        probed.states = vec![AgentState {
            directory: self.directory.join("state"),
            variable: None,
            kept: vec![KeptPath::Directory(STATE_KEPT.into())],
            discarded: Vec::new(),
        }];
        probed.roots.extend([
            PolicyRoot::read_only(self.directory.join("outside")),
            PolicyRoot::writable(self.workspace()),
        ]);
        probed.hidden.extend([self.directory.join("hidden"), self.workspace().join("deploy/secrets")]);
        probed.protected.extend([
            protected(".git/hooks", OnCreate::QuarantineAtOnce),
            protected(".git/config", OnCreate::QuarantineAtOnce),
            protected(PLANTED[0], OnCreate::QuarantineAtEnd),
            protected(PLANTED[1], OnCreate::QuarantineAtOnce),
        ]);
        probed
    }

    /// Examines the targets after the run, independently of the probe's own output, and adds the escapes that left a trace.
    pub fn examine(mut self, quarantined: &[Quarantined], escapes: &mut Vec<Escape>) {
        let is_gone = |name: &&str| {
            let path = self.workspace().join(name);
            let was_moved = |entry: &Quarantined| entry.path == path && entry.moved_to.is_some();
            fs::symlink_metadata(&path).is_err() && quarantined.iter().any(was_moved)
        };
        let (tried, safeguard) = ("leave a protected file".to_owned(), SafeguardName::ProtectedPaths);
        let stopped = PLANTED.iter().all(is_gone);
        let said = if stopped { "moved to quarantine" } else { "still present after the run" }.to_owned();
        escapes.push(Escape { tried, safeguard, stopped, said });
        let mut add_if = |happened: bool, tried: &str, safeguard| {
            if happened {
                let said = "detected from outside".to_owned();
                escapes.push(Escape { tried: tried.to_owned(), safeguard, stopped: false, said });
            }
        };
        let changed =
            |name: &str| fs::read(self.directory.join(name)).map_or(true, |bytes| bytes != b"as it was");
        add_if(
            self.directory.join("outside/written").exists() || changed("outside/file"),
            "write outside",
            SafeguardName::Writes,
        );
        let planted = self.directory.join("workspace/.git/hooks/pre-commit").exists()
            || changed("workspace/.git/config");
        add_if(planted, "plant a protected path", SafeguardName::ProtectedPaths);
        let [settings, new @ ..] = PLANTED_IN_STATE.map(|name| format!("state/{name}"));
        let planted = changed(&settings) || new.iter().any(|name| self.directory.join(name).exists());
        add_if(planted, "plant something in the agent's state", SafeguardName::Writes);
        add_if(
            !matches!(self.victim.try_wait(), Ok(None)),
            "kill a process outside",
            SafeguardName::Processes,
        );
        add_if(
            self.socket.accept().is_ok(),
            "connect to a socket in the file system",
            SafeguardName::UnixSockets,
        );
        add_if(
            self.abstract_socket.accept().is_ok(),
            "connect to an abstract socket",
            SafeguardName::UnixSockets,
        );
        let reached = self.listener.as_ref().is_some_and(|listener| listener.accept().is_ok());
        add_if(reached, "connect to a port outside", SafeguardName::Network);
    }
}

impl Drop for ProbeTargets {
    fn drop(&mut self) {
        let _ = self.victim.kill();
        let _ = self.victim.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

#[expect(clippy::disallowed_methods, reason = "the one place where the victim of a probe is started")]
fn spawn_victim(executable: BorrowedFd<'_>) -> io::Result<Child> {
    Command::new(format!("/proc/self/fd/{}", executable.as_raw_fd()))
        .args([PROBE_ARGUMENT, VICTIM])
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
}
