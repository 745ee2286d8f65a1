// The flags of a combine: each rank stores one {epoch, way} at every other rank and waits for one from each. A rank stores its flag after
// its rows are in place: in its own window if they are pulled, in the reader's if they are pushed or copied by engines. All ranks of a
// combine use the same way; another way is a fault. Masked ranks get no flag and are not waited for.
#pragma once

#include "ep/mask.h"
#include "ep/send_map.h"
#include "ep/token_count.h"

enum CombinePhase : u32 { COMBINE_WAIT_FLAG = 1, COMBINE_FLAG_OVERRUN = 2, COMBINE_OTHER_WAY = 3 };

// The count of a combine's flag.
enum CombineWay : u32 { PULLED = 0, PUSHED = 1, COPIED = 2, RELEASED = 3 };

// The way that a rank's rows come in a combine of this way.
template <class Args>
static ANABRANCH_DEVICE CombineWay way_from(const Grid&, const Args&, CombineWay way, u32) {
    return way;
}

template <class Args>
static ANABRANCH_DEVICE void flag_all(const Grid& grid, const Args& args, CombineWay way, u32 epoch) {
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
            if (first + u >= args.team.size || (MASKS && base[u] == 0)) continue;
            flag_store(grid, reinterpret_cast<u64*>(base[u] + own), pack_flag(epoch, way));
        }
    }
}

// Every block waits for every rank: the words are in this device's memory.
template <class Args>
static ANABRANCH_DEVICE bool wait_for_rows(const Grid& grid, const Args& args, CombineWay way, const WaitContext& wait,
                                           u64 own, const LocalArray<u32>& fault) {
    u32 epoch = static_cast<u32>(wait.epoch);
    if (grid.thread == 0) fault.set(grid, 0, 0u);
    grid.block_barrier();
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
    grid.block_barrier();
    return fault.get(grid, 0) == 0;
}

template <class Args>
static ANABRANCH_DEVICE WaitContext context_of(const Grid& grid, const Args& args, u64 epoch) {
    return wait_context(grid, args.team.control, args.operation, args.team.group, args.team.rank, epoch);
}

// The epoch of this launch, in every thread of the block; 0 in a poisoned world.
template <class Args>
static ANABRANCH_DEVICE u64 next_epoch(const Grid& grid, const Args& args) {
    u64 epoch = 0;
    if (grid.thread == 0) {
        u64 last = flag_load(grid, &args.state->combine_epoch);
        epoch = is_poisoned(grid, args.team.control) ? 0 : last + 1;
    }
    return grid.block_broadcast(epoch);
}

// Every block read the epoch when it began, and is counted when it ends, so the last may advance it. The epoch publishes no data to
// the next launch, which slot order keeps after this one. No fence orders the reads before the store, so the epoch is read and
// written as a flag: a block has used the value, in its wait, before it is counted.
template <class Args>
static ANABRANCH_DEVICE void advance_epoch(const Grid& grid, const Args& args, u64 epoch) {
    if (grid.thread != 0) return;
    if (fetch_add_device(grid, &args.state->combine_ended, 1u) + 1 == grid.grid_blocks) {
        private_store(grid, &args.state->combine_ended, 0u);
        flag_store(grid, &args.state->combine_epoch, epoch);
    }
}
