//! The one way out of a network of named hosts: a small HTTP proxy outside of the network namespace.
//!
//! Owns whom a confined agent reaches. The agent finds it on its own loopback: the one inside opens the door there
//! ([`crate::door`]) and hands it out, and a connection that is taken at it belongs to the namespace, while the one that is made for it
//! belongs to the machine. Names are looked up here, once, and only an address that was looked at is connected to. It speaks
//! `CONNECT` and plain HTTP with absolute addresses; it reads nothing of what passes through.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use model::{HostRule, is_public};

use crate::request::{Asked, MAX_HEAD, Request};

/// How many connections there are at once.
const MOST_CONNECTIONS: usize = 512;
/// How many refused hosts are kept.
const MOST_REFUSED: usize = 100;
/// How long a client may take to say what it wants.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a host may take to answer.
const CONNECT: Duration = Duration::from_secs(20);

/// A proxy that runs. Its threads end with the sandbox, whose connections they carry, or with the process.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    door: TcpListener,
}

#[derive(Debug)]
struct Shared {
    rules: Vec<HostRule>,
    refused: Mutex<BTreeSet<String>>,
    connections: AtomicUsize,
    closed: AtomicBool,
}

impl Proxy {
    /// Takes what comes to the door, for these hosts only.
    pub fn start(door: OwnedFd, hosts: &[String]) -> io::Result<Self> {
        // What is no rule was refused with the policy; here it lets nobody through.
        let rules = hosts.iter().filter_map(|host| host.parse().ok()).collect();
        let shared = Arc::new(Shared {
            rules,
            refused: Mutex::default(),
            connections: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
        });
        let door = TcpListener::from(door);
        let (taken, own) = (door.try_clone()?, Arc::clone(&shared));
        thread::Builder::new().name("proxy".to_owned()).spawn(move || own.take(&taken))?;
        Ok(Self { shared, door })
    }

    /// Takes no more, and says who was asked for in vain.
    pub fn close(self) -> Vec<String> {
        self.shared.closed.store(true, Ordering::Relaxed);
        // Wakes the one who waits at the door.
        let _ = rustix::net::shutdown(&self.door, rustix::net::Shutdown::Both);
        self.shared.refused.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

impl Shared {
    fn take(self: Arc<Self>, door: &TcpListener) {
        while let Ok((client, _)) = door.accept() {
            if self.closed.load(Ordering::Relaxed) {
                return;
            }
            if self.connections.fetch_add(1, Ordering::Relaxed) >= MOST_CONNECTIONS {
                self.connections.fetch_sub(1, Ordering::Relaxed);
                answer(&client, "503 Service Unavailable", "too many connections at once");
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
        let request = match heard(client) {
            Ok(Some(request)) => request,
            Ok(None) => return answer(client, "400 Bad Request", "this is no request to a proxy"),
            Err(_) => return,
        };
        let Request { host, port, .. } = &request;
        let addresses = match self.addresses(host, *port) {
            Ok(addresses) => addresses,
            Err(Refused::Unknown) => return answer(client, "502 Bad Gateway", "the host is not known"),
            Err(Refused::Unlisted) => {
                self.note(format!("{host}:{port}"));
                return answer(client, "403 Forbidden", "the policy does not list this host");
            }
            Err(Refused::Private) => {
                self.note(format!("{host}:{port} (an address of this machine or its networks)"));
                return answer(
                    client,
                    "403 Forbidden",
                    "the host leads to an address that the policy does not list",
                );
            }
        };
        let reached = addresses.iter().find_map(|to| TcpStream::connect_timeout(to, CONNECT).ok());
        let Some(server) = reached else {
            return answer(client, "502 Bad Gateway", "the host does not answer");
        };
        let begun = match &request.asked {
            Asked::Tunnel => (&*client).write_all(b"HTTP/1.1 200 Connection established\r\n\r\n"),
            Asked::Forward { head } => (&server).write_all(head),
        };
        if begun.and_then(|()| (&server).write_all(&request.rest)).is_ok() {
            pass(client, &server);
        }
    }

    /// Where a host is, if it may be reached. A name that leads to this machine or its networks is refused unless the address is
    /// listed itself: whoever owns a name decides where it leads.
    fn addresses(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, Refused> {
        let is_listed = |address: IpAddr| self.rules.iter().any(|rule| rule.allows_address(address, port));
        if let Ok(address) = host.parse::<IpAddr>() {
            return if is_listed(address) {
                Ok(vec![(address, port).into()])
            } else {
                Err(Refused::Unlisted)
            };
        }
        if !self.rules.iter().any(|rule| rule.allows_name(host, port)) {
            return Err(Refused::Unlisted);
        }
        let found: Vec<SocketAddr> = (host, port).to_socket_addrs().map_err(|_| Refused::Unknown)?.collect();
        let may_be: Vec<SocketAddr> =
            found.into_iter().filter(|to| is_public(to.ip()) || is_listed(to.ip())).collect();
        if may_be.is_empty() { Err(Refused::Private) } else { Ok(may_be) }
    }

    fn note(&self, host: String) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if refused.len() < MOST_REFUSED {
            refused.insert(host);
        }
    }
}

/// Why a host is not reached.
enum Refused {
    Unlisted,
    Private,
    Unknown,
}

/// Hears a client out. None: it said something else.
fn heard(client: &TcpStream) -> io::Result<Option<Request>> {
    client.set_read_timeout(Some(PATIENCE))?;
    let mut bytes = Vec::new();
    let mut piece = [0; 4096];
    while bytes.len() < MAX_HEAD {
        let count = (&*client).read(&mut piece)?;
        if count == 0 {
            return Ok(None);
        }
        bytes.extend_from_slice(&piece[..count]);
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            client.set_read_timeout(None)?;
            let rest = bytes.split_off(end + 4);
            return Ok(Request::read(&bytes, rest));
        }
    }
    Ok(None)
}

/// Says no, and why, to whoever reads it.
fn answer(mut client: &TcpStream, status: &str, why: &str) {
    let body = format!("switchboard: {why}\n");
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    let _ = client.write_all(head.as_bytes()).and_then(|()| client.write_all(body.as_bytes()));
    let _ = client.shutdown(Shutdown::Write);
}

/// Lets both sides speak until both have ended.
fn pass(client: &TcpStream, server: &TcpStream) {
    thread::scope(|scope| {
        scope.spawn(|| one_way(client, server));
        one_way(server, client);
    });
}

fn one_way(mut from: &TcpStream, mut to: &TcpStream) {
    let ended = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
    if ended.is_err() {
        // The other side has gone: nobody will hear what comes.
        let _ = from.shutdown(Shutdown::Read);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Somebody who answers every connection with what it heard.
    fn echo() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::Builder::new()
            .spawn(move || {
                for stream in listener.incoming() {
                    let mut stream = stream.unwrap();
                    let mut heard = [0; 4096];
                    let count = stream.read(&mut heard).unwrap_or_default();
                    let _ = stream.write_all(&heard[..count]);
                }
            })
            .unwrap();
        address
    }

    fn proxy(hosts: &[String]) -> (Proxy, SocketAddr) {
        let door = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = door.local_addr().unwrap();
        (Proxy::start(door.into(), hosts).unwrap(), address)
    }

    fn ask(proxy: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(proxy).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut said = String::new();
        stream.read_to_string(&mut said).unwrap();
        said
    }

    #[test]
    fn a_listed_host_is_reached_and_any_other_is_refused_and_noted() {
        let (server, other) = (echo(), echo());
        let (proxy, at) = proxy(&[server.to_string()]);
        let said = ask(at, &format!("CONNECT {server} HTTP/1.1\r\n\r\nhello"));
        assert_eq!(said, "HTTP/1.1 200 Connection established\r\n\r\nhello");
        for host in
            [other.to_string(), format!("localhost:{}", server.port()), format!("[::1]:{}", server.port())]
        {
            let said = ask(at, &format!("CONNECT {host} HTTP/1.1\r\n\r\n"));
            assert!(said.starts_with("HTTP/1.1 403 "), "{host}: {said}");
        }
        let refused = proxy.close();
        assert_eq!(refused.len(), 3, "{refused:?}");
        assert!(refused.contains(&other.to_string()), "{refused:?}");
    }

    #[test]
    fn a_listed_name_that_leads_to_this_machine_is_refused_unless_the_address_is_listed_too() {
        let server = echo();
        let name = format!("localhost:{}", server.port());
        let request = format!("CONNECT {name} HTTP/1.1\r\n\r\nhello");
        let (one, at) = proxy(std::slice::from_ref(&name));
        assert!(ask(at, &request).starts_with("HTTP/1.1 403 "));
        assert!(one.close()[0].contains("this machine"));
        let (_both, at) = proxy(&[name, server.to_string()]);
        assert!(ask(at, &request).ends_with("hello"));
    }

    #[test]
    fn plain_http_is_passed_on_with_the_host_it_was_allowed_for() {
        let server = echo();
        let (_proxy, at) = proxy(&[server.to_string()]);
        let said = ask(
            at,
            &format!(
                "POST http://{server}/v1?x=1 HTTP/1.1\r\nHost: evil.example\r\nProxy-Authorization: x\r\nContent-Length: 2\r\n\r\nhi"
            ),
        );
        let expected = format!(
            "POST /v1?x=1 HTTP/1.1\r\nContent-Length: 2\r\nHost: {server}\r\nConnection: close\r\n\r\n"
        );
        assert!(said.starts_with(&expected), "{said}");
    }

    #[test]
    fn what_is_no_request_to_a_proxy_is_refused() {
        let (_proxy, at) = proxy(&["example.com".to_owned()]);
        for request in [
            "GET / HTTP/1.1\r\nHost: example.com\r\n\r\n",
            "nonsense\r\n\r\n",
            "CONNECT example.com HTTP/1.1\r\n\r\n",
        ] {
            assert!(ask(at, request).starts_with("HTTP/1.1 400 "), "{request}");
        }
    }
}
