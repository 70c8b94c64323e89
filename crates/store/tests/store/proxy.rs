//! A proxy for a `SurrealDB` server that injects faults: it parses the requests and fails the selected ones.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

/// The fault of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyFault {
    /// The connection is closed before the request is forwarded.
    BeforeRequest,
    /// The request is forwarded, and the connection is closed before the reply is forwarded.
    BeforeReply,
    /// The connection is closed immediately, and the request is forwarded on release.
    Late,
    /// The reply is forwarded on release.
    HeldReply,
}

/// Affects every selected request.
pub const EVERY: usize = usize::MAX;

#[derive(Debug)]
struct Plan {
    /// Selects requests that contain this text.
    text: &'static str,
    fault: ProxyFault,
    remaining: usize,
}

#[derive(Debug)]
struct Shared {
    plan: Mutex<Option<Plan>>,
    /// The number of requests that met the fault.
    met: watch::Sender<usize>,
    /// The number of late requests and held replies that were delivered.
    delivered: watch::Sender<usize>,
    released: Semaphore,
    /// Is true if new connections are accepted.
    open: watch::Sender<bool>,
    server: u16,
}

/// A proxy that injects faults.
pub struct FaultyProxy {
    pub port: u16,
    shared: Arc<Shared>,
    connections: Arc<tokio::sync::Mutex<JoinSet<()>>>,
    _acceptor: JoinSet<()>,
}

impl FaultyProxy {
    pub async fn start(server: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            plan: Mutex::default(),
            met: watch::Sender::new(0),
            delivered: watch::Sender::new(0),
            released: Semaphore::new(0),
            open: watch::Sender::new(true),
            server,
        });
        let connections: Arc<tokio::sync::Mutex<JoinSet<()>>> = Arc::default();
        let mut acceptor = JoinSet::new();
        let (all, open_connections) = (shared.clone(), connections.clone());
        acceptor.spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                open_connections.lock().await.spawn(forward(client, all.clone()));
            }
        });
        Self { port, shared, connections, _acceptor: acceptor }
    }

    /// Injects a fault into the next requests that contain a text.
    pub fn fail(&self, text: &'static str, fault: ProxyFault, times: usize) {
        self.shared.met.send_replace(0);
        self.shared.delivered.send_replace(0);
        *self.shared.lock() = Some(Plan { text, fault, remaining: times });
    }

    /// Stops the injection and returns the number of affected requests.
    pub fn stop_failing(&self) -> usize {
        *self.shared.lock() = None;
        *self.shared.met.borrow()
    }

    /// Waits until a request has met the fault.
    pub async fn met(&self) {
        self.shared.met.subscribe().wait_for(|met| *met > 0).await.unwrap();
    }

    /// Releases a held request or reply and waits until it is delivered.
    pub async fn release(&self) {
        self.shared.released.add_permits(1);
        self.shared.delivered.subscribe().wait_for(|delivered| *delivered > 0).await.unwrap();
    }

    /// Sets whether new connections are accepted.
    pub fn set_open(&self, open: bool) {
        self.shared.open.send_replace(open);
    }

    /// Closes all connections.
    pub async fn disconnect(&self) {
        self.connections.lock().await.shutdown().await;
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Plan>> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fault_for(&self, request: &[u8]) -> Option<ProxyFault> {
        let mut plan = self.lock();
        let Plan { text, fault, remaining } = plan.as_mut()?;
        let is_selected = request.windows(text.len()).any(|window| window == text.as_bytes());
        if !is_selected || *remaining == 0 {
            return None;
        }
        *remaining -= 1;
        Some(*fault)
    }

    fn count(counter: &watch::Sender<usize>) {
        counter.send_modify(|count| *count += 1);
    }

    async fn wait_for_release(&self) {
        self.released.acquire().await.unwrap().forget();
    }
}

async fn forward(client: TcpStream, shared: Arc<Shared>) {
    shared.open.subscribe().wait_for(|open| *open).await.unwrap();
    let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, shared.server)).await else { return };
    let ((mut client_in, mut client_out), (mut server_in, mut server_out)) =
        (client.into_split(), server.into_split());
    let mut requests = Requests::default();
    let (mut from_client, mut from_server) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    loop {
        tokio::select! {
            read = client_in.read(&mut from_client) => {
                let Ok(1..) = read.as_ref() else { return };
                requests.bytes.extend_from_slice(&from_client[..read.unwrap()]);
                while let Some((request, plain)) = requests.next() {
                    match shared.fault_for(&plain) {
                        None => if server_out.write_all(&request).await.is_err() { return },
                        Some(ProxyFault::HeldReply) => {
                            hold_reply(&request, &mut server_in, &mut server_out, &mut client_out, &shared).await;
                        }
                        Some(ProxyFault::Late) => {
                            drop((client_in, client_out));
                            Shared::count(&shared.met);
                            shared.wait_for_release().await;
                            let _ = forward_request(&request, &mut server_in, &mut server_out).await;
                            return Shared::count(&shared.delivered);
                        }
                        Some(fault) => {
                            if fault == ProxyFault::BeforeReply {
                                let _ = forward_request(&request, &mut server_in, &mut server_out).await;
                            }
                            return Shared::count(&shared.met);
                        }
                    }
                }
            }
            read = server_in.read(&mut from_server) => {
                let Ok(1..) = read.as_ref() else { return };
                if client_out.write_all(&from_server[..read.unwrap()]).await.is_err() { return }
            }
        }
    }
}

async fn hold_reply(
    request: &[u8],
    server_in: &mut OwnedReadHalf,
    server_out: &mut OwnedWriteHalf,
    client_out: &mut OwnedWriteHalf,
    shared: &Shared,
) {
    let reply = forward_request(request, server_in, server_out).await.unwrap_or_default();
    Shared::count(&shared.met);
    shared.wait_for_release().await;
    let _ = client_out.write_all(&reply).await;
    Shared::count(&shared.delivered);
}

/// Forwards a request and returns the bytes of the reply, including pings before it.
async fn forward_request(
    request: &[u8],
    server_in: &mut OwnedReadHalf,
    server_out: &mut OwnedWriteHalf,
) -> std::io::Result<Vec<u8>> {
    server_out.write_all(request).await?;
    let (mut reply, mut part) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        let read = server_in.read(&mut part).await?;
        reply.extend_from_slice(&part[..read]);
        if read == 0 || has_data(&reply) {
            return Ok(reply);
        }
    }
}

/// Returns whether a server's bytes contain a message besides control frames.
fn has_data(bytes: &[u8]) -> bool {
    const BINARY: u8 = 2;
    let mut rest = bytes;
    while let [first, short, ..] = rest {
        if first & 0xf <= BINARY {
            return true;
        }
        // A control frame is short, and a server's frames have no mask.
        rest = rest.get(2 + usize::from(short & 0x7f)..).unwrap_or_default();
    }
    false
}

/// Splits the bytes of a client into messages.
#[derive(Default)]
struct Requests {
    bytes: Vec<u8>,
    /// The first message is plain HTTP.
    is_upgraded: bool,
}

impl Requests {
    /// Returns the next complete message, raw and unmasked.
    fn next(&mut self) -> Option<(Vec<u8>, Vec<u8>)> {
        if !self.is_upgraded {
            let end = self.bytes.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
            self.is_upgraded = true;
            return Some((self.bytes.drain(..end).collect(), Vec::new()));
        }
        let (start, length) = self.extent()?;
        let whole: Vec<u8> =
            (self.bytes.len() >= start + length).then(|| self.bytes.drain(..start + length).collect())?;
        let mask: [u8; 4] = whole[start - 4..start].try_into().unwrap();
        let plain = whole[start..].iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask).collect();
        Some((whole, plain))
    }

    /// Returns the start of the payload after header and mask, and its length (RFC 6455, section 5.2).
    fn extent(&self) -> Option<(usize, usize)> {
        let [_, short, rest @ ..] = self.bytes.as_slice() else { return None };
        match short & 0x7f {
            126 => Some((8, u16::from_be_bytes(rest.get(..2)?.try_into().ok()?).into())),
            127 => Some((14, usize::try_from(u64::from_be_bytes(rest.get(..8)?.try_into().ok()?)).ok()?)),
            length => Some((6, length.into())),
        }
    }
}
