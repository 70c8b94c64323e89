//! Serializes paths without loss, including those that are not UTF-8: serde rejects them, and any agent can create one.
//!
//! A UTF-8 path is serialized unchanged, any other with bash quoting: `$'/shop/\xff'`.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const QUOTE: &str = "$'";

/// Paths with a lossless encoding.
pub trait ExactPath: Sized {
    /// The serialized form.
    type Encoded: Serialize + DeserializeOwned;
    /// Returns the serialized form.
    fn encode(&self) -> Self::Encoded;
    /// Parses the serialized form. Returns `None` if it is malformed.
    fn decode(encoded: Self::Encoded) -> Option<Self>;
}

impl ExactPath for PathBuf {
    type Encoded = String;

    fn encode(&self) -> String {
        match self.to_str() {
            Some(text) if !text.starts_with(QUOTE) => text.to_owned(),
            _ => quote_path(self),
        }
    }

    fn decode(encoded: String) -> Option<Self> {
        if encoded.starts_with(QUOTE) { unquote_path(&encoded) } else { Some(encoded.into()) }
    }
}

impl<T: ExactPath> ExactPath for Option<T> {
    type Encoded = Option<T::Encoded>;

    fn encode(&self) -> Self::Encoded {
        self.as_ref().map(T::encode)
    }

    fn decode(encoded: Self::Encoded) -> Option<Self> {
        encoded.map(T::decode).map_or(Some(None), |path| path.map(Some))
    }
}

impl<T: ExactPath> ExactPath for Vec<T> {
    type Encoded = Vec<T::Encoded>;

    fn encode(&self) -> Self::Encoded {
        self.iter().map(T::encode).collect()
    }

    fn decode(encoded: Self::Encoded) -> Option<Self> {
        encoded.into_iter().map(T::decode).collect()
    }
}

/// A path with an associated value.
impl<T: ExactPath, U: Clone + Serialize + DeserializeOwned> ExactPath for (T, U) {
    type Encoded = (T::Encoded, U);

    fn encode(&self) -> Self::Encoded {
        (self.0.encode(), self.1.clone())
    }

    fn decode((encoded, other): Self::Encoded) -> Option<Self> {
        Some((T::decode(encoded)?, other))
    }
}

/// Serializes paths exactly, for `#[serde(with = "exact_path")]`.
pub fn serialize<T: ExactPath, S: Serializer>(paths: &T, serializer: S) -> Result<S::Ok, S::Error> {
    paths.encode().serialize(serializer)
}

/// Deserializes paths that [`serialize`] has encoded.
pub fn deserialize<'de, T: ExactPath, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    T::decode(T::Encoded::deserialize(deserializer)?).ok_or_else(|| D::Error::custom("malformed path"))
}

/// Formats a path for one line of a terminal: quoted for bash if it is not UTF-8 or contains unprintable characters.
pub fn show_path(path: &Path) -> String {
    let is_printable = |c: char| c.is_alphanumeric() || (' '..='~').contains(&c);
    match path.to_str() {
        Some(text) if text.chars().all(is_printable) && !text.starts_with(QUOTE) => text.to_owned(),
        _ => quote_path(path),
    }
}

/// Quotes a path for bash, in one line of printable ASCII: `$'a\x0ab'`.
pub fn quote_path(path: &Path) -> String {
    let quoted = path.as_os_str().as_bytes().iter().map(|byte| match byte {
        b'\\' | b'\'' => format!("\\{}", char::from(*byte)),
        b' '..=b'~' => char::from(*byte).to_string(),
        _ => format!("\\x{byte:02x}"),
    });
    format!("{QUOTE}{}'", quoted.collect::<String>())
}

/// Parses the output of [`quote_path`].
fn unquote_path(quoted: &str) -> Option<PathBuf> {
    let mut bytes = quoted.strip_prefix(QUOTE)?.strip_suffix('\'')?.bytes();
    let mut path = Vec::new();
    while let Some(byte) = bytes.next() {
        path.push(match byte {
            b'\\' => match bytes.next()? {
                b'x' => {
                    let digits = [bytes.next()?, bytes.next()?];
                    u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
                }
                byte => byte,
            },
            byte => byte,
        });
    }
    Some(OsString::from_vec(path).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(bytes: &[u8]) -> PathBuf {
        OsString::from_vec(bytes.to_vec()).into()
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct List {
        #[serde(with = "super")]
        one: PathBuf,
        #[serde(with = "super", default)]
        some: Option<PathBuf>,
        #[serde(with = "super")]
        all: Vec<(PathBuf, u32)>,
    }

    #[test]
    fn non_utf8_paths_round_trip() {
        for bytes in [
            b"/shop/a b".as_slice(),
            "/shop/ä\n".as_bytes(),
            b"",
            b"$'/shop'",
            b"$'",
            b"/shop/\xff\xfe'\\x41\n\"",
            b"\xc3",
        ] {
            let path = path(bytes);
            let list =
                List { one: path.clone(), some: Some(path.clone()), all: vec![(path.clone(), 7), (path, 8)] };
            let json = serde_json::to_string(&list).unwrap();
            assert_eq!(serde_json::from_str::<List>(&json).unwrap(), list, "{json}");
        }
    }

    #[test]
    fn utf8_paths_are_serialized_unchanged() {
        let list = List { one: "/shop/ä".into(), some: None, all: vec![("/a".into(), 7)] };
        let json = r#"{"one":"/shop/ä","some":null,"all":[["/a",7]]}"#;
        assert_eq!(serde_json::to_string(&list).unwrap(), json);
        assert_eq!(serde_json::from_str::<List>(r#"{"one":"/shop/ä","all":[["/a",7]]}"#).unwrap(), list);
        for malformed in ["$'", "$'/a", r"$'\x4'", r"$'\'", r"$'\xzz'"] {
            let json = serde_json::json!({ "one": malformed, "all": [] });
            assert!(serde_json::from_value::<List>(json).is_err(), "{malformed}");
        }
    }

    #[test]
    fn quoted_path_is_one_line() {
        assert_eq!(quote_path(&path(b"/a\n\x1b\xff it's \\")), r"$'/a\x0a\x1b\xff it\'s \\'");
        assert_eq!(show_path(Path::new("/a b/\u{e4}'")), "/a b/\u{e4}'");
        for unprintable in ["/a\nnote: b", "/a\r", "/a\u{202e}", "/a\u{9b}", "/a\u{2028}", "$'a'"] {
            assert_eq!(show_path(Path::new(unprintable)), quote_path(Path::new(unprintable)));
        }
    }
}
