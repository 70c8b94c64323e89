//! The table of the tools. Each tool has its own file; those that call one agent share one.

mod agent_tools;
mod call;
mod call_agent;
mod call_apply;
mod call_cancel;
mod call_changes;
mod call_discard;
mod call_jobs;
mod call_many;
pub(crate) mod call_output;
mod call_parameters;
mod call_status;
mod call_wait;
mod definition;
mod howto;
pub mod reference;

/// Reads an agent's output, also for the resources.
pub(crate) use call_output as output;
pub(crate) use definition::ToolRequest;

use std::sync::LazyLock;

use rmcp::model::{CallToolResponse, Tool};

use agent_tools::{AGENT_TOOLS, REHEARSAL, find_agent_tool};
use call::CallTool;

use crate::context::ClientContext;
use crate::options::McpOptions;
use crate::rejection::ToolRejection;

/// All tools, in the order of `tools/list` and of the reference page.
static TOOLS: LazyLock<Vec<Tool>> = LazyLock::new(|| {
    let others = [
        call_agent::tool(),
        call_many::tool(),
        call_wait::tool(),
        call_status::tool(),
        call_output::tool(),
        call_changes::tool(),
        call_apply::tool(),
        call_discard::tool(),
        call_jobs::tool(),
        call_cancel::tool(),
        howto::tool(),
    ];
    AGENT_TOOLS.iter().map(CallTool::tool).chain(others).collect()
});

/// The tools that the operator has to allow.
pub(crate) const NEEDS_PERMISSION: [&str; 2] = [call_apply::NAME, call_discard::NAME];

/// Returns the tools that the options enable.
pub(crate) fn listed_tools(options: &McpOptions) -> impl Iterator<Item = &'static Tool> + use<> {
    let McpOptions { rehearsal, apply_changes, .. } = *options;
    TOOLS.iter().filter(move |tool| match tool.name.as_ref() {
        REHEARSAL => rehearsal,
        name if NEEDS_PERMISSION.contains(&name) => apply_changes,
        _ => true,
    })
}

/// Returns a tool as a client sees it in the list.
pub(crate) fn for_client(client: &ClientContext, tool: &Tool) -> Tool {
    match tool.name.as_ref() {
        call_agent::NAME => call_agent::list_agents(client, tool.clone()),
        _ => tool.clone(),
    }
}

/// Calls a tool.
pub(crate) async fn call_tool(request: ToolRequest<'_>) -> Result<CallToolResponse, ToolRejection> {
    if let Some(tool) = find_agent_tool(&request.tool.name) {
        return Box::pin(tool.call(request)).await;
    }
    match request.tool.name.as_ref() {
        call_agent::NAME => Box::pin(call_agent::call(request)).await,
        call_many::NAME => Box::pin(call_many::call(request)).await,
        call_wait::NAME => call_wait::call(request).await,
        call_status::NAME => call_status::call(request).await,
        call_output::NAME => call_output::call(request).await,
        call_changes::NAME => call_changes::call(request).await,
        call_apply::NAME => call_apply::call(request).await,
        call_discard::NAME => call_discard::call(request).await,
        call_jobs::NAME => call_jobs::call(request).await,
        call_cancel::NAME => call_cancel::call(request).await,
        howto::NAME => howto::call(request).await,
        other => Err(ToolRejection::new(format!("unknown tool {other}"), "see tools/list")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn scripted_agent_is_listed_only_if_enabled() {
        let names = |rehearsal| {
            let options = McpOptions { rehearsal, ..McpOptions::default() };
            listed_tools(&options).map(|tool| tool.name.to_string()).collect::<Vec<_>>()
        };
        assert!(!names(false).contains(&"call_rehearsal".to_owned()));
        assert_eq!(names(true).len(), names(false).len() + 1);
    }

    #[test]
    fn every_tool_is_fully_described() {
        for tool in TOOLS.iter() {
            let name = &tool.name;
            let description = tool.description.as_deref().unwrap_or_default();
            assert!((100..1200).contains(&description.len()), "{name}: {} characters", description.len());
            assert!(tool.output_schema.is_some() && tool.title.is_some(), "{name}");
            let annotations = tool.annotations.clone().unwrap();
            assert!(annotations.read_only_hint.is_some() && annotations.destructive_hint.is_some(), "{name}");
            assert!(annotations.idempotent_hint.is_some() && annotations.open_world_hint.is_some(), "{name}");
            for (parameter, schema) in tool.input_schema["properties"].as_object().unwrap() {
                let is_time = parameter.ends_with("_ms");
                let types = if is_time { json!(["integer", "string"]) } else { schema["type"].clone() };
                assert!(
                    schema["description"].is_string() && schema["type"] == types && !types.is_null(),
                    "{name}.{parameter}: {schema}"
                );
                assert!(is_time || types.is_string(), "{name}.{parameter}: {schema}");
            }
            let text = serde_json::to_string(tool).unwrap();
            assert!(
                !text.contains("\"format\":\"") && !text.contains("$ref") && !text.contains("$schema"),
                "{text}"
            );
        }
    }
}
