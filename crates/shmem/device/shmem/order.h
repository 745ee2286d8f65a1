// Order and completion of what was sent.
//
// Over P2P both are a release at system scope. They differ in what they promise, so that code written for P2P stays right
// where they are different: fence orders what goes to the same peer and completes nothing; quiet completes everything
// that the calling lanes issued, over every transport of the context. Neither makes a value that was stored *locally*
// visible to a peer's get; team_sync and team_barrier do.
#pragma once

#include "shmem/scope.h"

namespace shmem {

// Orders this thread's puts, values, atomics and signals to `peer` before its later ones to `peer`. One thread. For
// what a wave or a block has put, use quiet or put_signal.
ANABRANCH_DEVICE void fence(const Grid& grid, const Context& context, GroupRank peer) {
    static_cast<void>(context);
    static_cast<void>(peer);
    ANABRANCH_UNLESS(FENCE_ONE_NOTHING) Thread::release_for_leader(grid);
}

// The same, for every peer.
ANABRANCH_DEVICE void fence(const Grid& grid, const Context& context) {
    static_cast<void>(context);
    ANABRANCH_UNLESS(FENCE_ALL_NOTHING) Thread::release_for_leader(grid);
}

// Completes everything that the lanes of the scope have issued, to any peer: puts are visible there, gets are valid here,
// sources may be reused. All lanes of the scope call; it is also a barrier of the scope. Afterwards a signal of any of
// these lanes publishes what any of them has put.
template <class Scope>
ANABRANCH_DEVICE void quiet(const Grid& grid, const Context& context) {
    static_cast<void>(context);
    ANABRANCH_TWIN(QUIET_NOTHING) return Scope::barrier(grid);
    Scope::release_for_all(grid);
}

// The same, for what went to and came from one peer.
template <class Scope>
ANABRANCH_DEVICE void quiet(const Grid& grid, const Context& context, GroupRank peer) {
    static_cast<void>(peer);
    quiet<Scope>(grid, context);
}

}  // namespace shmem
