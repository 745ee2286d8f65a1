// Litmus tests for the memory model of the seeded machine. `mode` chooses what is left out.
#include "anabranch/prelude.h"

enum Mode : u32 { WHOLE = 0, NO_RELEASE = 1, ONE_THREAD_RELEASES = 2, NO_ACQUIRE = 3, DEVICE_SCOPE = 4, LATE = 16 };

static ANABRANCH_DEVICE void wait_for(const Grid& grid, const u64* flag, u64 value) {
    for (u32 looks = 1; flag_load_for_wait(grid, flag) != value; ++looks) grid.relax(looks);
}

// Message passing: every thread writes its word, thread 0 the flag.
ANABRANCH_KERNEL(litmus_send, LitmusArgs, 64) {
    remote_store(grid, args.data + grid.thread, u64(grid.thread + 1));
    if (args.mode == WHOLE) block_release_system(grid);
    if (args.mode == NO_RELEASE) grid.block_barrier();
    if (args.mode == ONE_THREAD_RELEASES) {
        grid.block_barrier();
        if (grid.thread == 0) fence_release_system(grid);
    }
    if (args.mode == DEVICE_SCOPE) {
        fence_release_device(grid);
        grid.block_barrier();
        if (grid.thread == 0) fence_release_device(grid);
    }
    if (grid.thread == 0) flag_store(grid, args.flags, u64(1));
}
ANABRANCH_KERNEL(litmus_receive, LitmusArgs, 64) {
    // Read before, so that there is an old value to keep.
    u64 before = (args.mode & LATE) != 0 ? 0 : remote_load(grid, args.data + grid.thread);
    if (grid.thread == 0) {
        wait_for(grid, args.flags, 1);
        if ((args.mode & ~LATE) != NO_ACQUIRE) fence_acquire_system(grid);
    }
    grid.block_barrier();
    u64 after = remote_load(grid, args.data + grid.thread);
    private_store(grid, args.out + grid.thread, after | (before << 32));
}

// Two steps: the first tells the second, of the same device, which tells the third, of another.
ANABRANCH_KERNEL(litmus_relay_first, LitmusArgs, 64) {
    if (grid.thread != 0) return;
    remote_store(grid, args.data, u64(7));
    if (args.mode == DEVICE_SCOPE) {
        fence_release_device(grid);
    } else {
        fence_release_system(grid);
    }
    flag_store(grid, args.flags, u64(1));
}
ANABRANCH_KERNEL(litmus_relay_second, LitmusArgs, 64) {
    if (grid.thread != 0) return;
    wait_for(grid, args.flags, 1);
    fence_acquire_device(grid);
    fence_release_system(grid);
    flag_store(grid, args.flags + 8, u64(1));
}
ANABRANCH_KERNEL(litmus_relay_third, LitmusArgs, 64) {
    if (grid.thread != 0) return;
    wait_for(grid, args.flags + 8, 1);
    fence_acquire_system(grid);
    private_store(grid, args.out, remote_load(grid, args.data));
}

// Load buffering: each side reads its flag and then stores the other's.
ANABRANCH_KERNEL(litmus_load_then_store, LitmusArgs, 64) {
    if (grid.thread != 0) return;
    u64 seen = flag_load(grid, args.flags + args.me);
    flag_store(grid, args.flags + (1 - args.me), u64(1));
    private_store(grid, args.out, seen);
}

// 2+2W: each side stores 1 to its word, then 2 to the other's.
ANABRANCH_KERNEL(litmus_two_words, LitmusArgs, 64) {
    if (grid.thread != 0) return;
    flag_store(grid, args.flags + args.me, u64(1));
    if (args.mode == WHOLE) fence_release_system(grid);
    flag_store(grid, args.flags + (1 - args.me), u64(2));
}

// Store buffering: each side stores its flag and reads the other's.
ANABRANCH_KERNEL(litmus_cross, LitmusArgs, 64) {
    if (grid.thread != 0) return;
    flag_store(grid, args.flags + args.me, u64(1));
    if (args.mode == WHOLE) {
        fence_release_system(grid);
        fence_acquire_system(grid);
    }
    private_store(grid, args.out, flag_load(grid, args.flags + (1 - args.me)));
}

// Flag in data: {value, flag} in one word of 8 bytes needs no fence.
ANABRANCH_KERNEL(litmus_pack, LitmusArgs, 64) {
    if (grid.thread == 0) remote_store(grid, args.data, (u64(77) << 32) | 1);
}
ANABRANCH_KERNEL(litmus_unpack, LitmusArgs, 64) {
    if (grid.thread != 0) return;
    u64 word = 0;
    for (u32 looks = 1; (static_cast<u32>(word = remote_load(grid, args.data))) != 1; ++looks) grid.relax(looks);
    private_store(grid, args.out, word >> 32);
}
// The same with 16 bytes: the halves may come apart.
ANABRANCH_KERNEL(litmus_pack_wide, LitmusArgs, 64) {
    if (grid.thread == 0) remote_store(grid, reinterpret_cast<Vec16*>(args.data), Vec16{{1, 1, 1, 1}});
}
ANABRANCH_KERNEL(litmus_unpack_wide, LitmusArgs, 64) {
    if (grid.thread != 0) return;
    Vec16 v = {{0, 0, 0, 0}};
    for (u32 looks = 1; v.word[0] == 0 && v.word[2] == 0; ++looks) {
        v = remote_load(grid, reinterpret_cast<const Vec16*>(args.data));
        grid.relax(looks);
    }
    private_store(grid, args.out, u64(v.word[0]) | u64(v.word[1]) << 8 | u64(v.word[2]) << 16 | u64(v.word[3]) << 24);
}

// Independent reads of independent writes: writers 0 and 1, readers in opposite order.
ANABRANCH_KERNEL(litmus_write_one, LitmusArgs, 64) {
    if (grid.thread == 0) flag_store(grid, args.flags + args.me, u64(1));
}
ANABRANCH_KERNEL(litmus_read_two, LitmusArgs, 64) {
    if (grid.thread != 0) return;
    u64 first = flag_load(grid, args.flags + args.me);
    if (args.mode != NO_ACQUIRE) fence_acquire_system(grid);
    u64 second = flag_load(grid, args.flags + (1 - args.me));
    private_store(grid, args.out, first | second << 1);
}

// Coherence: what one word held is never seen to go back.
ANABRANCH_KERNEL(litmus_count_up, LitmusArgs, 64) {
    if (grid.thread != 0) return;
    for (u64 i = 1; i <= 5; ++i) remote_store(grid, args.data, i);
}
ANABRANCH_KERNEL(litmus_watch, LitmusArgs, 64) {
    if (grid.thread != 0) return;
    u64 last = 0;
    u64 back = 0;
    for (u32 i = 0; i < 12; ++i) {
        u64 now = remote_load(grid, args.data);
        if (now < last) back = 1;
        last = now;
    }
    private_store(grid, args.out, back);
}

// Between blocks of one device: the last to arrive reads what the others wrote.
ANABRANCH_KERNEL(litmus_arrive, LitmusArgs, 64) {
    // Not by the wave of thread 0, which counts the block.
    if (grid.thread + 1 == grid.block_threads) private_store(grid, args.out + grid.block, u64(grid.block + 1));
    if (arrive_is_last(grid, args.counter, grid.grid_blocks) && grid.thread == 0) {
        u64 sum = 0;
        for (u32 i = 0; i < grid.grid_blocks; ++i) sum += private_load(grid, args.out + i);
        private_store(grid, args.out + grid.grid_blocks, sum);
    }
}

ANABRANCH_KERNEL(litmus_add, LitmusArgs, 64) {
    fetch_add_system(grid, args.data, u64(1));
}

// A wait that never ends.
ANABRANCH_KERNEL(litmus_wait, LitmusArgs, 64) {
    if (grid.thread != 0) return;
    WaitContext wait = wait_context(grid, args.control, 9, 0, 0, 1);
    u64 seen = 0;
    u64 status = wait_until(grid, wait, 3, 1, 1, args.flags, [](u64 value) { return value >= 1; }, seen);
    private_store(grid, args.out, status);
}

ANABRANCH_KERNEL(litmus_private, LitmusArgs, 64) {
    private_store(grid, args.data, u64(1));
}
