//! A driver for tests of host code: one thread at a time, in an order drawn from a seed, on a clock that only moves when all
//! threads wait.
//!
//! The turn goes to a thread drawn from those that can go on, whenever the thread that has it waits, sleeps, gives way or
//! leaves. When none can go on, the clock jumps to the earliest deadline. When there is none either, that is a *deadlock*: it
//! is noted, and one of the waiting threads, drawn from the seed, unwinds, so that the run ends. The same seed and the same
//! threads give the same [`Lockstep::trace`].
//!
//! Only attached threads may notify: a thread that is not attached is no part of the order, and a wait for it looks like a
//! deadlock.

use core::time::Duration;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use anabranch_clock::{Driver, Seat, attach};

/// A thread that keeps the turn for this long, really, waits for something that the driver does not know of.
const STUCK: Duration = Duration::from_secs(30);

/// One turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Who got it.
    pub seat: Seat,
    /// When, on the virtual clock.
    pub at: Duration,
    /// What the thread had said it was about to do, or how its wait ended.
    pub what: &'static str,
}

/// See the crate.
#[derive(Debug)]
pub struct Lockstep {
    state: Mutex<State>,
    /// Turns after which every thread that gets one unwinds.
    most_steps: usize,
}

#[derive(Debug)]
struct State {
    random: u64,
    now: Duration,
    places: Vec<Place>,
    turn: Option<usize>,
    trace: Vec<Step>,
    problems: Vec<String>,
}

#[derive(Debug)]
struct Place {
    doing: Doing,
    turned: Arc<Condvar>,
    /// Why this thread unwinds when it gets the turn.
    doom: Option<String>,
}

#[derive(Debug)]
enum Doing {
    Ready(&'static str),
    Waits { notices: Option<(Arc<AtomicU64>, u64)>, until: Option<Duration> },
    Gone,
}

impl Doing {
    /// What the thread would do if it got the turn now.
    fn next(&self, now: Duration) -> Option<&'static str> {
        match self {
            Self::Ready(what) => Some(what),
            Self::Waits { notices: Some((count, seen)), .. } if count.load(Ordering::SeqCst) != *seen => {
                Some("notified")
            }
            Self::Waits { until: Some(until), .. } if *until <= now => Some("expired"),
            Self::Waits { .. } | Self::Gone => None,
        }
    }
}

/// What a thread made of its body, as `std::thread::JoinHandle::join` gives it.
pub type Ended<T> = std::thread::Result<T>;

impl Lockstep {
    /// An order.
    pub fn new(seed: u64) -> Arc<Self> {
        let state = State {
            random: seed,
            now: Duration::ZERO,
            places: Vec::new(),
            turn: None,
            trace: Vec::new(),
            problems: Vec::new(),
        };
        Arc::new(Self { state: Mutex::new(state), most_steps: 200_000 })
    }

    /// Runs each body on an attached thread of its own, which works for the rank of the body's place, until all have ended. A
    /// body that unwinds leaves too.
    pub fn run<T: Send, F: FnOnce() -> T + Send>(self: &Arc<Self>, bodies: Vec<F>) -> Vec<Ended<T>> {
        let owners: Vec<u32> = (0..).take(bodies.len()).collect();
        let seats = self.seats(&owners);
        std::thread::scope(|scope| {
            let threads: Vec<_> = seats
                .into_iter()
                .zip(bodies)
                .map(|(seat, body)| {
                    let driver: Arc<dyn Driver> = Arc::<Self>::clone(self);
                    scope.spawn(move || {
                        let attached = attach(driver, seat);
                        // What the body owns is dropped under the driver.
                        let ended = catch_unwind(AssertUnwindSafe(body));
                        drop(attached);
                        ended
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(Err)).collect()
        })
    }

    /// Every turn so far.
    pub fn trace(&self) -> Vec<Step> {
        self.lock().trace.clone()
    }

    /// Turns so far.
    pub fn steps(&self) -> usize {
        self.lock().trace.len()
    }

    /// Deadlocks, and what else made threads unwind.
    pub fn problems(&self) -> Vec<String> {
        self.lock().problems.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the turn away and returns when it is back.
    fn switch(&self, seat: Seat, doing: Doing) {
        let mut state = self.lock();
        state.set(seat, doing);
        if state.turn == Some(index(seat)) {
            state.choose(self.most_steps);
        }
        await_turn(state, seat);
    }
}

#[expect(clippy::disallowed_methods, reason = "this is what attached threads really wait on")]
fn await_turn(mut state: MutexGuard<'_, State>, seat: Seat) {
    let turned = Arc::clone(&state.places[index(seat)].turned);
    while state.turn != Some(index(seat)) {
        let before = state.trace.len();
        let waited = turned.wait_timeout(state, STUCK).unwrap_or_else(PoisonError::into_inner);
        state = waited.0;
        if waited.1.timed_out() && state.trace.len() == before {
            let holder = state.turn;
            let words = format!("seat {holder:?} has had the turn for {STUCK:?} without a call");
            state.problems.push(words.clone());
            drop(state);
            unwind(words);
            return;
        }
    }
    let doom = state.places.get_mut(index(seat)).and_then(|place| place.doom.take());
    drop(state);
    if let Some(words) = doom {
        unwind(words);
    }
}

/// Without a panic's message: searches for mutants do this thousands of times. A thread that unwinds already goes on.
fn unwind(words: String) {
    if !std::thread::panicking() {
        resume_unwind(Box::new(words));
    }
}

fn index(seat: Seat) -> usize {
    seat.0 as usize
}

impl State {
    fn set(&mut self, seat: Seat, doing: Doing) {
        if let Some(place) = self.places.get_mut(index(seat)) {
            place.doing = doing;
        }
    }

    /// Splitmix64, below `bound`.
    fn draw(&mut self, bound: usize) -> usize {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.random;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((word ^ (word >> 31)) % bound.max(1) as u64) as usize
    }

    fn ready(&self) -> Vec<(usize, &'static str)> {
        let all = self.places.iter().enumerate();
        all.filter_map(|(at, place)| Some((at, place.doing.next(self.now)?))).collect()
    }

    /// Gives the turn to somebody.
    fn choose(&mut self, most_steps: usize) {
        self.turn = None;
        let mut ready = self.ready();
        if ready.is_empty() {
            let deadlines = self.places.iter().filter_map(|place| match place.doing {
                Doing::Waits { until, .. } => until,
                _ => None,
            });
            if let Some(earliest) = deadlines.min() {
                self.now = earliest;
                ready = self.ready();
            }
        }
        let mut doom = (self.trace.len() >= most_steps).then(|| format!("no end after {most_steps} turns"));
        if ready.is_empty() {
            let waiting = |(at, place): (usize, &Place)| match place.doing {
                Doing::Waits { .. } => Some((at, "deadlocked")),
                _ => None,
            };
            ready = self.places.iter().enumerate().filter_map(waiting).collect();
            if ready.is_empty() {
                return;
            }
            let seats: Vec<_> = ready.iter().map(|(at, _)| *at).collect();
            doom = Some(format!("deadlock at {:?}: seats {seats:?} wait without a deadline", self.now));
        }
        let drawn = self.draw(ready.len());
        let Some((at, what)) = ready.get(drawn).copied() else { return };
        self.turn = Some(at);
        self.trace.push(Step { seat: Seat(at as u32), at: self.now, what });
        if let Some(words) = &doom {
            self.problems.push(words.clone());
        }
        if let Some(place) = self.places.get_mut(at) {
            place.doom = doom;
            place.turned.notify_all();
        }
    }
}

impl Driver for Lockstep {
    fn now(&self) -> Duration {
        self.lock().now
    }

    fn seats(&self, owners: &[u32]) -> Vec<Seat> {
        let mut state = self.lock();
        let first = state.places.len();
        state.places.extend(owners.iter().map(|_| Place {
            doing: Doing::Ready("start"),
            turned: Arc::default(),
            doom: None,
        }));
        (first..state.places.len()).map(|at| Seat(at as u32)).collect()
    }

    fn enter(&self, seat: Seat) {
        let mut state = self.lock();
        if state.turn.is_none() {
            state.choose(self.most_steps);
        }
        await_turn(state, seat);
    }

    fn leave(&self, seat: Seat) {
        let mut state = self.lock();
        state.set(seat, Doing::Gone);
        if state.turn == Some(index(seat)) {
            state.choose(self.most_steps);
        }
    }

    fn wait(&self, seat: Seat, signal: Option<(&Arc<AtomicU64>, u64)>, until: Option<Duration>) {
        let notices = signal.map(|(count, seen)| (Arc::clone(count), seen));
        self.switch(seat, Doing::Waits { notices, until });
    }

    fn give_way(&self, seat: Seat, what: &'static str) {
        self.switch(seat, Doing::Ready(what));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_clock::{Moment, Signal, give_way, is_attached, sleep};

    /// Two threads that hand a word to and fro, with pauses; gives what was seen when.
    fn ping_pong(seed: u64) -> (Vec<(u32, Duration)>, Vec<Step>) {
        let shared = (Mutex::new((0u32, Vec::new())), Signal::new());
        let lockstep = Lockstep::new(seed);
        let body = |me: u32| {
            let shared = &shared;
            move || {
                assert!(is_attached());
                for round in 0..5 {
                    give_way("round");
                    let mut guard = shared.0.lock().unwrap();
                    while guard.0 % 2 != me {
                        guard = shared.1.wait(&shared.0, guard, None);
                    }
                    guard.0 += 1;
                    guard.1.push((me, Moment::now().since_origin()));
                    drop(guard);
                    shared.1.notify_all();
                    sleep(Duration::from_secs(u64::from(me) * 3600 + round));
                }
            }
        };
        for ended in lockstep.run(vec![body(0), body(1)]) {
            ended.unwrap();
        }
        assert_eq!(lockstep.problems(), Vec::<String>::new());
        (shared.0.into_inner().unwrap().1, lockstep.trace())
    }

    #[test]
    fn hours_pass_at_once_and_a_seed_gives_one_run() {
        let (seen, trace) = ping_pong(3);
        assert_eq!(seen.iter().map(|(who, _)| *who).collect::<Vec<_>>(), [0, 1, 0, 1, 0, 1, 0, 1, 0, 1]);
        assert!(seen[9].1 > Duration::from_secs(4 * 3600));
        assert_eq!((seen, trace.clone()), ping_pong(3));
        assert!((4..20).any(|seed| ping_pong(seed).1 != trace), "orders differ between seeds");
        assert!(!is_attached());
    }

    #[test]
    fn a_deadlock_is_reported_and_ends_the_run() {
        let (mutex, signal) = (Mutex::new(()), Signal::new());
        let lockstep = Lockstep::new(0);
        let wait = || {
            // For ever, unless it unwinds.
            let mut guard = mutex.lock().unwrap();
            loop {
                guard = signal.wait(&mutex, guard, None);
            }
        };
        let ended: Vec<Ended<()>> = lockstep.run(vec![wait, wait]);
        assert!(ended.iter().all(Result::is_err));
        let problems = lockstep.problems();
        assert_eq!(problems[0], "deadlock at 0ns: seats [0, 1] wait without a deadline");
        assert_eq!(problems.len(), 2, "{problems:?}");
    }

    #[test]
    fn a_loop_without_end_is_ended() {
        let lockstep = Lockstep::new(0);
        let ended: Vec<Ended<()>> = lockstep.run(vec![|| {
            loop {
                sleep(Duration::from_micros(1));
            }
        }]);
        assert!(ended[0].is_err());
        assert_eq!(lockstep.problems(), ["no end after 200000 turns"]);
    }

    #[test]
    fn a_seat_whose_thread_never_started_is_given_up() {
        let lockstep = Lockstep::new(1);
        let seats = lockstep.seats(&[0, 1]);
        lockstep.leave(seats[0]);
        std::thread::scope(|scope| {
            scope.spawn(|| drop(attach(Arc::<Lockstep>::clone(&lockstep), seats[1])));
        });
        assert_eq!(lockstep.steps(), 1);
    }
}
