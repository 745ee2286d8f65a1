// The part of a dispatch that all routes share: the grid writes its rows, and one block waits for the rows of all ranks. The kernels
// themselves send the counts and flags, which order ranks.
#pragma once

#include "ep/dispatch_rows.h"
#include "ep/dispatch_nothing.h"
#include "ep/pair_numbers.h"
#include "ep/token_count.h"

// Others are in `dispatch_replay.hip` (3, 4) and `dispatch_relay.hip` (5, 6).
enum DispatchPhase : u32 { DISPATCH_WAIT_FLAG = 1, DISPATCH_FLAG_OVERRUN = 2, DISPATCH_UNNUMBERED = 7 };
// In the count of a flag: the records have the numbers of pairs. The plan keeps the rows of a source below it.
static constexpr u32 NUMBERED = 1u << 31;

// One whole block: waits for the flag of every rank. The next rows in local memory are then the rows received. Whether all came.
template <class Route>
static ANABRANCH_DEVICE bool await_counts(const Grid& grid, const DispatchArgs& args, const DispatchLocal<Route>& local,
                                          const WaitContext& wait) {
    u32 ranks = args.team.size;
    u32 epoch = static_cast<u32>(wait.epoch);
    if (grid.thread == 0) local.fault.set(grid, 0, 0u);
    grid.block_barrier();
    u64 own = local.peer_base.get(grid, args.team.rank) + args.flags_offset;
    for (u32 peer = grid.thread; peer < ranks; peer += grid.block_threads) {
        const u64* flag = reinterpret_cast<const u64*>(own + static_cast<u64>(peer) * args.flag_stride);
        u64 seen = 0;
        bool is_there = true;
        WaitStatus status = WAIT_OK;
        if constexpr (Route::FORWARDS) status = await_reporter(grid, local, wait, DISPATCH_WAIT_FLAG, peer, own, args.flag_stride);
        if (status == WAIT_OK) status = await_rank(grid, wait, args.mask, DISPATCH_WAIT_FLAG, peer, flag, seen, is_there);
        if (status == WAIT_OK && is_there && flag_epoch(seen) != epoch) {
            report_fault(grid, wait, DISPATCH_FLAG_OVERRUN, peer, epoch, seen, 0);
            status = WAIT_FAULT;
        }
        if (Route::NUMBERS && status == WAIT_OK && (flag_count(seen) & NUMBERED) == 0) {
            report_fault(grid, wait, DISPATCH_UNNUMBERED, peer, pack_flag(epoch, NUMBERED), seen, 0);
            status = WAIT_FAULT;
        }
        if (status != WAIT_OK) local.fault.fetch_add(grid, 0, 1u);
        // The sent counts have been used; the same words now hold the received ones.
        local.next_row.set(grid, peer, status == WAIT_OK && is_there ? flag_count(seen) & ~NUMBERED : 0u);
    }
    acquire_after_wait(grid);
    grid.block_barrier();
    return local.fault.get(grid, 0) == 0;
}

// One whole block: waits for the flag of every rank, and writes counts and offsets, zeros after a fault. Whether all came.
template <class Route>
static ANABRANCH_DEVICE bool learn_counts(const Grid& grid, const DispatchArgs& args, const DispatchLocal<Route>& local,
                                          const WaitContext& wait) {
    bool came = await_counts(grid, args, local, wait);
    u32 ranks = args.team.size;
    if (grid.thread == 0) {
        u32 total = 0;
        for (u32 peer = 0; peer < ranks; ++peer) {
            u32 count = came ? local.next_row.get(grid, peer) : 0;
            private_store(grid, args.counts + peer, count);
            private_store(grid, args.offsets + peer, total);
            total += count;
        }
        private_store(grid, args.offsets + ranks, total);
        if (came) private_store(grid, &args.state->dispatch_epoch, wait.epoch);
    }
    return came;
}

// The whole block comes here, or none of it, after a barrier, with all next rows at zero. Writes its share of `tokens`. True in the one
// block with the last tokens, whose next rows are then the counts of all tokens.
template <class Route>
static ANABRANCH_DEVICE bool write_share(const Grid& grid, const DispatchArgs& args, const DispatchLocal<Route>& local, u32 tokens) {
    // `parts` blocks share a run of tokens, each with its part of every row. The grid is a multiple of `parts`.
    u32 part = grid.block % args.parts;
    u32 run = grid.block / args.parts;
    u32 runs = grid.grid_blocks / args.parts;
    u32 first = static_cast<u32>(static_cast<u64>(tokens) * run / runs);
    u32 end = static_cast<u32>(static_cast<u64>(tokens) * (run + 1) / runs);
    // Tokens before this block's own are counted, or, where one tile holds them all, routed with them and not sent.
    u32 earlier = end <= TILE ? first : 0;
    if (earlier == 0 && first > 0) {
        count_tokens<typename Route::Ids>(grid, args.placement, args.ids, id_stride<Route>(args), args.top_k, args.team.rank, local.next_row, 0, first);
        if constexpr (Route::RELAYS) count_relays(grid, args, local, first);
        grid.block_barrier();
    }

    u32 pieces = pieces_of_token(args, part);
    for (u32 tile = first - earlier; tile < end; tile += TILE) {
        u32 count = minimum(end - tile, TILE);
        if (grid.wave() == 0) route_tile(grid, args, local, tile, count, part == 0 ? earlier : count);
        if constexpr (Route::NUMBERS) {
            if (part == 0 && tile + earlier == first) count_earlier(grid, args, local, first);
        }
        grid.block_barrier();
        if constexpr (Route::NUMBERS) {
            if (part == 0 && grid.wave() == 0) number_pairs(grid, args, local, tile, earlier, count);
        }
        // The first wave comes last: it may have numbered pairs.
        u32 turn = Route::NUMBERS ? grid.waves_per_block() - 1 - grid.wave() : grid.wave();
        for (u32 item = turn; item < (count - earlier) * pieces; item += grid.waves_per_block()) {
            Piece piece = piece_of(args, part, pieces, item);
            piece.index += earlier;
            u32 token = tile + piece.index;
            if (!piece.is_meta) {
                copy_units(grid, args, local, piece, token);
            } else if constexpr (Route::FORWARDS) {
                forward_meta(grid, args, local, piece.index, token);
            } else {
                write_meta(grid, args, local, piece.index, token);
            }
        }
        grid.block_barrier();
    }
    return run + 1 == runs && part == 0;
}

// The whole block comes here, or none of it. True in the block that was the last to arrive: all rows are written, and released to
// peers, and `routed` says how many.
template <class Route>
static ANABRANCH_DEVICE bool write_rows(const Grid& grid, const DispatchArgs& args, const DispatchLocal<Route>& local, u32 given) {
    // The run with the last tokens has counted all of them.
    bool has_last = write_share(grid, args, local, minimum(given, args.token_count));
    if constexpr (Route::NUMBERS) {
        if (grid.block % args.parts == 0) write_totals(grid, args, local, has_last);
    }
    if (has_last) {
        for (u32 peer = grid.thread; peer < args.team.size; peer += grid.block_threads) {
            private_store(grid, args.routed + peer, local.next_row.get(grid, peer));
        }
        if constexpr (Route::RELAYS) flag_relayed(grid, local);
    }
    bool last = arrive_is_last(grid, &args.state->dispatch_arrived, grid.grid_blocks);
    if (last && grid.thread == 0 && args.row_stride != 0) keep_tokens(grid, args, given);
    return last;
}

// The begin of every kernel: fills the tables in local memory and returns the epoch, 0 when the world is poisoned.
template <class Route>
static ANABRANCH_DEVICE u64 begin(const Grid& grid, const DispatchArgs& args, const DispatchLocal<Route>& local) {
    u32 ranks = args.team.size;
    // Loaded before the bases, so that the latencies overlap.
    u64 last = grid.thread == 0 ? private_load(grid, &args.state->dispatch_epoch) : 0;
    bool poisoned = grid.thread == 0 && is_poisoned(grid, args.team.control);
    for (u32 peer = grid.thread; peer < ranks; peer += grid.block_threads) {
        bool elsewhere = is_masked(grid, args.mask, peer) || local.route.is_far(grid, peer);
        local.peer_base.set(grid, peer, elsewhere ? 0 : private_load(grid, args.team.peer_bases + peer));
        local.next_row.set(grid, peer, 0u);
        bool compact = args.row_stride == 0;
        local.first_row.set(grid, peer, compact ? private_load(grid, args.bases + peer) : args.team.rank * args.row_stride);
        local.capacity.set(grid, peer, compact ? private_load(grid, args.capacity + peer) : args.row_stride);
    }
    if constexpr (Route::RELAYS) clear_relays(grid, local);
    return grid.block_broadcast(poisoned ? 0 : last + 1);
}

static ANABRANCH_DEVICE WaitContext context_of(const Grid& grid, const DispatchArgs& args, u64 epoch) {
    return wait_context(grid, args.team.control, args.operation, args.team.group, args.team.rank, epoch);
}
