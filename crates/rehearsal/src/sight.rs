//! Reports the agent's environment, arguments, working directory and open files as text.

use std::io;

use crate::json;

/// Returns one variable, or all as `NAME=value` lines.
#[expect(clippy::disallowed_methods, reason = "to look at its environment is what the step `env` is for")]
pub(crate) fn environment(name: Option<&str>) -> String {
    if let Some(name) = name {
        return match std::env::var_os(name) {
            Some(value) => format!("{name}={}", value.to_string_lossy()),
            None => format!("{name} is not set"),
        };
    }
    let mut lines: Vec<String> = std::env::vars_os()
        .map(|(name, value)| format!("{}={}", name.to_string_lossy(), value.to_string_lossy()))
        .collect();
    lines.sort();
    lines.join("\n")
}

/// Returns the command line as a JSON array, because arguments may contain blanks and newlines.
pub(crate) fn arguments() -> String {
    json::array(std::env::args_os().map(|arg| json::quote(&arg.to_string_lossy())))
}

/// Returns the working directory; empty if it was removed.
pub(crate) fn working_directory() -> String {
    std::env::current_dir().map_or_else(|_| String::new(), |path| path.to_string_lossy().into_owned())
}

/// Returns the open descriptors as `NUMBER TARGET` lines.
pub(crate) fn open_files() -> io::Result<String> {
    let own_listing = format!("/proc/{}/fd", std::process::id());
    let mut files = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        let number: u32 = entry.file_name().to_string_lossy().parse().map_err(io::Error::other)?;
        let target = std::fs::read_link(entry.path())?;
        // Listing the directory takes a descriptor of our own.
        if target.as_os_str() != own_listing.as_str() {
            files.push((number, target));
        }
    }
    files.sort();
    let lines: Vec<_> =
        files.iter().map(|(number, target)| format!("{number} {}", target.display())).collect();
    Ok(lines.join("\n"))
}
