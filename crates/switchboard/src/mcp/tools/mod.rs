//! The tools, one file each, and the table of them.

mod call;
mod call_cancel;
mod call_cc;
mod call_codex;
mod call_gem;
mod call_jobs;
pub(crate) mod call_output;
mod call_rehearsal;
mod call_status;
mod call_wait;
mod howto;
pub mod reference;

/// Reading what an agent printed, for the resources too.
pub(crate) use call_output as output;

use std::sync::LazyLock;

use rmcp::RoleServer;
use rmcp::model::{CallToolResponse, JsonObject, Tool, ToolAnnotations};
use rmcp::service::RequestContext;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;

use super::refusal::Refusal;
use super::server::Server;
use super::{Options, arguments, schema};

/// A tool that somebody calls.
pub(crate) struct Request<'a> {
    pub server: &'a Server,
    pub tool: &'a Tool,
    pub arguments: Option<JsonObject>,
    pub context: &'a RequestContext<RoleServer>,
}

impl Request<'_> {
    /// Its arguments as parameters.
    pub fn read<T: DeserializeOwned>(&mut self) -> Result<T, Refusal> {
        arguments::read(self.tool, self.arguments.take())
    }
}

/// All tools, in the order in which a reader meets them.
static TOOLS: LazyLock<Vec<Tool>> = LazyLock::new(|| {
    vec![
        call_cc::CALL.tool(),
        call_codex::CALL.tool(),
        call_gem::CALL.tool(),
        call_rehearsal::CALL.tool(),
        call_wait::tool(),
        call_status::tool(),
        call_output::tool(),
        call_jobs::tool(),
        call_cancel::tool(),
        howto::tool(),
    ]
});

/// The tools that this server has.
pub(crate) fn listed(options: &Options) -> impl Iterator<Item = &'static Tool> + use<> {
    let with_rehearsal = options.rehearsal;
    TOOLS.iter().filter(move |tool| with_rehearsal || tool.name != call_rehearsal::CALL.name)
}

/// Calls a tool of the table.
pub(crate) async fn call(request: Request<'_>) -> Result<CallToolResponse, Refusal> {
    match request.tool.name.as_ref() {
        call_cc::NAME => Box::pin(call_cc::CALL.call(request)).await,
        call_codex::NAME => Box::pin(call_codex::CALL.call(request)).await,
        call_gem::NAME => Box::pin(call_gem::CALL.call(request)).await,
        call_rehearsal::NAME => Box::pin(call_rehearsal::CALL.call(request)).await,
        call_wait::NAME => call_wait::call(request).await,
        call_status::NAME => call_status::call(request).await,
        call_output::NAME => call_output::call(request).await,
        call_jobs::NAME => call_jobs::call(request).await,
        call_cancel::NAME => call_cancel::call(request).await,
        howto::NAME => howto::call(request).await,
        other => Err(Refusal::new(format!("there is no tool {other}"), "see tools/list")),
    }
}

/// What a host may assume about a tool.
#[derive(Clone, Copy)]
enum Effect {
    /// It only looks.
    Reads,
    /// It starts an agent, which may do anything.
    Calls,
    /// It ends something; twice is the same as once.
    Ends,
}

/// A tool with the schemas of its parameters and of its answer.
fn define<P: JsonSchema, A: JsonSchema>(
    name: &'static str,
    title: &str,
    about: &'static str,
    effect: Effect,
) -> Tool {
    let annotations = ToolAnnotations::with_title(title);
    let annotations = match effect {
        Effect::Reads => annotations.read_only(true).destructive(false).idempotent(true).open_world(false),
        Effect::Calls => annotations.read_only(false).destructive(true).idempotent(false).open_world(true),
        Effect::Ends => annotations.read_only(false).destructive(true).idempotent(true).open_world(false),
    };
    Tool::new(name, about, schema::of_input::<P>())
        .with_title(title)
        .with_raw_output_schema(schema::of_output::<A>().into())
        .with_annotations(annotations)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_scripted_agent_is_listed_only_where_the_operator_wants_it() {
        let names = |rehearsal| {
            let options = Options { rehearsal, ..Options::default() };
            listed(&options).map(|tool| tool.name.to_string()).collect::<Vec<_>>()
        };
        assert!(!names(false).contains(&"call_rehearsal".to_owned()));
        assert_eq!(names(true).len(), names(false).len() + 1);
    }

    #[test]
    fn every_tool_says_everything_about_itself() {
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
