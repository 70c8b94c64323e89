//! The server: one loopback port for all APIs, stopped with its handle.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::answer::{ApiResponse, Playback};
use crate::request::{ApiVendor, ModelRequest, Purpose};
use crate::script::{ModelTurn, Script};
use crate::{anthropic, chat, gemini, openai};

/// A running model API on a free loopback port. Dropping it closes every connection and the port.
///
/// It runs on the runtime that started it, which must not be blocked while a CLI uses it.
#[derive(Debug)]
pub struct ModelApi {
    address: SocketAddr,
    log: watch::Receiver<Vec<ModelRequest>>,
    // Aborted on drop: the accept loop, and with it every connection.
    _serving: JoinSet<()>,
}

/// All requests so far, with a notification for the next.
#[derive(Debug, Default)]
struct Log(watch::Sender<Vec<ModelRequest>>);

impl Log {
    /// Stores a request. Returns the number of earlier requests that took a turn.
    fn keep(&self, request: ModelRequest) -> usize {
        let mut before = 0;
        self.0.send_modify(|requests| {
            before = requests.iter().filter(|earlier| earlier.purpose == Purpose::ModelTurn).count();
            requests.push(request);
        });
        before
    }
}

impl ModelApi {
    /// Starts a server that answers by `script`.
    ///
    /// # Panics
    /// If no loopback port can be bound. See [`ModelApi::bind`].
    pub async fn start(script: Script) -> Self {
        Self::bind(0, script).await.expect("a free port on the loopback address")
    }

    /// Starts a server on a given port; 0 picks a free one.
    pub async fn bind(port: u16, script: Script) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        let address = listener.local_addr()?;
        let log = Arc::new(Log::default());
        let mut serving = JoinSet::new();
        let requests = log.0.subscribe();
        serving.spawn(accept(listener, script, log));
        Ok(Self { address, log: requests, _serving: serving })
    }

    /// Returns the base URL without a trailing slash.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns all requests so far, in the order of arrival.
    pub fn requests(&self) -> Vec<ModelRequest> {
        self.log.borrow().clone()
    }

    /// Waits for the request with this number, counted from 0 over all requests.
    pub async fn request(&self, number: usize) -> ModelRequest {
        self.arrived(number, |_| true).await
    }

    /// Waits for the request that took this turn of the script, counted from 0.
    pub async fn turn(&self, number: usize) -> ModelRequest {
        self.arrived(number, |request| request.purpose == Purpose::ModelTurn).await
    }

    async fn arrived(&self, number: usize, wanted: impl Fn(&ModelRequest) -> bool) -> ModelRequest {
        let nth = |requests: &Vec<ModelRequest>| requests.iter().filter(|r| wanted(r)).nth(number).cloned();
        let found = self
            .log
            .clone()
            .wait_for(|requests| nth(requests).is_some())
            .await
            .ok()
            .and_then(|log| nth(&log));
        match found {
            Some(request) => request,
            // The server has stopped: no request will arrive.
            None => pending().await,
        }
    }

    /// Returns the requests that took a turn of the script, in the order of arrival.
    pub fn turns(&self) -> Vec<ModelRequest> {
        self.requests().into_iter().filter(|request| request.purpose == Purpose::ModelTurn).collect()
    }
}

async fn accept(listener: TcpListener, script: Script, log: Arc<Log>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(serve(stream, script.clone(), Arc::clone(&log)));
                }
                // Most likely EMFILE: other connections may close.
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            },
            // Reaped as they finish, so that a long run does not accumulate them.
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
        }
    }
}

async fn serve(stream: TcpStream, script: Script, log: Arc<Log>) {
    let service = service_fn(|request| {
        let (script, log) = (script.clone(), Arc::clone(&log));
        async move { Ok::<_, Infallible>(response(answer(request, &script, &log).await)) }
    });
    // The client disconnected, or a scripted cut.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(request: Request<Incoming>, script: &Script, log: &Log) -> ApiResponse {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let headers = head
        .headers
        .iter()
        .map(|(name, value)| {
            (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned())
        })
        .collect();
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let request = ModelRequest::new(head.method.to_string(), head.uri.to_string(), headers, body);
    let number = log.keep(request.clone());
    match (request.purpose, request.vendor) {
        (Purpose::ModelTurn, Some(vendor)) => {
            play(script.turn(&request, number), vendor, &request, number).await
        }
        (Purpose::Auxiliary, Some(ApiVendor::Anthropic)) => anthropic::auxiliary(&request),
        (Purpose::Auxiliary, Some(ApiVendor::OpenAi)) => openai::auxiliary(&request),
        (Purpose::Auxiliary, Some(ApiVendor::OpenAiChat)) => chat::auxiliary(&request),
        (Purpose::Auxiliary, Some(ApiVendor::Gemini)) => gemini::auxiliary(&request),
        (Purpose::Auxiliary, None) => {
            ApiResponse::json(200, &json!({"object": "list", "data": [], "models": []}))
        }
        (Purpose::Unknown | Purpose::ModelTurn, _) => {
            ApiResponse::json(404, &json!({"error": {"message": "not served here"}}))
        }
    }
}

async fn play(turn: ModelTurn, vendor: ApiVendor, request: &ModelRequest, number: usize) -> ApiResponse {
    match (turn, vendor) {
        (ModelTurn::Reply(reply), ApiVendor::Anthropic) => anthropic::answer(request, &reply, number),
        (ModelTurn::Reply(reply), ApiVendor::OpenAi) => openai::answer(request, &reply, number),
        (ModelTurn::Reply(reply), ApiVendor::OpenAiChat) => chat::answer(request, &reply, number),
        (ModelTurn::Reply(reply), ApiVendor::Gemini) => gemini::answer(request, &reply, number),
        (ModelTurn::Refuse { status, retry_after }, vendor) => refuse(vendor, status, retry_after),
        (ModelTurn::Overloaded, ApiVendor::Anthropic) => anthropic::refusal(529, None),
        (ModelTurn::Overloaded, vendor) => refuse(vendor, 503, None),
        (ModelTurn::HangBeforeFirstByte, _) => pending().await,
    }
}

fn refuse(vendor: ApiVendor, status: u16, retry_after: Option<Duration>) -> ApiResponse {
    let seconds = retry_after.map(|wait| wait.as_secs());
    match vendor {
        ApiVendor::Anthropic => anthropic::refusal(status, seconds),
        ApiVendor::OpenAi | ApiVendor::OpenAiChat => openai::refusal(status, seconds),
        ApiVendor::Gemini => gemini::refusal(status, seconds),
    }
}

fn response(answer: ApiResponse) -> Response<Playback> {
    let mut response = Response::new(answer.body);
    // Both come from the script; a value that HTTP cannot carry falls back to that of a broken server.
    *response.status_mut() =
        hyper::StatusCode::from_u16(answer.status).unwrap_or(hyper::StatusCode::INTERNAL_SERVER_ERROR);
    for (name, value) in answer.headers {
        if let Ok(value) = value.parse() {
            response.headers_mut().append(name, value);
        }
    }
    response
}
