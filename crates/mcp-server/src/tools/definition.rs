//! Building blocks of a tool: its definition, and a request for it.

use rmcp::RoleServer;
use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use rmcp::service::RequestContext;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;

use crate::context::ClientContext;
use crate::rejection::ToolRejection;
use crate::{arguments, schema};

/// A request to call a tool.
pub(crate) struct ToolRequest<'a> {
    pub client: &'a ClientContext,
    pub tool: &'a Tool,
    pub arguments: Option<JsonObject>,
    pub context: &'a RequestContext<RoleServer>,
}

impl ToolRequest<'_> {
    /// Parses the arguments.
    pub fn parse_arguments<T: DeserializeOwned>(&mut self) -> Result<T, ToolRejection> {
        arguments::parse(self.tool, self.arguments.take())
    }
}

/// The effect of a tool, from which its annotations follow.
#[derive(Clone, Copy)]
pub(super) enum Effect {
    /// Changes nothing.
    ReadOnly,
    /// Starts an agent, which may do anything.
    StartsAgent,
    /// Stops a job, or changes the user's files. Idempotent.
    Changes,
}

/// Defines a tool with the schemas of its parameters `P` and of its structured content `R`.
pub(super) fn define_tool<P: JsonSchema, R: JsonSchema>(
    name: &'static str,
    title: &str,
    description: &'static str,
    effect: Effect,
) -> Tool {
    let annotations = ToolAnnotations::with_title(title);
    let annotations = match effect {
        Effect::ReadOnly => annotations.read_only(true).destructive(false).idempotent(true).open_world(false),
        Effect::StartsAgent => {
            annotations.read_only(false).destructive(true).idempotent(false).open_world(true)
        }
        Effect::Changes => annotations.read_only(false).destructive(true).idempotent(true).open_world(false),
    };
    Tool::new(name, description, schema::input_schema::<P>())
        .with_title(title)
        .with_raw_output_schema(schema::output_schema::<R>().into())
        .with_annotations(annotations)
}
