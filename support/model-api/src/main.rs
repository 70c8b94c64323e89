//! `model-api`: runs the scripted server by hand, to try a CLI; and the MCP server that tests pass to the CLIs.
//!
//! Prints the base URL, then every request as a line of JSON.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use model_api::{Call, ModelApi, ModelRequest, ModelTurn, Script, mcp_echo};
use serde_json::json;

const USAGE: &str = "\
usage: model-api [--port N] SCRIPT
       model-api --mcp-echo                serve one MCP tool, `say`, on stdin and stdout

scripts:
  text TEXT                  say TEXT
  slow TEXT                  say TEXT, a word a second
  shell COMMAND TEXT         run COMMAND with the CLI's shell tool, then say TEXT
  tool NAME JSON TEXT        call a tool with this input, then say TEXT
  mcp SERVER TOOL JSON TEXT  call a tool of an MCP server, then say TEXT
  endless COMMAND            run COMMAND again and again
  status N [SECONDS]         refuse with HTTP status N, and a retry-after
  overloaded                 refuse as the vendor does when it is overloaded
  hang                       never answer
  hang-after TEXT            say TEXT, then fall silent
  cut-after TEXT             say TEXT, then cut the connection
  obey                       do what the prompt says: a line `$ COMMAND` runs it, `& COMMAND` starts it in the
                             background, `! TOOL JSON` calls a tool, all other lines are the answer
";

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments.as_slice() {
        ["--mcp-echo"] => mcp_echo::serve(io::stdin().lock(), io::stdout().lock()),
        ["--port", port, rest @ ..] => match (port.parse(), script(rest)) {
            (Ok(port), Some(script)) => serve(port, script).await,
            _ => return usage(),
        },
        rest => match script(rest) {
            Some(script) => serve(0, script).await,
            None => return usage(),
        },
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Stderr is gone: the error cannot be reported.
            let _ = writeln!(io::stderr(), "model-api: {error}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    // As above.
    let _ = io::stderr().write_all(USAGE.as_bytes());
    ExitCode::from(2)
}

fn script(words: &[&str]) -> Option<Script> {
    let seconds = |text: &str| text.parse().ok().map(Duration::from_secs);
    Some(match words {
        ["text", text] => Script::text(*text),
        ["slow", text] => Script::always(ModelTurn::slow_text(*text, Duration::from_secs(1))),
        ["shell", command, text] => {
            Script::call_then_text(Call::Shell { command: (*command).to_owned() }, *text)
        }
        ["tool", name, input, text] => {
            let input = serde_json::from_str(input).ok()?;
            Script::call_then_text(Call::Tool { name: (*name).to_owned(), input }, *text)
        }
        ["mcp", server, tool, input, text] => {
            let (server, tool) = ((*server).to_owned(), (*tool).to_owned());
            Script::call_then_text(
                Call::Mcp { server, tool, input: serde_json::from_str(input).ok()? },
                *text,
            )
        }
        ["endless", command] => Script::endless(Call::Shell { command: (*command).to_owned() }),
        ["status", status] => Script::always(ModelTurn::refuse(status.parse().ok()?)),
        ["status", status, wait] => Script::always(ModelTurn::Refuse {
            status: status.parse().ok()?,
            retry_after: Some(seconds(wait)?),
        }),
        ["overloaded"] => Script::always(ModelTurn::Overloaded),
        ["hang"] => Script::always(ModelTurn::HangBeforeFirstByte),
        ["hang-after", text] => Script::always(ModelTurn::hang_after(*text)),
        ["cut-after", text] => Script::always(ModelTurn::cut_after(*text)),
        ["obey"] => Script::obey(),
        _ => return None,
    })
}

async fn serve(port: u16, script: Script) -> io::Result<()> {
    let api = ModelApi::bind(port, script).await?;
    let mut stdout = io::stdout();
    writeln!(stdout, "{}", api.url())?;
    for number in 0.. {
        writeln!(stdout, "{}", line(&api.request(number).await))?;
        stdout.flush()?;
    }
    Ok(())
}

fn line(request: &ModelRequest) -> serde_json::Value {
    let headers: serde_json::Map<_, _> =
        request.headers.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
    json!({
        "method": request.method, "path": request.path, "purpose": format!("{:?}", request.purpose),
        "headers": headers, "body": request.body,
    })
}
