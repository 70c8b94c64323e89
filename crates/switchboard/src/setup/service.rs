//! `switchboard setup service`: prints a user service for systemd or launchd.
//!
//! Installs nothing: the user decides where services are kept and whether they survive a logout. Neither file stops runs when the daemon
//! restarts: runs belong to their supervisors.

use std::env;
use std::fmt::Write;
use std::process::ExitCode;

use super::SetupError;
use crate::cli::Service;
use protocol::{HOME_VARIABLE, ProcessEnvironment};

use crate::exit_status::ExitStatus;
use crate::failure::CommandFailure;
use crate::output;

/// The variables that the service inherits from the shell. Clients look for the daemon of the same state directory, and `PATH` is needed to
/// find agents. Secrets are excluded: other users can query the environment of a service.
const INHERITED_VARIABLES: [&str; 4] = ["PATH", HOME_VARIABLE, "XDG_CONFIG_HOME", "XDG_STATE_HOME"];

/// Prints the file.
pub fn print(args: &Service) -> Result<ExitCode, CommandFailure> {
    let program = env::current_exe().map_err(SetupError::CurrentPaths)?;
    let unsupported = || SetupError::UnsupportedPath { path: program.clone() };
    let path =
        program.to_str().filter(|path| args.launchd || is_valid_for_systemd(path)).ok_or_else(unsupported)?;
    let variables = inherited_variables(&ProcessEnvironment::current());
    output::print(&if args.launchd { plist(path, &variables) } else { unit(path, &variables) });
    Ok(ExitCode::SUCCESS)
}

fn inherited_variables(environment: &ProcessEnvironment) -> Vec<(&'static str, String)> {
    let texts = environment.utf8_variables();
    let set = |name: &'static str| Some((name, texts.get(name).filter(|value| !value.is_empty())?.clone()));
    INHERITED_VARIABLES.into_iter().filter_map(set).collect()
}

fn unit(program: &str, variables: &[(&str, String)]) -> String {
    let mut text = format!(
        "# ~/.config/systemd/user/switchboard.service\n\
         # systemctl --user daemon-reload && systemctl --user enable --now switchboard\n\
         \n\
         [Unit]\n\
         Description=Switchboard, the daemon that places calls to coding agents\n\
         \n\
         [Service]\n\
         Type=exec\n\
         ExecStart={} serve\n",
        quote(program)
    );
    for (name, value) in variables {
        let _ = writeln!(text, "Environment={}", quote(&format!("{name}={value}")));
    }
    let _ = write!(
        text,
        "Restart=on-failure\n\
         # Another daemon holds the state directory and is used instead.\n\
         RestartPreventExitStatus={}\n\
         # Runs belong to their supervisors, which keep running; the next daemon recovers them.\n\
         KillMode=process\n\
         # An agent killed by the OOM killer must not stop the daemon.\n\
         OOMPolicy=continue\n\
         \n\
         [Install]\n\
         WantedBy=default.target\n",
        ExitStatus::DaemonRunning as u8
    );
    text
}

/// Returns whether systemd accepts a program path. It rejects some characters even if escaped.
fn is_valid_for_systemd(program: &str) -> bool {
    !program.chars().any(|letter| letter.is_control() || "\"'\\".contains(letter))
}

/// Quotes a word for systemd, which interprets C escapes and `%` specifiers. `$` is literal in program paths and variable values.
fn quote(word: &str) -> String {
    let mut text = String::from("\"");
    for letter in word.chars() {
        match letter {
            '"' | '\\' => text.extend(['\\', letter]),
            '%' => text.push_str("%%"),
            '\n' => text.push_str("\\n"),
            _ => text.push(letter),
        }
    }
    text.push('"');
    text
}

fn plist(program: &str, variables: &[(&str, String)]) -> String {
    let mut text = format!(
        r#"<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<!-- ~/Library/LaunchAgents/switchboard.plist
     launchctl bootstrap gui/$UID ~/Library/LaunchAgents/switchboard.plist -->
<plist version="1.0">
<dict>
	<key>Label</key>
	<string>switchboard</string>
	<key>ProgramArguments</key>
	<array>
		<string>{}</string>
		<string>serve</string>
	</array>
	<key>EnvironmentVariables</key>
	<dict>
"#,
        escape_xml(program)
    );
    for (name, value) in variables {
        let _ = writeln!(text, "\t\t<key>{name}</key>\n\t\t<string>{}</string>", escape_xml(value));
    }
    text.push_str(
        "\t</dict>
	<key>RunAtLoad</key>
	<true/>
	<key>KeepAlive</key>
	<dict>
		<key>SuccessfulExit</key>
		<false/>
	</dict>
	<!-- Runs belong to their supervisors, which keep running; the next daemon recovers them. -->
	<key>AbandonProcessGroup</key>
	<true/>
</dict>
</plist>
",
    );
    text
}

fn escape_xml(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPECIAL: &str = "/opt/a b/50%/$HOME/<&>/switchboard";

    #[test]
    fn special_characters_are_quoted_in_the_unit() {
        let unit = unit(SPECIAL, &[("PATH", "/b in:/100%/$x".to_owned())]);
        assert!(unit.contains("\nExecStart=\"/opt/a b/50%%/$HOME/<&>/switchboard\" serve\n"), "{unit}");
        assert!(unit.contains("\nEnvironment=\"PATH=/b in:/100%%/$x\"\n"), "{unit}");
        assert!(is_valid_for_systemd(SPECIAL));
        for refused in ["/a/\"b\"", "/it's", "/a\\b", "/a\nb"] {
            assert!(!is_valid_for_systemd(refused), "{refused}");
        }
    }

    #[test]
    fn special_characters_are_escaped_in_the_plist() {
        let text = plist(SPECIAL, &[("PATH", "/a&b".to_owned())]);
        let read = plist::Value::from_reader_xml(text.as_bytes()).unwrap();
        let read = read.as_dictionary().unwrap();
        let words: Vec<_> = read["ProgramArguments"]
            .as_array()
            .unwrap()
            .iter()
            .map(|word| word.as_string().unwrap())
            .collect();
        assert_eq!(words, [SPECIAL, "serve"]);
        assert_eq!(read["EnvironmentVariables"].as_dictionary().unwrap()["PATH"].as_string(), Some("/a&b"));
        assert_eq!(read["KeepAlive"].as_dictionary().unwrap()["SuccessfulExit"].as_boolean(), Some(false));
        assert_eq!(read["AbandonProcessGroup"].as_boolean(), Some(true));
    }

    #[test]
    fn service_inherits_paths_but_no_secrets() {
        let environment: ProcessEnvironment =
            [("PATH", "/bin"), ("XDG_STATE_HOME", "/s"), ("ANTHROPIC_API_KEY", "k"), ("XDG_CONFIG_HOME", "")]
                .into();
        assert_eq!(
            inherited_variables(&environment),
            [("PATH", "/bin".to_owned()), ("XDG_STATE_HOME", "/s".to_owned())]
        );
    }
}
