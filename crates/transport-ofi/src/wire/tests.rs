//! The memory of an endpoint, and errors of no operation, with fake objects.

use std::sync::Arc;

use anabranch_transport_rdma::posting::status;

use super::*;
use crate::fake;

const BUSY: c_int = -16;

#[test]
fn an_endpoint_that_is_closed_leaves_nothing() {
    let domain = Domain::of_test(fake::info(|_| ()));
    let (endpoint, queue, vector) = (fake::endpoint(0), fake::queue(), fake::vector());
    let mut wire = Wire::of_test(&domain, endpoint, queue, vector, 4);
    assert!(wire.end() && wire.end(), "the second time there is nothing to do");
    drop(wire);
    assert_eq!((endpoint.closed, queue.closed, vector.closed), (1, 1, 1));
    assert_eq!(Arc::strong_count(&domain), 1);
}

#[test]
fn an_endpoint_that_is_not_closed_keeps_all_that_it_may_use() {
    let domain = Domain::of_test(fake::info(|_| ()));
    let (endpoint, queue, vector) = (fake::endpoint(BUSY), fake::queue(), fake::vector());
    let mut wire = Wire::of_test(&domain, endpoint, queue, vector, 4);
    let region = OfiRegion::of_test(&domain, Region { address: 4096, bytes: 16 });
    wire.operands_region = Some(Arc::clone(&region));
    let (contexts, operands) = (wire.contexts.as_ptr(), wire.operands.get());
    assert!(!wire.end(), "the caller hears of it");
    assert_ne!(wire.operands.get(), operands);
    assert!(wire.contexts.is_empty());
    drop(wire);
    assert_eq!((endpoint.closed, queue.closed, vector.closed), (1, 0, 0));
    // The wire's, which is for ever; the region's and the test's.
    assert_eq!((Arc::strong_count(&domain), Arc::strong_count(&region)), (3, 2));
    // SAFETY: the memory was not shared, and nothing uses it.
    assert_eq!(unsafe { operands.read() }, [0; 2]);
    // SAFETY: as above.
    assert!(unsafe { (*(*contexts).get()).internal }.iter().all(|word| word.is_null()));
}

#[test]
fn an_error_of_no_operation_of_this_queue_is_the_peers() {
    let domain = Domain::of_test(fake::info(|_| ()));
    let wire = Wire::of_test(&domain, fake::endpoint(0), fake::queue(), fake::vector(), 4);
    let mut ended = Vec::new();
    let fault = wire.poll(&mut ended).unwrap_err();
    assert!(ended.is_empty());
    assert_eq!(fault.status, status::FLUSHED, "a consequence");
    assert!(
        fault.words.starts_with("what the peer asked for failed here: libfabric: a made-up error (13)"),
        "{}",
        fault.words
    );
}
