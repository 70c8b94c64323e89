//! The daemon's log file, rotated by size.
//!
//! `tracing-appender` does not rotate by size, and the crates that do depend on time-zone and compression libraries.

use std::fs::{self, File};
use std::io::{self, Write};
use std::panic;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use regular_file::{WrongFileType, append_linked};
use rustix::stdio::dup2_stderr;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::writer::{BoxMakeWriter, MakeWriterExt};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use protocol::PrivateDirectory;

use crate::config;
use crate::output;

/// The relation of the log to stderr.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StderrMode {
    /// The log is also printed to stderr.
    Tee,
    /// stderr (of libraries and aborts) is redirected to the log.
    Redirect,
}

/// Installs the log as the subscriber of `tracing` and as panic hook.
pub fn init(path: &Path, settings: &config::LogConfig, stderr: StderrMode) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        PrivateDirectory::open_private(directory).map_err(io::Error::other)?;
    }
    let aside = move_aside_if_not_regular(path)?;
    let file = Mutex::new(RotatingFile::open(path, settings, stderr)?);
    let writer = match stderr {
        StderrMode::Tee => BoxMakeWriter::new(file.and(Stderr::default)),
        StderrMode::Redirect => BoxMakeWriter::new(file),
    };
    let level: LevelFilter = settings.level.parse().unwrap_or(LevelFilter::INFO);
    // Write errors are ignored: reporting them to a closed stderr would panic.
    let lines =
        tracing_subscriber::fmt::layer().with_ansi(false).log_internal_errors(false).with_writer(writer);
    // rmcp logs whole requests, including prompts and answers, below WARN.
    let targets = Targets::new().with_default(level).with_target("rmcp", level.min(LevelFilter::WARN));
    let _ = tracing_subscriber::registry().with(lines.with_filter(targets)).try_init();
    panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
    if let Some(aside) = aside {
        tracing::warn!(path = %path.display(), aside = %aside.display(), "the log was not a regular file and was moved aside");
    }
    Ok(())
}

/// Prints log lines to stderr, which may be closed.
#[derive(Default)]
struct Stderr;

impl Write for Stderr {
    /// Writes whole lines, as `tracing` passes them.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        output::aside(String::from_utf8_lossy(bytes).trim_end_matches('\n'));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A file that is rotated before it exceeds its maximum size.
#[derive(Debug)]
struct RotatingFile {
    path: PathBuf,
    file: File,
    length: u64,
    max_bytes: u64,
    files: u32,
    stderr: StderrMode,
}

impl RotatingFile {
    fn open(path: &Path, settings: &config::LogConfig, stderr: StderrMode) -> io::Result<Self> {
        let file = append_linked(path)?;
        let length = file.metadata()?.len();
        let (max_bytes, files) = (settings.max_bytes, settings.files);
        Ok(Self { path: path.to_owned(), file, length, max_bytes, files, stderr })
    }

    /// Renames `log` to `log.1`, `log.1` to `log.2` and so on; the oldest is removed.
    fn rotate(&mut self) -> io::Result<()> {
        let numbered = |number: u32| PathBuf::from(format!("{}.{number}", self.path.display()));
        for number in (1..self.files).rev() {
            let older = if number == 1 { self.path.clone() } else { numbered(number - 1) };
            match fs::rename(older, numbered(number)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        if self.files == 1 {
            fs::remove_file(&self.path)?;
        }
        self.file = append_linked(&self.path)?;
        self.length = 0;
        if self.stderr == StderrMode::Redirect {
            dup2_stderr(&self.file)?;
        }
        Ok(())
    }
}

/// Renames a FIFO, device, socket or directory in place of the log, and returns its new path. The daemon needs no old log to start.
fn move_aside_if_not_regular(path: &Path) -> io::Result<Option<PathBuf>> {
    match append_linked(path) {
        Err(error) if WrongFileType::find(&error).is_some() => {
            let aside = PathBuf::from(format!("{}.not-a-file", path.display()));
            // If that fails, the error that names the log is the useful one.
            fs::rename(path, &aside).map_err(|_| error)?;
            Ok(Some(aside))
        }
        opened => opened.map(|_| None),
    }
}

impl Write for RotatingFile {
    /// Writes one event. An event is never split across files.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let added = bytes.len() as u64;
        if self.length > 0 && self.length + added > self.max_bytes {
            // If the rotation fails, the file grows further rather than losing events.
            let _ = self.rotate();
        }
        self.length += added;
        // A full disk must not stop the daemon.
        let _ = self.file.write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Redirects stderr of this process to the log.
pub fn redirect_stderr(path: &Path) -> io::Result<()> {
    Ok(dup2_stderr(append_linked(path)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn full_log_is_rotated_and_oldest_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("daemon.log");
        let settings = config::LogConfig { level: "info".into(), max_bytes: 10, files: 3 };
        let mut log = RotatingFile::open(&path, &settings, StderrMode::Tee).unwrap();
        for word in ["one", "two", "three", "a word that is longer than a log", "four", "five"] {
            log.write_all(word.as_bytes()).unwrap();
        }
        let read = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
        assert_eq!(read("daemon.log"), "fourfive");
        assert_eq!(read("daemon.log.1"), "a word that is longer than a log");
        assert_eq!(read("daemon.log.2"), "three");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 3);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn log_is_appended_after_restart() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("daemon.log");
        let settings = config::LogConfig { level: "info".into(), max_bytes: 10, files: 1 };
        for word in ["one", "two", "three"] {
            RotatingFile::open(&path, &settings, StderrMode::Tee)
                .unwrap()
                .write_all(word.as_bytes())
                .unwrap();
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "three");
    }
}
