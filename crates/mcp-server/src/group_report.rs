//! Groups as tool results: the state of their jobs, the next step, and a table for people and models.
//!
//! Owns the form of a group for MCP clients. Decides nothing about its jobs (see `calls`).

use calls::{Answer, CallError, ChangesState, Contender, GroupReport, JobStatus};
use model::JobGroup;
use render::duration::format_millis;
use render::text::{format_count, format_dollars, to_one_line};
use rmcp::model::CallToolResult;
use schemars::JsonSchema;
use serde::Serialize;

use crate::context::ClientContext;
use crate::hints;
use crate::results;

/// Maximum number of characters of an error in the table.
const ERROR_CHARS: usize = 300;

/// The state of a group, for a client.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct GroupAnswer {
    #[serde(flatten)]
    pub report: GroupReport,
    /// Notes by Switchboard, not by the agents: the next step or facts about this result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl GroupAnswer {
    /// Reads the state of a group, cut to the operator's limit.
    pub async fn read(client: &ClientContext, group: &JobGroup) -> Result<Self, CallError> {
        Self::read_cut(client, group, client.options.defaults.max_response_chars).await
    }

    /// Reads the state of a group. Its answers share the limit on the characters.
    pub async fn read_cut(
        client: &ClientContext,
        group: &JobGroup,
        max_chars: usize,
    ) -> Result<Self, CallError> {
        let mut report = client.service.group_report(group).await?;
        let answers = report.contenders.iter_mut().map(|contender| &mut contender.answer);
        answers.chain(&mut report.reviews).for_each(hints::replace_commands);
        if let Some(verdict) = &mut report.verdict {
            verdict.reason = hints::without_flags(&verdict.reason);
        }
        let report = report.cut_to(results::share_chars(max_chars, group.jobs().count()));
        let note = next_step(&report, client.can_apply());
        Ok(Self { report, note })
    }

    /// Returns the result of a call of several agents. One without a result is an error, so that hosts show it as one.
    pub fn call_result(&self) -> CallToolResult {
        let mut result = results::tool_result(self, self.text());
        if self.report.has_ended && self.report.status() != JobStatus::Completed {
            result.is_error = Some(true);
        }
        result
    }

    /// Returns the number of ended jobs.
    pub fn ended_jobs(&self) -> usize {
        answers(&self.report).filter(|answer| answer.status.is_final()).count()
    }

    /// Returns the answers of the jobs that have not ended.
    pub fn unfinished(&self) -> impl Iterator<Item = &Answer> {
        answers(&self.report).filter(|answer| !answer.status.is_final())
    }

    /// Returns the number of ended jobs among all in words.
    pub fn describe_progress(&self) -> String {
        format!("{} of {} jobs have ended", self.ended_jobs(), answers(&self.report).count())
    }

    /// Returns the group as text: the answers to a question, then a table with one line per job.
    pub fn text(&self) -> String {
        let Self { report, note } = self;
        let mut parts = Vec::new();
        if !report.is_race() {
            parts.extend(answer_texts(report));
        }
        parts.push(table(report, &self.describe_progress()));
        let errors: Vec<String> = named_answers(report).filter_map(describe_error).collect();
        if !errors.is_empty() {
            parts.push(errors.join("\n"));
        }
        if let Some(verdict) = &report.verdict {
            let winner = verdict.winner.as_ref().map(|job| format!(" (job {job})")).unwrap_or_default();
            parts.push(format!("verdict: {}{winner}", verdict.reason));
        }
        parts.extend(note.clone());
        parts.join("\n\n")
    }
}

fn contender_answers(report: &GroupReport) -> impl Iterator<Item = &Answer> {
    report.contenders.iter().map(|contender| &contender.answer)
}

fn answers(report: &GroupReport) -> impl Iterator<Item = &Answer> {
    contender_answers(report).chain(&report.reviews)
}

/// Returns the answers with the names of their rows.
fn named_answers(report: &GroupReport) -> impl Iterator<Item = (String, &Answer)> {
    let reviewer = if report.is_race() { "judge" } else { "synthesis" };
    let contenders =
        report.contenders.iter().map(|Contender { number, answer, .. }| (number.to_string(), answer));
    contenders.chain(report.reviews.iter().map(|review| (reviewer.to_owned(), review)))
}

/// Returns the text that answers the question: the synthesis, or the single answers if there is none at the end.
fn answer_texts(report: &GroupReport) -> Vec<String> {
    let completed = |answer: &&Answer| answer.status == JobStatus::Completed;
    let synthesis: Vec<String> =
        report.reviews.iter().filter(completed).map(|review| review.output.clone()).collect();
    if !synthesis.is_empty() || !report.has_ended {
        return synthesis;
    }
    let contenders = report.contenders.iter().filter(|contender| completed(&&contender.answer));
    contenders
        .map(|Contender { number, answer, .. }| format!("Answer {number}:\n{}", answer.output))
        .collect()
}

fn table(report: &GroupReport, progress: &str) -> String {
    let mut lines = vec![
        format!("{} {}: {progress}", report.kind, report.group_id),
        "# | agent | status | verified | changes | time | cost | job".to_owned(),
    ];
    lines.extend(named_answers(report).map(|(name, answer)| {
        let contender = report.contenders.iter().find(|contender| contender.answer.job_id == answer.job_id);
        [
            name,
            answer
                .model
                .as_ref()
                .map_or_else(|| answer.agent.clone(), |model| format!("{}:{model}", answer.agent)),
            describe_status(answer, contender),
            answer.verified.as_ref().map_or("-", |verified| verified.state.name()).to_owned(),
            contender.map_or_else(|| "-".to_owned(), describe_changes),
            format_millis(answer.duration_ms),
            answer.cost_usd.map_or_else(|| "-".to_owned(), format_dollars),
            answer.job_id.clone(),
        ]
        .join(" | ")
    }));
    lines.join("\n")
}

fn describe_status(answer: &Answer, contender: Option<&Contender>) -> String {
    let status = answer.status.as_str();
    let activity = contender.and_then(|contender| contender.activity.as_ref());
    match answer.error.as_ref().map(|error| &error.kind).or(answer.waiting.as_ref()).or(activity) {
        Some(detail) => format!("{status} ({})", detail.replace('|', "/")),
        None => status.to_owned(),
    }
}

fn describe_changes(contender: &Contender) -> String {
    let Some(changes) = &contender.answer.changes else { return "-".to_owned() };
    let count = |items: usize| u32::try_from(items).unwrap_or(u32::MAX);
    let mut parts = vec![results::describe_changes(changes)];
    if !contender.overlaps.is_empty() {
        let files = format_count(count(contender.overlaps.len()), "file", "files");
        parts.push(format!("{files} also changed by others"));
    }
    let collisions = changes.checkout.as_ref().map_or(0, |checkout| count(checkout.collisions.len()));
    if collisions > 0 {
        parts.push(format_count(collisions, "collision", "collisions"));
    }
    parts.join(", ")
}

fn describe_error((name, answer): (String, &Answer)) -> Option<String> {
    let error = answer.error.as_ref()?;
    Some(format!(
        "{name}: {}: {}\nhint: {}",
        error.kind,
        to_one_line(&error.message, ERROR_CHARS),
        error.hint
    ))
}

/// Returns the next step of the caller: to wait, or to use one of the solutions.
fn next_step(report: &GroupReport, can_apply: bool) -> Option<String> {
    if !report.has_ended {
        return Some(format!(
            "not all jobs have ended: wait for them with call_wait and the group_id {}, or stop them with call_cancel",
            report.group_id
        ));
    }
    let open = contender_answers(report)
        .filter_map(|answer| answer.changes.as_ref()?.checkout.as_ref())
        .find(|checkout| checkout.state == ChangesState::Open)?;
    let next = if can_apply {
        "apply one of them with call_apply and `discard_others: true`, or drop each with call_discard"
    } else {
        "tell the user to keep one of them, at a terminal or on the web page, which discards the others"
    };
    Some(format!(
        "the changes are in private checkouts and not yet in `{}`: {next}; review them with call_changes",
        open.source
    ))
}
