//! The page of a job: prompt, transcript, outcome, facts and actions.

use std::time::Duration;

use axum::extract::{Extension, Path, State};
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse, Redirect, Response};
use calls::{Answer, JobFiles, PrefixMatch, Processes, Sandbox, Stream, Verification, VerificationState};
use maud::{Markup, html};
use model::{GroupRole, Job, JobGroup, JobId, JobIdPrefix};
use render::duration::format_millis;
use render::text::{format_count, format_dollars, sanitize, shell_quote, to_one_line, truncate};
use tokio::time::timeout;

use crate::changes;
use crate::context::PageContext;
use crate::login::WebVisitor;
use crate::page::{self, ActivePage};
use crate::processes;
use crate::rejection::PageRejection;
use crate::transcript::{self, TranscriptSnapshot};

/// Maximum number of shown characters of a prompt or an answer.
pub(crate) const MAX_PROMPT_CHARS: usize = 50_000;
/// Timeout for the list of processes.
const PROCESSES_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum size of a downloaded stream.
const MAX_FILE_BYTES: usize = 64 * 1024 * 1024;

/// Finds a job by its id. Returns only the id for a unique prefix, to redirect there.
async fn find_job(context: &PageContext, given: &str) -> Result<Result<Job, JobId>, PageRejection> {
    let unknown = || {
        PageRejection::not_found(
            format!("Job {} not found", to_one_line(given, 40)),
            "all jobs are at `/`; old jobs are removed after a while",
        )
    };
    if let Ok(id) = given.parse::<JobId>() {
        return Ok(Ok(context.service().job(id).await?));
    }
    let prefix: JobIdPrefix = given.parse().map_err(|_| unknown())?;
    match context.service().find(prefix).await? {
        PrefixMatch::One(job) => Ok(Err(job.id)),
        PrefixMatch::Nothing => Err(unknown()),
        PrefixMatch::Several(_) => {
            Err(PageRejection::bad_request("Several jobs start with this id", "use a longer prefix"))
        }
    }
}

/// Handles requests for the page of a job.
pub(crate) async fn show(
    State(context): State<PageContext>,
    Extension(visitor): Extension<WebVisitor>,
    Path(given): Path<String>,
) -> Result<Response, PageRejection> {
    let job = match find_job(&context, &given).await? {
        Ok(job) => job,
        Err(id) => return Ok(Redirect::to(&format!("/jobs/{id}")).into_response()),
    };
    let mut follow = context.service().follow(job.id).await?;
    let snapshot = transcript::read_snapshot(&mut follow).await?;
    // Read after the transcript: a job that finished meanwhile is shown as finished, and the live stream sends the rest.
    let job = context.service().job(job.id).await?;
    let answer = context.service().answer(job.id).await?;
    // A starting run has no processes yet, and the page does not wait for them.
    let seen =
        timeout(PROCESSES_TIMEOUT, context.service().processes(job.id)).await.unwrap_or(Ok(Vec::new()));
    let running = if job.completed_at.is_none() { seen? } else { Vec::new() };
    let changes = changes::section(context.service(), job.id, &answer, &visitor).await;
    let head = headline(&job);
    let main = html! {
        (heading(&job, &head, &visitor))
        div.job-page data-live=[job.completed_at.is_none().then(|| format!("/jobs/{}/live?told={}", job.id, snapshot.seen))] {
            div.story {
                (prompt(&job))
                div data-swap="outcome" { (outcome(&job, &answer)) }
                (story(&job, &snapshot, &answer))
                div data-swap="changes" { (changes) }
                (stderr(&job, &snapshot))
            }
            aside.facts aria-label="About this job" {
                div data-swap="facts" { (facts(&job, &answer)) }
                (processes::section(job.id, &running, job.completed_at.is_none()))
                div data-swap="sandbox" { (sandbox(&job, &answer)) }
                div { (files(&job, &context.service().files(job.id))) }
            }
        }
    };
    Ok(page::page(if head.is_empty() { "Job" } else { &head }, ActivePage::Job, &visitor, &main))
}

/// Returns the first line of the prompt of a job; an empty text for an empty prompt.
pub(crate) fn headline(job: &Job) -> String {
    let first = job.order.call.prompt.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    to_one_line(first, 120)
}

fn heading(job: &Job, head: &str, visitor: &WebVisitor) -> Markup {
    html! {
        div.head.of-job {
            p.crumb { a href="/" { "Jobs" } " / " span.id { (job.id) } }
            h1 { @if head.is_empty() { "(empty prompt)" } @else { (head) } }
            p.line data-swap="state" {
                (page::state_chips(job.progress.state.name(), job.progress.cancel_requested_at.is_some()))
                span { (job.order.call.agent) }
                span { "submitted " (page::timestamp(job.created_at.as_millis())) }
                @if let Some(group) = &job.order.call.group { (group_link(job.id, group)) }
            }
            div data-swap="actions" { (actions(job, visitor)) }
        }
    }
}

/// Renders the role of a job in its group, with a link to the page of the group.
fn group_link(job: JobId, group: &JobGroup) -> Markup {
    let count = group.contenders.len();
    let role = match group.role(job) {
        Some(GroupRole::Contender(_)) => format!("One of {count} in "),
        Some(GroupRole::Reviewer(_)) => format!("Compares the {count} results of "),
        None => String::new(),
    };
    html! {
        @if let Some(id) = group.id() {
            span { (role) a href={ "/groups/" (id) } { "group " (short(id.first_job())) } }
        }
    }
}

/// Renders the prompt of a job, cut to a maximum.
pub(crate) fn prompt(job: &Job) -> Markup {
    let (text, missing) = truncate(&job.order.call.prompt, MAX_PROMPT_CHARS);
    let long = text.lines().count() > 12 || text.len() > 1_500;
    let body = html! {
        div.text.prompt-text { (sanitize(text)) }
        @if missing > 0 { p.aside { (page::group_digits(missing as u64)) " more characters are not shown." } }
    };
    html! {
        section.prompt aria-labelledby="prompt" {
            h2 #prompt { "Prompt" }
            @if long { details { summary { "Show all (" (page::group_digits(job.order.call.prompt.chars().count() as u64)) " characters)" } (body) } } @else { (body) }
        }
    }
}

/// Renders the failure, background tasks, refusals and wait reason. The answer itself is the end of the transcript.
fn outcome(job: &Job, answer: &Answer) -> Markup {
    html! {
        @if let Some(error) = &answer.error {
            section.problem aria-labelledby="problem" {
                h2 #problem { (problem_title(job)) }
                p.text { (sanitize(&error.message)) }
                @if !error.hint.is_empty() { p.hint { span.who { "Hint" } " " (page::inline_code(&error.hint)) } }
            }
        }
        @if let Some(verification) = &answer.verified { (verified(verification)) }
        @for task in &answer.background {
            p.note { span.who { "Background task " (task.status) } " " (to_one_line(&task.description, 300)) }
        }
        @for refusal in &answer.refusals {
            p.note { span.who { "Denied " (refusal.kind) } " " (to_one_line(&refusal.subject, 300))
                @if refusal.count > 1 { " (" (refusal.count) " times)" }
                @if let Some(detail) = &refusal.detail { ": " (to_one_line(detail, 300)) } }
        }
        @if let Some(until) = answer.paused_until_ms {
            p.note { span.who { "Paused" } " until " (page::timestamp(until)) "; it resumes automatically." }
        } @else if let Some(waiting) = &answer.waiting {
            p.note.waiting { span.who { "Waiting" } " " (sanitize(waiting)) }
        }
    }
}

/// Renders the verification of the agent's work, with the end of its output.
fn verified(verification: &Verification) -> Markup {
    let title = if verification.state == VerificationState::Passed { "Verified" } else { "Not verified" };
    html! {
        section.verified aria-labelledby="verified" {
            h2 #verified { (title) }
            p.note { code { (to_one_line(&verification.command, 300)) }
                @if let Some(reason) = &verification.reason { " " (to_one_line(reason, 300)) }
                @if let Some(millis) = verification.duration_ms { " · " (format_millis(millis)) }
                @if verification.repairs > 0 { " · after " (format_count(verification.repairs, "repair", "repairs")) } }
            @if !verification.restored.is_empty() {
                p.note { span.who { "Restored before it" } " " (to_one_line(&verification.restored.join(", "), 1_000)) }
            }
            @if let Some(output) = &verification.output {
                details open[verification.state == VerificationState::Failed] {
                    summary { "End of its output" }
                    pre tabindex="0" { (sanitize(output)) }
                }
            }
        }
    }
}

fn problem_title(job: &Job) -> String {
    let state = job.progress.state.name();
    let kind = job.failure.as_ref().map(|failure| failure.kind.name()).unwrap_or_default();
    format!("{}: {}", capitalize(state.as_str()), kind.replace('_', " "))
}

fn capitalize(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

fn story(job: &Job, snapshot: &TranscriptSnapshot, answer: &Answer) -> Markup {
    let running = job.completed_at.is_none();
    // The files may be removed, on another machine, or too long to read in time. The answer is stored with the job.
    let lacks_answer = !running && (snapshot.entries.is_empty() || snapshot.is_incomplete);
    html! {
        section aria-labelledby="transcript" {
            h2 #transcript { "Transcript" }
            @if snapshot.omitted > 0 {
                p.aside { (page::group_digits(snapshot.omitted)) " earlier entries are omitted; "
                    a href={ "/jobs/" (job.id) "/output" } { "the raw output" } " contains all." }
            }
            ol.story-list #story aria-label="What the agent did" { (snapshot.render()) }
            @if snapshot.is_incomplete && !running { p.aside { "The transcript is too long to show; the raw output contains all of it." } }
            @if lacks_answer && !answer.output.is_empty() {
                div.said { span.who { "Answer" } div.text { (sanitize(truncate(&answer.output, MAX_PROMPT_CHARS).0)) } }
            } @else if snapshot.entries.is_empty() {
                p.aside #silence { @if running { "No output yet. The transcript appears here." } @else { "The agent printed nothing." } }
            }
            @if running { p.working #working data-swap="working" { span.pulse aria-hidden="true" {} "The job is running" } }
        }
    }
}

fn stderr(job: &Job, snapshot: &TranscriptSnapshot) -> Markup {
    html! {
        section.stderr #stderr-section aria-labelledby="stderr" hidden[snapshot.stderr.is_empty()] {
            h2 #stderr { "Stderr" }
            details open[job.failure.is_some()] {
                summary { "Output on stderr" }
                pre #stderr-text tabindex="0" { (sanitize(&snapshot.stderr)) }
            }
        }
    }
}

/// Renders the actions. Each asks for confirmation, also without the script.
fn actions(job: &Job, visitor: &WebVisitor) -> Markup {
    let action = |verb: &str, name: &str, question: &str, class: &str| {
        page::confirmed_action(visitor, &format!("/jobs/{}/{verb}", job.id), name, question, class)
    };
    html! {
        div.actions {
            @if job.completed_at.is_some() {
                (action("retry", "Run again", "This submits a new job with the same agent, prompt and working directory.", "primary"))
            } @else if job.progress.cancel_requested_at.is_some() {
                p.aside { "The job is being stopped." }
            } @else {
                (action("cancel", "Cancel the job", "This stops the agent and all its processes.", "danger"))
            }
        }
    }
}

fn facts(job: &Job, answer: &Answer) -> Markup {
    let call = &job.order.call;
    let fact = |name: &str, value: Markup| html! { div { dt { (name) } dd { (value) } } };
    let text = |value: &str| html! { (sanitize(value)) };
    html! {
        h2 { "Facts" }
        dl.facts-list {
            @if let Some(started) = job.started_at {
                (fact("Started", page::timestamp(started.as_millis())))
                (fact("Duration", if job.completed_at.is_some() || answer.waiting.is_some() { text(&format_millis(answer.duration_ms)) } else { page::running_duration(answer.duration_ms) }))
            }
            @if let Some(finished) = job.completed_at { (fact("Finished", page::timestamp(finished.as_millis()))) }
            @if let Some(model) = &answer.model { (fact("Model", text(model))) }
            @if let Some(turns) = answer.num_turns { (fact("Turns", html! { (turns) })) }
            @if let Some(usage) = answer.usage {
                (fact("Input tokens", tokens(usage.input_tokens, usage.cached_tokens, "cached")))
                (fact("Output tokens", tokens(usage.output_tokens, usage.reasoning_tokens, "reasoning")))
            }
            @if let Some(cost) = answer.cost_usd { (fact("Cost", text(&format_dollars(cost)))) }
            @if job.progress.attempt.number() > 1 { (fact("Attempts", html! { (job.progress.attempt.number()) })) }
            @if let Some(code) = answer.exit_code { (fact("Exit code", html! { (code) })) }
            (fact("Task", text(&job.order.task)))
            (fact("Submitted with", text(&job.order.tool)))
            (fact("Directory", html! { code.path { (sanitize(&call.cwd.to_string_lossy())) } }))
            @if let Some(parent) = job.order.parent { (fact("Retry of", html! { a href={ "/jobs/" (parent) } { (short(parent)) } })) }
            (fact("Job", page::copyable("the job id", &job.id.to_string())))
            @if let Some(session) = &answer.session_id {
                (fact("Session", page::copyable("the session id", session)))
                (fact("Resume", page::copyable("the command", &resume_command(job, session))))
            }
        }
    }
}

/// Renders a number of tokens, and how many of them are of one kind.
fn tokens(all: u64, some: u64, kind: &str) -> Markup {
    html! { (page::group_digits(all)) @if some > 0 { " (" (page::group_digits(some)) " " (kind) ")" } }
}

fn short(job: JobId) -> String {
    job.to_string().chars().take(13).collect()
}

/// Returns the command that resumes the session.
fn resume_command(job: &Job, session: &str) -> String {
    let call = &job.order.call;
    let directory = shell_quote(&call.cwd.to_string_lossy());
    format!("switchboard call {} --cwd {directory} --session {} \"…\"", call.agent, shell_quote(session))
}

/// Renders the sandbox of the agent, and whether processes are left.
fn sandbox(job: &Job, answer: &Answer) -> Markup {
    let left = answer.processes.map(|processes| match processes {
        Processes::NoneLeft => "All its processes have exited (confirmed by the kernel).",
        Processes::NoneFound => "None of its processes was found; its supervisor had been killed.",
        Processes::SomeLeft => "Some of its processes could not be stopped.",
    });
    html! {
        h2 { "Sandbox" }
        @match &answer.sandbox {
            Some(sandbox) if sandbox.agent_read_only => p { "Policy " strong { "off" } ": no sandbox by Switchboard; the agent's own read-only mode applied." },
            Some(sandbox) if sandbox.is_off() => p { "Policy " strong { "off" } ": no sandbox, the agent had all of your permissions." },
            Some(sandbox) => (confinement(sandbox)),
            None => p { "Policy " strong { (job.order.call.policy.preset) } @if job.completed_at.is_none() { "; the enforcement is reported at the end." } @else { "." } },
        }
        @if let Some(left) = left { p { (left) } }
    }
}

fn confinement(sandbox: &Sandbox) -> Markup {
    let enforcement = sandbox.enforcement();
    html! {
        p { "Policy " strong { (sandbox.policy) } ": " (enforcement) "." }
        @if !sandbox.gaps.is_empty() {
            details {
                summary { "Gaps of the safeguards" }
                ul.safeguards {
                    @for gap in &sandbox.gaps {
                        li { span.hold { (if gap.open { "open" } else { "partial" }) } " " strong { (gap.safeguard) } " "
                            span.why-text { (sanitize(&gap.why)) } }
                    }
                }
            }
        }
        @for note in sandbox.notes() { p { (sanitize(&note)) } }
        @if !sandbox.refused_hosts.is_empty() {
            p { "Blocked hosts: " (sanitize(&sandbox.refused_hosts.join(", "))) }
        }
    }
}

fn files(job: &Job, files: &JobFiles) -> Markup {
    html! {
        h2 { "Files" }
        ul.files {
            li { a href={ "/jobs/" (job.id) "/output" } { "Raw output" } }
            li { a href={ "/jobs/" (job.id) "/error" } { "Stderr" } }
            li { (page::copyable("the directory", &files.directory().to_string_lossy())) }
        }
    }
}

/// Handles downloads of the output stream.
pub(crate) async fn output(state: State<PageContext>, job: Path<String>) -> Result<Response, PageRejection> {
    stream(state, job, Stream::Output, "output.jsonl").await
}

/// Handles downloads of the stderr stream.
pub(crate) async fn error(state: State<PageContext>, job: Path<String>) -> Result<Response, PageRejection> {
    stream(state, job, Stream::Error, "stderr.txt").await
}

/// Sends a stream as a plain-text attachment: as HTML, a browser would run the agent's markup.
async fn stream(
    State(context): State<PageContext>,
    Path(job): Path<String>,
    stream: Stream,
    name: &str,
) -> Result<Response, PageRejection> {
    let id: JobId =
        job.parse().map_err(|_| PageRejection::not_found("Job not found", "all jobs are at `/`"))?;
    let part = context.service().output(id, stream, 0, MAX_FILE_BYTES).await?;
    let headers = [
        (CONTENT_TYPE, "text/plain; charset=utf-8".to_owned()),
        (CONTENT_DISPOSITION, format!("attachment; filename=\"{id}-{name}\"")),
    ];
    Ok((headers, part.bytes).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_is_described_as_in_the_terminal() {
        let sandbox = |policy: &str, gaps: serde_json::Value| {
            let sandbox = serde_json::json!({ "policy": policy, "gaps": gaps });
            confinement(&serde_json::from_value(sandbox).unwrap()).into_string()
        };
        let gap = |open: bool| serde_json::json!([{ "safeguard": "unix sockets", "open": open, "why": "w" }]);
        assert!(sandbox("workspace", serde_json::json!([])).contains("fully enforced"));
        assert!(sandbox("workspace", gap(false)).contains("fully enforced"));
        assert!(sandbox("workspace", gap(true)).contains("NOT enforced: unix sockets"));
        assert!(sandbox("off", serde_json::json!([])).contains("no sandbox"));
    }
}
