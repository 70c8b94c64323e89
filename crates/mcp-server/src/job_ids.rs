//! Resolves the id of a job or of a group, or a unique prefix of one.

use calls::{JobService, PrefixMatch};
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
        None => find_by_prefix(service, given, given.parse()).await,
        Some(prefix) => Err(one_job_needed(given, &find_group(service, given, prefix).await?)),
    }
}

/// Returns the job or the group with this id or unique id prefix.
pub(crate) async fn find_target(service: &JobService, given: &str) -> Result<JobTarget, ToolRejection> {
    match GroupId::parse_prefix(given) {
        None => Ok(JobTarget::Job(find_by_prefix(service, given, given.parse()).await?.id)),
        Some(prefix) => find_group(service, given, prefix).await.map(JobTarget::Group),
    }
}

async fn find_group(
    service: &JobService,
    given: &str,
    prefix: Result<JobIdPrefix, BadJobId>,
) -> Result<JobGroup, ToolRejection> {
    let job = find_by_prefix(service, given, prefix).await?;
    job.order.call.group.ok_or_else(|| {
        ToolRejection::for_field(
            "job_id",
            format!("there is no group {}: job {} is not part of one", given.trim(), job.id),
            "pass the id of the job without `group-`",
        )
        .not_found()
    })
}

async fn find_by_prefix(
    service: &JobService,
    given: &str,
    prefix: Result<JobIdPrefix, BadJobId>,
) -> Result<Job, ToolRejection> {
    let given = given.trim();
    let noun = if GroupId::strip_prefix(given).is_some() { "group" } else { "job" };
    let prefix = prefix
        .map_err(|error| ToolRejection::for_field("job_id", error.to_string(), error.hint()).not_found())?;
    match service.find(prefix).await? {
        PrefixMatch::One(job) => Ok(*job),
        PrefixMatch::Nothing => Err(ToolRejection::for_field(
            "job_id",
            format!("there is no {noun} {given}"),
            "list the jobs with call_jobs; old jobs are removed after a while",
        )
        .not_found()),
        PrefixMatch::Several(ids) => Err(ToolRejection::for_field(
            "job_id",
            format!("several {noun} ids start with {given}"),
            format!(
                "pass a longer prefix: {}",
                list_id_prefixes(&ids.iter().map(JobId::to_string).collect::<Vec<_>>())
            ),
        )),
    }
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
