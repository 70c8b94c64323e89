//! Runs two functions at the same time, most of which wait for git.

use std::thread;

use crate::error::ChangesError;

/// Runs two functions at the same time. If both fail, returns the first error.
pub(crate) fn run_both<A: Send, B>(
    first: impl FnOnce() -> Result<A, ChangesError> + Send,
    second: impl FnOnce() -> Result<B, ChangesError>,
) -> Result<(A, B), ChangesError> {
    thread::scope(|scope| {
        let first = scope.spawn(first);
        let second = second();
        let first = first.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok((first?, second?))
    })
}
