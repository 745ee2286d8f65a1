//! Wakes a thread that polls sockets.

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Shared by the thread, which polls it, and by those who have something for the thread.
#[derive(Clone, Debug)]
pub(super) struct Waker(Arc<OwnedFd>);

impl Waker {
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self(Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?)))
    }

    /// Makes the thread come back from polling, now or the next time.
    pub(super) fn wake(&self) {
        // It can only fail when the counter is full, and then a wake-up is on its way.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    pub(super) fn poll_fd(&self) -> PollFd<'_> {
        PollFd::new(&self.0, PollFlags::IN)
    }

    /// Takes all wake-ups; to be called before looking for what they were for.
    pub(super) fn clear(&self) {
        // It fails when there was none.
        let _ = rustix::io::read(&self.0, &mut [0_u8; 8]);
    }
}
