//! Gives back the pages that only the start has needed.
//!
//! A bridge stays for as long as its host, and most of what it holds are pages of the program's file and of its libraries: the kernel
//! maps them by dozens around every function that is ever entered, and all of what the loader has read. Next to nothing of that is
//! needed to carry lines. Such a page is no loss: it comes back, from memory that all processes share, when it is touched again.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::ops::Range;

/// Gives back what is a mere copy of files. Where the kernel does not say which pages those are, everything stays.
pub fn give_back() {
    let Ok(mappings) = File::open("/proc/self/smaps") else { return };
    // All are found before the first is given back: the search itself would bring pages in again.
    for range in mere_copies(BufReader::new(mappings)) {
        forget(range);
    }
}

/// The mappings of files in which nothing is this process's own.
///
/// Not every mapping that cannot be written to: the loader closes the tables into which it has written addresses, and a debugger
/// writes into code. The kernel counts such pages as anonymous, and those that it has moved out of memory as swap.
fn mere_copies(mappings: impl BufRead) -> Vec<Range<usize>> {
    let mut candidate = None;
    let mut found = Vec::new();
    for line in mappings.lines().map_while(Result::ok) {
        if let Some(count) = line.strip_prefix("Anonymous:") {
            candidate = candidate.filter(|_| is_none(count));
        } else if let Some(count) = line.strip_prefix("Swap:") {
            found.extend(candidate.take().filter(|_| is_none(count)));
        } else if !line.starts_with(|first: char| first.is_ascii_uppercase()) {
            candidate = read_only_file(&line);
        }
    }
    found
}

fn is_none(count: &str) -> bool {
    count.trim() == "0 kB"
}

/// The addresses in the first line about a mapping, when it is a file's and can only be read or run.
fn read_only_file(line: &str) -> Option<Range<usize>> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let rights = fields.next()?;
    let inode = fields.nth(2)?;
    let address = |hex| usize::from_str_radix(hex, 16).ok();
    (matches!(rights, "r--p" | "r-xp") && inode != "0").then_some(address(start)?..address(end)?)
}

#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "the compiler cannot know that the pages come back as they were")]
fn forget(range: Range<usize>) {
    use rustix::mm::{Advice, madvise};

    let start = std::ptr::with_exposed_provenance_mut(range.start);
    // SAFETY: the mapping stays, and with it every address in it. What is read there comes from the same file as before: it is
    // private, cannot be written to, and the kernel has counted no page of it that is not the file's.
    let _ = unsafe { madvise(start, range.len(), Advice::LinuxDontNeed) };
}

#[cfg(not(target_os = "linux"))]
fn forget(_: Range<usize>) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_the_same_as_its_file_is_given_back() {
        let mapping = |head: &str, anonymous: u32, swap: u32| {
            let none = "AnonHugePages:  0 kB\nSwapPss:  0 kB\nVmFlags: rd mr mw me sd";
            format!("{head}\nRss:  12 kB\nAnonymous:  {anonymous} kB\nSwap:  {swap} kB\n{none}\n")
        };
        let mappings = [
            mapping("1000-3000 r--p 00000000 fe:00 42    /usr/bin/a b", 0, 0),
            mapping("3000-4000 r-xp 00002000 fe:00 42    /usr/bin/a b", 0, 0),
            // A breakpoint; the tables with addresses; the same after a night in which nothing was asked.
            mapping("4000-5000 r-xp 00003000 fe:00 42    /usr/bin/a b", 4, 0),
            mapping("5000-6000 r--p 00004000 fe:00 42    /usr/bin/a b", 4, 0),
            mapping("5000-6000 r--p 00004000 fe:00 42    /usr/bin/a b", 0, 4),
            mapping("6000-7000 rw-p 00005000 fe:00 42    /usr/bin/a b", 0, 0),
            mapping("7000-8000 r--s 00000000 fe:00 43    /shared", 0, 0),
            mapping("8000-9000 r--p 00000000 00:00 0 ", 0, 0),
            mapping("7ffd000-7ffe000 r-xp 00000000 00:00 0    [vdso]", 0, 0),
        ];
        assert_eq!(mere_copies(mappings.concat().as_bytes()), [0x1000..0x3000, 0x3000..0x4000]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_was_given_back_is_held_no_more_and_works_as_before() {
        let of_files = || {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let held = status.lines().find_map(|line| line.strip_prefix("RssFile:")?.strip_suffix("kB"));
            held.unwrap().trim().parse::<u64>().unwrap()
        };
        let before = of_files();
        give_back();
        let after = of_files();
        assert!(after < before, "{after} of {before} kB");
        // Unwinding goes through tables that nobody has read since.
        let caught = std::panic::catch_unwind(|| std::panic::resume_unwind(Box::new("here")));
        assert_eq!(caught.unwrap_err().downcast_ref::<&str>(), Some(&"here"));
    }
}
