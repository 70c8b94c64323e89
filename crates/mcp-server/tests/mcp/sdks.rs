//! Foreign clients at pinned versions: the Python and TypeScript SDKs, over stdio and HTTP.

use std::path::{Path, PathBuf};
use std::time::Duration;

use libtest_mimic::Trial;
use model_api::cli::Invocation;

use crate::harness::McpHarness;
use crate::http::HttpFixture;
use crate::{missing, stdio_server};

const REMEDY: &str = "the clients are not installed: run scripts/mcp-clients-install";
const LIMIT: Duration = Duration::from_secs(150);

/// Returns the command of a client program that runs the story, if it is installed.
type FindClient = fn() -> Option<ClientCommand>;

#[derive(Clone)]
struct ClientCommand {
    program: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
}

pub fn trials() -> Vec<Trial> {
    let clients: [(&str, FindClient); 2] = [("python_sdk", python), ("typescript_sdk", typescript)];
    let trials = clients.into_iter().flat_map(|(name, client)| {
        [
            (format!("{name}_over_stdio"), over_stdio as fn(ClientCommand)),
            (format!("{name}_over_http"), over_http),
        ]
        .map(move |(name, run_test)| match client() {
            None => missing(&name, REMEDY),
            Some(command) => Trial::test(name, move || {
                run_test(command);
                Ok(())
            }),
        })
    });
    trials.collect()
}

fn over_stdio(client: ClientCommand) {
    McpHarness::run(async |harness| {
        let directory = harness.directory.path().join("server");
        std::fs::create_dir(&directory).unwrap();
        let arguments = std::iter::once("stdio".to_owned()).chain(stdio_server::command(&directory));
        run(harness, client, arguments.collect()).await;
    });
}

fn over_http(client: ClientCommand) {
    McpHarness::run(async |harness| {
        let server = HttpFixture::serve(harness).await;
        let url = format!("http://{}/mcp", server.address);
        run(harness, client, vec!["http".to_owned(), url, server.token]).await;
    });
}

async fn run(harness: &McpHarness, client: ClientCommand, arguments: Vec<String>) {
    let path = std::env::var("PATH").unwrap();
    let home = harness.directory.path().to_str().unwrap().to_owned();
    let invocation = Invocation {
        program: client.program,
        arguments: client.arguments.into_iter().chain(arguments).collect(),
        environment: [("PATH".to_owned(), path), ("HOME".to_owned(), home)]
            .into_iter()
            .chain(client.environment)
            .collect(),
        cwd: harness.work(),
        stdin: Vec::new(),
    };
    let output = invocation.run(LIMIT).await.unwrap();
    assert!(output.exit == 0 && output.stdout.ends_with("the end\n"), "{}\n{}", output.stdout, output.stderr);
}

fn python() -> Option<ClientCommand> {
    let program = tools()?.join("python-2.3.0/bin/python");
    let story = story("story.py");
    program.exists().then(|| ClientCommand { program, arguments: vec![story], environment: Vec::new() })
}

fn typescript() -> Option<ClientCommand> {
    let modules = node_modules()?;
    let sdk = modules.join("@modelcontextprotocol/sdk").to_str()?.to_owned();
    let environment = vec![("SDK".to_owned(), sdk)];
    Some(ClientCommand {
        program: modules.join("node/bin/node"),
        arguments: vec![story("story.mjs")],
        environment,
    })
}

fn story(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mcp/clients").join(name).to_str().unwrap().to_owned()
}

/// Returns the packages that `scripts/mcp-clients-install` has installed.
pub fn node_modules() -> Option<PathBuf> {
    let modules = tools()?.join("node-1.32.2-0.1.16-24.9.0/node_modules");
    modules.is_dir().then_some(modules)
}

fn tools() -> Option<PathBuf> {
    let named = std::env::var_os("SWITCHBOARD_TOOLS").map(PathBuf::from);
    Some(named.or_else(|| Some(std::env::home_dir()?.join(".cache/switchboard-tools")))?.join("mcp"))
}
