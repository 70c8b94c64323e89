//! Parses Claude's `result`: the end of a turn, with its usage.
//!
//! A run has one result for the prompt, and one for each turn that the exit of a background task triggers. They form one answer:
//! texts in order, tokens and turns added up. Cost is already cumulative.
//!
//! Owns the rule for success: `subtype` is `success` and `is_error` is `false`, both explicit, in a line of strictly valid JSON.
//! Allocates no tree for the line, which may be megabytes of small objects.

use memchr::memchr;
use model::{AgentEvent, AgentText, Finish, Usage};

use crate::driver::json::{Read, Reader, check_strict, replace_lone_surrogates};
use crate::driver::summary::{self, ReportedError, ReportedErrorCode, ReportedResult, Summary};

#[derive(Default)]
struct Line<'a> {
    subtype: Option<&'a [u8]>,
    is_error: Option<bool>,
    http_status: Option<u16>,
    text: Option<AgentText<'a>>,
    errors: Option<&'a [u8]>,
    session_id: Option<AgentText<'a>>,
    turns: Option<u32>,
    cost_usd: Option<f64>,
    usage: Option<Usage>,
    /// The result lists models with a cost.
    paid: bool,
    since_last: Option<SinceLast>,
    denials: Option<&'a [u8]>,
    structured_output: Option<&'a [u8]>,
}

/// The usage of this turn alone. Newer versions report it by model, so no difference is needed.
#[derive(Default)]
struct SinceLast {
    usage: Usage,
    cost_usd: f64,
}

pub(super) fn read(
    bytes: &[u8],
    summary: &mut Summary,
    on_event: &mut impl FnMut(AgentEvent<'_>),
) -> Read<()> {
    check_strict(bytes)?;
    let line = walk(bytes)?;
    summary.start_further_turn();
    summary.withdraw_result();
    if let Some(id) = &line.session_id {
        summary.session_id = Some(summary::name(id));
    }
    let run_cost = line.since_last.as_ref().map(|since| since.cost_usd);
    summary.turns = sum(summary.turns, line.turns, u32::saturating_add);
    summary.cost_usd = line.cost_usd.or(summary.cost_usd);
    summary.run_cost_usd = sum(summary.run_cost_usd, run_cost, |a, b| a + b).filter(|cost| cost.is_finite());
    summary.usage = sum(summary.usage, usage(&line), Usage::plus);
    if let Some(raw) = line.structured_output {
        summary.structured_output = Some(replace_lone_surrogates(raw).into_owned());
    }
    if let Some(usage) = summary.usage {
        on_event(AgentEvent::Usage(usage));
    }
    line.denials.map_or(Ok(()), |raw| denials(raw, summary))?;
    let reported = reported_result(&line)?;
    if reported == ReportedResult::Done {
        match &line.text {
            Some(text) => summary.set_text(text),
            // A missing text, or one of another type, is not an empty answer.
            None if !summary.has_text() => summary.mark_text_lost(),
            None => {}
        }
    }
    on_event(AgentEvent::Finished {
        how: if reported == ReportedResult::Done { Finish::Ok } else { Finish::Error },
    });
    summary.end_turn(reported);
    Ok(())
}

/// Adds up the known figures.
fn sum<T>(one: Option<T>, other: Option<T>, add: impl FnOnce(T, T) -> T) -> Option<T> {
    match (one, other) {
        (Some(one), Some(other)) => Some(add(one, other)),
        (one, other) => one.or(other),
    }
}

fn walk(bytes: &[u8]) -> Read<Line<'_>> {
    let mut line = Line::default();
    Reader::new(bytes).object(|key, value| {
        match key {
            b"subtype" => line.subtype = value.plain_string()?,
            b"is_error" => line.is_error = value.boolean()?,
            b"api_error_status" => line.http_status = value.integer()?,
            b"result" => line.text = value.text()?,
            b"errors" => line.errors = Some(value.raw()?),
            b"session_id" => line.session_id = value.text()?,
            b"num_turns" => line.turns = value.integer()?,
            b"total_cost_usd" => line.cost_usd = value.amount()?,
            b"usage" => line.usage = Some(counted(value)?),
            b"modelUsage" => {
                let raw = value.raw()?;
                line.paid = raw.starts_with(b"{") && memchr(b'"', raw).is_some();
            }
            b"model_usage_since_last_result" => {
                let raw = value.raw()?;
                line.since_last = raw.starts_with(b"{").then(|| since_last(raw)).transpose()?;
            }
            b"permission_denials" => line.denials = Some(value.raw()?),
            b"structured_output" => line.structured_output = Some(value.raw()?).filter(|raw| raw != b"null"),
            _ => value.skip()?,
        }
        Ok(())
    })?;
    Ok(line)
}

/// Returns the reported result. API errors also have `subtype: success`, but `is_error` is set. Anything between a plain success
/// and an error (a missing field, an unknown subtype) counts as neither.
fn reported_result(line: &Line<'_>) -> Read<ReportedResult> {
    let subtype = String::from_utf8_lossy(line.subtype.unwrap_or_default());
    match (line.is_error, &*subtype) {
        (Some(false), "success") => return Ok(ReportedResult::Done),
        (Some(true), _) => {}
        (_, error) if error.starts_with("error") => {}
        _ => {
            let subtype = summary::name(&(&*subtype).into());
            return Ok(ReportedResult::Unreadable(format!("unknown status `{subtype}`")));
        }
    }
    let code = match &*subtype {
        "error_max_turns" => ReportedErrorCode::MaxTurns,
        "error_max_budget_usd" => ReportedErrorCode::MaxBudget,
        "error_max_structured_output_retries" => ReportedErrorCode::SchemaNotMet,
        _ => ReportedErrorCode::Other,
    };
    let message = match &line.text {
        Some(text) if !text.is_empty() => summary::message(&text.decode()),
        _ => line
            .errors
            .map(errors)
            .transpose()?
            .filter(|errors| !errors.is_empty())
            .unwrap_or_else(|| summary::message(&subtype)),
    };
    Ok(ReportedResult::Failed(ReportedError { code, http_status: line.http_status, message }))
}

fn errors(raw: &[u8]) -> Read<String> {
    let mut joined = String::new();
    Reader::new(raw).array_if(|item| {
        if let Some(error) = item.text()? {
            joined.push_str(if joined.is_empty() { "" } else { "\n" });
            joined.push_str(&error.decode());
        }
        Ok(())
    })?;
    Ok(summary::message(&joined))
}

fn usage(line: &Line<'_>) -> Option<Usage> {
    let usage = match &line.since_last {
        Some(since) => return Some(since.usage),
        None => line.usage?,
    };
    // If the budget stops a run, claude reports zeros although a model has been paid for: unknown.
    (usage != Usage::default() || !line.paid).then_some(usage)
}

/// Parses token counts. Claude counts cache reads and writes separately from `input_tokens`.
fn counted(value: &mut Reader<'_>) -> Read<Usage> {
    let mut usage = Usage::default();
    let mut input = Input::default();
    value.object_if(|key, value| {
        match key {
            b"input_tokens" => input.fresh = value.count()?,
            b"cache_creation_input_tokens" => input.into_cache = value.count()?,
            b"cache_read_input_tokens" => usage.cached = value.count()?,
            b"output_tokens" => usage.output = value.count()?,
            b"output_tokens_details" => value.object_if(|key, value| {
                match key {
                    b"thinking_tokens" => usage.reasoning = value.count()?,
                    _ => value.skip()?,
                }
                Ok(())
            })?,
            _ => value.skip()?,
        }
        Ok(())
    })?;
    Ok(Usage { input: input.with(usage.cached), ..usage })
}

#[derive(Default)]
struct Input {
    fresh: u64,
    into_cache: u64,
}

impl Input {
    fn with(&self, cached: u64) -> u64 {
        self.fresh.saturating_add(self.into_cache).saturating_add(cached)
    }
}

fn since_last(raw: &[u8]) -> Read<SinceLast> {
    let mut sum = SinceLast::default();
    Reader::new(raw).object(|_, model| {
        let (usage, cost_usd) = of_model(model)?;
        sum.usage = sum.usage.plus(usage);
        sum.cost_usd += cost_usd;
        Ok(())
    })?;
    Ok(sum)
}

fn of_model(value: &mut Reader<'_>) -> Read<(Usage, f64)> {
    let mut usage = Usage::default();
    let (mut input, mut cost_usd) = (Input::default(), 0.0);
    value.object_if(|key, value| {
        match key {
            b"inputTokens" => input.fresh = value.count()?,
            b"cacheCreationInputTokens" => input.into_cache = value.count()?,
            b"cacheReadInputTokens" => usage.cached = value.count()?,
            b"outputTokens" => usage.output = value.count()?,
            b"thinkingTokens" => usage.reasoning = value.count()?,
            b"costUSD" => cost_usd = value.amount()?.unwrap_or(0.0),
            _ => value.skip()?,
        }
        Ok(())
    })?;
    Ok((Usage { input: input.with(usage.cached), ..usage }, cost_usd))
}

fn denials(raw: &[u8], summary: &mut Summary) -> Read<()> {
    Reader::new(raw).array_if(|item| {
        if !summary.has_room_for_denials() {
            return item.skip();
        }
        let (mut tool, mut id, mut input) = (None, None, None);
        item.object_if(|key, value| {
            match key {
                b"tool_name" => tool = value.text()?,
                b"tool_use_id" => id = value.text()?,
                b"tool_input" => input = Some(AgentText::from_bytes(value.raw()?)),
                _ => value.skip()?,
            }
            Ok(())
        })?;
        summary.add_denial(summary::denial(tool.as_ref(), id.as_ref(), input.as_ref()));
        Ok(())
    })
}
