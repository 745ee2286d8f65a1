// Dispatch: every token goes once to each rank that owns one of its experts, straight to its final row.
//
// Who writes what. Rank s writes, at rank d, n rows of the row and meta windows, n being the number of its tokens that go to d
// and find room there, then the one flag word [s] with {epoch, n}. Slotted, it owns `row_stride` rows of every window, those
// from s * row_stride on. Compact, `count.hip` has told it where its rows begin (`bases`) and how many are left there (`room`),
// the same on all ranks, so that no two sources share a row. Copies that find no room are dropped before they are sent, and
// told to combine and to the host in the send map. Rank d's last block waits for the flags of all ranks and writes counts and
// offsets. Split in two, the first kernel ends behind its flags, and the second, one block, begins with that wait: other work
// of the stream may stand between them, and other ranks may do all in one.
//
// Why a row window is not written too early. The rows of epoch e + 1 overwrite those of epoch e. Rank s starts dispatch
// e + 1 on a slot after its combine e on that slot (stream order, kept by the handle; a release is a combine of no tokens,
// and flags and waits like any other). Combine e at s ended after it saw
// d's combine flag of epoch e, which d sent after its expert work of epoch e had read the rows (stream order at d).
// Why a flag is not overwritten too early: by the same chain, d read the flag of epoch e in its dispatch e, before its
// combine flag e. Why an old flag is not taken for a new one: the epoch in it must equal the one waited for; epochs
// live in device memory, start at 1, and are advanced only by the block that has waited, after every block has read them.
// With a mask, `ep/mask.h` says why all of this holds without the ranks that it names.
#include "anabranch/prelude.h"
#include "ep/routing.h"
#include "ep/mask.h"
#include "ep/dispatch_rows.h"
#include "ep/dispatch_nothing.h"

enum DispatchPhase : u32 { DISPATCH_WAIT_FLAG = 1, DISPATCH_FLAG_OVERRUN = 2 };

// Thread 0 of the last block: tells every rank how many rows it got from here.
static ANABRANCH_DEVICE void tell_counts(const Grid& grid, const DispatchArgs& args, const DispatchLocal& local, u32 epoch) {
    u32 ranks = args.team.size;
    // Rotated, so that the ranks do not all flag rank 0 first; some counts at a time, so that their latencies overlap.
    u32 dropped = 0, masked = 0;
    for (u32 first = 0; first < ranks; first += RANKS_AT_ONCE) {
        u32 routed[RANKS_AT_ONCE];
#pragma unroll
        for (u32 u = 0; u < RANKS_AT_ONCE; ++u) {
            routed[u] = first + u < ranks ? private_load(grid, args.routed + rotated(args.team.rank, ranks, first + u)) : 0;
        }
#pragma unroll
        for (u32 u = 0; u < RANKS_AT_ONCE; ++u) {
            if (first + u >= ranks) break;
            u32 peer = rotated(args.team.rank, ranks, first + u);
            bool is_told = !is_masked(grid, args.mask, peer);
            masked += is_told ? 0 : routed[u];
            if (!is_told) continue;
            u32 count = minimum(routed[u], local.room.get(grid, peer));
            dropped += routed[u] - count;
            u64* flag = reinterpret_cast<u64*>(local.peer_base.get(grid, peer) + args.flags_offset +
                                               static_cast<u64>(args.team.rank) * args.flag_stride);
            ANABRANCH_TWIN(TWO_FLAGS) remote_store(grid, reinterpret_cast<u32*>(flag), epoch);
            ANABRANCH_TWIN(TWO_FLAGS) remote_store(grid, reinterpret_cast<u32*>(flag) + 1, count);
            ANABRANCH_UNLESS(TWO_FLAGS) flag_store(grid, flag, pack_flag(epoch, count));
        }
    }
    private_store(grid, &args.state->dropped_count, dropped);
    if constexpr (MASKS) private_store(grid, &args.state->masked_count, masked);
}

// The whole of one block: learns from every rank.
static ANABRANCH_DEVICE void learn_counts(const Grid& grid, const DispatchArgs& args, const DispatchLocal& local,
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
        WaitStatus status = await_rank(grid, wait, args.mask, DISPATCH_WAIT_FLAG, peer, flag, seen, is_there);
        if (status == WAIT_OK && is_there && flag_epoch(seen) != epoch) {
            report_fault(grid, wait, DISPATCH_FLAG_OVERRUN, peer, epoch, seen, 0);
            status = WAIT_FAULT;
        }
        if (status != WAIT_OK) local.fault.set(grid, 0, 1u);
        // What was sent is told; the same words now hold what was received.
        local.next_row.set(grid, peer, status == WAIT_OK && is_there ? flag_count(seen) : 0u);
    }
    ANABRANCH_UNLESS(DISPATCH_NO_ACQUIRE) acquire_after_wait(grid);
    ANABRANCH_TWIN(EXCHANGE_EARLY_RETURN) { if (grid.thread == 1) return; }
    ANABRANCH_UNLESS(DISPATCH_NO_BARRIER) grid.block_barrier();
    bool fault = local.fault.get(grid, 0) != 0;
    if (grid.thread == 0) {
        u32 total = 0;
        for (u32 peer = 0; peer < ranks; ++peer) {
            u32 count = fault ? 0 : local.next_row.get(grid, peer);
            private_store(grid, args.counts + peer, count);
            private_store(grid, args.offsets + peer, total);
            total += count;
        }
        private_store(grid, args.offsets + ranks, total);
        if (!fault) private_store(grid, &args.state->dispatch_epoch, wait.epoch);
    }
}

// The whole block comes here, or none of it. True in the block that was the last to arrive, which has told the counts.
static ANABRANCH_DEVICE bool send_rows(const Grid& grid, const DispatchArgs& args, const DispatchLocal& local, u64 epoch,
                                       u32 given) {
    u32 ranks = args.team.size, tokens = minimum(given, args.token_count);
    // `parts` blocks share a run of tokens, each with its part of every row.
    u32 part = grid.block % args.parts;
    u32 run = grid.block / args.parts;
    u32 runs = grid.grid_blocks / args.parts;
    u32 first = static_cast<u32>(static_cast<u64>(tokens) * run / runs);
    u32 end = static_cast<u32>(static_cast<u64>(tokens) * (run + 1) / runs);
    // Tokens before this block's own are counted, or, where one tile holds them all, routed with them and not sent.
    u32 earlier = end <= TILE ? first : 0;
    if (earlier == 0 && first > 0) {
        count_tokens(grid, args.placement, args.ids, args.top_k, args.team.rank, local.next_row, 0, first);
        ANABRANCH_UNLESS(ROUTE_UNCOUNTED) grid.block_barrier();
    }

    u32 pieces = pieces_of_token(args, part);
    for (u32 tile = first - earlier; tile < end; tile += TILE) {
        u32 count = minimum(end - tile, TILE);
        if (grid.wave() == 0) route_tile(grid, args, local, tile, count, part == 0 ? earlier : count);
        ANABRANCH_UNLESS(ROUTE_UNREAD) grid.block_barrier();
        for (u32 item = grid.wave(); item < (count - earlier) * pieces; item += grid.waves_per_block()) {
            Piece piece = piece_of(args, part, item);
            piece.index += earlier;
            u32 token = tile + piece.index;
            if (piece.is_meta) {
                write_meta(grid, args, local, piece.index, token);
            } else {
                copy_units(grid, args, local, piece, token);
            }
        }
        ANABRANCH_UNLESS(ROUTE_OVERWRITTEN) grid.block_barrier();
    }
    // The run with the last tokens has counted all of them.
    if (run + 1 == runs && part == 0) {
        for (u32 peer = grid.thread; peer < ranks; peer += grid.block_threads) {
            private_store(grid, args.routed + peer, local.next_row.get(grid, peer));
        }
    }
    bool last = arrive_is_last(grid, &args.state->dispatch_arrived, grid.grid_blocks);
    if (last && grid.thread == 0) {
        if (args.row_stride != 0) keep_tokens(grid, args, given);
        tell_counts(grid, args, local, static_cast<u32>(epoch));
    }
    return last;
}

// What every kernel begins with: the tables in local memory, and the epoch, 0 when the world is poisoned.
static ANABRANCH_DEVICE u64 begin(const Grid& grid, const DispatchArgs& args, const DispatchLocal& local) {
    u32 ranks = args.team.size;
    // Loaded before the bases are: nothing waits for it until all are on their way.
    u64 last = grid.thread == 0 ? private_load(grid, &args.state->dispatch_epoch) : 0;
    bool poisoned = grid.thread == 0 && is_poisoned(grid, args.team.control);
    for (u32 peer = grid.thread; peer < ranks; peer += grid.block_threads) {
        bool masked = is_masked(grid, args.mask, peer);
        local.peer_base.set(grid, peer, masked ? 0 : private_load(grid, args.team.peer_bases + peer));
        local.next_row.set(grid, peer, 0u);
        bool compact = args.row_stride == 0;
        local.first_row.set(grid, peer, compact ? private_load(grid, args.bases + peer) : args.team.rank * args.row_stride);
        local.room.set(grid, peer, compact ? private_load(grid, args.room + peer) : args.row_stride);
    }
    return grid.block_broadcast(poisoned ? 0 : last + 1);
}

static ANABRANCH_DEVICE WaitContext context_of(const Grid& grid, const DispatchArgs& args, u64 epoch) {
    return wait_context(grid, args.team.control, args.operation, args.team.group, args.team.rank, epoch);
}

ANABRANCH_KERNEL(anabranch_ep_dispatch, DispatchArgs, 1024) {
    DispatchLocal local = DispatchLocal::at(args.team.size, args.fan_out);
    u32 given = given_tokens(grid, args);
    u64 epoch = begin(grid, args, local);
    WaitContext wait = context_of(grid, args, epoch);
    if (epoch == 0) {
        report_nothing(grid, args);
    } else if (send_rows(grid, args, local, epoch, given)) {
        learn_counts(grid, args, local, wait);
    }
}

// The two halves. Behind a fault the second reports nothing for both.
ANABRANCH_KERNEL(anabranch_ep_dispatch_send, DispatchArgs, 1024) {
    DispatchLocal local = DispatchLocal::at(args.team.size, args.fan_out);
    u32 given = given_tokens(grid, args);
    u64 epoch = begin(grid, args, local);
    if (epoch != 0) send_rows(grid, args, local, epoch, given);
}

ANABRANCH_KERNEL(anabranch_ep_dispatch_recv, DispatchArgs, 1024) {
    DispatchLocal local = DispatchLocal::at(args.team.size, args.fan_out);
    u64 epoch = begin(grid, args, local);
    if (epoch == 0) {
        report_nothing(grid, args);
    } else {
        learn_counts(grid, args, local, context_of(grid, args, epoch));
    }
}
