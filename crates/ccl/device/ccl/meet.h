// `meet`, the barrier of a channel over all members, and the staging whose halves it frees. channel.h defines channels.
//
// Barriers. Barrier m: every member releases its stores, stores m at every member, and waits until all have stored m at it.
// - A member that has left barrier m knows that every member has entered it, and sees what each did before.
// - A flag has one writer, and may advance by one before it is read: the writer cannot leave m + 1 before this rank has entered m + 1,
//   which it does after it has left m. So only m or m + 1 can be seen after m - 1, and two bits are enough.
// - A barrier may send a value (`meet_with_values`). That of barrier m is in word 1 + m % 2 after the flag, and is read before the reader
//   enters m + 1. Its writer overwrites it before m + 2, after it has left m + 1, so after all readers have entered m + 1.
//
// A kernel may end after any barrier: the first barrier of the next launch is the successor.
//
// Staging. Use s writes half s % 2 of the staging of peers, passes at least one barrier, and reads its own half s % 2 before it enters the
// next barrier. The next writes to that half at this member are of use s + 2: the writers have left the barriers of use s + 1, which this
// rank entered after its reads. Between two uses each half has one role: s % 2 is read, the other written. That holds across kernels and
// for any barriers in between, since every use counts.
#pragma once

#include "ccl/channel.h"
#include "shmem/scope.h"

namespace ccl {

// Bytes between the flags of two sources, each {barrier number, two values}.
static constexpr u32 MEET_STRIDE = 64;

ANABRANCH_DEVICE u64* meet_word(const CommView& comm, u64 base, u32 channel, u32 source) {
    u64 index = static_cast<u64>(channel) * comm.team.size + source;
    return reinterpret_cast<u64*>(base + comm.flags + index * MEET_STRIDE);
}

// Whether the counter in a flag has reached `target`, also across its wrap.
ANABRANCH_DEVICE bool meets_reached(u64 seen, u64 target) {
    static constexpr u32 SHIFT = 64 - CCL_EPOCH_BITS;
    i64 ahead = static_cast<i64>((seen - target) << SHIFT) >> SHIFT;
    return ahead >= 0;
}

// The place of the value of barrier `number`, after the flag.
ANABRANCH_DEVICE u64 value_place(u64 number) { return 1 + number % 2; }

// The flags of the next barrier. Every thread of the block, behind what they publish.
ANABRANCH_DEVICE void exchange_flags(const Grid& grid, const CommView& comm, Channel& channel) {
    u32 size = comm.team.size;
    channel.meets += 1;
    u64 number = channel.meets & EPOCH_MASK;
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

// Every thread of the block. The barrier of this channel over all members: what each block has stored before, here and at peers, and what
// preceded its kernel, is visible to the block of every member afterwards, and what it has read may be overwritten.
ANABRANCH_DEVICE void meet(const Grid& grid, const CommView& comm, Channel& channel) {
    shmem::Block::release_for_first(grid, comm.team.size);
    exchange_flags(grid, comm, channel);
}

// The same for a kernel that has stored nothing yet and read nothing that others will overwrite: what preceded the kernel in the memory
// of its own device is visible afterwards, and may be overwritten.
ANABRANCH_DEVICE void meet_first(const Grid& grid, const CommView& comm, Channel& channel) {
    offer_earlier_work(grid);
    exchange_flags(grid, comm, channel);
}

// A barrier that sends `value(peer)` to each peer, which reads it with `value_from` before its next barrier: it is beside the flag in one
// of two places, and overwritten two barriers later. It takes one more round trip, as the release waits for it.
template <class Value>
ANABRANCH_DEVICE void meet_with_values(const Grid& grid, const CommView& comm, Channel& channel, Value value) {
    for (u32 i = grid.thread; i < comm.team.size && !channel.dead; i += grid.block_threads) {
        u32 peer = rotated(comm, i);
        u64* word = meet_word(comm, member_base(grid, comm, peer), channel.index, comm.team.rank);
        remote_store(grid, word + value_place(channel.meets + 1), value(peer));
    }
    meet(grid, comm, channel);
}

// The value that `source` sent with the last barrier.
ANABRANCH_DEVICE u64 value_from(const Grid& grid, const CommView& comm, const Channel& channel, u32 source) {
    u64 own = member_base(grid, comm, comm.team.rank);
    return heap_load(grid, meet_word(comm, own, channel.index, source) + value_place(channel.meets));
}

// Starts the next use of the staging, and returns its half.
ANABRANCH_DEVICE u64 next_half(Channel& channel) {
    channel.uses += 1;
    return channel.uses % 2;
}

// The part of one source in one half of the staging of a channel, at the member whose heap is at `base`.
ANABRANCH_DEVICE u64 staging_of(const CommView& comm, u64 base, const Channel& channel, u64 half, u32 source) {
    u64 index = (static_cast<u64>(channel.index) * 2 + half) * comm.team.size + source;
    return base + comm.staging + index * comm.staging_bytes;
}

}  // namespace ccl
