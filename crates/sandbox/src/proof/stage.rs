//! The files, sockets and the process that a probe tries to reach.

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

use crate::machine::Tier;
use crate::probe::{EXPOSED, Errand, PLANTED, PLANTED_IN_STATE, PROBE, STATE_KEPT, VICTIM};
use crate::sockets::Address;

/// The targets of a probe.
pub(super) struct Stage {
    pub folder: PathBuf,
    victim: Child,
    socket: UnixListener,
    /// By which the socket is listed, and so covered.
    _address: Address,
    abstract_name: String,
    abstract_socket: UnixListener,
    listener: Option<TcpListener>,
}

impl Stage {
    pub fn set(scratch: &Path, confinement: &Confinement, executable: BorrowedFd<'_>) -> io::Result<Self> {
        let id = format!("{}-{}", std::process::id(), Instant::now().elapsed().as_nanos());
        DirBuilder::new().recursive(true).mode(0o700).create(scratch)?;
        let folder = scratch.canonicalize()?.join(format!("probe-{}", std::process::id()));
        // A killed process of the same number may have left it.
        let _ = fs::remove_dir_all(&folder);
        let mut make = DirBuilder::new();
        make.recursive(true).mode(0o700);
        for name in
            ["outside", "hidden", "workspace/.git/hooks", "workspace/deploy/secrets", "state/rules", "home"]
        {
            make.create(folder.join(name))?;
        }
        let settings = format!("state/{}", PLANTED_IN_STATE[0]);
        for name in ["outside/file", "hidden/secret", "workspace/.git/config", &settings, "home/secret"] {
            fs::write(folder.join(name), "as it was")?;
        }
        fs::write(folder.join("home").join(EXPOSED), "as it was")?;
        let abstract_name = format!("switchboard-probe-{id}");
        let listeners = (|| {
            let address = Address::of(&folder.join("outside/s"))?;
            let socket = UnixListener::bind(&address.path)?;
            let abstract_socket = UnixListener::bind_addr(&UnixAddr::from_abstract_name(&abstract_name)?)?;
            let listener = (confinement.network != Network::Full)
                .then(|| TcpListener::bind("127.0.0.1:0"))
                .transpose()?;
            socket.set_nonblocking(true)?;
            abstract_socket.set_nonblocking(true)?;
            listener.as_ref().map(|listener| listener.set_nonblocking(true)).transpose()?;
            Ok::<_, io::Error>(((socket, address), abstract_socket, listener, victim(executable)?))
        })();
        match listeners {
            Ok(((socket, address), abstract_socket, listener, victim)) => Ok(Self {
                folder,
                victim,
                socket,
                _address: address,
                abstract_name,
                abstract_socket,
                listener,
            }),
            Err(error) => {
                let _ = fs::remove_dir_all(&folder);
                Err(error)
            }
        }
    }

    pub fn workspace(&self) -> PathBuf {
        self.folder.join("workspace")
    }

    pub fn errand(&self, tier: Tier, confinement: &Confinement) -> Errand {
        // A folder that holds something to be seen is not empty, and this stage stands in one of them perhaps.
        let shows = |path: &Path| {
            self.folder.starts_with(path) || confinement.roots.iter().any(|root| root.path.starts_with(path))
        };
        let dark = confinement.hidden.iter().filter(|path| path.exists() && !shows(path));
        Errand {
            outside: self.folder.join("outside"),
            secret: self.folder.join("hidden/secret"),
            workspace: self.workspace(),
            state: self.folder.join("state"),
            home: self.folder.join("home"),
            hidden: dark.cloned().collect(),
            victim: i32::try_from(self.victim.id()).unwrap_or_default(),
            socket: self.folder.join("outside/s"),
            abstract_socket: self.abstract_name.clone(),
            listener: self.listener.as_ref().and_then(|listener| listener.local_addr().ok()),
            namespaces: tier == Tier::Namespaces,
        }
    }

    pub fn confinement(&self, policy: &Confinement) -> Confinement {
        let protected = |name: &str, on_create| Protected { path: self.workspace().join(name), on_create };
        let mut probed = policy.clone();
        probed.caches = None;
        probed.home = Some(HomeView {
            directory: self.folder.join("home"),
            exposed: vec![self.folder.join("home").join(EXPOSED)],
            programs: Vec::new(),
            copies: Vec::new(),
        });
        probed.state = Some(AgentState {
            directory: self.folder.join("state"),
            variable: None,
            kept: vec![KeptPath::Directory(STATE_KEPT.into())],
            discarded: Vec::new(),
        });
        probed.roots.extend([
            PolicyRoot::read_only(self.folder.join("outside")),
            PolicyRoot::writable(self.workspace()),
        ]);
        probed.hidden.extend([self.folder.join("hidden"), self.workspace().join("deploy/secrets")]);
        probed.protected.extend([
            protected(".git/hooks", OnCreate::QuarantineAtOnce),
            protected(".git/config", OnCreate::QuarantineAtOnce),
            protected(PLANTED[0], OnCreate::QuarantineAtEnd),
            protected(PLANTED[1], OnCreate::QuarantineAtOnce),
        ]);
        probed
    }

    /// Checks the stage afterwards, whatever the probe has reported.
    pub fn judge(mut self, quarantined: &[Quarantined], escapes: &mut Vec<Escape>) {
        let is_gone = |name: &&str| {
            let path = self.workspace().join(name);
            let was_moved = |entry: &Quarantined| entry.path == path && entry.moved_to.is_some();
            fs::symlink_metadata(&path).is_err() && quarantined.iter().any(was_moved)
        };
        let (tried, safeguard) = ("leave a protected file".to_owned(), SafeguardName::ProtectedPaths);
        let stopped = PLANTED.iter().all(is_gone);
        let said = if stopped { "moved to quarantine" } else { "still there after the run" }.to_owned();
        escapes.push(Escape { tried, safeguard, stopped, said });
        let mut seen = |happened: bool, tried: &str, safeguard| {
            if happened {
                let said = "seen from outside".to_owned();
                escapes.push(Escape { tried: tried.to_owned(), safeguard, stopped: false, said });
            }
        };
        let changed =
            |name: &str| fs::read(self.folder.join(name)).map_or(true, |bytes| bytes != b"as it was");
        seen(
            self.folder.join("outside/written").exists() || changed("outside/file"),
            "write outside",
            SafeguardName::Writes,
        );
        let planted =
            self.folder.join("workspace/.git/hooks/pre-commit").exists() || changed("workspace/.git/config");
        seen(planted, "plant a protected path", SafeguardName::ProtectedPaths);
        let [settings, new @ ..] = PLANTED_IN_STATE.map(|name| format!("state/{name}"));
        let planted = changed(&settings) || new.iter().any(|name| self.folder.join(name).exists());
        seen(planted, "plant something in the agent's state", SafeguardName::Writes);
        seen(!matches!(self.victim.try_wait(), Ok(None)), "kill a process outside", SafeguardName::Processes);
        seen(
            self.socket.accept().is_ok(),
            "connect to a socket in the file system",
            SafeguardName::UnixSockets,
        );
        seen(
            self.abstract_socket.accept().is_ok(),
            "connect to an abstract socket",
            SafeguardName::UnixSockets,
        );
        let reached = self.listener.as_ref().is_some_and(|listener| listener.accept().is_ok());
        seen(reached, "connect to a port outside", SafeguardName::Network);
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = self.victim.kill();
        let _ = self.victim.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[expect(clippy::disallowed_methods, reason = "the one place where the victim of a probe is started")]
fn victim(executable: BorrowedFd<'_>) -> io::Result<Child> {
    Command::new(format!("/proc/self/fd/{}", executable.as_raw_fd()))
        .args([PROBE, VICTIM])
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
}
