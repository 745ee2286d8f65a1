// Ranks that a plan works without (`EP_MASK`): without that parameter nothing of this is compiled.
//
// A rank's mask is in its own device memory, one entry a rank for all slots. Between two resets entries are only set, by the
// host or by a wait that is patient no longer. Who masks a rank sends it neither rows of a dispatch nor flags from then on (rows of
// a combine may still be pushed to their places, which are d's own), waits for nothing of it, and reads nothing that it sends; ranks may differ in which ranks they mask. That puts one link out of the chains by which the kernels
// argue that nothing is overwritten too early, so the argument has to hold without it.
//
// What may a rank S still write at d, late, that has masked it? Its flag words, its rows and meta records of a dispatch, and its
// rows and weights of a combine that pushes. Each lies where S alone writes: word [S], rows [S * row_stride ..] (why the mode is slotted), and
// place [S] of the push window (why places are ranks here, and why that window shares no memory with the one that is pulled).
// Who could read it? d, for what it received from S and sent to S: neither does, as long as d masks S. After a reset d may
// look at word [S] again: the ranks of a reset have nothing in flight, take the greatest epoch that any of them may have sent, be it in a
// first half without its second, and go on with the next, so that no old word has reached it, and rows are read after words only.
//
// What may S still read at d, late, that has masked it? The rows and weights that d computed for S, in a combine that pulls: rows
// [S * row_stride ..] of d's combine window, which d's experts write for rows received from S, and there are none as long as d
// masks S. So they are those of the epoch whose flag S has seen. All else S reads in its own memory, where d wrote it last.
//
// Why all that one operation does agrees, though its blocks look at the mask at different times, and other slots' kernels set
// it meanwhile. Dispatch: one thread decides about a rank's flag. The last block tells a rank its count when it sees it unmasked;
// entries are only set, and all blocks were counted in before, so none of them has left a row out. What it sees masked counts as
// masked, sent or not. Combine: the first block that knows about a rank, that its flag came or that it is masked, says so in
// a word {epoch, there} by a compare and swap; all others do as it says.
#pragma once

#include "anabranch/prelude.h"

#if defined(EP_MASK)
static constexpr bool MASKS = true;
#else
static constexpr bool MASKS = false;
#endif

ANABRANCH_DEVICE bool is_masked(const Grid& grid, const MaskView& mask, u32 rank) {
    if constexpr (MASKS) return flag_load(grid, &mask.ranks[rank].masked) != 0;
    return false;
}

// A wait for this rank's flag has ended with the patience. The first to say so leaves the record for the host.
ANABRANCH_DEVICE void mask_rank(const Grid& grid, const WaitContext& wait, const MaskView& mask, u32 phase, u32 rank,
                                u64 waited_ns) {
    RankMask* entry = mask.ranks + rank;
    if (fetch_add_device(grid, &entry->claimed, 1u) == 0) {
        private_store(grid, &entry->operation, wait.operation);
        private_store(grid, &entry->phase, phase);
        private_store(grid, &entry->slot, mask.slot);
        private_store(grid, &entry->epoch, wait.epoch);
        private_store(grid, &entry->waited_ns, waited_ns);
    }
    flag_store(grid, &entry->masked, u64(1));
}

// Waits for a rank's flag of this epoch.
ANABRANCH_DEVICE WaitStatus await_flag(const Grid& grid, const WaitContext& wait, u32 phase, u32 rank, const u64* flag, u64& seen) {
    u32 epoch = static_cast<u32>(wait.epoch);
    return wait_until(
        grid, wait, phase, rank, epoch, flag, [epoch](u64 value) { return flag_has_reached(value, epoch); }, seen);
}

// The same; where ranks may be masked, until this one is, by this wait at the latest: `is_there` tells. The patience counts from
// here: whoever comes as late as this block has nothing to fear, however long both have worked. No rank masks itself: its own flag
// may still be under way. WAIT_FAULT in a poisoned world.
ANABRANCH_DEVICE WaitStatus await_rank(const Grid& grid, const WaitContext& wait, const MaskView& mask, u32 phase, u32 rank,
                                       const u64* flag, u64& seen, bool& is_there) {
    is_there = true;
    if constexpr (!MASKS) return await_flag(grid, wait, phase, rank, flag, seen);
    u32 epoch = static_cast<u32>(wait.epoch);
    bool given_up = is_masked(grid, mask, rank);
    u32 looks = 0;
    u64 begin = grid.clock_ns();
    WaitStatus status = wait_for(
        grid, wait, phase,
        [&]() {
            if (given_up) return true;
            seen = flag_load_for_wait(grid, flag);
            if (flag_has_reached(seen, epoch)) return true;
            if (++looks % SPINS_PER_CHECK != 0 || rank == wait.rank) return false;
            u64 waited = grid.clock_ns() - begin;
            given_up = waited > mask.patience_ns;
            if (given_up) mask_rank(grid, wait, mask, phase, rank, waited);
            return given_up;
        },
        [&]() { return Missing{rank, epoch, seen}; });
    is_there = !given_up;
    return status;
}

// The ranks that a block of a combine leaves out, in local memory after the fault word (the plan's `combine_local_bytes`).
struct LeftOut {
    static constexpr u32 BYTE = 16;
    static ANABRANCH_DEVICE bool has(const Grid& grid, u32 rank) {
        if constexpr (MASKS) return LocalArray<u32>{BYTE}.get(grid, rank) != 0;
        return false;
    }
};

// What all blocks of a combine do about a rank: what the first of them has found.
ANABRANCH_DEVICE bool first_found(const Grid& grid, const MaskView& mask, u32 rank, u64 epoch, bool is_there) {
    u64 mine = epoch * 2 + (is_there ? 1 : 0);
    u64* word = mask.settled + rank;
    u64 last = flag_load(grid, word);
    while (last / 2 != epoch) {
        u64 found = compare_swap_system(grid, word, last, mine);
        if (found == last) return is_there;
        last = found;
    }
    return last % 2 != 0;
}

// After a block's wait for a rank, in a combine.
ANABRANCH_DEVICE WaitStatus settle(const Grid& grid, const WaitContext& wait, const MaskView& mask, WaitStatus status, u32 phase,
                                   u32 rank, const u64* flag, u64& seen, bool& is_there) {
    if (status != WAIT_OK) return status;
    bool came = is_there;
    is_there = first_found(grid, mask, rank, wait.epoch, came);
    // Another block has seen the flag, so that it is there for this one too.
    if (is_there && !came) status = await_flag(grid, wait, phase, rank, flag, seen);
    LocalArray<u32>{LeftOut::BYTE}.set(grid, rank, is_there ? 0u : 1u);
    return status;
}
