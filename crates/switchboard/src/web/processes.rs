//! The processes of a job while it runs, as a tree.

use axum::extract::{Path, State};
use axum::response::Html;
use calls::ProcessInfo;
use maud::{Markup, html};
use model::JobId;

use super::Web;
use super::page::{bytes, grouped, unbroken};
use super::refusal::Refusal;
use crate::text::one_line;

/// More are not listed; their number is.
const MOST: usize = 60;
/// Deeper is not indented.
const DEEPEST: usize = 8;

/// The part of a page that a script asks for again and again.
pub async fn show(State(web): State<Web>, Path(job): Path<String>) -> Result<Html<String>, Refusal> {
    let job: JobId = job.parse().map_err(|_| Refusal::not_found("There is no such job", "all are at `/`"))?;
    let seen = web.desk().processes(job).await?;
    Ok(Html(tree(&seen).into_string()))
}

/// The section of a job's page; empty for a job that has ended.
pub fn section(job: JobId, seen: &[ProcessInfo], running: bool) -> Markup {
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
            p.aside { "None of it runs right now." }
        } @else {
            ul.process-tree {
                @for (process, depth) in in_order(seen).into_iter().take(MOST) {
                    li class={ "depth-" (depth.min(DEEPEST)) } {
                        code { (unbroken(&one_line(&process.command, 160))) }
                        span.aside { "pid " (process.pid) " · " (bytes(process.resident_bytes)) }
                    }
                }
            }
            @if seen.len() > MOST { p.aside { "and " (grouped((seen.len() - MOST) as u64)) " more" } }
        }
    }
}

/// Each below its parent, and how deep.
fn in_order(seen: &[ProcessInfo]) -> Vec<(&ProcessInfo, usize)> {
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
    fn children_stand_below_their_parents() {
        let process =
            |pid, parent| ProcessInfo { pid, parent, command: format!("<p{pid}>"), resident_bytes: 1 };
        let seen = [process(2, 1), process(5, 1), process(3, 2), process(4, 3)];
        let order: Vec<(i32, usize)> =
            in_order(&seen).into_iter().map(|(process, depth)| (process.pid, depth)).collect();
        assert_eq!(order, [(2, 0), (3, 1), (4, 2), (5, 0)]);
        assert!(tree(&seen).into_string().contains("&lt;p2&gt;"));
    }
}
