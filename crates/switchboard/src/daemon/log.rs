//! The daemon's log: a file that begins anew when it is long enough, and a few of its predecessors.
//!
//! Rotation by size is not in `tracing-appender`, and the crates that have it bring time zones and compression along.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::panic;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rustix::stdio::dup2_stderr;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::writer::{BoxMakeWriter, MakeWriterExt};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config;
use crate::home::OpenFolder;
use crate::output;

/// Where else the log goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beside {
    /// Also to the terminal.
    Terminal,
    /// What the process says on stderr (a library, an abort) goes to the log, too.
    TakesStderr,
}

/// From here on, everything that is traced and every panic is in the log.
pub fn begin(path: &Path, settings: &config::Log, beside: Beside) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        OpenFolder::private(folder).map_err(io::Error::other)?;
    }
    let file = Mutex::new(RotatingFile::open(path, settings, beside)?);
    let writer = match beside {
        Beside::Terminal => BoxMakeWriter::new(file.and(Stderr::default)),
        Beside::TakesStderr => BoxMakeWriter::new(file),
    };
    // What cannot be written is lost, and nothing else with it: complaining to a stderr that is gone would be a panic.
    let level: LevelFilter = settings.level.parse().unwrap_or(LevelFilter::INFO);
    // A second begin would be a mistake of ours; the first log goes on.
    let lines =
        tracing_subscriber::fmt::layer().with_ansi(false).log_internal_errors(false).with_writer(writer);
    // rmcp writes whole requests down when it is let, prompts and answers with them.
    let whose = Targets::new().with_default(level).with_target("rmcp", level.min(LevelFilter::WARN));
    let _ = tracing_subscriber::registry().with(lines.with_filter(whose)).try_init();
    panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
    Ok(())
}

/// A terminal or a pipe that may be gone.
#[derive(Default)]
struct Stderr;

impl Write for Stderr {
    /// Takes whole lines: that is how they are traced.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        output::aside(String::from_utf8_lossy(bytes).trim_end_matches('\n'));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A file that is set aside when it would become too long.
#[derive(Debug)]
struct RotatingFile {
    path: PathBuf,
    file: File,
    length: u64,
    longest: u64,
    files: u32,
    beside: Beside,
}

impl RotatingFile {
    fn open(path: &Path, settings: &config::Log, beside: Beside) -> io::Result<Self> {
        let file = append(path)?;
        let length = file.metadata()?.len();
        let (longest, files) = (settings.max_bytes, settings.files);
        Ok(Self { path: path.to_owned(), file, length, longest, files, beside })
    }

    /// `log` becomes `log.1`, that becomes `log.2`, and the oldest goes.
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
        self.file = append(&self.path)?;
        self.length = 0;
        if self.beside == Beside::TakesStderr {
            dup2_stderr(&self.file)?;
        }
        Ok(())
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

impl Write for RotatingFile {
    /// One event is one write, so none is torn in two.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let added = bytes.len() as u64;
        if self.length > 0 && self.length + added > self.longest {
            // A log that cannot be set aside becomes too long rather than being lost.
            let _ = self.rotate();
        }
        self.length += added;
        // A full disk is no reason to end.
        let _ = self.file.write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// What this process writes to stderr from here on is in the log.
pub fn take_stderr(path: &Path) -> io::Result<()> {
    Ok(dup2_stderr(append(path)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_long_log_is_set_aside_and_the_oldest_goes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("daemon.log");
        let settings = config::Log { level: "info".into(), max_bytes: 10, files: 3 };
        let mut log = RotatingFile::open(&path, &settings, Beside::Terminal).unwrap();
        for word in ["one", "two", "three", "a word that is longer than a log", "four", "five"] {
            log.write_all(word.as_bytes()).unwrap();
        }
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!(read("daemon.log"), "fourfive");
        assert_eq!(read("daemon.log.1"), "a word that is longer than a log");
        assert_eq!(read("daemon.log.2"), "three");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_log_is_gone_on_with_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("daemon.log");
        let settings = config::Log { level: "info".into(), max_bytes: 10, files: 1 };
        for word in ["one", "two", "three"] {
            RotatingFile::open(&path, &settings, Beside::Terminal)
                .unwrap()
                .write_all(word.as_bytes())
                .unwrap();
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "three");
    }
}
