//! The table of all keys: name, type, default and meaning. Files are parsed and the reference is printed from it.

use std::time::Duration;

use super::value::{Value, ValueKind};

/// A key. One part of its name can be user-defined (`<word>`): the last one in an open table, or the name of a table.
#[derive(Debug)]
pub struct ConfigKey {
    /// The name with its sections, separated by dots.
    pub name: &'static str,
    /// The type.
    pub kind: ValueKind,
    /// The default.
    pub default: KeyDefault,
    /// The meaning, for the reference.
    pub meaning: &'static str,
}

/// The default of a key.
#[derive(Debug, Clone, Copy)]
pub enum KeyDefault {
    /// No value.
    NotSet,
    /// A string.
    Text(&'static str),
    /// A number.
    Count(u64),
    /// A boolean.
    Flag(bool),
    /// A duration.
    Time(Duration),
    /// Switched off.
    Off,
    /// An empty list.
    Empty,
    /// Determined at run time; the text is for the reference.
    Dynamic(&'static str),
}

impl KeyDefault {
    /// Returns the default as a value, if it is one.
    pub fn value(self) -> Option<Value> {
        Some(match self {
            Self::NotSet | Self::Dynamic(_) => return None,
            Self::Text(text) => Value::Text(text.to_owned()),
            Self::Count(number) => Value::Count(number),
            Self::Flag(flag) => Value::Flag(flag),
            Self::Time(time) => Value::Time(time),
            Self::Off => Value::Off,
            Self::Empty => Value::Texts(Vec::new()),
        })
    }
}

impl ConfigKey {
    /// Returns the section of the key; empty at the top level.
    pub fn section(&self) -> &'static str {
        self.name.rsplit_once('.').map_or("", |(section, _)| section)
    }

    /// Returns whether a part of the name is user-defined.
    pub fn is_open(&self) -> bool {
        self.name.contains('<')
    }

    /// Returns whether the user-defined part is a path.
    pub fn is_of_path(&self) -> bool {
        self.name.contains(PATH_PART)
    }

    /// Returns whether a path starts like the name.
    fn starts_with(&self, path: &[&str]) -> bool {
        let mut parts = self.name.split('.');
        path.iter().all(|word| parts.next().is_some_and(|part| is_open_part(part) || part == *word))
    }

    /// Returns the environment variable of the key; `None` for an open one.
    pub fn variable(&self) -> Option<String> {
        (!self.is_open()).then(|| format!("SWITCHBOARD_{}", self.name.to_uppercase().replace('.', "_")))
    }
}

/// Finds a key by its path, with the user-defined part of an open key.
pub fn find<'p>(path: &[&'p str]) -> Option<(usize, Option<&'p str>)> {
    let is_at = |key: &ConfigKey| key.name.split('.').count() == path.len() && key.starts_with(path);
    let index = KEYS.iter().position(is_at)?;
    let word = KEYS[index].name.split('.').position(is_open_part).map(|at| path[at]);
    Some((index, word))
}

/// Returns whether a path is a section.
pub fn is_section(path: &[&str]) -> bool {
    KEYS.iter().any(|key| key.name.split('.').count() > path.len() && key.starts_with(path))
}

/// Finds a key whose user-defined path is the last part of this name.
pub fn find_path_part(name: &[&str]) -> Option<usize> {
    let is_at =
        |key: &ConfigKey| key.starts_with(name) && key.name.split('.').nth(name.len() - 1) == Some(PATH_PART);
    KEYS.iter().position(is_at)
}

fn is_open_part(part: &str) -> bool {
    part.starts_with('<')
}

/// Joins the parts of a name with dots, quoted like in TOML.
pub fn join_name(parts: &[&str]) -> String {
    parts.iter().map(|part| quote_part(part)).collect::<Vec<_>>().join(".")
}

/// Quotes a part of a name if TOML requires it.
pub fn quote_part(part: &str) -> String {
    let is_bare =
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
    if is_bare { part.to_owned() } else { toml::Value::String(part.to_owned()).to_string() }
}

/// Returns the known name that is most similar to an unknown one.
pub fn find_nearest(unknown: &str) -> Option<&'static str> {
    let last = |name: &str| name.rsplit('.').next().unwrap_or_default().to_owned();
    let named = KEYS.iter().map(|key| key.name).filter(|name| !name.ends_with('>'));
    let sections = KEYS.iter().map(ConfigKey::section);
    let sections = sections.map(|section| section.split(".<").next().unwrap_or(section));
    let sections = sections.filter(|section| !section.is_empty());
    named
        .chain(sections)
        .map(|known| {
            let whole = strsim::damerau_levenshtein(unknown, known);
            // The right name in the wrong section is closer than its edit distance suggests.
            (whole.min(strsim::damerau_levenshtein(&last(unknown), &last(known)) + 1), known)
        })
        .filter(|(distance, _)| *distance <= (unknown.len() / 3).clamp(1, 3))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

const fn key(name: &'static str, kind: ValueKind, default: KeyDefault, meaning: &'static str) -> ConfigKey {
    ConfigKey { name, kind, default, meaning }
}

/// The part of a name that stands for a path.
const PATH_PART: &str = "<path>";
const AT_ONCE: ValueKind = ValueKind::Count { least: 1, most: 1000, may_be_off: false };
const TIME: ValueKind = ValueKind::Time { may_be_off: false };

/// The policy names, widest first.
const POLICIES: &[&str] = &["off", "workspace", "observe", "restricted", "sealed"];

/// Every key, in the order of the reference.
pub const KEYS: &[ConfigKey] = &[
    key(
        "store",
        ValueKind::Text,
        KeyDefault::Text("sqlite:"),
        "The job store: `sqlite:` for a file in the state directory, `sqlite:/path/to/file`, or a SurrealDB server as \
         `ws://host:port/namespace/database` (`wss://` with TLS).",
    ),
    key(
        "store_credentials_file",
        ValueKind::Path,
        KeyDefault::NotSet,
        "File with the user and the password for the store's server. They are not accepted in the address.",
    ),
    key(
        "store_ca_file",
        ValueKind::Path,
        KeyDefault::NotSet,
        "PEM file with the only CA certificates that are trusted for a `wss://` server. Not set: the CAs that browsers trust.",
    ),
    key(
        "host",
        ValueKind::Text,
        KeyDefault::NotSet,
        "Name under which this machine claims jobs in a shared store. Not set: an id in the state directory, which does not change \
         with the host name.",
    ),
    key("labels", ValueKind::Texts, KeyDefault::Empty, "Further names under which this machine claims jobs."),
    key(
        "idle_stop",
        ValueKind::Time { may_be_off: true },
        KeyDefault::Off,
        "The daemon exits after this time without a job or a request. The next call starts it again.",
    ),
    key(
        "one_writer_per_directory",
        ValueKind::Flag,
        KeyDefault::Flag(false),
        "Of two calls that may change the same directory, the second waits for the first.",
    ),
    key(
        "record_changes",
        ValueKind::Flag,
        KeyDefault::Flag(true),
        "Record the changes of calls that may write in a git repository. See [changes.md](changes.md).",
    ),
    key(
        "cancel_on_disconnect",
        ValueKind::Flag,
        KeyDefault::Flag(false),
        "Cancel a call whose client disconnects. Otherwise the job continues, and its answer can be fetched later.",
    ),
    key(
        "rehearsal",
        ValueKind::Flag,
        KeyDefault::Flag(false),
        "Offer MCP hosts the tool `call_rehearsal`, the scripted agent, to try a host without an account.",
    ),
    key(
        "pass_env",
        ValueKind::Texts,
        KeyDefault::Empty,
        "Environment variables that agents get in addition to [their own](#variables-of-agents), such as `GH_TOKEN`. Variables that would run code in an agent are rejected.",
    ),
    key(
        "redact",
        ValueKind::Texts,
        KeyDefault::Empty,
        "Further regular expressions whose matches are redacted, in everything that is stored and in the prompt.",
    ),
    key("limits.at_once", AT_ONCE, KeyDefault::Count(8), "Maximum number of concurrent calls."),
    key(
        "limits.timeout",
        TIME,
        KeyDefault::Time(Duration::from_hours(1)),
        "Time limit of a call that sets none.",
    ),
    key(
        "limits.idle",
        ValueKind::Time { may_be_off: true },
        KeyDefault::Off,
        "Maximum silence of an agent if the call sets none; also before its first output, unless `limits.start` is set.",
    ),
    key(
        "limits.start",
        ValueKind::Time { may_be_off: true },
        KeyDefault::Off,
        "Maximum time until the first output of an agent if the call sets none.",
    ),
    key(
        "limits.tool_timeout",
        TIME,
        KeyDefault::Time(Duration::from_mins(5)),
        "Time limit of an agent's MCP tool calls if the call sets none: for all of claude's servers, and for the servers that a call adds to codex. Gemini uses the `timeout` of each server in its own settings.",
    ),
    key(
        "limits.wait",
        TIME,
        KeyDefault::Time(Duration::from_secs(50)),
        "Time that an MCP call waits for the answer before it returns `running` with the job id. Hosts time out after 60 s.",
    ),
    key(
        "limits.max_response_chars",
        ValueKind::Count { least: 1000, most: 10_000_000, may_be_off: false },
        KeyDefault::Count(100_000),
        "Maximum length of an answer. A longer one is shortened in the middle; the whole text is in the job's files.",
    ),
    key(
        "limits.command",
        TIME,
        KeyDefault::Time(Duration::from_mins(10)),
        "Time limit of a command that verifies the work of an agent (`verify`) or prepares a private checkout (`worktree_setup`).",
    ),
    key(
        "limits.attempts",
        ValueKind::Count { least: 1, most: 100, may_be_off: false },
        KeyDefault::Count(3),
        "Maximum number of attempts of a job whose run is lost in a crash or a reboot.",
    ),
    key(
        "limits.max_resume_attempts",
        ValueKind::Count { least: 0, most: 100, may_be_off: false },
        KeyDefault::Count(5),
        "Maximum number of automatic continuations of a run that reached its turn limit.",
    ),
    key(
        "limits.max_connections",
        ValueKind::Count { least: 1, most: 100_000, may_be_off: false },
        KeyDefault::Count(512),
        "Maximum number of connected commands and MCP hosts, and, separately, of authenticated HTTP clients. Further ones are rejected; commands have 16 more.",
    ),
    key(
        "limits.max_waits",
        ValueKind::Count { least: 0, most: 100_000, may_be_off: false },
        KeyDefault::Count(1024),
        "Maximum number of MCP requests that wait for jobs, in addition to 8 for each client. Further ones return at once with the state of their job.",
    ),
    key(
        "limits.per_agent.claude",
        AT_ONCE,
        KeyDefault::Dynamic("`limits.at_once`"),
        "Maximum number of concurrent calls of claude.",
    ),
    key("limits.per_agent.codex", AT_ONCE, KeyDefault::Dynamic("`limits.at_once`"), "The same for codex."),
    key("limits.per_agent.gemini", AT_ONCE, KeyDefault::Dynamic("`limits.at_once`"), "The same for gemini."),
    key(
        "limits.per_agent.rehearsal",
        AT_ONCE,
        KeyDefault::Dynamic("`limits.at_once`"),
        "The same for rehearsal.",
    ),
    key(
        "limits.per_agent.<agent>",
        AT_ONCE,
        KeyDefault::Dynamic("`limits.at_once`"),
        "The same for any other agent.",
    ),
    key(
        "retention.max_age",
        ValueKind::Time { may_be_off: true },
        KeyDefault::Time(Duration::from_hours(90 * 24)),
        "Time for which an ended job and its files are kept.",
    ),
    key(
        "retention.max_count",
        ValueKind::Count { least: 1, most: u64::MAX, may_be_off: true },
        KeyDefault::Count(10_000),
        "Maximum number of ended jobs to keep, the newest; directories of `call --direct` count, too.",
    ),
    key("programs.claude", ValueKind::Path, KeyDefault::Dynamic("the one in `PATH`"), "Program of claude."),
    key("programs.codex", ValueKind::Path, KeyDefault::Dynamic("the one in `PATH`"), "The same for codex."),
    key("programs.gemini", ValueKind::Path, KeyDefault::Dynamic("the one in `PATH`"), "The same for gemini."),
    key(
        "programs.rehearsal",
        ValueKind::Path,
        KeyDefault::Dynamic("the one beside `switchboard`"),
        "The same for rehearsal.",
    ),
    key(
        "programs.<agent>",
        ValueKind::Path,
        KeyDefault::Dynamic("the one in `PATH`"),
        "The same for any other agent.",
    ),
    key(
        "agents.<agent>.acp",
        ValueKind::Texts,
        KeyDefault::NotSet,
        "Command of an agent that speaks the Agent Client Protocol, as a list of program and arguments. See [agents.md](agents.md#your-own-agent).",
    ),
    key(
        "agents.<agent>.terminals",
        ValueKind::Flag,
        KeyDefault::Flag(false),
        "The agent with `acp` runs its commands through its client. Switchboard runs them, in the same sandbox.",
    ),
    key(
        "agents.<agent>.command",
        ValueKind::Texts,
        KeyDefault::NotSet,
        "Command of an agent without a protocol. `{prompt_file}`, `{prompt}` and `{cwd}` stand for values of the call; without the first two, the prompt is on stdin. It succeeds with exit code 0.",
    ),
    key(
        "agents.<agent>.answer",
        ValueKind::Text,
        KeyDefault::Text("stdout"),
        "Part of the command's stdout that is the answer: `stdout`, `last-line`, or the field of a JSON document such as `json:/result/text`.",
    ),
    key(
        "agents.<agent>.session",
        ValueKind::Text,
        KeyDefault::NotSet,
        "Field of the command's JSON document with the session id, such as `json:/session_id`.",
    ),
    key(
        "agents.<agent>.resume",
        ValueKind::Texts,
        KeyDefault::NotSet,
        "Further arguments of the command to resume a session, with `{session}`.",
    ),
    key(
        "agents.<agent>.model",
        ValueKind::Texts,
        KeyDefault::NotSet,
        "Further arguments of the command to choose a model, with `{model}`.",
    ),
    key(
        "agents.<agent>.default_model",
        ValueKind::Text,
        KeyDefault::NotSet,
        "Model of a call that names none, for agents without a table in `models`.",
    ),
    key(
        "agents.<agent>.description",
        ValueKind::Text,
        KeyDefault::NotSet,
        "Tasks that the agent is good at, in one line, for the models that choose an agent.",
    ),
    key(
        "agents.<agent>.env",
        ValueKind::Texts,
        KeyDefault::Empty,
        "Environment variables that the agent gets in addition to those of every agent, such as its key.",
    ),
    key(
        "agents.<agent>.state_dirs",
        ValueKind::Paths,
        KeyDefault::Empty,
        "Directories with the sessions and the login of the agent. A sandboxed agent can change everything in them, also its own settings.",
    ),
    key(
        "agents.<agent>.hosts",
        ValueKind::Texts,
        KeyDefault::Empty,
        "Hosts that the agent needs, added to every list of allowed hosts.",
    ),
    key(
        "agents.<agent>.version",
        ValueKind::Texts,
        KeyDefault::NotSet,
        "Arguments that print the version of your own agent. Not set: it is not asked.",
    ),
    key(
        "models.claude.<alias>",
        ValueKind::Text,
        KeyDefault::NotSet,
        "Alias for a model; `default` is the model of a call that names none. Without a default claude chooses. Other names are \
         passed to it unchanged: its own aliases (`opus`) and full names.",
    ),
    key("models.codex.<alias>", ValueKind::Text, KeyDefault::NotSet, "The same for codex."),
    key("models.gemini.<alias>", ValueKind::Text, KeyDefault::NotSet, "The same for gemini."),
    key(
        "cwd_aliases.<name>",
        ValueKind::Path,
        KeyDefault::NotSet,
        "Alias for a directory, usable as `cwd` of a call.",
    ),
    key(
        "mcp.apply_changes",
        ValueKind::Flag,
        KeyDefault::Flag(false),
        "Offer MCP hosts the tools `call_apply` and `call_discard`, which change your files without a review by you. See [mcp.md](mcp.md#changes-in-private-checkouts).",
    ),
    key(
        "repositories.<path>.worktree",
        ValueKind::Flag,
        KeyDefault::Flag(false),
        "For the git repository with this root, a path that starts with `/` or `~/`: calls that may write work in a private checkout unless \
         the caller decides otherwise. See [changes.md](changes.md#in-a-private-checkout).",
    ),
    key(
        "repositories.<path>.worktree_setup",
        ValueKind::Text,
        KeyDefault::NotSet,
        "Command that prepares a new private checkout before the agent starts, such as `npm ci`.",
    ),
    key(
        "http.address",
        ValueKind::Address,
        KeyDefault::NotSet,
        "Address for MCP over HTTP, such as `127.0.0.1:7878`. Not set: no HTTP. `switchboard serve --http` sets it, too.",
    ),
    key(
        "http.allowed_hosts",
        ValueKind::Texts,
        KeyDefault::Empty,
        "Further host names of the server, such as `box.example.com`, besides its own address, `localhost`, `127.0.0.1` and `::1`. A \
         name with a port is valid for that port only.",
    ),
    key(
        "http.allowed_origins",
        ValueKind::Texts,
        KeyDefault::Empty,
        "Origins of web pages that may use the server, such as `http://localhost:3000`.",
    ),
    key(
        "http.max_sessions",
        ValueKind::Count { least: 1, most: 100_000, may_be_off: false },
        KeyDefault::Count(256),
        "Maximum number of MCP sessions over HTTP. A further one closes the session that was idle longest; its client must initialize again.",
    ),
    key(
        "web.port",
        ValueKind::Count { least: 0, most: 65_535, may_be_off: true },
        KeyDefault::Count(0),
        "Port of the web page on 127.0.0.1. With 0 the daemon chooses one when `switchboard open` is first used; any other port is \
         opened at startup. `off` disables the page. See [web.md](web.md).",
    ),
    key(
        "sandbox.policy",
        ValueKind::Choice(POLICIES),
        KeyDefault::Text("workspace"),
        "Policy of a call that names none. See [sandbox.md](sandbox.md).",
    ),
    key(
        "sandbox.ceiling",
        ValueKind::Choice(POLICIES),
        KeyDefault::Text("off"),
        "Least strict policy that a call can have; `off` means no ceiling.",
    ),
    key(
        "sandbox.requirement",
        ValueKind::Choice(&["require", "best-effort"]),
        KeyDefault::Text("best-effort"),
        "If the machine cannot enforce a policy: `require` rejects the call and names the missing safeguards, `best-effort` runs it and reports the enforced ones.",
    ),
    key(
        "sandbox.network",
        ValueKind::Choice(&["full", "none", "hosts"]),
        KeyDefault::Text("full"),
        "Network access of confined agents: `full`, `none`, or the `hosts` of the next key and those of the agent's vendor.",
    ),
    key(
        "sandbox.hosts",
        ValueKind::Texts,
        KeyDefault::Empty,
        "Hosts such as `github.com`, `*.crates.io` or `10.0.0.5:8080`; ports 443 and 80 unless a port is given.",
    ),
    key(
        "sandbox.expose",
        ValueKind::Paths,
        KeyDefault::Empty,
        "Further paths of the home directory that confined agents may read. Toolchains are found automatically; everything else is absent. See [sandbox.md](sandbox.md#the-home-directory).",
    ),
    key(
        "sandbox.processes",
        ValueKind::Count { least: 1, most: 1 << 22, may_be_off: true },
        KeyDefault::Count(4096),
        "Maximum number of processes and threads of a confined agent. For root this needs a delegated cgroup; without one the limit is reported as not enforced, and with `require` any number but the default rejects the call.",
    ),
    key(
        "sandbox.memory_bytes",
        ValueKind::Count { least: 1 << 20, most: 1 << 50, may_be_off: true },
        KeyDefault::Off,
        "Maximum memory of a confined agent and its processes; needs a delegated cgroup.",
    ),
    key(
        "sandbox.cache_bytes",
        ValueKind::Count { least: 1 << 20, most: 1 << 50, may_be_off: true },
        KeyDefault::Count(5 << 30),
        "Maximum size of the private package caches. Beyond it the daemon removes the least recently used ones; `off` means no limit.",
    ),
    key(
        "sandbox.trust_workspaces",
        ValueKind::Flag,
        KeyDefault::Flag(false),
        "Let confined agents load the hooks, MCP servers and settings of their workspace. Its instructions are always read. See [sandbox.md](sandbox.md#what-an-agent-loads).",
    ),
    key(
        "sandbox.private_state",
        ValueKind::Flag,
        KeyDefault::Flag(false),
        "Give confined agents a configuration directory for each policy that contains nothing but the login.",
    ),
    key(
        "log.level",
        ValueKind::Choice(&["error", "warn", "info", "debug", "trace"]),
        KeyDefault::Text("info"),
        "Level of the daemon's log.",
    ),
    key(
        "log.max_bytes",
        ValueKind::Count { least: 10_000, most: 1 << 40, may_be_off: false },
        KeyDefault::Count(10_000_000),
        "Maximum size of a log file before the next one is started.",
    ),
    key(
        "log.files",
        ValueKind::Count { least: 1, most: 100, may_be_off: false },
        KeyDefault::Count(5),
        "Maximum number of log files, including the newest.",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn top_level_keys_come_first() {
        let mut seen = vec![];
        for key in KEYS {
            if seen.last() != Some(&key.section()) {
                assert!(!seen.contains(&key.section()), "{} is apart from its section", key.name);
                seen.push(key.section());
            }
        }
        assert_eq!(seen.first(), Some(&""));
    }

    #[test]
    fn misspelled_key_gets_nearest_name() {
        assert_eq!(find_nearest("limits.at_onec"), Some("limits.at_once"));
        assert_eq!(find_nearest("at_once"), Some("limits.at_once"));
        assert_eq!(find_nearest("limit"), Some("limits"));
        assert_eq!(find_nearest("stroe"), Some("store"));
        assert_eq!(find_nearest("http.adress"), Some("http.address"));
        assert_eq!(find_nearest("something.else"), None);
        assert_eq!(find_nearest("repositorys"), Some("repositories"));
        assert_eq!(find_nearest("repositories.~/my.shop.worktre"), Some("repositories.<path>.worktree"));
    }

    #[test]
    fn table_with_user_defined_name_has_fixed_keys() {
        let path = ["repositories", "~/my.shop", "worktree"];
        assert_eq!(
            find(&path).map(|(index, word)| (KEYS[index].name, word)),
            Some(("repositories.<path>.worktree", Some("~/my.shop")))
        );
        assert!(find(&path[..2]).is_none() && is_section(&path[..2]) && !is_section(&path));
        assert_eq!(find(&["repositories", "~/shop", "other"]), None);
        assert_eq!(join_name(&path), "repositories.\"~/my.shop\".worktree");
    }

    #[test]
    fn open_table_accepts_any_key() {
        assert_eq!(find(&["models", "claude", "gpt-5.1"]).map(|(_, word)| word), Some(Some("gpt-5.1")));
        assert_eq!(find(&["models", "cluade", "x"]), None);
        assert!(is_section(&["limits", "per_agent"]) && !is_section(&["store"]));
    }
}
