// Whether a device runs kernels as compiled: local memory, a barrier of the block, the clock, and stores that the host reads.
#include "anabranch/prelude.h"

ANABRANCH_KERNEL(anabranch_doctor_probe, ProbeArgs, 64) {
    u64 begun = grid.clock_ns();
    grid.local_store<u32>(grid.thread * 4, grid.block * grid.block_threads + grid.thread + args.seed);
    grid.block_barrier();
    u32 other = grid.local_load<u32>((grid.block_threads - 1 - grid.thread) * 4);
    u32 index = grid.block * grid.block_threads + grid.thread;
    // A clock that runs backwards is a wrong word.
    private_store(grid, args.words + index, grid.clock_ns() < begun ? 0u : other * 3);
}
