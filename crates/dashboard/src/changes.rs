//! The changes of a job: a readable diff for each file.
//!
//! Names and contents come from an agent: everything is sanitized, and maud escapes it.

use axum::extract::{Path, State};
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use calls::{Answer, ChangedFile, FileSelection, JobService};
use maud::{Markup, html};
use model::JobId;
use render::text::{sanitize, show_escapes, strip_control};

use crate::context::PageContext;
use crate::page;
use crate::rejection::PageRejection;

/// The maximum number of shown files.
const MAX_FILES: usize = 100;
/// The maximum size of the shown patch of a file, and of all of them.
const MAX_FILE_BYTES: usize = 64 * 1024;
const MAX_BYTES: usize = 1024 * 1024;

/// Renders the changes of an ended job, if there are any.
pub(crate) async fn section(service: &JobService, job: JobId, answer: &Answer) -> Markup {
    let Some(changes) = answer.changes.as_ref().filter(|changes| changes.files_changed > 0) else {
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
            p.aside { (page::group_digits(changes.files_changed)) @if changes.files_changed == 1 { " file, " } @else { " files, " }
                "+" (page::group_digits(changes.lines_added)) " −" (page::group_digits(changes.lines_removed)) " lines; ignored files are not part of them. "
                @if !patches.is_empty() { a href={ "/jobs/" (job) "/patch" } { "Patch" } } }
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
