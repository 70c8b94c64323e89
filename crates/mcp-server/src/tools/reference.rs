//! The reference page of the tools, generated from the schemas that clients get.

use std::fmt::Write as _;

use rmcp::model::{JsonObject, Tool};
use serde_json::Value;

use super::TOOLS;

const INTRODUCTION: &str = "\
# Tools

The tools of Switchboard's MCP server. This page is generated from the schemas that clients get; a test compares the two.
`BLESS=1 cargo test -p mcp-server --test mcp reference` regenerates it.

Every result has `structuredContent` as described below, and the same as readable text in `content`. If the caller can fix an error, the
result has `isError: true`, its text names the parameter and the remedy, and its `_meta` contains `switchboard/error` {field, message, hint};
no job was submitted then. If changes cannot be applied, it also contains `conflicts`, a list of {path, reason}. The result of an unsuccessful call (`failed`, `timeout`, `cancelled`) is also an error and contains the whole answer.

`call_rehearsal` is listed only if the operator has enabled it (`rehearsal`), and `call_apply` and `call_discard` only with
`mcp.apply_changes`. A job id can be abbreviated to a unique prefix of at least four characters. `call_wait`, `call_status` and
`call_cancel` also accept a `group_id` of `call_many`; the other tools answer it with the ids of its jobs. The result of `call_many` is an
error if the group has ended without a result: no contender completed, or no common answer was written.
Blank strings count as absent.
";

/// Returns the page.
pub fn reference_page() -> String {
    let mut page = INTRODUCTION.to_owned();
    TOOLS.iter().for_each(|tool| describe(&mut page, tool));
    page
}

fn describe(page: &mut String, tool: &Tool) {
    let hints = tool.annotations.clone().unwrap_or_default();
    let hint = |name: &str, value: Option<bool>| value.map(|value| format!("{name} {value}"));
    let hints: Vec<String> = [
        hint("read-only", hints.read_only_hint),
        hint("destructive", hints.destructive_hint),
        hint("idempotent", hints.idempotent_hint),
        hint("open world", hints.open_world_hint),
    ]
    .into_iter()
    .flatten()
    .collect();
    let about = tool.description.as_deref().unwrap_or_default();
    let _ = write!(page, "\n## {}\n\n{about}\n\n*{}*\n\n", tool.name, hints.join(", "));
    table(page, "parameter", &tool.input_schema);
    if let Some(answer) = &tool.output_schema {
        page.push('\n');
        table(page, "result", answer);
    }
}

fn table(page: &mut String, title: &str, schema: &JsonObject) {
    let _ = writeln!(page, "| {title} | type | |\n| --- | --- | --- |");
    for (name, property, is_required) in properties(schema) {
        let optional = if is_required { "" } else { ", optional" };
        let text =
            property["description"].as_str().unwrap_or_default().replace('|', "\\|").replace('\n', " ");
        let _ = writeln!(page, "| `{name}` | {}{optional} | {text}{} |", kind(property), bounds(property));
    }
}

/// Returns the properties of a schema, each with whether it is required. Required ones come first.
pub(super) fn properties(schema: &JsonObject) -> Vec<(&str, &Value, bool)> {
    let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
    let required: Vec<&str> = required.filter_map(Value::as_str).collect();
    let all = schema.get("properties").and_then(Value::as_object).into_iter().flatten();
    let mut all: Vec<_> =
        all.map(|(name, property)| (name.as_str(), property, required.contains(&name.as_str()))).collect();
    all.sort_by_key(|(_, _, is_required)| !is_required);
    all
}

fn kind(property: &Value) -> String {
    if let Some(values) = property["enum"].as_array() {
        return values.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" \\| ");
    }
    match &property["type"] {
        Value::String(name) if name == "array" => format!("list of {}", kind(&property["items"])),
        Value::String(name) => name.clone(),
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" or "),
        _ if property["oneOf"].is_array() => constants(&property["oneOf"]),
        _ if property["anyOf"].is_array() => "object or null".to_owned(),
        _ => "any".to_owned(),
    }
}

fn constants(variants: &Value) -> String {
    let variants = variants.as_array().into_iter().flatten();
    variants.filter_map(|variant| variant["const"].as_str()).collect::<Vec<_>>().join(" \\| ")
}

fn bounds(property: &Value) -> String {
    match (
        property["minimum"].as_u64().filter(|least| *least > 0),
        property["maximum"].as_u64().filter(|most| *most < u64::from(u32::MAX)),
    ) {
        (Some(least), Some(most)) => format!(" ({least} to {most})"),
        (None, Some(most)) => format!(" (at most {most})"),
        (Some(least), None) => format!(" (at least {least})"),
        (None, None) => String::new(),
    }
}
