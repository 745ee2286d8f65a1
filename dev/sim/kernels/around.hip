// What stands around operations in the order of a stream: every rank writes words into its heap or into its peers', and every
// rank compares what it finds.
#include "anabranch/prelude.h"

ANABRANCH_KERNEL(anabranch_sim_write, AroundArgs, 256) {
    u64 own = private_load(grid, args.team.peer_bases + args.team.rank);
    heap_store(grid, reinterpret_cast<u64*>(own + args.data) + grid.thread, args.value);
}

// Reads the words of every rank.
ANABRANCH_KERNEL(anabranch_sim_read, AroundArgs, 256) {
    for (u32 peer = 0; peer < args.team.size; ++peer) {
        u64 base = private_load(grid, args.team.peer_bases + peer);
        u64 seen = remote_load(grid, reinterpret_cast<const u64*>(base + args.data) + grid.thread);
        if (seen != args.value) fetch_add_device(grid, args.wrong, 1u);
    }
}

// Writes into the heap of rank `peer`.
ANABRANCH_KERNEL(anabranch_sim_push, AroundArgs, 256) {
    u64 base = private_load(grid, args.team.peer_bases + args.peer);
    remote_store(grid, reinterpret_cast<u64*>(base + args.data) + grid.thread, args.value);
}

// Reads the own words, which a peer has written.
ANABRANCH_KERNEL(anabranch_sim_look, AroundArgs, 256) {
    u64 own = private_load(grid, args.team.peer_bases + args.team.rank);
    u64 seen = heap_load(grid, reinterpret_cast<const u64*>(own + args.data) + grid.thread);
    if (seen != args.value) fetch_add_device(grid, args.wrong, 1u);
}
