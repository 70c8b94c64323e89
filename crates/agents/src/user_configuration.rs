//! Reads configuration files of the user, up to a limit.

use std::io::Read;
use std::path::Path;

use regular_file::open_linked;

/// The size limit of a configuration file. The rest is ignored.
const MAX_BYTES: u64 = 4 * 1024 * 1024;

/// Returns the text of a configuration file. `None` if it does not exist or is not UTF-8.
pub(crate) fn read_configuration(path: &Path) -> Option<String> {
    let file = open_linked(path).ok()?;
    let mut text = String::new();
    file.take(MAX_BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}
