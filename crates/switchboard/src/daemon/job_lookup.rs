//! Finds the jobs and groups that a request names by an id or a unique prefix.

use std::collections::BTreeSet;

use calls::{GroupMatch, JobService, PrefixMatch};
use model::{BadJobId, GroupId, Job, JobGroup, JobId, JobIdPrefix};
use protocol::{ErrorCategory, ErrorReply};
use render::text::list_id_prefixes;

use super::handler_error::{HandlerError, LIST_JOBS_HINT};

/// Finds the job with an id or a unique prefix.
pub(super) async fn find_job(service: &JobService, given: &str) -> Result<Job, HandlerError> {
    if GroupId::strip_prefix(given).is_some() {
        let group = find_group(service, given).await?;
        let jobs: Vec<String> = group.jobs().map(|job| job.to_string()).collect();
        let message = format!("{} is a group of {} jobs", given.trim(), jobs.len());
        return Err(bad_id(message, format!("pass one of its jobs: {}", list_id_prefixes(&jobs))));
    }
    match service.find(parse_prefix(given.parse())?).await? {
        PrefixMatch::One(job) => Ok(*job),
        PrefixMatch::Nothing => Err(unknown("job", given)),
        PrefixMatch::Several(ids) => {
            Err(ambiguous("job", given, &ids.iter().map(JobId::to_string).collect::<Vec<_>>()))
        }
    }
}

/// Finds jobs. A group stands for its jobs, each of which is returned once.
pub(super) async fn find_jobs(service: &JobService, given: &[String]) -> Result<Vec<JobId>, HandlerError> {
    let mut found = Vec::new();
    for id in given {
        if GroupId::strip_prefix(id).is_some() {
            found.extend(service.jobs_of_group(&find_group(service, id).await?).await?);
        } else {
            found.push(find_job(service, id).await?.id);
        }
    }
    let mut seen = BTreeSet::new();
    found.retain(|job| seen.insert(*job));
    Ok(found)
}

/// Finds the group with an id or a unique prefix. The id of one of its jobs names it, too.
pub(super) async fn find_group(service: &JobService, given: &str) -> Result<JobGroup, HandlerError> {
    let prefix = parse_prefix(GroupId::parse_prefix(given).unwrap_or_else(|| given.parse()))?;
    match service.find_group(prefix).await? {
        GroupMatch::One(group) => Ok(group),
        GroupMatch::Nothing => Err(unknown("group", given)),
        GroupMatch::Several(ids) => {
            Err(ambiguous("group", given, &ids.iter().map(GroupId::to_string).collect::<Vec<_>>()))
        }
    }
}

fn parse_prefix(prefix: Result<JobIdPrefix, BadJobId>) -> Result<JobIdPrefix, HandlerError> {
    prefix.map_err(|error| bad_id(error.to_string(), error.hint().to_owned()))
}

fn unknown(noun: &str, given: &str) -> HandlerError {
    bad_id(format!("there is no {noun} {}", given.trim()), LIST_JOBS_HINT.to_owned())
}

fn ambiguous(noun: &str, given: &str, ids: &[String]) -> HandlerError {
    let message = format!("several {noun} ids start with {}", given.trim());
    bad_id(message, format!("pass a longer prefix: {}", list_id_prefixes(ids)))
}

fn bad_id(message: String, hint: String) -> HandlerError {
    HandlerError::Rejected(ErrorCategory::Input, ErrorReply { message, hint })
}
