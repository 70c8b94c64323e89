//! Resolves the id of a job or of a group, or a unique prefix of one.

use calls::{GroupMatch, JobService, PrefixMatch};
use model::{BadJobId, GroupId, Job, JobGroup, JobId, JobIdPrefix};
use render::text::list_id_prefixes;

use crate::rejection::ToolRejection;

/// A job or a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum JobTarget {
    Job(JobId),
    Group(JobGroup),
}

/// Returns the job with this id or unique id prefix. The id of a group is rejected with the ids of its jobs.
pub(crate) async fn find(service: &JobService, given: &str) -> Result<Job, ToolRejection> {
    match GroupId::parse_prefix(given) {
        None => find_job(service, given).await,
        Some(prefix) => Err(one_job_needed(given, &find_group(service, given, prefix).await?)),
    }
}

/// Returns the job or the group with this id or unique id prefix.
pub(crate) async fn find_target(service: &JobService, given: &str) -> Result<JobTarget, ToolRejection> {
    match GroupId::parse_prefix(given) {
        None => Ok(JobTarget::Job(find_job(service, given).await?.id)),
        Some(prefix) => find_group(service, given, prefix).await.map(JobTarget::Group),
    }
}

async fn find_job(service: &JobService, given: &str) -> Result<Job, ToolRejection> {
    let prefix = given.parse().map_err(|error| bad_prefix(&error))?;
    match service.find(prefix).await? {
        PrefixMatch::One(job) => Ok(*job),
        PrefixMatch::Nothing => Err(unknown("job", given)),
        PrefixMatch::Several(ids) => {
            Err(ambiguous("job", given, &ids.iter().map(JobId::to_string).collect::<Vec<_>>()))
        }
    }
}

async fn find_group(
    service: &JobService,
    given: &str,
    prefix: Result<JobIdPrefix, BadJobId>,
) -> Result<JobGroup, ToolRejection> {
    match service.find_group(prefix.map_err(|error| bad_prefix(&error))?).await? {
        GroupMatch::One(group) => Ok(group),
        GroupMatch::Nothing => Err(unknown("group", given)),
        GroupMatch::Several(ids) => {
            Err(ambiguous("group", given, &ids.iter().map(GroupId::to_string).collect::<Vec<_>>()))
        }
    }
}

fn bad_prefix(error: &BadJobId) -> ToolRejection {
    ToolRejection::for_field("job_id", error.to_string(), error.hint()).not_found()
}

fn unknown(noun: &str, given: &str) -> ToolRejection {
    ToolRejection::for_field(
        "job_id",
        format!("there is no {noun} {}", given.trim()),
        "list the jobs with call_jobs; old jobs are removed after a while",
    )
    .not_found()
}

fn ambiguous(noun: &str, given: &str, ids: &[String]) -> ToolRejection {
    ToolRejection::for_field(
        "job_id",
        format!("several {noun} ids start with {}", given.trim()),
        format!("pass a longer prefix: {}", list_id_prefixes(ids)),
    )
}

/// Returns the rejection of a group in the place of a job.
fn one_job_needed(given: &str, group: &JobGroup) -> ToolRejection {
    let list = |jobs: &[JobId]| jobs.iter().map(JobId::to_string).collect::<Vec<_>>().join(", ");
    let reviewers = match group.reviewers.as_slice() {
        [] => String::new(),
        jobs => format!("; they are compared by {}", list(jobs)),
    };
    ToolRejection::for_field(
        "job_id",
        format!("{} is a group, and one of its jobs is needed", given.trim()),
        format!("pass one of these ids: {}{reviewers}", list(&group.contenders)),
    )
}
