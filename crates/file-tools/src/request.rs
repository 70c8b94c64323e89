//! Requests, the same for all interfaces.
//!
//! Every interface passes a JSON object; an unknown field is an error.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::rejection::FileRejection;
use crate::verb::Verb;

/// A request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileRequest {
    /// Prints numbered lines of a file.
    Read(ReadRequest),
    /// Creates or replaces a file.
    Write(WriteRequest),
    /// Creates a file.
    Create(WriteRequest),
    /// Replaces parts of a file.
    Patch(PatchRequest),
    /// Deletes a file.
    Delete(DeleteRequest),
    /// Renames a file or directory.
    Move(MoveRequest),
    /// Lists a directory.
    List(ListRequest),
    /// Finds matching lines.
    Search(SearchRequest),
    /// Describes a path.
    Stat(StatRequest),
}

/// See [`Verb::Read`].
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadRequest {
    /// The file.
    pub path: String,
    /// The first line, starting at 1.
    pub offset: Option<u64>,
    /// The maximum number of lines.
    pub limit: Option<u64>,
}

/// See [`Verb::Write`] and [`Verb::Create`].
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WriteRequest {
    /// The file.
    pub path: String,
    /// The whole content.
    #[serde(deserialize_with = "text_as_bytes")]
    pub content: Vec<u8>,
}

fn text_as_bytes<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    String::deserialize(deserializer).map(String::into_bytes)
}

/// See [`Verb::Patch`].
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PatchRequest {
    /// The file.
    pub path: String,
    /// The edits.
    pub edits: Vec<Edit>,
}

/// One edit of a patch.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Edit {
    /// The text to replace.
    pub find: String,
    /// The replacement.
    pub replace: String,
    /// The line on which the match starts, starting at 1.
    pub start_line: Option<u64>,
}

/// See [`Verb::Delete`].
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeleteRequest {
    /// The file.
    pub path: String,
}

/// See [`Verb::Move`].
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MoveRequest {
    /// The old path.
    pub from: String,
    /// The new path.
    pub to: String,
}

/// See [`Verb::List`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListRequest {
    /// The directory.
    #[serde(default)]
    pub path: String,
    /// Selects files below it.
    pub glob: Option<String>,
}

/// See [`Verb::Search`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SearchRequest {
    /// The regular expression.
    pub regex: String,
    /// The directory or file.
    #[serde(default)]
    pub path: String,
    /// Selects files below it.
    pub glob: Option<String>,
    /// The case sensitivity.
    #[serde(default)]
    pub case: CaseSensitivity,
    /// The number of context lines around each match.
    #[serde(default)]
    pub context: u64,
    /// The maximum number of matching lines.
    pub max: Option<u64>,
}

/// The case sensitivity of a search.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CaseSensitivity {
    /// Case matters.
    #[default]
    Sensitive,
    /// Case does not matter.
    Insensitive,
    /// Case matters if the expression contains a capital letter.
    Smart,
}

/// See [`Verb::Stat`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatRequest {
    /// The path.
    #[serde(default)]
    pub path: String,
}

impl FileRequest {
    /// Returns the verb of this request.
    pub fn verb(&self) -> Verb {
        match self {
            Self::Read(_) => Verb::Read,
            Self::Write(_) => Verb::Write,
            Self::Create(_) => Verb::Create,
            Self::Patch(_) => Verb::Patch,
            Self::Delete(_) => Verb::Delete,
            Self::Move(_) => Verb::Move,
            Self::List(_) => Verb::List,
            Self::Search(_) => Verb::Search,
            Self::Stat(_) => Verb::Stat,
        }
    }

    /// Parses the parameters of a verb.
    pub fn parse(verb: Verb, parameters: Map<String, Value>) -> Result<Self, FileRejection> {
        let parameters = Value::Object(parameters);
        let request = match verb {
            Verb::Read => ReadRequest::deserialize(parameters).map(Self::Read),
            Verb::Write => WriteRequest::deserialize(parameters).map(Self::Write),
            Verb::Create => WriteRequest::deserialize(parameters).map(Self::Create),
            Verb::Patch => PatchRequest::deserialize(parameters).map(Self::Patch),
            Verb::Delete => DeleteRequest::deserialize(parameters).map(Self::Delete),
            Verb::Move => MoveRequest::deserialize(parameters).map(Self::Move),
            Verb::List => ListRequest::deserialize(parameters).map(Self::List),
            Verb::Search => SearchRequest::deserialize(parameters).map(Self::Search),
            Verb::Stat => StatRequest::deserialize(parameters).map(Self::Stat),
        };
        request.map_err(|mistake| {
            let names: Vec<_> = verb.parameters().iter().map(|parameter| parameter.name).collect();
            FileRejection::invalid(
                format!("`{}` cannot be done so: {mistake}", verb.as_str()),
                format!("its parameters are {}; `--schema` describes them", names.join(", ")),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rejection::RejectionCode;
    use crate::verb::ParameterType;
    use serde_json::json;

    fn full(verb: Verb) -> Map<String, Value> {
        let value = |kind| match kind {
            ParameterType::Text => json!("x"),
            ParameterType::Number => json!(1),
            ParameterType::Choice(words) => json!(words[0]),
            ParameterType::Edits => json!([{"find": "a", "replace": "b", "start_line": 1}]),
        };
        verb.parameters().iter().map(|parameter| (parameter.name.to_owned(), value(parameter.kind))).collect()
    }

    #[test]
    fn verb_table_matches_request_parameters() {
        for verb in Verb::ALL {
            let all = full(verb);
            assert_eq!(FileRequest::parse(verb, all.clone()).unwrap().verb(), verb);
            for parameter in verb.parameters() {
                let mut less = all.clone();
                less.remove(parameter.name);
                assert_eq!(
                    FileRequest::parse(verb, less).is_ok(),
                    !parameter.required,
                    "{verb:?} {}",
                    parameter.name
                );
            }
            let mut more = all;
            more.insert("workspace".to_owned(), json!("/"));
            assert_eq!(FileRequest::parse(verb, more).unwrap_err().code(), RejectionCode::InvalidInput);
        }
    }

    #[test]
    fn every_enum_value_is_parsed() {
        for case in ["sensitive", "insensitive", "smart"] {
            let Value::Object(parameters) = json!({"regex": "a", "case": case}) else { panic!() };
            assert!(FileRequest::parse(Verb::Search, parameters).is_ok());
        }
    }
}
