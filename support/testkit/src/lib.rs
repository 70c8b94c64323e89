//! Waits for conditions and inspects processes, for the tests of this workspace.
//!
//! A test waits for the condition that it needs instead of sleeping. Fixtures of one crate (a daemon, a store, a browser)
//! stay in that crate.

mod processes;

use std::time::{Duration, Instant};

pub use processes::{
    all_pids, children_of, command_line, descendants_of, is_running, is_suspended, session_of,
};

/// Bounds every wait. Longer than any step takes on a busy machine: a test that waits this long has failed.
pub const LONGEST_WAIT: Duration = Duration::from_mins(1);

const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Polls until the condition holds. Panics with its description after [`LONGEST_WAIT`].
pub fn eventually(condition: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONGEST_WAIT;
    while !holds() {
        assert!(Instant::now() < deadline, "{condition}: not within {LONGEST_WAIT:?}");
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Polls until the condition holds, without blocking the runtime. Panics with its description after [`LONGEST_WAIT`].
pub async fn eventually_async(condition: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + LONGEST_WAIT;
    while !holds().await {
        assert!(Instant::now() < deadline, "{condition}: not within {LONGEST_WAIT:?}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Polls until there is a value, and returns it. Panics with the description after [`LONGEST_WAIT`].
pub async fn eventually_some<T>(value: &str, mut find: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LONGEST_WAIT;
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(Instant::now() < deadline, "{value}: not within {LONGEST_WAIT:?}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Lists the functions of a module as tests of a binary with a `main` of its own, by the type `Test` of that binary. The
/// compiler reports an unlisted function as dead code.
#[macro_export]
#[expect(clippy::crate_in_macro_def, reason = "the type `Test` is that of the calling binary")]
macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        pub const TESTS: &[crate::Test] = &[$((stringify!($name), $name)),*];
    };
}
