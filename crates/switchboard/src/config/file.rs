//! The configuration file: read, checked for whose it is, and taken apart into known keys with their lines.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::process::geteuid;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{ConfigError, Source};
use super::keys::{self, KEYS};
use super::settings::{Name, Setting};

/// No configuration is that long; a device or a log by mistake is.
const LONGEST: u64 = 1 << 20;

/// The text of the file; none when there is none.
pub fn text(path: &Path) -> Result<Option<String>, ConfigError> {
    let unreadable = |source| ConfigError::Unreadable { path: path.to_owned(), source };
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(unreadable)?,
    };
    let metadata = file.metadata().map_err(unreadable)?;
    let (owner, mode) = (metadata.uid(), metadata.mode() & 0o7777);
    // Root may have laid it down for everybody, as package and configuration systems do.
    if (owner != geteuid().as_raw() && owner != 0) || mode & 0o022 != 0 {
        return Err(ConfigError::NotYours { path: path.to_owned(), owner, mode });
    }
    let mut text = String::new();
    file.take(LONGEST).read_to_string(&mut text).map_err(unreadable)?;
    Ok(Some(text))
}

/// Every key that the text sets.
pub fn settings(path: &Path, text: &str, user: Option<&Path>) -> Result<Vec<(Name, Setting)>, ConfigError> {
    let reading = Reading { path, text, user };
    let table = DeTable::parse(text).map_err(|error| ConfigError::NotToml {
        path: path.to_owned(),
        line: reading.line(error.span().map_or(0, |span| span.start)),
        message: error.message().to_owned(),
    })?;
    let mut found = Vec::new();
    reading.table(&mut Vec::new(), table.get_ref(), &mut found)?;
    Ok(found)
}

struct Reading<'a> {
    path: &'a Path,
    text: &'a str,
    /// What `~` stands for.
    user: Option<&'a Path>,
}

impl Reading<'_> {
    fn table<'t>(
        &self,
        above: &mut Vec<&'t str>,
        table: &'t DeTable<'_>,
        found: &mut Vec<(Name, Setting)>,
    ) -> Result<(), ConfigError> {
        for (key, value) in table {
            above.push(key.get_ref());
            let place = self.place(key.span().start);
            match (keys::find(above), value.get_ref()) {
                (Some((index, word)), _) => {
                    found.push((Name::new(index, word), self.setting(above, index, value, place)?));
                }
                (None, DeValue::Table(inner)) if keys::is_section(above) => {
                    self.table(above, inner, found)?;
                }
                (None, _) if keys::is_section(above) => {
                    let (expected, found) = ("a table".to_owned(), "a single value".to_owned());
                    return Err(ConfigError::BadValue { place, key: above.join("."), expected, found });
                }
                (None, _) => {
                    let key = above.join(".");
                    return Err(ConfigError::UnknownKey { place, nearest: keys::nearest(&key), key });
                }
            }
            above.pop();
        }
        Ok(())
    }

    fn setting(
        &self,
        path: &[&str],
        index: usize,
        value: &Spanned<DeValue<'_>>,
        source: Source,
    ) -> Result<Setting, ConfigError> {
        let kind = KEYS[index].kind;
        match kind.read(value.get_ref(), self.user) {
            Ok(value) => Ok(Setting { value, source }),
            Err(found) => {
                let (key, expected) = (path.join("."), kind.to_string());
                Err(ConfigError::BadValue { place: source, key, expected, found })
            }
        }
    }

    fn place(&self, offset: usize) -> Source {
        Source::File { path: self.path.to_owned(), line: self.line(offset) }
    }

    fn line(&self, offset: usize) -> usize {
        1 + self.text.bytes().take(offset).filter(|&byte| byte == b'\n').count()
    }
}
