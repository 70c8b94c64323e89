//! The table of verbs and parameters from which the command line, `--help`, `--schema` and the MCP tools are derived.
//!
//! Only describes: `request` parses requests, and each verb is implemented in the module of its name.

use serde_json::{Map, Value, json};

use crate::lock::Reach;

/// A verb.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    /// Prints numbered lines of a file.
    Read,
    /// Creates or replaces a file.
    Write,
    /// Creates a file.
    Create,
    /// Replaces parts of a file, all or none.
    Patch,
    /// Deletes a file.
    Delete,
    /// Renames a file or directory.
    Move,
    /// Lists a directory.
    List,
    /// Finds lines that match a regular expression.
    Search,
    /// Describes a path.
    Stat,
}

/// The type of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ParameterType {
    Text,
    Number,
    /// One of these values.
    Choice(&'static [&'static str]),
    /// The edits of a patch.
    Edits,
}

/// One parameter of a verb.
#[derive(Debug, Clone, Copy)]
pub(crate) struct VerbParameter {
    pub(crate) name: &'static str,
    pub(crate) kind: ParameterType,
    /// Required in JSON. On the command line, content and edits may come from stdin instead.
    pub(crate) required: bool,
    /// Positional on the command line instead of a flag.
    pub(crate) positional: bool,
    pub(crate) about: &'static str,
}

const fn positional(name: &'static str, about: &'static str) -> VerbParameter {
    VerbParameter { name, kind: ParameterType::Text, required: true, positional: true, about }
}

const fn optional(name: &'static str, kind: ParameterType, about: &'static str) -> VerbParameter {
    VerbParameter { name, kind, required: false, positional: false, about }
}

const PATH: VerbParameter = positional("path", "relative to the workspace");
const FOLDER: VerbParameter = VerbParameter {
    required: false,
    ..positional("path", "relative to the workspace; default: the workspace itself")
};
const CONTENT: VerbParameter = VerbParameter {
    required: true,
    ..optional("content", ParameterType::Text, "the whole text; on the command line, stdin by default")
};
const GLOB: VerbParameter = optional(
    "glob",
    ParameterType::Text,
    "only these files: `*.rs` matches names at any depth, `src/**/*.rs` paths below the directory",
);

impl Verb {
    /// All verbs.
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

    /// Returns the name.
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

    /// Returns the verb with a name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|verb| verb.as_str() == name)
    }

    /// Returns the access that the verb needs.
    pub fn reach(self) -> Reach {
        match self {
            Self::Read | Self::List | Self::Search | Self::Stat => Reach::Read,
            Self::Write | Self::Create | Self::Patch | Self::Delete | Self::Move => Reach::Write,
        }
    }

    /// Returns whether the verb can remove existing data.
    pub(crate) fn is_destructive(self) -> bool {
        matches!(self, Self::Write | Self::Patch | Self::Delete | Self::Move)
    }

    /// Returns the description for people and models.
    pub(crate) fn about(self) -> &'static str {
        match self {
            Self::Read => {
                "Read a text file. Returns numbered lines (`number<TAB>line`), the number of lines, and whether some were omitted."
            }
            Self::Write => {
                "Write a whole file atomically and replace an existing one. Creates missing directories."
            }
            Self::Create => "Create a new file. Fails if the path exists. Creates missing directories.",
            Self::Patch => {
                "Replace parts of a file, all or none. Each `find` must occur exactly once in the file, or once on its `start_line`."
            }
            Self::Delete => "Delete a file or a link. Directories are not deleted.",
            Self::Move => {
                "Rename a file or a directory. Fails if the new path exists. Creates missing directories."
            }
            Self::List => {
                "List a directory; with `glob`, all matching files below it that .gitignore does not exclude."
            }
            Self::Search => {
                "Find lines that match a regular expression, in files that .gitignore does not exclude."
            }
            Self::Stat => "Describe a path: type, size, mode, time, and whether it is writable.",
        }
    }

    pub(crate) fn parameters(self) -> &'static [VerbParameter] {
        match self {
            Self::Read => {
                const {
                    &[
                        PATH,
                        optional("offset", ParameterType::Number, "the first line to read, from 1"),
                        optional("limit", ParameterType::Number, "maximum number of lines; default 2000"),
                    ]
                }
            }
            Self::Write | Self::Create => const { &[PATH, CONTENT] },
            Self::Patch => {
                const {
                    &[
                        PATH,
                        VerbParameter {
                            required: true,
                            ..optional(
                                "edits",
                                ParameterType::Edits,
                                "the edits; all refer to the file as it is now, so they must not overlap",
                            )
                        },
                    ]
                }
            }
            Self::Delete => const { &[PATH] },
            Self::Move => {
                const {
                    &[
                        positional("from", "the present path, relative to the workspace"),
                        positional("to", "the new path, relative to the workspace"),
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
                            ParameterType::Choice(&["sensitive", "insensitive", "smart"]),
                            "`smart` ignores case unless the expression has an upper-case letter; default `sensitive`",
                        ),
                        optional(
                            "context",
                            ParameterType::Number,
                            "number of lines around each match, at most 20",
                        ),
                        optional(
                            "max",
                            ParameterType::Number,
                            "maximum number of matching lines; default 100",
                        ),
                    ]
                }
            }
            Self::Stat => const { &[FOLDER] },
        }
    }

    /// Returns the JSON Schema of the parameters.
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

impl VerbParameter {
    fn schema(&self) -> Value {
        let mut schema = match self.kind {
            ParameterType::Text => json!({"type": "string"}),
            ParameterType::Number => json!({"type": "integer", "minimum": 0}),
            ParameterType::Choice(words) => json!({"type": "string", "enum": words}),
            ParameterType::Edits => json!({
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "object",
                    "properties": {
                        "find": {"type": "string", "description": "the exact text to replace"},
                        "replace": {"type": "string", "description": "the new text"},
                        "start_line": {
                            "type": "integer",
                            "minimum": 1,
                            "description": "the line on which the text starts, as numbered by `read`; distinguishes equal texts"
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

/// Renders the output of `--schema`.
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
        "error": {"error": {"code": crate::RejectionCode::ALL.map(crate::RejectionCode::as_str), "message": "string", "hint": "string"}},
    })
}
