//! `call_output`: what an agent has printed, in parts.

use calls::{JobStatus, OutputPart, Stream};
use rmcp::model::{CallToolResponse, Tool};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Effect, Request, define};
use crate::mcp::arguments::one_of;
use crate::mcp::refusal::Refusal;
use crate::mcp::server::Server;
use crate::mcp::{job_ids, render};

pub(super) const NAME: &str = "call_output";
const ABOUT: &str = "What the agent of a job has printed so far, raw and in parts: its event stream (`output`, one JSON object a line) \
    or its stderr (`error`). Use it to look at a job that runs, or to find out why one failed; the answer itself is in \
    call_status. Begin with offset 0 and go on with next_offset until `eof`.";
pub(super) const HOWTO: &str = "Examples:\n- {\"job_id\": \"01a1dde2\"}\n- {\"job_id\": \"01a1dde2\", \"stream\": \"error\"}\n\
    - {\"job_id\": \"01a1dde2\", \"offset\": 65536}\n\
    Offsets are bytes; a character is never cut in two. `eof` is true when the job has ended and nothing is left to read; without \
    it and with an empty text there is nothing new yet.";

pub(crate) const DEFAULT_LIMIT: u64 = 64 * 1024;
pub(crate) const MAX_LIMIT: u64 = 1024 * 1024;
/// The longest character.
const CHARACTER: usize = 4;

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct Parameters {
    /// The `job_id` that a call answered, or its first characters.
    job_id: String,
    /// `output` (default): what the agent printed. `error`: its stderr.
    #[schemars(extend("enum" = ["output", "error"]))]
    stream: Option<String>,
    /// Where to begin, in bytes. Default: 0. Give the `next_offset` of the part before.
    offset: Option<u64>,
    /// How many bytes at most, 1 to 1048576. Default: 65536.
    #[schemars(range(min = 1, max = 1_048_576))]
    limit: Option<u64>,
}

/// A part of what an agent has printed.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Output {
    /// Which job.
    pub job_id: String,
    /// Where it stands.
    pub status: JobStatus,
    /// The text; bytes that are no UTF-8 are shown as U+FFFD.
    pub text: String,
    /// Where it begins, in bytes.
    pub offset: u64,
    /// Where the next part begins.
    pub next_offset: u64,
    /// How many bytes there are in all, so far.
    pub total: u64,
    /// Whether nothing is left to read and nothing will come.
    pub eof: bool,
}

pub(super) fn tool() -> Tool {
    define::<Parameters, Output>(NAME, "Read what an agent printed", ABOUT, Effect::Reads)
}

pub(super) async fn call(mut request: Request<'_>) -> Result<CallToolResponse, Refusal> {
    let Parameters { job_id, stream, offset, limit } = request.read()?;
    let stream = match stream {
        Some(stream) => one_of("stream", &stream, &[("output", Stream::Output), ("error", Stream::Error)])?,
        None => Stream::Output,
    };
    let output =
        read(request.server, &job_id, stream, offset.unwrap_or(0), limit.unwrap_or(DEFAULT_LIMIT)).await?;
    let text = format!(
        "{}\n[bytes {} to {} of {}; the job is {}]",
        output.text,
        output.offset,
        output.next_offset,
        output.total,
        output.status.as_str()
    );
    Ok(render::result(&output, text).into())
}

/// Reads a part of a job's stream, for the tool and for the resource.
pub(crate) async fn read(
    server: &Server,
    job: &str,
    stream: Stream,
    offset: u64,
    limit: u64,
) -> Result<Output, Refusal> {
    if !(1..=MAX_LIMIT).contains(&limit) {
        return Err(Refusal::of(
            "limit",
            format!("{limit} is not between 1 and {MAX_LIMIT}"),
            "give at most 1048576, or leave it out for 65536",
        ));
    }
    // Before the bytes: one that has ended prints nothing more, so what is read then is all there is.
    let job = job_ids::find(&server.desk, job).await?;
    let status = JobStatus::from(job.progress.state.name());
    let limit = usize::try_from(limit).unwrap_or(usize::MAX).max(CHARACTER);
    let part = server.desk.output(job.id, stream, offset, limit).await?;
    Ok(output(job.id.to_string(), status, part))
}

fn output(job_id: String, status: JobStatus, part: OutputPart) -> Output {
    let OutputPart { mut bytes, offset, total } = part;
    let is_last = offset + bytes.len() as u64 >= total;
    // A character whose rest is still to come is left for the next part; at the very end nothing is to come.
    if !(is_last && status.is_final()) {
        bytes.truncate(whole_characters(&bytes));
    }
    let next_offset = offset + bytes.len() as u64;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Output {
        job_id,
        status,
        text,
        offset,
        next_offset,
        total,
        eof: status.is_final() && next_offset >= total,
    }
}

/// How many bytes there are without the beginning of a character at their end.
fn whole_characters(bytes: &[u8]) -> usize {
    let back = bytes.iter().rev().take(CHARACTER).position(|byte| *byte & 0xC0 != 0x80);
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

    fn part(bytes: &[u8], total: u64, status: JobStatus) -> Output {
        output("j".into(), status, OutputPart { bytes: bytes.to_vec(), offset: 0, total })
    }

    #[test]
    fn a_character_is_never_cut_in_two() {
        let text = "aé€😀";
        let bytes = text.as_bytes();
        let mut at = 0;
        let mut read = String::new();
        while at < bytes.len() {
            let piece = part(&bytes[at..(at + 4).min(bytes.len())], 99, JobStatus::Running);
            assert!(!piece.text.contains('\u{fffd}') && piece.next_offset > 0, "{piece:?}");
            read += &piece.text;
            at += usize::try_from(piece.next_offset).unwrap();
        }
        assert_eq!(read, text);
    }

    #[test]
    fn half_a_character_at_the_end_of_an_ended_job_is_told_and_not_waited_for() {
        let bytes = b"a\xe2\x82";
        let running = part(bytes, 3, JobStatus::Running);
        assert_eq!((running.text.as_str(), running.next_offset, running.eof), ("a", 1, false));
        let ended = part(bytes, 3, JobStatus::Failed);
        assert_eq!((ended.text.as_str(), ended.next_offset, ended.eof), ("a\u{fffd}", 3, true));
    }

    #[test]
    fn bytes_that_are_no_text_do_not_hold_up_the_reader() {
        assert_eq!(whole_characters(b"\x80\x80\x80\x80\x80"), 5);
        assert_eq!(whole_characters(b"a\xff"), 2);
        assert_eq!(whole_characters(b""), 0);
    }
}
