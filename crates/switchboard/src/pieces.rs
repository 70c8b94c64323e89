//! Words that come piece by piece, and most often once more as a whole: what of them has not been told yet.
//!
//! Owns the comparison. Agents differ in what they send (wholes, pieces, or both), and an answer that breaks off in the middle is
//! begun again with other words; whoever tells them must tell nothing twice and leave nothing out.

/// The pieces that were told since the last whole.
#[derive(Debug, Default)]
pub struct Pieces {
    told: String,
}

/// What a whole adds to its pieces.
#[derive(Debug, PartialEq, Eq)]
pub enum Whole<'a> {
    /// This, which goes on where the pieces ended. It may be nothing.
    GoesOn(&'a str),
    /// All of it: there were no pieces, or they were of something else.
    Anew(&'a str),
}

impl Pieces {
    /// A piece is being told.
    pub fn add(&mut self, piece: &str) {
        self.told.push_str(piece);
    }

    /// Whether pieces were told whose whole is yet to come.
    pub fn are_open(&self) -> bool {
        !self.told.is_empty()
    }

    /// No whole of them will come.
    pub fn forget(&mut self) {
        self.told.clear();
    }

    /// A whole has come.
    pub fn whole<'a>(&mut self, whole: &'a str) -> Whole<'a> {
        if self.told.is_empty() {
            return Whole::Anew(whole);
        }
        // A message of several texts may be told in pieces to its end before the first whole of it comes.
        if let Some(later) = self.told.strip_prefix(whole) {
            self.told = later.to_owned();
            return Whole::GoesOn("");
        }
        let told = std::mem::take(&mut self.told);
        whole.strip_prefix(told.as_str()).map_or(Whole::Anew(whole), Whole::GoesOn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(pieces: &[&str]) -> Pieces {
        let mut all = Pieces::default();
        for piece in pieces {
            all.add(piece);
        }
        all
    }

    #[test]
    fn a_whole_without_pieces_is_all_new() {
        assert_eq!(after(&[]).whole("a b"), Whole::Anew("a b"));
    }

    #[test]
    fn a_whole_adds_what_its_pieces_lacked_and_the_next_one_begins_anew() {
        let mut pieces = after(&["a ", "b"]);
        assert_eq!(pieces.whole("a b c"), Whole::GoesOn(" c"));
        assert!(!pieces.are_open());
        assert_eq!(pieces.whole("d"), Whole::Anew("d"));
    }

    #[test]
    fn two_wholes_may_follow_the_pieces_of_both() {
        let mut pieces = after(&["one", "two"]);
        assert_eq!(pieces.whole("one"), Whole::GoesOn(""));
        assert!(pieces.are_open());
        assert_eq!(pieces.whole("two"), Whole::GoesOn(""));
    }

    #[test]
    fn an_answer_that_was_begun_again_is_told_again() {
        assert_eq!(after(&["Half an ans"]).whole("Another answer"), Whole::Anew("Another answer"));
    }
}
