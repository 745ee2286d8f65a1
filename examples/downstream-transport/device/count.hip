// Every rank counts up to `count` in a word of each peer, by parcels, and waits until the peers have done so in its own words. One thread.
#include "parcels/parcel.h"

static constexpr u32 PHASE_COUNTED = 0x7002;

ANABRANCH_KERNEL(parcels_count, CountArgs, 1) {
    WaitContext wait = wait_context(grid, args.control, args.operation, args.group, args.rank, args.count);
    for (u64 value = 1; value <= args.count; ++value) {
        for (u32 peer = 0; peer < args.ranks; ++peer) {
            if (peer == args.rank) continue;
            u64* mailbox = private_load(grid, args.mailboxes + peer);
            u64 offset = args.offset + args.rank * 8;
            if (parcels::post(grid, wait, mailbox, peer, offset, value) != WAIT_OK) return;
        }
    }
    for (u32 peer = 0; peer < args.ranks; ++peer) {
        u64 seen = 0;
        u64 count = args.count;
        if (peer == args.rank) continue;
        if (wait_until(
                grid, wait, PHASE_COUNTED, peer, count, args.words + peer,
                [count](u64 now) { return has_reached(now, count); }, seen) != WAIT_OK) return;
    }
    acquire_after_wait(grid);
}
