//! The symmetric heap, routes to every peer, and put/get/signal/atomics/barriers.
