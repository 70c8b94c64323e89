//! Jobs as resources: the answer, and what the agent printed, in parts.
//!
//! | URI | what it is |
//! | --- | --- |
//! | `switchboard://jobs/{id}` | the answer, as `call_status` gives it |
//! | `switchboard://jobs/{id}/output?offset=&limit=` | what the agent printed |
//! | `switchboard://jobs/{id}/error?offset=&limit=` | its stderr |
//!
//! Views of the store and of the jobs' files; nothing is kept here.

use calls::{JobFilter, JobService, JobSummary, PageRequest, Stream};
use model::JobId;
use rmcp::model::{
    ErrorData, ListResourceTemplatesResult, ListResourcesResult, MetaObject, ReadResourceResult, Resource,
    ResourceContents, ResourceTemplate,
};
use serde_json::json;

use super::job_ids;
use super::refusal::Refusal;
use super::server::Server;
use super::tools::output;

const JOBS: &str = "switchboard://jobs/";
/// How many jobs are on a page of the list.
const PAGE: u32 = 50;

/// A resource that somebody wants to read.
#[derive(Debug, PartialEq, Eq)]
struct Address<'a> {
    job: &'a str,
    stream: Option<Stream>,
    offset: u64,
    limit: u64,
}

/// A page of the jobs, the newest first.
pub(crate) async fn list(desk: &JobService, cursor: Option<&str>) -> Result<ListResourcesResult, ErrorData> {
    let before = match cursor {
        Some(cursor) => Some(cursor.parse::<JobId>().map_err(|_| {
            ErrorData::invalid_params("the cursor is none that was given; begin without one", None)
        })?),
        None => None,
    };
    let page = desk.list(&JobFilter::default(), PageRequest { limit: PAGE, before }).await.map_err(failed)?;
    let mut list = ListResourcesResult::with_all_items(page.jobs.iter().map(resource).collect());
    list.next_cursor = page.next.map(|next| next.to_string());
    Ok(list)
}

fn resource(job: &JobSummary) -> Resource {
    let description = format!(
        "{} through {} in {}: {}. What it printed is in {JOBS}{}/output",
        job.state, job.tool, job.cwd, job.prompt_head, job.id
    );
    Resource::new(format!("{JOBS}{}", job.id), format!("job {}", job.id))
        .with_title(format!("{} ({})", job.task, job.state))
        .with_description(description)
        .with_mime_type("application/json")
}

/// How resources are named.
pub(crate) fn templates() -> ListResourceTemplatesResult {
    let job = ResourceTemplate::new(format!("{JOBS}{{id}}"), "job")
        .with_title("A job")
        .with_description("Where a job stands, and its answer if it has ended, as call_status gives it")
        .with_mime_type("application/json");
    let stream = |name: &str, title: &str, what: &str| {
        ResourceTemplate::new(format!("{JOBS}{{id}}/{name}{{?offset,limit}}"), format!("job-{name}"))
            .with_title(title)
            .with_description(format!(
                "{what}, raw, in parts of at most {} bytes (65536 when `limit` is left out). When there is more, a second \
                 content says under which URI it goes on",
                output::MAX_LIMIT
            ))
            .with_mime_type("text/plain")
    };
    ListResourceTemplatesResult::with_all_items(vec![
        job,
        stream(
            "output",
            "What the agent of a job printed",
            "What the agent printed so far, one JSON object a line",
        ),
        stream("error", "The stderr of the agent of a job", "What the agent wrote to stderr so far"),
    ])
}

/// Reads one.
pub(crate) async fn read(server: &Server, uri: &str) -> Result<ReadResourceResult, ErrorData> {
    let refused = |refusal: Refusal| refusal.of_resource(uri);
    let address = Address::of(uri).map_err(refused)?;
    let contents = match address.stream {
        None => {
            let job = job_ids::find(&server.desk, address.job).await.map_err(refused)?;
            let answer = server.desk.answer(job.id).await.map_err(|error| refused(error.into()))?;
            let answer = answer.cut_to(server.options.defaults.max_response_chars);
            let text = serde_json::to_string_pretty(&answer).unwrap_or_default();
            vec![ResourceContents::text(text, uri).with_mime_type("application/json")]
        }
        Some(stream) => {
            let part = output::read(server, address.job, stream, address.offset, address.limit);
            printed(uri, &address, &part.await.map_err(refused)?)
        }
    };
    Ok(ReadResourceResult::new(contents))
}

/// A part of a stream, and where it goes on. The text itself is left as it is.
fn printed(uri: &str, address: &Address<'_>, part: &output::Output) -> Vec<ResourceContents> {
    let mut meta = MetaObject::default();
    meta.insert("switchboard/offset".to_owned(), json!(part.offset));
    meta.insert("switchboard/next_offset".to_owned(), json!(part.next_offset));
    meta.insert("switchboard/total".to_owned(), json!(part.total));
    meta.insert("switchboard/eof".to_owned(), json!(part.eof));
    let mut contents = vec![ResourceContents::text(part.text.clone(), uri).with_meta(meta)];
    if !part.eof {
        let path = uri.split('?').next().unwrap_or(uri);
        let next = format!("{path}?offset={}&limit={}", part.next_offset, address.limit);
        let note = format!(
            "[bytes {} to {} of {} so far; the job is {}; read {next} to go on]",
            part.offset,
            part.next_offset,
            part.total,
            part.status.as_str()
        );
        contents.push(ResourceContents::text(note, next));
    }
    contents
}

impl<'a> Address<'a> {
    fn of(uri: &'a str) -> Result<Self, Refusal> {
        let nothing_here = || {
            let shown: String = uri.chars().take(200).collect();
            Refusal::new(
                format!("`{}` is no resource here", shown.escape_debug()),
                "resources/list and resources/templates/list say what there is",
            )
            .missing()
        };
        let address = uri.strip_prefix(JOBS).ok_or_else(nothing_here)?;
        let (path, query) = address.split_once('?').unwrap_or((address, ""));
        let (job, stream) = match path.split_once('/') {
            None => (path, None),
            Some((job, "output")) => (job, Some(Stream::Output)),
            Some((job, "error")) => (job, Some(Stream::Error)),
            Some(_) => return Err(nothing_here()),
        };
        let mut address = Self { job, stream, offset: 0, limit: output::DEFAULT_LIMIT };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=').ok_or_else(nothing_here)? {
                ("offset", value) => address.offset = number("offset", value)?,
                ("limit", value) => address.limit = number("limit", value)?,
                _ => return Err(nothing_here()),
            }
        }
        Ok(address)
    }
}

fn number(field: &str, value: &str) -> Result<u64, Refusal> {
    value.parse().map_err(|_| {
        let shown: String = value.chars().take(40).collect();
        let message = format!("`{}` is no number of bytes", shown.escape_debug());
        Refusal::of(field, message, "give a whole number, or leave it out")
    })
}

fn failed(error: calls::CallError) -> ErrorData {
    ErrorData::internal_error(Refusal::from(error).text(), None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_from_its_uri() {
        let address = |job, stream, offset, limit| Ok(Address { job, stream, offset, limit });
        let usual = output::DEFAULT_LIMIT;
        assert_eq!(Address::of("switchboard://jobs/01a1"), address("01a1", None, 0, usual));
        assert_eq!(
            Address::of("switchboard://jobs/01a1/output"),
            address("01a1", Some(Stream::Output), 0, usual)
        );
        assert_eq!(
            Address::of("switchboard://jobs/01a1/error?offset=7&limit=9"),
            address("01a1", Some(Stream::Error), 7, 9)
        );
        for bad in [
            "file:///etc/passwd",
            "switchboard://jobs/x/y",
            "switchboard://jobs/x/output?offset=-1",
            "switchboard://jobs/x?a=b",
        ] {
            assert!(Address::of(bad).is_err(), "{bad}");
        }
    }
}
