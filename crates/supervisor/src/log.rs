//! The supervisor's log file, `supervisor.log` in the spool.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::Path;

use regular_file::open_regular_at;
use rustix::fs::OFlags;

use crate::spool_files::LOG;

/// Appends an error to the log in the spool, which is this process's stdin. Without errors there is no log file.
pub fn log_error(text: &str) {
    let logged = open_log(io::stdin()).and_then(|mut log| writeln!(log, "switchboard-supervisor: {text}"));
    if logged.is_err() {
        let _ = writeln!(io::stderr(), "switchboard-supervisor: {text}");
    }
}

fn open_log(directory: impl AsFd) -> io::Result<File> {
    open_regular_at(directory, Path::new(LOG), OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn log_is_private_and_appended() {
        let directory = tempfile::tempdir().unwrap();
        for error in ["one ", "two"] {
            let mut log = open_log(File::open(directory.path()).unwrap()).unwrap();
            log.write_all(error.as_bytes()).unwrap();
        }
        let log = directory.path().join(LOG);
        assert_eq!(std::fs::read_to_string(&log).unwrap(), "one two");
        assert_eq!(log.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
}
