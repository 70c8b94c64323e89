//! Renders the `--help` text from the table of verbs.

use std::fmt::Write as _;

use crate::verb::{ParameterType, Verb, VerbParameter};

const HEAD: &str = "\
Confined file operations below one directory, the workspace.

  file-tools <workspace> <verb> ...       run one verb
  file-tools <workspace> '<json>'         run one verb given as JSON: {\"verb\": \"read\", \"path\": \"a.txt\"}; `-` reads it from stdin
  file-tools mcp [<workspace>]            serve MCP on stdin and stdout; --verbs read,list,... limits the verbs
  file-tools --help | --schema | --version

The result is one JSON object on stdout, exit code 0; an error is {\"error\": {\"code\", \"message\", \"hint\"}} on stderr, exit code 1.
Without arguments, this text is printed on stderr, exit code 2.
When FILE_TOOLS_ROOT is set, it is the only workspace.

";

const FOOT: &str = "
Never written, created, moved or deleted: .git, .claude, .codex, .gemini, .mcp.json, .envrc, .vscode, HEAD, in upper or lower case.
A name that is not UTF-8 is shown, and accepted, as $'caf\\xe9.txt'.
";

/// Renders the whole text.
pub(crate) fn text() -> String {
    let mut text = HEAD.to_owned();
    for verb in Verb::ALL {
        let shape: Vec<String> = verb.parameters().iter().map(shape).collect();
        // Writing to a `String` cannot fail.
        let _ = writeln!(text, "  {} {}\n      {}", verb.as_str(), shape.join(" "), verb.about());
        for parameter in verb.parameters().iter().filter(|parameter| !parameter.positional) {
            let _ = writeln!(text, "      {}: {}", flag(parameter), parameter.about);
        }
    }
    text + FOOT
}

fn flag(parameter: &VerbParameter) -> String {
    match parameter.kind {
        ParameterType::Edits => {
            "--find TEXT --replace TEXT [--start-line N] ..., or --edits JSON, or JSON on stdin".to_owned()
        }
        ParameterType::Number => format!("--{} N", parameter.name),
        ParameterType::Choice(words) => format!("--{} {}", parameter.name, words.join("|")),
        ParameterType::Text => format!("--{} TEXT", parameter.name),
    }
}

/// Renders the syntax of a parameter on the command line.
pub(crate) fn shape(parameter: &VerbParameter) -> String {
    let shape = if parameter.positional { format!("<{}>", parameter.name) } else { flag(parameter) };
    // Content and edits may come from stdin.
    let optional = !parameter.required || !parameter.positional;
    if optional { format!("[{shape}]") } else { shape }
}
