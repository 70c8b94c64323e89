//! Resolves a job id or a unique prefix of one.

use calls::{JobService, PrefixMatch};
use model::{Job, JobId, JobIdPrefix};
use render::text::list_id_prefixes;

use crate::rejection::ToolRejection;

/// Returns the job with this id or unique id prefix.
pub(crate) async fn find(service: &JobService, given: &str) -> Result<Job, ToolRejection> {
    let given = given.trim();
    let prefix: JobIdPrefix = given.parse().map_err(|error: model::BadJobId| {
        ToolRejection::for_field("job_id", error.to_string(), error.hint()).not_found()
    })?;
    match service.find(prefix).await? {
        PrefixMatch::One(job) => Ok(*job),
        PrefixMatch::Nothing => Err(ToolRejection::for_field(
            "job_id",
            format!("there is no job {given}"),
            "list the jobs with call_jobs; old jobs are removed after a while",
        )
        .not_found()),
        PrefixMatch::Several(ids) => Err(ToolRejection::for_field(
            "job_id",
            format!("several job ids start with {given}"),
            format!(
                "pass a longer prefix: {}",
                list_id_prefixes(&ids.iter().map(JobId::to_string).collect::<Vec<_>>())
            ),
        )),
    }
}
