// The tables of a block that places rows (`expert_expand.hip`, `ep/expand_numbered.h`) in local memory, and the places of its experts.
#pragma once

#include "ep/received_rows.h"

// Of `at`, local memory from `byte` on, in this order: running sum of rows u32[ranks + 1], next place u32[experts], pairs of all rows u32[experts],
// with CONTIGUOUS the slot of an expert's first place u32[experts + 1], the tile's pairs: expert u32[pairs], slot u32[pairs]. The host
// computes the same size (`expand_local_bytes`).
struct ExpandLocal {
    LocalArray<u32> offsets;
    LocalArray<u32> next;
    LocalArray<u32> total;
    // With CONTIGUOUS. Of the number after the last expert: the places that all experts need, more than `capacity` where pairs are dropped.
    LocalArray<u32> starts;
    LocalArray<u32> pair_expert;
    LocalArray<u32> pair_slot;

    static ANABRANCH_DEVICE ExpandLocal at(u32 byte, u32 ranks, u32 experts, u32 pairs) {
        u32 next = byte + (ranks + 1) * 4;
        u32 starts = next + experts * 8;
        u32 tile = CONTIGUOUS ? starts + (experts + 1) * 4 : starts;
        return {{byte}, {next}, {next + experts * 4}, {starts}, {tile}, {tile + pairs * 4}};
    }
    // The slot of an expert's first place.
    ANABRANCH_DEVICE u32 first(const Grid& grid, const ExpertExpandArgs& args, u32 expert) const {
        return CONTIGUOUS ? starts.get(grid, expert) : expert * args.capacity;
    }
    // Places of an expert, from its first one on.
    ANABRANCH_DEVICE u32 room(const Grid& grid, const ExpertExpandArgs& args, u32 expert) const {
        return CONTIGUOUS ? args.capacity - minimum(starts.get(grid, expert), args.capacity) : args.capacity;
    }
};

// Experts one after the other: the first wave takes the running sum of their rows, rounded up. Block 0 writes the starts and counts. The
// pairs of an expert are those in `total`, and, with `ADDS`, those in `next`.
template <bool ADDS>
static ANABRANCH_DEVICE void line_up_experts(const Grid& grid, const ExpertExpandArgs& args, const ExpandLocal& local) {
    if (grid.wave() != 0) return;
    u32 experts = args.received.local_experts;
    u32 start = 0;
    // The last round has a lane for the number after the last expert.
    for (u32 at = 0; at <= experts; at += WAVE_SIZE) {
        u32 expert = at + grid.lane();
        u32 pairs = expert < experts ? local.total.get(grid, expert) : 0;
        if (ADDS && expert < experts) pairs += local.next.get(grid, expert);
        u32 rows = static_cast<u32>(round_up(pairs, args.alignment));
        u32 sum = rows;
        for (u32 step = 1; step < WAVE_SIZE; step *= 2) {
            u32 before = grid.shuffle(sum, grid.lane() < step ? grid.lane() : grid.lane() - step);
            if (grid.lane() >= step) sum += before;
        }
        u32 first = start + sum - rows;
        if (expert <= experts) {
            local.starts.set(grid, expert, first);
            if (grid.block == 0) private_store(grid, args.starts + expert, first);
        }
        if (expert < experts) local.total.set(grid, expert, pairs);
        if (grid.block == 0 && expert < experts) {
            private_store(grid, args.counts + expert, minimum(pairs, args.capacity - minimum(first, args.capacity)));
        }
        start += grid.wave_broadcast(sum, WAVE_SIZE - 1);
    }
}
