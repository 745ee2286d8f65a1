// Dispatch of ranks on several nodes. Rows for ranks of this node are stored at their final places, as by `dispatch.hip`. Rows for
// other nodes are staged in this rank's memory; when all are staged, the last block puts the run of each target, with its flag after it,
// by the device functions of the heap, over a NIC or any other route. Slotted only, so that the rows for a rank are contiguous
// and their place is known before the counts.
//
// Direct, a target is a rank: its rows go to their final places there, and the flag is the flag of a dispatch. By node (EP_RELAY), a target
// is the relay of this rank on another node (`dispatch_relay.hip`): the rows go to this rank's part of its relay window,
// and the flag is one of that window. By node the receive is that kernel; direct, it is a wait for the flags of all ranks.
//
// Why a flag is not seen before its rows: it is the signal of the second of two puts of one wave to one peer. By mapped memory the
// signal releases all stores of the wave; over a NIC a wave uses one queue pair, whose writes are done in order
// (`shmem/nic.h`). The plan refuses other routes to other nodes.
// Why a window, a relay window or a flag is not written too early: the argument of `dispatch.hip` is about when rank s begins epoch
// e + 1, and holds for any carrier of the rows. d, or the relay on d's node, read the rows of s in its dispatch e, before it sent its
// combine flag e, for which s has waited in its combine e.
// Why a flag's word does not go back. In each epoch another block may be the last, and it puts by queue pairs of its own waves, which
// nothing orders among epochs. By the same argument flag e has landed, and was seen, before s begins epoch e + 1 and puts flag e + 1.
// Why the staging area is not written too early. Rank s writes it again in epoch e + 1, after its combine e, in which it saw the combine
// flag e of every rank, including its targets. A target sends that flag after its dispatch e, which has seen
// the flag that s put after the rows. So the rows had landed, and nothing reads the staging area any more. (If a NIC retransmits, the peer
// has already acknowledged the packet and drops the duplicate unread.)
#include "anabranch/prelude.h"
#include "ep/route_relay.h"
#include "ep/dispatch_grid.h"
#include "shmem/order.h"
#include "shmem/signal.h"

#ifdef EP_RELAY
static constexpr bool BY_NODE = true;
#else
static constexpr bool BY_NODE = false;
#endif

typedef NodesRoute<BY_NODE> Route;
typedef DispatchLocal<Route> Local;

static_assert(!MASKS, "plans on several nodes have no masks");

static ANABRANCH_DEVICE Local local_of(const DispatchNodesArgs& args) {
    Local local = Local::at(args.dispatch.team.size, args.dispatch.fan_out, Route{});
    local.route.staged_rows = reinterpret_cast<u64>(args.staged_rows);
    local.route.staged_meta = reinterpret_cast<u64>(args.staged_meta);
    local.route.nodes = args.nodes;
    local.route.max_tokens = args.max_tokens;
    local.route.relayed = args.relayed;
    return local;
}

static ANABRANCH_DEVICE u32 sent_to(const Grid& grid, const DispatchArgs& args, u32 peer) {
    return minimum(private_load(grid, args.routed + peer), args.row_stride);
}

// A run of staged rows and its target: offsets are of the target's heap.
struct Run {
    u32 peer, count;
    u64 from, rows, meta, flag;
};

#ifdef EP_RELAY
static ANABRANCH_DEVICE u32 targets(const DispatchNodesArgs& args) { return args.nodes.count; }
// The run for a node; false for this rank's node.
static ANABRANCH_DEVICE bool run_to(const Grid& grid, const DispatchNodesArgs& args, u32 i, Run& run) {
    u32 node = rotated(args.nodes.node, args.nodes.count, i);
    if (node == args.nodes.node) return false;
    u64 to = static_cast<u64>(private_load(grid, args.nodes.places + node)) * args.max_tokens;
    run.peer = private_load(grid, args.nodes.relays + node);
    run.count = private_load(grid, args.relayed + node);
    run.from = static_cast<u64>(node) * args.max_tokens;
    run.rows = args.relay_rows_offset + to * args.dispatch.row_bytes;
    run.meta = args.relay_meta_offset + to * args.dispatch.meta_bytes;
    run.flag = args.relay_flags_offset + static_cast<u64>(args.dispatch.team.rank) * args.dispatch.flag_stride;
    return true;
}
#else
static ANABRANCH_DEVICE u32 targets(const DispatchNodesArgs& args) { return args.dispatch.team.size; }
// The run for a rank; false for a rank of this node.
static ANABRANCH_DEVICE bool run_to(const Grid& grid, const DispatchNodesArgs& nodes, u32 i, Run& run) {
    const DispatchArgs& args = nodes.dispatch;
    run.peer = rotated(args.team.rank, args.team.size, i);
    if (is_near(grid, nodes.nodes, run.peer)) return false;
    u64 to = static_cast<u64>(args.team.rank) * args.row_stride;
    run.count = sent_to(grid, args, run.peer);
    run.from = static_cast<u64>(run.peer) * args.row_stride;
    run.rows = args.rows_offset + to * args.row_bytes;
    run.meta = args.meta_offset + to * args.meta_bytes;
    run.flag = args.flags_offset + static_cast<u64>(args.team.rank) * args.flag_stride;
    return true;
}
#endif

// One wave. A put that fails has poisoned the world.
static ANABRANCH_DEVICE void put_run(const Grid& grid, const shmem::Context& context, const DispatchNodesArgs& args, const Run& run) {
    shmem::GroupRank peer = {run.peer};
    shmem::Symmetric<u8> rows = {run.rows}, meta = {run.meta};
    shmem::Symmetric<u64> flag = {run.flag};
    const u8* from_rows = args.staged_rows + run.from * args.dispatch.row_bytes;
    const u8* from_meta = args.staged_meta + run.from * args.dispatch.meta_bytes;
    u64 row_bytes = static_cast<u64>(run.count) * args.dispatch.row_bytes;
    u64 meta_bytes = static_cast<u64>(run.count) * args.dispatch.meta_bytes;
    u64 value = pack_flag(static_cast<u32>(context.wait.epoch), run.count);
    shmem::Status status = shmem::put_nbi<shmem::Wave>(grid, context, rows, from_rows, row_bytes, peer);
    if (status != shmem::Status::OK) return;
    shmem::put_signal_nbi<shmem::Wave>(grid, context, meta, from_meta, meta_bytes, flag, value, shmem::SignalOp::SET, peer);
}

// The last block: thread 0 flags the ranks of this node, and the waves put the runs for other nodes.
static ANABRANCH_DEVICE void flag_counts(const Grid& grid, const DispatchNodesArgs& nodes, const Local& local,
                                         const WaitContext& wait) {
    const DispatchArgs& args = nodes.dispatch;
    if (grid.thread == 0) {
        u32 dropped = 0;
        for (u32 i = 0; i < args.team.size; ++i) {
            u32 peer = rotated(args.team.rank, args.team.size, i), count = sent_to(grid, args, peer);
            dropped += private_load(grid, args.routed + peer) - count;
            if (!is_near(grid, nodes.nodes, peer)) continue;
            u64 flag = args.flags_offset + static_cast<u64>(args.team.rank) * args.flag_stride;
            u64 value = pack_flag(static_cast<u32>(wait.epoch), count);
            flag_store(grid, reinterpret_cast<u64*>(local.peer_base.get(grid, peer) + flag), value);
        }
        private_store(grid, &args.state->dropped_count, dropped);
    }
    grid.wave_barrier();
    shmem::Context context = {args.team, wait};
    for (u32 i = grid.wave(); i < targets(nodes); i += grid.waves_per_block()) {
        Run run = {};
        if (run_to(grid, nodes, i, run)) put_run(grid, context, nodes, run);
    }
}

// The whole block comes here, or none of it. True in the block that was the last to arrive, which has sent the counts.
static ANABRANCH_DEVICE bool send_rows(const Grid& grid, const DispatchNodesArgs& args, const Local& local,
                                       const WaitContext& wait, u32 given) {
    bool last = write_rows(grid, args.dispatch, local, given);
    if (last) flag_counts(grid, args, local, wait);
    return last;
}

// For the direct way.
ANABRANCH_KERNEL(anabranch_ep_dispatch_nodes, DispatchNodesArgs, 1024) {
    DispatchLocal local = local_of(args);
    u32 given = given_tokens(grid, args.dispatch);
    u64 epoch = begin(grid, args.dispatch, local);
    WaitContext wait = context_of(grid, args.dispatch, epoch);
    if (epoch == 0) {
        report_nothing(grid, args.dispatch);
    } else if (send_rows(grid, args, local, wait, given)) {
        learn_counts(grid, args.dispatch, local, wait);
    }
}

ANABRANCH_KERNEL(anabranch_ep_dispatch_nodes_send, DispatchNodesArgs, 1024) {
    DispatchLocal local = local_of(args);
    u32 given = given_tokens(grid, args.dispatch);
    u64 epoch = begin(grid, args.dispatch, local);
    if (epoch != 0) send_rows(grid, args, local, context_of(grid, args.dispatch, epoch), given);
}

// One block, for the direct way.
ANABRANCH_KERNEL(anabranch_ep_dispatch_nodes_recv, DispatchNodesArgs, 1024) {
    DispatchLocal local = local_of(args);
    u64 epoch = begin(grid, args.dispatch, local);
    if (epoch == 0) {
        report_nothing(grid, args.dispatch);
    } else {
        learn_counts(grid, args.dispatch, local, context_of(grid, args.dispatch, epoch));
    }
}

// One block: completes the puts of the plan's operations, before their memory is freed.
ANABRANCH_KERNEL(anabranch_ep_dispatch_nodes_drain, DispatchNodesArgs, 1024) {
    WaitContext wait = context_of(grid, args.dispatch, 0);
    shmem::Context context = {args.dispatch.team, wait};
    shmem::quiet<shmem::Block>(grid, context);
}
