//! An isolated home for each CLI: its settings files and its whole environment.
//!
//! The environments are complete: a CLI runs with these variables and no others. A rejected request is tried once, so that a
//! test of an error does not wait minutes for the tenth try.

use std::fs;
use std::io;
use std::path::Path;

use serde_json::json;

use crate::server::ModelApi;

/// An environment, as `Command::envs` takes it.
pub type Environment = Vec<(String, String)>;

/// A proxy on a port without a server, so that nothing leaves the machine: some agents send figures of their use, and download
/// programs.
const NO_HOSTS: (&str, &str) = ("HTTPS_PROXY", "http://127.0.0.1:9");
/// The hosts that are reached without the proxy.
const LOOPBACK: (&str, &str) = ("NO_PROXY", "127.0.0.1,localhost");

impl ModelApi {
    /// Returns the environment of Claude Code with its home in `home`.
    pub fn claude_env(&self, home: &Path) -> io::Result<Environment> {
        let own = [
            ("ANTHROPIC_BASE_URL", &*self.url()),
            ("ANTHROPIC_API_KEY", "dummy"),
            ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
            ("CLAUDE_CODE_MAX_RETRIES", "0"),
            ("DISABLE_AUTOUPDATER", "1"),
            ("DISABLE_ERROR_REPORTING", "1"),
            ("DISABLE_TELEMETRY", "1"),
            // Lets root, as a container often is, skip permissions.
            ("IS_SANDBOX", "1"),
        ];
        environment(home, &own)
    }

    /// Returns the environment of Codex with its home in `home`, and writes `.codex/config.toml` there: the provider, and the
    /// text of `.codex/more.toml` of a test.
    pub fn codex_env(&self, home: &Path) -> io::Result<Environment> {
        let directory = home.join(".codex");
        fs::create_dir_all(&directory)?;
        let config = format!(
            r#"model_provider = "scripted"

[model_providers.scripted]
name = "scripted"
base_url = "{}/v1"
env_key = "SCRIPTED_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0

[analytics]
enabled = false

[features]
plugins = false

{}"#,
            self.url(),
            fs::read_to_string(directory.join("more.toml")).unwrap_or_default()
        );
        fs::write(directory.join("config.toml"), config)?;
        environment(home, &[("CODEX_HOME", &*directory.to_string_lossy()), ("SCRIPTED_KEY", "dummy")])
    }

    /// Returns the environment of Gemini CLI with its home in `home`, and writes `.gemini/settings.json` there, with the keys
    /// of `.gemini/more.json` of a test.
    pub fn gemini_env(&self, home: &Path) -> io::Result<Environment> {
        let directory = home.join(".gemini");
        fs::create_dir_all(&directory)?;
        let mut settings = json!({
            "general": {"enableAutoUpdate": false, "enableAutoUpdateNotification": false, "maxAttempts": 1},
            "privacy": {"usageStatisticsEnabled": false},
            "telemetry": {"enabled": false},
            "security": {"auth": {"selectedType": "gemini-api-key"}},
        });
        if let Ok(more) = fs::read(directory.join("more.json")) {
            let more: serde_json::Map<_, _> = serde_json::from_slice(&more)?;
            for (key, value) in more {
                settings[key] = value;
            }
        }
        fs::write(directory.join("settings.json"), format!("{settings:#}\n"))?;
        let own = [
            ("GEMINI_API_KEY", "dummy"),
            ("GEMINI_CLI_NO_RELAUNCH", "true"),
            ("GEMINI_CLI_TRUST_WORKSPACE", "true"),
            ("GOOGLE_GEMINI_BASE_URL", &*self.url()),
        ];
        environment(home, &own)
    }

    /// Returns the environment of `OpenCode` with its home in `home`, and writes `.config/opencode/opencode.json` there.
    pub fn opencode_env(&self, home: &Path) -> io::Result<Environment> {
        let directory = home.join(".config/opencode");
        fs::create_dir_all(&directory)?;
        let models = json!({
            "scripted": {"name": "Scripted", "attachment": true, "modalities": {"input": ["text", "image"], "output": ["text"]}},
            "other": {"name": "Other", "reasoning": true},
        });
        let provider = json!({
            "npm": "@ai-sdk/openai-compatible", "name": "Scripted", "models": models,
            "options": {"baseURL": format!("{}/v1", self.url()), "apiKey": "dummy"},
        });
        let config = json!({
            "autoupdate": false, "share": "disabled", "provider": {"scripted": provider},
            "model": "scripted/scripted", "small_model": "scripted/scripted",
            // Nothing of a vendor may be asked.
            "enabled_providers": ["scripted"],
        });
        fs::write(directory.join("opencode.json"), format!("{config:#}\n"))?;
        environment(home, &[("OPENCODE_DISABLE_MODELS_FETCH", "1"), NO_HOSTS, LOOPBACK])
    }

    /// Returns the environment of Qwen Code with its home in `home`, and writes `.qwen/settings.json` there.
    pub fn qwen_env(&self, home: &Path) -> io::Result<Environment> {
        let directory = home.join(".qwen");
        fs::create_dir_all(&directory)?;
        let url = format!("{}/v1", self.url());
        let model =
            |name: &str| json!({"id": name, "name": name, "envKey": "OPENAI_API_KEY", "baseUrl": url});
        let settings = json!({
            "general": {"disableAutoUpdate": true},
            "model": {"name": "scripted", "maxRetries": 0},
            "modelProviders": {"openai": [model("scripted"), model("other")]},
            "privacy": {"usageStatisticsEnabled": false},
            "security": {"auth": {"selectedType": "openai"}},
            "telemetry": {"enabled": false},
        });
        fs::write(directory.join("settings.json"), format!("{settings:#}\n"))?;
        environment(
            home,
            &[
                ("OPENAI_API_KEY", "dummy"),
                ("OPENAI_BASE_URL", &*url),
                ("OPENAI_MODEL", "scripted"),
                NO_HOSTS,
                LOOPBACK,
            ],
        )
    }

    /// Returns the environment of Kimi Code with its home in `home`, and writes `.kimi-code/config.toml` there.
    pub fn kimi_env(&self, home: &Path) -> io::Result<Environment> {
        let directory = home.join(".kimi-code");
        fs::create_dir_all(&directory)?;
        let model = |name: &str| {
            format!(
                "[models.{name}]\nprovider = \"scripted\"\nmodel = \"{name}\"\nmax_context_size = 100000\n\n"
            )
        };
        let config = format!(
            r#"default_model = "scripted"
telemetry = false

[providers.scripted]
type = "openai"
base_url = "{}/v1"
api_key = "dummy"

{}{}[loop_control]
max_attempts_per_step = 1
"#,
            self.url(),
            model("scripted"),
            model("other")
        );
        fs::write(directory.join("config.toml"), config)?;
        environment(home, &[("KIMI_CODE_NO_AUTO_UPDATE", "1"), NO_HOSTS, LOOPBACK])
    }
}

/// Returns the variables that any program needs, and `own`. Temporary files stay in the home, too.
#[expect(
    clippy::disallowed_methods,
    reason = "test support: the CLIs need the caller's PATH to find their tools"
)]
fn environment(home: &Path, own: &[(&str, &str)]) -> io::Result<Environment> {
    let temporary = home.join("tmp");
    fs::create_dir_all(&temporary)?;
    let path = std::env::var("PATH").unwrap_or_else(|_| "/usr/local/bin:/usr/bin:/bin".to_owned());
    let common = [
        ("HOME", &*home.to_string_lossy()),
        ("LANG", "C.UTF-8"),
        ("NO_COLOR", "1"),
        ("PATH", &*path),
        ("TERM", "dumb"),
        ("TMPDIR", &*temporary.to_string_lossy()),
    ];
    Ok(common.iter().chain(own).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
}
