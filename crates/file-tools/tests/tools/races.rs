//! Directories are swapped for links while verbs run. Confined by `openat2` alone, without Landlock, so that one mechanism is
//! tested without the other.
//!
//! `FILE_TOOLS_RACE_SECONDS` sets the duration (`just escapes`).

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use file_tools::{
    FileRequest, ListRequest, MoveRequest, PatchRequest, ReadRequest, SearchRequest, Workspace, WriteRequest,
};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::harness::{Harness, SECRET};

crate::tests![
    swapped_link_does_not_redirect_a_read,
    swapped_link_does_not_redirect_a_write,
    check_then_open_loses_the_race
];

/// The number of requests without a set duration.
const REQUESTS: u64 = 3000;

/// `door` alternates between a directory and a link to the outside, `file` between a file and a link to the secret.
struct Swapped {
    harness: Harness,
    swaps: AtomicU64,
    over: AtomicBool,
}

impl Swapped {
    fn new() -> Self {
        let harness = Harness::new();
        harness.put("door/secret.txt", "harmless");
        harness.put("deep/er/door/secret.txt", "harmless");
        harness.put("file", "harmless");
        symlink(harness.outside(), harness.at("other-door")).unwrap();
        symlink(harness.outside(), harness.at("deep/er/other-door")).unwrap();
        symlink(harness.secret(), harness.at("other-file")).unwrap();
        Self { harness, swaps: AtomicU64::new(0), over: AtomicBool::new(false) }
    }

    fn swap(&self) {
        while !self.over.load(Ordering::Relaxed) {
            for (one, other) in
                [("door", "other-door"), ("file", "other-file"), ("deep/er/door", "deep/er/other-door")]
            {
                renameat_with(CWD, self.harness.at(one), CWD, self.harness.at(other), RenameFlags::EXCHANGE)
                    .unwrap();
                self.swaps.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Repeats `attempt` while another thread swaps. Returns how many attempts were made, and how many reached a harmless
    /// target.
    fn attack(&self, mut attempt: impl FnMut(u64) -> bool) -> (u64, u64) {
        let until = std::env::var("FILE_TOOLS_RACE_SECONDS")
            .ok()
            .map(|seconds| Duration::from_secs(seconds.parse().unwrap()));
        let since = Instant::now();
        let (mut through, mut number) = (0, 0);
        thread::scope(|scope| {
            scope.spawn(|| self.swap());
            // Stops the other thread even if this one panics.
            let _end = Ending(&self.over);
            while until.map_or(number < REQUESTS, |until| since.elapsed() < until) {
                through += u64::from(attempt(number));
                number += 1;
            }
        });
        (number, through)
    }
}

struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn path(path: &str) -> String {
    path.to_owned()
}

fn swapped_link_does_not_redirect_a_read() {
    let swapped = Swapped::new();
    let workspace = Workspace::enter_unlocked(&swapped.harness.workspace()).unwrap();
    let requests = [
        FileRequest::Read(ReadRequest { path: path("door/secret.txt"), offset: None, limit: None }),
        FileRequest::Read(ReadRequest { path: path("deep/er/door/secret.txt"), offset: None, limit: None }),
        FileRequest::Read(ReadRequest { path: path("file"), offset: None, limit: None }),
        FileRequest::Read(ReadRequest {
            path: path("deep/../door/../deep/er/door/secret.txt"),
            offset: None,
            limit: None,
        }),
        FileRequest::Search(SearchRequest { regex: path("secret|harmless"), ..SearchRequest::default() }),
        FileRequest::Search(SearchRequest {
            regex: path("secret|harmless"),
            path: path("door"),
            ..SearchRequest::default()
        }),
        FileRequest::List(ListRequest { path: path("door"), glob: None }),
        FileRequest::List(ListRequest { path: String::new(), glob: Some(path("**/*")) }),
    ];
    // A file that exists only outside: its name must not be visible either.
    fs::write(swapped.harness.outside().join("outside-only"), SECRET).unwrap();
    let (asked, through) = swapped.attack(|number| {
        let request = &requests[usize::try_from(number).unwrap() % requests.len()];
        let Ok(answer) = workspace.execute(request) else { return false };
        let text = serde_json::to_string(&answer).unwrap();
        assert!(!text.contains(SECRET) && !text.contains("outside-only"), "leaked by {request:?}: {text}");
        text.contains("harmless") || text.contains("secret.txt")
    });
    let swaps = swapped.swaps.load(Ordering::Relaxed);
    eprintln!("{swaps} swaps, {asked} requests, {through} got through to what is inside, 0 leaks");
    assert!(through > 0 && through < asked, "the swaps did not get in the way: {through} of {asked}");
}

fn swapped_link_does_not_redirect_a_write() {
    let swapped = Swapped::new();
    let workspace = Workspace::enter_unlocked(&swapped.harness.workspace()).unwrap();
    let write = |to: &str| FileRequest::Write(WriteRequest { path: path(to), content: b"written".to_vec() });
    let requests = [
        write("door/new.txt"),
        write("door/secret.txt"),
        write("door/made/deep/new.txt"),
        write("file"),
        FileRequest::Patch(PatchRequest {
            path: path("door/secret.txt"),
            edits: vec![file_tools::Edit { find: path("e"), replace: path("x"), start_line: None }],
        }),
        FileRequest::Move(MoveRequest { from: path("door/new.txt"), to: path("taken") }),
        FileRequest::Move(MoveRequest { from: path("a.txt"), to: path("door/a.txt") }),
        FileRequest::Move(MoveRequest { from: path("door/a.txt"), to: path("a.txt") }),
        FileRequest::Delete(file_tools::DeleteRequest { path: path("door/secret.txt") }),
        FileRequest::Delete(file_tools::DeleteRequest { path: path("taken") }),
    ];
    let (asked, through) = swapped.attack(|number| {
        workspace.execute(&requests[usize::try_from(number).unwrap() % requests.len()]).is_ok()
    });
    let swaps = swapped.swaps.load(Ordering::Relaxed);
    eprintln!("{swaps} swaps, {asked} requests, {through} carried out inside, 0 outside");
    assert_eq!(fs::read_to_string(swapped.harness.secret()).unwrap(), SECRET);
    let outside: Vec<_> =
        fs::read_dir(swapped.harness.outside()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(outside, ["secret.txt"], "something was made outside");
    assert!(through > 0 && through < asked, "the swaps did not get in the way: {through} of {asked}");
}

/// Checking first and opening later does leak in this race, so the tests above can fail.
fn check_then_open_loses_the_race() {
    let swapped = Swapped::new();
    let root = swapped.harness.workspace().canonicalize().unwrap();
    let look_then_open = |path: &Path| -> Option<String> {
        let real = path.canonicalize().ok()?;
        real.starts_with(&root).then(|| fs::read_to_string(path).ok())?
    };
    let door = root.join("door/secret.txt");
    let since = Instant::now();
    let leaked = thread::scope(|scope| {
        scope.spawn(|| swapped.swap());
        let _end = Ending(&swapped.over);
        loop {
            if look_then_open(&door).is_some_and(|text| text == SECRET) {
                break true;
            }
            if since.elapsed() > Duration::from_secs(50) {
                break false;
            }
        }
    });
    assert!(leaked, "not even a careless reader was led out");
}
