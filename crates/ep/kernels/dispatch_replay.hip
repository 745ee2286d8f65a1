// Dispatch with a saved routing: every copy goes to the row of the copy of the same token number in the saved dispatch, in any
// slot. Nothing is routed, and in the compact mode nothing is counted: all ranks know the rows of every source.
//
// Writers. As in `dispatch.hip`: rank s writes, at rank d, the rows and records of the send map, then the flag
// [s] with {epoch, count}. Before the flag, in the word after it, s writes {epoch, routing}: the identity of the saved dispatch.
// Rank d accepts the flag of s only if the count is that of the saved dispatch and the identity is its own; otherwise a peer uses
// another routing, or none, which is a fault. So two sources share no row here, because they shared none in the saved dispatch.
//
// Why a row window is not written too early. Rank s starts this dispatch, of epoch e + 1, after its combine e on the slot (slot
// order, see `dispatch.hip`), which has seen the combine flag of epoch e of every rank: of rank d, which sent it after its expert
// work of epoch e had read its rows and its push had read its records; and of the rank that owned the same row in epoch e, which
// sent it after it had written the row, and after `save_routing.hip` there had read the record. So a row may have had another source
// before, and the compact mode needs no exchange of counts.
// Why a flag and the word after it are not overwritten too early, nor old ones taken for new ones: as in `dispatch.hip`. The word
// has its own epoch, because a dispatch without a saved routing does not overwrite the old word.
//
// What is saved lies in this rank's own memory. A kernel that saves another routing in the same place runs after this one: the host
// orders the streams.
#include "anabranch/prelude.h"
#include "ep/route_near.h"
#include "ep/dispatch_nothing.h"
#include "ep/dispatch_rows.h"

typedef NearRoute Route;
typedef DispatchLocal<Route> Local;

enum ReplayPhase : u32 { REPLAY_WAIT_FLAG = 1, REPLAY_FLAG_OVERRUN = 2, REPLAY_OTHER_ROUTING = 3, REPLAY_OTHER_TOKENS = 4 };

// The flag of `source` at the rank whose heap begins at `base`; the word with the routing's identity follows it.
static ANABRANCH_DEVICE u64* flag_at(const DispatchArgs& args, u64 base, u32 source) {
    return reinterpret_cast<u64*>(base + args.flags_offset + static_cast<u64>(source) * args.flag_stride);
}

// The whole block: loads the destinations of a tile. The first part of each run also writes the slot's send map, for combine.
static ANABRANCH_DEVICE void recall_tile(const Grid& grid, const DispatchReplayArgs& args, const Local& local, u32 first,
                                         u32 count, bool reports) {
    u32 fan_out = args.dispatch.fan_out;
    for (u32 index = grid.thread; index < count; index += grid.block_threads) {
        u64 at = static_cast<u64>(first + index) * fan_out;
        u32 fan = 0;
        for (u32 n = 0; n < fan_out; ++n) {
            u64 entry = private_load(grid, args.saved.send_map + at + n);
            if (reports) private_store(grid, args.dispatch.send_map + at + n, entry);
            if (!is_destination(entry) || is_dropped(entry)) continue;
            local.destination.set(grid, index * fan_out + fan, entry);
            ++fan;
        }
        local.fan.set(grid, index, fan);
    }
}

// One block: stores the routing's identity at every rank, and the counts that `save_routing.hip` reads in the slot.
static ANABRANCH_DEVICE void name_routing(const Grid& grid, const DispatchReplayArgs& args, const Local& local, u32 epoch) {
    const DispatchArgs& dispatch = args.dispatch;
    u32 identity = private_load(grid, &args.saved.head->identity);
    for (u32 peer = grid.thread; peer < dispatch.team.size; peer += grid.block_threads) {
        u64* flag = flag_at(dispatch, local.peer_base.get(grid, peer), dispatch.team.rank);
        remote_store(grid, flag + 1, pack_flag(epoch, identity));
        u32 sent = private_load(grid, args.saved.sent + peer);
        private_store(grid, dispatch.routed + peer, sent);
        private_store(grid, dispatch.capacity + peer, sent);
    }
}

// Thread 0: reports to every rank how many rows it got from here.
static ANABRANCH_DEVICE void flag_replay(const Grid& grid, const DispatchReplayArgs& args, const Local& local, u32 epoch) {
    const DispatchArgs& dispatch = args.dispatch;
    u32 ranks = dispatch.team.size;
    for (u32 first = 0; first < ranks; first += RANKS_AT_ONCE) {
        u32 sent[RANKS_AT_ONCE];
        ANABRANCH_UNROLL
        for (u32 u = 0; u < RANKS_AT_ONCE; ++u) {
            sent[u] = first + u < ranks ? private_load(grid, args.saved.sent + rotated(dispatch.team.rank, ranks, first + u)) : 0;
        }
        ANABRANCH_UNROLL
        for (u32 u = 0; u < RANKS_AT_ONCE; ++u) {
            if (first + u >= ranks) break;
            u32 peer = rotated(dispatch.team.rank, ranks, first + u);
            flag_store(grid, flag_at(dispatch, local.peer_base.get(grid, peer), dispatch.team.rank), pack_flag(epoch, sent[u]));
        }
    }
    private_store(grid, &dispatch.state->dropped_count, private_load(grid, &args.saved.head->dropped));
}

// The whole block comes here, or none of it. True in the block that was the last to arrive, which has sent the counts.
static ANABRANCH_DEVICE bool send_replay(const Grid& grid, const DispatchReplayArgs& args, const Local& local, u32 epoch) {
    const DispatchArgs& dispatch = args.dispatch;
    u32 part = grid.block % dispatch.parts;
    u32 run = grid.block / dispatch.parts;
    u32 runs = grid.grid_blocks / dispatch.parts;
    u32 first = static_cast<u32>(static_cast<u64>(dispatch.token_count) * run / runs);
    u32 end = static_cast<u32>(static_cast<u64>(dispatch.token_count) * (run + 1) / runs);
    u32 pieces = pieces_of_token(dispatch, part);
    for (u32 tile = first; tile < end; tile += TILE) {
        u32 count = minimum(end - tile, TILE);
        recall_tile(grid, args, local, tile, count, part == 0);
        grid.block_barrier();
        for (u32 item = grid.wave(); item < count * pieces; item += grid.waves_per_block()) {
            Piece piece = piece_of(dispatch, part, pieces, item);
            if (piece.is_meta) {
                write_meta(grid, dispatch, local, piece.index, tile + piece.index);
            } else {
                copy_units(grid, dispatch, local, piece, tile + piece.index);
            }
        }
        grid.block_barrier();
    }
    if (grid.block == 0) name_routing(grid, args, local, epoch);
    bool last = arrive_is_last(grid, &dispatch.state->dispatch_arrived, grid.grid_blocks);
    if (last && grid.thread == 0) flag_replay(grid, args, local, epoch);
    return last;
}

// One whole block: waits for every rank, and checks that it used this routing.
static ANABRANCH_DEVICE void receive_replay(const Grid& grid, const DispatchReplayArgs& args, const Local& local,
                                         const WaitContext& wait) {
    const DispatchArgs& dispatch = args.dispatch;
    u32 ranks = dispatch.team.size;
    u32 epoch = static_cast<u32>(wait.epoch);
    if (grid.thread == 0) local.fault.set(grid, 0, 0u);
    grid.block_barrier();
    u64 own = local.peer_base.get(grid, dispatch.team.rank);
    u64 named = pack_flag(epoch, private_load(grid, &args.saved.head->identity));
    for (u32 peer = grid.thread; peer < ranks; peer += grid.block_threads) {
        const u64* flag = flag_at(dispatch, own, peer);
        u64 expected = pack_flag(epoch, private_load(grid, args.saved.counts + peer));
        u64 seen = 0;
        WaitStatus status = wait_until(
            grid, wait, REPLAY_WAIT_FLAG, peer, epoch, flag,
            [epoch](u64 value) { return flag_has_reached(value, epoch); }, seen);
        acquire_after_wait(grid);
        u64 routing = status == WAIT_OK && seen == expected ? heap_load(grid, flag + 1) : named;
        if (status == WAIT_OK && flag_epoch(seen) != epoch) {
            report_fault(grid, wait, REPLAY_FLAG_OVERRUN, peer, epoch, seen, 0);
            status = WAIT_FAULT;
        } else if (status == WAIT_OK && (seen != expected || routing != named)) {
            bool by_count = seen != expected;
            report_fault(grid, wait, REPLAY_OTHER_ROUTING, peer, by_count ? expected : named, by_count ? seen : routing, 0);
            status = WAIT_FAULT;
        }
        if (status != WAIT_OK) local.fault.fetch_add(grid, 0, 1u);
        local.next_row.set(grid, peer, flag_count(seen));
    }
    grid.block_barrier();
    bool fault = local.fault.get(grid, 0) != 0;
    if (grid.thread != 0) return;
    u32 total = 0;
    for (u32 peer = 0; peer < ranks; ++peer) {
        u32 count = fault ? 0 : local.next_row.get(grid, peer);
        private_store(grid, dispatch.counts + peer, count);
        private_store(grid, dispatch.offsets + peer, total);
        total += count;
    }
    private_store(grid, dispatch.offsets + ranks, total);
    if (!fault) private_store(grid, &dispatch.state->dispatch_epoch, wait.epoch);
}

ANABRANCH_KERNEL(anabranch_ep_dispatch_replay, DispatchReplayArgs, 1024) {
    const DispatchArgs& dispatch = args.dispatch;
    Local local = Local::at(dispatch.team.size, dispatch.fan_out, Route{});
    u64 last = grid.thread == 0 ? private_load(grid, &dispatch.state->dispatch_epoch) : 0;
    bool poisoned = grid.thread == 0 && is_poisoned(grid, dispatch.team.control);
    for (u32 peer = grid.thread; peer < dispatch.team.size; peer += grid.block_threads) {
        local.peer_base.set(grid, peer, private_load(grid, dispatch.team.peer_bases + peer));
    }
    // The routing may hold another dispatch than when the host launched this kernel: a graph may have saved another one, or not yet
    // have saved this one. No block sends anything then.
    u32 saved = grid.thread == 0 ? private_load(grid, &args.saved.head->tokens) : 0;
    bool differs = grid.thread == 0 && !poisoned && saved != dispatch.token_count;
    u64 epoch = grid.block_broadcast(poisoned || differs ? 0 : last + 1);
    WaitContext wait = wait_context(grid, dispatch.team.control, dispatch.operation, dispatch.team.group, dispatch.team.rank, epoch);
    if (differs && grid.block == 0) {
        report_fault(grid, wait, REPLAY_OTHER_TOKENS, dispatch.team.rank, dispatch.token_count, saved, 0);
    }
    if (epoch == 0) {
        report_nothing(grid, dispatch);
    } else if (send_replay(grid, args, local, static_cast<u32>(epoch))) {
        receive_replay(grid, args, local, wait);
    }
}
