// The flags of a combine: each rank stores one {epoch, way} at every other rank and waits for one from each. A rank stores its flag after
// its rows are in place: in its own window if they are pulled, in the reader's if they are pushed or copied by engines. All ranks of a
// combine use the same way; another way is a fault. Masked ranks get no flag and are not waited for.
#pragma once

#include "ep/mask.h"
#include "ep/send_map.h"
#include "ep/token_count.h"

enum CombinePhase : u32 {
    COMBINE_WAIT_FLAG = 1,
    COMBINE_FLAG_OVERRUN = 2,
    COMBINE_OTHER_WAY = 3,
    COMBINE_WAIT_WEIGHTS = 4,
    COMBINE_WEIGHTS_OVERRUN = 5
};

// The count of a combine's flag.
enum CombineWay : u32 { PULLED = 0, PUSHED = 1, COPIED = 2, RELEASED = 3 };

// The way that a rank's rows come in a combine of this way.
template <class Args>
static ANABRANCH_DEVICE CombineWay way_from(const Grid&, const Args&, CombineWay way, u32) {
    return way;
}

// Nothing in a poisoned world; the check follows the loads of the bases, so that the latencies overlap.
template <class Args>
static ANABRANCH_DEVICE void flag_all(const Grid& grid, const Args& args, CombineWay way, u32 epoch, bool poisoned = false) {
    u64 own = args.flags_offset + static_cast<u64>(args.team.rank) * args.flag_stride;
    for (u32 first = 0; first < args.team.size; first += RANKS_AT_ONCE) {
        u64 base[RANKS_AT_ONCE];
        ANABRANCH_UNROLL
        for (u32 u = 0; u < RANKS_AT_ONCE; ++u) {
            u32 peer = rotated(args.team.rank, args.team.size, first + u);
            bool is_flagged = first + u < args.team.size && !is_masked(grid, args.mask, peer);
            base[u] = is_flagged ? private_load(grid, args.team.peer_bases + peer) : 0;
        }
        ANABRANCH_UNROLL
        for (u32 u = 0; u < RANKS_AT_ONCE; ++u) {
            if (poisoned || first + u >= args.team.size || (MASKS && base[u] == 0)) continue;
            flag_store(grid, reinterpret_cast<u64*>(base[u] + own), pack_flag(epoch, way));
        }
    }
}

// Every block waits for every rank: the words are in this device's memory. False after a fault, and where thread 0 says that the world
// is poisoned.
template <class Args>
static ANABRANCH_DEVICE bool wait_for_rows(const Grid& grid, const Args& args, CombineWay way, const WaitContext& wait,
                                           u64 own, const LocalArray<u32>& fault, bool poisoned = false) {
    u32 epoch = static_cast<u32>(wait.epoch);
    if (grid.thread == 0) {
        fault.set(grid, 0, 0u);
        fault.set(grid, 1, poisoned ? 1u : 0u);
    }
    grid.block_barrier();
    if (fault.get(grid, 1) != 0) return false;
    for (u32 peer = grid.thread; peer < args.team.size; peer += grid.block_threads) {
        const u64* flag =
            reinterpret_cast<const u64*>(own + args.flags_offset + static_cast<u64>(peer) * args.flag_stride);
        u64 seen = 0;
        bool is_there = true;
        WaitStatus status = await_rank(grid, wait, args.mask, COMBINE_WAIT_FLAG, peer, flag, seen, is_there);
        if constexpr (MASKS) status = settle(grid, wait, args.mask, status, COMBINE_WAIT_FLAG, peer, flag, seen, is_there);
        if (status == WAIT_OK && is_there && flag_epoch(seen) != epoch) {
            report_fault(grid, wait, COMBINE_FLAG_OVERRUN, peer, epoch, seen, 0);
            status = WAIT_FAULT;
        }
        CombineWay expected = way_from(grid, args, way, peer);
        if (status == WAIT_OK && is_there && flag_count(seen) != expected) {
            report_fault(grid, wait, COMBINE_OTHER_WAY, peer, pack_flag(epoch, expected), seen, 0);
            status = WAIT_FAULT;
        }
        if (status != WAIT_OK) fault.fetch_add(grid, 0, 1u);
        acquire_after_wait(grid);
    }
    // lint: allow(return-before-barrier): the poison word is the block's, so that all threads return or none
    grid.block_barrier();
    return fault.get(grid, 0) == 0;
}

template <class Args>
static ANABRANCH_DEVICE WaitContext context_of(const Grid& grid, const Args& args, u64 epoch) {
    return wait_context(grid, args.team.control, args.operation, args.team.group, args.team.rank, epoch);
}

// What each thread of a combine begins with.
//
// The epoch is that of the dispatch, which a slot alternates with combines and releases. No block of a combine writes the word that has
// it, so blocks may begin at any time, and none is counted. `combine_epoch` is for the host, which reads it when no launch is in flight; no
// kernel reads it.
struct CombineBegin {
    u64 epoch;
    u64 own;        // address of this rank's heap
    bool poisoned;  // valid on thread 0
};
template <class Args>
static ANABRANCH_DEVICE CombineBegin begin_combine(const Grid& grid, const Args& args) {
    u64 epoch = private_load(grid, &args.state->dispatch_epoch);
    u64 own = private_load(grid, args.team.peer_bases + args.team.rank);
    return {epoch, own, grid.thread == 0 && is_poisoned(grid, args.team.control)};
}

// The same epoch, in every thread of the block; 0 in a poisoned world.
template <class Args>
static ANABRANCH_DEVICE u64 next_epoch(const Grid& grid, const Args& args) {
    CombineBegin begin = begin_combine(grid, args);
    return grid.block_broadcast(begin.poisoned ? 0 : begin.epoch);
}

// Every thread, at the end of a combine without a fault.
template <class Args>
static ANABRANCH_DEVICE void end_combine(const Grid& grid, const Args& args, u64 epoch) {
    if (grid.block == 0 && grid.thread == 0) private_store(grid, &args.state->combine_epoch, epoch);
}
