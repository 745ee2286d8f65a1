// What stands around a team barrier in its scenario: every rank writes, all meet, every rank reads every rank's words.
#include "anabranch/prelude.h"

ANABRANCH_KERNEL(barrier_write, BarrierAroundArgs, 64) {
    u64 own = private_load(grid, args.team.peer_bases + args.team.rank);
    heap_store(grid, reinterpret_cast<u64*>(own + args.data) + grid.thread, args.value);
}

ANABRANCH_KERNEL(barrier_read, BarrierAroundArgs, 64) {
    for (u32 peer = 0; peer < args.team.size; ++peer) {
        u64 base = private_load(grid, args.team.peer_bases + peer);
        u64 seen = remote_load(grid, reinterpret_cast<const u64*>(base + args.data) + grid.thread);
        if (seen != args.value) fetch_add_device(grid, args.wrong, 1u);
    }
}
