//! The requests before the prompt, and the reading of their replies.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{AcpServer, AcpSession, AcpSpec, VERSION, failure};
use crate::driver::json_rpc::RpcError;
use crate::driver::summary::{ReportedError, ReportedErrorCode};

/// The code for a request that needs a login.
pub(super) const AUTH_REQUIRED: i64 = -32000;
/// The number of names that a message lists.
const MAX_LISTED: usize = 12;

/// The offer of an agent in its reply to `initialize`.
#[derive(Debug, Default)]
pub(super) struct AgentOffer {
    protocol: Option<u64>,
    pub(super) version: Option<String>,
    capabilities: BTreeSet<Capability>,
    /// The ways to log in, as the agent describes them.
    logins: Vec<String>,
}

/// A capability that not every agent has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Capability {
    Load,
    Resume,
    Fork,
    Images,
    Directories,
}

impl AgentOffer {
    fn has(&self, capability: Capability) -> bool {
        self.capabilities.contains(&capability)
    }

    pub(super) fn read(result: &Value) -> Self {
        let capabilities = &result["agentCapabilities"];
        let session = &capabilities["sessionCapabilities"];
        let has = |value: &Value| !value.is_null() && *value != json!(false);
        let offered = [
            (has(&capabilities["loadSession"]), Capability::Load),
            (has(&session["resume"]), Capability::Resume),
            (has(&session["fork"]), Capability::Fork),
            (has(&capabilities["promptCapabilities"]["image"]), Capability::Images),
            (has(&session["additionalDirectories"]), Capability::Directories),
        ];
        let login = |method: &Value| {
            let text = method["description"].as_str().or_else(|| method["name"].as_str())?;
            Some(text.to_owned())
        };
        Self {
            protocol: result["protocolVersion"].as_u64(),
            version: result["agentInfo"]["version"].as_str().map(str::to_owned),
            capabilities: offered
                .into_iter()
                .filter_map(|(has, capability)| has.then_some(capability))
                .collect(),
            logins: result["authMethods"].as_array().into_iter().flatten().filter_map(login).collect(),
        }
    }

    /// Returns whether opening the session prints its history.
    pub(super) fn replays(&self, session: &AcpSession) -> bool {
        matches!(session, AcpSession::Resume(_)) && !self.has(Capability::Resume)
    }
}

/// Returns the parameters of `initialize`. File access is not offered: the agent reads and writes in its sandbox itself.
pub(super) fn initialize(spec: &AcpSpec) -> Value {
    json!({
        "protocolVersion": VERSION,
        "clientCapabilities": {
            "fs": { "readTextFile": false, "writeTextFile": false },
            "terminal": spec.has_terminals,
        },
        "clientInfo": { "name": "switchboard", "title": "Switchboard", "version": env!("CARGO_PKG_VERSION") },
    })
}

/// Returns the request that opens the session.
pub(super) fn open(spec: &AcpSpec, offer: &AgentOffer) -> Result<(&'static str, Value), ReportedError> {
    let protocol = |message: String| Err(failure(ReportedErrorCode::Protocol, message));
    match offer.protocol {
        Some(VERSION) => {}
        Some(other) => {
            return protocol(format!(
                "the agent speaks version {other} of the Agent Client Protocol, not {VERSION}"
            ));
        }
        None => return protocol("the agent's reply to `initialize` has no protocol version".to_owned()),
    }
    let unsupported = |what: &str| {
        Err(failure(ReportedErrorCode::UnsupportedOption, format!("this version of the agent cannot {what}")))
    };
    if !spec.images.is_empty() && !offer.has(Capability::Images) {
        return unsupported("take images");
    }
    let mut params =
        json!({ "cwd": spec.cwd, "mcpServers": spec.mcp_servers.iter().map(server).collect::<Vec<_>>() });
    if !spec.add_dirs.is_empty() {
        if !offer.has(Capability::Directories) {
            return unsupported("work in additional directories");
        }
        params["additionalDirectories"] = json!(spec.add_dirs);
    }
    let (method, session) = match &spec.session {
        AcpSession::New => return Ok(("session/new", params)),
        AcpSession::Resume(id) if offer.has(Capability::Resume) => ("session/resume", id),
        AcpSession::Resume(id) if offer.has(Capability::Load) => ("session/load", id),
        AcpSession::Resume(_) => return unsupported("resume a session"),
        AcpSession::Fork(id) if offer.has(Capability::Fork) => ("session/fork", id),
        AcpSession::Fork(_) => return unsupported("fork a session"),
    };
    params["sessionId"] = json!(session);
    Ok((method, params))
}

fn server(server: &AcpServer) -> Value {
    json!({ "name": server.name, "command": server.command, "args": server.args, "env": [] })
}

/// An option of a session: as a category of configuration options, or in the form of earlier versions of the protocol.
pub(super) struct SessionOption {
    name: &'static str,
    category: &'static str,
    /// The field of the reply, the list in it, the id in an entry, the current id, the request and its parameter.
    earlier: Option<(&'static str, &'static str, &'static str, &'static str, &'static str, &'static str)>,
}

impl SessionOption {
    pub(super) const MODE: Self = Self {
        name: "mode",
        category: "mode",
        earlier: Some(("modes", "availableModes", "id", "currentModeId", "session/set_mode", "modeId")),
    };
    pub(super) const MODEL: Self = Self {
        name: "model",
        category: "model",
        earlier: Some((
            "models",
            "availableModels",
            "modelId",
            "currentModelId",
            "session/set_model",
            "modelId",
        )),
    };
    pub(super) const EFFORT: Self = Self { name: "effort", category: "thought_level", earlier: None };
}

/// Returns the request that sets an option, or `None` if it has the value already. Rejects a value that is not offered.
pub(super) fn choose(
    session: &str,
    opened: &Value,
    choice: &SessionOption,
    wanted: &str,
) -> Result<Option<(&'static str, Value)>, ReportedError> {
    let mut options = opened["configOptions"].as_array().into_iter().flatten();
    if let Some(option) = options.find(|option| option["category"] == choice.category) {
        let values: Vec<(&str, &str)> = flat_options(option).collect();
        let value = find_value(&values, wanted).ok_or_else(|| not_offered(choice.name, wanted, &values))?;
        let request = json!({ "sessionId": session, "configId": option["id"], "value": value });
        return Ok((option["currentValue"] != value).then_some(("session/set_config_option", request)));
    }
    let Some((field, list, id, current, method, parameter)) = choice.earlier else {
        return Err(not_offered(choice.name, wanted, &[]));
    };
    let entries = opened[field][list].as_array().into_iter().flatten();
    let values: Vec<(&str, &str)> = entries
        .filter_map(|entry| Some((entry[id].as_str()?, entry["name"].as_str().unwrap_or_default())))
        .collect();
    let value = find_value(&values, wanted).ok_or_else(|| not_offered(choice.name, wanted, &values))?;
    let request = json!({ "sessionId": session, parameter: value });
    Ok((opened[field][current] != value).then_some((method, request)))
}

/// Returns the values of an option with their names. They may be in groups.
fn flat_options(option: &Value) -> impl Iterator<Item = (&str, &str)> {
    let entries = option["options"].as_array().into_iter().flatten();
    let flat = entries.flat_map(|entry| match entry["options"].as_array() {
        Some(group) => group.iter().collect::<Vec<_>>(),
        None => vec![entry],
    });
    flat.filter_map(|entry| Some((entry["value"].as_str()?, entry["name"].as_str().unwrap_or_default())))
}

/// Finds a value by its id, its name, or the part of its id after the provider.
fn find_value<'a>(values: &[(&'a str, &str)], wanted: &str) -> Option<&'a str> {
    let by = |is_wanted: &dyn Fn(&(&str, &str)) -> bool| {
        values.iter().find(|value| is_wanted(value)).map(|(id, _)| *id)
    };
    by(&|(id, _)| *id == wanted)
        .or_else(|| by(&|(_, name)| name.eq_ignore_ascii_case(wanted)))
        .or_else(|| by(&|(id, _)| id.rsplit('/').next().is_some_and(|end| end.eq_ignore_ascii_case(wanted))))
}

fn not_offered(option: &str, wanted: &str, values: &[(&str, &str)]) -> ReportedError {
    let names: Vec<&str> = values.iter().take(MAX_LISTED).map(|(id, _)| *id).collect();
    let more = if values.len() > MAX_LISTED { ", …" } else { "" };
    let offer = match names.as_slice() {
        [] => format!("it offers no choice of the {option}"),
        names => format!("it offers: {}{more}", names.join(", ")),
    };
    failure(ReportedErrorCode::UnsupportedOption, format!("the agent has no {option} `{wanted}`; {offer}"))
}

/// Returns the model that a session uses.
pub(super) fn current_model(opened: &Value) -> Option<String> {
    let mut options = opened["configOptions"].as_array().into_iter().flatten();
    let current = options.find(|option| option["category"] == "model").map(|option| &option["currentValue"]);
    current.unwrap_or(&opened["models"]["currentModelId"]).as_str().map(str::to_owned)
}

/// Returns the failure of a rejected request.
pub(super) fn rejected(method: &str, error: &RpcError) -> ReportedError {
    failure(ReportedErrorCode::Protocol, format!("the agent rejected `{method}`: {}", error.describe()))
}

/// Returns the failure of a session that could not be opened.
pub(super) fn not_opened(spec: &AcpSpec, offer: &AgentOffer, error: &RpcError) -> ReportedError {
    let message = error.describe();
    if error.code == AUTH_REQUIRED {
        let ways =
            if offer.logins.is_empty() { String::new() } else { format!(" ({})", offer.logins.join("; ")) };
        return failure(ReportedErrorCode::Auth, format!("{message}{ways}"));
    }
    if let AcpSession::Resume(id) | AcpSession::Fork(id) = &spec.session
        && is_unknown_session(error, id)
    {
        return failure(ReportedErrorCode::SessionNotFound, format!("session {id}: {message}"));
    }
    failure(ReportedErrorCode::Other, message)
}

/// Returns whether an error means that a session does not exist. The agents agree on no code.
fn is_unknown_session(error: &RpcError, id: &str) -> bool {
    /// A resource that was not found.
    const NOT_FOUND: i64 = -32002;
    let text = error.describe().to_lowercase();
    let is_about_session = text.contains("session") || text.contains(&id.to_lowercase());
    let is_missing = [
        "not found",
        "no previous",
        "unknown",
        "does not exist",
        "no conversation",
        "no rollout",
        "invalid",
        "no such",
        "failed to load",
        // The only message of opencode.
        "service failure",
    ]
    .iter()
    .any(|phrase| text.contains(phrase));
    error.code == NOT_FOUND || is_about_session && is_missing
}

pub(super) fn not_configured(method: &str, error: &RpcError) -> ReportedError {
    let message = format!("the agent rejected `{method}`: {}", error.describe());
    failure(ReportedErrorCode::UnsupportedOption, message)
}

pub(super) fn without_session() -> ReportedError {
    failure(ReportedErrorCode::Protocol, "the agent opened a session without an id")
}
