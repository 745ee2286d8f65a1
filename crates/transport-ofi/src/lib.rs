//! libfabric as the NIC driver of the RDMA transport: for networks that no NIC's queues or verbs reach (Slingshot, EFA), and for any other
//! that a provider of libfabric serves, TCP and shared memory among them.
//!
//! [`OfiDriver`] is a [`NicDriver`](anabranch_transport_rdma::NicDriver) whose requests a thread of the host posts
//! ([`Provider::Posted`](anabranch_transport_rdma::Provider::Posted)): kernels and the thread are the same as for verbs, and this crate has
//! what posts ([`posting::WorkQueue`](anabranch_transport_rdma::posting::WorkQueue)).
//!
//! * The library is opened at run time (`library.rs`), and its layouts are declared here (`bindings.rs`) and held against the system's headers
//!   by a test (`abi.rs`). Sources: the headers of libfabric 1.17 and its manual pages `fi_getinfo(3)`, `fi_mr(3)`, `fi_rma(3)`,
//!   `fi_atomic(3)`, `fi_cq(3)`.
//! * Every queue has a reliable datagram endpoint (`FI_EP_RDM`) of its own, with its address vector and completion queue (`wire.rs`): ending
//!   one ends what it has under way and nothing else, as of a queue pair. Providers that bind memory to an endpoint
//!   (`FI_MR_ENDPOINT`, today's `cxi`) would need one for all queues of a rank; they are not asked for, and so not found.
//! * What a request waits for, as libfabric promises no order between operations, stands in `flights.rs`, with the argument why kernels do not
//!   see it.
//! * Values that kernels wait for (`WRITE_VALUE`) arrive in one piece: they are atomic writes, as bytes of a stream are not. Who has no
//!   atomic operations of 64 bits cannot serve.
//! * Keys of libfabric have up to 64 bits and requests have 32: ranges are numbered, and the numbers are the keys. What they stand for travels with
//!   the endpoints (`endpoint.rs`), so that peers can name ranges that were registered before a queue was described.
//! * Memory is that of the host: the runtime made of CPU threads. Memory of GPUs is refused.
//! * A queue that has stopped uses this process's memory no more, as its endpoint is closed. Providers by which peers use it on their own are
//!   refused unless the environment forbids them to: `shm` serves with `FI_SHM_DISABLE_CMA=1` (`environment.rs`).
//! * Providers are libraries in this process. Handlers of signals that they put in place are taken away again (`signals.rs`), so that a program's
//!   own stay; with them goes that `shm` takes its files out of `/dev/shm` when a signal ends the process. Some of these libraries
//!   write files `*.btr` into the working folder when their own handlers run, which here they do not.
//! * Every queue is an endpoint with all that a provider makes for one: over `tcp` a listening socket, its connections and some descriptors to
//!   wait by, over `shm` a file of some MiB in `/dev/shm`. A rank has `transport.rdma.queues` queues to each peer: the limits of open files
//!   (`ulimit -n`) and of `/dev/shm` have to allow for that.
//!
//! What peers ask of this rank is answered when its thread asks for completions, in every turn: at most 50 µs apart for 20 ms after this rank's
//! own queues moved, half a millisecond apart after a longer idle time.
#![deny(unsafe_code)]

#[cfg(test)]
mod abi;
#[allow(dead_code, reason = "fields stand for the places that they take")]
mod bindings;
mod choose;
#[allow(unsafe_code, reason = "calls a C library")]
mod domain;
mod driver;
mod endpoint;
mod environment;
#[cfg(test)]
#[allow(unsafe_code, reason = "stands for a C library")]
mod fake;
mod flights;
#[allow(unsafe_code, reason = "calls a C library")]
mod info;
#[allow(unsafe_code, reason = "calls a C library")]
mod library;
mod line;
mod queue;
#[allow(unsafe_code, reason = "calls a C library")]
mod region;
#[allow(unsafe_code, reason = "asks the C library for handlers of signals")]
mod signals;
#[allow(unsafe_code, reason = "calls a C library")]
mod wire;

pub use choose::Reach;
pub use driver::{OfiDriver, OfiNics};
