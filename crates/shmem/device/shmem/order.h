// Order and completion of what was sent.
//
// Over P2P both are a release at system scope. Their contracts differ, so that code written for P2P is correct over the other
// transports: fence orders what goes to the same peer and completes nothing; quiet completes everything
// that the calling lanes issued, over every transport of the context. Neither makes a value that was stored *locally*
// visible to a peer's get; team_sync and team_barrier do.
//
// With a NIC, later requests may overtake reads and atomic operations: a fence waits for the queue pair of the calling wave to the peer,
// and quiet for the queue pairs of all peers (or of one). A signal with its copy (put_signal) waits for nothing.
//
// Copy engines order their copies neither with stores of kernels nor with other queues: there a fence waits until the
// copies are done, and quiet does so for the queues of all peers (or of one), whichever wave posted to them. The end of a
// kernel completes stores, but no copies of engines: a kernel whose work must be complete at its end calls quiet.
#pragma once

#include "shmem/engine.h"

namespace shmem {

#if SHMEM_ENGINES || SHMEM_NIC
// Completes what was posted to engines and NICs for `count` peers from `first` on. All lanes of the scope, after a barrier of it.
template <class Scope>
ANABRANCH_DEVICE Status drain(const Grid& grid, const Context& context, u32 first, u32 count) {
#if SHMEM_ENGINES
    drain_engines<Scope>(grid, context, first, count);
#endif
#if SHMEM_NIC
    drain_nics<Scope>(grid, context, first, count);
#endif
    acquire_after_wait(grid);
    Scope::barrier(grid);
    bool poisoned = Scope::lane(grid) == 0 && is_poisoned(grid, context.wait.control);
    return static_cast<Status>(Scope::broadcast(grid, static_cast<u64>(poisoned ? Status::FAULT : Status::OK)));
}
#endif

#if SHMEM_ENGINES || SHMEM_NIC
// The wait of a fence for `count` peers from `first` on. One thread.
ANABRANCH_DEVICE Status finish(const Grid& grid, const Context& context, u32 first, u32 count) {
#if SHMEM_ENGINES
    drain_engines<Thread>(grid, context, first, count);
#endif
#if SHMEM_NIC
    finish_nics(grid, context, first, count);
#endif
    acquire_after_wait(grid);
    return is_poisoned(grid, context.wait.control) ? Status::FAULT : Status::OK;
}
#endif

// Orders this thread's puts, values, atomics and signals to `peer` before its later ones to `peer`. One thread. For
// what a wave or a block has put, use quiet or put_signal. FAULT if an engine or a NIC did not finish: the caller must not signal then.
ANABRANCH_DEVICE Status fence(const Grid& grid, const Context& context, GroupRank peer) {
    Status status = Status::OK;
#if SHMEM_ENGINES || SHMEM_NIC
    if (peer.value < context.size()) status = finish(grid, context, peer.value, 1);
#else
    static_cast<void>(context);
    static_cast<void>(peer);
#endif
    Thread::release_for_leader(grid);
    return status;
}

// The same, for every peer.
ANABRANCH_DEVICE Status fence(const Grid& grid, const Context& context) {
    Status status = Status::OK;
#if SHMEM_ENGINES || SHMEM_NIC
    status = finish(grid, context, 0, context.size());
#else
    static_cast<void>(context);
#endif
    Thread::release_for_leader(grid);
    return status;
}

// Completes everything that the lanes of the scope have issued, to any peer: puts are visible there, gets are valid here,
// sources may be reused. A put by NIC is complete when the peer's NIC has it: it is visible to a reader that is notified by a queue pair of
// the same NIC; notification by another path is not covered (docs/memory-model.md, "What a NIC's completion says"). All lanes of the scope
// call; it is also a barrier of the scope. Afterwards a signal of any of these lanes publishes what any of them has put. FAULT if an engine
// or a NIC did not finish.
template <class Scope>
ANABRANCH_DEVICE Status quiet(const Grid& grid, const Context& context) {
    Scope::release_for_all(grid);
#if SHMEM_ENGINES || SHMEM_NIC
    return drain<Scope>(grid, context, 0, context.size());
#else
    static_cast<void>(context);
    return Status::OK;
#endif
}

// The same, for what went to and came from one peer.
template <class Scope>
ANABRANCH_DEVICE Status quiet(const Grid& grid, const Context& context, GroupRank peer) {
#if SHMEM_ENGINES || SHMEM_NIC
    Scope::release_for_all(grid);
    return peer.value < context.size() ? drain<Scope>(grid, context, peer.value, 1) : Status::UNREACHABLE;
#else
    static_cast<void>(peer);
    return quiet<Scope>(grid, context);
#endif
}

}  // namespace shmem
