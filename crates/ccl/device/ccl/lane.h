// Lanes: what one block of a collective owns, at every rank. Lane b of a channel is block b of each member's kernel; lanes
// share nothing, so that a launch with fewer blocks leaves the others' epochs behind nowhere.
//
// A lane has three counters in its rank's own memory, which all members advance alike, since all launch the same plans in the
// same order: `epoch` counts uses of its packets, `meets` its meetings, `uses` those of its staging. They are read when the
// kernel begins and written when it ends, so a replayed graph is just another epoch.
//
// Meetings. Meet number m: every member stores m (and a value) at every member, then waits until all have stored m. A word
// may be overwritten before it was looked at: its writer is then at m + 1 at the most, which it cannot pass before this rank
// arrives there, and "at least m" holds for m + 1.
//
// Staging. Use number s writes half s % 2 of the peers' staging, meets at least once, and then reads its own half s % 2 before
// the next meeting. Why half s % 2 is free when use s + 2 writes it: the writer has passed the meetings of use s + 1, to which
// every peer came after it had read what use s had written.
//
// Packets: packets.h.
#pragma once

#include "anabranch/prelude.h"
#include "shmem/scope.h"

namespace ccl {

// Phases of fault records.
enum Phase : u32 { PHASE_PACKETS = 1, PHASE_MEET = 2, PHASE_FINGERPRINT = 3, PHASE_OVERLAP = 4 };

// Bits of an epoch that flags carry. Fewer in tests, so that they wrap.
#if !defined(CCL_EPOCH_BITS)
#define CCL_EPOCH_BITS 32
#endif
static_assert(CCL_EPOCH_BITS >= 2 && CCL_EPOCH_BITS <= 32, "a packet has 32 bits for its flag");
static constexpr u32 EPOCH_MASK = static_cast<u32>((u64(1) << CCL_EPOCH_BITS) - 1);

struct Lane {
    WaitContext wait;
    u64 epoch;
    u64 meets;
    u64 uses;
    u32 index;
    bool dead;  // the world is poisoned, or a meeting failed; the same in every thread of the block
};

// Where the words of a meeting are, for every source: {meets, value}.
static constexpr u32 MEET_STRIDE = 64;
// Local memory: the counters, whether a thread's wait failed, then where every member's heap, input and output are.
static constexpr u32 LOCAL_EPOCH = 0;
static constexpr u32 LOCAL_MEETS = 8;
static constexpr u32 LOCAL_USES = 16;
static constexpr u32 LOCAL_FAULT = 24;
static constexpr u32 LOCAL_TABLES = 32;

ANABRANCH_DEVICE u64 table_entry(const Grid& grid, const Channel& channel, u32 table, u32 member) {
    return grid.local_load<u64>(LOCAL_TABLES + (table * channel.team.size + member) * 8);
}
// Where a member's heap starts.
ANABRANCH_DEVICE u64 member_base(const Grid& grid, const Channel& channel, u32 member) {
    return table_entry(grid, channel, 0, member);
}
// Where a member's input and output are. Of a buffer that peers do not reach, only this rank's own may be asked for.
ANABRANCH_DEVICE u64 input_of(const Grid& grid, const Channel& channel, u32 member) {
    return table_entry(grid, channel, 1, member);
}
ANABRANCH_DEVICE u64 output_of(const Grid& grid, const Channel& channel, u32 member) {
    return table_entry(grid, channel, 2, member);
}

// Members counted from this one on, so that not all begin with the same peer.
// `by` is at most the number of members.
ANABRANCH_DEVICE u32 rotated(const Channel& channel, u32 by) {
    u32 member = channel.team.rank + by;
    return member < channel.team.size ? member : member - channel.team.size;
}

ANABRANCH_DEVICE u64 place_at(const Grid& grid, const Place& place, u32 member) {
    return place.bases == nullptr ? place.offset : private_load(grid, place.bases + member) + place.offset;
}

// Every thread of the block, first of all. All loads are under way before the first is used: each takes longer than a hop of
// the fastest collective leaves room for.
ANABRANCH_DEVICE Lane lane_open(const Grid& grid, const Channel& channel, const Place& input, const Place& output) {
    const LaneState* state = channel.lanes + grid.block;
    u64 kept[3] = {0, 0, 0};
    u64 poison = 0;
    if (grid.thread == 0) {
        kept[0] = private_load(grid, &state->epoch);
        kept[1] = private_load(grid, &state->meets);
        kept[2] = private_load(grid, &state->uses);
        poison = flag_load(grid, &channel.team.control->abort);
    }
    for (u32 member = grid.thread; member < channel.team.size; member += grid.block_threads) {
        u64 base = private_load(grid, channel.team.peer_bases + member);
        u64 from = place_at(grid, input, member);
        u64 to = place_at(grid, output, member);
        u32 at = LOCAL_TABLES + member * 8, table = channel.team.size * 8;
        grid.local_store<u64>(at, base);
        grid.local_store<u64>(at + table, from);
        grid.local_store<u64>(at + 2 * table, to);
    }
    if (grid.thread == 0) {
        grid.local_store<u64>(LOCAL_EPOCH, kept[0]);
        grid.local_store<u64>(LOCAL_MEETS, kept[1]);
        grid.local_store<u64>(LOCAL_USES, kept[2]);
        grid.local_store<u32>(LOCAL_FAULT, poison != ABORT_NONE ? 1u : 0u);
    }
    grid.block_barrier();
    u64 epoch = grid.local_load<u64>(LOCAL_EPOCH);
    u64 meets = grid.local_load<u64>(LOCAL_MEETS);
    WaitContext wait = wait_context(grid, channel.team.control, channel.operation, channel.team.group,
                                    channel.team.rank, maximum(epoch, meets));
    return Lane{wait, epoch, meets, grid.local_load<u64>(LOCAL_USES), grid.block, grid.local_load<u32>(LOCAL_FAULT) != 0};
}

// Every thread of the block, last of all. After a fault nobody reads the counters again.
ANABRANCH_DEVICE void lane_close(const Grid& grid, const Channel& channel, const Lane& lane) {
    grid.block_barrier();
    if (grid.thread != 0) return;
    LaneState* state = channel.lanes + lane.index;
    ANABRANCH_UNLESS(LANE_EPOCH_NOT_KEPT) private_store(grid, &state->epoch, lane.epoch);
    ANABRANCH_UNLESS(LANE_MEETS_NOT_KEPT) private_store(grid, &state->meets, lane.meets);
    ANABRANCH_UNLESS(LANE_USES_NOT_KEPT) private_store(grid, &state->uses, lane.uses);
}

// A wait of this thread failed. The block learns of it behind its next barrier.
ANABRANCH_DEVICE void lane_fail(const Grid& grid) { grid.local_store<u32>(LOCAL_FAULT, 1u); }

// Every thread, behind a block barrier.
ANABRANCH_DEVICE void lane_look(const Grid& grid, Lane& lane) {
    lane.dead = lane.dead || grid.local_load<u32>(LOCAL_FAULT) != 0;
}

ANABRANCH_DEVICE u64* meet_word(const Channel& channel, u64 base, u32 lane, u32 source) {
    u64 index = static_cast<u64>(lane) * channel.team.size + source;
    return reinterpret_cast<u64*>(base + channel.flags + index * MEET_STRIDE);
}

// Whether a counter in a flag has come to `target`, also across its wrap.
ANABRANCH_DEVICE bool meets_reached(u64 seen, u64 target) {
    static constexpr u32 SHIFT = 64 - CCL_EPOCH_BITS;
    i64 ahead = static_cast<i64>((seen - target) << SHIFT) >> SHIFT;
    return ahead >= (MUTANT == MUTANT_MEET_LOOSE ? -1 : 0);
}

// Every thread of the block. All members' lanes meet: what each block has stored before, here and at peers, and what came
// before its kernel, is visible to every member's block after.
ANABRANCH_DEVICE void meet(const Grid& grid, const Channel& channel, Lane& lane) {
    u32 size = channel.team.size;
    lane.meets += 1;
    u64 number = lane.meets & EPOCH_MASK;
    ANABRANCH_TWIN(MEET_FLAG_FIRST) grid.block_barrier();
    ANABRANCH_UNLESS(MEET_FLAG_FIRST) shmem::Block::release_for_first(grid, size);
    for (u32 i = grid.thread; i < size && !lane.dead; i += grid.block_threads) {
        u32 peer = rotated(channel, i);
        flag_store(grid, meet_word(channel, member_base(grid, channel, peer), lane.index, channel.team.rank), number);
    }
    ANABRANCH_TWIN(MEET_FLAG_FIRST) shmem::Block::release_for_first(grid, size);
    u64 own = member_base(grid, channel, channel.team.rank);
    for (u32 peer = grid.thread; peer < size && !lane.dead; peer += grid.block_threads) {
        const u64* word = meet_word(channel, own, lane.index, peer);
        u64 seen = 0;
        WaitStatus status = wait_until(
            grid, lane.wait, PHASE_MEET, peer, number, word,
            [number](u64 now) { return meets_reached(now, number); }, seen);
        if (status != WAIT_OK) lane_fail(grid);
        ANABRANCH_UNLESS(MEET_NO_ACQUIRE) acquire_after_wait(grid);
    }
    ANABRANCH_UNLESS(MEET_NO_BARRIER_AFTER) grid.block_barrier();
    lane_look(grid, lane);
}

// A meeting at which `value(peer)` is told to each peer, which reads it with `told` before its next meeting: it lies beside the
// word in one of two places, and is overwritten two meetings later. It costs a round trip more, as the release waits for it.
template <class Value>
ANABRANCH_DEVICE void meet_telling(const Grid& grid, const Channel& channel, Lane& lane, Value value) {
    for (u32 i = grid.thread; i < channel.team.size && !lane.dead; i += grid.block_threads) {
        u32 peer = rotated(channel, i);
        u64* word = meet_word(channel, member_base(grid, channel, peer), lane.index, channel.team.rank);
        remote_store(grid, word + 1 + (lane.meets + 1) % 2, value(peer));
    }
    meet(grid, channel, lane);
}

// What `source` told at the meeting that was last.
ANABRANCH_DEVICE u64 told(const Grid& grid, const Channel& channel, const Lane& lane, u32 source) {
    u64 own = member_base(grid, channel, channel.team.rank);
    return heap_load(grid, meet_word(channel, own, lane.index, source) + 1 + lane.meets % 2);
}

// The next use of the staging: which half.
ANABRANCH_DEVICE u64 next_half(Lane& lane) {
    lane.uses += 1;
    return MUTANT == MUTANT_STAGING_ONE_HALF ? 0 : lane.uses % 2;
}

// One source's part of one half of a lane's staging at the member whose heap starts at `base`.
ANABRANCH_DEVICE u64 staging_of(const Channel& channel, u64 base, const Lane& lane, u64 half, u32 source) {
    u64 index = (static_cast<u64>(lane.index) * 2 + half) * channel.team.size + source;
    return base + channel.staging + index * channel.staging_bytes;
}

}  // namespace ccl
