//! A request: what a caller wants done, the same from every face.
//!
//! Every face makes a JSON object and hands it in here; an unknown field is a mistake and no request.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::refusal::Refusal;
use crate::verb::Verb;

/// What is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Numbered lines of a file.
    Read(Read),
    /// A file replaced or made.
    Write(Write),
    /// A file made that was not there.
    Create(Write),
    /// Pieces of a file replaced.
    Patch(Patch),
    /// A file removed.
    Delete(Delete),
    /// A file or folder renamed.
    Move(Move),
    /// What is in a folder.
    List(List),
    /// Lines that match.
    Search(Search),
    /// What a path is.
    Stat(Stat),
}

/// See [`Verb::Read`].
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Read {
    /// The file.
    pub path: String,
    /// The first line, counted from 1.
    pub offset: Option<u64>,
    /// How many lines at most.
    pub limit: Option<u64>,
}

/// See [`Verb::Write`] and [`Verb::Create`].
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Write {
    /// The file.
    pub path: String,
    /// All of it.
    #[serde(deserialize_with = "text_as_bytes")]
    pub content: Vec<u8>,
}

fn text_as_bytes<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    String::deserialize(deserializer).map(String::into_bytes)
}

/// See [`Verb::Patch`].
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Patch {
    /// The file.
    pub path: String,
    /// The pieces.
    pub edits: Vec<Edit>,
}

/// One piece of a patch.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Edit {
    /// What is there.
    pub find: String,
    /// What comes in its place.
    pub replace: String,
    /// The line on which it begins, counted from 1.
    pub start_line: Option<u64>,
}

/// See [`Verb::Delete`].
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Delete {
    /// The file.
    pub path: String,
}

/// See [`Verb::Move`].
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Move {
    /// What is renamed.
    pub from: String,
    /// Its new path.
    pub to: String,
}

/// See [`Verb::List`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct List {
    /// The folder.
    #[serde(default)]
    pub path: String,
    /// Which files below it.
    pub glob: Option<String>,
}

/// See [`Verb::Search`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Search {
    /// The regular expression.
    pub regex: String,
    /// The folder or file.
    #[serde(default)]
    pub path: String,
    /// Which files below it.
    pub glob: Option<String>,
    /// Whether case matters.
    #[serde(default)]
    pub case: Case,
    /// How many lines around each match.
    #[serde(default)]
    pub context: u64,
    /// How many matching lines at most.
    pub max: Option<u64>,
}

/// Whether case matters in a search.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Case {
    /// It does.
    #[default]
    Sensitive,
    /// It does not.
    Insensitive,
    /// It does when the expression has a capital.
    Smart,
}

/// See [`Verb::Stat`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stat {
    /// The path.
    #[serde(default)]
    pub path: String,
}

impl Request {
    /// The verb of this request.
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

    /// Reads the parameters of a verb.
    pub fn parse(verb: Verb, parameters: Map<String, Value>) -> Result<Self, Refusal> {
        let parameters = Value::Object(parameters);
        let request = match verb {
            Verb::Read => Read::deserialize(parameters).map(Self::Read),
            Verb::Write => Write::deserialize(parameters).map(Self::Write),
            Verb::Create => Write::deserialize(parameters).map(Self::Create),
            Verb::Patch => Patch::deserialize(parameters).map(Self::Patch),
            Verb::Delete => Delete::deserialize(parameters).map(Self::Delete),
            Verb::Move => Move::deserialize(parameters).map(Self::Move),
            Verb::List => List::deserialize(parameters).map(Self::List),
            Verb::Search => Search::deserialize(parameters).map(Self::Search),
            Verb::Stat => Stat::deserialize(parameters).map(Self::Stat),
        };
        request.map_err(|mistake| {
            let names: Vec<_> = verb.parameters().iter().map(|parameter| parameter.name).collect();
            Refusal::invalid(
                format!("`{}` cannot be done so: {mistake}", verb.as_str()),
                format!("its parameters are {}; `--schema` describes them", names.join(", ")),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refusal::Code;
    use crate::verb::Kind;
    use serde_json::json;

    fn full(verb: Verb) -> Map<String, Value> {
        let value = |kind| match kind {
            Kind::Text => json!("x"),
            Kind::Number => json!(1),
            Kind::Choice(words) => json!(words[0]),
            Kind::Edits => json!([{"find": "a", "replace": "b", "start_line": 1}]),
        };
        verb.parameters().iter().map(|parameter| (parameter.name.to_owned(), value(parameter.kind))).collect()
    }

    #[test]
    fn the_table_of_verbs_and_the_requests_have_the_same_parameters() {
        for verb in Verb::ALL {
            let all = full(verb);
            assert_eq!(Request::parse(verb, all.clone()).unwrap().verb(), verb);
            for parameter in verb.parameters() {
                let mut less = all.clone();
                less.remove(parameter.name);
                assert_eq!(
                    Request::parse(verb, less).is_ok(),
                    !parameter.required,
                    "{verb:?} {}",
                    parameter.name
                );
            }
            let mut more = all;
            more.insert("workspace".to_owned(), json!("/"));
            assert_eq!(Request::parse(verb, more).unwrap_err().code(), Code::InvalidInput);
        }
    }

    #[test]
    fn every_choice_is_understood() {
        for case in ["sensitive", "insensitive", "smart"] {
            let Value::Object(parameters) = json!({"regex": "a", "case": case}) else { panic!() };
            assert!(Request::parse(Verb::Search, parameters).is_ok());
        }
    }
}
