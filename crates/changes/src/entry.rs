//! The entries of an index, and the formats in which git lists and reads them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The mode and the object of a path.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) mode: u32,
    pub(crate) oid: String,
}

impl Entry {
    pub(crate) const LINK: u32 = 0o120_000;
    pub(crate) const SUBMODULE: u32 = 0o160_000;

    pub(crate) fn is_submodule(&self) -> bool {
        self.mode == Self::SUBMODULE
    }

    pub(crate) fn is_regular(&self) -> bool {
        self.mode & 0o170_000 == 0o100_000
    }

    /// Returns the entry of a listing, or `None` if it is malformed.
    pub(crate) fn parse(mode: &[u8], oid: &[u8]) -> Option<Self> {
        let mode = u32::from_str_radix(str::from_utf8(mode).ok()?, 8).ok()?;
        let oid = str::from_utf8(oid).ok().filter(|oid| is_object_id(oid))?;
        Some(Self { mode, oid: oid.to_owned() })
    }
}

/// Returns whether a text is an object id of SHA-1 or SHA-256.
pub(crate) fn is_object_id(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Converts an object id to its bytes.
pub(crate) fn decode_id(oid: &str) -> Vec<u8> {
    let digit =
        |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok()).unwrap_or(0);
    oid.as_bytes().chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

/// Converts the bytes of an object id to a text.
pub(crate) fn encode_id(id: &[u8]) -> String {
    let digit = |value: u8| char::from_digit(u32::from(value), 16).unwrap_or('0');
    id.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// Converts the bytes of git to a path.
pub(crate) fn to_path(bytes: &[u8]) -> PathBuf {
    OsStr::from_bytes(bytes).into()
}

/// Splits output with terminating NUL bytes.
pub(crate) fn split_nul(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let bytes = bytes.strip_suffix(b"\0").unwrap_or(bytes);
    bytes.split(|byte| *byte == 0).filter(move |_| !bytes.is_empty())
}

/// Joins paths with terminating NUL bytes.
pub(crate) fn join_nul<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Vec<u8> {
    let mut joined = Vec::new();
    for path in paths {
        joined.extend(path.as_os_str().as_bytes());
        joined.push(0);
    }
    joined
}

/// One record of a raw diff.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RawChange {
    pub(crate) before: Option<Entry>,
    pub(crate) after: Option<Entry>,
    /// The first letter of the status: `A`, `M`, `D`, `R`, `T`, `U`.
    pub(crate) status: u8,
    /// The path before a rename.
    pub(crate) from: Option<PathBuf>,
    pub(crate) path: PathBuf,
}

/// Parses one record of `--raw -z` whose first field is already taken from the fields.
pub(crate) fn parse_raw_change<'a>(
    header: &[u8],
    fields: &mut impl Iterator<Item = &'a [u8]>,
) -> Option<RawChange> {
    let mut parts = header.strip_prefix(b":")?.split(|byte| *byte == b' ');
    let mut part = || parts.next();
    let (mode_before, mode_after, oid_before, oid_after) = (part()?, part()?, part()?, part()?);
    let status = *part()?.first()?;
    let first = to_path(fields.next()?);
    let (from, path) = match status {
        b'R' | b'C' => (Some(first), to_path(fields.next()?)),
        _ => (None, first),
    };
    // A side without the file has the mode zero.
    let exists = |entry: &Entry| entry.mode != 0;
    Some(RawChange {
        before: Some(Entry::parse(mode_before, oid_before)?).filter(exists),
        after: Some(Entry::parse(mode_after, oid_after)?).filter(exists),
        status,
        from,
        path,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OID: &str = "1111111111111111111111111111111111111111";
    const NONE: &str = "0000000000000000000000000000000000000000";

    #[test]
    fn raw_rename_has_both_paths() {
        let output = format!(":100644 100755 {OID} {OID} R095\0a\nb\0:c\0");
        let mut fields = split_nul(output.as_bytes());
        let header = fields.next().unwrap();
        let change = parse_raw_change(header, &mut fields).unwrap();
        assert_eq!((change.status, change.from, change.path), (b'R', Some("a\nb".into()), ":c".into()));
        assert_eq!(change.after, Some(Entry { mode: 0o100_755, oid: OID.into() }));
    }

    #[test]
    fn mode_zero_is_no_entry() {
        let header = format!(":000000 100644 {NONE} {OID} A");
        let change = parse_raw_change(header.as_bytes(), &mut [b"a".as_slice()].into_iter()).unwrap();
        assert_eq!((change.before, change.after.unwrap().mode), (None, 0o100_644));
    }

    #[test]
    fn malformed_object_id_is_rejected() {
        assert_eq!(Entry::parse(b"100644", b"--exec"), None);
    }

    #[test]
    fn empty_output_has_no_fields() {
        assert_eq!(split_nul(b"").count(), 0);
        assert_eq!(split_nul(b"a\0\0").count(), 2);
    }
}
