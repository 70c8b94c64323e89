//! The dashboard: a web page with the jobs, served by the daemon on loopback only.
//!
//! Owns the listener, which is bound on the first request for a link, and the routes. Access checks are in `auth` and `login`; each page
//! has its own module. Holds no state of the jobs: every page reads the job service.

mod actions;
mod agents_page;
mod assets;
mod auth;
mod changes;
mod context;
mod group;
mod job;
mod keep;
mod list;
mod live;
mod login;
mod machine_check;
mod metrics;
mod overview;
mod page;
mod plot;
mod processes;
mod rejection;
mod restore;
pub mod stats;
mod transcript;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Path, Request};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::Response;
use axum::routing::{get, post};
use calls::JobService;
use http_listener::{HttpClient, HttpLimits, TcpEnds, serve_http};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use assets::Asset;
use context::PageContext;
use machine_check::CheckCache;
pub use machine_check::{MachineHealth, RunCheck, SandboxCheck};
use rejection::PageRejection;

/// Idle timeout of a connection. A live stream sends a keep-alive every 15 s.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// Maximum number of connections of logged-in browsers. A browser opens six, and one for each live page.
const MAX_CONNECTIONS: usize = 256;
/// Time for open responses at shutdown. Live streams end at once.
const RESPONSE_GRACE: Duration = Duration::from_secs(2);

/// The settings of the dashboard.
pub struct DashboardOptions {
    /// Port on loopback; 0 for any, none to disable the dashboard.
    pub port: Option<u16>,
    /// File of the bearer token that `/metrics` accepts.
    pub token_file: PathBuf,
    /// Checks the agents and the sandbox.
    pub run_check: RunCheck,
    /// Identifies the client of a connection (see [`HttpLimits::identify_client`]).
    pub identify_client: fn(TcpEnds) -> HttpClient,
}

/// The dashboard, bound or not. Clones share its state.
#[derive(Clone)]
pub struct Dashboard(Arc<DashboardState>);

struct DashboardState {
    context: PageContext,
    port: Option<u16>,
    identify_client: fn(TcpEnds) -> HttpClient,
    /// The address of the listener, once it is bound.
    bound: tokio::sync::Mutex<Option<SocketAddr>>,
    /// Passes the bound listener to [`Dashboard::serve`].
    listener_tx: mpsc::Sender<TcpListener>,
    listener_rx: Mutex<Option<mpsc::Receiver<TcpListener>>>,
}

impl Dashboard {
    /// Creates the dashboard without binding its port.
    pub fn new(service: JobService, options: DashboardOptions) -> Self {
        let (listener_tx, listener_rx) = mpsc::channel(1);
        Self(Arc::new(DashboardState {
            context: PageContext::new(service, options.token_file, CheckCache::new(options.run_check)),
            port: options.port,
            identify_client: options.identify_client,
            bound: tokio::sync::Mutex::default(),
            listener_tx,
            listener_rx: Mutex::new(Some(listener_rx)),
        }))
    }

    /// Creates a login link for one browser. Binds the port if necessary.
    pub async fn create_link(&self) -> Result<String, DashboardError> {
        let address = self.ensure_bound().await?;
        let token = self.0.context.logins().create_link(Instant::now());
        Ok(format!("http://{address}/login?token={token}"))
    }

    async fn ensure_bound(&self) -> Result<SocketAddr, DashboardError> {
        let mut bound = self.0.bound.lock().await;
        if let Some(address) = *bound {
            return Ok(address);
        }
        let port = self.0.port.ok_or(DashboardError::Disabled)?;
        let failed = |source| DashboardError::Bind { port, source };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        self.0.context.set_address(address);
        self.0.listener_tx.send(listener).await.map_err(|_| DashboardError::Stopping)?;
        tracing::info!(%address, "serving the web page");
        *bound = Some(address);
        Ok(address)
    }

    /// Binds a configured port at startup, because bookmarks and metrics collectors rely on it. A port that is in use is only logged:
    /// the daemon works without the dashboard.
    pub async fn bind_configured_port(&self) {
        if self.0.port.is_some_and(|port| port != 0)
            && let Err(error) = self.ensure_bound().await
        {
            tracing::warn!(%error, "the web page is not available; `switchboard open` tries again");
        }
    }

    /// Serves the pages until `shutdown`, once the port is bound. Calls `on_request` for each request.
    pub async fn serve(
        &self,
        shutdown: CancellationToken,
        on_request: impl Fn() + Clone + Send + Sync + 'static,
    ) {
        let listener_rx = self.0.listener_rx.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut listener_rx) = listener_rx else { return };
        let listener = tokio::select! {
            () = shutdown.cancelled() => return,
            listener = listener_rx.recv() => listener,
        };
        let Some(listener) = listener else { return };
        let limits = HttpLimits {
            max_connections: MAX_CONNECTIONS,
            idle_timeout: IDLE_TIMEOUT,
            identify_client: self.0.identify_client,
            error_response: rejection::error_page,
        };
        let served = serve_http(listener, self.router(on_request), limits, shutdown.clone());
        let pages = self.0.context.shutdown();
        let close = async {
            shutdown.cancelled().await;
            pages.cancel();
            // A browser that does not read must not delay the shutdown.
            tokio::time::sleep(RESPONSE_GRACE).await;
        };
        tokio::select! {
            () = served => {}
            () = close => tracing::debug!("closed a browser connection with an unfinished response"),
        }
        // Also if `serve_http` returned first.
        pages.cancel();
    }

    fn router(&self, on_request: impl Fn() + Clone + Send + Sync + 'static) -> Router {
        let context = &self.0.context;
        let pages = Router::new()
            .route("/", get(list::show))
            .route("/live", get(live::jobs))
            .route("/overview", get(overview::show))
            .route("/agents", get(agents_page::show))
            .route("/jobs/{job}", get(job::show))
            .route("/jobs/{job}/live", get(live::job))
            .route("/jobs/{job}/processes", get(processes::show))
            .route("/jobs/{job}/output", get(job::output))
            .route("/jobs/{job}/error", get(job::error))
            .route("/jobs/{job}/patch", get(changes::patch))
            .route("/jobs/{job}/cancel", post(actions::cancel))
            .route("/jobs/{job}/retry", post(actions::retry))
            .route("/jobs/{job}/apply", post(restore::apply))
            .route("/jobs/{job}/discard", post(restore::discard))
            .route("/jobs/{job}/undo", post(restore::undo))
            .route("/jobs/{job}/redo", post(restore::redo))
            .route("/jobs/{job}/keep", post(keep::keep))
            .route("/groups/{group}", get(group::show))
            .route("/groups/{group}/live", get(live::group))
            .route("/groups/{group}/cancel", post(group::cancel))
            .route("/logout", post(actions::logout))
            .route_layer(from_fn_with_state(context.clone(), auth::require_login));
        let public = Router::new()
            .route("/login", get(actions::login))
            .route("/assets/{version}/{name}", get(asset))
            .route("/metrics", get(metrics::show))
            .route("/healthz", get(metrics::health));
        let notify = move |request: Request, next: Next| {
            on_request();
            next.run(request)
        };
        pages
            .merge(public)
            .fallback(async || {
                rejection::error_page(StatusCode::NOT_FOUND, "Page not found", "the jobs are at `/`")
            })
            .layer(from_fn(auth::reject_foreign_requests))
            .layer(from_fn(auth::add_security_headers))
            .layer(from_fn(notify))
            .with_state(context.clone())
    }
}

/// Handles requests for static files.
async fn asset(Path((version, name)): Path<(String, String)>) -> Result<Response, PageRejection> {
    let asset = Asset::find(&version, &name).ok_or_else(|| {
        PageRejection::not_found("File not found", "reload the page: the daemon has another version")
    })?;
    Ok(asset.response())
}

/// The reason why the dashboard is not available.
#[derive(Debug, thiserror::Error)]
pub enum DashboardError {
    /// The configuration disables it.
    #[error("the web page is switched off")]
    Disabled,
    /// The port cannot be bound.
    #[error("cannot serve the web page on 127.0.0.1:{port}")]
    Bind {
        /// The port.
        port: u16,
        /// The I/O error.
        source: io::Error,
    },
    /// The daemon is stopping.
    #[error("the daemon is stopping")]
    Stopping,
}

impl DashboardError {
    /// Returns the remedy, as an imperative.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Disabled => {
                "remove `web.port = \"off\"` from the configuration and restart the daemon: `switchboard stop`"
            }
            Self::Bind { .. } => {
                "set `web.port` in the configuration to a free port, or to 0 for any, and restart the daemon: `switchboard stop`"
            }
            Self::Stopping => "try again: the next command starts a new daemon",
        }
    }
}
