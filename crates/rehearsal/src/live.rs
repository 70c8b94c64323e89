//! The client of a live protocol, at the other end of the standard streams.
//!
//! Answers the requests before a prompt, with scripted faults, and waits for prompts and replies. `voice` formats the turn itself.

use std::collections::VecDeque;
use std::io::{self, BufRead};

use serde_json::{Value, json};

use crate::args::RehearsalOptions;
use crate::mistake::Mishap;
use crate::opening::OpeningFault;
use crate::voice::{ToolCall, ToolInput, VoiceVendor, new_session_id};
use crate::wire::StandardStream;

/// The models that a client can choose.
const MODELS: [&str; 3] = ["rehearsal", "fast", "slow"];

/// A prompt of the client.
#[derive(Debug)]
pub(crate) struct LivePrompt {
    pub(crate) text: String,
    /// The id of its request, as JSON.
    pub(crate) id: String,
}

/// The client.
#[derive(Debug)]
pub(crate) struct LiveClient {
    vendor: VoiceVendor,
    faults: Vec<OpeningFault>,
    /// The session that the client opened, and the model that it chose.
    pub(crate) session: Option<String>,
    pub(crate) model: Option<String>,
    /// The messages that came while a reply was awaited.
    waiting: VecDeque<Value>,
    requests: u32,
}

impl LiveClient {
    pub(crate) fn new(options: &RehearsalOptions) -> Self {
        Self {
            vendor: options.vendor,
            faults: options.opening_faults.clone(),
            // The id of each turn of claude, even if it is not given.
            session: options.session.clone().or_else(|| Some(new_session_id())),
            model: options.model.clone(),
            waiting: VecDeque::new(),
            requests: 0,
        }
    }

    /// Returns the next prompt, or `None` at the end of the input.
    pub(crate) fn next_prompt(&mut self) -> Result<Option<LivePrompt>, Mishap> {
        if self.has(&OpeningFault::Banner) {
            self.faults.retain(|fault| *fault != OpeningFault::Banner);
            print("Welcome to the rehearsal!\n\n[32mloading…[0m {not json\n")?;
        }
        while let Some(message) = self.next_message()? {
            let prompt = match self.vendor {
                VoiceVendor::Claude => claude(&message)?,
                VoiceVendor::Codex => self.app_server(&message)?,
                _ => self.acp(&message)?,
            };
            if prompt.is_some() {
                return Ok(prompt);
            }
        }
        Ok(None)
    }

    /// Returns an id for the next request to the client.
    pub(crate) fn next_request(&mut self) -> Value {
        self.requests += 1;
        match self.vendor {
            VoiceVendor::Claude => json!(format!("request-{}", self.requests)),
            _ => json!(self.requests),
        }
    }

    /// Waits for the reply to a request. Returns `null` at the end of the input.
    pub(crate) fn wait_for_reply(&mut self, request: &Value) -> Result<Value, Mishap> {
        loop {
            let Some(message) = read_message()? else { return Ok(Value::Null) };
            let id = match self.vendor {
                VoiceVendor::Claude => &message["response"]["request_id"],
                _ => &message["id"],
            };
            if message["method"].is_null() && id == request {
                return Ok(message);
            }
            self.waiting.push_back(message);
        }
    }

    /// Runs a command in a terminal of the client, as a use of the tool `Bash`.
    pub(crate) fn run_in_terminal(&mut self, command: &str) -> Result<ToolCall, Mishap> {
        let call = |failed: bool, result: &Value| ToolCall {
            name: "Bash".to_owned(),
            input: ToolInput::Command(command.to_owned()),
            result: result.as_str().unwrap_or_default().to_owned(),
            failed,
        };
        let shell = json!({ "command": "/bin/sh", "args": ["-c", command], "cwd": crate::sight::working_directory() });
        let created = self.ask("terminal/create", shell)?;
        let terminal = &created["result"]["terminalId"];
        if terminal.is_null() {
            return Ok(call(true, &created["error"]["message"]));
        }
        let terminal = json!({ "terminalId": terminal });
        let exit = self.ask("terminal/wait_for_exit", terminal.clone())?;
        let output = self.ask("terminal/output", terminal.clone())?;
        self.ask("terminal/release", terminal)?;
        Ok(call(exit["result"]["exitCode"] != 0, &output["result"]["output"]))
    }

    /// Sends a request about the session, and returns the reply.
    fn ask(&mut self, method: &str, mut params: Value) -> Result<Value, Mishap> {
        let id = self.next_request();
        params["sessionId"] = json!(self.session);
        print(&format!("{}\n", json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })))?;
        self.wait_for_reply(&id)
    }

    fn next_message(&mut self) -> Result<Option<Value>, Mishap> {
        match self.waiting.pop_front() {
            Some(message) => Ok(Some(message)),
            None => read_message(),
        }
    }

    fn has(&self, fault: &OpeningFault) -> bool {
        self.faults.contains(fault)
    }

    /// Plays the faults of a request. Returns whether it is answered by them.
    fn is_faulty(&self, message: &Value, method: &str) -> Result<bool, Mishap> {
        let name = method.to_owned();
        if self.has(&OpeningFault::Exit(name.clone())) {
            std::process::exit(1);
        }
        if self.has(&OpeningFault::Reject(name.clone())) {
            self.reject(message, -32603, &format!("the rehearsed rejection of {method}"))?;
            return Ok(true);
        }
        Ok(self.has(&OpeningFault::Silent(name)))
    }

    fn acp(&mut self, message: &Value) -> Result<Option<LivePrompt>, Mishap> {
        let (Some(method), params) = (message["method"].as_str(), &message["params"]) else {
            return Ok(None);
        };
        if self.is_faulty(message, method)? {
            return Ok(None);
        }
        let given = params["sessionId"].as_str().map(str::to_owned);
        match method {
            "initialize" => self.accept(message, &self.acp_offer())?,
            "session/new" | "session/load" | "session/resume" | "session/fork" => {
                if self.has(&OpeningFault::LoggedOut) {
                    self.reject(message, -32000, "Authentication required")?;
                    return Ok(None);
                }
                if self.has(&OpeningFault::UnknownSession) && method != "session/new" {
                    self.reject(
                        message,
                        -32002,
                        &format!("Session not found: {}", given.unwrap_or_default()),
                    )?;
                    return Ok(None);
                }
                let is_copy = matches!(method, "session/new" | "session/fork");
                let session = given.filter(|_| !is_copy).unwrap_or_else(new_session_id);
                self.session = Some(session.clone());
                if method == "session/load" {
                    replay(&session, &["earlier question", "earlier answer"])?;
                }
                let mut opened = json!({ "configOptions": self.acp_options() });
                opened["sessionId"] = json!(session);
                self.accept(message, &opened)?;
                if method == "session/load" && self.has(&OpeningFault::HalfReplay) {
                    replay(&session, &["later question", "later answer"])?;
                }
                self.stop_listening();
            }
            "session/set_config_option" => {
                if params["configId"] == "model" {
                    self.model = params["value"].as_str().map(str::to_owned);
                }
                self.accept(message, &json!({ "configOptions": self.acp_options() }))?;
            }
            "session/prompt" => {
                let blocks = params["prompt"].as_array().into_iter().flatten();
                let text: Vec<&str> = blocks.filter_map(|block| block["text"].as_str()).collect();
                return Ok(Some(LivePrompt { text: text.join("\n"), id: message["id"].to_string() }));
            }
            _ if !message["id"].is_null() => self.reject(message, -32601, "Method not found")?,
            _ => {}
        }
        Ok(None)
    }

    fn acp_offer(&self) -> Value {
        let version = self.faults.iter().find_map(|fault| match fault {
            OpeningFault::Version(version) => Some(*version),
            _ => None,
        });
        let sessions =
            if self.has(&OpeningFault::HalfReplay) { json!({}) } else { json!({ "resume": {}, "fork": {} }) };
        json!({
            "protocolVersion": version.unwrap_or(1),
            "agentCapabilities": {
                "loadSession": true,
                "promptCapabilities": { "image": true },
                "sessionCapabilities": sessions,
            },
            "agentInfo": { "name": "rehearsal", "version": env!("CARGO_PKG_VERSION") },
            "authMethods": [{ "id": "login", "name": "Log in", "description": "run `rehearsal login`" }],
        })
    }

    fn acp_options(&self) -> Value {
        let option = |id: &str, category: &str, current: &str, values: &[&str]| {
            let values: Vec<Value> =
                values.iter().map(|value| json!({ "value": value, "name": value })).collect();
            json!({ "id": id, "name": id, "category": category, "type": "select", "currentValue": current, "options": values })
        };
        json!([
            option("model", "model", self.model.as_deref().unwrap_or(MODELS[0]), &MODELS),
            option("effort", "thought_level", "low", &["low", "high"]),
        ])
    }

    fn app_server(&mut self, message: &Value) -> Result<Option<LivePrompt>, Mishap> {
        let (Some(method), params) = (message["method"].as_str(), &message["params"]) else {
            return Ok(None);
        };
        if self.is_faulty(message, method)? {
            return Ok(None);
        }
        match method {
            "initialize" => self.accept(message, &json!({ "userAgent": "rehearsal" }))?,
            "thread/start" | "thread/resume" | "thread/fork" => {
                let given = params["threadId"].as_str();
                if self.has(&OpeningFault::UnknownSession) && given.is_some() {
                    let text = format!("no rollout found for thread id {}", given.unwrap_or_default());
                    self.reject(message, -32600, &text)?;
                    return Ok(None);
                }
                let resumed = given.filter(|_| method == "thread/resume").map(str::to_owned);
                let thread = resumed.unwrap_or_else(new_session_id);
                self.model = params["model"].as_str().map(str::to_owned).or(self.model.take());
                self.session = Some(thread.clone());
                let model = self.model.as_deref().unwrap_or(MODELS[0]);
                self.accept(message, &json!({ "thread": { "id": thread }, "model": model }))?;
                self.stop_listening();
            }
            "turn/start" => {
                let input = params["input"].as_array().into_iter().flatten();
                let text: Vec<&str> = input.filter_map(|item| item["text"].as_str()).collect();
                let turn = json!({ "turn": { "id": "turn-1", "status": "inProgress", "error": null } });
                self.accept(message, &turn)?;
                return Ok(Some(LivePrompt { text: text.join("\n"), id: message["id"].to_string() }));
            }
            _ if !message["id"].is_null() => self.reject(message, -32601, "Method not found")?,
            _ => {}
        }
        Ok(None)
    }

    fn stop_listening(&self) {
        while self.has(&OpeningFault::Deaf) {
            std::thread::park();
        }
    }

    fn accept(&self, message: &Value, result: &Value) -> Result<(), Mishap> {
        self.reply(message, "result", result)
    }

    fn reject(&self, message: &Value, code: i64, text: &str) -> Result<(), Mishap> {
        self.reply(message, "error", &json!({ "code": code, "message": text }))
    }

    fn reply(&self, message: &Value, field: &str, value: &Value) -> Result<(), Mishap> {
        let mut reply = json!({ "id": message["id"], field: value });
        if self.vendor == VoiceVendor::Acp {
            reply["jsonrpc"] = json!("2.0");
        }
        print(&format!("{reply}\n"))
    }
}

fn claude(message: &Value) -> Result<Option<LivePrompt>, Mishap> {
    if message["type"] == "control_request" {
        let response = json!({ "subtype": "success", "request_id": message["request_id"], "response": {} });
        print(&format!("{}\n", json!({ "type": "control_response", "response": response })))?;
    }
    if message["type"] != "user" {
        return Ok(None);
    }
    let content = &message["message"]["content"];
    let blocks = content.as_array().into_iter().flatten().filter_map(|block| block["text"].as_str());
    let text: Vec<&str> = content.as_str().into_iter().chain(blocks).collect();
    Ok(Some(LivePrompt { text: text.join("\n"), id: "null".to_owned() }))
}

fn replay(session: &str, texts: &[&str]) -> Result<(), Mishap> {
    for text in texts {
        let update =
            json!({ "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": text } });
        let params = json!({ "sessionId": session, "update": update });
        print(&format!("{}\n", json!({ "jsonrpc": "2.0", "method": "session/update", "params": params })))?;
    }
    Ok(())
}

fn print(text: &str) -> Result<(), Mishap> {
    StandardStream::Stdout.write(text.as_bytes()).map_err(Mishap::refused("stdout"))
}

/// Reads the next line with JSON, or returns `None` at the end of the input.
fn read_message() -> Result<Option<Value>, Mishap> {
    loop {
        let mut line = Vec::new();
        let count = io::stdin().lock().read_until(b'\n', &mut line).map_err(Mishap::refused("stdin"))?;
        if count == 0 {
            return Ok(None);
        }
        if let Ok(message) = serde_json::from_slice(&line) {
            return Ok(Some(message));
        }
    }
}
