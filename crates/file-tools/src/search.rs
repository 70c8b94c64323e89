//! `search`: finds lines that match a regular expression.
//!
//! The matching is ripgrep's (`grep-regex`, `grep-searcher`), the walk is `tree`'s, and every file is opened beneath its
//! directory with `openat2`. Lines, bytes and time are limited, so a search always returns.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder, Sink, SinkContext, SinkMatch};
use rustix::fs::{FileType, OFlags};
use serde::Serialize;

use crate::beneath::{self, FinalLink, LookupPurpose, ResolvedPath, kind};
use crate::contents::{self, FILE_LIMIT};
use crate::glob::FileGlob;
use crate::list::{is_zero, rules_above};
use crate::name::{self, WorkPath};
use crate::rejection::{FileRejection, RejectionCode};
use crate::request::{CaseSensitivity, SearchRequest};
use crate::tree::{self, DirectoryEntry, OpenDirectory, TreeVisitor, WalkFlow};
use crate::workspace::Workspace;

/// The default number of matching lines.
const LINES: u64 = 100;
/// The maximum number of matching lines.
const MOST_LINES: u64 = 10_000;
/// The maximum number of context lines.
const MOST_CONTEXT: u64 = 20;
/// The maximum length of a line in the reply.
const LONGEST_LINE: usize = 1000;
/// The maximum size of all lines.
const MOST_TEXT: u64 = 4 * 1024 * 1024;
/// The memory limit of a compiled expression: a larger one takes longer to compile than to run.
const LARGEST_REGEX: usize = 32 * 1024 * 1024;
/// The time limit: callers time out after a minute.
const PATIENCE: Duration = Duration::from_secs(45);
/// More threads only wait for the disk and for each other.
const MOST_THREADS: usize = 8;

/// The reply to `search`.
#[derive(Debug, Serialize)]
pub struct SearchReply {
    /// The lines, sorted by path and number.
    pub matches: Vec<MatchLine>,
    /// True if matches were omitted.
    pub truncated: bool,
    /// True if the time limit was the reason.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub out_of_time: bool,
    /// The number of searched files.
    pub files_searched: u64,
    /// The files that were not searched.
    pub skipped: SkippedFiles,
}

/// Counts of files that were not searched, by reason.
#[derive(Debug, Default, Clone, Copy, Serialize)]
pub struct SkippedFiles {
    /// Binary files, searched up to the first NUL byte.
    #[serde(skip_serializing_if = "is_zero")]
    pub binary: u64,
    /// Files over the size limit.
    #[serde(skip_serializing_if = "is_zero")]
    pub too_large: u64,
    /// Files with hard links, which may be outside of the workspace.
    #[serde(skip_serializing_if = "is_zero")]
    pub hardlinked: u64,
    /// Files and directories that were unreadable or were replaced during the search.
    #[serde(skip_serializing_if = "is_zero")]
    pub unreadable: u64,
}

/// A matching line.
#[derive(Debug, Serialize)]
pub struct MatchLine {
    /// The file, in the form that requests accept.
    pub path: String,
    /// The line number, starting at 1.
    pub line: u64,
    /// The line without its ending; invalid bytes are shown as `\u{fffd}`.
    pub text: String,
    /// True if the line was shortened.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
    /// True if it is context and not a match.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub context: bool,
}

/// The state that all threads share.
struct SearchState<'a> {
    matcher: RegexMatcher,
    glob: Option<FileGlob>,
    context: usize,
    most: u64,
    until: Instant,
    read_hardlinks: bool,
    lines: AtomicU64,
    text: AtomicU64,
    truncated: AtomicBool,
    out_of_time: AtomicBool,
    workspace: &'a Workspace,
}

pub(crate) fn search(workspace: &Workspace, request: &SearchRequest) -> Result<SearchReply, FileRejection> {
    let path = workspace.root.parse(&request.path)?;
    let place = workspace.root.find(&path, FinalLink::Follow, LookupPurpose::Look)?;
    let is_directory = kind(place.found(&path)?) == FileType::Directory;
    let hunt = SearchState::new(workspace, request, &place.real)?;
    let (hunters, unreadable) = if is_directory {
        let fd = place.open_directory(&path)?;
        let start = OpenDirectory { fd, ignored: rules_above(workspace, &place.real), real: place.real };
        tree::visit(start, threads(), || SearchWorker::new(&hunt))
    } else {
        (vec![hunt.one_file(&place, &path)?], 0)
    };
    Ok(hunt.sum_up(hunters, unreadable))
}

fn threads() -> usize {
    thread::available_parallelism().map_or(1, |cores| cores.get().min(MOST_THREADS))
}

impl<'a> SearchState<'a> {
    fn new(
        workspace: &'a Workspace,
        request: &SearchRequest,
        directory: &[u8],
    ) -> Result<Self, FileRejection> {
        Ok(Self {
            matcher: matcher(&request.regex, request.case)?,
            glob: request.glob.as_deref().map(|glob| FileGlob::parse(glob, directory)).transpose()?,
            context: usize::try_from(request.context.min(MOST_CONTEXT)).unwrap_or(0),
            most: request.max.unwrap_or(LINES).min(MOST_LINES),
            until: Instant::now() + PATIENCE,
            read_hardlinks: workspace.setting.read_hardlinks,
            lines: AtomicU64::new(0),
            text: AtomicU64::new(0),
            truncated: AtomicBool::new(false),
            out_of_time: AtomicBool::new(false),
            workspace,
        })
    }

    /// Searches a named file even if it is ignored. An unreadable one is an error.
    fn one_file(&self, place: &ResolvedPath, path: &WorkPath) -> Result<SearchWorker<'_>, FileRejection> {
        let (file, stat) = contents::open(self.workspace, place, path)?;
        if u64::try_from(stat.st_size).unwrap_or(0) > FILE_LIMIT {
            return Err(FileRejection::too_large(format!("`{}`", path.said()), FILE_LIMIT));
        }
        let mut hunter = SearchWorker::new(self);
        hunter.search(&file, &place.real);
        Ok(hunter)
    }

    fn sum_up(&self, hunters: Vec<SearchWorker<'_>>, unreadable: u64) -> SearchReply {
        let mut lines = Vec::new();
        let mut skipped = SkippedFiles { unreadable, ..SkippedFiles::default() };
        let mut files_searched = 0;
        for hunter in hunters {
            lines.extend(hunter.found);
            files_searched += hunter.searched;
            skipped.binary += hunter.skipped.binary;
            skipped.too_large += hunter.skipped.too_large;
            skipped.hardlinked += hunter.skipped.hardlinked;
            skipped.unreadable += hunter.skipped.unreadable;
        }
        lines.sort_unstable_by(|one, other| (&one.path, one.line).cmp(&(&other.path, other.line)));
        SearchReply {
            matches: lines,
            truncated: self.truncated.load(Ordering::Relaxed),
            out_of_time: self.out_of_time.load(Ordering::Relaxed),
            files_searched,
            skipped,
        }
    }

    /// Reserves one matching line. Returns false if the limit is reached.
    fn claim_line(&self) -> bool {
        let room = self.lines.fetch_add(1, Ordering::Relaxed) < self.most;
        if !room {
            self.truncated.store(true, Ordering::Relaxed);
        }
        room
    }

    /// Reserves bytes of text. Returns false if the limit is reached.
    fn claim_text(&self, bytes: usize) -> bool {
        let room = self.text.fetch_add(bytes as u64, Ordering::Relaxed) < MOST_TEXT;
        if !room {
            self.truncated.store(true, Ordering::Relaxed);
        }
        room
    }

    fn is_over(&self) -> bool {
        if Instant::now() > self.until {
            self.out_of_time.store(true, Ordering::Relaxed);
            self.truncated.store(true, Ordering::Relaxed);
        }
        self.truncated.load(Ordering::Relaxed)
    }
}

fn matcher(regex: &str, case: CaseSensitivity) -> Result<RegexMatcher, FileRejection> {
    let mut builder = RegexMatcherBuilder::new();
    builder.line_terminator(Some(b'\n')).multi_line(true);
    builder.size_limit(LARGEST_REGEX).dfa_size_limit(LARGEST_REGEX);
    match case {
        CaseSensitivity::Sensitive => {}
        CaseSensitivity::Insensitive => drop(builder.case_insensitive(true)),
        CaseSensitivity::Smart => drop(builder.case_smart(true)),
    }
    builder.build(regex).map_err(|mistake| {
        FileRejection::new(
            RejectionCode::InvalidPattern,
            format!("`{regex}` is not a valid regular expression: {}", mistake.to_string().trim()),
            r"lines are searched one by one, so `\n` matches nothing; write a literal `(`, `[`, `.` or `*` with a backslash",
        )
    })
}

/// The search state of one thread.
struct SearchWorker<'a> {
    hunt: &'a SearchState<'a>,
    /// One per thread: a shared matcher's cache is contended.
    matcher: RegexMatcher,
    searcher: Searcher,
    found: Vec<MatchLine>,
    searched: u64,
    skipped: SkippedFiles,
}

impl<'a> SearchWorker<'a> {
    fn new(hunt: &'a SearchState<'a>) -> Self {
        let searcher = SearcherBuilder::new()
            .binary_detection(BinaryDetection::quit(0))
            .line_number(true)
            .before_context(hunt.context)
            .after_context(hunt.context)
            .build();
        let matcher = hunt.matcher.clone();
        Self { hunt, matcher, searcher, found: Vec::new(), searched: 0, skipped: SkippedFiles::default() }
    }

    fn search(&mut self, file: &File, path: &[u8]) {
        self.searched += 1;
        let mut sink = Collect { hunt: self.hunt, path, found: &mut self.found, binary: false };
        let outcome = self.searcher.search_file(&self.matcher, file, &mut sink);
        self.skipped.binary += u64::from(sink.binary);
        self.skipped.unreadable += u64::from(outcome.is_err());
    }

    /// Opens a file that may be searched.
    fn open(&mut self, entry: &DirectoryEntry<'_>) -> Option<File> {
        use std::os::fd::AsFd as _;
        let opened =
            beneath::open(entry.directory.fd.as_fd(), entry.name, OFlags::RDONLY | OFlags::NONBLOCK, 0);
        let looked_at = opened.and_then(|fd| rustix::fs::fstat(&fd).map(|stat| (fd, stat)));
        match looked_at {
            Ok((fd, stat)) if kind(&stat) == FileType::RegularFile => {
                if stat.st_nlink > 1 && !self.hunt.read_hardlinks {
                    self.skipped.hardlinked += 1;
                } else if u64::try_from(stat.st_size).unwrap_or(0) > FILE_LIMIT {
                    self.skipped.too_large += 1;
                } else {
                    return Some(File::from(fd));
                }
            }
            _ => self.skipped.unreadable += 1,
        }
        None
    }
}

impl TreeVisitor for SearchWorker<'_> {
    fn visit(&mut self, entry: &DirectoryEntry<'_>) -> WalkFlow {
        if self.hunt.is_over() {
            return WalkFlow::Stop;
        }
        // Symlinks are skipped: a target in the workspace is searched under its own name.
        let wanted = entry.kind == FileType::RegularFile
            && self.hunt.glob.as_ref().is_none_or(|glob| glob.means(entry.name, || entry.path()));
        if wanted && let Some(file) = self.open(entry) {
            self.search(&file, &entry.path());
        }
        WalkFlow::Go
    }
}

/// Collects the matching lines of one file.
struct Collect<'a, 'b> {
    hunt: &'a SearchState<'a>,
    path: &'b [u8],
    found: &'b mut Vec<MatchLine>,
    binary: bool,
}

impl Collect<'_, '_> {
    fn take(&mut self, number: Option<u64>, bytes: &[u8], context: bool) -> bool {
        let line = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let text = String::from_utf8_lossy(&line[..line.len().min(LONGEST_LINE * 4)]);
        let end = text.char_indices().nth(LONGEST_LINE).map_or(text.len(), |(at, _)| at);
        if !self.hunt.claim_text(end) {
            return false;
        }
        self.found.push(MatchLine {
            path: name::show(self.path).into_owned(),
            line: number.unwrap_or(0),
            cut: end < text.len() || line.len() > LONGEST_LINE * 4,
            text: text[..end].to_owned(),
            context,
        });
        true
    }
}

impl Sink for Collect<'_, '_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> Result<bool, io::Error> {
        Ok(self.hunt.claim_line() && self.take(found.line_number(), found.bytes(), false))
    }

    fn context(&mut self, _: &Searcher, found: &SinkContext<'_>) -> Result<bool, io::Error> {
        Ok(self.take(found.line_number(), found.bytes(), true))
    }

    fn binary_data(&mut self, _: &Searcher, _: u64) -> Result<bool, io::Error> {
        self.binary = true;
        Ok(false)
    }
}
