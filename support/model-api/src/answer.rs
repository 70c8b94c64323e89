//! An HTTP response: a status, headers, and a body that can stream, stall or break off.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame};
use serde_json::Value;
use tokio::time::{Sleep, sleep};

use crate::script::{Ending, Reply};

/// The pause before a connection is cut, so that earlier bytes are sent.
const FLUSH: Duration = Duration::from_millis(50);

/// The response to one request.
#[derive(Debug)]
pub(crate) struct ApiResponse {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Playback,
}

impl ApiResponse {
    pub fn json(status: u16, body: &Value) -> Self {
        let headers = vec![("content-type", "application/json".to_owned())];
        Self { status, headers, body: Playback::whole(body.to_string()) }
    }

    /// Creates a response that is not streamed; one that hangs or is cut does so in the middle.
    pub fn whole(reply: &Reply, body: &Value) -> Self {
        let mut answer = Self::json(200, body);
        if reply.ending != Ending::Complete {
            let body = body.to_string();
            answer.body = Playback::whole(body[..body.floor_char_boundary(body.len() / 2)].to_owned());
        }
        answer.body.pace = reply.pace;
        answer.body.ending = reply.ending;
        answer
    }

    /// Creates a stream of server-sent events. `close` ends the stream properly: a reply that hangs or is cut never gets there.
    pub fn events(reply: &Reply, open: Vec<String>, close: Vec<String>) -> Self {
        let mut frames: VecDeque<Bytes> = open.into_iter().map(Bytes::from).collect();
        if reply.ending == Ending::Complete {
            frames.extend(close.into_iter().map(Bytes::from));
        }
        let headers = vec![
            ("content-type", "text/event-stream; charset=utf-8".to_owned()),
            ("cache-control", "no-cache".to_owned()),
        ];
        Self {
            status: 200,
            headers,
            body: Playback { frames, pace: reply.pace, ending: reply.ending, pause: None },
        }
    }

    pub fn with_header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

/// A body that sends its frames at a pace and then ends as scripted. It needs no task of its own.
#[derive(Debug)]
pub(crate) struct Playback {
    frames: VecDeque<Bytes>,
    pace: Duration,
    ending: Ending,
    pause: Option<Pin<Box<Sleep>>>,
}

impl Playback {
    fn whole(body: String) -> Self {
        let frames = VecDeque::from([Bytes::from(body)]);
        Self { frames, pace: Duration::ZERO, ending: Ending::Complete, pause: None }
    }

    /// The pause due before the next step, if any.
    fn due(&self) -> Option<Duration> {
        let due = match (self.frames.is_empty(), self.ending) {
            (true, Ending::Cut) => FLUSH,
            (true, _) => Duration::ZERO,
            (false, _) => self.pace,
        };
        (!due.is_zero()).then_some(due)
    }
}

impl Body for Playback {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if self.pause.is_none() {
            self.pause = self.due().map(|due| Box::pin(sleep(due)));
        }
        if let Some(pause) = self.pause.as_mut() {
            if pause.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            self.pause = None;
        }
        match (self.frames.pop_front(), self.ending) {
            (Some(frame), _) => Poll::Ready(Some(Ok(Frame::data(frame)))),
            (None, Ending::Complete) => Poll::Ready(None),
            // Never woken again: the connection ends when the client or the server goes away.
            (None, Ending::Hang) => Poll::Pending,
            (None, Ending::Cut) => Poll::Ready(Some(Err(io::ErrorKind::ConnectionAborted.into()))),
        }
    }
}

/// Splits `text` into words without losing a byte, so that there is something to stream.
pub(crate) fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive(' ')
}

/// One server-sent event.
pub(crate) fn event(name: Option<&str>, data: &Value) -> String {
    name.map_or_else(|| format!("data: {data}\n\n"), |name| format!("event: {name}\ndata: {data}\n\n"))
}
