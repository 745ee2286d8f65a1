// What a dispatch leaves after a fault, whichever kernel it is.
#pragma once

#include "ep/mask.h"

// After a fault: no rows, so that whatever comes next on the stream finds nothing to do. Every block that saw the poison
// writes the zeros: the poison may have come while the grid was starting, and then only some blocks saw it. No rank writes
// anything else, since a grid of which a block did not arrive has no last block. Nothing orders these blocks, so the zeros
// are atomics.
static ANABRANCH_DEVICE void report_nothing(const Grid& grid, const DispatchArgs& args) {
    for (u32 peer = grid.thread; peer <= args.team.size; peer += grid.block_threads) {
        if (peer < args.team.size) swap_system(grid, args.counts + peer, 0u);
        swap_system(grid, args.offsets + peer, 0u);
    }
    if (grid.thread == 0) swap_system(grid, &args.state->dropped_count, 0u);
    if (MASKS && grid.thread == 0) swap_system(grid, &args.state->masked_count, 0u);
}
