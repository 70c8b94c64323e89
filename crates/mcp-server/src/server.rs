//! Routes requests and declares the capabilities.
//!
//! Undeclared methods return `method not found`: the default handlers of rmcp answer some of them with an empty success.

use std::sync::Arc;

use calls::JobService;
use rmcp::RoleServer;
use rmcp::handler::server::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CancelTaskParams, CancelledNotificationParam,
    CompleteRequestMethod, CompleteRequestParams, CompleteResult, CustomRequest, CustomResult, ErrorCode,
    ErrorData, GetTaskParams, GetTaskResult, Implementation, ListPromptsRequestMethod, ListPromptsResult,
    ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, PaginatedRequestParams,
    ReadResourceRequestParams, ReadResourceResponse, ServerCapabilities, ServerConfig, Tool,
    UpdateTaskParams,
};
use rmcp::service::{NotificationContext, RequestContext};
use tokio_util::sync::CancellationToken;

use crate::capacity::ClientWaits;
use crate::context::ClientContext;
use crate::options::{McpClient, McpOptions};
use crate::rejection::ToolRejection;
use crate::tools::{self, ToolRequest};
use crate::{arguments, resources, tasks};

const INSTRUCTIONS: &str = "Sends a prompt to another coding agent on this machine (call_cc: Claude Code, call_codex: Codex, \
    call_gem: Gemini, call_agent: any other, such as opencode, qwen or an agent of the user) and returns its answer. A call that takes longer than wait_ms returns `running` with a job_id and continues in \
    the background: use call_wait to get the answer, call_output to read its output meanwhile, call_cancel to stop it. The job is \
    durable, so nothing is lost if you stop waiting. To continue a conversation, pass the session_id of an answer as \
    resume_session_id. call_many gives one task to several agents at once. `howto` explains each tool.";

/// Known methods. As a custom request, their parameters have the wrong shape.
const KNOWN_METHODS: [&str; 6] = [
    "resources/list",
    "resources/read",
    "resources/templates/list",
    "tasks/cancel",
    "tasks/get",
    "tools/list",
];

/// The server of one client.
#[derive(Debug, Clone)]
pub(crate) struct McpHandler(ClientContext);

impl McpHandler {
    /// Creates the server of one client. The transport cancels `disconnected` when the connection closes.
    pub fn new(
        service: JobService,
        client: McpClient,
        options: Arc<McpOptions>,
        shutdown: CancellationToken,
        disconnected: CancellationToken,
    ) -> Self {
        let waits = Arc::new(ClientWaits::new(Arc::clone(&options.capacity)));
        Self(ClientContext {
            service,
            info: client,
            options,
            shutdown,
            disconnected,
            cancelled: Arc::default(),
            waits,
        })
    }
}

impl ServerHandler for McpHandler {
    fn get_info(&self) -> ServerConfig {
        let capabilities =
            ServerCapabilities::builder().enable_tools().enable_resources().enable_tasks().build();
        let about = Implementation::new("switchboard", env!("CARGO_PKG_VERSION")).with_title("Switchboard");
        ServerConfig::new(capabilities).with_server_info(about).with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(
            tools::listed_tools(&self.0.options).map(|tool| tools::for_client(&self.0, tool)).collect(),
        ))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        tools::listed_tools(&self.0.options).find(|tool| tool.name == name).cloned()
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let CallToolRequestParams { name, arguments, .. } = request;
        let Some(tool) = tools::listed_tools(&self.0.options).find(|tool| tool.name == name) else {
            return Err(unknown_tool(&name, &self.0.options));
        };
        let request = ToolRequest { client: &self.0, tool, arguments, context: &context };
        // Boxed: rmcp moves its own future for every message of any method.
        let response = Box::pin(tools::call_tool(request)).await;
        Ok(response.unwrap_or_else(|rejection| rejection.to_tool_result().into()))
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        resources::list(&self.0.service, request.and_then(|request| request.cursor).as_deref()).await
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(resources::templates())
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        resources::read(&self.0, &request.uri).await.map(ReadResourceResponse::from)
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        _: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        tasks::get(&self.0, &request.task_id).await
    }

    async fn update_task(
        &self,
        request: UpdateTaskParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        tasks::update(&self.0, &request.task_id).await
    }

    async fn cancel_task(
        &self,
        request: CancelTaskParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        tasks::cancel(&self.0, &request.task_id).await
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListPromptsRequestMethod>())
    }

    async fn complete(
        &self,
        _: CompleteRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        Err(ErrorData::method_not_found::<CompleteRequestMethod>())
    }

    async fn on_cancelled(&self, cancelled: CancelledNotificationParam, _: NotificationContext<RoleServer>) {
        if let Some(request) = cancelled.request_id {
            self.0.cancelled.record(&request);
        }
    }

    /// Handles a method unknown to rmcp, or a known one whose parameters rmcp cannot parse.
    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        if request.method == "tools/call" {
            let rejection = ToolRejection::for_field(
                "params",
                "the request is not a valid tool call; no job was submitted",
                "send {\"name\": \"call_cc\", \"arguments\": {\"prompt\": \"…\"}}, with `arguments` as an object",
            );
            return Ok(CustomResult::new(
                serde_json::to_value(rejection.to_tool_result()).unwrap_or_default(),
            ));
        }
        if KNOWN_METHODS.contains(&request.method.as_str()) {
            let message = format!("the parameters of {} are invalid", request.method);
            return Err(ErrorData::invalid_params(message, None));
        }
        Err(ErrorData::new(
            ErrorCode::METHOD_NOT_FOUND,
            format!("there is no method {}", request.method),
            None,
        ))
    }
}

/// Returns a protocol error: a request for an unknown tool cannot be routed.
fn unknown_tool(name: &str, options: &McpOptions) -> ErrorData {
    let names: Vec<&str> = tools::listed_tools(options).map(|tool| tool.name.as_ref()).collect();
    if tools::NEEDS_PERMISSION.contains(&name) {
        let message = format!(
            "the operator has not allowed `{name}`; ask the user to apply or discard the changes, or to set mcp.apply_changes"
        );
        return ErrorData::invalid_params(message, None);
    }
    let shown: String = name.chars().take(100).collect();
    let hint = match arguments::nearest(name, names.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("the tools are: {}", names.join(", ")),
    };
    ErrorData::invalid_params(format!("there is no tool `{}`; {hint}", shown.escape_debug()), None)
}
