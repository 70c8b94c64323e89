//! Errors about messages that are not handled, for both transports.

use std::time::Duration;

use crate::rejection::ToolRejection;

/// Maximum size of a message: the longest prompt with its JSON escapes.
pub const MAX_MESSAGE_BYTES: usize = 32 * 1024 * 1024;

/// Rejects a request whose id is neither a string nor an integer.
pub(crate) fn invalid_id() -> ToolRejection {
    ToolRejection::for_field(
        "id",
        "the request cannot be answered: its id is neither a string nor an integer; no job was submitted",
        "give every request a unique id: a string or an integer",
    )
}

/// Rejects a message over [`MAX_MESSAGE_BYTES`].
pub(crate) fn too_long() -> ToolRejection {
    ToolRejection::for_field(
        "prompt",
        format!("the message has more than {MAX_MESSAGE_BYTES} bytes; no job was submitted"),
        "put the long part into a file in the working directory and name it in the prompt",
    )
}

/// Rejects a long message while the memory for long messages is in use.
pub(crate) fn out_of_memory() -> ToolRejection {
    ToolRejection::new(
        "the daemon's memory for long messages is in use; no job was submitted",
        "try again, or put the long part into a file in the working directory and name it in the prompt",
    )
}

/// Rejects a message whose rest did not arrive in time.
pub(crate) fn stalled(timeout: Duration) -> ToolRejection {
    ToolRejection::new(
        format!("the message did not arrive within {} s; no job was submitted", timeout.as_secs()),
        "send a long message without a pause",
    )
}

/// Rejects bytes that are not UTF-8.
pub(crate) fn invalid_utf8() -> ToolRejection {
    ToolRejection::new(
        "the message is not valid UTF-8; no job was submitted",
        "send JSON in UTF-8, one message per line",
    )
}

/// Rejects a line that is not a JSON-RPC message.
pub(crate) fn invalid_json_rpc(error: &serde_json::Error) -> ToolRejection {
    ToolRejection::new(
        format!("the message is not valid JSON-RPC ({error}); no job was submitted"),
        "send one object per line, such as {\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/list\"}",
    )
}
