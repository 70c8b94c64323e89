//! `switchboard call`: submits a call to the daemon and follows its job.

use std::process::ExitCode;

use protocol::{DaemonRequest, ProcessEnvironment, RequestError, SubmitReply, SubmitRequest};
use render::text::redactions_note;
use render::tool_lines::Timing;

use crate::cli::CallArgs;
use crate::client::{self, JobReply};
use crate::config::Config;
use crate::drift::ConfigDrift;
use crate::failure::CommandFailure;
use crate::follow::{CtrlC, FollowLimit, check_job_output, follow};
use crate::view::{OutputMode, View};
use crate::{call_spec, machine, output};

/// Submits the call, waits for its answer, and derives the exit code from it.
pub fn run(args: &CallArgs) -> Result<ExitCode, CommandFailure> {
    let environment = ProcessEnvironment::current();
    let mut connector = client::connector()?;
    let config = Config::read(Some(connector.home()), &environment, &[])?;
    let mut call = call_spec::build(args, &config)?;
    let lookup = machine::agent_lookup(&environment, Some(connector.home()), &config);
    call_spec::check_links(&args.options, &lookup, &environment)?;
    call_spec::apply_ceiling(&mut call, &environment, &config);
    // By default, every directory is its own task, so that `--continue` resumes the session of the working directory.
    let task = args.options.task.clone().unwrap_or_else(|| call.cwd.to_string_lossy().into_owned());
    let key = uuid::Uuid::now_v7().to_string();
    let (agent, directory) = (call.agent, call.cwd.clone());
    let server_variables = call_spec::server_variables(&call, &environment);
    let submit = SubmitRequest { call, task, key, background: args.background, server_variables };
    let reply = protocol::request(&mut connector, &DaemonRequest::Submit(Box::new(submit)));
    // Also after a rejection: the daemon may not know an agent that was configured since its start.
    if let Some(drift) = ConfigDrift::find(connector.home(), &environment) {
        drift.print();
    }
    let JobReply::Submitted(job) = reply? else { return Err(RequestError::UnexpectedReply.into()) };
    if args.background {
        if job.redactions > 0 {
            output::aside(&format!("note: {}", redactions_note(job.redactions)));
        }
        return print_submitted(args, &job);
    }
    let view = View::new(OutputMode::from_args(args), agent, directory, Timing::Live);
    let limit = args.wait.map_or(FollowLimit::JobEnd, FollowLimit::Wait);
    follow(connector, &job.job_id, view, limit, CtrlC::Cancels)
}

fn print_submitted(args: &CallArgs, job: &SubmitReply) -> Result<ExitCode, CommandFailure> {
    if args.json || args.events {
        output::line(&serde_json::to_string(job)?);
    } else {
        output::line(&job.job_id);
        output::aside(&format!("status: {}", job.status_file.display()));
        output::aside(&format!("stdout: {}", job.output_file.display()));
        output::aside(&format!("stderr: {}", job.error_file.display()));
        output::aside(&format!("result: {}", job.result_file.display()));
        output::aside(&format!("follow with `switchboard logs -f {}`", job.job_id));
    }
    check_job_output(&job.job_id)?;
    Ok(ExitCode::SUCCESS)
}
