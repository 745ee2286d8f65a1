// Order and completion of what was sent.
//
// Over P2P both are a release at system scope. They differ in what they promise, so that code written for P2P stays right
// where they are different: fence orders what goes to the same peer and completes nothing; quiet completes everything
// that the calling lanes issued, over every transport of the context. Neither makes a value that was stored *locally*
// visible to a peer's get; team_sync and team_barrier do.
//
// Copy engines know no order between their copies and stores of kernels, nor between queues: there a fence waits until the
// copies are done, and quiet does so for the queues of all peers (or of one), whichever wave put them there. The end of a
// kernel completes stores, and nothing that engines were given: a kernel whose work is to be complete at its end calls quiet.
#pragma once

#include "shmem/engine.h"

namespace shmem {

// Orders this thread's puts, values, atomics and signals to `peer` before its later ones to `peer`. One thread. For
// what a wave or a block has put, use quiet or put_signal. FAULT where an engine did not come to its end: nothing may be told
// behind it.
ANABRANCH_DEVICE Status fence(const Grid& grid, const Context& context, GroupRank peer) {
    Status status = Status::OK;
#if SHMEM_ENGINES
    u32 each = context.team.queues_per_peer;
    ANABRANCH_UNLESS(FENCE_ONE_NOTHING) {
        if (peer.value < context.size()) status = drain<Thread>(grid, context, peer.value * each, each);
    }
#else
    static_cast<void>(context);
    static_cast<void>(peer);
#endif
    ANABRANCH_UNLESS(FENCE_ONE_NOTHING) Thread::release_for_leader(grid);
    return status;
}

// The same, for every peer.
ANABRANCH_DEVICE Status fence(const Grid& grid, const Context& context) {
    Status status = Status::OK;
#if SHMEM_ENGINES
    u32 queues = context.size() * context.team.queues_per_peer;
    ANABRANCH_UNLESS(FENCE_ALL_NOTHING) status = drain<Thread>(grid, context, 0, queues);
#else
    static_cast<void>(context);
#endif
    ANABRANCH_UNLESS(FENCE_ALL_NOTHING) Thread::release_for_leader(grid);
    return status;
}

// Completes everything that the lanes of the scope have issued, to any peer: puts are visible there, gets are valid here,
// sources may be reused. All lanes of the scope call; it is also a barrier of the scope. Afterwards a signal of any of
// these lanes publishes what any of them has put. FAULT where an engine did not come to its end.
template <class Scope>
ANABRANCH_DEVICE Status quiet(const Grid& grid, const Context& context) {
    ANABRANCH_TWIN(QUIET_NOTHING) { Scope::barrier(grid); return Status::OK; }
    Scope::release_for_all(grid);
#if SHMEM_ENGINES
    return drain<Scope>(grid, context, 0, context.size() * context.team.queues_per_peer);
#else
    static_cast<void>(context);
    return Status::OK;
#endif
}

// The same, for what went to and came from one peer.
template <class Scope>
ANABRANCH_DEVICE Status quiet(const Grid& grid, const Context& context, GroupRank peer) {
#if SHMEM_ENGINES
    ANABRANCH_TWIN(QUIET_NOTHING) { Scope::barrier(grid); return Status::OK; }
    u32 each = context.team.queues_per_peer;
    Scope::release_for_all(grid);
    return peer.value < context.size() ? drain<Scope>(grid, context, peer.value * each, each) : Status::UNREACHABLE;
#else
    static_cast<void>(peer);
    return quiet<Scope>(grid, context);
#endif
}

}  // namespace shmem
