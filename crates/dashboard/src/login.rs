//! One-time login links, and the browsers that have logged in with them.
//!
//! Everything is held in memory and ends with the daemon. Knows neither HTTP nor the pages.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use subtle::ConstantTimeEq;

/// Lifetime of an unused link.
const LINK_LIFETIME: Duration = Duration::from_mins(5);
/// Lifetime of a login without requests.
const LOGIN_LIFETIME: Duration = Duration::from_hours(24);
/// Maximum number of unused links. A new link replaces the oldest.
const MAX_LINKS: usize = 32;
/// Maximum number of logins. A new login replaces the oldest.
const MAX_LOGINS: usize = 64;

/// A browser that has logged in.
#[derive(Debug, Clone)]
pub(crate) struct WebVisitor {
    /// Anti-CSRF token of the visitor's forms. Other pages cannot know it.
    pub form_token: String,
}

impl WebVisitor {
    /// Returns whether a form carries this visitor's token.
    pub fn owns_form(&self, token: &str) -> bool {
        is_same_secret(&self.form_token, token)
    }
}

/// The open links and the logged-in browsers.
#[derive(Debug, Default)]
pub(crate) struct Logins {
    links: Mutex<Vec<OneTimeLink>>,
    browsers: Mutex<Vec<LoggedInBrowser>>,
}

#[derive(Debug)]
struct OneTimeLink {
    token: String,
    created_at: Instant,
}

impl OneTimeLink {
    fn is_expired(&self, now: Instant) -> bool {
        now.duration_since(self.created_at) >= LINK_LIFETIME
    }
}

#[derive(Debug)]
struct LoggedInBrowser {
    cookie: String,
    last_request: Instant,
    visitor: WebVisitor,
}

impl Logins {
    /// Creates a link and returns its token.
    pub fn create_link(&self, now: Instant) -> String {
        let mut links = lock(&self.links);
        links.retain(|link| !link.is_expired(now));
        if links.len() >= MAX_LINKS {
            links.remove(0);
        }
        let token = new_secret();
        links.push(OneTimeLink { token: token.clone(), created_at: now });
        token
    }

    /// Redeems the token of a link, which is then invalid, and returns the cookie of the new login.
    pub fn redeem_link(&self, token: &str, now: Instant) -> Option<String> {
        let mut links = lock(&self.links);
        let at = links.iter().position(|link| is_same_secret(&link.token, token))?;
        if links.remove(at).is_expired(now) {
            return None;
        }
        let mut browsers = lock(&self.browsers);
        if browsers.len() >= MAX_LOGINS {
            browsers.remove(0);
        }
        let cookie = new_secret();
        let visitor = WebVisitor { form_token: new_secret() };
        browsers.push(LoggedInBrowser { cookie: cookie.clone(), last_request: now, visitor });
        Some(cookie)
    }

    /// Returns the visitor with this cookie, and extends the login.
    pub fn find_visitor(&self, cookie: &str, now: Instant) -> Option<WebVisitor> {
        let mut browsers = lock(&self.browsers);
        browsers.retain(|browser| now.duration_since(browser.last_request) < LOGIN_LIFETIME);
        let browser = browsers.iter_mut().find(|browser| is_same_secret(&browser.cookie, cookie))?;
        browser.last_request = now;
        Some(browser.visitor.clone())
    }

    /// Ends a login.
    pub fn log_out(&self, cookie: &str) {
        lock(&self.browsers).retain(|browser| !is_same_secret(&browser.cookie, cookie));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Compares two secrets in constant time.
fn is_same_secret(one: &str, other: &str) -> bool {
    one.as_bytes().ct_eq(other.as_bytes()).into()
}

/// Returns two random UUIDs: 244 bits from the operating system.
fn new_secret() -> String {
    format!("{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_works_once_within_its_lifetime() {
        let (logins, now) = (Logins::default(), Instant::now());
        let link = logins.create_link(now);
        assert!(logins.redeem_link("", now).is_none() && logins.redeem_link(&link[1..], now).is_none());
        assert!(logins.redeem_link(&link, now).is_some());
        assert!(logins.redeem_link(&link, now).is_none(), "a second time");
        let link = logins.create_link(now);
        assert!(logins.redeem_link(&link, now + LINK_LIFETIME).is_none(), "too late");
        assert!(logins.redeem_link(&link, now).is_none(), "an expired link stays invalid");
    }

    #[test]
    fn login_ends_by_logout_or_timeout() {
        let (logins, now) = (Logins::default(), Instant::now());
        let cookie = logins.redeem_link(&logins.create_link(now), now).unwrap();
        let nearly = LOGIN_LIFETIME.checked_sub(Duration::from_secs(1)).unwrap();
        let visitor = logins.find_visitor(&cookie, now + nearly).unwrap();
        assert!(visitor.owns_form(&visitor.form_token) && !visitor.owns_form(""));
        assert!(logins.find_visitor(&cookie, now + nearly * 2).is_some(), "a request extends the login");
        assert!(logins.find_visitor(&cookie, now + nearly * 2 + LOGIN_LIFETIME).is_none());
        let cookie = logins.redeem_link(&logins.create_link(now), now).unwrap();
        logins.log_out(&cookie);
        assert!(logins.find_visitor(&cookie, now).is_none());
    }

    #[test]
    fn unused_links_are_limited() {
        let (logins, now) = (Logins::default(), Instant::now());
        let first = logins.create_link(now);
        let links: Vec<String> = (0..MAX_LINKS).map(|_| logins.create_link(now)).collect();
        assert!(logins.redeem_link(&first, now).is_none());
        assert!(links.iter().all(|link| logins.redeem_link(link, now).is_some()));
    }
}
