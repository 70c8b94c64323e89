//! Where a program is, and what really runs behind a wrapper.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::{fs, iter};

use model::AgentKind;

/// The first executable of that name in a search path. Relative entries are passed over: what they mean depends on
/// where one stands.
pub fn find_in_path(name: &str, path: &str) -> Option<PathBuf> {
    let folders = std::env::split_paths(path).filter(|folder| folder.is_absolute());
    folders.map(|folder| folder.join(name)).find(|program| is_program(program))
}

/// The executable of an agent in a search path.
///
/// What npm puts there for codex and claude is a launcher; the program itself is behind it. It is better started
/// directly: ending the launcher of codex would leave the real one running.
pub fn find_agent(kind: AgentKind, path: &str) -> Option<PathBuf> {
    let found = find_in_path(kind.name(), path)?;
    Some(native(kind, &found).unwrap_or(found))
}

pub(super) fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// The native program of an npm package, from the launcher that `PATH` names.
fn native(kind: AgentKind, launcher: &Path) -> Option<PathBuf> {
    let (scope, name) = match kind {
        AgentKind::Claude => ("@anthropic-ai", "claude"),
        AgentKind::Codex => ("@openai", "codex"),
        AgentKind::Gemini | AgentKind::Rehearsal => return None,
    };
    let launcher = launcher.canonicalize().ok()?;
    // …/node_modules/@openai/codex/bin/codex.js, with the platform's package inside of it or beside it.
    let scope = launcher.ancestors().find(|folder| folder.ends_with(scope))?;
    let own = launcher.strip_prefix(scope).ok()?.components().next()?.as_os_str().to_str()?;
    let package = scope.join(own);
    let nested = package.join("node_modules").join(scope.file_name()?);
    let beside = [nested.as_path(), scope].into_iter().flat_map(|folder| platform_packages(folder, own));
    beside.chain([package.clone()]).find_map(|package| program_of(&package, name))
}

/// The packages `<own>-<platform>` of a scope that are for this machine.
fn platform_packages(scope: &Path, own: &str) -> Vec<PathBuf> {
    let platform = format!("{}-{}", npm_os(), npm_arch());
    let names = [format!("{own}-{platform}"), format!("{own}-{platform}-musl")];
    names.iter().map(|name| scope.join(name)).filter(|package| package.is_dir()).collect()
}

fn npm_os() -> &'static str {
    match std::env::consts::OS {
        "macos" => "darwin",
        other => other,
    }
}

fn npm_arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "x64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// `<package>/claude`, or `<package>/vendor/<target>/…/codex`.
fn program_of(package: &Path, name: &str) -> Option<PathBuf> {
    let targets =
        fs::read_dir(package.join("vendor")).ok().into_iter().flatten().flatten().map(|entry| entry.path());
    let folders = iter::once(package.to_owned()).chain(targets.filter(|target| {
        target
            .file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| name.starts_with(std::env::consts::ARCH))
    }));
    folders
        .flat_map(|folder| [folder.join(name), folder.join("bin").join(name), folder.join(name).join(name)])
        .find(|program| is_program(program))
}
