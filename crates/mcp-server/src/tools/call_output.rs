//! `call_output`: reads the output of an agent in parts.

use calls::{JobStatus, OutputPart, Stream};
use rmcp::model::{CallToolResponse, Tool};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::definition::{Effect, ToolRequest, define_tool};
use crate::arguments::parse_choice;
use crate::context::ClientContext;
use crate::rejection::ToolRejection;
use crate::{job_ids, results};

pub(super) const NAME: &str = "call_output";
const DESCRIPTION: &str = "Read the raw output of a job's agent so far, in parts: its event stream (`output`, one JSON object per line) or its \
    stderr (`error`). Use it to watch a running job, or to find out why a job failed; get the answer itself with call_status. Start \
    with offset 0 and continue with next_offset until `eof`.";
pub(super) const HOWTO: &str = "Examples:\n- {\"job_id\": \"01a1dde2\"}\n- {\"job_id\": \"01a1dde2\", \"stream\": \"error\"}\n\
    - {\"job_id\": \"01a1dde2\", \"offset\": 65536}\n\
    Offsets are in bytes; a character is never split. `eof` is true when the job has finished and everything was read. An empty \
    text without `eof` means that there is no new output yet.";

pub(crate) const DEFAULT_LIMIT: u64 = 64 * 1024;
pub(crate) const MAX_LIMIT: u64 = 1024 * 1024;
/// Maximum length of a character in UTF-8.
const MAX_CHAR_BYTES: usize = 4;

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct OutputParameters {
    /// The `job_id` of a call, or a unique prefix of it.
    job_id: String,
    /// `output` (default): the agent's stdout. `error`: its stderr.
    #[schemars(extend("enum" = ["output", "error"]))]
    stream: Option<String>,
    /// Start offset in bytes. Default: 0. To continue, pass `next_offset` of the previous part.
    offset: Option<u64>,
    /// Maximum number of bytes, 1 to 1048576. Default: 65536.
    #[schemars(range(min = 1, max = 1_048_576))]
    limit: Option<u64>,
}

/// A part of an agent's output.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct OutputResult {
    /// The job.
    pub job_id: String,
    /// Status of the job.
    pub status: JobStatus,
    /// The text; invalid UTF-8 is replaced by U+FFFD.
    pub text: String,
    /// Start offset in bytes.
    pub offset: u64,
    /// Start offset of the next part.
    pub next_offset: u64,
    /// Number of bytes so far.
    pub total: u64,
    /// Is true if everything was read and the job has finished.
    pub eof: bool,
}

pub(super) fn tool() -> Tool {
    define_tool::<OutputParameters, OutputResult>(
        NAME,
        "Read an agent's output",
        DESCRIPTION,
        Effect::ReadOnly,
    )
}

pub(super) async fn call(mut request: ToolRequest<'_>) -> Result<CallToolResponse, ToolRejection> {
    let OutputParameters { job_id, stream, offset, limit } = request.parse_arguments()?;
    let stream = match stream {
        Some(stream) => {
            parse_choice("stream", &stream, &[("output", Stream::Output), ("error", Stream::Error)])?
        }
        None => Stream::Output,
    };
    let output =
        read(request.client, &job_id, stream, offset.unwrap_or(0), limit.unwrap_or(DEFAULT_LIMIT)).await?;
    let text = format!(
        "{}\n[bytes {} to {} of {}; the job is {}]",
        output.text,
        output.offset,
        output.next_offset,
        output.total,
        output.status.as_str()
    );
    Ok(results::tool_result(&output, text).into())
}

/// Reads a part of a job's stream, for the tool and the resource.
pub(crate) async fn read(
    client: &ClientContext,
    job: &str,
    stream: Stream,
    offset: u64,
    limit: u64,
) -> Result<OutputResult, ToolRejection> {
    if !(1..=MAX_LIMIT).contains(&limit) {
        return Err(ToolRejection::for_field(
            "limit",
            format!("{limit} is not between 1 and {MAX_LIMIT}"),
            "give 1 to 1048576, or omit it for 65536",
        ));
    }
    // Read before the bytes: after a final status there is no more output, so the bytes are complete.
    let job = job_ids::find(&client.service, job).await?;
    let status = JobStatus::from(job.progress.state.name());
    let limit = usize::try_from(limit).unwrap_or(usize::MAX).max(MAX_CHAR_BYTES);
    let part = client.service.output(job.id, stream, offset, limit).await?;
    Ok(output_part(job.id.to_string(), status, part))
}

fn output_part(job_id: String, status: JobStatus, part: OutputPart) -> OutputResult {
    let OutputPart { mut bytes, offset, total } = part;
    let is_last = offset + bytes.len() as u64 >= total;
    // An incomplete character is left for the next part, unless no more bytes will follow.
    if !(is_last && status.is_final()) {
        bytes.truncate(complete_chars_len(&bytes));
    }
    let next_offset = offset + bytes.len() as u64;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    OutputResult {
        job_id,
        status,
        text,
        offset,
        next_offset,
        total,
        eof: status.is_final() && next_offset >= total,
    }
}

/// Returns the length without an incomplete character at the end.
fn complete_chars_len(bytes: &[u8]) -> usize {
    let back = bytes.iter().rev().take(MAX_CHAR_BYTES).position(|byte| *byte & 0xC0 != 0x80);
    let Some(start) = back.map(|back| bytes.len() - 1 - back) else { return bytes.len() };
    let length = match bytes[start] {
        0xC2..=0xDF => 2,
        0xE0..=0xEF => 3,
        0xF0..=0xF4 => 4,
        _ => return bytes.len(),
    };
    if bytes.len() - start < length { start } else { bytes.len() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_part(bytes: &[u8], total: u64, status: JobStatus) -> OutputResult {
        output_part("j".into(), status, OutputPart { bytes: bytes.to_vec(), offset: 0, total })
    }

    #[test]
    fn characters_are_never_split() {
        let text = "aé€😀";
        let bytes = text.as_bytes();
        let mut at = 0;
        let mut read = String::new();
        while at < bytes.len() {
            let part = read_part(&bytes[at..(at + 4).min(bytes.len())], 99, JobStatus::Running);
            assert!(!part.text.contains('\u{fffd}') && part.next_offset > 0, "{part:?}");
            read += &part.text;
            at += usize::try_from(part.next_offset).unwrap();
        }
        assert_eq!(read, text);
    }

    #[test]
    fn trailing_partial_utf8_of_finished_job_is_returned() {
        let bytes = b"a\xe2\x82";
        let running = read_part(bytes, 3, JobStatus::Running);
        assert_eq!((running.text.as_str(), running.next_offset, running.eof), ("a", 1, false));
        let finished = read_part(bytes, 3, JobStatus::Failed);
        assert_eq!((finished.text.as_str(), finished.next_offset, finished.eof), ("a\u{fffd}", 3, true));
    }

    #[test]
    fn invalid_utf8_does_not_block_the_reader() {
        assert_eq!(complete_chars_len(b"\x80\x80\x80\x80\x80"), 5);
        assert_eq!(complete_chars_len(b"a\xff"), 2);
        assert_eq!(complete_chars_len(b""), 0);
    }
}
