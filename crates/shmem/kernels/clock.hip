// Stores the kernel's clock where the host polls for it.
#include "anabranch/prelude.h"

ANABRANCH_KERNEL(anabranch_shmem_clock, ClockArgs, 64) {
    if (grid.block != 0 || grid.thread != 0) return;
    remote_store(grid, args.time_ns, grid.clock_ns());
    fence_release_system(grid);
    flag_store(grid, args.number, args.this_number);
}
