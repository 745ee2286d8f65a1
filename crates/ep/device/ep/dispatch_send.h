// The part of a dispatch to mapped memory that `dispatch.hip` and `dispatch_experts.hip` share: a grid sends its rows, then its counts.
#pragma once

#include "ep/dispatch_grid.h"

// Thread 0 of the last block: reports to every rank how many rows it got from here.
template <class Route>
static ANABRANCH_DEVICE void flag_counts(const Grid& grid, const DispatchArgs& args, const DispatchLocal<Route>& local, u32 epoch) {
    u32 ranks = args.team.size;
    // Rotated, so that the ranks do not all flag rank 0 first; some counts at a time, so that their latencies overlap.
    u32 dropped = 0, masked = 0;
    for (u32 first = 0; first < ranks; first += RANKS_AT_ONCE) {
        u32 routed[RANKS_AT_ONCE];
        ANABRANCH_UNROLL
        for (u32 u = 0; u < RANKS_AT_ONCE; ++u) {
            routed[u] = first + u < ranks ? private_load(grid, args.routed + rotated(args.team.rank, ranks, first + u)) : 0;
        }
        ANABRANCH_UNROLL
        for (u32 u = 0; u < RANKS_AT_ONCE; ++u) {
            if (first + u >= ranks) break;
            u32 peer = rotated(args.team.rank, ranks, first + u);
            bool is_flagged = !is_masked(grid, args.mask, peer);
            masked += is_flagged ? 0 : routed[u];
            if (!is_flagged) continue;
            u32 count = minimum(routed[u], local.capacity.get(grid, peer));
            dropped += routed[u] - count;
            u64* flag = reinterpret_cast<u64*>(local.peer_base.get(grid, peer) + args.flags_offset +
                                               static_cast<u64>(args.team.rank) * args.flag_stride);
            flag_store(grid, flag, pack_flag(epoch, Route::NUMBERS ? count | NUMBERED : count));
        }
    }
    private_store(grid, &args.state->dropped_count, dropped);
    if constexpr (MASKS) private_store(grid, &args.state->masked_count, masked);
}

// The whole block comes here, or none of it. True in the block that was the last to arrive, which has sent the counts.
template <class Route>
static ANABRANCH_DEVICE bool send_rows(const Grid& grid, const DispatchArgs& args, const DispatchLocal<Route>& local, u64 epoch,
                                       u32 given) {
    bool last = write_rows(grid, args, local, given);
    if (last && grid.thread == 0) flag_counts(grid, args, local, static_cast<u32>(epoch));
    return last;
}
