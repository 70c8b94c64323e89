//! Matches paths against a glob.

use globset::{GlobBuilder, GlobMatcher};

use crate::beneath::os;
use crate::rejection::{FileRejection, RejectionCode};

/// A glob. Without a slash it matches file names, otherwise paths below the directory.
#[derive(Debug)]
pub(crate) struct FileGlob {
    matcher: GlobMatcher,
    by_name: bool,
    /// The length of the path prefix above that directory.
    prefix: usize,
}

impl FileGlob {
    /// Parses a glob for use below a directory.
    pub(crate) fn parse(glob: &str, directory: &[u8]) -> Result<Self, FileRejection> {
        let pattern = glob.strip_prefix("./").unwrap_or(glob);
        let built = GlobBuilder::new(pattern).literal_separator(true).backslash_escape(true).build();
        let glob = built.map_err(|mistake| {
            FileRejection::new(
                RejectionCode::InvalidPattern,
                format!("`{glob}` is not a valid glob: {}", mistake.kind()),
                "examples: `*.rs`, `src/**/*.{ts,tsx}`, `[a-c]?.txt`",
            )
        })?;
        let prefix = if directory.is_empty() { 0 } else { directory.len() + 1 };
        Ok(Self { matcher: glob.compile_matcher(), by_name: !pattern.contains('/'), prefix })
    }

    /// Returns whether the glob matches a file.
    pub(crate) fn means(&self, name: &[u8], path: impl FnOnce() -> Vec<u8>) -> bool {
        if self.by_name {
            self.matcher.is_match(os(name))
        } else {
            self.matcher.is_match(os(path().get(self.prefix..).unwrap_or_default()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn means(glob: &str, path: &str) -> bool {
        let name = path.rsplit('/').next().unwrap().as_bytes();
        FileGlob::parse(glob, b"").unwrap().means(name, || path.as_bytes().to_vec())
    }

    #[test]
    fn glob_without_slash_matches_names() {
        assert!(means("*.rs", "a/b/c.rs"));
        assert!(!means("*.rs", "a.rs/b"));
    }

    #[test]
    fn glob_with_slash_matches_paths() {
        assert!(means("a/*.rs", "a/c.rs"));
        assert!(!means("a/*.rs", "a/b/c.rs"));
        assert!(means("a/**/*.{rs,toml}", "a/b/c.toml"));
        assert!(means("./a/*", "a/c"));
    }

    #[test]
    fn glob_is_relative_to_its_directory() {
        let glob = FileGlob::parse("b/*", b"a").unwrap();
        assert!(glob.means(b"c", || b"a/b/c".to_vec()));
    }

    #[test]
    fn invalid_glob_is_rejected() {
        assert_eq!(FileGlob::parse("a[", b"").unwrap_err().code(), RejectionCode::InvalidPattern);
    }
}
