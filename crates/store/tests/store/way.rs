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
pub enum Fault {
    /// The connection is closed before the request is forwarded.
    BeforeRequest,
    /// The request is forwarded, and the connection is closed before the reply is forwarded.
    BeforeAnswer,
    /// The connection is closed immediately, and the request is forwarded on release.
    Late,
    /// The reply is forwarded on release.
    HeldAnswer,
}

/// Affects every selected request.
pub const EVERY: usize = usize::MAX;

#[derive(Debug)]
struct Plan {
    /// Selects requests that contain this text.
    words: &'static str,
    fault: Fault,
    left: usize,
}

#[derive(Debug)]
struct Shared {
    plan: Mutex<Option<Plan>>,
    /// The number of requests that met the fault.
    met: watch::Sender<usize>,
    /// The number of late requests and held replies that were delivered.
    arrived: watch::Sender<usize>,
    released: Semaphore,
    /// Is true if new connections are accepted.
    open: watch::Sender<bool>,
    server: u16,
}

/// A proxy that injects faults.
pub struct Way {
    pub port: u16,
    shared: Arc<Shared>,
    carried: Arc<tokio::sync::Mutex<JoinSet<()>>>,
    _accepting: JoinSet<()>,
}

impl Way {
    pub async fn to(server: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            plan: Mutex::default(),
            met: watch::Sender::new(0),
            arrived: watch::Sender::new(0),
            released: Semaphore::new(0),
            open: watch::Sender::new(true),
            server,
        });
        let carried: Arc<tokio::sync::Mutex<JoinSet<()>>> = Arc::default();
        let mut accepting = JoinSet::new();
        let (all, carrying) = (shared.clone(), carried.clone());
        accepting.spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                carrying.lock().await.spawn(carry(near, all.clone()));
            }
        });
        Self { port, shared, carried, _accepting: accepting }
    }

    /// Injects a fault into the next requests that contain a text.
    pub fn fail(&self, words: &'static str, fault: Fault, times: usize) {
        self.shared.met.send_replace(0);
        self.shared.arrived.send_replace(0);
        *self.shared.lock() = Some(Plan { words, fault, left: times });
    }

    /// Stops the injection and returns the number of affected requests.
    pub fn heal(&self) -> usize {
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
        self.shared.arrived.subscribe().wait_for(|arrived| *arrived > 0).await.unwrap();
    }

    /// Sets whether new connections are accepted.
    pub fn set_open(&self, open: bool) {
        self.shared.open.send_replace(open);
    }

    /// Closes all connections.
    pub async fn cut(&self) {
        self.carried.lock().await.shutdown().await;
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Plan>> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fault_of(&self, request: &[u8]) -> Option<Fault> {
        let mut plan = self.lock();
        let Plan { words, fault, left } = plan.as_mut()?;
        let meant = request.windows(words.len()).any(|window| window == words.as_bytes());
        if !meant || *left == 0 {
            return None;
        }
        *left -= 1;
        Some(*fault)
    }

    fn count(counter: &watch::Sender<usize>) {
        counter.send_modify(|count| *count += 1);
    }

    async fn wait_for_release(&self) {
        self.released.acquire().await.unwrap().forget();
    }
}

async fn carry(near: TcpStream, shared: Arc<Shared>) {
    shared.open.subscribe().wait_for(|open| *open).await.unwrap();
    let Ok(far) = TcpStream::connect((Ipv4Addr::LOCALHOST, shared.server)).await else { return };
    let ((mut near_in, mut near_out), (mut far_in, mut far_out)) = (near.into_split(), far.into_split());
    let mut requests = Requests::default();
    let (mut asked, mut answered) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    loop {
        tokio::select! {
            read = near_in.read(&mut asked) => {
                let Ok(1..) = read.as_ref() else { return };
                requests.bytes.extend_from_slice(&asked[..read.unwrap()]);
                while let Some((request, plain)) = requests.next() {
                    match shared.fault_of(&plain) {
                        None => if far_out.write_all(&request).await.is_err() { return },
                        Some(Fault::HeldAnswer) => {
                            hold_answer(&request, &mut far_in, &mut far_out, &mut near_out, &shared).await;
                        }
                        Some(Fault::Late) => {
                            drop((near_in, near_out));
                            Shared::count(&shared.met);
                            shared.wait_for_release().await;
                            let _ = answer_to(&request, &mut far_in, &mut far_out).await;
                            return Shared::count(&shared.arrived);
                        }
                        Some(fault) => {
                            if fault == Fault::BeforeAnswer {
                                let _ = answer_to(&request, &mut far_in, &mut far_out).await;
                            }
                            return Shared::count(&shared.met);
                        }
                    }
                }
            }
            read = far_in.read(&mut answered) => {
                let Ok(1..) = read.as_ref() else { return };
                if near_out.write_all(&answered[..read.unwrap()]).await.is_err() { return }
            }
        }
    }
}

async fn hold_answer(
    request: &[u8],
    far_in: &mut OwnedReadHalf,
    far_out: &mut OwnedWriteHalf,
    near_out: &mut OwnedWriteHalf,
    shared: &Shared,
) {
    let answer = answer_to(request, far_in, far_out).await.unwrap_or_default();
    Shared::count(&shared.met);
    shared.wait_for_release().await;
    let _ = near_out.write_all(&answer).await;
    Shared::count(&shared.arrived);
}

/// Forwards a request and returns the bytes of the reply, including pings before it.
async fn answer_to(
    request: &[u8],
    far_in: &mut OwnedReadHalf,
    far_out: &mut OwnedWriteHalf,
) -> std::io::Result<Vec<u8>> {
    far_out.write_all(request).await?;
    let (mut answer, mut part) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        let read = far_in.read(&mut part).await?;
        answer.extend_from_slice(&part[..read]);
        if read == 0 || has_data(&answer) {
            return Ok(answer);
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
    shook_hands: bool,
}

impl Requests {
    /// Returns the next complete message, raw and unmasked.
    fn next(&mut self) -> Option<(Vec<u8>, Vec<u8>)> {
        if !self.shook_hands {
            let end = self.bytes.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
            self.shook_hands = true;
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
