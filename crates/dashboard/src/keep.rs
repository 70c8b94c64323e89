//! Keeps one contender of a race: offers it on the page of the group, applies its changes, and discards those of the others.
//!
//! Names come from agents and callers: everything is sanitized, and maud escapes it.

use axum::extract::{Extension, Form, Path, State};
use axum::response::{IntoResponse, Redirect, Response};
use calls::{
    Answer, CallError, Changes, ChangesState, Contender, GroupError, GroupReport, JobService, PrivateCheckout,
};
use maud::{Markup, html};
use model::{JobGroup, JobId};
use render::text::to_one_line;

use crate::actions::FormFields;
use crate::context::PageContext;
use crate::login::WebVisitor;
use crate::page;
use crate::rejection::PageRejection;
use crate::restore;

/// The maximum number of characters of an agent with its model.
pub(crate) const LABEL_CHARS: usize = 60;

/// Returns the agent of a job with its model.
pub(crate) fn label(answer: &Answer) -> String {
    let model = answer.model.as_ref().map(|model| format!(":{model}"));
    to_one_line(&format!("{}{}", answer.agent, model.unwrap_or_default()), LABEL_CHARS)
}

/// Returns whether the judge of a race has chosen a contender.
pub(crate) fn is_winner(report: &GroupReport, contender: &Contender) -> bool {
    let verdict = report.verdict.as_ref();
    verdict.is_some_and(|verdict| verdict.winner.as_ref() == Some(&contender.answer.job_id))
}

/// Renders the action that keeps each contender, if it has changes to keep. The script replaces each alone, so that an open confirmation
/// stays.
pub(crate) fn actions(report: &GroupReport, visitor: &WebVisitor) -> Markup {
    let action = |contender: &Contender| {
        let (name, question) = offer(report, contender)?;
        let class = if is_winner(report, contender) { "primary" } else { "" };
        let url = format!("/jobs/{}/keep", contender.answer.job_id);
        Some(page::confirmed_action(visitor, &url, &name, &question, class))
    };
    html! {
        section.keep aria-label="Keep a contender" {
            div.actions.of-changes {
                @for contender in &report.contenders {
                    div data-swap={ "keep-" (contender.number) } { @if let Some(action) = action(contender) { (action) } }
                }
            }
        }
    }
}

/// Returns the name of the action on a contender and its confirmation, which names the contenders that it discards.
fn offer(report: &GroupReport, contender: &Contender) -> Option<(String, String)> {
    let number = contender.number;
    let (changes, checkout) = find_checkout(contender)?;
    let others = report.contenders.iter().filter(|other| other.number != number);
    let discarded: Vec<String> = others.filter_map(describe_discarded).collect();
    let mut sentences = Vec::new();
    let (name, word) = match checkout.state {
        // The patch is missing if the job ran on another machine.
        ChangesState::Open if changes.patch_file.is_some() => {
            sentences.push(format!(
                "This writes the changes of contender {number} to `{}`, merged with later edits. If a file conflicts, no file is changed \
                 and nothing is discarded.",
                checkout.source
            ));
            (format!("Keep contender {number}"), "Then it")
        }
        ChangesState::Applied if !discarded.is_empty() => {
            sentences.push(format!("The changes of contender {number} are applied."));
            ("Discard the others".to_owned(), "This")
        }
        _ => return None,
    };
    sentences.push(if discarded.is_empty() {
        "No other contender has open changes.".to_owned()
    } else {
        format!("{word} discards {}. Recorded patches are kept.", discarded.join("; "))
    });
    if report.reviews.iter().any(|review| !review.status.is_final()) {
        sentences.push("The judge has not finished and is cancelled.".to_owned());
    }
    Some((name, sentences.join(" ")))
}

/// Returns the changes of an ended job in a private checkout.
fn find_checkout(contender: &Contender) -> Option<(&Changes, &PrivateCheckout)> {
    let answer = &contender.answer;
    let changes = answer.changes.as_ref().filter(|_| answer.status.is_final())?;
    Some((changes, changes.checkout.as_ref()?))
}

/// Names a contender whose changes are discarded if another one is kept.
fn describe_discarded(contender: &Contender) -> Option<String> {
    let Contender { number, answer, .. } = contender;
    let name = label(answer);
    if !answer.status.is_final() {
        return Some(format!("contender {number} ({name}, has not ended and is cancelled)"));
    }
    let (changes, checkout) = find_checkout(contender)?;
    let extent = page::count_files(changes.files_changed);
    (checkout.state == ChangesState::Open).then(|| format!("contender {number} ({name}, {extent} changed)"))
}

/// Handles a request to apply the changes of a contender, and to cancel and discard the others of its race.
pub(crate) async fn keep(
    State(context): State<PageContext>,
    Extension(visitor): Extension<WebVisitor>,
    Path(job): Path<String>,
    Form(form): Form<FormFields>,
) -> Result<Response, PageRejection> {
    let job = form.parse_job(&job, &visitor)?;
    let service = context.service();
    let group = service.group_of(job).await?;
    // Before anything is applied.
    let (true, Some(id)) = (group.contenders.contains(&job), group.id()) else {
        return Err(CallError::from(GroupError::NotAContender { job }).into());
    };
    let back = html! { p { a href={ "/groups/" (id) } { "Back to the group" } } };
    if service.are_changes_applied(job).await? {
        service.discard_other_contenders(job).await?;
        tracing::info!(%job, "discarded the other contenders on the web page");
        return Ok(Redirect::to(&format!("/groups/{id}")).into_response());
    }
    let applied = match restore::apply_changes(&context, job, false).await? {
        Ok(applied) => applied,
        Err(conflicts) => {
            let remedy = html! {
                p { "Nothing was discarded." }
                (restore::apply_with_markers(job, &visitor))
                (back)
            };
            return Ok(restore::conflicts_page(job, restore::NOT_APPLIED, &conflicts, &remedy, &visitor));
        }
    };
    let (title, others) = if applied.state == ChangesState::Applied {
        discard_others(service, job, &group).await
    } else {
        (restore::applied_title(&applied), html! { p { "Nothing was discarded." } })
    };
    let summary = html! {
        (restore::applied_summary(&applied))
        (others)
        (back)
    };
    Ok(restore::outcome_page(job, title, &summary, &applied.restored.files, &visitor))
}

/// Cancels and discards the other contenders of a group. Returns the title and the report of the outcome.
async fn discard_others(service: &JobService, job: JobId, group: &JobGroup) -> (&'static str, Markup) {
    match service.discard_other_contenders(job).await {
        Ok(closed) => {
            tracing::info!(%job, ?closed, "discarded the other contenders on the web page");
            let number = |other: &JobId| group.contenders.iter().position(|contender| contender == other);
            let numbers: Vec<String> = closed
                .discarded
                .iter()
                .filter_map(number)
                .map(|index| format!("contender {}", index + 1))
                .collect();
            if numbers.is_empty() {
                ("Changes applied", html! { p { "No other contender had changes to discard." } })
            } else {
                (
                    "Changes applied, the others discarded",
                    html! { p { "Discarded: " (numbers.join(", ")) "." } },
                )
            }
        }
        Err(error) => {
            tracing::warn!(%job, error = model::error_chain(&error), "cannot discard the other contenders");
            let PageRejection { message, hint, .. } = error.into();
            let report = html! {
                p { "Not all other contenders were discarded: " (page::inline_code(&message)) "." }
                p.hint { (page::inline_code(&hint)) }
            };
            ("Changes applied, but not all others discarded", report)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn contender(number: u32, status: &str, state: Option<&str>) -> Value {
        let changes = state.map(|state| {
            json!({
                "worktree": "/work", "files_changed": number, "lines_added": 0, "lines_removed": 0, "files": [],
                "patch_file": "/patch", "checkout": { "directory": "/d", "source": "/work", "state": state },
            })
        });
        json!({
            "number": number, "status": status, "job_id": format!("job-{number}"), "agent": "claude", "model": "m",
            "task_name": "t", "output": "", "duration_ms": 0, "session_id": null, "output_file": "o", "changes": changes,
        })
    }

    fn report(contenders: &[Value]) -> GroupReport {
        let report =
            json!({ "group_id": "group-1", "kind": "race", "has_ended": false, "contenders": contenders });
        serde_json::from_value(report).unwrap()
    }

    #[test]
    fn confirmation_names_the_discarded_contenders() {
        let report = report(&[
            contender(1, "completed", Some("open")),
            contender(2, "failed", Some("open")),
            contender(3, "running", None),
            contender(4, "completed", Some("unchanged")),
            contender(5, "completed", Some("discarded")),
        ]);
        let (name, question) = offer(&report, &report.contenders[0]).unwrap();
        assert_eq!(name, "Keep contender 1");
        assert!(question.contains("`/work`") && question.contains("nothing is discarded"), "{question}");
        let discarded = "Then it discards contender 2 (claude:m, 2 files changed); contender 3 (claude:m, has not ended and is cancelled).";
        assert!(question.contains(discarded), "{question}");
        let offered: Vec<u32> = report
            .contenders
            .iter()
            .filter(|contender| offer(&report, contender).is_some())
            .map(|contender| contender.number)
            .collect();
        assert_eq!(offered, [1, 2]);
    }

    #[test]
    fn applied_contender_offers_to_discard_the_others() {
        let applied = || contender(1, "completed", Some("applied"));
        let open = report(&[applied(), contender(2, "completed", Some("open"))]);
        let (name, question) = offer(&open, &open.contenders[0]).unwrap();
        assert_eq!(name, "Discard the others");
        assert!(question.contains("contender 2"), "{question}");
        let done = report(&[applied(), contender(2, "completed", Some("discarded"))]);
        assert_eq!(offer(&done, &done.contenders[0]), None);
    }
}
