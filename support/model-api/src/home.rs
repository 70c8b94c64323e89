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
