// Dispatch whose rows copy engines move, in two kernels. The send stages rows and meta records on this rank and posts each rank's part,
// with the rank's flag after it, to the engines. Other work has the device until the receive. Routing, rows and flags are as in
// `dispatch.hip`; slotted only, so that the rows for a rank are contiguous.
//
// Writers. Rank s writes its staging area. The engines write at d what the dispatch kernel of s would: the first n rows that
// s owns there, their records, and the flag {epoch, n}. Where the route to d has no queue that kernels write, copies on streams fork
// after the send's kernel and move the most rows that there may be, of which no kernel reads those after n. The kernel `flag` runs
// on the stream that joins the copies.
//
// Why a window is not written too early: as in `dispatch.hip`, because the engines begin after the kernel.
// Why the staging area is not written too early. Rank s writes it again in epoch e + 1, after its combine or release e in slot order,
// which is after its `recv` e. That kernel has waited for this rank's packets, and runs after the join of its copies.
// Why a flag is not sent too early or torn: see `ep/engine.h`; after copies on streams a kernel stores it.
#include "anabranch/prelude.h"
#include "ep/route_engine.h"
#include "ep/dispatch_grid.h"
#include "ep/engine.h"

typedef EngineRoute Route;
typedef DispatchLocal<Route> Local;

static_assert(!MASKS, "plans with copy engines have no masks");

static ANABRANCH_DEVICE u32 sent_to(const Grid& grid, const DispatchArgs& args, u32 peer) {
    return minimum(private_load(grid, args.routed + peer), args.row_stride);
}

static ANABRANCH_DEVICE u64* flag_at(const DispatchArgs& args, u64 base) {
    return reinterpret_cast<u64*>(base + args.flags_offset + static_cast<u64>(args.team.rank) * args.flag_stride);
}

static ANABRANCH_DEVICE Local local_of(const DispatchEngineArgs& args) {
    Local local = Local::at(args.dispatch.team.size, args.dispatch.fan_out, Route{});
    local.route.staged_rows = reinterpret_cast<u64>(args.staged_rows);
    local.route.staged_meta = reinterpret_cast<u64>(args.staged_meta);
    return local;
}

// The last block: each thread posts a rank's part to its queue.
static ANABRANCH_DEVICE void post_rows(const Grid& grid, const DispatchEngineArgs& engine, const Local& local,
                                       const WaitContext& wait) {
    const DispatchArgs& args = engine.dispatch;
    for (u32 i = grid.thread; i < args.team.size; i += grid.block_threads) {
        u32 peer = rotated(args.team.rank, args.team.size, i);
        const SdmaQueue* queue = queue_to(grid, args.team, engine.slot, peer);
        if (queue == nullptr) continue;
        u32 count = sent_to(grid, args, peer);
        u64 base = local.peer_base.get(grid, peer);
        u64 from = static_cast<u64>(peer) * args.row_stride, to = static_cast<u64>(args.team.rank) * args.row_stride;
        Payload payloads[2] = {
            {local.route.staged_rows + from * args.row_bytes, base + args.rows_offset + to * args.row_bytes,
             static_cast<u64>(count) * args.row_bytes},
            {local.route.staged_meta + from * args.meta_bytes, base + args.meta_offset + to * args.meta_bytes,
             static_cast<u64>(count) * args.meta_bytes},
        };
        u64 value = pack_flag(static_cast<u32>(wait.epoch), count);
        post_payloads(grid, wait, queue, payloads, flag_at(args, base), value, engine.posted + peer);
    }
    if (grid.thread != 0) return;
    u32 dropped = 0;
    for (u32 peer = 0; peer < args.team.size; ++peer) {
        dropped += private_load(grid, args.routed + peer) - sent_to(grid, args, peer);
    }
    private_store(grid, &args.state->dropped_count, dropped);
}

ANABRANCH_KERNEL(anabranch_ep_dispatch_engine_send, DispatchEngineArgs, 1024) {
    DispatchLocal local = local_of(args);
    u32 given = given_tokens(grid, args.dispatch);
    u64 epoch = begin(grid, args.dispatch, local);
    if (epoch == 0) return;
    bool last = write_rows(grid, args.dispatch, local, given);
    if (last) post_rows(grid, args, local, context_of(grid, args.dispatch, epoch));
}

// The whole block comes here, or none of it. Sends the flags of ranks whose rows were copied on streams.
static ANABRANCH_DEVICE void flag_others(const Grid& grid, const DispatchEngineArgs& engine, const Local& local, u64 epoch) {
    const DispatchArgs& args = engine.dispatch;
    block_release_system(grid);
    for (u32 i = grid.thread; i < args.team.size; i += grid.block_threads) {
        u32 peer = rotated(args.team.rank, args.team.size, i);
        if (queue_to(grid, args.team, engine.slot, peer) != nullptr) continue;
        u64 value = pack_flag(static_cast<u32>(epoch), sent_to(grid, args, peer));
        flag_store(grid, flag_at(args, local.peer_base.get(grid, peer)), value);
    }
}

// One block, after the copies on streams.
ANABRANCH_KERNEL(anabranch_ep_dispatch_engine_flag, DispatchEngineArgs, 1024) {
    DispatchLocal local = local_of(args);
    u64 epoch = begin(grid, args.dispatch, local);
    if (epoch != 0) flag_others(grid, args, local, epoch);
}

// One block: completes the queues of sends without a receive, before the slot's memory is freed.
ANABRANCH_KERNEL(anabranch_ep_dispatch_engine_drain, DispatchEngineArgs, 1024) {
    WaitContext wait = context_of(grid, args.dispatch, 0);
    for (u32 peer = grid.thread; peer < args.dispatch.team.size; peer += grid.block_threads) {
        const SdmaQueue* queue = queue_to(grid, args.dispatch.team, args.slot, peer);
        if (queue != nullptr) sdma::quiet(grid, wait, sdma::load_queue(grid, queue));
    }
}

// One block. After a fault it reports nothing for the send and the receive.
ANABRANCH_KERNEL(anabranch_ep_dispatch_engine_recv, DispatchEngineArgs, 1024) {
    DispatchLocal local = local_of(args);
    u64 epoch = begin(grid, args.dispatch, local);
    if (epoch == 0) return report_nothing(grid, args.dispatch);
    WaitContext wait = context_of(grid, args.dispatch, epoch);
    wait_posted(grid, args.dispatch.team, wait, args.slot, args.posted);
    learn_counts(grid, args.dispatch, local, wait);
}
