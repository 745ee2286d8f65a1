// The receive of a dispatch whose tokens go once to each node: every block waits for the rows that other nodes put into this rank's
// relay window, and forwards its share to the ranks of this node. The last block stores their flags in place of the source,
// and waits for the flags of all ranks. The windows are the same as if the sources had written them.
//
// Writers. Rank s, whose relay on this node is rank p, owns one part of p's relay window and one flag of it. In the windows of each rank d
// of p's node, p writes what s writes in `dispatch.hip`: rows, records and the flag of s. No other rank of the node is
// the relay of s.
//
// Why nothing is written too early. p writes the rows of epoch e + 1 of s at d after it has seen s's relay flag e + 1. s put that
// after its combine e, in which it waited for the combine flag e of d, and d sent this after its reads of epoch e. The relay window
// itself: s writes it again after the same combine e, in which it saw p's combine flag e, which p sent after this kernel.
// Why an old flag is not taken for a new one: as in `dispatch.hip`, the epoch in it must be the one waited for.
#include "anabranch/prelude.h"
#include "ep/route_relay.h"
#include "ep/dispatch_grid.h"

typedef ForwardRoute Route;
typedef DispatchLocal<Route> Local;

enum RelayPhase : u32 { RELAY_WAIT_FLAG = 5, RELAY_FLAG_OVERRUN = 6 };

// The whole block comes here. Waits for the rows of a source and gets their number; false after a fault.
static ANABRANCH_DEVICE bool wait_for_source(const Grid& grid, const DispatchNodesArgs& args, const Local& local,
                                             const WaitContext& wait, u32 source, u32& count) {
    u64 result = 0;  // the count plus one
    if (grid.thread == 0) {
        u64 at = args.relay_flags_offset + static_cast<u64>(source) * args.dispatch.flag_stride;
        const u64* flag = reinterpret_cast<const u64*>(local.peer_base.get(grid, args.dispatch.team.rank) + at);
        u64 seen = 0;
        WaitStatus status = await_flag(grid, wait, RELAY_WAIT_FLAG, source, flag, seen);
        if (status == WAIT_OK && flag_epoch(seen) != static_cast<u32>(wait.epoch)) {
            report_fault(grid, wait, RELAY_FLAG_OVERRUN, source, wait.epoch, seen, 0);
            status = WAIT_FAULT;
        }
        if (status == WAIT_OK) result = static_cast<u64>(flag_count(seen)) + 1;
        acquire_after_wait(grid);
    }
    result = grid.block_broadcast(result);
    count = static_cast<u32>(result - 1);
    return result != 0;
}

// The whole block comes here: forwards its share of one source's rows.
static ANABRANCH_DEVICE void forward(const Grid& grid, const DispatchNodesArgs& nodes, Local& local, u32 place, u32 source,
                                     u32 count) {
    DispatchArgs args = nodes.dispatch;
    u64 own = local.peer_base.get(grid, args.team.rank), first = static_cast<u64>(place) * nodes.max_tokens;
    local.route.relay_meta = own + nodes.relay_meta_offset + first * args.meta_bytes;
    args.tokens = reinterpret_cast<u8*>(own + nodes.relay_rows_offset + first * args.row_bytes);
    args.ids = reinterpret_cast<i32*>(local.route.relay_meta + 8);
    // Owners and rows are computed as at the source.
    args.team.rank = source;
    for (u32 peer = grid.thread; peer < args.team.size; peer += grid.block_threads) {
        local.next_row.set(grid, peer, 0u);
        local.first_row.set(grid, peer, source * args.row_stride);
    }
    grid.block_barrier();
    if (write_share(grid, args, local, count)) {
        u32* forwarded = nodes.forwarded + static_cast<u64>(place) * args.team.size;
        for (u32 peer = grid.thread; peer < args.team.size; peer += grid.block_threads) {
            private_store(grid, forwarded + peer, minimum(local.next_row.get(grid, peer), args.row_stride));
        }
    }
    grid.block_barrier();
}

// Thread 0 of the last block: stores the flags of all its sources at the ranks of this node.
static ANABRANCH_DEVICE void flag_forwarded(const Grid& grid, const DispatchNodesArgs& nodes, const Local& local, u32 epoch) {
    const DispatchArgs& args = nodes.dispatch;
    for (u32 place = 0; place < nodes.nodes.source_count; ++place) {
        u64 flag = args.flags_offset + static_cast<u64>(private_load(grid, nodes.nodes.sources + place)) * args.flag_stride;
        for (u32 i = 0; i < args.team.size; ++i) {
            u32 peer = rotated(args.team.rank, args.team.size, i);
            if (!is_near(grid, nodes.nodes, peer)) continue;
            u32 count = private_load(grid, nodes.forwarded + static_cast<u64>(place) * args.team.size + peer);
            flag_store(grid, reinterpret_cast<u64*>(local.peer_base.get(grid, peer) + flag), pack_flag(epoch, count));
        }
    }
}

// The grid, unless the world is poisoned. If a block does not get the rows of all sources, it does not arrive; the grid then has no last
// block, and writes nothing but zeros.
static ANABRANCH_DEVICE void relay(const Grid& grid, const DispatchNodesArgs& args, Local& local, const WaitContext& wait) {
    u32 epoch = static_cast<u32>(wait.epoch), place = 0, count = 0;
    for (; place < args.nodes.source_count; ++place) {
        u32 source = private_load(grid, args.nodes.sources + place);
        if (!wait_for_source(grid, args, local, wait, source, count)) break;
        forward(grid, args, local, place, source, count);
    }
    if (place < args.nodes.source_count) {
        report_nothing(grid, args.dispatch);
    } else if (arrive_is_last(grid, &args.dispatch.state->dispatch_arrived, grid.grid_blocks)) {
        if (grid.thread == 0) flag_forwarded(grid, args, local, epoch);
        learn_counts(grid, args.dispatch, local, wait);
    }
}

ANABRANCH_KERNEL(anabranch_ep_dispatch_relay, DispatchNodesArgs, 1024) {
    Local local = Local::at(args.dispatch.team.size, args.dispatch.fan_out, Route{});
    local.route.nodes = args.nodes;
    u64 epoch = begin(grid, args.dispatch, local);
    if (epoch == 0) {
        report_nothing(grid, args.dispatch);
    } else {
        relay(grid, args, local, context_of(grid, args.dispatch, epoch));
    }
}
