// Kernels for the tests of a seeded machine. `mode` chooses what is left out.
#include "anabranch/prelude.h"

enum Mode : u32 { WHOLE = 0, NO_RELEASE = 1, NO_ACQUIRE = 2 };

static ANABRANCH_DEVICE void wait_for(const Grid& grid, const u64* flag, u64 value) {
    for (u32 looks = 1; flag_load_for_wait(grid, flag) < value; ++looks) grid.relax(looks);
}

// Writes a word per thread into `data` and raises `flag`.
ANABRANCH_KERNEL(machine_put, MachineArgs, 64) {
    u32 at = grid.block * grid.block_threads + grid.thread;
    remote_store(grid, args.data + at, args.value + at);
    if (args.mode == WHOLE) {
        block_release_system(grid);
    } else {
        grid.block_barrier();
    }
    if (grid.thread == 0) flag_store(grid, args.flag + grid.block, args.value);
}
// Waits for `flag` and copies what it says is there to `out`.
ANABRANCH_KERNEL(machine_take, MachineArgs, 64) {
    u32 at = grid.block * grid.block_threads + grid.thread;
    if (grid.thread == 0) {
        wait_for(grid, args.flag + grid.block, args.value);
        if (args.mode != NO_ACQUIRE) fence_acquire_system(grid);
    }
    grid.block_barrier();
    private_store(grid, args.out + at, remote_load(grid, args.data + at));
}
// Adds to every word of `out`.
ANABRANCH_KERNEL(machine_add, MachineArgs, 64) {
    u32 at = grid.block * grid.block_threads + grid.thread;
    private_store(grid, args.out + at, private_load(grid, args.out + at) + args.value);
}
// Waits until `flag` holds `value`, or for `mode` nanoseconds; tells in `out` which, and how long it took.
ANABRANCH_KERNEL(machine_wait, MachineArgs, 64) {
    if (grid.thread != 0) return;
    u64 begun = grid.clock_ns();
    u64 budget = u64(args.mode) * 1000000;
    u64 seen = 0;
    for (u32 looks = 1; (seen = flag_load_for_wait(grid, args.flag)) < args.value; ++looks) {
        if (grid.clock_ns() - begun > budget) break;
        grid.relax(looks);
    }
    private_store(grid, args.out, seen);
    private_store(grid, args.out + 1, grid.clock_ns() - begun);
}
// Answers on `out` what it sees on `flag`, both of which lie in host memory.
ANABRANCH_KERNEL(machine_answer, MachineArgs, 64) {
    if (grid.thread != 0) return;
    wait_for(grid, args.flag, args.value);
    fence_acquire_system(grid);
    remote_store(grid, args.data, remote_load(grid, args.data) + 1);
    fence_release_system(grid);
    flag_store(grid, args.out, args.value);
}
// Reads `data` as if no peer could write it.
ANABRANCH_KERNEL(machine_private, MachineArgs, 64) {
    if (grid.thread == 0) private_store(grid, args.out, private_load(grid, args.data));
}
// Watches a counter that only grows; `out` tells whether it ever went back.
ANABRANCH_KERNEL(machine_watch, MachineArgs, 64) {
    if (grid.thread != 0) return;
    u64 last = 0;
    u64 back = 0;
    for (u32 looks = 1; last < args.value && looks < 30; ++looks) {
        u64 seen = flag_load(grid, args.flag);
        if (seen < last) back = 1;
        if (seen > last) last = seen;
        grid.relax(looks);
    }
    for (u32 more = 0; more < 8; ++more) {
        if (flag_load(grid, args.flag) < last) back = 1;
        grid.relax(1);
    }
    private_store(grid, args.out, back);
}
// Counts `flag` up, one store for each number.
ANABRANCH_KERNEL(machine_count, MachineArgs, 64) {
    if (grid.thread != 0) return;
    for (u64 number = 1; number <= args.value; ++number) {
        flag_store(grid, args.flag, number);
        fence_release_system(grid);
    }
}
// Stores a value of four bytes in front of a word, which it leaves as it is.
ANABRANCH_KERNEL(machine_bytes, MachineArgs, 64) {
    if (grid.thread == 0) remote_store(grid, (u32*)args.data, u32(args.value));
}
// Looks at nothing but the clock, for ever or for `mode` nanoseconds.
ANABRANCH_KERNEL(machine_clock, MachineArgs, 64) {
    if (grid.thread != 0) return;
    u64 begun = grid.clock_ns();
    while (grid.clock_ns() - begun < (args.mode == 0 ? ~u64(0) : u64(args.mode))) {}
    private_store(grid, args.out, grid.clock_ns() - begun);
}
// Meets the other threads of its block `value` times.
ANABRANCH_KERNEL(machine_barrier, MachineArgs, 64) {
    for (u64 round = 0; round < args.value; ++round) grid.block_barrier();
}
