//! What the daemon asks of whoever runs the jobs.

use std::future::Future;
use std::io;
use std::pin::Pin;

use tokio_util::sync::CancellationToken;

use super::connection::{Client, Connection};
use crate::wire::{Complaint, Request};

/// Something that takes its time.
pub type Turn<'a, T = ()> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// How much there is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Load {
    /// Jobs that run under this daemon.
    pub running: u64,
    /// Jobs that wait for it.
    pub queued: u64,
}

impl Load {
    /// Whether nothing would be missed if the daemon ended.
    pub fn is_nothing(self) -> bool {
        self == Self::default()
    }
}

/// Whoever runs the jobs.
pub trait Work: Send + Sync {
    /// How much there is to do.
    fn load(&self) -> Turn<'_, Load>;
    /// Returns why no call is accepted.
    fn problem(&self) -> Option<Complaint> {
        None
    }
    /// Begins no further job, and is over when none runs. Jobs that wait stay for the next daemon.
    fn drain(&self) -> Turn<'_>;
    /// Cancels what runs. Over when the wish is durable; [`Work::drain`] waits for the end.
    fn cancel(&self) -> Turn<'_>;
    /// Lets go of everything. What runs goes on under its supervisors.
    fn let_go(&self) -> Turn<'_>;
    /// Answers a request about jobs, to its last line.
    fn ask<'a>(&'a self, request: Request, connection: &'a mut Connection) -> Turn<'a, io::Result<()>>;
    /// Speaks MCP with a front-end until it goes away, or until `shutdown`.
    fn converse(
        &self,
        connection: Connection,
        client: Client,
        shutdown: CancellationToken,
    ) -> Turn<'_, io::Result<()>>;
}
