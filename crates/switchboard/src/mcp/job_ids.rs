//! Which job a caller means: by its id, or by as much of its beginning as is enough.

use calls::{JobService, PrefixMatch};
use model::{Job, JobId, JobIdPrefix};

use super::refusal::Refusal;

/// The job that is meant.
pub(crate) async fn find(desk: &JobService, given: &str) -> Result<Job, Refusal> {
    let given = given.trim();
    let prefix: JobIdPrefix = given
        .parse()
        .map_err(|error: model::BadJobId| Refusal::of("job_id", error.to_string(), error.hint()).missing())?;
    match desk.find(prefix).await? {
        PrefixMatch::One(job) => Ok(*job),
        PrefixMatch::Nothing => Err(Refusal::of(
            "job_id",
            format!("there is no job {given}"),
            "call_jobs lists the jobs there are; old ones are removed after a while",
        )
        .missing()),
        PrefixMatch::Several(ids) => Err(Refusal::of(
            "job_id",
            format!("several jobs begin with {given}"),
            format!("give more of it: {}", listed(&ids)),
        )),
    }
}

fn listed(ids: &[JobId]) -> String {
    ids.iter().map(JobId::to_string).collect::<Vec<_>>().join(", ")
}
