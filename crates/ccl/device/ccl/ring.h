// The ring: each member gives chunks to the next one in group order and takes them from the one before, through slots in the
// taker's staging. Nothing but the meeting with which a call begins goes to anybody else.
//
// A lane has at each member as many slots as there are members: the parts of one half of its staging. Chunk c of a link in a call lies
// in slot c % slots. `arrived`, at the taker, counts the chunks that were given; `consumed`, at the giver, those that were taken.
// Both stand behind the words of meetings, in the line of their one writer. They go on from launch to launch: all members
// advance a lane's `chunks` by the same number in each call, at least by the chunks of any link, and every link counts from there. So
// they have 64 bits, are never reset, and what an earlier call left is below what a later one waits for.
//
// Why a slot may be written. A call is one use of the staging (meet.h), whose meeting comes before its first write: at the taker the
// half was read by the use before the last one, behind which it came to this meeting. Whoever writes that half next is in the
// use after the next, and has left a meeting of the next, to which the taker came behind this call. Within the call, the
// giver writes chunk c from number `slots` on when `consumed` says that c - slots was taken: the taker counts behind a release of
// its reads.
// Why a slot may be read. The taker reads chunk c when `arrived` says that it was given: behind a release of the slot.
// Why nobody waits in a circle. A member goes through its steps in an order that depends on nothing that happens; a step waits
// for one chunk and for one place at most. The kernels say why what it waits for is earlier in one order of all steps.
#pragma once

#include "ccl/meet.h"
#include "ccl/place.h"

namespace ccl {

// Words of a member's line (meet.h), behind its meetings and their values: chunks that it gave to this rank, and that it took.
static constexpr u32 RING_ARRIVED = 3;
static constexpr u32 RING_CONSUMED = 4;

// One call on one lane.
struct Ring {
    u64 base;    // chunks that were counted before; known to thread 0
    u64 given;   // ... and in this call, to the next member
    u64 taken;   // ... from the one before
    u64 half;    // of the staging
    u32 next;
    u32 before;
};

ANABRANCH_DEVICE u64* ring_word(const Channel& channel, u64 base, const Lane& lane, u32 source, u32 word) {
    return meet_word(channel, base, lane.index, source) + word;
}

// Every thread. All members meet.
ANABRANCH_DEVICE Ring ring_open(const Grid& grid, const Channel& channel, Lane& lane) {
    u64 base = grid.thread == 0 ? heap_load(grid, &channel.lanes[lane.index].chunks) : 0;
    meet(grid, channel, lane);
    return Ring{base, 0, 0, next_half(lane), rotated(channel, 1), rotated(channel, channel.team.size - 1)};
}

// Every thread, last of all; `chunks` is equal on all members, and no link has had more.
ANABRANCH_DEVICE void ring_close(const Grid& grid, const Channel& channel, const Lane& lane, const Ring& ring, u64 chunks) {
    if (grid.thread != 0) return;
    heap_store(grid, &channel.lanes[lane.index].chunks, ring.base + chunks);
}

// Thread 0: waits for a chunk to take, and for a slot for one to give. False after a fault.
ANABRANCH_DEVICE bool ring_wait(const Grid& grid, const Channel& channel, const Lane& lane, const Ring& ring, bool takes,
                                bool gives) {
    u64 slots = channel.team.size, seen = 0;
    WaitStatus status = WAIT_OK;
    if (takes) {
        u64 target = ring.base + ring.taken + 1;
        const u64* word = ring_word(channel, channel.heap, lane, ring.before, RING_ARRIVED);
        status = wait_until(
            grid, lane.wait, PHASE_RING_CHUNK, ring.before, target, word,
            [target](u64 now) { return has_reached(now, target); }, seen);
    }
    if (gives && ring.given >= slots && status == WAIT_OK) {
        u64 target = ring.base + ring.given + 1 - slots;
        const u64* word = ring_word(channel, channel.heap, lane, ring.next, RING_CONSUMED);
        status = wait_until(
            grid, lane.wait, PHASE_RING_ROOM, ring.next, target, word,
            [target](u64 now) { return has_reached(now, target); }, seen);
    }
    acquire_after_wait(grid);
    return status == WAIT_OK;
}

// Thread 0: counts the chunk that was taken, and the one that was given.
ANABRANCH_DEVICE void ring_tell_taken(const Grid& grid, const Channel& channel, const Lane& lane, const Ring& ring) {
    u64 before = member_base(grid, channel, ring.before);
    flag_store(grid, ring_word(channel, before, lane, channel.team.rank, RING_CONSUMED), ring.base + ring.taken + 1);
}
ANABRANCH_DEVICE void ring_tell_given(const Grid& grid, const Channel& channel, const Lane& lane, const Ring& ring) {
    u64 next = member_base(grid, channel, ring.next);
    flag_store(grid, ring_word(channel, next, lane, channel.team.rank, RING_ARRIVED), ring.base + ring.given + 1);
}

// Every thread: a step, which takes a chunk, gives one, or both. `work(from, to)` moves it: `from` is the slot of the chunk that is
// taken, `to` that of the chunk that is given. Behind a fault it does nothing, and the lane is dead. A fault has a word of its own:
// slower threads may still be looking at that of the meeting before.
template <class Work>
ANABRANCH_DEVICE void ring_step(const Grid& grid, const Channel& channel, Lane& lane, Ring& ring, bool takes, bool gives,
                                Work work) {
    if (grid.thread == 0 && !ring_wait(grid, channel, lane, ring, takes, gives)) lane_fail(grid, FAULT_IN_EPOCH);
    grid.block_barrier();
    lane_look(grid, lane, FAULT_IN_EPOCH);
    u32 size = channel.team.size;
    u64 from = staging_of(channel, channel.heap, lane, ring.half, static_cast<u32>(ring.taken % size));
    u64 next = member_base(grid, channel, ring.next);
    u64 to = staging_of(channel, next, lane, ring.half, static_cast<u32>(ring.given % size));
    bool tells = grid.thread == 0 && !lane.dead;
    if (!lane.dead) work(from, to);
    block_release_system(grid);
    if (tells && takes) ring_tell_taken(grid, channel, lane, ring);
    if (tells && gives) ring_tell_given(grid, channel, lane, ring);
    ring.taken += takes ? 1 : 0;
    ring.given += gives ? 1 : 0;
}

}  // namespace ccl
