//! The changes of a job: a readable diff for each file, the state of its private checkout, and the actions for it.
//!
//! Names and contents come from an agent: everything is sanitized, and maud escapes it.

use axum::extract::{Path, State};
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use calls::{
    Answer, ChangedFile, Changes, ChangesState, Collision, FileSelection, JobService, PrivateCheckout,
};
use maud::{Markup, html};
use model::JobId;
use render::text::{sanitize, show_escapes, strip_control};

use crate::context::PageContext;
use crate::login::WebVisitor;
use crate::page;
use crate::rejection::PageRejection;

/// The maximum number of shown files.
const MAX_FILES: usize = 100;
/// The maximum size of the shown patch of a file, and of all of them.
const MAX_FILE_BYTES: usize = 64 * 1024;
const MAX_BYTES: usize = 1024 * 1024;

/// Renders the changes of an ended job, if there are any.
pub(crate) async fn section(
    service: &JobService,
    job: JobId,
    answer: &Answer,
    visitor: &WebVisitor,
) -> Markup {
    let has_content = |changes: &&Changes| changes.files_changed > 0 || changes.checkout.is_some();
    let Some(changes) = answer.changes.as_ref().filter(has_content) else {
        return html! {};
    };
    // The record may be on another machine. The list is stored with the job.
    let patches = service.file_patches(job).await.map(|(_, patches)| patches).unwrap_or_default();
    let mut left = MAX_BYTES;
    let mut patch_of = |position: usize| {
        let patch = patches.get(position).filter(|patch| patch.len() <= MAX_FILE_BYTES.min(left))?;
        left -= patch.len();
        Some(String::from_utf8_lossy(patch).into_owned()).filter(|patch| !patch.is_empty())
    };
    let shown = changes.files.len().min(MAX_FILES);
    html! {
        section.changes aria-labelledby="changes" {
            h2 #changes { "Changes" }
            @if let Some(checkout) = &changes.checkout { (private_checkout(checkout)) }
            @if !patches.is_empty() { (actions(job, changes, visitor)) }
            @if changes.files_changed > 0 {
                p.aside { (page::count_files(changes.files_changed)) ", "
                    "+" (page::group_digits(changes.lines_added)) " −" (page::group_digits(changes.lines_removed)) " lines; ignored files are not part of them. "
                    @if !patches.is_empty() { a href={ "/jobs/" (job) "/patch" } { "Patch" } } }
            }
            ul.changed-files {
                @for (position, file) in changes.files.iter().take(shown).enumerate() {
                    li { (changed_file(file, patch_of(position).as_deref())) }
                }
            }
            @if changes.files_changed > shown as u64 {
                p.aside { (page::group_digits(changes.files_changed - shown as u64)) " more files are not shown." }
            }
        }
    }
}

/// Renders the actions that the state of the changes permits.
fn actions(job: JobId, changes: &Changes, visitor: &WebVisitor) -> Markup {
    let action = |verb: &str, name: &str, question: &str, class: &str| {
        page::confirmed_action(visitor, &format!("/jobs/{job}/{verb}"), name, question, class)
    };
    let merged = "merged with later edits. If a file conflicts, no file is changed.";
    let (state, directory) = match &changes.checkout {
        Some(checkout) => (Some(checkout.state), &checkout.source),
        // It is unknown whether the changes were undone.
        None => (None, &changes.worktree),
    };
    html! {
        div.actions.of-changes {
            @if state == Some(ChangesState::Open) {
                (action("apply", "Apply", &format!("This writes the changes to `{directory}`, {merged} Then the private checkout and its branch are removed."), "primary"))
                (action("discard", "Discard", "This removes the private checkout and its branch. The patch is kept.", "danger"))
            }
            @if matches!(state, None | Some(ChangesState::Applied)) {
                (action("undo", "Undo", &format!("This takes the changes back in `{directory}`, {merged}"), ""))
            }
            @if matches!(state, None | Some(ChangesState::Undone)) {
                (action("redo", "Redo", &format!("This makes the changes in `{directory}` again, {merged}"), ""))
            }
        }
    }
}

fn private_checkout(checkout: &PrivateCheckout) -> Markup {
    let fact = |name: &str, value: Markup| html! { div { dt { (name) } dd { (value) } } };
    let path = |value: &str| html! { code.path { (strip_control(value)) } };
    let is_open = checkout.state == ChangesState::Open;
    html! {
        div.checkout {
            p { (state_chip(checkout.state)) " " (describe_state(checkout.state)) }
            dl.facts-list {
                (fact("Your directory", path(&checkout.source)))
                @if is_open {
                    @if let Some(branch) = &checkout.branch { (fact("Branch", page::copyable("the branch", branch))) }
                    @if let Some(reason) = &checkout.not_published { (fact("No branch", html! { (sanitize(reason)) })) }
                    (fact("Checkout", path(&checkout.directory)))
                }
                @if !checkout.without_content.is_empty() {
                    (fact("Left out", html! {
                        @for (position, left) in checkout.without_content.iter().enumerate() { @if position > 0 { ", " } (path(left)) }
                        " (submodules and nested repositories)"
                    }))
                }
            }
            @if is_open && !checkout.collisions.is_empty() {
                h3 { "Collisions" }
                p.aside { "When the job ended, these files had also been changed elsewhere." }
                ul.collisions { @for collision in &checkout.collisions { li { (render_collision(collision)) } } }
            }
        }
    }
}

fn render_collision(collision: &Collision) -> Markup {
    html! {
        code.path { (strip_control(&collision.path)) } " "
        span.extent {
            @match &collision.job_id {
                Some(job) => { "in open changes of job " a href={ "/jobs/" (job) } { (job.get(..13).unwrap_or(job)) } },
                None => "edited in your directory",
            }
            @if let Some(conflict) = &collision.conflict { "; " strong { "conflict" } ": " (sanitize(conflict)) }
        }
    }
}

/// Returns the label of the state of changes in a private checkout.
pub(crate) fn state_chip(state: ChangesState) -> Markup {
    html! { span class={ "chip is-" (state.name()) } { (state.name()) } }
}

fn describe_state(state: ChangesState) -> &'static str {
    match state {
        ChangesState::Open => "The changes are in a private checkout, and not yet in your directory.",
        ChangesState::Continued => "A later job has continued the session. Its changes include these.",
        ChangesState::Unchanged => "The job worked in a private checkout and changed nothing.",
        ChangesState::Applied => "The changes were applied to your directory.",
        ChangesState::Undone => "The changes were applied to your directory, and then undone.",
        ChangesState::Discarded => "The private checkout was removed. The patch is kept.",
    }
}

fn changed_file(file: &ChangedFile, patch: Option<&str>) -> Markup {
    let title = html! {
        span.path { @if let Some(from) = &file.from { (strip_control(from)) " → " } (strip_control(&file.path)) } " "
        span.extent {
            (file.kind.replace('_', " "))
            @if let (Some(added), Some(removed)) = (file.added, file.removed) { " +" (added) " −" (removed) }
            @if let Some(content) = &file.content { ", " (content.replace('_', " ")) }
            @if file.shared { ", shared with another job" }
        }
    };
    html! {
        @match patch {
            Some(patch) => details {
                summary { (title) }
                pre.patch tabindex="0" { @for line in patch.lines() { (patch_line(line)) } }
            },
            None => p { (title) },
        }
    }
}

/// Renders a line of a patch. Its first character tells the kind without the color.
fn patch_line(line: &str) -> Markup {
    let class = match line.as_bytes().first() {
        Some(b'+') => Some("plus"),
        Some(b'-') => Some("minus"),
        Some(b'@') => Some("hunk"),
        _ => None,
    };
    let line = show_escapes(line);
    let text = sanitize(&line);
    html! { span class=[class] { (text) "\n" } }
}

/// Handles downloads of the patch.
pub(crate) async fn patch(
    State(context): State<PageContext>,
    Path(job): Path<String>,
) -> Result<Response, PageRejection> {
    let id: JobId =
        job.parse().map_err(|_| PageRejection::not_found("Job not found", "all jobs are at `/`"))?;
    let patch = context.service().patch(id, FileSelection::default()).await?;
    // As HTML, a browser would run the agent's markup.
    let headers = [
        (CONTENT_TYPE, "text/plain; charset=utf-8".to_owned()),
        (CONTENT_DISPOSITION, format!("attachment; filename=\"{id}.patch\"")),
    ];
    Ok((headers, patch).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patch_lines_are_escaped_and_sanitized() {
        assert_eq!(
            patch_line("+<b>\u{1b}[2Jx\u{202e}").into_string(),
            "<span class=\"plus\">+&lt;b&gt;␛[2Jx⟨U+202E⟩\n</span>"
        );
        assert_eq!(patch_line(" y").into_string(), "<span> y\n</span>");
    }
}
