//! Finds programs in `PATH`, and native executables behind npm launchers.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::{fs, iter};

use crate::{AgentProfile, NativeProgram};

/// Returns the first executable with this name in a search path. Skips relative entries: they depend on the working directory.
pub fn find_in_path(name: &str, path: &str) -> Option<PathBuf> {
    let directories = std::env::split_paths(path).filter(|directory| directory.is_absolute());
    directories.map(|directory| directory.join(name)).find(|program| is_program(program))
}

/// Returns the part of a search path with the directories that contain an executable with this name.
pub(super) fn directories_with(name: &str, path: &str) -> String {
    let directories = path.split(':').filter(|directory| is_program(&Path::new(directory).join(name)));
    directories.collect::<Vec<_>>().join(":")
}

/// Returns the executable of an agent in a search path.
///
/// For codex and claude npm installs a launcher in `PATH`. The native program behind it is spawned directly: killing codex's
/// launcher would leave the native process running.
pub fn find_agent(profile: &AgentProfile, path: &str) -> Option<PathBuf> {
    let named = Path::new(&profile.program);
    let found = if named.is_absolute() {
        Some(named.to_owned()).filter(|program| is_program(program))?
    } else {
        find_in_path(&profile.program, path)?
    };
    let native = profile.native.as_ref().and_then(|native| find_native(native, &found));
    Some(native.unwrap_or(found))
}

pub(super) fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// Returns the native program of an npm package, given its launcher.
fn find_native(native: &NativeProgram, launcher: &Path) -> Option<PathBuf> {
    let NativeProgram { scope, name } = native;
    let launcher = launcher.canonicalize().ok()?;
    // …/node_modules/@openai/codex/bin/codex.js, with the platform package inside of it or next to it.
    let scope = launcher.ancestors().find(|directory| directory.ends_with(scope))?;
    let own = launcher.strip_prefix(scope).ok()?.components().next()?.as_os_str().to_str()?;
    let package = scope.join(own);
    let nested = package.join("node_modules").join(scope.file_name()?);
    let beside =
        [nested.as_path(), scope].into_iter().flat_map(|directory| platform_packages(directory, own));
    beside.chain([package.clone()]).find_map(|package| program_of(&package, name))
}

/// Returns the packages `<own>-<platform>` of a scope for this platform.
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

/// Returns `<package>/claude` or `<package>/vendor/<target>/…/codex`.
fn program_of(package: &Path, name: &str) -> Option<PathBuf> {
    let targets =
        fs::read_dir(package.join("vendor")).ok().into_iter().flatten().flatten().map(|entry| entry.path());
    let directories = iter::once(package.to_owned()).chain(targets.filter(|target| {
        target
            .file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| name.starts_with(std::env::consts::ARCH))
    }));
    directories
        .flat_map(|directory| {
            [directory.join(name), directory.join("bin").join(name), directory.join(name).join(name)]
        })
        .find(|program| is_program(program))
}
