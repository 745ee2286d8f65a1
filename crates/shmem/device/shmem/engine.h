// Copies and signals by copy engines, where a peer's route has queues that kernels write (transport `sdma`). The unit is
// compiled with SHMEM_ENGINES = 1 then; without it every peer is reached by its mapping.
//
// The leader of a scope puts the packets into one queue: that of its wave, out of the peer's. What the scope's lanes stored
// is released before, as an engine reads memory and no cache.
#pragma once

#include "shmem/nic.h"

#if SHMEM_ENGINES
#include "sdma/queue.h"
#endif

namespace shmem {

// How a peer is reached by copies.
enum class RouteKind : u32 {
    MAPPING = 0,  // loads and stores of this kernel
    QUEUE = 1,    // packets that this kernel writes
    HOST = 2,     // engines that the host alone drives: kernels copy nothing
    NIC = 3,      // queue pairs that this kernel writes (nic.h)
};

#if SHMEM_ENGINES

// The entry of a peer's queue in the team's table that this lane's wave uses; null without a table. The rank is in range.
ANABRANCH_DEVICE const SdmaQueue* queue_entry(const Grid& grid, const Context& context, GroupRank peer) {
    u32 each = context.team.queues_per_peer;
    if (each == 0) return nullptr;
    u32 waves = (grid.block_threads + WAVE_SIZE - 1) / WAVE_SIZE;
    u32 channel = (grid.block * waves + grid.wave()) % each;
    return context.team.queues + (static_cast<u64>(peer.value) * each + channel);
}

ANABRANCH_DEVICE RouteKind route_kind(const Grid& grid, const Context& context, GroupRank peer) {
    if (is_by_nic(grid, context, peer)) return RouteKind::NIC;
    const SdmaQueue* entry = queue_entry(grid, context, peer);
    return entry == nullptr ? RouteKind::MAPPING : static_cast<RouteKind>(private_load(grid, &entry->route));
}

ANABRANCH_DEVICE Status from_engine(WaitStatus status) { return status == WAIT_OK ? Status::OK : Status::FAULT; }

// Puts an operation for `peer` into its queue and, if asked, waits until it is done, so that what was copied here may be read.
// All lanes of the scope, equal arguments; the route is QUEUE.
template <class Scope>
ANABRANCH_DEVICE Status by_queue(const Grid& grid, const Context& context, GroupRank peer, sdma::Operation operation,
                                 bool waits) {
    Scope::release_for_leader(grid);
    Status status = Status::OK;
    if (Scope::lane(grid) == 0) {
        SdmaQueue queue = sdma::load_queue(grid, queue_entry(grid, context, peer));
        operation.tells = waits;
        u64 end = 0;
        WaitStatus done = sdma::post(grid, context.wait, queue, operation, end);
        if (done == WAIT_OK && waits) {
            done = sdma::wait_done(grid, context.wait, queue, end);
            acquire_after_wait(grid);
        }
        status = from_engine(done);
    }
    Scope::barrier(grid);
    return static_cast<Status>(Scope::broadcast(grid, static_cast<u64>(status)));
}

// Waits for what was put into the queues of `count` peers from `first` on. All lanes of the scope; an expired wait has poisoned the
// world.
template <class Scope>
ANABRANCH_DEVICE void drain_engines(const Grid& grid, const Context& context, u32 first, u32 count) {
    u32 each = context.team.queues_per_peer;
    for (u32 index = first * each + Scope::lane(grid); index < (first + count) * each; index += Scope::lanes(grid)) {
        SdmaQueue queue = sdma::load_queue(grid, context.team.queues + index);
        if (static_cast<RouteKind>(queue.route) == RouteKind::QUEUE) sdma::quiet(grid, context.wait, queue);
    }
}

#else

ANABRANCH_DEVICE RouteKind route_kind(const Grid& grid, const Context& context, GroupRank peer) {
    return is_by_nic(grid, context, peer) ? RouteKind::NIC : RouteKind::MAPPING;
}

#endif

// A copy or a signal that only the host can request: a fault, and nothing is touched. Any lane.
ANABRANCH_DEVICE Status refuse(const Grid& grid, const Context& context, u64 offset, GroupRank peer) {
    report_fault(grid, context.wait, PHASE_UNSUPPORTED, peer.value, offset, 0, 0);
    return Status::UNSUPPORTED;
}

}  // namespace shmem
