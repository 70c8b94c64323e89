//! The web page: the jobs as a person sees them in a browser, served by the daemon on this machine alone.
//!
//! Owns the listener, which is there from the first time that somebody asks for the page, and what the pages share. Who may come
//! in is `gate` and `login`; every page has a file of its own. Has no state of the jobs: everything is asked of the desk.

mod acting;
mod agents;
mod assets;
mod gate;
mod job;
mod list;
mod live;
mod login;
mod metrics;
mod overview;
mod page;
mod plot;
mod processes;
mod refusal;
mod transcript;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::routing::{get, post};
use model::Timestamp;
use switchboard::listener::{HttpLimits, serve_http};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::caller::is_sandboxed_client as is_confined_client;
use crate::machine::MachineCheck as Looking;
use login::Doors;
use protocol::SwitchboardHome as Home;

/// How long nothing may pass on a connection. Who watches hears something every 15 s.
const SILENCE: Duration = Duration::from_secs(90);
/// How many connections browsers may have that are logged in. A browser has six, and one for each page that it watches.
const MAX_CONNECTIONS: usize = 256;
/// How long answers that are under way may take when the daemon ends. Whoever watches is told to go at once.
const LAST_WORDS_WITHIN: Duration = Duration::from_secs(2);

/// The page, whether it is served yet or not. Copies are the same.
#[derive(Clone)]
pub struct Web(Arc<Inner>);

struct Inner {
    desk: calls::JobService,
    home: Home,
    port: Option<u16>,
    doors: Doors,
    checkup: agents::Kept,
    began: Timestamp,
    /// Where it listens, once it does.
    bound: tokio::sync::Mutex<Option<SocketAddr>>,
    address: Mutex<Option<SocketAddr>>,
    listeners: mpsc::Sender<TcpListener>,
    taken_up: Mutex<Option<mpsc::Receiver<TcpListener>>>,
    watchers: AtomicU64,
    /// The daemon ends: whoever watches is let go.
    ended: CancellationToken,
}

impl Web {
    /// A page of these jobs, which nobody can reach yet. Without a port there never will be one.
    pub fn new(desk: calls::JobService, home: Home, port: Option<u16>, looking: Looking) -> Self {
        let (listeners, taken_up) = mpsc::channel(1);
        Self(Arc::new(Inner {
            began: desk.now(),
            desk,
            home,
            port,
            doors: Doors::default(),
            checkup: agents::Kept::new(looking),
            bound: tokio::sync::Mutex::default(),
            address: Mutex::default(),
            listeners,
            taken_up: Mutex::new(Some(taken_up)),
            watchers: AtomicU64::new(0),
            ended: CancellationToken::new(),
        }))
    }

    /// A link that lets one browser in.
    pub async fn link(&self) -> Result<String, WebError> {
        let address = self.listen().await?;
        Ok(format!("http://{address}/login?token={}", self.doors().new_link(Instant::now())))
    }

    /// Where it listens. The first who asks makes it so.
    async fn listen(&self) -> Result<SocketAddr, WebError> {
        let mut bound = self.0.bound.lock().await;
        if let Some(address) = *bound {
            return Ok(address);
        }
        let port = self.0.port.ok_or(WebError::Off)?;
        let cannot = |source| WebError::Listen { port, source };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        *self.0.address.lock().unwrap_or_else(PoisonError::into_inner) = Some(address);
        self.0.listeners.send(listener).await.map_err(|_| WebError::Ending)?;
        tracing::info!(%address, "serving the web page");
        *bound = Some(address);
        Ok(address)
    }

    /// Listens on a port that somebody chose: others count on it, from bookmarks to who reads the metrics. Without the page the daemon
    /// is still a daemon, so one that is taken is only told.
    pub async fn begin(&self) {
        if self.0.port.is_some_and(|port| port != 0)
            && let Err(error) = self.listen().await
        {
            tracing::warn!(%error, "the web page is not there; `switchboard open` tries again");
        }
    }

    /// Serves the page from when somebody wants it until `shutdown`. `asked` is told of every request.
    pub async fn serve(&self, shutdown: CancellationToken, asked: impl Fn() + Clone + Send + Sync + 'static) {
        let taken_up = self.0.taken_up.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut taken_up) = taken_up else { return };
        let listener = tokio::select! {
            () = shutdown.cancelled() => return,
            listener = taken_up.recv() => listener,
        };
        let Some(listener) = listener else { return };
        let limits = HttpLimits {
            max_connections: MAX_CONNECTIONS,
            silence: SILENCE,
            is_confined: is_confined_client,
        };
        let served = serve_http(listener, self.router(asked), limits, shutdown.clone());
        let over = async {
            shutdown.cancelled().await;
            self.0.ended.cancel();
            // A browser that reads no further must not hold the daemon.
            tokio::time::sleep(LAST_WORDS_WITHIN).await;
        };
        tokio::select! {
            () = served => {}
            () = over => tracing::debug!("a browser was left in the middle of a word"),
        }
        // Also when nobody was there to be let go.
        self.0.ended.cancel();
    }

    fn router(&self, asked: impl Fn() + Clone + Send + Sync + 'static) -> Router {
        let pages = Router::new()
            .route("/", get(list::show))
            .route("/live", get(live::jobs))
            .route("/overview", get(overview::show))
            .route("/agents", get(agents::show))
            .route("/jobs/{job}", get(job::show))
            .route("/jobs/{job}/live", get(live::job))
            .route("/jobs/{job}/processes", get(processes::show))
            .route("/jobs/{job}/output", get(job::output))
            .route("/jobs/{job}/error", get(job::error))
            .route("/jobs/{job}/cancel", post(acting::cancel))
            .route("/jobs/{job}/retry", post(acting::retry))
            .route("/logout", post(acting::logout))
            .route_layer(from_fn_with_state(self.clone(), gate::only_visitors));
        let open = Router::new()
            .route("/login", get(acting::login))
            .route("/assets/{version}/{name}", get(assets::file))
            .route("/metrics", get(metrics::show))
            .route("/healthz", get(metrics::health));
        let ask = move |request: Request, next: Next| {
            asked();
            next.run(request)
        };
        pages
            .merge(open)
            .fallback(async || {
                refusal::refuse(StatusCode::NOT_FOUND, "There is nothing here", "the jobs are at `/`")
            })
            .layer(from_fn(gate::from_our_pages))
            .layer(from_fn(gate::with_headers))
            .layer(from_fn(ask))
            .with_state(self.clone())
    }

    fn desk(&self) -> &calls::JobService {
        &self.0.desk
    }

    fn doors(&self) -> &Doors {
        &self.0.doors
    }

    /// Cookies know no ports: two daemons on one machine must not take each other's.
    fn cookie_name(&self) -> String {
        let address = *self.0.address.lock().unwrap_or_else(PoisonError::into_inner);
        format!("switchboard-{}", address.map_or(0, |address| address.port()))
    }

    /// Counts a watcher for as long as the value lives.
    fn count_watcher(&self) -> Watching {
        self.0.watchers.fetch_add(1, Ordering::Relaxed);
        Watching(self.clone())
    }

    fn watchers(&self) -> u64 {
        self.0.watchers.load(Ordering::Relaxed)
    }
}

/// Somebody who watches.
struct Watching(Web);

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.0.watchers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Why there is no page.
#[derive(Debug, thiserror::Error)]
pub enum WebError {
    #[error("the web page is switched off")]
    Off,
    #[error("cannot serve the web page on 127.0.0.1:{port}")]
    Listen { port: u16, source: io::Error },
    #[error("the daemon is ending")]
    Ending,
}

impl WebError {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Off => "`web.port` in the configuration is `off`; remove that, and `switchboard stop`",
            Self::Listen { .. } => {
                "set `web.port` in the configuration to a port that is free, or to 0 for any, and `switchboard stop`"
            }
            Self::Ending => "try again: the next daemon is started then",
        }
    }
}
