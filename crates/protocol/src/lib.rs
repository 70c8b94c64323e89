//! Finds, starts and queries the Switchboard daemon.
//!
//! Owns the socket protocol, the paths of the state directory, the daemon's lock and the client side of a connection. Blocking and
//! without an async runtime: a client sends one request at a time, and the bridge has to stay small. Knows neither configuration
//! nor job records; callers pass the variables that calls carry, and the type of a job's answer.

mod client;
mod connection;
mod connector;
mod directory;
pub mod enclosing_run;
mod environment;
mod greeting;
mod home;
mod lock;
mod reply;
mod request;
pub mod socket;

pub use client::{MAX_DAEMONS, RequestError, exchange, request, request_once, request_streaming};
pub use connection::{ConnectError, DaemonConnection, connect, connect_when_ready};
pub use connector::{ConnectorError, DaemonConnector, EXIT_ALREADY_RUNNING, READY};
pub use directory::{DirectoryError, PrivateDirectory};
pub use environment::ProcessEnvironment;
pub use greeting::{
    ClientRole, ErrorReply, Greeting, Hello, MAX_GREETING_BYTES, PROTOCOL_VERSION, PeerVersion,
    UPGRADE_DAEMON, VERSION, Welcome, describe_version_skew,
};
pub use home::{HOME_VARIABLE, HomeError, SwitchboardHome};
pub use lock::{DaemonLock, LockHolder, is_locked, try_lock_file};
pub use reply::{
    ApplyReply, CancelledEntry, ConflictEntry, DaemonPhase, DaemonReply, DaemonStatus, ErrorCategory,
    HttpStatus, JobListEntry, OpenChangesEntry, ReplyLine, RestoredEntry, SubmitGroupReply, SubmitReply,
    event_to_json, is_waiting_event, waiting_event,
};
pub use request::{
    DaemonRequest, JobQuery, OutputStream, SelectedFiles, StopMode, SubmitGroupRequest, SubmitRequest,
};
