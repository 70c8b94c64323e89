//! Parses the command line: our own flags, and the few flags of the real programs that affect the output.
//!
//! All other flags are ignored, so that a command line for a real program works unchanged. So a misspelled flag is not an
//! error, but a wrong value of a known one is.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use crate::mistake::Mistake;
use crate::opening::OpeningFault;
use crate::voice::VoiceVendor;

/// A parsed command line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RehearsalRequest {
    Help,
    Version,
    Play(RehearsalOptions),
}

/// The options of a rehearsal.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct RehearsalOptions {
    pub(crate) vendor: VoiceVendor,
    pub(crate) script: Option<PathBuf>,
    pub(crate) ignore_stdin: bool,
    pub(crate) model: Option<String>,
    pub(crate) session: Option<String>,
    pub(crate) turn_limit: Option<u32>,
    /// The client converses over stdin.
    pub(crate) is_live: bool,
    pub(crate) opening_faults: Vec<OpeningFault>,
}

/// Flags of `codex exec` that take a value, which must not be mistaken for the id after `resume`.
const CODEX_VALUES: [&str; 19] = [
    "-c",
    "--config",
    "-m",
    "--model",
    "-s",
    "--sandbox",
    "-C",
    "--cd",
    "-p",
    "--profile",
    "-i",
    "--image",
    "-o",
    "--output-last-message",
    "--output-schema",
    "--color",
    "--add-dir",
    "--enable",
    "--disable",
];

/// Reads the arguments, program name excluded.
pub(crate) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<RehearsalRequest, Mistake> {
    let args: Vec<OsString> = args.into_iter().collect();
    let mut options = RehearsalOptions::default();
    let mut fork_session = false;
    let mut at = 0;
    while let Some(arg) = args.get(at) {
        let (flag, attached) = split(arg);
        let following = args.get(at + 1);
        let mut cursor = Cursor { flag: &flag, attached, following, took_following: false };
        match &*flag {
            "--help" | "-h" => return Ok(RehearsalRequest::Help),
            "--version" => return Ok(RehearsalRequest::Version),
            "--as" => options.vendor = vendor(&cursor.required()?)?,
            "--acp" => options.vendor = VoiceVendor::Acp,
            "--input-format" => options.is_live = cursor.required()? == "stream-json",
            "app-server" => options.is_live = true,
            "--opening" => options.opening_faults.push(OpeningFault::parse(&cursor.required()?)?),
            "--script" => options.script = Some(cursor.required_os()?.into()),
            "--ignore-stdin" => options.ignore_stdin = true,
            "--model" | "-m" => options.model = Some(cursor.required()?),
            "--max-turns" => options.turn_limit = Some(turn_limit(&cursor.required()?)?),
            "--session-id" => options.session = Some(cursor.required()?),
            "--resume" | "-r" => options.session = cursor.optional().filter(|id| names_a_session(id)),
            "--fork-session" => fork_session = true,
            _ => {}
        }
        at += 1 + usize::from(cursor.took_following);
    }
    options.is_live |= options.vendor == VoiceVendor::Acp;
    if options.vendor == VoiceVendor::Codex {
        options.session = codex_resume(&args);
    }
    if fork_session {
        options.session = None;
    }
    Ok(RehearsalRequest::Play(options))
}

/// `--flag=value` in its two parts. Only the flag must be text.
fn split(arg: &OsStr) -> (String, Option<OsString>) {
    use std::os::unix::ffi::OsStrExt as _;
    let bytes = arg.as_bytes();
    match bytes.iter().position(|byte| *byte == b'=') {
        Some(at) if bytes.starts_with(b"-") => (
            String::from_utf8_lossy(&bytes[..at]).into_owned(),
            Some(OsStr::from_bytes(&bytes[at + 1..]).to_owned()),
        ),
        _ => (arg.to_string_lossy().into_owned(), None),
    }
}

struct Cursor<'a> {
    flag: &'a str,
    attached: Option<OsString>,
    following: Option<&'a OsString>,
    took_following: bool,
}

impl Cursor<'_> {
    fn required_os(&mut self) -> Result<OsString, Mistake> {
        if let Some(value) = self.attached.take() {
            return Ok(value);
        }
        self.took_following = true;
        self.following.cloned().ok_or_else(|| {
            Mistake::new(
                format!("flag `{}` has no value", self.flag),
                format!("write `{} VALUE`; `rehearsal --help` explains it", self.flag),
            )
        })
    }

    fn required(&mut self) -> Result<String, Mistake> {
        self.required_os().map(|value| value.to_string_lossy().into_owned())
    }

    /// Returns a value that may be missing, as after claude's `--resume`.
    fn optional(&mut self) -> Option<String> {
        let next_is_flag = self.following.is_none_or(|next| next.to_string_lossy().starts_with('-'));
        if self.attached.is_none() && next_is_flag { None } else { self.required().ok() }
    }
}

fn vendor(name: &str) -> Result<VoiceVendor, Mistake> {
    VoiceVendor::parse(name).ok_or_else(|| {
        let known = VoiceVendor::ALL.map(VoiceVendor::name).join(", ");
        Mistake::new(format!("unknown agent `{name}` for `--as`"), format!("use one of {known}"))
    })
}

fn turn_limit(word: &str) -> Result<u32, Mistake> {
    word.parse().map_err(|_| {
        Mistake::new(
            format!("invalid value `{word}` for `--max-turns`: not a number"),
            "write `--max-turns 5`",
        )
    })
}

/// Returns whether an id names a session. Gemini also resumes by position or `latest`, which only its own history can resolve.
fn names_a_session(id: &str) -> bool {
    id != "latest" && !id.bytes().all(|byte| byte.is_ascii_digit())
}

/// The id in `exec … resume [flags] ID [PROMPT]`.
fn codex_resume(args: &[OsString]) -> Option<String> {
    let resume = args.iter().position(|arg| arg == "resume")?;
    let mut rest = args[resume + 1..].iter();
    while let Some(arg) = rest.next() {
        let arg = arg.to_string_lossy();
        if arg == "--last" || arg == "-" {
            return None;
        }
        if CODEX_VALUES.contains(&&*arg) {
            rest.next();
        } else if !arg.starts_with('-') {
            return Some(arg.into_owned());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<RehearsalRequest, Mistake> {
        parse(line.split_whitespace().map(OsString::from))
    }

    fn options(line: &str) -> RehearsalOptions {
        match read(line) {
            Ok(RehearsalRequest::Play(options)) => options,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn claude_command_line_is_accepted() {
        let found = options(
            "-p --output-format stream-json --verbose --model opus --resume abc --max-turns 3 --allowedTools Bash,Read --unheard-of",
        );
        assert_eq!(found.vendor, VoiceVendor::Claude);
        assert_eq!(found.model.as_deref(), Some("opus"));
        assert_eq!(found.session.as_deref(), Some("abc"));
        assert_eq!(found.turn_limit, Some(3));
        assert_eq!(options("--resume -p").session, None);
        assert_eq!(options("--session-id=abc").session.as_deref(), Some("abc"));
        assert_eq!(options("--resume abc --fork-session").session, None);
    }

    #[test]
    fn codex_command_line_is_accepted() {
        let line =
            "--as codex exec --json --sandbox read-only -m gpt resume -c a=b --skip-git-repo-check abc -";
        let found = options(line);
        assert_eq!(found.vendor, VoiceVendor::Codex);
        assert_eq!(found.session.as_deref(), Some("abc"));
        assert_eq!(found.model.as_deref(), Some("gpt"));
        assert_eq!(options("--as codex exec --json -").session, None);
        assert_eq!(options("--as codex exec resume --last -").session, None);
    }

    #[test]
    fn gemini_command_line_is_accepted() {
        let found = options("--as=gemini --output-format stream-json --yolo -m flash --resume abc");
        assert_eq!(found.vendor, VoiceVendor::Gemini);
        assert_eq!(found.session.as_deref(), Some("abc"));
        assert_eq!(options("--as gemini --resume latest").session, None);
        assert_eq!(options("--as gemini --resume 3").session, None);
    }

    #[test]
    fn invalid_value_is_named() {
        assert_eq!(read("--as siri").unwrap_err().what, "unknown agent `siri` for `--as`");
        assert_eq!(read("--script").unwrap_err().what, "flag `--script` has no value");
        assert!(read("--max-turns many").is_err());
    }

    #[test]
    fn help_and_version_take_precedence() {
        assert_eq!(read("--as codex exec --help"), Ok(RehearsalRequest::Help));
        assert_eq!(read("--version"), Ok(RehearsalRequest::Version));
    }
}
