//! Requests for terminals.

use std::path::PathBuf;

use serde_json::Value;

/// The name of every method has it. In JSON, the slash after it can have two forms.
const MARK: &[u8] = b"terminal";

/// A request of the agent.
#[derive(Debug, PartialEq)]
pub(crate) struct TerminalRequest {
    /// `None` for a notification, which gets no reply.
    pub(crate) id: Option<Value>,
    pub(crate) method: TerminalMethod,
    params: Value,
}

/// The methods of terminals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TerminalMethod {
    Create,
    Output,
    WaitForExit,
    Kill,
    Release,
}

/// The parameters of a new terminal.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TerminalCommand {
    pub(crate) program: String,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) cwd: Option<PathBuf>,
    pub(crate) output_limit: Option<u64>,
}

impl TerminalRequest {
    /// Parses a line of the agent. Returns `None` if it is another message, or none.
    pub(crate) fn parse(line: &[u8]) -> Option<Self> {
        if !line.windows(MARK.len()).any(|window| window == MARK) {
            return None;
        }
        let mut message: Value = serde_json::from_slice(line).ok()?;
        let method = match message.get("method")?.as_str()? {
            "terminal/create" => TerminalMethod::Create,
            "terminal/output" => TerminalMethod::Output,
            "terminal/wait_for_exit" => TerminalMethod::WaitForExit,
            "terminal/kill" => TerminalMethod::Kill,
            "terminal/release" => TerminalMethod::Release,
            _ => return None,
        };
        let id = message.get_mut("id").map(Value::take);
        let params = message.get_mut("params").map(Value::take).unwrap_or_default();
        Some(Self { id, method, params })
    }

    /// Returns the terminal that the request is about.
    pub(crate) fn terminal_id(&self) -> Result<&str, String> {
        self.params["terminalId"].as_str().ok_or_else(|| "`terminalId` is not a string".to_owned())
    }

    /// Returns the command of a new terminal.
    pub(crate) fn command(&self) -> Result<TerminalCommand, String> {
        let params = &self.params;
        let text = |value: &Value, name: &str| match value.as_str() {
            Some(text) if !text.contains('\0') => Ok(text.to_owned()),
            Some(_) => Err(format!("`{name}` contains a NUL character")),
            None => Err(format!("`{name}` is not a string")),
        };
        let program = text(&params["command"], "command")?;
        if program.is_empty() {
            return Err("`command` is empty".to_owned());
        }
        let args = list(params, "args")?.iter().map(|arg| text(arg, "args")).collect::<Result<_, _>>()?;
        let mut env = Vec::new();
        for variable in list(params, "env")? {
            let name = text(&variable["name"], "env.name")?;
            if name.is_empty() || name.contains('=') {
                return Err(format!("`{name}` is not the name of a variable"));
            }
            env.push((name, text(&variable["value"], "env.value")?));
        }
        let cwd = match &params["cwd"] {
            Value::Null => None,
            cwd => Some(PathBuf::from(text(cwd, "cwd")?)),
        };
        let output_limit = match &params["outputByteLimit"] {
            Value::Null => None,
            limit => Some(limit.as_u64().ok_or("`outputByteLimit` is not a number of bytes")?),
        };
        Ok(TerminalCommand { program, args, env, cwd, output_limit })
    }
}

/// Returns a list that may be missing.
fn list<'a>(params: &'a Value, name: &str) -> Result<&'a [Value], String> {
    match &params[name] {
        Value::Null => Ok(&[]),
        Value::Array(list) => Ok(list),
        _ => Err(format!("`{name}` is not a list")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn request(params: &Value) -> TerminalRequest {
        let line = json!({ "id": 1, "method": "terminal/create", "params": params }).to_string();
        TerminalRequest::parse(line.as_bytes()).unwrap()
    }

    #[test]
    fn only_requests_for_terminals_are_taken() {
        let taken = |line: &str| TerminalRequest::parse(line.as_bytes()).map(|request| request.method);
        assert_eq!(taken(r#"{"id":1,"method":"terminal\/kill","params":{}}"#), Some(TerminalMethod::Kill));
        for other in [
            r#"{"id":1,"method":"terminal/resize"}"#,
            r#"{"id":1,"method":"session/update","params":{"method":"terminal/create"}}"#,
            r#"{"id":1,"result":{"method":"terminal/create"}}"#,
            r#"["terminal/create"]"#,
            r#""terminal/create""#,
            "terminal/create {",
            "",
        ] {
            assert_eq!(taken(other), None, "{other}");
        }
    }

    #[test]
    fn id_is_kept_as_it_is() {
        for id in [json!(1), json!("a"), json!(1.5), json!(null), json!({"a": [1]})] {
            let line = json!({ "id": id, "method": "terminal/output" }).to_string();
            assert_eq!(TerminalRequest::parse(line.as_bytes()).unwrap().id, Some(id));
        }
        assert_eq!(TerminalRequest::parse(br#"{"method":"terminal/kill"}"#).unwrap().id, None);
    }

    #[test]
    fn optional_parameters_may_be_missing() {
        let bare = request(&json!({ "command": "ls", "args": null })).command().unwrap();
        let expected = TerminalCommand {
            program: "ls".into(),
            args: Vec::new(),
            env: Vec::new(),
            cwd: None,
            output_limit: None,
        };
        assert_eq!(bare, expected);
    }

    #[test]
    fn malformed_parameter_is_named() {
        for (params, message) in [
            (json!({}), "`command` is not a string"),
            (json!({ "command": "" }), "`command` is empty"),
            (json!({ "command": "a", "args": "b" }), "`args` is not a list"),
            (json!({ "command": "a", "args": [1] }), "`args` is not a string"),
            (json!({ "command": "a\0" }), "`command` contains a NUL character"),
            (
                json!({ "command": "a", "env": [{ "name": "A=B", "value": "" }] }),
                "`A=B` is not the name of a variable",
            ),
            (json!({ "command": "a", "env": [{ "name": "A" }] }), "`env.value` is not a string"),
            (json!({ "command": "a", "cwd": 1 }), "`cwd` is not a string"),
            (json!({ "command": "a", "outputByteLimit": -1 }), "`outputByteLimit` is not a number of bytes"),
        ] {
            assert_eq!(request(&params).command().unwrap_err(), message);
        }
        assert_eq!(request(&json!({})).terminal_id().unwrap_err(), "`terminalId` is not a string");
    }
}
