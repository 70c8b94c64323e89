//! Decides how to restore one file. Pure: looks at no file.

use crate::entry::Entry;
use crate::restore::ConflictReason;
use crate::state::FileState;

/// The current state of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Current {
    Absent,
    Entry(Entry),
    Directory,
    /// A FIFO, socket or device.
    Special,
    /// A file over the size limit. It differs from every recorded file.
    Large,
    Unreadable,
}

/// The way to restore a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Decision {
    Keep,
    Delete,
    Write(Entry),
    /// A merge of contents. The entry has the mode of the result.
    Merge {
        base: Entry,
        ours: Entry,
        theirs: Entry,
        mode: u32,
    },
    /// Something that is not a file has the path.
    Blocked,
    Conflict(ConflictReason),
}

/// Decides how to get from a current state to a target, where `from` is the state on the other side of the job.
pub(super) fn decide(from: &FileState, to: &FileState, current: &Current) -> Decision {
    let is_gone = matches!(current, Current::Absent | Current::Directory);
    if *to == FileState::Absent && is_gone && !matches!(from, FileState::Repository { .. }) {
        return match (from.entry().is_some_and(Entry::is_submodule), current) {
            (true, Current::Directory) => Decision::Conflict(ConflictReason::Submodule),
            _ => Decision::Keep,
        };
    }
    if let Some(reason) = to.not_recorded().or(from.not_recorded()) {
        return Decision::Conflict(ConflictReason::NotRecorded(reason));
    }
    let (from, to) = (from.entry(), to.entry());
    if [from, to].into_iter().flatten().any(Entry::is_submodule) {
        let is_reached = matches!(current, Current::Entry(entry) if Some(entry) == to);
        return if is_reached { Decision::Keep } else { Decision::Conflict(ConflictReason::Submodule) };
    }
    match current {
        Current::Absent if from.is_some() => Decision::Conflict(ConflictReason::DeletedSince),
        // A directory counts as the absence of the file. It can be in the way.
        Current::Absent => write_or_delete(to),
        Current::Directory if from.is_none() => write_or_delete(to),
        Current::Directory | Current::Special => Decision::Blocked,
        Current::Large if from.is_none() => Decision::Conflict(ConflictReason::CreatedSince),
        Current::Large => Decision::Conflict(ConflictReason::EditedSince),
        Current::Unreadable => Decision::Conflict(ConflictReason::Unreadable),
        Current::Entry(current) => decide_entry(from, to, current),
    }
}

fn write_or_delete(to: Option<&Entry>) -> Decision {
    to.map_or(Decision::Delete, |entry| Decision::Write(entry.clone()))
}

fn decide_entry(from: Option<&Entry>, to: Option<&Entry>, current: &Entry) -> Decision {
    if to == Some(current) {
        return Decision::Keep;
    }
    if from == Some(current) {
        return write_or_delete(to);
    }
    let (Some(base), Some(theirs)) = (from, to) else {
        let reason = if from.is_none() { ConflictReason::CreatedSince } else { ConflictReason::EditedSince };
        return Decision::Conflict(reason);
    };
    if ![base, theirs, current].into_iter().all(Entry::is_regular) {
        return Decision::Conflict(ConflictReason::EditedSince);
    }
    let mode = if current.mode == base.mode { theirs.mode } else { current.mode };
    let (base, ours, theirs) = (base.clone(), current.clone(), theirs.clone());
    if ours.oid == base.oid || ours.oid == theirs.oid {
        return Decision::Write(Entry { mode, oid: theirs.oid });
    }
    if theirs.oid == base.oid {
        return Decision::Write(Entry { mode, oid: ours.oid });
    }
    Decision::Merge { base, ours, theirs, mode }
}

#[cfg(test)]
mod tests {
    use model::NotRecorded;

    use super::*;

    const FILE: u32 = 0o100_644;
    const PROGRAM: u32 = 0o100_755;
    const LINK: u32 = 0o120_000;

    fn entry(mode: u32, content: &str) -> Entry {
        Entry { mode, oid: content.into() }
    }

    fn file(content: &str) -> FileState {
        FileState::Recorded(entry(FILE, content))
    }

    #[test]
    fn decision_depends_on_all_three_states() {
        use ConflictReason::{CreatedSince, DeletedSince, EditedSince, NotRecorded as Missing, Submodule};
        let large = FileState::NotRecorded { reason: NotRecorded::TooLarge, stamp: None };
        let nested = FileState::Repository { commit: None };
        let link = FileState::Recorded(entry(LINK, "l"));
        let module = |commit| FileState::Recorded(entry(Entry::SUBMODULE, commit));
        let program = |content| FileState::Recorded(entry(PROGRAM, content));
        let now = |content| Current::Entry(entry(FILE, content));
        let write = |mode, content| Decision::Write(entry(mode, content));
        let conflict = Decision::Conflict;
        let absent = FileState::Absent;
        let merge = Decision::Merge {
            base: entry(FILE, "a"),
            ours: entry(FILE, "c"),
            theirs: entry(FILE, "b"),
            mode: FILE,
        };
        let cases = [
            (file("a"), file("b"), now("a"), write(FILE, "b")),
            (file("a"), file("b"), now("b"), Decision::Keep),
            (file("a"), file("b"), now("c"), merge),
            (file("a"), file("b"), Current::Absent, conflict(DeletedSince)),
            (file("a"), file("b"), Current::Directory, Decision::Blocked),
            (file("a"), file("b"), Current::Special, Decision::Blocked),
            (file("a"), file("b"), Current::Large, conflict(EditedSince)),
            (file("a"), file("b"), Current::Unreadable, conflict(ConflictReason::Unreadable)),
            (file("a"), absent.clone(), now("a"), Decision::Delete),
            (file("a"), absent.clone(), now("c"), conflict(EditedSince)),
            (file("a"), absent.clone(), Current::Absent, Decision::Keep),
            (file("a"), absent.clone(), Current::Directory, Decision::Keep),
            (absent.clone(), file("b"), Current::Absent, write(FILE, "b")),
            (absent.clone(), file("b"), Current::Directory, write(FILE, "b")),
            (absent.clone(), file("b"), now("c"), conflict(CreatedSince)),
            (absent.clone(), file("b"), Current::Large, conflict(CreatedSince)),
            (absent.clone(), file("b"), now("b"), Decision::Keep),
            (file("a"), program("a"), now("c"), write(PROGRAM, "c")),
            (file("a"), program("b"), now("a"), write(PROGRAM, "b")),
            (program("a"), file("b"), now("a"), write(FILE, "b")),
            (file("a"), link.clone(), now("a"), write(LINK, "l")),
            (file("a"), link, now("c"), conflict(EditedSince)),
            (large.clone(), file("b"), now("c"), conflict(Missing(NotRecorded::TooLarge))),
            (large.clone(), absent.clone(), Current::Absent, Decision::Keep),
            (large, absent.clone(), Current::Large, conflict(Missing(NotRecorded::TooLarge))),
            (nested, absent, Current::Directory, conflict(Missing(NotRecorded::Repository))),
            (module("1"), module("2"), Current::Entry(entry(Entry::SUBMODULE, "1")), conflict(Submodule)),
            (module("1"), module("2"), Current::Entry(entry(Entry::SUBMODULE, "2")), Decision::Keep),
        ];
        for (from, to, current, expected) in cases {
            assert_eq!(decide(&from, &to, &current), expected, "{from:?} {to:?} {current:?}");
        }
    }
}
