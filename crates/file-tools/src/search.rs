//! `search`: lines that match a regular expression.
//!
//! The matching is ripgrep's (`grep-regex`, `grep-searcher`), the walk is `tree`'s, and every file is opened below its folder by
//! `openat2` before a byte of it is read. Bounded in lines, in bytes and in time: a search always answers.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder, Sink, SinkContext, SinkMatch};
use rustix::fs::{FileType, OFlags};
use serde::Serialize;

use crate::beneath::{self, Last, Place, Purpose, kind};
use crate::contents::{self, FILE_LIMIT};
use crate::glob::FileGlob;
use crate::list::{is_zero, rules_above};
use crate::name::{self, WorkPath};
use crate::refusal::{Code, Refusal};
use crate::request::{Case, Search};
use crate::tree::{self, Entry, Flow, Folder, Visitor};
use crate::workspace::Workspace;

/// How many matching lines when nobody said.
const LINES: u64 = 100;
/// How many in any case.
const MOST_LINES: u64 = 10_000;
/// How many lines around a match.
const MOST_CONTEXT: u64 = 20;
/// How much of one line is shown: enough to see what it is about.
const LONGEST_LINE: usize = 1000;
/// How much text all together.
const MOST_TEXT: u64 = 4 * 1024 * 1024;
/// How much memory an expression may need: a larger one would take longer to prepare than to run.
const LARGEST_REGEX: usize = 32 * 1024 * 1024;
/// Callers give up after a minute.
const PATIENCE: Duration = Duration::from_secs(45);
/// More threads wait for the disk and for each other.
const MOST_THREADS: usize = 8;

/// What was found.
#[derive(Debug, Serialize)]
pub struct Matches {
    /// The lines, by path and number.
    pub matches: Vec<Line>,
    /// Whether there is more than is shown.
    pub truncated: bool,
    /// Why, when it was for want of time.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub out_of_time: bool,
    /// How many files were searched.
    pub files_searched: u64,
    /// What was not searched.
    pub skipped: Skipped,
}

/// What was not searched, and why.
#[derive(Debug, Default, Clone, Copy, Serialize)]
pub struct Skipped {
    /// Files with a NUL in them, searched up to there.
    #[serde(skip_serializing_if = "is_zero")]
    pub binary: u64,
    /// Files over the limit.
    #[serde(skip_serializing_if = "is_zero")]
    pub too_large: u64,
    /// Files with a second name, which may be outside.
    #[serde(skip_serializing_if = "is_zero")]
    pub hardlinked: u64,
    /// Files and folders that could not be read, or were swapped for something else meanwhile.
    #[serde(skip_serializing_if = "is_zero")]
    pub unreadable: u64,
}

/// One line.
#[derive(Debug, Serialize)]
pub struct Line {
    /// The file. Can be given back as it is.
    pub path: String,
    /// Its number, counted from 1.
    pub line: u64,
    /// The line without its end; what is no text is shown as `\u{fffd}`.
    pub text: String,
    /// Whether the line is longer than shown.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
    /// Whether it only stands near a match.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub context: bool,
}

/// What all threads share.
struct Hunt<'a> {
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

pub(crate) fn search(workspace: &Workspace, request: &Search) -> Result<Matches, Refusal> {
    let path = workspace.root.parse(&request.path)?;
    let place = workspace.root.find(&path, Last::Follow, Purpose::Look)?;
    let is_folder = kind(place.found(&path)?) == FileType::Directory;
    let hunt = Hunt::new(workspace, request, &place.real)?;
    let (hunters, unreadable) = if is_folder {
        let fd = place.open_folder(&path)?;
        let start = Folder { fd, ignored: rules_above(workspace, &place.real), real: place.real };
        tree::visit(start, threads(), || Hunter::new(&hunt))
    } else {
        (vec![hunt.one_file(&place, &path)?], 0)
    };
    Ok(hunt.sum_up(hunters, unreadable))
}

fn threads() -> usize {
    thread::available_parallelism().map_or(1, |cores| cores.get().min(MOST_THREADS))
}

impl<'a> Hunt<'a> {
    fn new(workspace: &'a Workspace, request: &Search, folder: &[u8]) -> Result<Self, Refusal> {
        Ok(Self {
            matcher: matcher(&request.regex, request.case)?,
            glob: request.glob.as_deref().map(|glob| FileGlob::parse(glob, folder)).transpose()?,
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

    /// A file that was named is searched even where a folder's rules would leave it out, and a reason not to is a refusal.
    fn one_file(&self, place: &Place, path: &WorkPath) -> Result<Hunter<'_>, Refusal> {
        let (file, stat) = contents::open(self.workspace, place, path)?;
        if u64::try_from(stat.st_size).unwrap_or(0) > FILE_LIMIT {
            return Err(Refusal::too_large(format!("`{}`", path.said()), FILE_LIMIT));
        }
        let mut hunter = Hunter::new(self);
        hunter.search(&file, &place.real);
        Ok(hunter)
    }

    fn sum_up(&self, hunters: Vec<Hunter<'_>>, unreadable: u64) -> Matches {
        let mut lines = Vec::new();
        let mut skipped = Skipped { unreadable, ..Skipped::default() };
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
        Matches {
            matches: lines,
            truncated: self.truncated.load(Ordering::Relaxed),
            out_of_time: self.out_of_time.load(Ordering::Relaxed),
            files_searched,
            skipped,
        }
    }

    /// Whether there is room for one more matching line.
    fn claim_line(&self) -> bool {
        let room = self.lines.fetch_add(1, Ordering::Relaxed) < self.most;
        if !room {
            self.truncated.store(true, Ordering::Relaxed);
        }
        room
    }

    /// Whether there is room for so much text.
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

fn matcher(regex: &str, case: Case) -> Result<RegexMatcher, Refusal> {
    let mut builder = RegexMatcherBuilder::new();
    builder.line_terminator(Some(b'\n')).multi_line(true);
    builder.size_limit(LARGEST_REGEX).dfa_size_limit(LARGEST_REGEX);
    match case {
        Case::Sensitive => {}
        Case::Insensitive => drop(builder.case_insensitive(true)),
        Case::Smart => drop(builder.case_smart(true)),
    }
    builder.build(regex).map_err(|mistake| {
        Refusal::new(
            Code::InvalidPattern,
            format!("`{regex}` cannot be searched for: {}", mistake.to_string().trim()),
            r"lines are searched one by one, so `\n` matches nothing; write a literal `(`, `[`, `.` or `*` with a backslash",
        )
    })
}

/// One thread's part in a search.
struct Hunter<'a> {
    hunt: &'a Hunt<'a>,
    /// Its own: threads that share one wait for each other's memory.
    matcher: RegexMatcher,
    searcher: Searcher,
    found: Vec<Line>,
    searched: u64,
    skipped: Skipped,
}

impl<'a> Hunter<'a> {
    fn new(hunt: &'a Hunt<'a>) -> Self {
        let searcher = SearcherBuilder::new()
            .binary_detection(BinaryDetection::quit(0))
            .line_number(true)
            .before_context(hunt.context)
            .after_context(hunt.context)
            .build();
        let matcher = hunt.matcher.clone();
        Self { hunt, matcher, searcher, found: Vec::new(), searched: 0, skipped: Skipped::default() }
    }

    fn search(&mut self, file: &File, path: &[u8]) {
        self.searched += 1;
        let mut sink = Collect { hunt: self.hunt, path, found: &mut self.found, binary: false };
        let outcome = self.searcher.search_file(&self.matcher, file, &mut sink);
        self.skipped.binary += u64::from(sink.binary);
        self.skipped.unreadable += u64::from(outcome.is_err());
    }

    /// Opens a file that may be searched.
    fn open(&mut self, entry: &Entry<'_>) -> Option<File> {
        use std::os::fd::AsFd as _;
        let opened = beneath::open(entry.folder.fd.as_fd(), entry.name, OFlags::RDONLY | OFlags::NONBLOCK, 0);
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

impl Visitor for Hunter<'_> {
    fn visit(&mut self, entry: &Entry<'_>) -> Flow {
        if self.hunt.is_over() {
            return Flow::Stop;
        }
        // Links lead elsewhere, and what they lead to in the workspace is found there.
        let wanted = entry.kind == FileType::RegularFile
            && self.hunt.glob.as_ref().is_none_or(|glob| glob.means(entry.name, || entry.path()));
        if wanted && let Some(file) = self.open(entry) {
            self.search(&file, &entry.path());
        }
        Flow::Go
    }
}

/// Takes the lines of one file.
struct Collect<'a, 'b> {
    hunt: &'a Hunt<'a>,
    path: &'b [u8],
    found: &'b mut Vec<Line>,
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
        self.found.push(Line {
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
