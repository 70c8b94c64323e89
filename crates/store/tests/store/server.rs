//! A real `SurrealDB` server on loopback, as a child process.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use std::{env, thread};

use store::{CredentialLevel, Credentials, StoreSetting};

/// The startup timeout: a debug build on a busy machine is slow.
const STARTUP_TIMEOUT: Duration = Duration::from_mins(1);

/// Returns the path where `scripts/surreal-server` installs the server.
fn program() -> PathBuf {
    let cache = || Some(PathBuf::from(env::var_os("HOME")?).join(".cache/switchboard-surreal"));
    let target = env::var_os("SWITCHBOARD_SURREAL_TARGET").map(PathBuf::from).or_else(cache);
    target.unwrap_or_default().join("debug/surreal-server")
}

/// Returns why there is no server.
pub fn missing() -> Option<String> {
    let program = program();
    let reason = || format!("`{}` is not built; run scripts/surreal-server", program.display());
    (!program.is_file()).then(reason)
}

pub fn credentials() -> Credentials {
    Credentials { user: "root".into(), password: "root".into(), level: CredentialLevel::Root }
}

/// A running server. Dropping it kills it.
#[derive(Debug)]
pub struct SurrealServer {
    child: Child,
    pub port: u16,
    storage: String,
}

impl SurrealServer {
    /// Starts a server with a storage in memory or in a directory.
    pub fn start(storage: &str) -> Self {
        // The port is free now; if another process takes it, try the next one.
        for _ in 0..5 {
            let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
            if let Some(child) = spawn(port, storage) {
                return Self { child, port, storage: storage.to_owned() };
            }
        }
        panic!("the SurrealDB server does not start");
    }

    pub fn setting(&self, database: &str) -> StoreSetting {
        setting_at(self.port, database)
    }

    /// Kills the server with SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Restarts the server with the same port and storage.
    pub fn restart(&mut self) {
        self.child = spawn(self.port, &self.storage).expect("the server to start again");
    }
}

impl Drop for SurrealServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn setting_at(port: u16, database: &str) -> StoreSetting {
    format!("ws://127.0.0.1:{port}/test/{database}").parse().unwrap()
}

fn spawn(port: u16, storage: &str) -> Option<Child> {
    let mut child = Command::new(program())
        .args(["start", "--user", "root", "--pass", "root", "--no-banner", "--log", "none"])
        .args(["--bind", &format!("127.0.0.1:{port}"), storage])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + STARTUP_TIMEOUT;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    loop {
        if child.try_wait().unwrap().is_some() {
            return None;
        }
        if is_ready(&address) {
            return Some(child);
        }
        assert!(Instant::now() < deadline, "the SurrealDB server is not up in time");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Returns whether the server is ready: it listens earlier and replies 503.
fn is_ready(address: &SocketAddr) -> bool {
    let request = || {
        let mut stream = TcpStream::connect_timeout(address, Duration::from_secs(1))?;
        stream.set_read_timeout(Some(STARTUP_TIMEOUT))?;
        stream.write_all(b"GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply)?;
        Ok::<_, std::io::Error>(reply)
    };
    request().is_ok_and(|reply| reply.starts_with("HTTP/1.1 200"))
}

/// The server that all tests of this process share, with one database each.
static SHARED: Mutex<Option<SurrealServer>> = Mutex::new(None);

pub fn shared_setting(database: &str) -> StoreSetting {
    SHARED.lock().unwrap().get_or_insert_with(|| SurrealServer::start("memory")).setting(database)
}

pub fn stop_shared() {
    drop(SHARED.lock().unwrap().take());
}
