// Combine of ranks on several nodes: every rank pulls, for each of its tokens, the rows that ranks of its own node computed, as in
// `combine.hip`; ranks of other nodes put theirs into its return window. Sums are as in `combine.hip`, over every row,
// in group-rank order: a sum per node would save bytes between nodes but add in another order.
//
// Writers. Rank d's expert work has written the results of its received rows to its combine window, or to a buffer that the send
// copies there. Then d stores its combine flag at every rank of its node, and puts to each rank s of another node the rows that s owns,
// contiguous, to rows [d * row_stride ..] of the return window of s, with the flag after them. Rank s waits for the flags of all ranks.
//
// Why the combine window is not overwritten while it is read. Rank d writes it again in epoch e + 1, after its dispatch e + 1 has seen every
// rank's dispatch flag e + 1, or the one that its relay sent for that rank. Rank s sends that after its combine e has ended, so all its
// reads of epoch e are over, and the rows that d put to s had landed before.
// Why the return window is not overwritten while it is read: d puts there again in epoch e + 1, after the same flag of s.
// The same chain protects the flag words. It also keeps them from going back, although another block may send them in each epoch, by another
// queue pair: s has seen d's flag e before it sends the dispatch flag that d waits for before it sends flag e + 1.
//
// No block waits for its puts before it sums. After the sum the first block does, so that a NIC error ends this rank's operation, and not
// only the operations of its peers.
#include "anabranch/prelude.h"
#include "ep/nodes.h"
#include "ep/combine_flags.h"
#include "ep/combine_rows.h"
#include "shmem/order.h"
#include "shmem/signal.h"

#ifndef EP_ELEMENT
#error "the kernel is compiled for an element type: Bf16, F16 or F32"
#endif
typedef EP_ELEMENT Element;

// Rows of this node's ranks are pulled; rows of other nodes are in the return window.
static ANABRANCH_DEVICE Result result_of(const Grid& grid, const CombineNodesArgs& args, u64 entry) {
    if (!is_near(grid, args.nodes, destination_rank(entry))) return returned(args, args.returned_offset, entry);
    return pulled(args, entry);
}

static_assert(!MASKS, "plans on several nodes have no masks");

// Rows of this node are pulled, rows of other nodes are put; a release has none.
static ANABRANCH_DEVICE CombineWay way_from(const Grid& grid, const CombineNodesArgs& args, CombineWay way, u32 peer) {
    return way == PULLED && !is_near(grid, args.nodes, peer) ? COPIED : way;
}
static ANABRANCH_DEVICE CombineWay way_of(const CombineNodesArgs& args) { return args.releases != 0 ? RELEASED : PULLED; }

static ANABRANCH_DEVICE u64 own_base(const Grid& grid, const CombineNodesArgs& args) {
    return private_load(grid, args.team.peer_bases + args.team.rank);
}

// The grid copies the received rows from a buffer to the combine window, wave by wave.
static ANABRANCH_DEVICE void stage_rows(const Grid& grid, const CombineNodesArgs& args) {
    u32 units = args.row_bytes / 16;
    Vec16* window = reinterpret_cast<Vec16*>(own_base(grid, args) + args.rows_offset);
    for (u32 peer = 0; peer < args.team.size; ++peer) {
        u32 count = private_load(grid, args.counts + peer);
        for (u32 row = grid.grid_wave(); row < count; row += grid.grid_waves()) {
            u64 first = (static_cast<u64>(peer) * args.row_stride + row) * units;
            const Vec16* source = reinterpret_cast<const Vec16*>(args.rows) + first;
            for (u32 unit = grid.lane(); unit < units; unit += WAVE_SIZE) {
                heap_store(grid, window + first + unit, stream_load(grid, source + unit));
            }
        }
    }
}

// One block, after the release of the rows: thread 0 flags the ranks of this node, and the waves put the rows for other nodes.
static ANABRANCH_DEVICE void flag_rows(const Grid& grid, const CombineNodesArgs& args, const WaitContext& wait) {
    u32 epoch = static_cast<u32>(wait.epoch);
    u64 own_flag = args.flags_offset + static_cast<u64>(args.team.rank) * args.flag_stride;
    if (grid.thread == 0) {
        for (u32 i = 0; i < args.team.size; ++i) {
            u32 peer = rotated(args.team.rank, args.team.size, i);
            if (!is_near(grid, args.nodes, peer)) continue;
            u64 base = private_load(grid, args.team.peer_bases + peer);
            flag_store(grid, reinterpret_cast<u64*>(base + own_flag), pack_flag(epoch, way_of(args)));
        }
    }
    grid.wave_barrier();
    shmem::Context context = {args.team, wait};
    shmem::Symmetric<u8> target = {args.returned_offset + static_cast<u64>(args.team.rank) * args.row_stride * args.row_bytes};
    const u8* window = reinterpret_cast<const u8*>(own_base(grid, args) + args.rows_offset);
    for (u32 i = grid.wave(); i < args.team.size; i += grid.waves_per_block()) {
        u32 peer = rotated(args.team.rank, args.team.size, i);
        if (is_near(grid, args.nodes, peer)) continue;
        u32 count = args.releases != 0 ? 0 : private_load(grid, args.counts + peer);
        const u8* source = window + static_cast<u64>(peer) * args.row_stride * args.row_bytes;
        u64 value = pack_flag(epoch, way_from(grid, args, way_of(args), peer));
        shmem::Symmetric<u64> flag = {own_flag};
        shmem::put_signal_nbi<shmem::Wave>(grid, context, target, source, static_cast<u64>(count) * args.row_bytes, flag, value,
                                           shmem::SignalOp::SET, shmem::GroupRank{peer});
    }
}

// The whole grid comes here, or none of it.
static ANABRANCH_DEVICE void send_rows(const Grid& grid, const CombineNodesArgs& args, const WaitContext& wait) {
    bool flags_rows = grid.block == 0;
    if (args.rows != nullptr) {
        stage_rows(grid, args);
        flags_rows = arrive_is_last(grid, &args.state->combine_arrived, grid.grid_blocks);
    } else if (flags_rows) {
        // The rows were written by earlier work on this stream; the fence carries them to the peers.
        block_release_system(grid);
    }
    if (flags_rows) flag_rows(grid, args, wait);
}

// The whole block comes here, or none of it.
static ANABRANCH_DEVICE void sum_rows(const Grid& grid, const CombineNodesArgs& args, const WaitContext& wait) {
    LocalArray<u32> fault = {0};
    u32 tokens = combined_tokens(grid, args);
    if (!wait_for_rows(grid, args, way_of(args), wait, own_base(grid, args), fault)) return;
    sum_tokens<Element>(grid, args, tokens, early_rows(grid, args, tokens));
    shmem::Status put = shmem::Status::OK;
    if (grid.block == 0) put = shmem::quiet<shmem::Block>(grid, shmem::Context{args.team, wait});
    if (put == shmem::Status::OK) end_combine(grid, args, wait.epoch);
}

ANABRANCH_KERNEL(anabranch_ep_combine_nodes, CombineNodesArgs, 1024) {
    u64 epoch = next_epoch(grid, args);
    if (epoch == 0) return;
    WaitContext wait = context_of(grid, args, epoch);
    send_rows(grid, args, wait);
    sum_rows(grid, args, wait);
}

// Send and receive.
ANABRANCH_KERNEL(anabranch_ep_combine_nodes_send, CombineNodesArgs, 1024) {
    u64 epoch = next_epoch(grid, args);
    if (epoch != 0) send_rows(grid, args, context_of(grid, args, epoch));
}

ANABRANCH_KERNEL(anabranch_ep_combine_nodes_recv, CombineNodesArgs, 1024) {
    u64 epoch = next_epoch(grid, args);
    if (epoch != 0) sum_rows(grid, args, context_of(grid, args, epoch));
}
