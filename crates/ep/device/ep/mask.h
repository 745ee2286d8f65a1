// Masked ranks (`EP_MASK`): without that parameter nothing of this is compiled.
//
// A rank's mask is in its own device memory, one entry per rank for all slots. Between two resets entries are only set, by the
// host or by a wait whose patience has ended. A rank d that masks a rank S sends S no dispatch rows and no flags from then on, does
// not wait for S, and reads nothing that S sends. (It may still push combine rows to S, to places that d alone writes.) Masks
// of ranks may differ. The arguments of the kernels that nothing is overwritten too early use waits for all ranks, so they must hold
// without the waits for S.
//
// Late writes of S at d. S may write its flag words, its rows and meta records of a dispatch, its late weights, and its rows and weights of
// a combine that pushes. S alone writes each of these: word [S], rows [S * row_stride ..] (so the mode must be slotted), and
// place [S] of the push window (so places are ranks here, and that window shares no memory with the one that is pulled).
// While d masks S, d reads none of them, but for late weights of rows that had come: `late_weights.hip` has the reason. After a reset d
// reads word [S] again. The ranks of a reset have nothing in flight. They take the greatest epoch that any of them may have sent, also in a
// send without its receive, and continue with the next one. So no old word has the epoch that d waits for, and d reads rows only after words.
//
// Late reads of S at d. In a combine that pulls, S reads the rows and weights that d computed for S: rows [S * row_stride ..] of d's
// combine window. d's experts write them for rows received from S, and while d masks S there are none. So S reads the rows of the epoch
// whose flag it has seen. Everything else that S reads is in its own memory, in words and places that d alone writes.
//
// Blocks of one operation read the mask at different times, and kernels of other slots may set it meanwhile. Why they agree.
// Dispatch: one thread decides about a rank's flag. The last block sends a rank its count if it sees the rank unmasked; entries
// are only set, and all blocks arrived before, so no block left out a row for that rank. If it sees the rank masked, the rank's copies
// count as masked, sent or not. Combine: the first block that knows about a rank, either its flag or its mask, stores
// {epoch, there} by a compare and swap; all other blocks follow that word.
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

// After a wait for this rank's flag that ended with the patience. The first block to claim the entry writes the record for the host.
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

// Whether a flag {epoch, count} is of this epoch, or a later one.
struct HasReached {
    u32 epoch;
    ANABRANCH_DEVICE bool operator()(u64 flag) const { return flag_has_reached(flag, epoch); }
};

// Waits for a rank's flag of this epoch.
ANABRANCH_DEVICE WaitStatus await_flag(const Grid& grid, const WaitContext& wait, u32 phase, u32 rank, const u64* flag, u64& seen) {
    u32 epoch = static_cast<u32>(wait.epoch);
    return wait_until(grid, wait, phase, rank, epoch, flag, HasReached{epoch}, seen);
}

// Waits until a rank's flag has `reached` this epoch. Where ranks may be masked, the wait also ends when that rank is masked, at the latest
// by this wait: `is_there` is false then. The patience begins here, so a peer that is as late as this block is not masked. A rank never
// masks itself: its own flag may not have landed yet. WAIT_FAULT in a poisoned world.
template <class Reached>
ANABRANCH_DEVICE WaitStatus await_rank(const Grid& grid, const WaitContext& wait, const MaskView& mask, u32 phase, u32 rank,
                                       const u64* flag, u64& seen, bool& is_there, Reached reached) {
    is_there = true;
    u32 epoch = static_cast<u32>(wait.epoch);
    if constexpr (!MASKS) return wait_until(grid, wait, phase, rank, epoch, flag, reached, seen);
    bool given_up = is_masked(grid, mask, rank);
    u32 looks = 0;
    u64 begin = grid.clock_ns();
    WaitStatus status = wait_for(
        grid, wait, phase,
        [&]() {
            if (given_up) return true;
            seen = flag_load_for_wait(grid, flag);
            if (reached(seen)) return true;
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

// The same, for a flag {epoch, count}.
ANABRANCH_DEVICE WaitStatus await_rank(const Grid& grid, const WaitContext& wait, const MaskView& mask, u32 phase, u32 rank,
                                       const u64* flag, u64& seen, bool& is_there) {
    return await_rank(grid, wait, mask, phase, rank, flag, seen, is_there, HasReached{static_cast<u32>(wait.epoch)});
}

// The ranks that a block of a combine leaves out, in local memory after the fault word and the poison word (the plan's `combine_local_bytes`).
struct LeftOut {
    static constexpr u32 BYTE = 16;
    static ANABRANCH_DEVICE bool has(const Grid& grid, u32 rank) {
        if constexpr (MASKS) return LocalArray<u32>{BYTE}.get(grid, rank) != 0;
        return false;
    }
};

// Whether all blocks of a combine include a rank: as the first of them has found.
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
    // Another block has seen the flag, so this one will.
    if (is_there && !came) status = await_flag(grid, wait, phase, rank, flag, seen);
    LocalArray<u32>{LeftOut::BYTE}.set(grid, rank, is_there ? 0u : 1u);
    return status;
}
