//! Applies, discards, undoes and redoes the changes of a job, and shows the outcome per file.
//!
//! Paths come from an agent: everything is sanitized, and maud escapes it.

use axum::extract::{Extension, Form, Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use calls::{
    Applied, ApplyRequest, CallError, ChangesState, Conflict, Direction, FileSelection, RestoreAction,
    RestoreError, RestoredFile,
};
use maud::{Markup, html};
use model::JobId;
use model::exact_path::show_path;
use render::text::{sanitize, strip_control};

use crate::actions::FormFields;
use crate::context::PageContext;
use crate::login::WebVisitor;
use crate::page::{self, ActivePage};
use crate::rejection::PageRejection;

/// The maximum number of listed files.
const MAX_FILES: usize = 200;
/// The title of the page about conflicts of an apply.
pub(crate) const NOT_APPLIED: &str = "The changes cannot be applied";

/// Handles a request to apply the changes in a private checkout.
pub(crate) async fn apply(
    State(context): State<PageContext>,
    Extension(visitor): Extension<WebVisitor>,
    Path(job): Path<String>,
    Form(form): Form<FormFields>,
) -> Result<Response, PageRejection> {
    let (job, markers) = (form.parse_job(&job, &visitor)?, form.markers);
    let applied = match apply_changes(&context, job, markers).await? {
        Ok(applied) => applied,
        Err(conflicts) => {
            let remedy = if markers {
                html! {}
            } else {
                apply_with_markers(job, &visitor)
            };
            return Ok(conflicts_page(job, NOT_APPLIED, &conflicts, &remedy, &visitor));
        }
    };
    Ok(outcome_page(
        job,
        applied_title(&applied),
        &applied_summary(&applied),
        &applied.restored.files,
        &visitor,
    ))
}

/// Applies the changes of a job, or returns the conflicts for which nothing was written.
pub(crate) async fn apply_changes(
    context: &PageContext,
    job: JobId,
    markers: bool,
) -> Result<Result<Applied, Vec<Conflict>>, PageRejection> {
    let request = ApplyRequest { markers, ..ApplyRequest::default() };
    match context.service().apply(job, request).await {
        Ok(applied) => {
            tracing::info!(%job, "applied changes on the web page");
            Ok(Ok(applied))
        }
        Err(CallError::Restore(RestoreError::Conflicts(conflicts))) => Ok(Err(conflicts)),
        Err(error) => Err(error.into()),
    }
}

/// Returns the title of the page about applied changes.
pub(crate) fn applied_title(applied: &Applied) -> &'static str {
    if applied.state == ChangesState::Applied { "Changes applied" } else { "Some changes were left out" }
}

/// Renders the directory of applied changes, and whether all of them were applied.
pub(crate) fn applied_summary(applied: &Applied) -> Markup {
    html! {
        p { "The changes are in " code.path { (strip_control(&show_path(&applied.worktree))) } ". Nothing was committed or staged." }
        @if applied.state != ChangesState::Applied {
            p { "The private checkout stays, because it has the only copy of the files that were left out." }
        }
    }
}

/// Renders a form that applies changes with conflict markers.
pub(crate) fn apply_with_markers(job: JobId, visitor: &WebVisitor) -> Markup {
    html! {
        p { "You can also write conflicts in the same lines into the files, between conflict markers, and resolve them there." }
        form method="post" action={ "/jobs/" (job) "/apply" } {
            (page::form_token(visitor))
            input type="hidden" name="markers" value="true";
            button type="submit" { "Apply with conflict markers" }
        }
    }
}

/// Handles a request to discard the changes in a private checkout.
pub(crate) async fn discard(
    State(context): State<PageContext>,
    Extension(visitor): Extension<WebVisitor>,
    Path(job): Path<String>,
    Form(form): Form<FormFields>,
) -> Result<Redirect, PageRejection> {
    let job = form.parse_job(&job, &visitor)?;
    context.service().discard(job).await?;
    tracing::info!(%job, "discarded changes on the web page");
    Ok(Redirect::to(&format!("/jobs/{job}")))
}

/// Handles a request to undo the changes of a job.
pub(crate) async fn undo(
    state: State<PageContext>,
    visitor: Extension<WebVisitor>,
    job: Path<String>,
    form: Form<FormFields>,
) -> Result<Response, PageRejection> {
    restore(state, visitor, job, form, Direction::Undo).await
}

/// Handles a request to redo the changes of a job.
pub(crate) async fn redo(
    state: State<PageContext>,
    visitor: Extension<WebVisitor>,
    job: Path<String>,
    form: Form<FormFields>,
) -> Result<Response, PageRejection> {
    restore(state, visitor, job, form, Direction::Redo).await
}

async fn restore(
    State(context): State<PageContext>,
    Extension(visitor): Extension<WebVisitor>,
    Path(job): Path<String>,
    Form(form): Form<FormFields>,
    direction: Direction,
) -> Result<Response, PageRejection> {
    let job = form.parse_job(&job, &visitor)?;
    let (title, failure, command, text) = match direction {
        Direction::Undo => {
            ("Changes undone", "The changes cannot be undone", "undo", "The files are as before the job.")
        }
        Direction::Redo => (
            "Changes redone",
            "The changes cannot be redone",
            "undo --redo",
            "The files are as after the job.",
        ),
    };
    let restored = match context.service().restore(job, direction, FileSelection::default()).await {
        Err(CallError::Restore(RestoreError::Conflicts(conflicts))) => {
            let remedy = html! {
                p { "Revert the later edits, or name single files: " code { "switchboard " (command) " " (job) " PATH" } }
            };
            return Ok(conflicts_page(job, failure, &conflicts, &remedy, &visitor));
        }
        restored => restored?,
    };
    tracing::info!(%job, ?direction, "restored files on the web page");
    let summary = html! { p { (text) " Later edits are merged." } };
    Ok(outcome_page(job, title, &summary, &restored.files, &visitor))
}

/// Returns the page with the outcome for each file.
pub(crate) fn outcome_page(
    job: JobId,
    title: &str,
    summary: &Markup,
    files: &[RestoredFile],
    visitor: &WebVisitor,
) -> Response {
    let rows = files.iter().map(|file| {
        let reason = file.reason.as_ref().map(ToString::to_string);
        (show_path(&file.path), action_name(file.what), reason)
    });
    let main = frame(job, title, summary, rows.collect(), &html! {});
    page::page(title, ActivePage::Job, visitor, &main)
}

/// Returns the page with the conflicts for which no file was changed.
pub(crate) fn conflicts_page(
    job: JobId,
    title: &str,
    conflicts: &[Conflict],
    remedy: &Markup,
    visitor: &WebVisitor,
) -> Response {
    let rows = conflicts
        .iter()
        .map(|conflict| (show_path(&conflict.path), "conflict", Some(conflict.reason.to_string())));
    let summary = html! { p { "No file was changed, because these files conflict:" } };
    let main = frame(job, title, &summary, rows.collect(), remedy);
    (StatusCode::CONFLICT, page::page(title, ActivePage::Job, visitor, &main)).into_response()
}

/// Renders a list of paths, each with a word and a reason.
fn frame(
    job: JobId,
    title: &str,
    summary: &Markup,
    rows: Vec<(String, &str, Option<String>)>,
    remedy: &Markup,
) -> Markup {
    let left_out = rows.len().saturating_sub(MAX_FILES);
    html! {
        div.head.of-job {
            p.crumb { a href="/" { "Jobs" } " / " a.id href={ "/jobs/" (job) } { (job) } }
            h1 { (title) }
        }
        section.restored {
            (summary)
            ul.changed-files {
                @for (path, word, reason) in rows.into_iter().take(MAX_FILES) {
                    li { p {
                        span.path { (strip_control(&path)) } " "
                        span.extent { (word) @if let Some(reason) = reason { ": " (sanitize(&reason)) } }
                    } }
                }
            }
            @if left_out > 0 { p.aside { (page::group_digits(left_out as u64)) " more files are not shown." } }
            (remedy)
            p { a href={ "/jobs/" (job) } { "Back to the job" } }
        }
    }
}

fn action_name(action: RestoreAction) -> &'static str {
    match action {
        RestoreAction::Written => "written",
        RestoreAction::Deleted => "deleted",
        RestoreAction::Merged => "merged with later edits",
        RestoreAction::Conflicted => "written with conflict markers",
        RestoreAction::AlreadySo => "no difference",
        RestoreAction::NotRestored => "left as it is",
    }
}
