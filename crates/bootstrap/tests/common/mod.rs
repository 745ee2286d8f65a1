//! Worlds of either form, one thread for each rank.
#![allow(dead_code, reason = "each test file uses a part of this")]

use anabranch_bootstrap::{Deadline, Error, Rendezvous, Secret, TcpConfig, TcpRendezvous, TcpRoot, threads};
use anabranch_ranks::{GlobalRank, Group};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Longer than anything takes that is not meant to expire.
pub(crate) fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(10))
}

/// For waits that are meant to expire.
pub(crate) fn short() -> Deadline {
    Deadline::after(Duration::from_millis(200))
}

/// A collective call that moves no bytes.
pub(crate) trait Barrier {
    fn barrier(&self, group: &Group, tag: &str, deadline: Deadline) -> Result<(), Error>;
}

impl<R: Rendezvous + ?Sized> Barrier for R {
    fn barrier(&self, group: &Group, tag: &str, deadline: Deadline) -> Result<(), Error> {
        self.all_gather(group, tag, &[], deadline).map(drop)
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Form {
    Threads,
    Tcp,
}

pub(crate) fn config(rank: u32, size: u32, address: &str) -> TcpConfig {
    TcpConfig {
        secret: Secret::new("the secret"),
        ..TcpConfig::new(address, GlobalRank::new(rank), size, soon())
    }
}

/// Makes a world and runs `body` on every rank's own thread; gives what they return, in rank order.
pub(crate) fn run<T: Send + 'static>(
    form: Form,
    size: u32,
    body: impl Fn(Arc<dyn Rendezvous>) -> T + Send + Sync + 'static,
) -> Vec<T> {
    run_boxed(form, size, move |rank| body(Arc::from(rank)))
}

/// [`run`] with the only handle to each rank.
pub(crate) fn run_boxed<T: Send + 'static>(
    form: Form,
    size: u32,
    body: impl Fn(Box<dyn Rendezvous>) -> T + Send + Sync + 'static,
) -> Vec<T> {
    let body = Arc::new(body);
    let joins: Vec<Box<dyn FnOnce() -> Box<dyn Rendezvous> + Send>> = match form {
        Form::Threads => threads(size)
            .into_iter()
            .map(|rank| Box::new(move || Box::new(rank) as Box<dyn Rendezvous>) as Box<_>)
            .collect(),
        Form::Tcp => {
            let mut root = Some(TcpRoot::bind("127.0.0.1:0").expect("a free port"));
            let address = root.as_ref().map(TcpRoot::address).expect("just bound").to_string();
            (0..size)
                .map(|rank| {
                    let (config, root) = (config(rank, size, &address), root.take());
                    Box::new(move || {
                        let joined = match root {
                            Some(root) => TcpRendezvous::join_with_root(config, root),
                            None => TcpRendezvous::join(config),
                        };
                        Box::new(joined.expect("joining")) as Box<dyn Rendezvous>
                    }) as Box<_>
                })
                .collect()
        }
    };
    let running: Vec<_> = joins
        .into_iter()
        .map(|join| {
            let body = Arc::clone(&body);
            thread::spawn(move || body(join()))
        })
        .collect();
    running.into_iter().map(|rank| rank.join().expect("a rank's thread")).collect()
}
