//! [`Mailbox`] under loom: in every order, an awaited answer or the end of the conversation reaches who waits, and each
//! observer hears of each loss once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anabranch_ranks::GlobalRank;
use loom::thread::{JoinHandle, spawn};

use super::{Closed, Mailbox, Waited};
use crate::message::Reply;
use crate::{Deadline, Loss, LossKind, LossObserver};

const REQUEST: u64 = 7;

type Deliver = fn(&Mailbox, u64, Reply);
type Close = fn(&Mailbox, Closed);

fn deadline() -> Deadline {
    Deadline::after(Duration::from_secs(3600))
}

fn on(mailbox: &Arc<Mailbox>, act: impl FnOnce(&Mailbox) + 'static) -> JoinHandle<()> {
    let mailbox = Arc::clone(mailbox);
    spawn(move || act(&mailbox))
}

fn an_answer_arrives(deliver: Deliver) {
    loom::model(move || {
        let mailbox = Arc::new(Mailbox::default());
        mailbox.expect(REQUEST).unwrap();
        let reader = on(&mailbox, move |mailbox| deliver(mailbox, REQUEST, Reply::Value(Arc::default())));
        let waited = mailbox.wait(REQUEST, deadline());
        assert!(matches!(waited, Waited::Answered(Reply::Value(_))), "{waited:?}");
        reader.join().unwrap();
    });
}

fn an_end_arrives(close: Close) {
    loom::model(move || {
        let mailbox = Arc::new(Mailbox::default());
        mailbox.expect(REQUEST).unwrap();
        let closer = on(&mailbox, move |mailbox| close(mailbox, Closed::Left));
        let waited = mailbox.wait(REQUEST, deadline());
        assert!(matches!(waited, Waited::Closed(Closed::Left)), "{waited:?}");
        closer.join().unwrap();
    });
}

fn loss(rank: u32) -> Loss {
    Loss { rank: GlobalRank::new(rank), kind: LossKind::Died, detail: String::new() }
}

/// Counts what it is told; twice the same loss is a panic.
#[derive(Default)]
struct Counter([AtomicU32; 2]);

impl LossObserver for Counter {
    fn lost(&self, loss: &Loss) {
        let before = self.0[loss.rank.get() as usize].fetch_add(1, Ordering::Relaxed);
        assert_eq!(before, 0, "told twice of {loss}");
    }
}

/// Two readers each bring a loss and tell; one observer comes meanwhile.
fn observers_hear_of_each_loss(observe: fn(&Mailbox, &Arc<dyn LossObserver>), tell: fn(&Mailbox)) {
    loom::model(move || {
        let mailbox = Arc::new(Mailbox::default());
        let readers: Vec<_> = (0..2)
            .map(|rank| {
                on(&mailbox, move |mailbox| {
                    mailbox.deliver(0, Reply::Lost(loss(rank)));
                    tell(mailbox);
                })
            })
            .collect();
        let counter = Arc::new(Counter::default());
        let observer: Arc<dyn LossObserver> = counter.clone();
        observe(&mailbox, &observer);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        for told in &counter.0 {
            assert_eq!(told.load(Ordering::Relaxed), 1, "not told of a loss");
        }
        mailbox.drop_observers();
    });
}

#[test]
fn loom_an_awaited_answer_arrives() {
    an_answer_arrives(Mailbox::deliver);
}

#[test]
fn loom_the_end_reaches_who_waits() {
    an_end_arrives(Mailbox::close);
}

#[test]
fn loom_an_answer_and_an_end_at_once_are_one_of_the_two() {
    loom::model(|| {
        let mailbox = Arc::new(Mailbox::default());
        mailbox.expect(REQUEST).unwrap();
        let reader = on(&mailbox, |mailbox| mailbox.deliver(REQUEST, Reply::Value(Arc::default())));
        let closer = on(&mailbox, |mailbox| mailbox.close(Closed::Left));
        let waited = mailbox.wait(REQUEST, deadline());
        assert!(matches!(waited, Waited::Answered(_) | Waited::Closed(_)), "{waited:?}");
        reader.join().unwrap();
        closer.join().unwrap();
        assert!(mailbox.expect(REQUEST).is_err(), "closed for good");
    });
}

#[test]
fn loom_each_observer_gets_each_loss_once() {
    observers_hear_of_each_loss(Mailbox::observe, Mailbox::tell_observers);
}

#[test]
#[should_panic(expected = "deadlock")]
fn loom_catches_an_answer_that_is_announced_before_it_is_there() {
    an_answer_arrives(|mailbox, request, reply| {
        mailbox.changed.notify_all();
        mailbox.lock().replies.insert(request, Some(reply));
    });
}

#[test]
#[should_panic(expected = "deadlock")]
fn loom_catches_an_unreported_end() {
    an_end_arrives(|mailbox, closed| mailbox.lock().closed = Some(closed));
}

#[test]
#[should_panic(expected = "told of a loss")]
fn loom_catches_an_observer_added_after_the_lock() {
    let observe = |mailbox: &Mailbox, observer: &Arc<dyn LossObserver>| {
        let state = mailbox.lock();
        let told: Vec<Loss> = state.losses.iter().take(state.told).cloned().collect();
        drop(state);
        mailbox.lock().observers.push(Arc::clone(observer));
        told.iter().for_each(|loss| observer.lost(loss));
    };
    observers_hear_of_each_loss(observe, Mailbox::tell_observers);
}

#[test]
#[should_panic(expected = "told twice of")]
fn loom_catches_two_who_tell_the_same_loss() {
    let tell = |mailbox: &Mailbox| {
        loop {
            let state = mailbox.lock();
            let Some(loss) = state.losses.get(state.told).cloned() else { return };
            let observers = state.observers.clone();
            drop(state);
            observers.iter().for_each(|observer| observer.lost(&loss));
            mailbox.lock().told += 1;
        }
    };
    observers_hear_of_each_loss(Mailbox::observe, tell);
}
