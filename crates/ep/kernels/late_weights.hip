// Late weights, which are given after the dispatch. Each rank stores the weights of its tokens at the destinations: for every copy that was not
// dropped, at the copy's row of the destination's late window, [rows][top_k] f32. Then it stores flag [s], s its rank, at every rank, and waits for
// the flags of all. Only the last block to arrive waits, so the grid need not be resident. "Slot order" is defined in `dispatch.hip`.
//
// Writers. In one epoch only the source of a row writes its words. Only rank s writes flag [s].
//
// Why the window is not overwritten while it is read. Rank s writes at d in a later epoch f, after its dispatch f has seen the dispatch flag f
// of d. Rank d sent it after its last combine or release on the slot had ended (slot order). The contract and kernels of the caller read the
// window before that combine; the caller orders them. The host refuses a second call for one dispatch.
// Why two writers do not meet. In the compact mode a row may have another source in epoch f. Before d sent the dispatch flag f, it had waited
// for the late flags of all ranks of the last epoch with late weights, so those stores had ended.
// Why a flag is not overwritten too early: d waits for flag e in this kernel, before its combine e. So the same chain holds.
// Why an old flag is not taken for a new one: it is the whole epoch, 64 bits. The operations between may have had no late weights, so 32
// bits could wrap.
//
// Why this rank's own words are not reused too early. The dispatch of this operation wrote the send map and `dispatch_epoch`; it or its count
// wrote the number of tokens. The slot's next dispatch writes them again. `combine_arrived` is 0 when a grid begins, unless the world is
// poisoned: a block that sees poison does not arrive, and no later kernel uses the counter. Slot order keeps later kernels away until this
// one has ended.
//
// Masks (`ep/mask.h`). A masked rank gets no flag and is not waited for. Blocks that ran before it was masked may have stored weights for it.
// A rank that is unmasked when thread 0 stores the flags was unmasked for all blocks, since entries are only set; so it has all weights. If
// this wait masks the source of received rows, their weights are old or still being written. Only that rank uses their sums, and it gets no
// combine flag.
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
