//! Who has been let in: links that open once, and the browsers that came through them.
//!
//! Everything is in memory, so it ends with the daemon. Knows neither HTTP nor what is behind the door.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use subtle::ConstantTimeEq;

/// How long a link may wait to be used.
pub const LINK_LIVES: Duration = Duration::from_mins(5);
/// How long a browser may stay away.
const VISITOR_LIVES: Duration = Duration::from_hours(24);
/// More than these are not open at once; the oldest goes.
const MOST_LINKS: usize = 32;
const MOST_VISITORS: usize = 64;

/// A browser that has been let in.
#[derive(Debug, Clone)]
pub struct Visitor {
    /// What every form of its pages carries: no other page can know it.
    pub form_token: String,
}

/// The links and the visitors.
#[derive(Debug, Default)]
pub struct Doors {
    links: Mutex<Vec<Ticket>>,
    visitors: Mutex<Vec<(Ticket, Visitor)>>,
}

#[derive(Debug)]
struct Ticket {
    word: String,
    /// When it was made, or last used.
    at: Instant,
}

impl Ticket {
    fn new(now: Instant) -> Self {
        Self { word: secret(), at: now }
    }

    /// Takes as long for a wrong word as for a right one.
    fn is(&self, word: &str) -> bool {
        self.word.as_bytes().ct_eq(word.as_bytes()).into()
    }

    fn is_older_than(&self, span: Duration, now: Instant) -> bool {
        now.duration_since(self.at) >= span
    }
}

impl Doors {
    /// A word that lets one browser in.
    pub fn new_link(&self, now: Instant) -> String {
        let mut links = lock(&self.links);
        links.retain(|link| !link.is_older_than(LINK_LIVES, now));
        if links.len() >= MOST_LINKS {
            links.remove(0);
        }
        let link = Ticket::new(now);
        let word = link.word.clone();
        links.push(link);
        word
    }

    /// Lets a browser in for the word of a link, which is of no use any more afterwards. Answers the word by which the browser is
    /// known from now on.
    pub fn enter(&self, word: &str, now: Instant) -> Option<String> {
        let mut links = lock(&self.links);
        let at = links.iter().position(|link| link.is(word))?;
        if links.remove(at).is_older_than(LINK_LIVES, now) {
            return None;
        }
        let mut visitors = lock(&self.visitors);
        if visitors.len() >= MOST_VISITORS {
            visitors.remove(0);
        }
        let ticket = Ticket::new(now);
        let word = ticket.word.clone();
        visitors.push((ticket, Visitor { form_token: secret() }));
        Some(word)
    }

    /// The browser that is known by that word.
    pub fn visitor(&self, word: &str, now: Instant) -> Option<Visitor> {
        let mut visitors = lock(&self.visitors);
        visitors.retain(|(ticket, _)| !ticket.is_older_than(VISITOR_LIVES, now));
        let (ticket, visitor) = visitors.iter_mut().find(|(ticket, _)| ticket.is(word))?;
        ticket.at = now;
        Some(visitor.clone())
    }

    /// Forgets a browser.
    pub fn leave(&self, word: &str) {
        lock(&self.visitors).retain(|(ticket, _)| !ticket.is(word));
    }
}

impl Visitor {
    /// Whether a form comes from a page that this visitor was given.
    pub fn has_sent(&self, token: &str) -> bool {
        self.form_token.as_bytes().ct_eq(token.as_bytes()).into()
    }
}

fn lock<T>(things: &Mutex<T>) -> MutexGuard<'_, T> {
    things.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Two random UUIDs: 244 bits from the operating system.
fn secret() -> String {
    format!("{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_opens_once_and_not_for_long() {
        let (doors, now) = (Doors::default(), Instant::now());
        let link = doors.new_link(now);
        assert!(doors.enter("", now).is_none() && doors.enter(&link[1..], now).is_none());
        assert!(doors.enter(&link, now).is_some());
        assert!(doors.enter(&link, now).is_none(), "a second time");
        let link = doors.new_link(now);
        assert!(doors.enter(&link, now + LINK_LIVES).is_none(), "too late");
        assert!(doors.enter(&link, now).is_none(), "and not by asking again");
    }

    #[test]
    fn a_visitor_is_known_until_it_leaves_or_stays_away() {
        let (doors, now) = (Doors::default(), Instant::now());
        let word = doors.enter(&doors.new_link(now), now).unwrap();
        let nearly = VISITOR_LIVES.checked_sub(Duration::from_secs(1)).unwrap();
        let visitor = doors.visitor(&word, now + nearly).unwrap();
        assert!(visitor.has_sent(&visitor.form_token) && !visitor.has_sent(""));
        assert!(doors.visitor(&word, now + nearly * 2).is_some(), "it came back in time");
        assert!(doors.visitor(&word, now + nearly * 2 + VISITOR_LIVES).is_none());
        let word = doors.enter(&doors.new_link(now), now).unwrap();
        doors.leave(&word);
        assert!(doors.visitor(&word, now).is_none());
    }

    #[test]
    fn links_that_nobody_uses_do_not_pile_up() {
        let (doors, now) = (Doors::default(), Instant::now());
        let first = doors.new_link(now);
        let links: Vec<String> = (0..MOST_LINKS).map(|_| doors.new_link(now)).collect();
        assert!(doors.enter(&first, now).is_none());
        assert!(links.iter().all(|link| doors.enter(link, now).is_some()));
    }
}
