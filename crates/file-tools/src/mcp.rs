//! The MCP server: one tool per verb, over stdin and stdout.
//!
//! A rejection is a tool result (`isError`) that a model can react to; only an unknown tool is a protocol error. Each call runs
//! on its own thread, so a long search blocks no other call. Only this file uses tokio.

use std::future::ready;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use rmcp::ErrorData;
use rmcp::ServiceExt as _;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, CompleteRequestMethod, CompleteRequestParams,
    CompleteResult, Implementation, ListPromptsRequestMethod, ListPromptsResult,
    ListResourceTemplatesRequestMethod, ListResourceTemplatesResult, ListResourcesRequestMethod,
    ListResourcesResult, ListToolsResult, PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
    ToolAnnotations,
};
use rmcp::service::{RequestContext, RoleServer};
use serde_json::Value;

use crate::rejection::{FileRejection, RejectionCode};
use crate::request::FileRequest;
use crate::verb::Verb;
use crate::workspace::Workspace;

/// The time for running calls to finish after the client disconnects.
const GRACE: Duration = Duration::from_secs(10);

/// Serves requests until the client closes stdin.
pub(crate) fn serve(workspace: Workspace, verbs: Vec<Verb>) -> Result<(), FileRejection> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .map_err(|refused| failed(&refused))?;
    let tools = Server { workspace: Arc::new(workspace), verbs };
    let served = runtime.block_on(async {
        let service = tools.serve(rmcp::transport::stdio()).await.map_err(io::Error::other)?;
        service.waiting().await.map_err(io::Error::other)
    });
    // A write in progress is finished even though its client is gone.
    runtime.shutdown_timeout(GRACE);
    served.map(drop).map_err(|refused| failed(&refused))
}

fn failed(refused: &io::Error) -> FileRejection {
    FileRejection::new(
        RejectionCode::InvalidInput,
        format!("the MCP session ended early: {refused}"),
        "start `file-tools mcp` from an MCP client; in a shell, use `file-tools <workspace> <verb>`",
    )
}

struct Server {
    workspace: Arc<Workspace>,
    verbs: Vec<Verb>,
}

impl Server {
    fn offered(&self, name: &str) -> Option<Verb> {
        self.verbs.iter().copied().find(|verb| verb.as_str() == name)
    }
}

fn tool(verb: Verb) -> Tool {
    let reads = verb.reach() == crate::lock::Reach::Read;
    let annotations = ToolAnnotations::new()
        .read_only(reads)
        .destructive(verb.is_destructive())
        .idempotent(reads || verb == Verb::Write)
        .open_world(false);
    Tool::new(verb.as_str(), verb.about(), Arc::new(verb.schema())).with_annotations(annotations)
}

/// Executes one call. The structured content contains the whole reply, because some clients show nothing else.
fn call(workspace: &Workspace, verb: Verb, request: CallToolRequestParams) -> CallToolResult {
    let answer = FileRequest::parse(verb, request.arguments.unwrap_or_default())
        .and_then(|request| workspace.execute(&request))
        .map(|answer| serde_json::to_value(answer).unwrap_or(Value::Null));
    match answer {
        Ok(answer) => CallToolResult::structured(answer),
        Err(refusal) => {
            CallToolResult::structured_error(serde_json::to_value(&refusal).unwrap_or(Value::Null))
        }
    }
}

impl rmcp::ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let root =
            crate::name::show(std::os::unix::ffi::OsStrExt::as_bytes(self.workspace.root.path().as_os_str()))
                .into_owned();
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("file-tools", env!("CARGO_PKG_VERSION")))
            .with_instructions(format!(
                "File tools for the workspace `{root}`. Paths are relative to it; nothing outside can be reached. \
                 Confined by: {}.",
                self.workspace.held().summary()
            ))
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.verbs.iter().copied().map(tool).collect()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.offered(name).map(tool)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(verb) = self.offered(&request.name) else {
            return Err(ErrorData::invalid_params(format!("unknown tool `{}`", request.name), None));
        };
        let workspace = Arc::clone(&self.workspace);
        let done = tokio::task::spawn_blocking(move || call(&workspace, verb, request)).await;
        done.map(Into::into)
            .map_err(|died| ErrorData::internal_error(format!("`{}` failed: {died}", verb.as_str()), None))
    }

    // Undeclared methods return `method not found`; the library's default is an empty list.
    fn complete(
        &self,
        _: CompleteRequestParams,
        _: RequestContext<RoleServer>,
    ) -> impl Future<Output = Result<CompleteResult, ErrorData>> {
        ready(Err(ErrorData::method_not_found::<CompleteRequestMethod>()))
    }

    fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> impl Future<Output = Result<ListPromptsResult, ErrorData>> {
        ready(Err(ErrorData::method_not_found::<ListPromptsRequestMethod>()))
    }

    fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> impl Future<Output = Result<ListResourcesResult, ErrorData>> {
        ready(Err(ErrorData::method_not_found::<ListResourcesRequestMethod>()))
    }

    fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> impl Future<Output = Result<ListResourceTemplatesResult, ErrorData>> {
        ready(Err(ErrorData::method_not_found::<ListResourceTemplatesRequestMethod>()))
    }
}
