// Parcels: single words for peers whose memory no load or store reaches. A kernel puts them into a mailbox in pinned host memory, and a
// thread of the host carries them (../src/parcels.rs). One thread of the rank posts to a mailbox at a time.
#pragma once

#include "anabranch/prelude.h"

namespace parcels {

// A mailbox: how many parcels were posted, how many were carried, then slots of two words, offset and value.
static constexpr u64 SLOTS = 8;
// The phase in fault records: no free slot of the mailbox within the deadline.
static constexpr u32 PHASE_FULL = 0x7001;

// Posts `value` for the word at `offset` of the peer's heap. Parcels of one mailbox arrive in order.
//
// A slot is written again only when the count of carried parcels includes its last one; the release puts the slot before the count of
// posted ones.
ANABRANCH_DEVICE WaitStatus post(const Grid& grid, const WaitContext& wait, u64* mailbox, u32 peer, u64 offset,
                                 u64 value) {
    u64 position = flag_load(grid, mailbox);
    u64 seen = 0;
    WaitStatus free = wait_until(
        grid, wait, PHASE_FULL, peer, position + 1 - SLOTS, mailbox + 1,
        [position](u64 carried) { return has_reached(carried + SLOTS, position + 1); }, seen);
    if (free != WAIT_OK) return free;
    u64* slot = mailbox + 2 + position % SLOTS * 2;
    remote_store(grid, slot, offset);
    remote_store(grid, slot + 1, value);
    fence_release_system(grid);
    flag_store(grid, mailbox, position + 1);
    return WAIT_OK;
}

}  // namespace parcels
