//! The table of all keys: name, type, default and meaning. Files are parsed and the reference is printed from it.

use std::time::Duration;

use super::value::{Value, ValueKind};

/// A key, or an open table with user-defined keys (its name ends with `<word>`).
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

    /// Returns whether the last part of the name is user-defined.
    pub fn is_open(&self) -> bool {
        self.name.ends_with('>')
    }

    /// Returns the environment variable of the key; `None` for an open table.
    pub fn variable(&self) -> Option<String> {
        (!self.is_open()).then(|| format!("SWITCHBOARD_{}", self.name.to_uppercase().replace('.', "_")))
    }
}

/// Finds a key by its path, with the user-defined last part of an open key.
pub fn find<'p>(path: &[&'p str]) -> Option<(usize, Option<&'p str>)> {
    let (last, sections) = path.split_last()?;
    let section = sections.join(".");
    KEYS.iter().enumerate().find_map(|(index, key)| {
        if key.section() != section {
            return None;
        }
        let own = key.name.rsplit('.').next().unwrap_or_default();
        if key.is_open() { Some((index, Some(*last))) } else { (own == *last).then_some((index, None)) }
    })
}

/// Returns whether a path is a section.
pub fn is_section(path: &[&str]) -> bool {
    let section = path.join(".");
    KEYS.iter().any(|key| key.section() == section || key.section().starts_with(&format!("{section}.")))
}

/// Returns the known name that is most similar to an unknown one.
pub fn find_nearest(unknown: &str) -> Option<&'static str> {
    let last = |name: &str| name.rsplit('.').next().unwrap_or_default().to_owned();
    let named = KEYS.iter().filter(|key| !key.is_open()).map(|key| key.name);
    let sections = KEYS.iter().map(ConfigKey::section).filter(|section| !section.is_empty());
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
        "Where jobs are kept: `sqlite:` for a file in the state folder, `sqlite:/path/to/file`, or a SurrealDB server as \
         `ws://host:port/namespace/database` (`wss://` with TLS).",
    ),
    key(
        "store_credentials_file",
        ValueKind::Path,
        KeyDefault::NotSet,
        "A file with user and password for the store's server. Never in the address itself.",
    ),
    key(
        "store_ca_file",
        ValueKind::Path,
        KeyDefault::NotSet,
        "A PEM file with the authorities that may vouch for a `wss://` server, and no others. Not set: those that browsers believe.",
    ),
    key(
        "host",
        ValueKind::Text,
        KeyDefault::NotSet,
        "The name under which this machine takes its jobs, when several share a store. Not set: an identity that is kept in the state \
         directory, and does not change with the name of the machine.",
    ),
    key("labels", ValueKind::Texts, KeyDefault::Empty, "Further names under which this machine takes jobs."),
    key(
        "idle_stop",
        ValueKind::Time { may_be_off: true },
        KeyDefault::Off,
        "The daemon ends when no job ran and nobody asked for anything for so long. The next call starts it again.",
    ),
    key(
        "one_writer_per_folder",
        ValueKind::Flag,
        KeyDefault::Flag(false),
        "Of two calls that may change the same folder, the second waits for the first.",
    ),
    key(
        "cancel_on_disconnect",
        ValueKind::Flag,
        KeyDefault::Flag(false),
        "A call whose client goes away is cancelled. Without it the job goes on, and its answer can be had later.",
    ),
    key(
        "rehearsal",
        ValueKind::Flag,
        KeyDefault::Flag(false),
        "MCP hosts see the tool `call_rehearsal` too: the scripted agent, for trying a host out without an account.",
    ),
    key(
        "pass_env",
        ValueKind::Texts,
        KeyDefault::Empty,
        "Names of variables that agents get beside [their own](#variables-of-agents), such as `GH_TOKEN`. One that would run code in an agent is refused.",
    ),
    key(
        "redact",
        ValueKind::Texts,
        KeyDefault::Empty,
        "Further regular expressions; what they match is taken out of what is kept, and out of the prompt that the agent gets.",
    ),
    key("limits.at_once", AT_ONCE, KeyDefault::Count(8), "How many calls run at once, in all."),
    key(
        "limits.timeout",
        TIME,
        KeyDefault::Time(Duration::from_hours(1)),
        "How long an agent may take, when the call does not say.",
    ),
    key(
        "limits.idle",
        ValueKind::Time { may_be_off: true },
        KeyDefault::Off,
        "How long an agent may stay silent, when the call does not say; before its first word too, unless `limits.start` says otherwise.",
    ),
    key(
        "limits.start",
        ValueKind::Time { may_be_off: true },
        KeyDefault::Off,
        "How long an agent may take until its first word, when the call does not say.",
    ),
    key(
        "limits.tool_timeout",
        TIME,
        KeyDefault::Time(Duration::from_mins(5)),
        "How long a call of an MCP tool may take, when the call sets no limit: all of claude's servers, and those that a call brings to codex. Gemini keeps to the `timeout` of each server in its own settings.",
    ),
    key(
        "limits.wait",
        TIME,
        KeyDefault::Time(Duration::from_secs(50)),
        "How long an MCP call waits for the answer before it says `running` and the job's id. Hosts give up at 60 s.",
    ),
    key(
        "limits.max_response_chars",
        ValueKind::Count { least: 1000, most: 10_000_000, may_be_off: false },
        KeyDefault::Count(100_000),
        "How long an answer may be; of a longer one head and tail are kept, and the whole is in the job's files.",
    ),
    key(
        "limits.attempts",
        ValueKind::Count { least: 1, most: 100, may_be_off: false },
        KeyDefault::Count(3),
        "How often a job is begun, when its run is lost to a crash or a reboot.",
    ),
    key(
        "limits.max_resume_attempts",
        ValueKind::Count { least: 0, most: 100, may_be_off: false },
        KeyDefault::Count(5),
        "How often a run that came to its turn limit is gone on with by itself.",
    ),
    key(
        "limits.max_connections",
        ValueKind::Count { least: 1, most: 100_000, may_be_off: false },
        KeyDefault::Count(512),
        "How many commands and MCP hosts may be connected to the daemon, and as many clients over HTTP that have brought the token. The next is refused; commands have 16 more.",
    ),
    key(
        "limits.max_waits",
        ValueKind::Count { least: 0, most: 100_000, may_be_off: false },
        KeyDefault::Count(1024),
        "How many requests of MCP clients may wait for jobs, beyond 8 that each client may always have. The next is answered at once, with where its job stands.",
    ),
    key(
        "limits.per_agent.claude",
        AT_ONCE,
        KeyDefault::Dynamic("`limits.at_once`"),
        "How many calls of claude run at once.",
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
        "retention.max_age",
        ValueKind::Time { may_be_off: true },
        KeyDefault::Time(Duration::from_hours(90 * 24)),
        "How long a job and its files are kept after its end.",
    ),
    key(
        "retention.max_count",
        ValueKind::Count { least: 1, most: u64::MAX, may_be_off: true },
        KeyDefault::Count(10_000),
        "How many ended jobs are kept, the newest; directories of `call --direct` count, too.",
    ),
    key(
        "programs.claude",
        ValueKind::Path,
        KeyDefault::Dynamic("the one in `PATH`"),
        "The program to start for claude.",
    ),
    key("programs.codex", ValueKind::Path, KeyDefault::Dynamic("the one in `PATH`"), "The same for codex."),
    key("programs.gemini", ValueKind::Path, KeyDefault::Dynamic("the one in `PATH`"), "The same for gemini."),
    key(
        "programs.rehearsal",
        ValueKind::Path,
        KeyDefault::Dynamic("the one beside `switchboard`"),
        "The same for rehearsal.",
    ),
    key(
        "models.claude.<alias>",
        ValueKind::Text,
        KeyDefault::NotSet,
        "An alias of your own for a model; `default` is the model of a call that names none. Without a default claude chooses, and a name \
         that is no alias here reaches it as it is: its own aliases (`opus`), full names.",
    ),
    key("models.codex.<alias>", ValueKind::Text, KeyDefault::NotSet, "The same for codex."),
    key("models.gemini.<alias>", ValueKind::Text, KeyDefault::NotSet, "The same for gemini."),
    key(
        "cwd_aliases.<name>",
        ValueKind::Path,
        KeyDefault::NotSet,
        "A short name for a folder, which calls can give as `cwd`.",
    ),
    key(
        "http.address",
        ValueKind::Address,
        KeyDefault::NotSet,
        "Where MCP is served over HTTP, such as `127.0.0.1:7878`. Without it there is no HTTP. \
         `switchboard serve --http` sets it too.",
    ),
    key(
        "http.allowed_hosts",
        ValueKind::Texts,
        KeyDefault::Empty,
        "Names under which it may be reached beside its own address, `localhost`, `127.0.0.1` and `::1`, such as `box.example.com`; with a \
         port, under that port only.",
    ),
    key(
        "http.allowed_origins",
        ValueKind::Texts,
        KeyDefault::Empty,
        "Origins of web pages that may use it, such as `http://localhost:3000`.",
    ),
    key(
        "http.max_sessions",
        ValueKind::Count { least: 1, most: 100_000, may_be_off: false },
        KeyDefault::Count(256),
        "How many sessions MCP clients over HTTP may have. For the next, the one that was idle for longest is closed; its client has to initialize again.",
    ),
    key(
        "web.port",
        ValueKind::Count { least: 0, most: 65_535, may_be_off: true },
        KeyDefault::Count(0),
        "The port of the web page on 127.0.0.1. With 0 the daemon takes any when `switchboard open` first asks for the page; a port that \
         is named is listened on from the start. `off` is no page. See [web.md](web.md).",
    ),
    key(
        "sandbox.policy",
        ValueKind::Choice(POLICIES),
        KeyDefault::Text("workspace"),
        "What the agent of a call may touch that names no policy. See [sandbox.md](sandbox.md).",
    ),
    key(
        "sandbox.ceiling",
        ValueKind::Choice(POLICIES),
        KeyDefault::Text("off"),
        "What no call can go beyond, whatever policy it names; `off` is no ceiling.",
    ),
    key(
        "sandbox.requirement",
        ValueKind::Choice(&["require", "best-effort"]),
        KeyDefault::Text("best-effort"),
        "Where the machine cannot enforce a policy: `require` runs nothing and says what is missing, `best-effort` runs and reports what held.",
    ),
    key(
        "sandbox.network",
        ValueKind::Choice(&["full", "none", "hosts"]),
        KeyDefault::Text("full"),
        "Whom confined agents may reach: everybody, nobody, or the hosts of the next key and those of the agent's own vendor.",
    ),
    key(
        "sandbox.hosts",
        ValueKind::Texts,
        KeyDefault::Empty,
        "Such as `github.com`, `*.crates.io` or `10.0.0.5:8080`; for the ports 443 and 80 unless one is named.",
    ),
    key(
        "sandbox.expose",
        ValueKind::Paths,
        KeyDefault::Empty,
        "Further paths of the home directory that confined agents may read. Toolchains are found by themselves; the rest is absent. See [sandbox.md](sandbox.md#the-home-directory).",
    ),
    key(
        "sandbox.processes",
        ValueKind::Count { least: 1, most: 1 << 22, may_be_off: true },
        KeyDefault::Count(4096),
        "How many processes and threads a confined agent may have at once. Root is held to it by a delegated cgroup alone; without one it is told as open, and with `require` any number but the default runs nothing.",
    ),
    key(
        "sandbox.memory_bytes",
        ValueKind::Count { least: 1 << 20, most: 1 << 50, may_be_off: true },
        KeyDefault::Off,
        "How much memory a confined agent and all that it starts may take; needs a delegated cgroup.",
    ),
    key(
        "sandbox.cache_bytes",
        ValueKind::Count { least: 1 << 20, most: 1 << 50, may_be_off: true },
        KeyDefault::Count(5 << 30),
        "How much the private caches of package managers may take up before the daemon removes the least recently used; `off` is no bound.",
    ),
    key(
        "sandbox.trust_workspaces",
        ValueKind::Flag,
        KeyDefault::Flag(false),
        "Confined agents load the hooks, MCP servers and settings of their workspace. Its instructions are read anyway. See [sandbox.md](sandbox.md#what-an-agent-loads).",
    ),
    key(
        "sandbox.private_state",
        ValueKind::Flag,
        KeyDefault::Flag(false),
        "Confined agents get a configuration folder for each policy, with nothing in it but the login.",
    ),
    key(
        "log.level",
        ValueKind::Choice(&["error", "warn", "info", "debug", "trace"]),
        KeyDefault::Text("info"),
        "How much the daemon writes to its log.",
    ),
    key(
        "log.max_bytes",
        ValueKind::Count { least: 10_000, most: 1 << 40, may_be_off: false },
        KeyDefault::Count(10_000_000),
        "How long a log may become before the next one is begun.",
    ),
    key(
        "log.files",
        ValueKind::Count { least: 1, most: 100, may_be_off: false },
        KeyDefault::Count(5),
        "How many logs are kept, the newest included.",
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
    }

    #[test]
    fn open_table_accepts_any_key() {
        assert_eq!(find(&["models", "claude", "gpt-5.1"]).map(|(_, word)| word), Some(Some("gpt-5.1")));
        assert_eq!(find(&["models", "cluade", "x"]), None);
        assert!(is_section(&["limits", "per_agent"]) && !is_section(&["store"]));
    }
}
