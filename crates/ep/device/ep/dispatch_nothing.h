// The output of a dispatch after a fault.
#pragma once

#include "ep/mask.h"

// After a fault a dispatch reports no rows, so that later kernels on the stream have nothing to do. Every block that saw the poison
// writes the zeros, because only some blocks see a poison that comes while the grid starts. Nothing else is written to these words:
// a grid of which a block did not arrive has no last block. Nothing orders these blocks, so the zeros are atomics.
static ANABRANCH_DEVICE void report_nothing(const Grid& grid, const DispatchArgs& args) {
    for (u32 peer = grid.thread; peer <= args.team.size; peer += grid.block_threads) {
        if (peer < args.team.size) swap_system(grid, args.counts + peer, 0u);
        swap_system(grid, args.offsets + peer, 0u);
    }
    if (grid.thread == 0) swap_system(grid, &args.state->dropped_count, 0u);
    if (MASKS && grid.thread == 0) swap_system(grid, &args.state->masked_count, 0u);
}
