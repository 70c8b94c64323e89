//! Jobs as resources: the answer, and the agent's output in parts.
//!
//! | URI | content |
//! | --- | --- |
//! | `switchboard://jobs/{id}` | the answer of a job or the state of a group, as returned by `call_status` |
//! | `switchboard://jobs/{id}/output?offset=&limit=` | stdout of the agent |
//! | `switchboard://jobs/{id}/error?offset=&limit=` | stderr of the agent |
//!
//! Reads the store and the files of the jobs; has no state.

use calls::{JobFilter, JobService, JobSummary, PageRequest, Stream};
use model::JobId;
use rmcp::model::{
    ErrorData, ListResourceTemplatesResult, ListResourcesResult, MetaObject, ReadResourceResult, Resource,
    ResourceContents, ResourceTemplate,
};
use serde::Serialize;
use serde_json::json;

use crate::context::ClientContext;
use crate::group_report::GroupAnswer;
use crate::job_ids::{self, JobTarget};
use crate::rejection::ToolRejection;
use crate::tools::output;

const JOBS_URI: &str = "switchboard://jobs/";
/// Jobs per page of the list.
const PAGE_SIZE: u32 = 50;

/// A parsed resource URI.
#[derive(Debug, PartialEq, Eq)]
struct ResourceAddress<'a> {
    job: &'a str,
    stream: Option<Stream>,
    offset: u64,
    limit: u64,
}

/// Returns a page of the jobs, newest first.
pub(crate) async fn list(
    service: &JobService,
    cursor: Option<&str>,
) -> Result<ListResourcesResult, ErrorData> {
    let before = match cursor {
        Some(cursor) => Some(
            cursor
                .parse::<JobId>()
                .map_err(|_| ErrorData::invalid_params("invalid cursor; list again without one", None))?,
        ),
        None => None,
    };
    let page = service
        .list(&JobFilter::default(), PageRequest { limit: PAGE_SIZE, before })
        .await
        .map_err(internal_error)?;
    let mut list = ListResourcesResult::with_all_items(page.jobs.iter().map(resource).collect());
    list.next_cursor = page.next.map(|next| next.to_string());
    Ok(list)
}

fn resource(job: &JobSummary) -> Resource {
    let description = format!(
        "{} through {} in {}: {}. Its output is in {JOBS_URI}{}/output",
        job.state, job.tool, job.cwd, job.prompt_head, job.id
    );
    Resource::new(format!("{JOBS_URI}{}", job.id), format!("job {}", job.id))
        .with_title(format!("{} ({})", job.task, job.state))
        .with_description(description)
        .with_mime_type("application/json")
}

/// Returns the URI templates.
pub(crate) fn templates() -> ListResourceTemplatesResult {
    let job = ResourceTemplate::new(format!("{JOBS_URI}{{id}}"), "job")
        .with_title("A job")
        .with_description(
            "The status of a job, and its answer once it has finished, as returned by call_status; also for the id of a group",
        )
        .with_mime_type("application/json");
    let stream = |name: &str, title: &str, content: &str| {
        ResourceTemplate::new(format!("{JOBS_URI}{{id}}/{name}{{?offset,limit}}"), format!("job-{name}"))
            .with_title(title)
            .with_description(format!(
                "{content}, raw, in parts of at most {} bytes (default: 65536). If there is more, a second content names \
                 the URI of the next part",
                output::MAX_LIMIT
            ))
            .with_mime_type("text/plain")
    };
    ListResourceTemplatesResult::with_all_items(vec![
        job,
        stream("output", "Output of a job's agent", "Output of the agent so far, one JSON object per line"),
        stream("error", "Stderr of a job's agent", "Stderr of the agent so far"),
    ])
}

/// Reads a resource.
pub(crate) async fn read(client: &ClientContext, uri: &str) -> Result<ReadResourceResult, ErrorData> {
    let to_error = |rejection: ToolRejection| rejection.to_resource_error(uri);
    let address = ResourceAddress::parse(uri).map_err(to_error)?;
    let contents = match address.stream {
        None => {
            let target = job_ids::find_target(&client.service, address.job).await.map_err(to_error)?;
            let text = match target {
                JobTarget::Job(job) => client.cut_answer(job).await.map(|answer| to_json(&answer)),
                JobTarget::Group(group) => {
                    GroupAnswer::read(client, &group).await.map(|answer| to_json(&answer))
                }
            };
            let text = text.map_err(|error| to_error(error.into()))?;
            vec![ResourceContents::text(text, uri).with_mime_type("application/json")]
        }
        Some(stream) => {
            let part = output::read(client, address.job, stream, address.offset, address.limit);
            stream_contents(uri, &address, &part.await.map_err(to_error)?)
        }
    };
    Ok(ReadResourceResult::new(contents))
}

fn to_json(answer: &impl Serialize) -> String {
    serde_json::to_string_pretty(answer).unwrap_or_default()
}

/// Returns a part of a stream as it is, followed by a pointer to the next part.
fn stream_contents(
    uri: &str,
    address: &ResourceAddress<'_>,
    part: &output::OutputResult,
) -> Vec<ResourceContents> {
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
            "[bytes {} to {} of {} so far; the job is {}; continue with {next}]",
            part.offset,
            part.next_offset,
            part.total,
            part.status.as_str()
        );
        contents.push(ResourceContents::text(note, next));
    }
    contents
}

impl<'a> ResourceAddress<'a> {
    fn parse(uri: &'a str) -> Result<Self, ToolRejection> {
        let unknown = || {
            let shown: String = uri.chars().take(200).collect();
            ToolRejection::new(
                format!("unknown resource `{}`", shown.escape_debug()),
                "see resources/list and resources/templates/list",
            )
            .not_found()
        };
        let address = uri.strip_prefix(JOBS_URI).ok_or_else(unknown)?;
        let (path, query) = address.split_once('?').unwrap_or((address, ""));
        let (job, stream) = match path.split_once('/') {
            None => (path, None),
            Some((job, "output")) => (job, Some(Stream::Output)),
            Some((job, "error")) => (job, Some(Stream::Error)),
            Some(_) => return Err(unknown()),
        };
        let mut address = Self { job, stream, offset: 0, limit: output::DEFAULT_LIMIT };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=').ok_or_else(unknown)? {
                ("offset", value) => address.offset = parse_number("offset", value)?,
                ("limit", value) => address.limit = parse_number("limit", value)?,
                _ => return Err(unknown()),
            }
        }
        Ok(address)
    }
}

fn parse_number(field: &str, value: &str) -> Result<u64, ToolRejection> {
    value.parse().map_err(|_| {
        let shown: String = value.chars().take(40).collect();
        let message = format!("`{}` is not a number of bytes", shown.escape_debug());
        ToolRejection::for_field(field, message, "give an integer, or omit it")
    })
}

fn internal_error(error: calls::CallError) -> ErrorData {
    ErrorData::internal_error(ToolRejection::from(error).text(), None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_parsed_from_uri() {
        let address = |job, stream, offset, limit| Ok(ResourceAddress { job, stream, offset, limit });
        let default = output::DEFAULT_LIMIT;
        assert_eq!(ResourceAddress::parse("switchboard://jobs/01a1"), address("01a1", None, 0, default));
        assert_eq!(
            ResourceAddress::parse("switchboard://jobs/01a1/output"),
            address("01a1", Some(Stream::Output), 0, default)
        );
        assert_eq!(
            ResourceAddress::parse("switchboard://jobs/01a1/error?offset=7&limit=9"),
            address("01a1", Some(Stream::Error), 7, 9)
        );
        for bad in [
            "file:///etc/passwd",
            "switchboard://jobs/x/y",
            "switchboard://jobs/x/output?offset=-1",
            "switchboard://jobs/x?a=b",
        ] {
            assert!(ResourceAddress::parse(bad).is_err(), "{bad}");
        }
    }
}
