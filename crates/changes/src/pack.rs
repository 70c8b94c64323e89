//! Writes objects into a pack of the private git directory without a git process, each of which takes more than 1 ms.
//!
//! An object is named by its content. A content that belongs to a known attack on SHA-1 has no name, as in git.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use flate2::write::ZlibEncoder;
use flate2::{Compression, Crc};
use sha2::Digest;

use crate::entry::encode_id;
use crate::error::ChangesError;
use crate::files::replace_file;
use crate::git::Git;

/// The signature, the version, and the number of objects, which is set at the end.
const HEADER: &[u8] = b"PACK\0\0\0\x02\0\0\0\0";
const COUNT_AT: u64 = 8;
/// The name of an incomplete pack. The lock of the record allows only one.
const TEMPORARY: &str = "tmp_pack";
const INDEX_HEADER: &[u8] = b"\xfftOc\0\0\0\x02";
/// The index has larger positions in a table of their own.
const LARGE: u32 = 1 << 31;

/// The type of an object.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ObjectKind {
    Tree = 2,
    Blob = 3,
}

/// A pack. Git finds its objects after [`finish`](Self::finish).
#[derive(Debug)]
pub(crate) struct ObjectPack {
    directory: PathBuf,
    id_length: usize,
    /// `None` before the first object.
    file: Option<File>,
    length: u64,
    objects: BTreeMap<Vec<u8>, PackedObject>,
}

#[derive(Debug)]
struct PackedObject {
    checksum: u32,
    position: u64,
}

impl ObjectPack {
    /// Starts a pack in a private git directory. Without objects, no file is written.
    pub(crate) fn new(git: &Git) -> Self {
        let (directory, id_length) = (git.git_dir.join("objects/pack"), git.id_length);
        Self { directory, id_length, file: None, length: 0, objects: BTreeMap::new() }
    }

    /// Adds an object and returns its id, or `None` if the content belongs to an attack on SHA-1.
    pub(crate) fn add(&mut self, kind: ObjectKind, content: &[u8]) -> Result<Option<String>, ChangesError> {
        let Some(id) = hash_object(self.id_length, kind, content) else { return Ok(None) };
        let name = encode_id(&id);
        if !self.objects.contains_key(&id) {
            let object = self.append(kind, content);
            let object = object.map_err(ChangesError::file("write", &self.directory))?;
            self.objects.insert(id, object);
        }
        Ok(Some(name))
    }

    fn append(&mut self, kind: ObjectKind, content: &[u8]) -> io::Result<PackedObject> {
        let file = if let Some(file) = &mut self.file {
            file
        } else {
            // One of a killed process can be linked to another record.
            let _ = fs::remove_file(self.directory.join(TEMPORARY));
            let mut file = File::create_new(self.directory.join(TEMPORARY))?;
            file.write_all(HEADER)?;
            self.length = HEADER.len() as u64;
            self.file.insert(file)
        };
        let mut encoder = ZlibEncoder::new(encode_header(kind, content.len()), Compression::fast());
        encoder.write_all(content)?;
        let object = encoder.finish()?;
        file.write_all(&object)?;
        let mut checksum = Crc::new();
        checksum.update(&object);
        let position = self.length;
        self.length += object.len() as u64;
        Ok(PackedObject { checksum: checksum.sum(), position })
    }

    /// Completes the pack and its index.
    pub(crate) fn finish(self) -> Result<(), ChangesError> {
        let Some(file) = self.file else { return Ok(()) };
        let temporary = self.directory.join(TEMPORARY);
        let complete = || {
            let count = u32::try_from(self.objects.len()).map_err(io::Error::other)?;
            file.write_all_at(&count.to_be_bytes(), COUNT_AT)?;
            let checksum = hash(self.id_length, File::open(&temporary)?)?;
            file.write_all_at(&checksum, self.length)?;
            let path = self.directory.join(format!("pack-{}.pack", encode_id(&checksum)));
            fs::rename(&temporary, &path)?;
            let mut index = encode_index(&self.objects, &checksum);
            index.extend(hash(self.id_length, index.as_slice())?);
            Ok((path.with_extension("idx"), index))
        };
        let completed = complete().map_err(ChangesError::file::<io::Error>("write", &self.directory));
        let (path, index) = completed?;
        // Git finds a pack by its index, so that is written last.
        replace_file(&path, &index)
    }
}

/// Returns the id of an object, or `None` if the content belongs to an attack on SHA-1.
pub(crate) fn hash_object(id_length: usize, kind: ObjectKind, content: &[u8]) -> Option<Vec<u8>> {
    let name = if let ObjectKind::Tree = kind { "tree" } else { "blob" };
    let header = format!("{name} {}\0", content.len());
    hash(id_length, header.as_bytes().chain(content)).ok()
}

/// Returns the SHA-1 or SHA-256 of a content. An attack on SHA-1 is an error, as in git.
fn hash(id_length: usize, mut content: impl Read) -> io::Result<Vec<u8>> {
    if id_length == 64 {
        let mut hasher = sha2::Sha256::new();
        io::copy(&mut content, &mut hasher)?;
        return Ok(hasher.finalize().to_vec());
    }
    let mut hasher = sha1_checked::Sha1::new();
    io::copy(&mut content, &mut hasher)?;
    let result = hasher.try_finalize();
    if result.has_collision() {
        return Err(io::Error::other("the content belongs to an attack on SHA-1"));
    }
    Ok(result.hash().to_vec())
}

/// Encodes the type and the size: four bits of the size, then seven in each further byte.
fn encode_header(kind: ObjectKind, size: usize) -> Vec<u8> {
    let low_bits = |value: usize, mask: usize| u8::try_from(value & mask).unwrap_or_default();
    let (mut header, mut rest) = (Vec::new(), size >> 4);
    let mut byte = (kind as u8) << 4 | low_bits(size, 15);
    while rest > 0 {
        header.push(byte | 128);
        byte = low_bits(rest, 127);
        rest >>= 7;
    }
    header.push(byte);
    header
}

/// Encodes an index of version 2, without its checksum.
fn encode_index(objects: &BTreeMap<Vec<u8>, PackedObject>, pack_checksum: &[u8]) -> Vec<u8> {
    let mut index = INDEX_HEADER.to_vec();
    let (mut count, mut ids) = (0_u32, objects.keys().peekable());
    for first in 0..=u8::MAX {
        while ids.next_if(|id| id.starts_with(&[first])).is_some() {
            count += 1;
        }
        index.extend(count.to_be_bytes());
    }
    index.extend(objects.keys().flatten());
    index.extend(objects.values().flat_map(|object| object.checksum.to_be_bytes()));
    let mut large = Vec::new();
    for PackedObject { position, .. } in objects.values() {
        let small = u32::try_from(*position).ok().filter(|position| *position < LARGE);
        let position = small.unwrap_or_else(|| {
            large.push(*position);
            LARGE | u32::try_from(large.len() - 1).unwrap_or_default()
        });
        index.extend(position.to_be_bytes());
    }
    index.extend(large.into_iter().flat_map(u64::to_be_bytes));
    index.extend(pack_checksum);
    index
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the packs are checked with the git of the machine")]
mod tests {
    use std::ffi::OsString;
    use std::path::Path;
    use std::time::Duration;

    use super::*;
    use crate::git::{GitProgram, GitSession};

    /// Creates a repository.
    fn create_repository(root: &Path, format: &str, id_length: usize) -> Git {
        let program = GitProgram { program: "git".into(), path: std::env::var_os("PATH").unwrap() };
        let session = GitSession::start(program, Duration::from_mins(1));
        let (git_dir, user_objects) = (root.join("git"), root.join("objects"));
        let git = Git { git_dir, worktree: root.to_owned(), user_objects, id_length, session };
        git.command("init").args(["-q", &format!("--object-format={format}")]).run().unwrap();
        git
    }

    #[test]
    fn pack_and_index_are_those_of_git() {
        for (format, id_length) in [("sha1", 40), ("sha256", 64)] {
            let directory = tempfile::tempdir().unwrap();
            let git = create_repository(directory.path(), format, id_length);
            let mut pack = ObjectPack::new(&git);
            let large: Vec<u8> = (0..300_000_u32).flat_map(u32::to_be_bytes).collect();
            let mut ids = Vec::new();
            for content in [b"".as_slice(), b"a\n", &large, b"a\n"] {
                ids.push(pack.add(ObjectKind::Blob, content).unwrap().unwrap());
            }
            ids.push(pack.add(ObjectKind::Tree, b"").unwrap().unwrap());
            pack.finish().unwrap();
            assert_eq!(ids[1], ids[3]);
            let mut files: Vec<PathBuf> = fs::read_dir(git.git_dir.join("objects/pack"))
                .unwrap()
                .map(|entry| entry.unwrap().path())
                .collect();
            files.sort();
            let [index, pack] = files.as_slice() else { panic!("{files:?}") };
            let other = directory.path().join("other.idx");
            let args = ["--strict".into(), OsString::from("-o"), other.clone().into(), pack.into()];
            git.command("index-pack").args(args).run().unwrap();
            assert!(fs::read(index).unwrap() == fs::read(other).unwrap());
            git.command("fsck").args(["--strict"]).run().unwrap();
            let read = |id: &str| git.command("cat-file").args(["blob", id]).run().unwrap();
            assert!(read(&ids[0]).is_empty() && read(&ids[1]) == b"a\n" && read(&ids[2]) == large);
        }
    }

    #[test]
    fn pack_without_objects_is_not_written() {
        let directory = tempfile::tempdir().unwrap();
        let git = create_repository(directory.path(), "sha1", 40);
        ObjectPack::new(&git).finish().unwrap();
        assert_eq!(fs::read_dir(git.git_dir.join("objects/pack")).unwrap().count(), 0);
    }

    #[test]
    fn positions_beyond_two_gigabytes_are_indexed() {
        let directory = tempfile::tempdir().unwrap();
        let git = create_repository(directory.path(), "sha1", 40);
        let positions = [12, u64::from(LARGE) - 1, u64::from(LARGE), 1 << 40];
        let object = |position| PackedObject { checksum: 7, position };
        let objects = positions.into_iter().zip(1..).map(|(position, id)| (vec![id; 20], object(position)));
        let index = encode_index(&objects.collect(), &[0; 20]);
        let shown = git.command("show-index").input([index, vec![0; 20]].concat()).run().unwrap();
        let shown = String::from_utf8(shown).unwrap();
        let shown: Vec<u64> =
            shown.lines().map(|line| line.split(' ').next().unwrap().parse().unwrap()).collect();
        assert_eq!(shown, positions);
    }
}
