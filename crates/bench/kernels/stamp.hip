// Takes the device's time in stream order, also inside a replayed graph.
#include "anabranch/prelude.h"

ANABRANCH_KERNEL(anabranch_bench_stamp, StampArgs, 64) {
    if (grid.block != 0 || grid.thread != 0) return;
    u64 index = private_load(grid, args.count);
    private_store(grid, args.stamps + index % args.capacity, grid.clock_ns());
    private_store(grid, args.count, index + 1);
}
