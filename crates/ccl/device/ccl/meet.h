// Meetings of a channel, and the staging whose halves they free. channel.h says what a channel is.
//
// Meetings. Meeting m: every member releases what it did, stores m at every member, and waits until all have stored m there.
// - Who has left meeting m knows that every member has come to it, and sees what each did before it came.
// - A word has one writer, and may go on before it was looked at, by one: the writer cannot leave m + 1 before this rank has
//   come there, which it does after it has left m. So "m or m + 1" is all that can be seen after m - 1, and two bits are enough.
// - The value beside m lies in place m % 2 and is read before the reader comes to m + 1. Its writer overwrites it on its way
//   to m + 2, when it has left m + 1, so when all readers had come there.
// Whatever ends with a meeting may also end the kernel: the next launch's first meeting is this one's successor.
//
// Staging. Use s writes half s % 2 of the peers' staging, meets at least once, and reads the own half s % 2, all of it before it
// comes to the next meeting. The next to write that half at this member are those in use s + 2: they have left the meetings of
// use s + 1, to which this rank came after it had read. Between two uses each half has one role: s % 2 is read, the other
// written. That holds across kernels and whatever the meetings in between were for, since every use counts.
#pragma once

#include "ccl/channel.h"
#include "shmem/scope.h"

namespace ccl {

// Where the words of a meeting are, for every source: {meets, value}.
static constexpr u32 MEET_STRIDE = 64;

ANABRANCH_DEVICE u64* meet_word(const CommView& comm, u64 base, u32 channel, u32 source) {
    u64 index = static_cast<u64>(channel) * comm.team.size + source;
    return reinterpret_cast<u64*>(base + comm.flags + index * MEET_STRIDE);
}

// Whether a counter in a flag has come to `target`, also across its wrap.
ANABRANCH_DEVICE bool meets_reached(u64 seen, u64 target) {
    static constexpr u32 SHIFT = 64 - CCL_EPOCH_BITS;
    i64 ahead = static_cast<i64>((seen - target) << SHIFT) >> SHIFT;
    return ahead >= 0;
}

// Where the value of meeting `number` lies, behind the word.
ANABRANCH_DEVICE u64 value_place(u64 number) { return 1 + number % 2; }

// Every thread of the block. All members' channels meet: what each block has stored before, here and at peers, and what came
// before its kernel, is visible to every member's block after, and what it has read may be overwritten.
ANABRANCH_DEVICE void meet(const Grid& grid, const CommView& comm, Channel& channel) {
    u32 size = comm.team.size;
    channel.meets += 1;
    u64 number = channel.meets & EPOCH_MASK;
    shmem::Block::release_for_first(grid, size);
    for (u32 i = grid.thread; i < size && !channel.dead; i += grid.block_threads) {
        u32 peer = rotated(comm, i);
        flag_store(grid, meet_word(comm, member_base(grid, comm, peer), channel.index, comm.team.rank), number);
    }
    u64 own = member_base(grid, comm, comm.team.rank);
    for (u32 peer = grid.thread; peer < size && !channel.dead; peer += grid.block_threads) {
        const u64* word = meet_word(comm, own, channel.index, peer);
        u64 seen = 0;
        WaitStatus status = wait_until(
            grid, channel.wait, PHASE_MEET, peer, number, word,
            [number](u64 now) { return meets_reached(now, number); }, seen);
        if (status != WAIT_OK) channel_fail(grid, FAULT_IN_MEETING);
        acquire_after_wait(grid);
    }
    grid.block_barrier();
    channel_look(grid, channel, FAULT_IN_MEETING);
}

// A meeting at which `value(peer)` is sent to each peer, which reads it with `value_from` before its next meeting: it lies beside the
// word in one of two places, and is overwritten two meetings later. It costs a round trip more, as the release waits for it.
template <class Value>
ANABRANCH_DEVICE void meet_with_values(const Grid& grid, const CommView& comm, Channel& channel, Value value) {
    for (u32 i = grid.thread; i < comm.team.size && !channel.dead; i += grid.block_threads) {
        u32 peer = rotated(comm, i);
        u64* word = meet_word(comm, member_base(grid, comm, peer), channel.index, comm.team.rank);
        remote_store(grid, word + value_place(channel.meets + 1), value(peer));
    }
    meet(grid, comm, channel);
}

// What `source` sent at the last meeting.
ANABRANCH_DEVICE u64 value_from(const Grid& grid, const CommView& comm, const Channel& channel, u32 source) {
    u64 own = member_base(grid, comm, comm.team.rank);
    return heap_load(grid, meet_word(comm, own, channel.index, source) + value_place(channel.meets));
}

// The next use of the staging: which half.
ANABRANCH_DEVICE u64 next_half(Channel& channel) {
    channel.uses += 1;
    return channel.uses % 2;
}

// One source's part of one half of a channel's staging at the member whose heap starts at `base`.
ANABRANCH_DEVICE u64 staging_of(const CommView& comm, u64 base, const Channel& channel, u64 half, u32 source) {
    u64 index = (static_cast<u64>(channel.index) * 2 + half) * comm.team.size + source;
    return base + comm.staging + index * comm.staging_bytes;
}

}  // namespace ccl
