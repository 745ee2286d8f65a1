// Scopes: the threads that call an operation together. All lanes that a scope names call, with equal arguments, converged; a block
// has a whole number of waves. Lane 0 is the scope's leader: it stores signals and polls.
//
// The rules of `anabranch/publish.h`, for each scope:
// - AMD, and the host that follows it: a barrier drains no other wave's stores, so every wave releases at system scope
//   before the barrier; afterwards any lane's relaxed flag store publishes.
// - NVIDIA: the barrier orders the scope's stores before a fence of any thread after it, and that fence is cumulative; but a
//   flag store publishes only after a fence of its own thread. So: barrier, then fences by the threads that will store flags.
#pragma once

#include "shmem/types.h"

namespace shmem {

// One thread, on its own.
struct Thread {
    static ANABRANCH_DEVICE u32 lane(const Grid&) { return 0; }
    static ANABRANCH_DEVICE u32 lanes(const Grid&) { return 1; }
    static ANABRANCH_DEVICE void barrier(const Grid&) {}
    static ANABRANCH_DEVICE u64 broadcast(const Grid&, u64 value) { return value; }
    static ANABRANCH_DEVICE void release_for_leader(const Grid& grid) {
        fence_release_system(grid);
    }
    static ANABRANCH_DEVICE void release_for_all(const Grid& grid) {
        fence_release_system(grid);
    }
};

// All lanes of one wave.
struct Wave {
    static ANABRANCH_DEVICE u32 lane(const Grid& grid) { return grid.lane(); }
    static ANABRANCH_DEVICE u32 lanes(const Grid&) { return WAVE_SIZE; }
    static ANABRANCH_DEVICE void barrier(const Grid& grid) { grid.wave_barrier(); }
    // The leader's value, in every lane.
    static ANABRANCH_DEVICE u64 broadcast(const Grid& grid, u64 value) { return grid.wave_broadcast64(value, 0); }
    // Afterwards a flag stored by the leader publishes what the wave stored before.
    static ANABRANCH_DEVICE void release_for_leader(const Grid& grid) {
#if ANABRANCH_HAS_PER_WAVE_RELEASE
        fence_release_system(grid);
        grid.wave_barrier();
#else
        grid.wave_barrier();
        if (grid.lane() == 0) fence_release_system(grid);
#endif
    }
    static ANABRANCH_DEVICE void fence_for_all(const Grid& grid) {
        fence_release_system(grid);
    }
    // Afterwards a flag stored by any lane does.
    static ANABRANCH_DEVICE void release_for_all(const Grid& grid) {
#if ANABRANCH_HAS_PER_WAVE_RELEASE
        fence_for_all(grid);
        grid.wave_barrier();
#else
        grid.wave_barrier();
        fence_for_all(grid);
#endif
    }
};

// All threads of one block.
struct Block {
    static ANABRANCH_DEVICE u32 lane(const Grid& grid) { return grid.thread; }
    static ANABRANCH_DEVICE u32 lanes(const Grid& grid) { return grid.block_threads; }
    static ANABRANCH_DEVICE void barrier(const Grid& grid) { grid.block_barrier(); }
    static ANABRANCH_DEVICE u64 broadcast(const Grid& grid, u64 value) { return grid.block_broadcast(value); }
    static ANABRANCH_DEVICE void release_for_leader(const Grid& grid) { block_release_system(grid); }
    static ANABRANCH_DEVICE void fence_for_first(const Grid& grid) {
        fence_release_system(grid);
    }
    // Afterwards a flag stored by any of the first `threads` threads publishes what the block stored before.
    static ANABRANCH_DEVICE void release_for_first(const Grid& grid, u32 threads) {
#if ANABRANCH_HAS_PER_WAVE_RELEASE
        static_cast<void>(threads);
        fence_for_first(grid);
        grid.block_barrier();
#else
        grid.block_barrier();
        if (grid.thread < threads) fence_for_first(grid);
#endif
    }
    static ANABRANCH_DEVICE void release_for_all(const Grid& grid) { release_for_first(grid, grid.block_threads); }
};

// Debug builds: whether every lane of a wave names the same peer. A block is checked wave by wave by the caller's rule.
template <class Scope>
ANABRANCH_DEVICE bool names_one_peer(const Grid&, GroupRank) {
    return true;
}
#if SHMEM_DEBUG
template <>
ANABRANCH_DEVICE bool names_one_peer<Wave>(const Grid& grid, GroupRank peer) {
    return !grid.wave_any(peer.value != grid.wave_broadcast(peer.value, 0));
}
#endif

}  // namespace shmem
