//! Foreign clients: the Python and the TypeScript SDK, over stdio and over HTTP, at pinned versions.

use std::path::{Path, PathBuf};
use std::time::Duration;

use libtest_mimic::Trial;
use model_api::cli::Invocation;

use crate::front;
use crate::http::Door;
use crate::missing;
use crate::scene::Scene;

const REMEDY: &str = "the clients are not installed: run scripts/mcp-clients-install";
const LIMIT: Duration = Duration::from_secs(150);

/// A client program that plays the story: how it is started.
type Client = fn() -> Option<Started>;

#[derive(Clone)]
struct Started {
    program: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
}

pub fn trials() -> Vec<Trial> {
    let clients: [(&str, Client); 2] = [("python_sdk", python), ("typescript_sdk", typescript)];
    let trials = clients.into_iter().flat_map(|(name, client)| {
        [(format!("{name}_over_stdio"), over_stdio as fn(Started)), (format!("{name}_over_http"), over_http)]
            .map(move |(name, play)| match client() {
                None => missing(&name, REMEDY),
                Some(started) => Trial::test(name, move || {
                    play(started);
                    Ok(())
                }),
            })
    });
    trials.collect()
}

fn over_stdio(client: Started) {
    Scene::play(async |scene| {
        let folder = scene.folder.path().join("front");
        std::fs::create_dir(&folder).unwrap();
        let arguments = std::iter::once("stdio".to_owned()).chain(front::command(&folder));
        run(scene, client, arguments.collect()).await;
    });
}

fn over_http(client: Started) {
    Scene::play(async |scene| {
        let door = Door::open(scene).await;
        let url = format!("http://{}/mcp", door.address);
        run(scene, client, vec!["http".to_owned(), url, door.token]).await;
    });
}

async fn run(scene: &Scene, client: Started, arguments: Vec<String>) {
    let path = std::env::var("PATH").unwrap();
    let home = scene.folder.path().to_str().unwrap().to_owned();
    let invocation = Invocation {
        program: client.program,
        arguments: client.arguments.into_iter().chain(arguments).collect(),
        environment: [("PATH".to_owned(), path), ("HOME".to_owned(), home)]
            .into_iter()
            .chain(client.environment)
            .collect(),
        cwd: scene.work(),
        stdin: Vec::new(),
    };
    let ended = invocation.run(LIMIT).await.unwrap();
    assert!(ended.exit == 0 && ended.stdout.ends_with("the end\n"), "{}\n{}", ended.stdout, ended.stderr);
}

fn python() -> Option<Started> {
    let program = tools()?.join("python-2.3.0/bin/python");
    let story = story("story.py");
    program.exists().then(|| Started { program, arguments: vec![story], environment: Vec::new() })
}

fn typescript() -> Option<Started> {
    let modules = node_modules()?;
    let sdk = modules.join("@modelcontextprotocol/sdk").to_str()?.to_owned();
    let environment = vec![("SDK".to_owned(), sdk)];
    Some(Started { program: modules.join("node/bin/node"), arguments: vec![story("story.mjs")], environment })
}

fn story(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mcp/clients").join(name).to_str().unwrap().to_owned()
}

/// The packages that `scripts/mcp-clients-install` has put there.
pub fn node_modules() -> Option<PathBuf> {
    let modules = tools()?.join("node-1.32.2-0.1.16-24.9.0/node_modules");
    modules.is_dir().then_some(modules)
}

fn tools() -> Option<PathBuf> {
    let named = std::env::var_os("SWITCHBOARD_TOOLS").map(PathBuf::from);
    Some(named.or_else(|| Some(std::env::home_dir()?.join(".cache/switchboard-tools")))?.join("mcp"))
}
