//! A walk through all folders below a place, by several threads where there is enough to do.
//!
//! Every folder is opened below its parent, which is held open, and never through a link: a folder that is swapped for a link
//! while the walk is on is not gone into. Decides nothing about what it finds; a [`Visitor`] does.

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

/// Names are fetched from the kernel in pieces of this size.
const FETCH: usize = 32 * 1024;
/// So many files of one folder are a piece of work.
const PIECE: usize = 128;
/// With so many pieces waiting, further threads pay for themselves.
const WORTH_A_THREAD: usize = 4;

/// Whether to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    Go,
    Stop,
}

/// A folder that is held open.
#[derive(Debug)]
pub(crate) struct Folder {
    pub(crate) fd: OwnedFd,
    /// Its path in the workspace; empty for the workspace itself.
    pub(crate) real: Vec<u8>,
    pub(crate) ignored: Option<Arc<Ignored>>,
}

impl Folder {
    /// The path of a name in it.
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

/// Something in a folder.
#[derive(Debug)]
pub(crate) struct Entry<'a> {
    pub(crate) folder: &'a Folder,
    pub(crate) name: &'a [u8],
    pub(crate) kind: FileType,
}

impl Entry<'_> {
    /// Its path in the workspace.
    pub(crate) fn path(&self) -> Vec<u8> {
        self.folder.path_of(self.name)
    }
}

/// Looks at what a walk finds. Each thread has one.
pub(crate) trait Visitor {
    /// Called for everything that is no folder, and not left out.
    fn visit(&mut self, entry: &Entry<'_>) -> Flow;
}

/// What a walk goes past.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Skip {
    /// Nothing: folders are visited too.
    Nothing,
    /// What `.gitignore` leaves out, and git's own folder.
    Ignored,
}

/// The names in a folder, in one piece of memory.
#[derive(Debug, Default)]
struct Names {
    bytes: Vec<u8>,
    entries: Vec<(Range<usize>, FileType)>,
}

enum Work {
    Open(Arc<Folder>, Vec<u8>),
    Look(Arc<Folder>),
    Files(Arc<Folder>, Arc<Names>, Range<usize>),
}

#[derive(Default)]
struct Queue {
    waiting: Vec<Work>,
    busy: usize,
}

/// A walk under way.
struct Walk {
    skip: Skip,
    queue: Mutex<Queue>,
    /// Somebody may find work, or the end.
    news: Condvar,
    stopped: AtomicBool,
    unreadable: AtomicU64,
}

/// Visits everything below a folder in this thread, folders too and before what is in them. Gives how many folders could not be read.
pub(crate) fn visit_everything(fd: OwnedFd, real: &[u8], visit: impl FnMut(&Entry<'_>) -> Flow) -> u64 {
    struct Each<F>(F);
    impl<F: FnMut(&Entry<'_>) -> Flow> Visitor for Each<F> {
        fn visit(&mut self, entry: &Entry<'_>) -> Flow {
            (self.0)(entry)
        }
    }
    let walk = Walk::new(Folder { fd, real: real.to_vec(), ignored: None }, Skip::Nothing);
    walk.work(&mut Each(visit), |_| {});
    walk.unreadable.into_inner()
}

/// Visits the files below a folder that are not ignored, with up to `threads` visitors. Gives those, and how many folders could not be read.
pub(crate) fn visit<V: Visitor + Send>(
    start: Folder,
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
                    // Without another thread this one does it all.
                    others.extend(thread::Builder::new().spawn_scoped(scope, join).ok());
                }
            }
        });
        // Without what another thread has found the answer would not be true.
        let others = others.into_iter().map(|other| other.join().unwrap_or_else(|died| resume_unwind(died)));
        std::iter::once(own).chain(others).collect()
    });
    (visitors, walk.unreadable.into_inner())
}

impl Walk {
    fn new(start: Folder, skip: Skip) -> Self {
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

    /// Works until nothing is left. `look_up` is told after each piece how many are waiting.
    fn work(&self, visitor: &mut impl Visitor, mut look_up: impl FnMut(usize)) {
        let mut buffer = vec![MaybeUninit::uninit(); FETCH];
        while let Some(work) = self.next() {
            // Also when a visitor panics: the others must not wait for this thread for ever.
            let done = Done(self);
            let (folder, names, range) = match work {
                Work::Files(folder, names, range) => (folder, names, range),
                Work::Look(folder) => self.look(folder, &mut buffer),
                Work::Open(above, name) => match self.open(&above, &name) {
                    None => continue,
                    Some(folder) => {
                        drop(above);
                        self.look(Arc::new(folder), &mut buffer)
                    }
                },
            };
            look_up(self.queue().waiting.len());
            for (at, kind) in &names.entries[range] {
                let entry = Entry { folder: &folder, name: &names.bytes[at.clone()], kind: *kind };
                if self.stopped.load(Ordering::Relaxed) || visitor.visit(&entry) == Flow::Stop {
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

    fn open(&self, above: &Folder, name: &[u8]) -> Option<Folder> {
        let opened = beneath::open(above.fd.as_fd(), name, OFlags::RDONLY | OFlags::DIRECTORY, 0);
        if opened.is_err() {
            self.unreadable.fetch_add(1, Ordering::Relaxed);
        }
        let ignored = above.ignored.clone();
        Some(Folder { fd: opened.ok()?, real: above.path_of(name), ignored })
    }

    /// Reads the names in a folder, leaves its folders and most of its files to whoever comes, and keeps a piece of the files.
    fn look(
        &self,
        mut folder: Arc<Folder>,
        buffer: &mut [MaybeUninit<u8>],
    ) -> (Arc<Folder>, Arc<Names>, Range<usize>) {
        let mut names = self.names(&folder, buffer);
        if self.skip == Skip::Ignored {
            let has_rules = names.entries.iter().any(|(at, _)| Ignored::is_rules(&names.bytes[at.clone()]));
            if has_rules && let Some(folder) = Arc::get_mut(&mut folder) {
                folder.ignored = Ignored::enter(folder.ignored.take(), folder.fd.as_fd(), &folder.real);
            }
            names.leave_out_ignored(&folder);
        }
        let mut work: Vec<Work> = Vec::new();
        for (at, kind) in &names.entries {
            if *kind == FileType::Directory {
                work.push(Work::Open(Arc::clone(&folder), names.bytes[at.clone()].to_vec()));
            }
        }
        if self.skip == Skip::Ignored {
            names.entries.retain(|(_, kind)| *kind != FileType::Directory);
        }
        let names = Arc::new(names);
        let own = 0..names.entries.len().min(PIECE);
        for start in (own.end..names.entries.len()).step_by(PIECE) {
            let piece = start..names.entries.len().min(start + PIECE);
            work.push(Work::Files(Arc::clone(&folder), Arc::clone(&names), piece));
        }
        if !work.is_empty() {
            let alone = work.len() == 1;
            self.queue().waiting.append(&mut work);
            if alone { self.news.notify_one() } else { self.news.notify_all() }
        }
        (folder, names, own)
    }

    fn names(&self, folder: &Folder, buffer: &mut [MaybeUninit<u8>]) -> Names {
        let mut names = Names::default();
        let mut listing = RawDir::new(&folder.fd, buffer);
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
                FileType::Unknown => rustix::fs::statat(&folder.fd, name, AtFlags::SYMLINK_NOFOLLOW)
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
    fn leave_out_ignored(&mut self, folder: &Folder) {
        let Self { bytes, entries } = self;
        entries.retain(|(at, kind)| {
            let (name, is_folder) = (&bytes[at.clone()], *kind == FileType::Directory);
            let ignores = |ignored: &Arc<Ignored>| ignored.ignores(&folder.path_of(name), is_folder);
            name != b".git" && !folder.ignored.as_ref().is_some_and(ignores)
        });
    }
}

/// A piece of work that ends when this is dropped.
struct Done<'a>(&'a Walk);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        let mut queue = self.0.queue();
        queue.busy -= 1;
        if queue.busy == 0 && queue.waiting.is_empty() || self.0.stopped.load(Ordering::Relaxed) {
            self.0.news.notify_all();
        }
    }
}

/// Visits what is directly in a folder, folders too. Gives 1 when it could not be read to its end.
pub(crate) fn visit_folder(fd: OwnedFd, real: &[u8], mut visit: impl FnMut(&Entry<'_>)) -> u64 {
    let folder = Arc::new(Folder { fd, real: real.to_vec(), ignored: None });
    let walk = Walk {
        skip: Skip::Nothing,
        queue: Mutex::default(),
        news: Condvar::new(),
        stopped: AtomicBool::new(true),
        unreadable: AtomicU64::new(0),
    };
    let names = walk.names(&folder, &mut vec![MaybeUninit::uninit(); FETCH]);
    for (at, kind) in &names.entries {
        visit(&Entry { folder: &folder, name: &names.bytes[at.clone()], kind: *kind });
    }
    walk.unreadable.into_inner()
}
