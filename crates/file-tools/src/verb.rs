//! The verbs and their parameters, in one table: the command line, `--help`, `--schema` and the MCP tools are made from it.
//!
//! Only describes. What a request is stands in `request`, what a verb does in the module of its name.

use serde_json::{Map, Value, json};

use crate::lock::Reach;

/// What can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    /// Numbered lines of a file.
    Read,
    /// A file replaced or made.
    Write,
    /// A file made that was not there.
    Create,
    /// Pieces of a file replaced, all or none.
    Patch,
    /// A file removed.
    Delete,
    /// A file or folder renamed.
    Move,
    /// What is in a folder.
    List,
    /// Lines that match a regular expression.
    Search,
    /// What a path is.
    Stat,
}

/// What a parameter takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Text,
    Number,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// The pieces of a patch.
    Edits,
}

/// One parameter of a verb.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parameter {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// In a request as JSON. On the command line, content and edits may come from stdin instead.
    pub(crate) required: bool,
    /// Given on the command line by its position, not by a flag.
    pub(crate) positional: bool,
    pub(crate) about: &'static str,
}

const fn positional(name: &'static str, about: &'static str) -> Parameter {
    Parameter { name, kind: Kind::Text, required: true, positional: true, about }
}

const fn optional(name: &'static str, kind: Kind, about: &'static str) -> Parameter {
    Parameter { name, kind, required: false, positional: false, about }
}

const PATH: Parameter = positional("path", "relative to the workspace");
const FOLDER: Parameter = Parameter {
    required: false,
    ..positional("path", "relative to the workspace; the workspace itself when left out")
};
const CONTENT: Parameter = Parameter {
    required: true,
    ..optional("content", Kind::Text, "the whole text; on the command line it comes from stdin when left out")
};
const GLOB: Parameter = optional(
    "glob",
    Kind::Text,
    "only these files: `*.rs` by name at any depth, `src/**/*.rs` by the path below the folder",
);

impl Verb {
    /// Every verb.
    pub const ALL: [Self; 9] = [
        Self::Read,
        Self::Write,
        Self::Create,
        Self::Patch,
        Self::Delete,
        Self::Move,
        Self::List,
        Self::Search,
        Self::Stat,
    ];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Create => "create",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::Move => "move",
            Self::List => "list",
            Self::Search => "search",
            Self::Stat => "stat",
        }
    }

    /// The verb of a name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|verb| verb.as_str() == name)
    }

    /// What the process must be able to do for it.
    pub fn reach(self) -> Reach {
        match self {
            Self::Read | Self::List | Self::Search | Self::Stat => Reach::Read,
            Self::Write | Self::Create | Self::Patch | Self::Delete | Self::Move => Reach::Write,
        }
    }

    /// Whether something that was there may be gone afterwards.
    pub(crate) fn is_destructive(self) -> bool {
        matches!(self, Self::Write | Self::Patch | Self::Delete | Self::Move)
    }

    /// What it does, for a person and for a model.
    pub(crate) fn about(self) -> &'static str {
        match self {
            Self::Read => {
                "Read a text file. Gives numbered lines (`number<TAB>line`), how many lines there are, and whether some are left out."
            }
            Self::Write => {
                "Write a whole file, in one step, replacing what was there. Makes missing folders."
            }
            Self::Create => {
                "Write a new file. Refuses when something of that name is there. Makes missing folders."
            }
            Self::Patch => {
                "Replace pieces of a file, all or none. Each `find` must be in the file exactly once, or once on its `start_line`."
            }
            Self::Delete => "Delete a file or a link. Folders are not deleted.",
            Self::Move => {
                "Rename a file or a folder. Refuses when something of the new name is there. Makes missing folders."
            }
            Self::List => {
                "List a folder; with `glob`, all files below it that match and are not ignored by .gitignore."
            }
            Self::Search => {
                "Find lines that match a regular expression, in files that .gitignore does not ignore."
            }
            Self::Stat => "Tell what a path is: type, size, mode, time, and whether it may be written.",
        }
    }

    pub(crate) fn parameters(self) -> &'static [Parameter] {
        match self {
            Self::Read => {
                const {
                    &[
                        PATH,
                        optional("offset", Kind::Number, "the first line to read, counted from 1"),
                        optional("limit", Kind::Number, "how many lines at most; 2000 when left out"),
                    ]
                }
            }
            Self::Write | Self::Create => const { &[PATH, CONTENT] },
            Self::Patch => {
                const {
                    &[
                        PATH,
                        Parameter {
                            required: true,
                            ..optional(
                                "edits",
                                Kind::Edits,
                                "the pieces; found in the file as it is, so they must not overlap",
                            )
                        },
                    ]
                }
            }
            Self::Delete => const { &[PATH] },
            Self::Move => {
                const {
                    &[
                        positional("from", "what is renamed, relative to the workspace"),
                        positional("to", "its new path, relative to the workspace"),
                    ]
                }
            }
            Self::List => const { &[FOLDER, GLOB] },
            Self::Search => {
                const {
                    &[
                        positional("regex", "a regular expression, matched line by line"),
                        FOLDER,
                        GLOB,
                        optional(
                            "case",
                            Kind::Choice(&["sensitive", "insensitive", "smart"]),
                            "`smart` minds case only when the expression has a capital; `sensitive` when left out",
                        ),
                        optional("context", Kind::Number, "how many lines around each match, 20 at most"),
                        optional("max", Kind::Number, "how many matching lines at most; 100 when left out"),
                    ]
                }
            }
            Self::Stat => const { &[FOLDER] },
        }
    }

    /// The JSON Schema of its parameters.
    pub(crate) fn schema(self) -> Map<String, Value> {
        let parameters = self.parameters();
        let properties: Map<String, Value> =
            parameters.iter().map(|parameter| (parameter.name.to_owned(), parameter.schema())).collect();
        let required: Vec<_> = parameters
            .iter()
            .filter(|parameter| parameter.required)
            .map(|parameter| parameter.name)
            .collect();
        let mut schema = Map::new();
        schema.insert("type".to_owned(), json!("object"));
        schema.insert("properties".to_owned(), Value::Object(properties));
        schema.insert("required".to_owned(), json!(required));
        schema.insert("additionalProperties".to_owned(), json!(false));
        schema
    }
}

impl Parameter {
    fn schema(&self) -> Value {
        let mut schema = match self.kind {
            Kind::Text => json!({"type": "string"}),
            Kind::Number => json!({"type": "integer", "minimum": 0}),
            Kind::Choice(words) => json!({"type": "string", "enum": words}),
            Kind::Edits => json!({
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "object",
                    "properties": {
                        "find": {"type": "string", "description": "the exact text to replace"},
                        "replace": {"type": "string", "description": "what comes in its place"},
                        "start_line": {
                            "type": "integer",
                            "minimum": 1,
                            "description": "the line on which the text to replace begins, as `read` numbers it; tells equal pieces apart"
                        }
                    },
                    "required": ["find", "replace"],
                    "additionalProperties": false
                }
            }),
        };
        schema["description"] = json!(self.about);
        schema
    }
}

/// What `--schema` prints.
pub(crate) fn schema() -> Value {
    let verbs = Verb::ALL
        .map(|verb| json!({"verb": verb.as_str(), "description": verb.about(), "parameters": verb.schema()}));
    json!({
        "usage": {
            "shell": "file-tools <workspace> <verb> ...",
            "json": "file-tools <workspace> '{\"verb\": ..., ...}'",
            "mcp": "file-tools mcp [<workspace>] [--verbs read,list]",
        },
        "verbs": verbs,
        "error": {"error": {"code": crate::Code::ALL.map(crate::Code::as_str), "message": "string", "hint": "string"}},
    })
}
