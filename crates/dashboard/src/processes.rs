//! The process tree of a running job.

use axum::extract::{Path, State};
use axum::response::Html;
use calls::ProcessInfo;
use maud::{Markup, html};
use model::JobId;

use crate::context::PageContext;
use render::text::{format_bytes, to_one_line};

use crate::page::{group_digits, nowrap_words};
use crate::rejection::PageRejection;

/// Maximum number of listed processes.
const MAX_PROCESSES: usize = 60;
/// Maximum depth of indentation.
const MAX_DEPTH: usize = 8;

/// Handles the poll requests of the page's script.
pub(crate) async fn show(
    State(context): State<PageContext>,
    Path(job): Path<String>,
) -> Result<Html<String>, PageRejection> {
    let job: JobId =
        job.parse().map_err(|_| PageRejection::not_found("Job not found", "all jobs are at `/`"))?;
    let seen = context.service().processes(job).await?;
    Ok(Html(tree(&seen).into_string()))
}

/// Returns the section of a job's page; empty for a finished job.
pub(crate) fn section(job: JobId, seen: &[ProcessInfo], running: bool) -> Markup {
    html! {
        @if running {
            section.processes aria-labelledby="processes" data-again={ "/jobs/" (job) "/processes" } data-swap="processes" {
                h2 #processes { "Processes" }
                div.tree { (tree(seen)) }
            }
        }
    }
}

fn tree(seen: &[ProcessInfo]) -> Markup {
    html! {
        @if seen.is_empty() {
            p.aside { "No process is running." }
        } @else {
            ul.process-tree {
                @for (process, depth) in sort_as_tree(seen).into_iter().take(MAX_PROCESSES) {
                    li class={ "depth-" (depth.min(MAX_DEPTH)) } {
                        code { (nowrap_words(&to_one_line(&process.command, 160))) }
                        span.aside { "pid " (process.pid) " · " (format_bytes(process.resident_bytes)) }
                    }
                }
            }
            @if seen.len() > MAX_PROCESSES { p.aside { "and " (group_digits((seen.len() - MAX_PROCESSES) as u64)) " more" } }
        }
    }
}

/// Sorts processes below their parents and returns each with its depth.
fn sort_as_tree(seen: &[ProcessInfo]) -> Vec<(&ProcessInfo, usize)> {
    let is_root = |process: &&ProcessInfo| seen.iter().all(|other| other.pid != process.parent);
    let mut open: Vec<(&ProcessInfo, usize)> =
        seen.iter().filter(is_root).map(|process| (process, 0)).rev().collect();
    let mut ordered = Vec::new();
    while let Some((process, depth)) = open.pop() {
        ordered.push((process, depth));
        let children = seen.iter().filter(|other| other.parent == process.pid);
        open.extend(children.rev().map(|child| (child, depth + 1)));
    }
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_are_listed_below_their_parents() {
        let process =
            |pid, parent| ProcessInfo { pid, parent, command: format!("<p{pid}>"), resident_bytes: 1 };
        let seen = [process(2, 1), process(5, 1), process(3, 2), process(4, 3)];
        let order: Vec<(i32, usize)> =
            sort_as_tree(&seen).into_iter().map(|(process, depth)| (process.pid, depth)).collect();
        assert_eq!(order, [(2, 0), (3, 1), (4, 2), (5, 0)]);
        assert!(tree(&seen).into_string().contains("&lt;p2&gt;"));
    }
}
