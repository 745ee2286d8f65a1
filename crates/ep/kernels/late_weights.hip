// Late weights: weights that are given after the dispatch. Each rank stores, for every copy of its tokens, the token's weights at the copy's
// row of the destination's late window, [rows][top_k] f32. Then it flags every rank, and waits for the flags of all: after this kernel the
// weights of all received rows are there. The last block to arrive flags and waits alone, so the grid need not be resident.
//
// Writers. The words of a row are written by the rank that the row came from, flag [s] by rank s, and no other rank writes either.
//
// Why the window is not overwritten while it is read. Rank s writes at d again in epoch e + 1, after its dispatch e + 1 has seen the dispatch
// flag e + 1 of d. Rank d sent it after its combine e had ended (slot order, see `dispatch.hip`), and the contract that reads the window
// came before that combine on the stream. The host refuses a second call for one dispatch.
// Why a flag is not overwritten too early: by the same chain, because d waits for it before its combine e.
// Why an old flag is not taken for a new one: it is the whole epoch, 64 bits. The operations between may have had no late weights, so 32
// bits could come round again.
//
// Why this rank's own words are not reused too early. The send map, the number of tokens and `dispatch_epoch` were written by the dispatch of
// this operation, and the slot's next dispatch writes them again. `combine_arrived` is 0 before and after each kernel of the slot that counts in
// it. Slot order keeps those kernels away until this one has ended.
//
// Masked ranks (`ep/mask.h`) get neither weights nor flag, and are not waited for. If this wait masks the source of rows that have come, their
// weights are old or still being written. Their sums are for that rank alone, and it gets no combine flag.
#include "anabranch/prelude.h"
#include "ep/combine_flags.h"

// Every wave stores weights of its own share of the copies.
static ANABRANCH_DEVICE void send_weights(const Grid& grid, const LateWeightsArgs& args) {
    u64 copies = static_cast<u64>(combined_tokens(grid, args)) * args.fan_out;
    u64 items = copies * args.top_k;
    u64 stride = static_cast<u64>(grid.grid_waves()) * WAVE_SIZE;
    for (u64 item = static_cast<u64>(grid.grid_wave()) * WAVE_SIZE + grid.lane(); item < items; item += stride) {
        u64 copy = item / args.top_k;
        u64 k = item - copy * args.top_k;
        u64 entry = private_load(grid, args.send_map + copy);
        if (!is_destination(entry) || is_dropped(entry) || is_masked(grid, args.mask, destination_rank(entry))) continue;
        u64 base = private_load(grid, args.team.peer_bases + destination_rank(entry));
        u32* window = reinterpret_cast<u32*>(base + args.window_offset);
        u32 weight = private_load(grid, args.weights + copy / args.fan_out * args.top_k + k);
        remote_store(grid, window + static_cast<u64>(destination_row(entry)) * args.top_k + k, weight);
    }
}

// Thread 0, after all weights of this rank.
static ANABRANCH_DEVICE void flag_weights(const Grid& grid, const LateWeightsArgs& args, u64 epoch) {
    u64 own = args.flags_offset + static_cast<u64>(args.team.rank) * args.flag_stride;
    for (u32 i = 0; i < args.team.size; ++i) {
        u32 peer = rotated(args.team.rank, args.team.size, i);
        if (is_masked(grid, args.mask, peer)) continue;
        u64 base = private_load(grid, args.team.peer_bases + peer);
        flag_store(grid, reinterpret_cast<u64*>(base + own), epoch);
    }
}

// One block: the flags of all ranks.
static ANABRANCH_DEVICE void await_weights(const Grid& grid, const LateWeightsArgs& args, const WaitContext& wait, u64 own) {
    u64 epoch = wait.epoch;
    for (u32 peer = grid.thread; peer < args.team.size; peer += grid.block_threads) {
        const u64* flag = reinterpret_cast<const u64*>(own + args.flags_offset + static_cast<u64>(peer) * args.flag_stride);
        u64 seen = 0;
        bool is_there = true;
        WaitStatus status = await_rank(
            grid, wait, args.mask, COMBINE_WAIT_WEIGHTS, peer, flag, seen, is_there, [epoch](u64 value) { return value >= epoch; });
        if (status == WAIT_OK && is_there && seen != epoch) {
            report_fault(grid, wait, COMBINE_WEIGHTS_OVERRUN, peer, epoch, seen, 0);
        }
        acquire_after_wait(grid);
    }
}

ANABRANCH_KERNEL(anabranch_ep_late_weights, LateWeightsArgs, 1024) {
    u64 epoch = next_epoch(grid, args);
    if (epoch == 0) return;
    WaitContext wait = context_of(grid, args, epoch);
    send_weights(grid, args);
    // lint: allow(return-before-barrier): the epoch is the block's, so that all threads return or none
    if (arrive_is_last(grid, &args.state->combine_arrived, grid.grid_blocks)) {
        if (grid.thread == 0) flag_weights(grid, args, epoch);
        await_weights(grid, args, wait, private_load(grid, args.team.peer_bases + args.team.rank));
    }
}
