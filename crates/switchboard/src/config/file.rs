//! Reads the configuration file, checks its owner and mode, and parses it into known keys with their lines.

use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use regular_file::open_linked;
use rustix::process::geteuid;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{ConfigError, Source};
use super::keys::{self, KEYS};
use super::settings::{EffectiveSetting, SettingName};
use super::value::{self, ValueKind};

/// The maximum size. A larger file is a device or a mistake.
const MAX_BYTES: u64 = 1 << 20;

/// Returns the content of the file; `None` if it does not exist.
pub fn read(path: &Path) -> Result<Option<String>, ConfigError> {
    let unreadable = |source| ConfigError::Unreadable { path: path.to_owned(), source };
    let file = match open_linked(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(unreadable)?,
    };
    let metadata = file.metadata().map_err(unreadable)?;
    let (owner, mode) = (metadata.uid(), metadata.mode() & 0o7777);
    // Root is accepted: package and configuration managers install files as root.
    if (owner != geteuid().as_raw() && owner != 0) || mode & 0o022 != 0 {
        return Err(ConfigError::NotYours { path: path.to_owned(), owner, mode });
    }
    let mut text = String::new();
    file.take(MAX_BYTES).read_to_string(&mut text).map_err(unreadable)?;
    Ok(Some(text))
}

/// Parses all settings of the file.
pub fn parse(
    path: &Path,
    text: &str,
    user_home: Option<&Path>,
) -> Result<Vec<(SettingName, EffectiveSetting)>, ConfigError> {
    let parser = FileParser { path, text, user_home };
    let table = DeTable::parse(text).map_err(|error| ConfigError::NotToml {
        path: path.to_owned(),
        line: parser.line(error.span().map_or(0, |span| span.start)),
        message: error.message().to_owned(),
    })?;
    let mut found = Vec::new();
    parser.parse_table(&mut Vec::new(), table.get_ref(), &mut found)?;
    Ok(found)
}

struct FileParser<'a> {
    path: &'a Path,
    text: &'a str,
    /// The directory that `~` stands for.
    user_home: Option<&'a Path>,
}

impl FileParser<'_> {
    fn parse_table<'t>(
        &self,
        path_so_far: &mut Vec<&'t str>,
        table: &'t DeTable<'_>,
        found: &mut Vec<(SettingName, EffectiveSetting)>,
    ) -> Result<(), ConfigError> {
        for (key, value) in table {
            path_so_far.push(key.get_ref());
            let place = self.source_at(key.span().start);
            match (keys::find(path_so_far), value.get_ref()) {
                (Some((index, word)), _) => {
                    let word = match word {
                        Some(word) if KEYS[index].is_of_path() => Some(self.parse_path(word, index, &place)?),
                        word => word.map(str::to_owned),
                    };
                    let name = SettingName::new(index, word.as_deref());
                    let setting = self.parse_setting(path_so_far, index, value, place)?;
                    if found.iter().any(|(other, _)| *other == name) {
                        let key = keys::join_name(path_so_far);
                        return Err(ConfigError::SetTwice { place: setting.source, key });
                    }
                    found.push((name, setting));
                }
                (None, DeValue::Table(inner)) if keys::is_section(path_so_far) => {
                    if let Some(index) = keys::find_path_part(path_so_far) {
                        self.parse_path(key.get_ref(), index, &place)?;
                    }
                    self.parse_table(path_so_far, inner, found)?;
                }
                (None, _) if keys::is_section(path_so_far) => {
                    let (expected, found) = ("a table".to_owned(), "a single value".to_owned());
                    let key = keys::join_name(path_so_far);
                    return Err(ConfigError::BadValue { place, key, expected, found });
                }
                (None, _) => {
                    let nearest = keys::find_nearest(&path_so_far.join("."));
                    let key = keys::join_name(path_so_far);
                    return Err(ConfigError::UnknownKey { place, nearest, key });
                }
            }
            path_so_far.pop();
        }
        Ok(())
    }

    /// Parses the path in the name of a key, without redundant separators.
    fn parse_path(&self, word: &str, index: usize, place: &Source) -> Result<String, ConfigError> {
        let path = value::parse_path(word, self.user_home);
        let path = path.map(|path| path.components().collect::<PathBuf>());
        path.and_then(|path| path.into_os_string().into_string().ok()).ok_or_else(|| ConfigError::BadValue {
            place: place.clone(),
            key: KEYS[index].section().to_owned(),
            expected: ValueKind::Path.to_string(),
            found: format!("`{word}`"),
        })
    }

    fn parse_setting(
        &self,
        path: &[&str],
        index: usize,
        value: &Spanned<DeValue<'_>>,
        source: Source,
    ) -> Result<EffectiveSetting, ConfigError> {
        let kind = KEYS[index].kind;
        match kind.parse_toml(value.get_ref(), self.user_home) {
            Ok(value) => Ok(EffectiveSetting { value, source }),
            Err(found) => {
                let (key, expected) = (keys::join_name(path), kind.to_string());
                Err(ConfigError::BadValue { place: source, key, expected, found })
            }
        }
    }

    fn source_at(&self, offset: usize) -> Source {
        Source::File { path: self.path.to_owned(), line: self.line(offset) }
    }

    fn line(&self, offset: usize) -> usize {
        1 + self.text.bytes().take(offset).filter(|&byte| byte == b'\n').count()
    }
}
