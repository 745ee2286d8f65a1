//! What kernels may use: freed when they are over, kept where that is not known.

use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use anabranch::bootstrap::Deadline;

/// How long calls may take to end after the failure of their world.
const DRAIN: Duration = Duration::from_secs(2);
/// Between two queries, where the runtime refuses to wait.
const REST: Duration = Duration::from_millis(5);

/// Calls in flight.
pub(crate) trait Calls {
    /// Waits until they are over, at most for `limit`. Ends at once where the runtime refuses the query, because of a capture.
    fn wait(&self, limit: Duration);
    /// Whether they are known to be over: not where the runtime refuses the query.
    fn are_over(&self) -> bool;
    /// Whether their world has failed.
    fn have_failed(&self) -> bool;
    /// Makes their world fail, which ends its kernels.
    fn fail(&self);
}

/// Whether calls are over. Their world fails when they are not after `limit`. A refused query is no answer, and is repeated.
pub(crate) fn are_over(calls: &impl Calls, limit: Duration) -> bool {
    let (mut deadline, mut is_last) = (Deadline::after(limit), false);
    loop {
        calls.wait(deadline.remaining());
        if calls.are_over() {
            return true;
        }
        if deadline.expired() && is_last {
            return false;
        }
        if !is_last && (deadline.expired() || calls.have_failed()) {
            calls.fail();
            (deadline, is_last) = (Deadline::after(DRAIN), true);
        }
        std::thread::park_timeout(REST);
    }
}

/// Runs the work that ends the use of a value. After a panic the value is kept for good, since kernels may use what it owns.
///
/// # Errors
/// The panic.
pub(crate) fn kept_on_panic<T, R>(value: T, work: impl FnOnce(&mut T) -> R) -> std::thread::Result<(T, R)> {
    let mut value = ManuallyDrop::new(value);
    let result = catch_unwind(AssertUnwindSafe(|| work(&mut value)))?;
    Ok((ManuallyDrop::into_inner(value), result))
}
