//! The terminals of an agent: answers its requests.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, PipeWriter};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex};
use std::thread::{self, Scope};

use serde_json::json;

use crate::reply::{INTERNAL, INVALID_PARAMETERS, NOT_FOUND, ReplyBody, TerminalReply};
use crate::terminal::{ExitReply, Terminal};
use crate::terminal_request::{TerminalCommand, TerminalMethod, TerminalRequest};

/// The limit of terminals that are not released. Each has a thread and four descriptors.
const MAX_TERMINALS: usize = 64;

/// The terminals that are not released.
pub(crate) struct Terminals<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    replies: SyncSender<TerminalReply>,
    /// The stream to the client.
    client: &'env Mutex<File>,
    open: HashMap<String, OpenTerminal>,
    created: u64,
}

/// A terminal that is not released: dropping it releases it.
struct OpenTerminal {
    terminal: Arc<Terminal>,
    _release: PipeWriter,
}

impl<'scope, 'env> Terminals<'scope, 'env> {
    pub(crate) fn new(
        scope: &'scope Scope<'scope, 'env>,
        replies: SyncSender<TerminalReply>,
        client: &'env Mutex<File>,
    ) -> Self {
        Self { scope, replies, client, open: HashMap::new(), created: 0 }
    }

    /// Carries out a request. Its reply is sent at once or, for the exit of a command, later.
    pub(crate) fn answer(&mut self, request: TerminalRequest) {
        let body = self.handle(&request).unwrap_or_else(Some);
        if let (Some(id), Some(body)) = (request.id, body) {
            // An error means that the program exits.
            let _ = self.replies.send(TerminalReply { id, body });
        }
    }

    /// Kills all commands and waits for their exit.
    pub(crate) fn kill_all(&mut self) {
        for open in self.open.values() {
            open.terminal.kill();
        }
        for (_, open) in self.open.drain() {
            open.terminal.wait();
        }
    }

    fn handle(&mut self, request: &TerminalRequest) -> Result<Option<ReplyBody>, ReplyBody> {
        let at_exit = |terminal: &Terminal, reply: ExitReply| {
            let result = terminal.reply_at_exit(request.id.as_ref(), reply);
            Ok(result.map_err(|message| ReplyBody::error(INTERNAL, message))?.map(ReplyBody::Result))
        };
        match request.method {
            TerminalMethod::Create => {
                let id = self.create(&request.command().map_err(invalid)?)?;
                Ok(Some(ReplyBody::Result(json!({ "terminalId": id }))))
            }
            TerminalMethod::Output => {
                let terminal = Arc::clone(&self.find(request)?.1.terminal);
                Ok(Some(ReplyBody::Output(Box::new(move || terminal.output()))))
            }
            TerminalMethod::WaitForExit => at_exit(&self.find(request)?.1.terminal, ExitReply::Status),
            TerminalMethod::Kill => {
                let terminal = &self.find(request)?.1.terminal;
                terminal.kill();
                at_exit(terminal, ExitReply::Empty)
            }
            TerminalMethod::Release => {
                let (id, open) = self.find(request)?;
                open.terminal.kill();
                let reply = at_exit(&open.terminal, ExitReply::Empty);
                self.open.remove(id);
                reply
            }
        }
    }

    /// Returns the terminal that a request is about, with its id.
    fn find<'r>(&self, request: &'r TerminalRequest) -> Result<(&'r str, &OpenTerminal), ReplyBody> {
        let id = request.terminal_id().map_err(invalid)?;
        let unknown = || ReplyBody::error(NOT_FOUND, format!("there is no terminal `{id}`"));
        Ok((id, self.open.get(id).ok_or_else(unknown)?))
    }

    fn create(&mut self, command: &TerminalCommand) -> Result<String, ReplyBody> {
        if self.open.len() >= MAX_TERMINALS {
            let message = format!("{MAX_TERMINALS} terminals are open; release one first");
            return Err(ReplyBody::error(INTERNAL, message));
        }
        let failure = |error: io::Error| ReplyBody::error(INTERNAL, spawn_failure(command, &error));
        let (terminal, streams, release) = Terminal::spawn(command).map_err(failure)?;
        self.created += 1;
        let id = format!("terminal-{}", self.created);
        let terminal = Arc::new(terminal);
        let (follower, name) = (Arc::clone(&terminal), id.clone());
        let (replies, client) = (self.replies.clone(), self.client);
        let thread = thread::Builder::new();
        // A sandbox limits the number of threads.
        let started =
            thread.spawn_scoped(self.scope, move || follower.follow(&name, streams, &replies, client));
        if let Err(error) = started {
            terminal.abandon();
            return Err(failure(error));
        }
        self.open.insert(id.clone(), OpenTerminal { terminal, _release: release });
        Ok(id)
    }
}

fn invalid(message: String) -> ReplyBody {
    ReplyBody::error(INVALID_PARAMETERS, message)
}

/// Describes why a command cannot be started. The kernel reports the same error for a missing directory and a missing program.
fn spawn_failure(command: &TerminalCommand, error: &io::Error) -> String {
    match &command.cwd {
        Some(cwd) if !cwd.is_dir() => {
            format!("cannot start `{}`: `{}` is not a directory", command.program, cwd.display())
        }
        _ => format!("cannot start `{}`: {error}", command.program),
    }
}
