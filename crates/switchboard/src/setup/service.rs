//! `switchboard setup service`: the daemon as a service of the user's session, in the words of systemd or launchd.
//!
//! Prints a file and installs nothing: where services live, and whether they outlive a logout, is the user's to say. Neither
//! file lets a restart of the daemon end a run: that is what supervisors are for.

use std::env;
use std::fmt::Write;
use std::process::ExitCode;

use super::SetupError;
use crate::cli::Service;
use protocol::{HOME_VARIABLE, ProcessEnvironment};

use crate::exit_status::ExitStatus;
use crate::failure::CommandFailure;
use crate::output;

/// What a daemon of the session has to know of the shell it is set up from. With another state folder it would be another
/// daemon than the one that front-ends look for; without `PATH` it finds no agent. Secrets are left out: others can ask a
/// service manager for the environment of a service.
const HANDED_ON: [&str; 4] = ["PATH", HOME_VARIABLE, "XDG_CONFIG_HOME", "XDG_STATE_HOME"];

/// Prints the file.
pub fn print(args: &Service) -> Result<ExitCode, CommandFailure> {
    let program = env::current_exe().map_err(SetupError::Folder)?;
    let odd = || SetupError::OddPath { path: program.clone() };
    let path = program.to_str().filter(|path| args.launchd || systemd_takes(path)).ok_or_else(odd)?;
    let variables = handed_on(&ProcessEnvironment::current());
    output::print(&if args.launchd { plist(path, &variables) } else { unit(path, &variables) });
    Ok(ExitCode::SUCCESS)
}

fn handed_on(environment: &ProcessEnvironment) -> Vec<(&'static str, String)> {
    let texts = environment.utf8_variables();
    let set = |name: &'static str| Some((name, texts.get(name).filter(|value| !value.is_empty())?.clone()));
    HANDED_ON.into_iter().filter_map(set).collect()
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
        quoted(program)
    );
    for (name, value) in variables {
        let _ = writeln!(text, "Environment={}", quoted(&format!("{name}={value}")));
    }
    let _ = write!(
        text,
        "Restart=on-failure\n\
         # Another daemon has the state folder: it is used as it is.\n\
         RestartPreventExitStatus={}\n\
         # Runs belong to their supervisors, which stay when the daemon goes; the next daemon takes them up.\n\
         KillMode=process\n\
         # An agent that the kernel ends for want of memory is no reason to end the daemon.\n\
         OOMPolicy=continue\n\
         \n\
         [Install]\n\
         WantedBy=default.target\n",
        ExitStatus::DaemonRunning as u8
    );
    text
}

/// Whether systemd starts a program of that name: it refuses some, escaped or not.
fn systemd_takes(program: &str) -> bool {
    !program.chars().any(|letter| letter.is_control() || "\"'\\".contains(letter))
}

/// One word for systemd, which reads escapes as C does and `%` as the beginning of a specifier. A `$` means nothing in the name
/// of a program or in a variable's value.
fn quoted(word: &str) -> String {
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
        escaped(program)
    );
    for (name, value) in variables {
        let _ = writeln!(text, "\t\t<key>{name}</key>\n\t\t<string>{}</string>", escaped(value));
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
	<!-- Runs belong to their supervisors, which stay when the daemon goes; the next daemon takes them up. -->
	<key>AbandonProcessGroup</key>
	<true/>
</dict>
</plist>
",
    );
    text
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRANGE: &str = "/opt/a b/50%/$HOME/<&>/switchboard";

    #[test]
    fn a_strange_path_is_one_word_of_the_unit() {
        let unit = unit(STRANGE, &[("PATH", "/b in:/100%/$x".to_owned())]);
        assert!(unit.contains("\nExecStart=\"/opt/a b/50%%/$HOME/<&>/switchboard\" serve\n"), "{unit}");
        assert!(unit.contains("\nEnvironment=\"PATH=/b in:/100%%/$x\"\n"), "{unit}");
        assert!(systemd_takes(STRANGE));
        for refused in ["/a/\"b\"", "/it's", "/a\\b", "/a\nb"] {
            assert!(!systemd_takes(refused), "{refused}");
        }
    }

    #[test]
    fn a_strange_path_is_one_text_of_the_property_list() {
        let text = plist(STRANGE, &[("PATH", "/a&b".to_owned())]);
        let read = plist::Value::from_reader_xml(text.as_bytes()).unwrap();
        let read = read.as_dictionary().unwrap();
        let words: Vec<_> = read["ProgramArguments"]
            .as_array()
            .unwrap()
            .iter()
            .map(|word| word.as_string().unwrap())
            .collect();
        assert_eq!(words, [STRANGE, "serve"]);
        assert_eq!(read["EnvironmentVariables"].as_dictionary().unwrap()["PATH"].as_string(), Some("/a&b"));
        assert_eq!(read["KeepAlive"].as_dictionary().unwrap()["SuccessfulExit"].as_boolean(), Some(false));
        assert_eq!(read["AbandonProcessGroup"].as_boolean(), Some(true));
    }

    #[test]
    fn what_decides_where_the_daemon_looks_is_handed_on_and_no_secret_is() {
        let environment: ProcessEnvironment =
            [("PATH", "/bin"), ("XDG_STATE_HOME", "/s"), ("ANTHROPIC_API_KEY", "k"), ("XDG_CONFIG_HOME", "")]
                .into();
        assert_eq!(
            handed_on(&environment),
            [("PATH", "/bin".to_owned()), ("XDG_STATE_HOME", "/s".to_owned())]
        );
    }
}
