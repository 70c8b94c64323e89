//! Which request goes where, and what is declared.
//!
//! What is not declared is answered as not being there: rmcp's own handlers answer some of it with an empty success.

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

use super::cancelled::Cancelled;
use super::capacity::ClientWaits;
use super::refusal::Refusal;
use super::tools::{self, Request};
use super::{Client, Options, arguments, resources, tasks};

const INSTRUCTIONS: &str = "Hands a prompt to another coding agent on this machine (call_cc: Claude Code, call_codex: Codex, \
    call_gem: Gemini) and brings back its answer. A call that is not done after wait_ms answers `running` with a job_id and goes \
    on: use call_wait for the answer, call_output to look at it meanwhile, call_cancel to stop it. Nothing is lost when you do \
    not wait. To go on with a conversation give the session_id of its answer as resume_session_id. `howto` explains each tool.";

/// The methods whose parameters rmcp could not read when they arrive as a custom request.
const METHODS: [&str; 6] = [
    "resources/list",
    "resources/read",
    "resources/templates/list",
    "tasks/cancel",
    "tasks/get",
    "tools/list",
];

/// The server of one client.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    pub(crate) desk: JobService,
    pub(crate) client: Client,
    pub(crate) options: Arc<Options>,
    /// The daemon stops.
    pub(crate) shutdown: CancellationToken,
    /// The client is gone.
    pub(crate) gone: CancellationToken,
    /// What the client has cancelled.
    pub(crate) cancelled: Arc<Cancelled>,
    /// How many of its requests may wait for jobs.
    pub(crate) waits: Arc<ClientWaits>,
}

impl Server {
    /// A server for a client, over whatever connection. `gone` is cancelled by whoever watches the connection.
    pub fn new(
        desk: JobService,
        client: Client,
        options: Arc<Options>,
        shutdown: CancellationToken,
        gone: CancellationToken,
    ) -> Self {
        let waits = Arc::new(ClientWaits::new(Arc::clone(&options.capacity)));
        Self { desk, client, options, shutdown, gone, cancelled: Arc::default(), waits }
    }
}

impl ServerHandler for Server {
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
        Ok(ListToolsResult::with_all_items(tools::listed(&self.options).cloned().collect()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        tools::listed(&self.options).find(|tool| tool.name == name).cloned()
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let CallToolRequestParams { name, arguments, .. } = request;
        let Some(tool) = tools::listed(&self.options).find(|tool| tool.name == name) else {
            return Err(unknown_tool(&name, &self.options));
        };
        let asked = Request { server: self, tool, arguments, context: &context };
        // Apart from rmcp's own, which is moved about for every message, whatever it asks.
        let answered = Box::pin(tools::call(asked)).await;
        Ok(answered.unwrap_or_else(|refusal| refusal.result().into()))
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        resources::list(&self.desk, request.and_then(|request| request.cursor).as_deref()).await
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
        resources::read(self, &request.uri).await.map(ReadResourceResponse::from)
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        _: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        tasks::get(self, &request.task_id).await
    }

    async fn update_task(
        &self,
        request: UpdateTaskParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        tasks::update(self, &request.task_id).await
    }

    async fn cancel_task(
        &self,
        request: CancelTaskParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        tasks::cancel(self, &request.task_id).await
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
            self.cancelled.name(&request);
        }
    }

    /// A method that rmcp does not know, or one that it knows with parameters that it could not read.
    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        if request.method == "tools/call" {
            let refusal = Refusal::of(
                "params",
                "the request does not have the shape of a tool call; nothing was placed",
                "send {\"name\": \"call_cc\", \"arguments\": {\"prompt\": \"…\"}}, with `arguments` as an object",
            );
            return Ok(CustomResult::new(serde_json::to_value(refusal.result()).unwrap_or_default()));
        }
        if METHODS.contains(&request.method.as_str()) {
            let message = format!("the parameters of {} do not have the right shape", request.method);
            return Err(ErrorData::invalid_params(message, None));
        }
        Err(ErrorData::new(
            ErrorCode::METHOD_NOT_FOUND,
            format!("there is no method {}", request.method),
            None,
        ))
    }
}

/// Cannot be routed, so it is an error of the protocol.
fn unknown_tool(name: &str, options: &Options) -> ErrorData {
    let names: Vec<&str> = tools::listed(options).map(|tool| tool.name.as_ref()).collect();
    let shown: String = name.chars().take(100).collect();
    let hint = match arguments::nearest(name, names.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("there are: {}", names.join(", ")),
    };
    ErrorData::invalid_params(format!("there is no tool `{}`; {hint}", shown.escape_debug()), None)
}
