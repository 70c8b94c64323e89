//! An HTTP proxy outside of the network namespace that connects a confined agent to named hosts only.
//!
//! The agent reaches the proxy on the loopback of its namespace, where the launcher binds the listener ([`crate::proxy_listener`]); the
//! connections to the hosts are made in the machine's namespace. Names are resolved here, once, and only a checked address is connected
//! to. Supports `CONNECT` and plain HTTP with absolute URLs; does not inspect the data.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use model::{HostRule, is_public};

use crate::proxy_request::{MAX_HEAD_BYTES, ProxyRequest, ProxyRequestKind};

/// The maximum number of concurrent connections.
const MAX_CONNECTIONS: usize = 512;
/// The maximum number of rejected hosts that are recorded.
const MAX_REJECTED_HOSTS: usize = 100;
/// The time limit for a client to send its request head.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// The time limit for a connection to a host.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// The pause after a failed `accept`.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// A running proxy. Its threads exit with the sandbox, whose connections they serve, or with the process.
#[derive(Debug)]
pub struct Proxy {
    state: Arc<ProxyState>,
    listener: TcpListener,
}

#[derive(Debug)]
struct ProxyState {
    rules: Vec<HostRule>,
    rejected: Mutex<BTreeSet<String>>,
    connections: AtomicUsize,
    closed: AtomicBool,
}

impl Proxy {
    /// Accepts connections in a background thread and connects them to these hosts only.
    pub fn start(listener: OwnedFd, hosts: &[String]) -> io::Result<Self> {
        // An invalid rule was rejected with the policy; here it allows no host.
        let rules = hosts.iter().filter_map(|host| host.parse().ok()).collect();
        let state = Arc::new(ProxyState {
            rules,
            rejected: Mutex::default(),
            connections: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
        });
        let listener = TcpListener::from(listener);
        let (accepting, own) = (listener.try_clone()?, Arc::clone(&state));
        thread::Builder::new().name("proxy".to_owned()).spawn(move || own.accept_connections(&accepting))?;
        Ok(Self { state, listener })
    }

    /// Stops accepting connections and returns the rejected hosts.
    pub fn close(self) -> Vec<String> {
        self.state.closed.store(true, Ordering::Relaxed);
        // Wakes the thread in `accept`.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        self.state.rejected.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

impl ProxyState {
    fn accept_connections(self: Arc<Self>, listener: &TcpListener) {
        loop {
            let accepted = listener.accept();
            if self.closed.load(Ordering::Relaxed) {
                return;
            }
            let client = match accepted {
                Ok((client, _)) => client,
                // The listener was shut down.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => return,
                // ECONNABORTED, or EMFILE until a connection ends: the agent would lose its network for the rest of the run.
                Err(_) => {
                    thread::sleep(ACCEPT_BACKOFF);
                    continue;
                }
            };
            if self.connections.fetch_add(1, Ordering::Relaxed) >= MAX_CONNECTIONS {
                self.connections.fetch_sub(1, Ordering::Relaxed);
                send_error(&client, "503 Service Unavailable", "too many concurrent connections");
                continue;
            }
            let own = Arc::clone(&self);
            let started = thread::Builder::new().name("connection".to_owned()).spawn(move || {
                own.serve(&client);
                own.connections.fetch_sub(1, Ordering::Relaxed);
            });
            if started.is_err() {
                self.connections.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    fn serve(&self, client: &TcpStream) {
        let request = match read_request(client) {
            Ok(Some(request)) => request,
            Ok(None) => return send_error(client, "400 Bad Request", "not a proxy request"),
            Err(_) => return,
        };
        let ProxyRequest { host, port, .. } = &request;
        let addresses = match self.resolve(host, *port) {
            Ok(addresses) => addresses,
            Err(HostRejection::Unknown) => {
                return send_error(client, "502 Bad Gateway", "cannot resolve the host");
            }
            Err(HostRejection::Unlisted) => {
                self.record_rejected(format!("{host}:{port}"));
                return send_error(client, "403 Forbidden", "the policy does not list this host");
            }
            Err(HostRejection::Private) => {
                self.record_rejected(format!("{host}:{port} (an address of this machine or its networks)"));
                return send_error(
                    client,
                    "403 Forbidden",
                    "the host resolves to an address that the policy does not list",
                );
            }
        };
        let connected = addresses.iter().find_map(|to| TcpStream::connect_timeout(to, CONNECT_TIMEOUT).ok());
        let Some(server) = connected else {
            return send_error(client, "502 Bad Gateway", "cannot connect to the host");
        };
        let started = match &request.kind {
            ProxyRequestKind::Tunnel => (&*client).write_all(b"HTTP/1.1 200 Connection established\r\n\r\n"),
            ProxyRequestKind::Forward { head } => (&server).write_all(head),
        };
        if started.and_then(|()| (&server).write_all(&request.rest)).is_ok() {
            relay(client, &server);
        }
    }

    /// Resolves a host that the policy allows. A name that resolves to this machine or its networks is rejected unless the address itself
    /// is listed: the owner of a name decides its address.
    fn resolve(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, HostRejection> {
        let is_listed = |address: IpAddr| self.rules.iter().any(|rule| rule.allows_address(address, port));
        if let Ok(address) = host.parse::<IpAddr>() {
            return if is_listed(address) {
                Ok(vec![(address, port).into()])
            } else {
                Err(HostRejection::Unlisted)
            };
        }
        if !self.rules.iter().any(|rule| rule.allows_name(host, port)) {
            return Err(HostRejection::Unlisted);
        }
        let found: Vec<SocketAddr> =
            (host, port).to_socket_addrs().map_err(|_| HostRejection::Unknown)?.collect();
        let allowed: Vec<SocketAddr> =
            found.into_iter().filter(|to| is_public(to.ip()) || is_listed(to.ip())).collect();
        if allowed.is_empty() { Err(HostRejection::Private) } else { Ok(allowed) }
    }

    fn record_rejected(&self, host: String) {
        let mut rejected = self.rejected.lock().unwrap_or_else(PoisonError::into_inner);
        if rejected.len() < MAX_REJECTED_HOSTS {
            rejected.insert(host);
        }
    }
}

/// The reason why a host is not connected.
enum HostRejection {
    Unlisted,
    Private,
    Unknown,
}

/// Reads the head of a request. Returns `None` if it is not a valid request.
fn read_request(client: &TcpStream) -> io::Result<Option<ProxyRequest>> {
    client.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    while bytes.len() < MAX_HEAD_BYTES {
        let count = (&*client).read(&mut buffer)?;
        if count == 0 {
            return Ok(None);
        }
        bytes.extend_from_slice(&buffer[..count]);
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            client.set_read_timeout(None)?;
            let rest = bytes.split_off(end + 4);
            return Ok(ProxyRequest::parse(&bytes, rest));
        }
    }
    Ok(None)
}

/// Sends an error response and closes the connection for writing.
fn send_error(mut client: &TcpStream, status: &str, why: &str) {
    let body = format!("switchboard: {why}\n");
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    let _ = client.write_all(head.as_bytes()).and_then(|()| client.write_all(body.as_bytes()));
    let _ = client.shutdown(Shutdown::Write);
}

/// Copies data in both directions until both sides have closed.
fn relay(client: &TcpStream, server: &TcpStream) {
    thread::scope(|scope| {
        scope.spawn(|| copy_one_way(client, server));
        copy_one_way(server, client);
    });
}

fn copy_one_way(mut from: &TcpStream, mut to: &TcpStream) {
    let copied = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
    if copied.is_err() {
        // The receiver is gone: further data could not be delivered.
        let _ = from.shutdown(Shutdown::Read);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Starts a server that echoes the first chunk of each connection.
    fn start_echo_server() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::Builder::new()
            .spawn(move || {
                for stream in listener.incoming() {
                    let mut stream = stream.unwrap();
                    let mut buffer = [0; 4096];
                    let count = stream.read(&mut buffer).unwrap_or_default();
                    let _ = stream.write_all(&buffer[..count]);
                }
            })
            .unwrap();
        address
    }

    fn proxy(hosts: &[String]) -> (Proxy, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        (Proxy::start(listener.into(), hosts).unwrap(), address)
    }

    fn send(proxy: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(proxy).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply
    }

    #[test]
    fn listed_host_is_connected() {
        let server = start_echo_server();
        let (_proxy, at) = proxy(&[server.to_string()]);
        let reply = send(at, &format!("CONNECT {server} HTTP/1.1\r\n\r\nhello"));
        assert_eq!(reply, "HTTP/1.1 200 Connection established\r\n\r\nhello");
    }

    /// A non-blocking listener fails with EAGAIN until a client connects.
    #[test]
    fn failed_accept_does_not_stop_the_proxy() {
        let server = start_echo_server();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let at = listener.local_addr().unwrap();
        let proxy = Proxy::start(listener.into(), &[server.to_string()]).unwrap();
        for _ in 0..2 {
            let reply = send(at, &format!("CONNECT {server} HTTP/1.1\r\n\r\nhello"));
            assert_eq!(reply, "HTTP/1.1 200 Connection established\r\n\r\nhello");
        }
        assert!(proxy.close().is_empty());
    }

    #[test]
    fn unlisted_host_is_rejected_and_recorded() {
        let (server, other) = (start_echo_server(), start_echo_server());
        let (proxy, at) = proxy(&[server.to_string()]);
        for host in
            [other.to_string(), format!("localhost:{}", server.port()), format!("[::1]:{}", server.port())]
        {
            let reply = send(at, &format!("CONNECT {host} HTTP/1.1\r\n\r\n"));
            assert!(reply.starts_with("HTTP/1.1 403 "), "{host}: {reply}");
        }
        let rejected = proxy.close();
        assert_eq!(rejected.len(), 3, "{rejected:?}");
        assert!(rejected.contains(&other.to_string()), "{rejected:?}");
    }

    #[test]
    fn name_of_private_address_needs_listed_address() {
        let server = start_echo_server();
        let name = format!("localhost:{}", server.port());
        let request = format!("CONNECT {name} HTTP/1.1\r\n\r\nhello");
        let (one, at) = proxy(std::slice::from_ref(&name));
        assert!(send(at, &request).starts_with("HTTP/1.1 403 "));
        assert!(one.close()[0].contains("this machine"));
        let (_both, at) = proxy(&[name, server.to_string()]);
        assert!(send(at, &request).ends_with("hello"));
    }

    #[test]
    fn forwarded_request_names_the_checked_host() {
        let server = start_echo_server();
        let (_proxy, at) = proxy(&[server.to_string()]);
        let reply = send(
            at,
            &format!(
                "POST http://{server}/v1?x=1 HTTP/1.1\r\nHost: evil.example\r\nProxy-Authorization: x\r\nContent-Length: 2\r\n\r\nhi"
            ),
        );
        let expected = format!(
            "POST /v1?x=1 HTTP/1.1\r\nContent-Length: 2\r\nHost: {server}\r\nConnection: close\r\n\r\n"
        );
        assert!(reply.starts_with(&expected), "{reply}");
    }

    #[test]
    fn invalid_proxy_request_is_rejected() {
        let (_proxy, at) = proxy(&["example.com".to_owned()]);
        for request in [
            "GET / HTTP/1.1\r\nHost: example.com\r\n\r\n",
            "nonsense\r\n\r\n",
            "CONNECT example.com HTTP/1.1\r\n\r\n",
        ] {
            assert!(send(at, request).starts_with("HTTP/1.1 400 "), "{request}");
        }
    }
}
