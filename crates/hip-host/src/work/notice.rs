//! Waits of a caller's thread for what the machine does.

use anabranch_clock::Signal;

use crate::sync::modelled::{Mutex, MutexGuard};

/// Waits for a notice of the machine's. `driven` says that the thread's driver is the machine's own: another one does not know
/// who notifies, and the wait is a real one.
pub(crate) fn await_notice<'a, T>(
    signal: &Signal,
    mutex: &'a Mutex<T>,
    guard: MutexGuard<'a, T>,
    driven: bool,
) -> MutexGuard<'a, T> {
    if driven { signal.wait(mutex, guard, None) } else { signal.wait_outside(guard, None) }
}
