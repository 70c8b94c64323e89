//! Finds the jobs and groups that a request names by an id or a unique prefix.

use calls::{JobService, PrefixMatch};
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
    find_by_prefix(service, given, given.parse()).await
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
    let mut seen = std::collections::BTreeSet::new();
    found.retain(|job| seen.insert(*job));
    Ok(found)
}

/// Finds the group with an id or a unique prefix. The id of one of its jobs names it, too.
pub(super) async fn find_group(service: &JobService, given: &str) -> Result<JobGroup, HandlerError> {
    let prefix = GroupId::parse_prefix(given).unwrap_or_else(|| given.parse());
    let job = find_by_prefix(service, given, prefix).await?.id;
    Ok(service.group_of(job).await?)
}

async fn find_by_prefix(
    service: &JobService,
    given: &str,
    prefix: Result<JobIdPrefix, BadJobId>,
) -> Result<Job, HandlerError> {
    let prefix = prefix.map_err(|error| bad_id(error.to_string(), error.hint().to_owned()))?;
    let noun = if GroupId::strip_prefix(given).is_some() { "group" } else { "job" };
    match service.find(prefix).await? {
        PrefixMatch::One(job) => Ok(*job),
        PrefixMatch::Nothing => Err(bad_id(format!("there is no {noun} {given}"), LIST_JOBS_HINT.to_owned())),
        PrefixMatch::Several(ids) => {
            let ids: Vec<String> = ids.iter().map(JobId::to_string).collect();
            Err(bad_id(
                format!("several {noun} ids start with {given}"),
                format!("pass a longer prefix: {}", list_id_prefixes(&ids)),
            ))
        }
    }
}

fn bad_id(message: String, hint: String) -> HandlerError {
    HandlerError::Rejected(ErrorCategory::Input, ErrorReply { message, hint })
}
