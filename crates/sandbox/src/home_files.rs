//! Files of the home directory that are replaced by a version for the run.
//!
//! Configuration files of package managers name registries, often with tokens in the next line. A run gets a copy with the lines that are
//! known to be harmless.
//!
//! Codex runs every command in a login shell, which resets `PATH`: Debian's `/etc/profile` sets it, and the user's own profile, which would
//! add the toolchains, is absent. A run gets a profile that restores its `PATH`.

use std::io::Read;
use std::path::Path;

use regular_file::open_linked;

/// Files below the home directory, each with the keys that are copied.
const FILES: &[(&str, &[&str])] = &[(".npmrc", NPM), (".pip/pip.conf", PIP), (".config/pip/pip.conf", PIP)];

const NPM: &[&str] = &["audit", "cafile", "engine-strict", "fund", "registry", "save-exact", "strict-ssl"];
const PIP: &[&str] =
    &["cert", "extra-index-url", "find-links", "index-url", "no-index", "timeout", "trusted-host"];

/// The maximum size of a file that is read.
const MAX_BYTES: u64 = 256 * 1024;

/// Returns the files that exist below a home directory, each with its text without credentials.
pub(crate) fn sanitized_files(home: &Path) -> Vec<(&'static str, String)> {
    let copy = |(name, keys): &(&'static str, &[&str])| {
        let text = read_file(&home.join(name))?;
        let lines = text.lines().filter(|line| is_harmless(line, keys));
        Some((*name, lines.flat_map(|line| [line, "\n"]).collect()))
    };
    FILES.iter().filter_map(copy).collect()
}

/// Returns the name and the text of a profile that sets this `PATH` in login shells.
pub(crate) fn login_profile(search_path: &str) -> (&'static str, String) {
    (".profile", format!("PATH='{}'\nexport PATH\n", search_path.replace('\'', r"'\''")))
}

fn read_file(path: &Path) -> Option<String> {
    let file = open_linked(path).ok()?;
    let mut text = String::new();
    file.take(MAX_BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}

/// Returns whether a line is a section, or sets a known key to a value without a user name or a variable in it.
fn is_harmless(line: &str, keys: &[&str]) -> bool {
    let line = line.trim();
    if line.starts_with('[') && line.ends_with(']') {
        return line[1..line.len() - 1].chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    }
    let Some((key, value)) = line.split_once('=') else { return false };
    // An npm scope may have its own registry.
    let key = key.trim();
    let name = key.strip_prefix('@').and_then(|scoped| scoped.split_once(':')).map_or(key, |(_, name)| name);
    keys.contains(&name) && !value.contains(['@', '$'])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a shell reads the profile")]
    fn profile_restores_any_search_path() {
        let path = "/home/o'brien/bin:/usr/bin:$(touch x)";
        let (_, text) = login_profile(path);
        let script = format!("PATH=lost; {text}printf %s \"$PATH\"");
        let output = std::process::Command::new("/bin/sh").args(["-c", &script]).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), path);
    }

    #[test]
    fn sanitized_files_have_registries_without_tokens() {
        let home = tempfile::tempdir().unwrap();
        let npm = "registry=https://npm.example.com/\n@shop:registry = https://shop.example.com\n\
                   //npm.example.com/:_authToken=secret\n_auth=secret\nregistry=https://me:secret@example.com/\nemail=a\nsecret\n";
        fs::write(home.path().join(".npmrc"), npm).unwrap();
        fs::create_dir_all(home.path().join(".config/pip")).unwrap();
        let pip = "[global]\nindex-url = https://example.com/simple\nextra-index-url = https://u:secret@example.com/\npassword = secret\n";
        fs::write(home.path().join(".config/pip/pip.conf"), pip).unwrap();
        let found = sanitized_files(home.path());
        let npm = "registry=https://npm.example.com/\n@shop:registry = https://shop.example.com\n".to_owned();
        let pip = "[global]\nindex-url = https://example.com/simple\n".to_owned();
        assert_eq!(found, [(".npmrc", npm), (".config/pip/pip.conf", pip)]);
    }
}
