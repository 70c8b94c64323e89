//! Walks all directories below a path, with several threads if there is enough work.
//!
//! Every directory is opened beneath its open parent and never through a link: a directory that is swapped for a link during
//! the walk is not entered. A [`TreeVisitor`] decides about each entry.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use rustix::fs::{AtFlags, FileType, OFlags, RawDir};

use crate::beneath;
use crate::ignored::Ignored;

/// The buffer size for `getdents64`.
const FETCH: usize = 32 * 1024;
/// The number of files in one work item.
const PIECE: usize = 128;
/// The number of pending work items that justifies another thread.
const WORTH_A_THREAD: usize = 4;

/// Whether a walk continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WalkFlow {
    Go,
    Stop,
}

/// An open directory.
#[derive(Debug)]
pub(crate) struct OpenDirectory {
    pub(crate) fd: OwnedFd,
    /// The path in the workspace; empty for the workspace itself.
    pub(crate) real: Vec<u8>,
    pub(crate) ignored: Option<Arc<Ignored>>,
}

impl OpenDirectory {
    /// Returns the path of a name in this directory.
    fn path_of(&self, name: &[u8]) -> Vec<u8> {
        let mut path = Vec::with_capacity(self.real.len() + 1 + name.len());
        if !self.real.is_empty() {
            path.extend_from_slice(&self.real);
            path.push(b'/');
        }
        path.extend_from_slice(name);
        path
    }
}

/// An entry of a directory.
#[derive(Debug)]
pub(crate) struct DirectoryEntry<'a> {
    pub(crate) directory: &'a OpenDirectory,
    pub(crate) name: &'a [u8],
    pub(crate) kind: FileType,
}

impl DirectoryEntry<'_> {
    /// Returns the path in the workspace.
    pub(crate) fn path(&self) -> Vec<u8> {
        self.directory.path_of(self.name)
    }
}

/// Receives the entries of a walk. Each thread has one visitor.
pub(crate) trait TreeVisitor {
    /// Visits an entry that is neither a directory nor ignored.
    fn visit(&mut self, entry: &DirectoryEntry<'_>) -> WalkFlow;
}

/// The entries that a walk skips.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Skip {
    /// None: directories are visited, too.
    Nothing,
    /// Files ignored by `.gitignore`, and the `.git` directory.
    Ignored,
}

/// The names in a directory, in one buffer.
#[derive(Debug, Default)]
struct Names {
    bytes: Vec<u8>,
    entries: Vec<(Range<usize>, FileType)>,
}

enum Work {
    Open(Arc<OpenDirectory>, Vec<u8>),
    Look(Arc<OpenDirectory>),
    Files(Arc<OpenDirectory>, Arc<Names>, Range<usize>),
}

#[derive(Default)]
struct Queue {
    waiting: Vec<Work>,
    busy: usize,
}

/// The shared state of a walk.
struct Walk {
    skip: Skip,
    queue: Mutex<Queue>,
    /// Signals new work items or the end of the walk.
    news: Condvar,
    stopped: AtomicBool,
    unreadable: AtomicU64,
}

/// Visits all entries below a directory on this thread, each directory before its contents. Returns the number of unreadable
/// directories.
pub(crate) fn visit_everything(
    fd: OwnedFd,
    real: &[u8],
    visit: impl FnMut(&DirectoryEntry<'_>) -> WalkFlow,
) -> u64 {
    struct Each<F>(F);
    impl<F: FnMut(&DirectoryEntry<'_>) -> WalkFlow> TreeVisitor for Each<F> {
        fn visit(&mut self, entry: &DirectoryEntry<'_>) -> WalkFlow {
            (self.0)(entry)
        }
    }
    let walk = Walk::new(OpenDirectory { fd, real: real.to_vec(), ignored: None }, Skip::Nothing);
    walk.work(&mut Each(visit), |_| {});
    walk.unreadable.into_inner()
}

/// Visits the files below a directory that are not ignored, with up to `threads` visitors. Returns the visitors, and the number
/// of unreadable directories.
pub(crate) fn visit<V: TreeVisitor + Send>(
    start: OpenDirectory,
    threads: usize,
    visitor: impl Fn() -> V + Sync,
) -> (Vec<V>, u64) {
    let walk = Walk::new(start, Skip::Ignored);
    let visitors = thread::scope(|scope| {
        let mut others = Vec::new();
        let mut own = visitor();
        walk.work(&mut own, |waiting| {
            if others.is_empty() && waiting >= WORTH_A_THREAD {
                for _ in 1..threads {
                    let join = || {
                        let mut visitor = visitor();
                        walk.work(&mut visitor, |_| {});
                        visitor
                    };
                    // If no thread can be spawned, this one does all the work.
                    others.extend(thread::Builder::new().spawn_scoped(scope, join).ok());
                }
            }
        });
        // A result without the matches of a panicked thread would be incomplete.
        let others = others.into_iter().map(|other| other.join().unwrap_or_else(|died| resume_unwind(died)));
        std::iter::once(own).chain(others).collect()
    });
    (visitors, walk.unreadable.into_inner())
}

impl Walk {
    fn new(start: OpenDirectory, skip: Skip) -> Self {
        let queue = Queue { waiting: vec![Work::Look(Arc::new(start))], busy: 0 };
        Self {
            skip,
            queue: Mutex::new(queue),
            news: Condvar::new(),
            stopped: AtomicBool::new(false),
            unreadable: AtomicU64::new(0),
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Processes work items until none is left. `look_up` receives the number of pending items after each.
    fn work(&self, visitor: &mut impl TreeVisitor, mut look_up: impl FnMut(usize)) {
        let mut buffer = vec![MaybeUninit::uninit(); FETCH];
        while let Some(work) = self.next() {
            // Also on a panic of the visitor: the other threads must not wait forever.
            let done = FinishedItem(self);
            let (directory, names, range) = match work {
                Work::Files(directory, names, range) => (directory, names, range),
                Work::Look(directory) => self.look(directory, &mut buffer),
                Work::Open(above, name) => match self.open(&above, &name) {
                    None => continue,
                    Some(directory) => {
                        drop(above);
                        self.look(Arc::new(directory), &mut buffer)
                    }
                },
            };
            look_up(self.queue().waiting.len());
            for (at, kind) in &names.entries[range] {
                let entry =
                    DirectoryEntry { directory: &directory, name: &names.bytes[at.clone()], kind: *kind };
                if self.stopped.load(Ordering::Relaxed) || visitor.visit(&entry) == WalkFlow::Stop {
                    self.stopped.store(true, Ordering::Relaxed);
                    break;
                }
            }
            drop(done);
        }
    }

    fn next(&self) -> Option<Work> {
        let mut queue = self.queue();
        loop {
            if self.stopped.load(Ordering::Relaxed) {
                self.news.notify_all();
                return None;
            }
            if let Some(work) = queue.waiting.pop() {
                queue.busy += 1;
                return Some(work);
            }
            if queue.busy == 0 {
                self.news.notify_all();
                return None;
            }
            queue = self.news.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn open(&self, above: &OpenDirectory, name: &[u8]) -> Option<OpenDirectory> {
        let opened = beneath::open(above.fd.as_fd(), name, OFlags::RDONLY | OFlags::DIRECTORY, 0);
        if opened.is_err() {
            self.unreadable.fetch_add(1, Ordering::Relaxed);
        }
        let ignored = above.ignored.clone();
        Some(OpenDirectory { fd: opened.ok()?, real: above.path_of(name), ignored })
    }

    /// Reads the names in a directory, queues its subdirectories and most of its files, and keeps one work item.
    fn look(
        &self,
        mut directory: Arc<OpenDirectory>,
        buffer: &mut [MaybeUninit<u8>],
    ) -> (Arc<OpenDirectory>, Arc<Names>, Range<usize>) {
        let mut names = self.names(&directory, buffer);
        if self.skip == Skip::Ignored {
            let has_rules = names.entries.iter().any(|(at, _)| Ignored::is_rules(&names.bytes[at.clone()]));
            if has_rules && let Some(directory) = Arc::get_mut(&mut directory) {
                directory.ignored =
                    Ignored::enter(directory.ignored.take(), directory.fd.as_fd(), &directory.real);
            }
            names.leave_out_ignored(&directory);
        }
        let mut work: Vec<Work> = Vec::new();
        for (at, kind) in &names.entries {
            if *kind == FileType::Directory {
                work.push(Work::Open(Arc::clone(&directory), names.bytes[at.clone()].to_vec()));
            }
        }
        if self.skip == Skip::Ignored {
            names.entries.retain(|(_, kind)| *kind != FileType::Directory);
        }
        let names = Arc::new(names);
        let own = 0..names.entries.len().min(PIECE);
        for start in (own.end..names.entries.len()).step_by(PIECE) {
            let piece = start..names.entries.len().min(start + PIECE);
            work.push(Work::Files(Arc::clone(&directory), Arc::clone(&names), piece));
        }
        if !work.is_empty() {
            let alone = work.len() == 1;
            self.queue().waiting.append(&mut work);
            if alone { self.news.notify_one() } else { self.news.notify_all() }
        }
        (directory, names, own)
    }

    fn names(&self, directory: &OpenDirectory, buffer: &mut [MaybeUninit<u8>]) -> Names {
        let mut names = Names::default();
        let mut listing = RawDir::new(&directory.fd, buffer);
        while let Some(entry) = listing.next() {
            let Ok(entry) = entry else {
                self.unreadable.fetch_add(1, Ordering::Relaxed);
                break;
            };
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => rustix::fs::statat(&directory.fd, name, AtFlags::SYMLINK_NOFOLLOW)
                    .map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode)),
                known => known,
            };
            let start = names.bytes.len();
            names.bytes.extend_from_slice(name);
            names.entries.push((start..names.bytes.len(), kind));
        }
        names
    }
}

impl Names {
    fn leave_out_ignored(&mut self, directory: &OpenDirectory) {
        let Self { bytes, entries } = self;
        entries.retain(|(at, kind)| {
            let (name, is_directory) = (&bytes[at.clone()], *kind == FileType::Directory);
            let ignores = |ignored: &Arc<Ignored>| ignored.ignores(&directory.path_of(name), is_directory);
            name != b".git" && !directory.ignored.as_ref().is_some_and(ignores)
        });
    }
}

/// Marks a work item as finished when it is dropped.
struct FinishedItem<'a>(&'a Walk);

impl Drop for FinishedItem<'_> {
    fn drop(&mut self) {
        let mut queue = self.0.queue();
        queue.busy -= 1;
        if queue.busy == 0 && queue.waiting.is_empty() || self.0.stopped.load(Ordering::Relaxed) {
            self.0.news.notify_all();
        }
    }
}

/// Visits the entries of one directory. Returns 1 if it could not be read completely.
pub(crate) fn visit_directory(fd: OwnedFd, real: &[u8], mut visit: impl FnMut(&DirectoryEntry<'_>)) -> u64 {
    let directory = Arc::new(OpenDirectory { fd, real: real.to_vec(), ignored: None });
    let walk = Walk {
        skip: Skip::Nothing,
        queue: Mutex::default(),
        news: Condvar::new(),
        stopped: AtomicBool::new(true),
        unreadable: AtomicU64::new(0),
    };
    let names = walk.names(&directory, &mut vec![MaybeUninit::uninit(); FETCH]);
    for (at, kind) in &names.entries {
        visit(&DirectoryEntry { directory: &directory, name: &names.bytes[at.clone()], kind: *kind });
    }
    walk.unreadable.into_inner()
}
