// The send map: the destination of each copy of a token. And the order of ranks.
#pragma once

#include "anabranch/prelude.h"

// An entry of the send map: the destination of one copy of a token, {rank + 1 : 32, row : 32}, or zero for none. The row is the
// copy's row in the destination's windows; its highest bit marks a dropped copy, which was not sent.
static constexpr u64 DROPPED = u64(1) << 31;
ANABRANCH_DEVICE u64 pack_destination(u32 rank, u32 row) { return (static_cast<u64>(rank + 1) << 32) | row; }
ANABRANCH_DEVICE bool is_destination(u64 entry) { return entry != 0; }
ANABRANCH_DEVICE bool is_dropped(u64 entry) { return (entry & DROPPED) != 0; }
ANABRANCH_DEVICE u32 destination_rank(u64 entry) { return static_cast<u32>(entry >> 32) - 1; }
ANABRANCH_DEVICE u32 destination_row(u64 entry) { return static_cast<u32>(entry); }

// Bits of a saved routing's identity, {epoch, slot}, that name the slot; a plan has at most 64.
static constexpr u32 SLOT_BITS = 6;

// The first row of a source in the windows: each source owns `row_stride` rows, or, when that is 0, its rows follow the rows of the ranks
// before it.
ANABRANCH_DEVICE u32 first_row_of(const Grid& grid, u32 source, u32 row_stride, const u32* offsets) {
    return row_stride != 0 ? source * row_stride : private_load(grid, offsets + source);
}

// The i-th rank in the order that starts at this rank and wraps around.
ANABRANCH_DEVICE u32 rotated(u32 rank, u32 ranks, u32 i) { return rank + i < ranks ? rank + i : rank + i - ranks; }
// Ranks whose words are loaded together, so that latencies overlap.
static constexpr u32 RANKS_AT_ONCE = 4;
