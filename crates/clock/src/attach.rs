//! Which driver, if any, a thread is under.

use core::cell::RefCell;
use core::marker::PhantomData;
use core::time::Duration;
use std::sync::Arc;

use crate::{Driver, Seat};

thread_local! {
    static CURRENT: RefCell<Option<(Arc<dyn Driver>, Seat)>> = const { RefCell::new(None) };
}

/// The calling thread's driver.
pub(crate) fn current() -> Option<(Arc<dyn Driver>, Seat)> {
    // A thread whose thread-locals are gone already waits as an ordinary thread does.
    CURRENT.try_with(|current| current.borrow().clone()).ok().flatten()
}

/// The calling thread is under a driver while this lives.
#[derive(Debug)]
pub struct Attached {
    driver: Arc<dyn Driver>,
    seat: Seat,
    /// Attachment belongs to the thread.
    _thread: PhantomData<*const ()>,
}

/// Puts the calling thread under a driver and returns when it has its first turn.
///
/// A thread is under one driver at a time: an attachment that is there already is replaced, and is not restored.
pub fn attach(driver: Arc<dyn Driver>, seat: Seat) -> Attached {
    CURRENT.with(|current| *current.borrow_mut() = Some((Arc::clone(&driver), seat)));
    driver.enter(seat);
    Attached { driver, seat, _thread: PhantomData }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let _ = CURRENT.try_with(|current| current.borrow_mut().take());
        self.driver.leave(self.seat);
    }
}

/// Whether the calling thread is under a driver.
pub fn is_attached() -> bool {
    current().is_some()
}

/// Which driver the calling thread is under: equal for threads of one driver while it lives.
pub fn driver_number() -> Option<usize> {
    current().map(|(driver, _)| Arc::as_ptr(&driver).addr())
}

/// Lets others go first, on an attached thread; nothing on others. `what` is what the thread is about to do.
pub fn give_way(what: &'static str) {
    if let Some((driver, seat)) = current() {
        driver.give_way(seat, what);
    }
}

/// Sleeps for at least this long, by the thread's clock.
///
/// For polls of what cannot notify (a device). Where another thread can, wait for a [`Signal`](crate::Signal) instead.
#[expect(clippy::disallowed_methods, reason = "the system's sleep is what a thread without a driver gets")]
pub fn sleep(duration: Duration) {
    let Some((driver, seat)) = current() else { return std::thread::sleep(duration) };
    let until = driver.now().saturating_add(duration);
    while driver.now() < until {
        driver.wait(seat, None, Some(until));
    }
}
