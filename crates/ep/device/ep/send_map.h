// Where copies of tokens went, and the order of ranks.
#pragma once

#include "anabranch/prelude.h"

// An entry of the send map: where one copy of a token went, {rank + 1 : 32, row : 32}. Zero means none. The row is the
// copy's in the destination's windows; its highest bit is set when there was no room for it, and nothing was sent then.
static constexpr u64 DROPPED = u64(1) << 31;
ANABRANCH_DEVICE u64 pack_destination(u32 rank, u32 row) { return (static_cast<u64>(rank + 1) << 32) | row; }
ANABRANCH_DEVICE bool is_destination(u64 entry) { return entry != 0; }
ANABRANCH_DEVICE bool is_dropped(u64 entry) { return (entry & DROPPED) != 0; }
ANABRANCH_DEVICE u32 destination_rank(u64 entry) { return static_cast<u32>(entry >> 32) - 1; }
ANABRANCH_DEVICE u32 destination_row(u64 entry) { return static_cast<u32>(entry); }

// Bits of a saved routing's identity, {epoch, slot}, that name the slot; a plan has at most 64.
static constexpr u32 SLOT_BITS = 6;

// Where the rows of a source begin in the windows: each source owns `row_stride` rows, or, when that is 0, its rows lie
// after those of the ranks before it.
ANABRANCH_DEVICE u32 first_row_of(const Grid& grid, u32 source, u32 row_stride, const u32* offsets) {
    return row_stride != 0 ? source * row_stride : private_load(grid, offsets + source);
}

// Ranks in the order in which this one looks at them: itself, then those after it.
ANABRANCH_DEVICE u32 rotated(u32 rank, u32 ranks, u32 i) { return rank + i < ranks ? rank + i : rank + i - ranks; }
// What is loaded of some ranks at a time, so that latencies overlap.
static constexpr u32 RANKS_AT_ONCE = 4;
