// Combine whose rows copy engines move, in two kernels. The send posts, for each rank, the experts' rows of that rank, from the combine
// window or any other buffer, with the rank's flag after them. The receive sums. Slotted only, so that
// the rows for a rank are contiguous. Sums are as in `combine.hip`.
//
// Writers. Rank s has a return window, as large as a combine window. The engines of rank d write to its rows [d * row_stride ..] the
// results of d's experts for the rows from s, in their order, and then d's combine flag at s. Rank s waits for
// the flags of all ranks and reads. Where the route has no queue that kernels write, copies on streams move the most rows that there may
// be, and the kernel `flag` runs on the stream that joins them.
//
// Why the return window is not overwritten while it is read. The engines of d write at s again in epoch e + 1, after d's
// dispatch e + 1, which has seen every rank's dispatch flag e + 1. Rank s sends that flag after its combine e has ended (slot
// order, see `dispatch.hip`), so all its reads of epoch e are over. The same chain protects the flag words.
// Why what is copied is not overwritten too early. The experts of d write the combine window again in epoch e + 1, after d's `recv` e
// in stream order. That kernel has waited for this rank's packets, and runs after the join of its copies. For another buffer the caller
// ensures it.
#include "anabranch/prelude.h"
#include "ep/combine_flags.h"
#include "ep/combine_rows.h"
#include "ep/engine.h"

#ifndef EP_ELEMENT
#error "the kernel is compiled for an element type: Bf16, F16 or F32"
#endif
typedef EP_ELEMENT Element;

static ANABRANCH_DEVICE Result result_of(const Grid&, const CombineEngineArgs& args, u64 entry) {
    return returned(args, args.rows_offset, entry);
}

static_assert(!MASKS, "plans with copy engines have no masks");

static ANABRANCH_DEVICE u64* flag_at(const Grid& grid, const CombineEngineArgs& args, u32 peer) {
    u64 own = args.flags_offset + static_cast<u64>(args.team.rank) * args.flag_stride;
    return reinterpret_cast<u64*>(private_load(grid, args.team.peer_bases + peer) + own);
}

// The whole block comes here, or none of it. The rows were written by earlier work on this stream.
static ANABRANCH_DEVICE void post_rows(const Grid& grid, const CombineEngineArgs& args, const WaitContext& wait) {
    block_release_system(grid);
    u64 own = static_cast<u64>(args.team.rank) * args.row_stride * args.row_bytes;
    for (u32 i = grid.thread; i < args.team.size; i += grid.block_threads) {
        u32 peer = rotated(args.team.rank, args.team.size, i);
        const SdmaQueue* queue = queue_to(grid, args.team, args.slot, peer);
        if (queue == nullptr) continue;
        u64 from = static_cast<u64>(peer) * args.row_stride * args.row_bytes;
        u64 base = private_load(grid, args.team.peer_bases + peer);
        u64 bytes = static_cast<u64>(private_load(grid, args.counts + peer)) * args.row_bytes;
        Payload rows[1] = {{reinterpret_cast<u64>(args.rows) + from, base + args.rows_offset + own, bytes}};
        u64 value = pack_flag(static_cast<u32>(wait.epoch), COPIED);
        post_payloads(grid, wait, queue, rows, flag_at(grid, args, peer), value, args.posted + peer);
    }
}

// The whole block comes here, or none of it. Sends the flags of ranks whose rows were copied on streams.
static ANABRANCH_DEVICE void flag_others(const Grid& grid, const CombineEngineArgs& args, u64 epoch) {
    block_release_system(grid);
    for (u32 i = grid.thread; i < args.team.size; i += grid.block_threads) {
        u32 peer = rotated(args.team.rank, args.team.size, i);
        if (queue_to(grid, args.team, args.slot, peer) != nullptr) continue;
        flag_store(grid, flag_at(grid, args, peer), pack_flag(static_cast<u32>(epoch), COPIED));
    }
}

// One block.
ANABRANCH_KERNEL(anabranch_ep_combine_engine_send, CombineEngineArgs, 1024) {
    u64 epoch = next_epoch(grid, args);
    if (epoch != 0) post_rows(grid, args, context_of(grid, args, epoch));
}

// One block, after the copies on streams.
ANABRANCH_KERNEL(anabranch_ep_combine_engine_flag, CombineEngineArgs, 1024) {
    u64 epoch = next_epoch(grid, args);
    if (epoch != 0) flag_others(grid, args, epoch);
}

// The grid.
ANABRANCH_KERNEL(anabranch_ep_combine_engine_recv, CombineEngineArgs, 1024) {
    u64 epoch = next_epoch(grid, args);
    if (epoch == 0) return;
    WaitContext wait = context_of(grid, args, epoch);
    u64 own = private_load(grid, args.team.peer_bases + args.team.rank);
    if (grid.block == 0) wait_posted(grid, args.team, wait, args.slot, args.posted);
    LocalArray<u32> fault = {0};
    u32 tokens = combined_tokens(grid, args);
    if (!wait_for_rows(grid, args, COPIED, wait, own, fault)) return;
    sum_tokens<Element>(grid, args, tokens, early_rows(grid, args, tokens));
    end_combine(grid, args, epoch);
}
