//! The end of the process.

use std::sync::Once;

extern "C" fn at_exit() {
    crate::comm::wait_all_left();
}

/// Lets the end of the process wait for worlds that are being left, so that the other ranks do not lose this one.
pub(crate) fn wait_at_exit() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: the function is `extern "C"` without arguments. The library stays mapped: it has threads and is never closed.
        if unsafe { libc::atexit(at_exit) } != 0 {
            tracing::warn!("atexit failed: communicators that are destroyed at the end of the process may look like lost ranks");
        }
    });
}
