//! The page of one job: what was asked, what the agent did and does, what it came to, and what can be done about it.

use std::time::Duration;

use axum::extract::{Extension, Path, State};
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse, Redirect, Response};
use calls::{Answer, JobFiles, PrefixMatch, Processes, Sandbox, Stream};
use maud::{Markup, html};
use model::{Job, JobId, JobIdPrefix, Preset};
use tokio::time::timeout;

use super::Web;
use super::login::Visitor;
use super::page::{self, Here};
use super::processes;
use super::refusal::Refusal;
use super::transcript::{self, SoFar};
use crate::text::{cut, one_line, shell_word, visible};

/// How much of a prompt is shown at once.
const LONGEST_PROMPT: usize = 50_000;
/// How long a page waits for the list of processes.
const PATIENCE: Duration = Duration::from_secs(1);
/// How much of what an agent printed is sent as a file at most.
const LONGEST_FILE: usize = 64 * 1024 * 1024;

/// The job that an address names, in full or by its beginning.
async fn named(web: &Web, given: &str) -> Result<Result<Job, JobId>, Refusal> {
    let unknown = || {
        Refusal::not_found(
            format!("There is no job {}", one_line(given, 40)),
            "all are at `/`; old ones are removed after a while",
        )
    };
    if let Ok(id) = given.parse::<JobId>() {
        return Ok(Ok(web.desk().job(id).await?));
    }
    let prefix: JobIdPrefix = given.parse().map_err(|_| unknown())?;
    match web.desk().find(prefix).await? {
        PrefixMatch::One(job) => Ok(Err(job.id)),
        PrefixMatch::Nothing => Err(unknown()),
        PrefixMatch::Several(_) => Err(Refusal::bad("Several jobs begin like that", "give more of the id")),
    }
}

/// The page.
pub async fn show(
    State(web): State<Web>,
    Extension(visitor): Extension<Visitor>,
    Path(given): Path<String>,
) -> Result<Response, Refusal> {
    let job = match named(&web, &given).await? {
        Ok(job) => job,
        Err(id) => return Ok(Redirect::to(&format!("/jobs/{id}")).into_response()),
    };
    let mut follow = web.desk().follow(job.id).await?;
    let so_far = transcript::so_far(&mut follow).await?;
    // After the transcript: a job that ended meanwhile is shown as ended, and its end is in the transcript or follows.
    let job = web.desk().job(job.id).await?;
    let answer = web.desk().answer(job.id).await?;
    // A run that is just being started has none to show; the page does not wait for it.
    let seen = timeout(PATIENCE, web.desk().processes(job.id)).await.unwrap_or(Ok(Vec::new()));
    let running = if job.completed_at.is_none() { seen? } else { Vec::new() };
    let first = job.order.call.prompt.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let head = one_line(first, 120);
    let main = html! {
        (heading(&job, &head, &visitor))
        div.job-page data-live=[job.completed_at.is_none().then(|| format!("/jobs/{}/live?told={}", job.id, so_far.told))] {
            div.story {
                (prompt(&job))
                div data-swap="outcome" { (outcome(&job, &answer)) }
                (story(&job, &so_far, &answer))
                (stderr(&job, &so_far))
            }
            aside.facts aria-label="About this job" {
                div data-swap="facts" { (facts(&job, &answer)) }
                (processes::section(job.id, &running, job.completed_at.is_none()))
                div data-swap="sandbox" { (sandbox(&job, &answer)) }
                div { (files(&job, &web.desk().files(job.id))) }
            }
        }
    };
    Ok(page::page(if head.is_empty() { "A job" } else { &head }, Here::Job, &visitor, &main))
}

fn heading(job: &Job, head: &str, visitor: &Visitor) -> Markup {
    html! {
        div.head.of-job {
            p.crumb { a href="/" { "Jobs" } " / " span.id { (job.id) } }
            h1 { @if head.is_empty() { "(an empty prompt)" } @else { (head) } }
            p.line data-swap="state" {
                (page::chips(job.progress.state.name(), job.progress.cancel_requested_at.is_some()))
                span { (job.order.call.agent) }
                span { "placed " (page::moment(job.created_at.as_millis())) }
            }
            div data-swap="actions" { (actions(job, visitor)) }
        }
    }
}

fn prompt(job: &Job) -> Markup {
    let (text, missing) = cut(&job.order.call.prompt, LONGEST_PROMPT);
    let long = text.lines().count() > 12 || text.len() > 1_500;
    let body = html! {
        div.text.prompt-text { (visible(text)) }
        @if missing > 0 { p.aside { (page::grouped(missing as u64)) " more characters are not shown." } }
    };
    html! {
        section.prompt aria-labelledby="prompt" {
            h2 #prompt { "Prompt" }
            @if long { details { summary { "Show all of it (" (page::grouped(job.order.call.prompt.chars().count() as u64)) " characters)" } (body) } } @else { (body) }
        }
    }
}

/// What went wrong, when something did; the answer itself is the end of the transcript.
fn outcome(job: &Job, answer: &Answer) -> Markup {
    html! {
        @if let Some(error) = &answer.error {
            section.problem aria-labelledby="problem" {
                h2 #problem { (problem_title(job)) }
                p.text { (visible(&error.message)) }
                @if !error.hint.is_empty() { p.hint { span.who { "What to do" } " " (page::words(&error.hint)) } }
            }
        }
        @for task in &answer.background {
            p.note { span.who { "Background task " (task.status) } " " (one_line(&task.description, 300)) }
        }
        @for refusal in &answer.refusals {
            p.note { span.who { "Refused " (refusal.kind) } " " (one_line(&refusal.subject, 300))
                @if refusal.count > 1 { " (" (refusal.count) " times)" }
                @if let Some(detail) = &refusal.detail { ": " (one_line(detail, 300)) } }
        }
        @if let Some(until) = answer.paused_until_ms {
            p.note { span.who { "Paused" } " until " (page::moment(until)) "; it goes on by itself." }
        } @else if let Some(waiting) = &answer.waiting {
            p.note.waiting { span.who { "Waiting" } " " (visible(waiting)) }
        }
    }
}

fn problem_title(job: &Job) -> String {
    let state = job.progress.state.name();
    let kind = job.failure.as_ref().map(|failure| failure.kind.name()).unwrap_or_default();
    format!("{}: {}", capital(state.as_str()), kind.replace('_', " "))
}

fn capital(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

fn story(job: &Job, so_far: &SoFar, answer: &Answer) -> Markup {
    let running = job.completed_at.is_none();
    // The files may be gone, or on another machine, or too long to be read to their end now. The answer is with the job.
    let lacks_the_end = !running && (so_far.pieces.is_empty() || so_far.unfinished);
    html! {
        section aria-labelledby="transcript" {
            h2 #transcript { "Transcript" }
            @if so_far.left_out > 0 {
                p.aside { (page::grouped(so_far.left_out)) " earlier entries are not shown; "
                    a href={ "/jobs/" (job.id) "/output" } { "the raw output" } " has them all." }
            }
            ol.story-list #story aria-label="What the agent did" { (so_far.render()) }
            @if so_far.unfinished && !running { p.aside { "There is more than can be shown; the raw output has all of it." } }
            @if lacks_the_end && !answer.output.is_empty() {
                div.said { span.who { "Answer" } div.text { (visible(cut(&answer.output, LONGEST_PROMPT).0)) } }
            } @else if so_far.pieces.is_empty() {
                p.aside #silence { @if running { "Nothing yet. What the agent says appears here." } @else { "The agent said nothing." } }
            }
            @if running { p.working #working data-swap="working" { span.pulse aria-hidden="true" {} "The job goes on" } }
        }
    }
}

fn stderr(job: &Job, so_far: &SoFar) -> Markup {
    html! {
        section.stderr #stderr-section aria-labelledby="stderr" hidden[so_far.stderr.is_empty()] {
            h2 #stderr { "Stderr" }
            details open[job.failure.is_some()] {
                summary { "What the agent wrote to stderr" }
                pre #stderr-text tabindex="0" { (visible(&so_far.stderr)) }
            }
        }
    }
}

/// What can be done. Each asks once more, also without a script.
fn actions(job: &Job, visitor: &Visitor) -> Markup {
    let action = |verb: &str, name: &str, question: &str, class: &str| {
        html! {
            details.action {
                summary class={ "button " (class) } { (name) "…" }
                form method="post" action={ "/jobs/" (job.id) "/" (verb) } {
                    p { (question) }
                    (page::form_token(visitor))
                    button type="submit" class=(class) { (name) }
                }
            }
        }
    };
    html! {
        div.actions {
            @if job.completed_at.is_some() {
                (action("retry", "Place it again", "A new job asks the same agent the same thing in the same folder.", "primary"))
            } @else if job.progress.cancel_requested_at.is_some() {
                p.aside { "It is being stopped." }
            } @else {
                (action("cancel", "Cancel the job", "This ends the agent and everything that it has started.", "danger"))
            }
        }
    }
}

fn facts(job: &Job, answer: &Answer) -> Markup {
    let call = &job.order.call;
    let fact = |name: &str, value: Markup| html! { div { dt { (name) } dd { (value) } } };
    let text = |value: &str| html! { (visible(value)) };
    html! {
        h2 { "Facts" }
        dl.facts-list {
            @if let Some(started) = job.started_at {
                (fact("Started", page::moment(started.as_millis())))
                (fact("Took", if job.completed_at.is_some() || answer.waiting.is_some() { text(&render::duration::format_millis(answer.duration_ms)) } else { page::growing(answer.duration_ms) }))
            }
            @if let Some(ended) = job.completed_at { (fact("Ended", page::moment(ended.as_millis()))) }
            @if let Some(model) = &answer.model { (fact("Model", text(model))) }
            @if let Some(turns) = answer.num_turns { (fact("Turns", html! { (turns) })) }
            @if let Some(usage) = answer.usage {
                (fact("Tokens read", tokens(usage.input_tokens, usage.cached_tokens, "cached")))
                (fact("Tokens written", tokens(usage.output_tokens, usage.reasoning_tokens, "reasoning")))
            }
            @if let Some(cost) = answer.cost_usd { (fact("Cost", text(&page::dollars(cost)))) }
            @if job.progress.attempt.number() > 1 { (fact("Begun", html! { (job.progress.attempt.number()) " times" })) }
            @if let Some(code) = answer.exit_code { (fact("Exit code", html! { (code) })) }
            (fact("Task", text(&job.order.task)))
            (fact("Through", text(&job.order.tool)))
            (fact("Folder", html! { code.path { (visible(&call.cwd.to_string_lossy())) } }))
            @if let Some(parent) = job.order.parent { (fact("Again for", html! { a href={ "/jobs/" (parent) } { (short(parent)) } })) }
            (fact("Job", page::copied("the job's id", &job.id.to_string())))
            @if let Some(session) = &answer.session_id {
                (fact("Session", page::copied("the session's id", session)))
                (fact("Go on with it", page::copied("the command", &resume(job, session))))
            }
        }
    }
}

/// So many tokens, and how many of them were of a kind.
fn tokens(all: u64, some: u64, kind: &str) -> Markup {
    html! { (page::grouped(all)) @if some > 0 { " (" (page::grouped(some)) " " (kind) ")" } }
}

fn short(job: JobId) -> String {
    job.to_string().chars().take(13).collect()
}

/// The command that goes on with the conversation.
fn resume(job: &Job, session: &str) -> String {
    let call = &job.order.call;
    let folder = shell_word(&call.cwd.to_string_lossy());
    format!("switchboard call {} --cwd {folder} --session {} \"…\"", call.agent, shell_word(session))
}

/// What confined the agent, and what is left of it.
fn sandbox(job: &Job, answer: &Answer) -> Markup {
    let left = answer.processes.map(|processes| match processes {
        Processes::NoneLeft => "Nothing of it is left running; the kernel said so.",
        Processes::NoneFound => "Nothing of it was found running; its supervisor had been killed.",
        Processes::SomeLeft => "Some of its processes could not be ended.",
    });
    html! {
        h2 { "Sandbox" }
        @match &answer.sandbox {
            Some(sandbox) if sandbox.policy == Preset::Off.name() => p { "Policy " strong { "off" } ": the agent had all of your rights." },
            Some(sandbox) => (confinement(sandbox)),
            None => p { "Policy " strong { (job.order.call.policy.preset) } @if job.completed_at.is_none() { "; what held is told at the end." } @else { "." } },
        }
        @if let Some(left) = left { p { (left) } }
    }
}

fn confinement(sandbox: &Sandbox) -> Markup {
    let enforcement = sandbox.enforcement();
    html! {
        p { "Policy " strong { (sandbox.policy) } ": "
            @if sandbox.policy == "off" { "no sandbox, the agent had all of your permissions" } @else { (enforcement) }
            @if sandbox.ways_out_stopped > 0 { "; " (sandbox.ways_out_stopped) " ways out that were tried were stopped" } "." }
        @if !sandbox.gaps.is_empty() {
            details {
                summary { "What the safeguards do not cover" }
                ul.safeguards {
                    @for gap in &sandbox.gaps {
                        li { span.hold { (if gap.open { "open" } else { "in part" }) } " " strong { (gap.safeguard) } " "
                            span.why-text { (visible(&gap.why)) } }
                    }
                }
            }
        }
        @for note in sandbox.notes() { p { (visible(&note)) } }
        @if !sandbox.refused_hosts.is_empty() {
            p { "Hosts that it was kept from: " (visible(&sandbox.refused_hosts.join(", "))) }
        }
    }
}

fn files(job: &Job, files: &JobFiles) -> Markup {
    html! {
        h2 { "Files" }
        ul.files {
            li { a href={ "/jobs/" (job.id) "/output" } { "Raw output" } }
            li { a href={ "/jobs/" (job.id) "/error" } { "Stderr" } }
            li { (page::copied("the folder", &files.directory().to_string_lossy())) }
        }
    }
}

/// What the agent printed, byte for byte, as a file.
pub async fn output(state: State<Web>, job: Path<String>) -> Result<Response, Refusal> {
    stream(state, job, Stream::Output, "output.jsonl").await
}

/// What it wrote to stderr.
pub async fn error(state: State<Web>, job: Path<String>) -> Result<Response, Refusal> {
    stream(state, job, Stream::Error, "stderr.txt").await
}

/// Never anything but plain text to be kept: a browser that took it for a page would run what an agent wrote.
async fn stream(
    State(web): State<Web>,
    Path(job): Path<String>,
    stream: Stream,
    name: &str,
) -> Result<Response, Refusal> {
    let id: JobId = job.parse().map_err(|_| Refusal::not_found("There is no such job", "all are at `/`"))?;
    let part = web.desk().output(id, stream, 0, LONGEST_FILE).await?;
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
    fn policy_is_described_in_the_words_of_the_terminal() {
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
