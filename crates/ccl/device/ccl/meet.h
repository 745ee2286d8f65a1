// Meetings of a lane, and the staging whose halves they free. lane.h says what a lane is.
//
// Meetings. Meeting m: every member releases what it did, stores m at every member, and waits until all have stored m there.
// - Who has left meeting m knows that every member has come to it, and sees what each did before it came.
// - A word has one writer, and may go on before it was looked at, by one: the writer cannot leave m + 1 before this rank has
//   come there, which it does after it has left m. So "m or m + 1" is all that can be seen behind m - 1, and two bits tell.
// - The value beside m lies in place m % 2 and is read before the reader comes to m + 1. Its writer overwrites it on its way
//   to m + 2, when it has left m + 1, so when all readers had come there.
// Whatever ends with a meeting may also end the kernel: the next launch's first meeting is this one's successor.
//
// Staging. Use s writes half s % 2 of the peers' staging, meets at least once, and reads the own half s % 2, all of it before it
// comes to the next meeting. The next to write that half at this member are those in use s + 2: they have left the meetings of
// use s + 1, to which this rank came after it had read. Between two uses each half has one role: s % 2 is read, the other
// written. That holds across kernels and whatever the meetings in between were for, since every use counts.
#pragma once

#include "ccl/lane.h"
#include "shmem/scope.h"

namespace ccl {

// Where the words of a meeting are, for every source: {meets, value}.
static constexpr u32 MEET_STRIDE = 64;

ANABRANCH_DEVICE u64* meet_word(const Channel& channel, u64 base, u32 lane, u32 source) {
    u64 index = static_cast<u64>(lane) * channel.team.size + source;
    return reinterpret_cast<u64*>(base + channel.flags + index * MEET_STRIDE);
}

// Whether a counter in a flag has come to `target`, also across its wrap.
ANABRANCH_DEVICE bool meets_reached(u64 seen, u64 target) {
    static constexpr u32 SHIFT = 64 - CCL_EPOCH_BITS;
    i64 ahead = static_cast<i64>((seen - target) << SHIFT) >> SHIFT;
    return ahead >= 0;
}

// Where the value of meeting `number` lies, behind the word.
ANABRANCH_DEVICE u64 told_place(u64 number) { return 1 + number % 2; }

// Every thread of the block. All members' lanes meet: what each block has stored before, here and at peers, and what came
// before its kernel, is visible to every member's block after, and what it has read may be overwritten.
ANABRANCH_DEVICE void meet(const Grid& grid, const Channel& channel, Lane& lane) {
    u32 size = channel.team.size;
    lane.meets += 1;
    u64 number = lane.meets & EPOCH_MASK;
    shmem::Block::release_for_first(grid, size);
    for (u32 i = grid.thread; i < size && !lane.dead; i += grid.block_threads) {
        u32 peer = rotated(channel, i);
        flag_store(grid, meet_word(channel, member_base(grid, channel, peer), lane.index, channel.team.rank), number);
    }
    u64 own = member_base(grid, channel, channel.team.rank);
    for (u32 peer = grid.thread; peer < size && !lane.dead; peer += grid.block_threads) {
        const u64* word = meet_word(channel, own, lane.index, peer);
        u64 seen = 0;
        WaitStatus status = wait_until(
            grid, lane.wait, PHASE_MEET, peer, number, word,
            [number](u64 now) { return meets_reached(now, number); }, seen);
        if (status != WAIT_OK) lane_fail(grid, FAULT_IN_MEETING);
        acquire_after_wait(grid);
    }
    grid.block_barrier();
    lane_look(grid, lane, FAULT_IN_MEETING);
}

// A meeting at which `value(peer)` is told to each peer, which reads it with `told` before its next meeting: it lies beside the
// word in one of two places, and is overwritten two meetings later. It costs a round trip more, as the release waits for it.
template <class Value>
ANABRANCH_DEVICE void meet_telling(const Grid& grid, const Channel& channel, Lane& lane, Value value) {
    for (u32 i = grid.thread; i < channel.team.size && !lane.dead; i += grid.block_threads) {
        u32 peer = rotated(channel, i);
        u64* word = meet_word(channel, member_base(grid, channel, peer), lane.index, channel.team.rank);
        remote_store(grid, word + told_place(lane.meets + 1), value(peer));
    }
    meet(grid, channel, lane);
}

// What `source` told at the meeting that was last.
ANABRANCH_DEVICE u64 told(const Grid& grid, const Channel& channel, const Lane& lane, u32 source) {
    u64 own = member_base(grid, channel, channel.team.rank);
    return heap_load(grid, meet_word(channel, own, lane.index, source) + told_place(lane.meets));
}

// The next use of the staging: which half.
ANABRANCH_DEVICE u64 next_half(Lane& lane) {
    lane.uses += 1;
    return lane.uses % 2;
}

// One source's part of one half of a lane's staging at the member whose heap starts at `base`.
ANABRANCH_DEVICE u64 staging_of(const Channel& channel, u64 base, const Lane& lane, u64 half, u32 source) {
    u64 index = (static_cast<u64>(lane.index) * 2 + half) * channel.team.size + source;
    return base + channel.staging + index * channel.staging_bytes;
}

}  // namespace ccl
