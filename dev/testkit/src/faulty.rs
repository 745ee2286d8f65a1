//! A rendezvous whose link is slow, or is cut at a chosen call.

use anabranch_bootstrap::{Deadline, Error, Loss, LossKind, LossObserver, Rendezvous};
use anabranch_ranks::{GlobalRank, Group};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What goes wrong with one rank's link. Plain data; nothing by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RendezvousFaults {
    /// How many calls get through before the link is cut. A call is one of the collective calls, `set`, `wait` or `leave`.
    pub cut_after: Option<u64>,
    /// Each call is late by a time below this, drawn from the seed; the time counts against the call's deadline.
    pub slow_by: Duration,
    /// Where the times come from.
    pub seed: u64,
}

/// One rank of any form, with faults; for tests of what is built on a rendezvous.
///
/// When the link is cut, the inner rendezvous is dropped without a goodbye: the others see this rank die. This rank sees what
/// a rank with a lost link sees: rank 0, which serves the store, has died (rank 0 itself, that it was given up), in the
/// errors of all later calls, in its losses, and by its observers. Calls of its other threads that are under way keep the
/// link until they end.
pub struct FaultyRendezvous {
    rank: GlobalRank,
    size: u32,
    faults: RendezvousFaults,
    calls: Arc<AtomicU64>,
    state: Mutex<State>,
    notices: Arc<Notices>,
}

struct State {
    /// `None` once it is cut.
    inner: Option<Arc<dyn Rendezvous>>,
    left: bool,
    /// What was known when the link was cut, and that loss itself.
    losses: Vec<Loss>,
}

/// Tells each loss once, whether it comes from the link or from its cut.
#[derive(Default)]
struct Notices(Mutex<Reported>);

#[derive(Default)]
struct Reported {
    losses: Vec<Loss>,
    observers: Vec<Arc<dyn LossObserver>>,
}

impl LossObserver for Notices {
    fn lost(&self, loss: &Loss) {
        let mut reported = self.lock();
        if reported.losses.iter().any(|known| known.rank == loss.rank) {
            return;
        }
        reported.losses.push(loss.clone());
        let observers = reported.observers.clone();
        drop(reported);
        for observer in observers {
            observer.lost(loss);
        }
    }
}

impl Notices {
    fn lock(&self) -> MutexGuard<'_, Reported> {
        // Nothing panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FaultyRendezvous {
    /// Puts faults on a rank's link. It must be the only holder of it: a link with another holder is not cut.
    pub fn new(inner: Box<dyn Rendezvous>, faults: RendezvousFaults) -> Self {
        let (rank, size) = (inner.rank(), inner.size());
        let notices: Arc<Notices> = Arc::default();
        inner.observe(Arc::<Notices>::clone(&notices));
        let state = State { inner: Some(Arc::from(inner)), left: false, losses: Vec::new() };
        Self { rank, size, faults, calls: Arc::default(), state: Mutex::new(state), notices }
    }

    /// Calls so far, those after the cut too.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    /// What counts the calls, which stays when this is dropped: a holder of a link keeps it from being lost.
    pub fn counter(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.calls)
    }

    /// Whether the link was cut.
    pub fn is_cut(&self) -> bool {
        self.lock().inner.is_none()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The link for one more call, after its delay; none when it is cut. Nothing is held meanwhile.
    fn link(&self) -> Option<Arc<dyn Rendezvous>> {
        let mut state = self.lock();
        let call = self.calls.fetch_add(1, Ordering::SeqCst);
        let cuts = self.faults.cut_after.is_some_and(|most| call >= most) && !state.left;
        let gone = if cuts { state.inner.take() } else { None };
        let Some(gone) = gone else {
            let inner = state.inner.clone();
            drop(state);
            if inner.is_some() && !self.faults.slow_by.is_zero() {
                anabranch_clock::sleep(self.delay(call));
            }
            return inner;
        };
        drop(state);
        let mut losses = gone.losses();
        let loss = self.loss(call);
        // Rank 0 does not lose itself, and no rank is lost twice.
        if loss.rank != self.rank && losses.iter().all(|known| known.rank != loss.rank) {
            losses.push(loss);
        }
        self.lock().losses.clone_from(&losses);
        drop(gone);
        // Losses that the link has not reported yet come with its end.
        for loss in &losses {
            self.notices.lost(loss);
        }
        None
    }

    fn delay(&self, call: u64) -> Duration {
        let mut word = self.faults.seed ^ call.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let bound = u64::try_from(self.faults.slow_by.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos((word ^ (word >> 31)) % bound.max(1))
    }

    fn loss(&self, call: u64) -> Loss {
        let detail = format!("the link of {} was cut at its call {call}", self.rank);
        Loss { rank: GlobalRank::new(0), kind: LossKind::Died, detail }
    }

    /// What a call gives after the cut.
    fn cut(&self, phase: String) -> Error {
        let call = self.faults.cut_after.unwrap_or_default();
        let loss = self.loss(call);
        if loss.rank == self.rank { Error::GivenUp { phase, loss } } else { Error::PeerLost { phase, loss } }
    }

    fn call<T>(
        &self,
        phase: impl FnOnce() -> String,
        make: impl FnOnce(&dyn Rendezvous) -> Result<T, Error>,
    ) -> Result<T, Error> {
        match self.link() {
            Some(inner) => make(&*inner),
            None => Err(self.cut(phase())),
        }
    }
}

impl Rendezvous for FaultyRendezvous {
    fn rank(&self) -> GlobalRank {
        self.rank
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn all_gather(
        &self,
        group: &Group,
        tag: &str,
        bytes: &[u8],
        deadline: Deadline,
    ) -> Result<Vec<Vec<u8>>, Error> {
        self.call(|| format!("all_gather '{tag}'"), |inner| inner.all_gather(group, tag, bytes, deadline))
    }

    fn set(&self, key: &str, value: &[u8]) -> Result<(), Error> {
        self.call(|| format!("set key '{key}'"), |inner| inner.set(key, value))
    }

    fn wait(&self, key: &str, deadline: Deadline) -> Result<Vec<u8>, Error> {
        self.call(|| format!("wait for key '{key}'"), |inner| inner.wait(key, deadline))
    }

    fn losses(&self) -> Vec<Loss> {
        let state = self.lock();
        let inner = state.inner.clone();
        match inner {
            Some(inner) => {
                drop(state);
                inner.losses()
            }
            None => state.losses.clone(),
        }
    }

    fn observe(&self, observer: Arc<dyn LossObserver>) {
        let mut reported = self.notices.lock();
        let losses = reported.losses.clone();
        if !self.lock().left {
            reported.observers.push(Arc::clone(&observer));
        }
        drop(reported);
        for loss in &losses {
            observer.lost(loss);
        }
    }

    fn unobserve(&self, observer: &Arc<dyn LossObserver>) {
        let is_it =
            |known: &mut Arc<dyn LossObserver>| std::ptr::addr_eq(Arc::as_ptr(known), Arc::as_ptr(observer));
        // Dropped without the lock: it may own the owner of this.
        let gone: Vec<_> = self.notices.lock().observers.extract_if(.., is_it).collect();
        drop(gone);
    }

    /// After the cut there is no peer to leave, which is no error, as on a lost link.
    fn leave(&self) -> Result<(), Error> {
        let link = self.link();
        self.lock().left = true;
        let gone = std::mem::take(&mut self.notices.lock().observers);
        drop(gone);
        link.map_or(Ok(()), |inner| inner.leave())
    }
}

impl fmt::Debug for FaultyRendezvous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("FaultyRendezvous")
            .field("rank", &self.rank.get())
            .field("faults", &self.faults)
            .field("calls", &self.calls())
            .field("cut", &state.inner.is_none())
            .finish_non_exhaustive()
    }
}
