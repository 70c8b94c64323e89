//! Arguments of every branch, as tables.

use std::collections::BTreeMap;
use std::time::Duration;

use std::sync::Arc;

use agents::{
    AgentProfile, AgentProfiles, Capabilities, Launch, LaunchError, LaunchSetup, ModelTables, WorkspaceFiles,
};
use model::{
    AgentKind, CallPolicy, CallSpec, ExpectedSession, McpServer, Mode, PermissionMode, SessionChoice,
    SettingSource, SettingsChoice, ToolChoice,
};

const OLD: &str = "00000000-0000-4000-8000-00000000000a";
const NEW: &str = "00000000-0000-4000-8000-00000000000b";

fn profile(agent: AgentKind) -> Arc<AgentProfile> {
    Arc::clone(AgentProfiles::default().get(agent).unwrap())
}

/// Returns a setup for [`launch`], which adds the profile of the call's agent.
fn setup() -> LaunchSetup {
    LaunchSetup {
        profile: profile(AgentKind::Claude),
        images: Vec::new(),
        program: "/bin/agent".into(),
        version: None,
        capabilities: Capabilities::NotAsked,
        models: ModelTables::default(),
        inherited: [("PATH", "/bin"), ("CLAUDECODE", "1"), ("LD_PRELOAD", "x"), ("MY_KEY", "k")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
        pass_on: ["MY_KEY", "ABSENT"].map(str::to_owned).into(),
        private_directory: "/spool/private".into(),
        workspace: WorkspaceFiles::default(),
        tool_timeout: None,
        checkout: None,
        new_session: NEW.parse().unwrap(),
        host: agents::HostConfig::default(),
    }
}

fn spec(agent: AgentKind) -> CallSpec {
    CallSpec { policy: CallPolicy::off(), ..CallSpec::new(agent, "hi", "/w") }
}

fn launch(spec: &CallSpec, setup: &LaunchSetup) -> Result<Launch, LaunchError> {
    agents::launch(spec, &LaunchSetup { profile: profile(spec.agent), ..setup.clone() })
}

fn launched(spec: &CallSpec) -> Launch {
    launch(spec, &setup()).unwrap_or_else(|error| panic!("{error}: {spec:?}"))
}

fn args(spec: &CallSpec) -> String {
    launched(spec).plan.args.join(" ")
}

fn refused(spec: &CallSpec) -> LaunchError {
    let error = launch(spec, &setup()).expect_err("it should be refused");
    assert!(!error.hint().is_empty() && !error.hint().contains('\n'), "{error}");
    assert!(error.to_string().starts_with(|c: char| !c.is_uppercase()), "{error}");
    error
}

fn server(name: &str) -> McpServer {
    McpServer {
        name: name.into(),
        command: "/bin/srv".into(),
        args: vec!["--root".into(), "a \"b\"".into()],
        env: BTreeMap::from([("TOKEN".into(), "sekret".into())]),
    }
}

fn resume() -> SessionChoice {
    SessionChoice::Resume(OLD.parse().unwrap())
}

fn fork() -> SessionChoice {
    SessionChoice::Fork(OLD.parse().unwrap())
}

mod claude;

mod codex;

mod gemini;
mod policy;
mod profiled;

mod every_agent;
