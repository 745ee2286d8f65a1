//! Finding out whether the world still works, and waiting for streams without hanging.

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anabranch_clock::Moment;
use anabranch_hip::{Event, HostCall, Stream};

use super::World;
use crate::error::{Error, Fault, Result};

/// How long kernels get to drain once their waits have ended.
pub(crate) const DRAIN: Duration = Duration::from_secs(1);

impl World {
    /// Whether the world works. Cheap: every operation begins with it.
    ///
    /// The first call after a kernel's wait expired takes up to the grace period: when a peer turns out to be lost, or to
    /// have waited for another rank itself, that is the cause that is reported. Twice that where a queue pair has stopped because of
    /// something that its peer knows more precisely. Up to two seconds more where the missing rank does not answer what it is doing; the others hear
    /// of the wait before.
    ///
    /// # Errors
    /// [`Error::Fault`] with the first cause, the same at every call from then on; [`Error::Left`].
    pub fn check(&self) -> Result<()> {
        self.check_fault()?;
        if self.inner.left.load(Ordering::Acquire) { Err(Error::Left) } else { Ok(()) }
    }

    /// [`Self::check`] for `leave` itself.
    pub(crate) fn check_fault(&self) -> Result<()> {
        let state = &self.inner.state;
        if state.cause().is_none() && state.is_raised()? {
            self.inner.fault_context().judge(state.control().fault()?.as_ref());
        }
        state.cause().map_or(Ok(()), |fault| Err(fault.clone().into()))
    }

    /// Gives the world up: waiting kernels of this rank end, and every later call returns the first cause. The other ranks
    /// notice when this rank's world is dropped, or by their deadlines, and report the same cause.
    pub fn poison(&self, reason: &str) {
        self.fail(Fault::Poisoned { rank: self.rank(), reason: reason.to_owned() });
    }

    /// Waits until all work on the stream is done, then checks the world. [`World::synchronize_within`] with the operation
    /// deadline and one second.
    ///
    /// # Errors
    /// The errors of [`World::synchronize_within`].
    pub fn synchronize(&self, stream: &Stream) -> Result<()> {
        self.synchronize_within(stream, self.operation_deadline() + Duration::from_secs(1))
    }

    /// Waits until all work on the stream is done, but no longer than `limit`. When the world fails meanwhile, the kernels
    /// drain, and the error has the cause.
    ///
    /// # Errors
    /// What made the world fail; [`Error::StreamBusy`] when the stream is simply not done yet, which changes nothing; an
    /// error of the work itself.
    pub fn synchronize_within(&self, stream: &Stream, limit: Duration) -> Result<()> {
        let _call = self.device().record_call(|| HostCall::new("synchronize"));
        let activity = self.inner.collectives.activity();
        let in_call = activity.call("a wait of the host for a stream");
        let newest = Cell::new(0);
        self.wait_while_busy(limit, || {
            newest.set(activity.newest());
            Ok(!stream.is_idle()?)
        })?;
        drop(in_call);
        activity.stream_is_done(stream.raw() as usize, newest.get());
        Ok(())
    }

    /// [`Self::synchronize_within`] for what came before an event.
    ///
    /// # Errors
    /// The errors of [`Self::synchronize_within`].
    pub fn wait_within(&self, event: &Event, limit: Duration) -> Result<()> {
        let _in_call = self.inner.collectives.activity().call("a wait of the host for an event");
        self.wait_while_busy(limit, || Ok(!event.is_done()?))
    }

    fn wait_while_busy(&self, limit: Duration, is_busy: impl Fn() -> Result<bool>) -> Result<()> {
        let start = Moment::now();
        let mut failed_at: Option<Moment> = None;
        let mut polls = 0u32;
        while is_busy()? {
            match failed_at {
                Some(at) if at.elapsed() > DRAIN => {
                    tracing::warn!("work did not end within {DRAIN:?} of the world's failure");
                    self.check()?;
                    return Err(Error::StreamBusy { waited: start.elapsed() });
                }
                None if self.inner.state.is_raised()? => failed_at = Some(Moment::now()),
                None if start.elapsed() > limit => {
                    return Err(Error::StreamBusy { waited: start.elapsed() });
                }
                _ => {}
            }
            rest(polls);
            polls = polls.saturating_add(1);
        }
        self.check()
    }
}

/// Between two looks: soon at first, for short kernels, then less often, for cores that have other work. Under a driver the
/// looks themselves let others go first, and only a sleep lets its clock move.
pub(crate) fn rest(polls: u32) {
    match polls {
        0..64 if !anabranch_clock::is_attached() => std::thread::yield_now(),
        0..256 => anabranch_clock::sleep(Duration::from_micros(20)),
        _ => anabranch_clock::sleep(long_rest(polls - 256)),
    }
}

/// The rests of a long wait grow, but stay short beside what was waited already: 1100 looks in a second.
fn long_rest(looks: u32) -> Duration {
    Duration::from_micros(200).saturating_mul(1 + looks / 64).min(Duration::from_millis(5))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_waits_look_seldom_and_notice_soon() {
        let (mut waited, mut looks) = (Duration::from_millis(5), 0);
        while waited < Duration::from_secs(10) {
            let rest = long_rest(looks);
            assert!(rest <= waited / 20, "{rest:?} after {waited:?}");
            looks += 1;
            waited += rest;
        }
        assert!(looks < 3000, "{looks}");
    }
}
