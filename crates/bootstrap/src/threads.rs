//! Ranks that are threads of one process.

use crate::client::{Client, Link, TooLarge, rendezvous_by_client};
use crate::hub::{Delivery, Hub};
use crate::mailbox::Mailbox;
use crate::message::Request;
use crate::{Error, Loss, LossKind};
use anabranch_ranks::GlobalRank;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// One rank of a world whose ranks are threads of this process; made by [`threads`].
///
/// Dropping it without [`leave`](crate::Rendezvous::leave) counts as having died, as when its thread panics.
#[derive(Debug)]
pub struct ThreadRendezvous {
    client: Client,
}

rendezvous_by_client!(ThreadRendezvous);

/// Makes a world of `size` ranks, in rank order, to be handed to one thread each. There is no maximum; 0
/// gives none.
///
/// Each call, and dropping a rank, is a point where a [driver](anabranch_clock::Driver) of the calling thread may let other
/// threads go first.
pub fn threads(size: u32) -> Vec<ThreadRendezvous> {
    let mailboxes: Vec<Arc<Mailbox>> = (0..size).map(|_| Arc::default()).collect();
    let hub = Mutex::new(Hub::new(size, u64::MAX));
    let exchange = Arc::new(Exchange { hub, mailboxes });
    (0..size)
        .map(GlobalRank::new)
        .zip(&exchange.mailboxes)
        .map(|(rank, mailbox)| {
            let link = ThreadLink { rank, exchange: Arc::clone(&exchange) };
            // The hub answers a withdrawal before `send` returns, so nothing is ever waited for after it.
            let client =
                Client::new(rank, size, u64::MAX, Duration::ZERO, Arc::clone(mailbox), Box::new(link));
            ThreadRendezvous { client }
        })
        .collect()
}

/// What the ranks share.
#[derive(Debug)]
struct Exchange {
    hub: Mutex<Hub>,
    mailboxes: Vec<Arc<Mailbox>>,
}

impl Exchange {
    /// Lets the hub take something in, and delivers what comes of it.
    fn step(&self, step: impl FnOnce(&mut Hub) -> Vec<Delivery>) {
        let mut hub = self.hub.lock().unwrap_or_else(PoisonError::into_inner);
        let known = hub.losses().len();
        let deliveries = step(&mut hub);
        let lost = hub.losses().len() > known;
        // Delivered under the lock, so that each mailbox is filled in the hub's order.
        self.deliver(deliveries);
        drop(hub);
        if lost {
            for mailbox in &self.mailboxes {
                mailbox.tell_observers();
            }
        }
    }

    fn deliver(&self, deliveries: Vec<Delivery>) {
        for delivery in deliveries {
            if let Some(mailbox) = self.mailboxes.get(delivery.to.index()) {
                mailbox.deliver(delivery.request, delivery.reply);
            }
        }
    }
}

#[derive(Debug)]
struct ThreadLink {
    rank: GlobalRank,
    exchange: Arc<Exchange>,
}

impl Link for ThreadLink {
    fn send(&self, request: u64, what: Request) -> Result<(), TooLarge> {
        self.exchange.step(|hub| hub.handle(self.rank, request, what));
        Ok(())
    }

    fn leave(&self) -> Result<(), Error> {
        self.exchange.step(|hub| hub.handle(self.rank, 0, Request::Goodbye));
        Ok(())
    }
}

impl Drop for ThreadLink {
    fn drop(&mut self) {
        anabranch_clock::give_way("drop");
        let detail =
            if std::thread::panicking() { "its thread panicked" } else { "it was dropped without leaving" };
        // Does nothing after a goodbye: only the first loss of a rank counts.
        let loss = Loss { rank: self.rank, kind: LossKind::Died, detail: detail.to_owned() };
        self.exchange.step(|hub| hub.lose(&loss));
    }
}
