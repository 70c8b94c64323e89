//! Images that belong to a prompt.
//!
//! Has I/O: called before the launch. Reads a file only up to a limit, and recognizes its type by its first bytes.

use std::io::Read;
use std::path::{Path, PathBuf};

use regular_file::open_linked;

use crate::LaunchError;

/// The largest image.
const MAX_BYTES: u64 = 10 << 20;
/// The largest number of images.
const MAX_IMAGES: usize = 20;

/// An image file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageFile {
    /// Its type, such as `image/png`.
    pub mime_type: &'static str,
    /// The extension of files of that type.
    pub extension: &'static str,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// Reads the images of a call.
pub fn read_images(paths: &[PathBuf]) -> Result<Vec<ImageFile>, LaunchError> {
    if paths.len() > MAX_IMAGES {
        return Err(LaunchError::TooManyImages { limit: MAX_IMAGES });
    }
    paths.iter().map(|path| read_image(path)).collect()
}

fn read_image(path: &Path) -> Result<ImageFile, LaunchError> {
    let failed = |problem: String| LaunchError::Image { path: path.to_owned(), problem };
    if !path.is_absolute() {
        return Err(failed("the path is not absolute".to_owned()));
    }
    let mut bytes = Vec::new();
    let read = open_linked(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes));
    read.map_err(|error| failed(error.to_string()))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(failed(format!("it is larger than {} MiB", MAX_BYTES >> 20)));
    }
    let (mime_type, extension) =
        recognize(&bytes).ok_or_else(|| failed("it is no PNG, JPEG, GIF or WebP".to_owned()))?;
    Ok(ImageFile { mime_type, extension, bytes })
}

fn recognize(bytes: &[u8]) -> Option<(&'static str, &'static str)> {
    Some(match bytes {
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => ("image/png", "png"),
        [0xff, 0xd8, 0xff, ..] => ("image/jpeg", "jpg"),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => ("image/gif", "gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => ("image/webp", "webp"),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PNG: &[u8] = b"\x89PNG\r\n\x1a\n1234";

    #[test]
    fn image_is_recognized_by_its_content() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("picture.txt");
        std::fs::write(&path, PNG).unwrap();
        let images = read_images(std::slice::from_ref(&path)).unwrap();
        assert_eq!((images[0].mime_type, images[0].bytes.as_slice()), ("image/png", PNG));
        std::fs::write(&path, "-----BEGIN PRIVATE KEY-----").unwrap();
        let error = read_images(&[path]).unwrap_err().to_string();
        assert!(error.ends_with("it is no PNG, JPEG, GIF or WebP"), "{error}");
    }

    #[test]
    fn missing_large_and_special_files_are_rejected() {
        let directory = tempfile::tempdir().unwrap();
        let large = directory.path().join("large.png");
        std::fs::File::create(&large).unwrap().set_len(MAX_BYTES + 1).unwrap();
        for path in [large, directory.path().join("missing.png"), "/dev/zero".into(), "relative.png".into()] {
            assert!(read_images(std::slice::from_ref(&path)).is_err(), "{}", path.display());
        }
        assert!(read_images(&vec![PathBuf::from("/x.png"); MAX_IMAGES + 1]).is_err());
    }
}
