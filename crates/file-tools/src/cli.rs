//! Parses the command line by the table of verbs into the JSON that the other interfaces accept.
//!
//! Hand-written: setting up a command-line parser takes longer than executing a verb.

use std::ffi::OsString;
use std::io::Read as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;

use serde_json::{Map, Value, json};

use crate::contents::FILE_LIMIT;
use crate::name;
use crate::rejection::FileRejection;
use crate::request::FileRequest;
use crate::verb::{ParameterType, Verb, VerbParameter};

/// A request contains at most one file, and JSON escapes one byte with up to six characters.
const LONGEST_REQUEST: u64 = 6 * FILE_LIMIT;

/// A parsed command line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FileToolsInvocation {
    /// Prints the help as an error: there are no arguments.
    Usage,
    Help,
    Schema,
    Version,
    /// Executes one request.
    Once {
        workspace: PathBuf,
        asked: CliRequest,
    },
    /// Runs the MCP server.
    Serve {
        workspace: Option<PathBuf>,
        verbs: Vec<Verb>,
    },
}

/// A request whose content may still have to be read from stdin.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CliRequest {
    /// Command-line arguments.
    Words { verb: Verb, parameters: Map<String, Value> },
    /// JSON.
    Json(String),
    /// JSON on stdin.
    JsonOnStdin,
}

/// Parses the arguments after the program name.
pub(crate) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<FileToolsInvocation, FileRejection> {
    let mut args = args.into_iter();
    let Some(first) = args.next() else { return Ok(FileToolsInvocation::Usage) };
    match first.to_str() {
        Some("--help" | "-h" | "help") => return Ok(FileToolsInvocation::Help),
        Some("--schema") => return Ok(FileToolsInvocation::Schema),
        Some("--version" | "-V") => return Ok(FileToolsInvocation::Version),
        Some("mcp") => return serve(args),
        Some(flag) if flag.starts_with('-') => return Err(usage(format!("`{flag}` is not a workspace"))),
        _ => {}
    }
    let workspace = PathBuf::from(first);
    let Some(second) = args.next() else { return Err(usage("a workspace and no verb".to_owned())) };
    let Some(second) = second.to_str() else { return Err(usage("the verb is not valid UTF-8".to_owned())) };
    match second {
        "--help" | "-h" => return Ok(FileToolsInvocation::Help),
        "--schema" => return Ok(FileToolsInvocation::Schema),
        "-" => return Ok(FileToolsInvocation::Once { workspace, asked: CliRequest::JsonOnStdin }),
        json if json.trim_start().starts_with('{') => {
            return Ok(FileToolsInvocation::Once { workspace, asked: CliRequest::Json(json.to_owned()) });
        }
        _ => {}
    }
    let Some(verb) = Verb::parse(second) else { return Err(usage(format!("`{second}` is not a verb"))) };
    Ok(match words(verb, args)? {
        None => FileToolsInvocation::Help,
        Some(parameters) => {
            FileToolsInvocation::Once { workspace, asked: CliRequest::Words { verb, parameters } }
        }
    })
}

fn usage(what: String) -> FileRejection {
    let verbs = Verb::ALL.map(Verb::as_str).join(", ");
    FileRejection::invalid(
        what,
        format!("file-tools <workspace> <verb> ..., where a verb is one of {verbs}; see `--help`"),
    )
}

fn serve(args: impl Iterator<Item = OsString>) -> Result<FileToolsInvocation, FileRejection> {
    let mut args = args;
    let (mut workspace, mut verbs) = (None, Verb::ALL.to_vec());
    while let Some(arg) = args.next() {
        match arg.to_str() {
            Some("--help" | "-h") => return Ok(FileToolsInvocation::Help),
            Some("--verbs") => {
                let names =
                    args.next().ok_or_else(|| usage("`--verbs` needs at least one verb".to_owned()))?;
                verbs = some_verbs(&names.to_string_lossy())?;
            }
            Some(flag) if flag.starts_with("--verbs=") => verbs = some_verbs(&flag["--verbs=".len()..])?,
            Some(flag) if flag.starts_with('-') => {
                return Err(usage(format!("`mcp` has no option `{flag}`")));
            }
            _ if workspace.is_none() => workspace = Some(PathBuf::from(arg)),
            _ => return Err(usage("`mcp` serves one workspace".to_owned())),
        }
    }
    Ok(FileToolsInvocation::Serve { workspace, verbs })
}

fn some_verbs(names: &str) -> Result<Vec<Verb>, FileRejection> {
    let mut verbs = Vec::new();
    for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        verbs.push(Verb::parse(name).ok_or_else(|| usage(format!("`{name}` is not a verb")))?);
    }
    verbs.sort_unstable();
    verbs.dedup();
    if verbs.is_empty() { Err(usage("`--verbs` needs at least one verb".to_owned())) } else { Ok(verbs) }
}

/// Parses the parameters of a verb. Returns `None` for `--help`.
fn words(
    verb: Verb,
    args: impl Iterator<Item = OsString>,
) -> Result<Option<Map<String, Value>>, FileRejection> {
    let mut words = Words { verb, parameters: Map::new(), edits: Vec::new() };
    let mut args = args;
    let mut flags_over = false;
    while let Some(arg) = args.next() {
        match flag_of(&arg).filter(|_| !flags_over) {
            None => words.by_position(arg)?,
            Some((name, _)) if name.is_empty() => flags_over = true,
            Some((name, _)) if name == "help" => return Ok(None),
            Some((name, value)) => {
                let value = value.or_else(|| args.next());
                words.by_name(
                    &name,
                    value.ok_or_else(|| words.mistake(&format!("`--{name}` has no value")))?,
                )?;
            }
        }
    }
    words.finish().map(Some)
}

/// Splits an argument into the name of a flag and its attached value.
fn flag_of(arg: &OsString) -> Option<(String, Option<OsString>)> {
    let rest = arg.as_bytes().strip_prefix(b"--")?;
    let mut halves = rest.splitn(2, |&byte| byte == b'=');
    let name = String::from_utf8_lossy(halves.next()?).into_owned();
    Some((name, halves.next().map(|value| OsString::from_vec(value.to_vec()))))
}

struct Words {
    verb: Verb,
    parameters: Map<String, Value>,
    edits: Vec<Map<String, Value>>,
}

impl Words {
    fn mistake(&self, what: &str) -> FileRejection {
        let shape: Vec<String> = self.verb.parameters().iter().map(crate::help::shape).collect();
        FileRejection::invalid(
            what,
            format!("file-tools <workspace> {} {}", self.verb.as_str(), shape.join(" ")),
        )
    }

    fn by_position(&mut self, value: OsString) -> Result<(), FileRejection> {
        let mut positions = self.verb.parameters().iter().filter(|parameter| parameter.positional);
        let Some(parameter) = positions.find(|parameter| !self.parameters.contains_key(parameter.name))
        else {
            return Err(self.mistake(&format!("`{}` is one argument too many", value.to_string_lossy())));
        };
        self.set(parameter, value)
    }

    fn by_name(&mut self, name: &str, value: OsString) -> Result<(), FileRejection> {
        let name = name.replace('-', "_");
        if self.verb == Verb::Patch && matches!(&*name, "find" | "replace" | "start_line") {
            return self.edit(&name, value);
        }
        match self.verb.parameters().iter().find(|parameter| parameter.name == name) {
            Some(parameter) if !self.parameters.contains_key(parameter.name) => self.set(parameter, value),
            Some(_) => Err(self.mistake(&format!("`--{name}` is given twice"))),
            None => Err(self.mistake(&format!("`{}` has no flag `--{name}`", self.verb.as_str()))),
        }
    }

    fn set(&mut self, parameter: &'static VerbParameter, value: OsString) -> Result<(), FileRejection> {
        let value = match parameter.kind {
            ParameterType::Number => self.number(parameter.name, &value)?,
            ParameterType::Edits => self.edits_as_json(&value)?,
            // A path can contain any bytes; the other interfaces write them escaped.
            ParameterType::Text if matches!(parameter.name, "path" | "from" | "to") => {
                Value::String(path(value))
            }
            ParameterType::Text | ParameterType::Choice(_) => {
                Value::String(self.text(parameter.name, value)?)
            }
        };
        self.parameters.insert(parameter.name.to_owned(), value);
        Ok(())
    }

    fn text(&self, name: &str, value: OsString) -> Result<String, FileRejection> {
        value.into_string().map_err(|_| {
            self.mistake(&format!("`{name}` is not UTF-8; content in bytes can come from stdin"))
        })
    }

    fn number(&self, name: &str, value: &OsString) -> Result<Value, FileRejection> {
        let number = value.to_str().and_then(|text| text.parse::<u64>().ok());
        number.map(Value::from).ok_or_else(|| {
            self.mistake(&format!("`{}` of `{name}` is not a number", value.to_string_lossy()))
        })
    }

    fn edits_as_json(&self, value: &OsString) -> Result<Value, FileRejection> {
        let edits = value.to_str().and_then(|text| serde_json::from_str(text).ok());
        edits.ok_or_else(|| self.mistake("`--edits` takes a JSON array of objects with `find` and `replace`"))
    }

    /// Parses a repeated `--find A --replace B [--start-line N]`: each `--find` starts a new edit.
    fn edit(&mut self, name: &str, value: OsString) -> Result<(), FileRejection> {
        let value = match name {
            "start_line" => self.number(name, &value)?,
            _ => Value::String(self.text(name, value)?),
        };
        if name == "find" {
            self.edits.push(Map::new());
        }
        match self.edits.last_mut() {
            Some(edit) if !edit.contains_key(name) => drop(edit.insert(name.to_owned(), value)),
            _ => {
                return Err(
                    self.mistake(&format!("`--{}` without a `--find` before it", name.replace('_', "-")))
                );
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Map<String, Value>, FileRejection> {
        if !self.edits.is_empty() {
            if self.parameters.contains_key("edits") {
                return Err(self.mistake("`--find` and `--edits` together"));
            }
            self.parameters.insert("edits".to_owned(), json!(self.edits));
        }
        let mut positions =
            self.verb.parameters().iter().filter(|parameter| parameter.positional && parameter.required);
        if let Some(missing) = positions.find(|parameter| !self.parameters.contains_key(parameter.name)) {
            return Err(self.mistake(&format!("`{}` wants a `{}`", self.verb.as_str(), missing.name)));
        }
        Ok(self.parameters)
    }
}

/// Escapes a path as the other interfaces do. An escaped path is unchanged.
fn path(value: OsString) -> String {
    match value.into_string() {
        Ok(text) => text,
        Err(bytes) => name::show(bytes.as_bytes()).into_owned(),
    }
}

impl CliRequest {
    /// Completes the request with content from stdin.
    pub(crate) fn complete(self) -> Result<FileRequest, FileRejection> {
        let (verb, mut parameters) = match self {
            Self::Words { verb, parameters } => (verb, parameters),
            Self::Json(text) => from_json(text.as_bytes())?,
            Self::JsonOnStdin => from_json(&stdin(LONGEST_REQUEST)?)?,
        };
        match verb {
            Verb::Write | Verb::Create if !parameters.contains_key("content") => {
                // Bypasses JSON: stdin can contain any bytes.
                let content = stdin(FILE_LIMIT)?;
                parameters.insert("content".to_owned(), json!(""));
                let mut request = FileRequest::parse(verb, parameters)?;
                if let FileRequest::Write(write) | FileRequest::Create(write) = &mut request {
                    write.content = content;
                }
                return Ok(request);
            }
            Verb::Patch if !parameters.contains_key("edits") => {
                let edits = serde_json::from_slice(&stdin(LONGEST_REQUEST)?).map_err(|mistake| {
                    FileRejection::invalid(
                        format!("stdin is not valid JSON: {mistake}"),
                        r#"give the edits there: [{"find": "a", "replace": "b"}]"#,
                    )
                })?;
                parameters.insert("edits".to_owned(), edits);
            }
            _ => {}
        }
        FileRequest::parse(verb, parameters)
    }
}

fn from_json(text: &[u8]) -> Result<(Verb, Map<String, Value>), FileRejection> {
    let hint = r#"write it as in {"verb": "read", "path": "notes/a.txt"}; see `--schema`"#;
    let mut parameters: Map<String, Value> = serde_json::from_slice(text).map_err(|mistake| {
        FileRejection::invalid(format!("the request is not a JSON object: {mistake}"), hint)
    })?;
    let verb = parameters.remove("verb");
    let verb = verb.as_ref().and_then(Value::as_str).and_then(Verb::parse);
    verb.map(|verb| (verb, parameters))
        .ok_or_else(|| FileRejection::invalid("the request has no `verb` that is known", hint))
}

fn stdin(limit: u64) -> Result<Vec<u8>, FileRejection> {
    let mut bytes = Vec::new();
    std::io::stdin().lock().take(limit + 1).read_to_end(&mut bytes).map_err(|refused| {
        FileRejection::invalid("stdin cannot be read", "give the content with a flag").because(refused)
    })?;
    if bytes.len() as u64 > limit {
        Err(FileRejection::too_large("what is on stdin", limit))
    } else {
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &[&str]) -> Result<FileToolsInvocation, FileRejection> {
        parse(line.iter().map(OsString::from))
    }

    fn parameters(line: &[&str]) -> Value {
        match read(line) {
            Ok(FileToolsInvocation::Once { asked: CliRequest::Words { parameters, .. }, .. }) => {
                Value::Object(parameters)
            }
            other => panic!("{line:?}: {other:?}"),
        }
    }

    #[test]
    fn arguments_become_request_parameters() {
        assert_eq!(
            parameters(&["/ws", "read", "notes/a.txt", "--offset", "10", "--limit=50"]),
            json!({"path": "notes/a.txt", "offset": 10, "limit": 50})
        );
        assert_eq!(
            parameters(&["/ws", "search", "--case", "smart", "fn main", "src"]),
            json!({"regex": "fn main", "path": "src", "case": "smart"})
        );
        assert_eq!(
            parameters(&[
                "/ws",
                "patch",
                "a",
                "--find",
                "x",
                "--replace=",
                "--find",
                "y",
                "--replace",
                "z",
                "--start-line",
                "3"
            ]),
            json!({"path": "a", "edits": [{"find": "x", "replace": ""}, {"find": "y", "replace": "z", "start_line": 3}]})
        );
    }

    #[test]
    fn value_may_start_with_dashes() {
        assert_eq!(parameters(&["/ws", "search", "--", "--offset"]), json!({"regex": "--offset"}));
        assert_eq!(parameters(&["/ws", "read", "--path=--x"]), json!({"path": "--x"}));
        assert_eq!(parameters(&["/ws", "read", "-x"]), json!({"path": "-x"}));
    }

    #[test]
    fn non_utf8_path_is_escaped() {
        let args = ["/ws".into(), "read".into(), OsString::from_vec(b"caf\xe9".to_vec())];
        let Ok(FileToolsInvocation::Once { asked: CliRequest::Words { parameters, .. }, .. }) = parse(args)
        else {
            panic!()
        };
        assert_eq!(parameters["path"], r"$'caf\xe9'");
    }

    #[test]
    fn invalid_arguments_are_rejected_with_usage() {
        for line in [
            &["/ws"][..],
            &["/ws", "explode", "a"],
            &["/ws", "read"],
            &["/ws", "read", "a", "b"],
            &["/ws", "read", "a", "--offset", "many"],
            &["/ws", "read", "a", "--offset"],
            &["/ws", "read", "a", "--offset", "1", "--offset", "2"],
            &["/ws", "read", "a", "--colour", "red"],
            &["/ws", "move", "a"],
            &["/ws", "patch", "a", "--replace", "x"],
            &["--colour", "read", "a"],
            &["mcp", "/ws", "/other"],
            &["mcp", "--verbs", "explode"],
            &["mcp", "--verbs", ","],
        ] {
            let refusal = read(line).unwrap_err();
            assert!(refusal.hint().contains("file-tools <workspace>"), "{line:?}: {}", refusal.hint());
        }
    }

    #[test]
    fn server_offers_the_selected_verbs() {
        assert_eq!(
            read(&["mcp", "--verbs", "list,read,list", "/ws"]).unwrap(),
            FileToolsInvocation::Serve { workspace: Some("/ws".into()), verbs: vec![Verb::Read, Verb::List] }
        );
    }

    #[test]
    fn json_argument_is_recognized() {
        assert!(matches!(
            read(&["/ws", " {\"verb\": 1}"]),
            Ok(FileToolsInvocation::Once { asked: CliRequest::Json(_), .. })
        ));
        assert!(matches!(
            read(&["/ws", "-"]),
            Ok(FileToolsInvocation::Once { asked: CliRequest::JsonOnStdin, .. })
        ));
        assert!(from_json(b"[1]").is_err());
        assert!(from_json(br#"{"verb": "explode"}"#).is_err());
    }
}
