// Lanes: what one block of a collective owns, at every rank. Lane b of a channel is block b of each member's kernel; lanes
// share nothing, so that a launch with fewer blocks leaves the others' epochs behind nowhere. Launches of a channel follow
// each other at each rank (one stream, or streams put behind each other), so a lane's uses are one sequence at each member.
//
// A lane has three counters, which its own block alone touches and which all members advance alike, since all launch the same
// plans in the same order: `epoch` counts uses of its packets, `meets` its meetings, `uses` those of its staging. They are read
// when the kernel begins and written when it ends, so a replayed graph is just another epoch.
//
// Overlaps. Two launches at work on one lane would use the same numbers. Launches in stream order cannot; graphs that are replayed
// on two streams at once can. Where the host watches a lane, each launch counts itself in and out, and one that finds another
// inside reports it and does nothing.
//
// Meetings and staging: meet.h. Packets: packets.h. From neighbour to neighbour: ring.h, whose kernels have a fourth counter.
#pragma once

#include "anabranch/prelude.h"

namespace ccl {

// Phases of fault records.
enum Phase : u32 {
    PHASE_PACKETS = 1,
    PHASE_MEET = 2,
    PHASE_FINGERPRINT = 3,
    PHASE_OVERLAP = 4,
    PHASE_RING_CHUNK = 5,
    PHASE_RING_ROOM = 6,
};

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
    u32 turn;  // index modulo the members
    bool dead;     // the world is poisoned, or a meeting failed; the same in every thread of the block
    bool counted;  // known to thread 0: the launch has counted itself in
};

// Local memory: the counters, whether a thread's wait failed, then where every member's heap, input and output are.
static constexpr u32 LOCAL_EPOCH = 0;
static constexpr u32 LOCAL_MEETS = 8;
static constexpr u32 LOCAL_USES = 16;
static constexpr u32 LOCAL_OPENED = 24;
// Where a thread says that its wait failed: in a meeting, and in an epoch of packets, odd or even. Each is read behind the barrier
// that ends what it is for, and a thread that has gone on writes another one: so all threads read the same.
static constexpr u32 FAULT_IN_MEETING = 28;
static constexpr u32 FAULT_IN_EPOCH = 32;
static constexpr u32 LOCAL_TABLES = 40;

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

// All members for i from 0 on, and all peers for i from 1 on: lanes begin with different ones, so that all links work at once.
ANABRANCH_DEVICE u32 turned(const Channel& channel, const Lane& lane, u32 i) {
    u32 by = i + lane.turn;
    return rotated(channel, 1 + (by < channel.team.size ? by : by - channel.team.size));
}
ANABRANCH_DEVICE u32 turned_peer(const Channel& channel, const Lane& lane, u32 i) {
    u32 by = i - 1 + lane.turn, peers = channel.team.size - 1;
    return rotated(channel, 1 + (by < peers ? by : by - peers));
}

ANABRANCH_DEVICE u64 place_at(const Grid& grid, const Place& place, u32 member) {
    return place.bases == nullptr ? place.offset : private_load(grid, place.bases + member) + place.offset;
}

// Every thread of the block, first of all. All loads are under way before the first is used: each takes longer than a hop of
// the fastest collective leaves room for.
ANABRANCH_DEVICE Lane lane_open(const Grid& grid, const Channel& channel, const Place& input, const Place& output) {
    LaneState* state = channel.lanes + grid.block;
    u64 kept[3] = {0, 0, 0};
    u64 poison = 0;
    u32 is_watched = 0, inside = 0;
    if (grid.thread == 0) {
        kept[0] = heap_load(grid, &state->epoch);
        kept[1] = heap_load(grid, &state->meets);
        kept[2] = heap_load(grid, &state->uses);
        is_watched = heap_load(grid, &state->is_watched);
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
        if (is_watched != 0) inside = fetch_add_device(grid, &state->inside, 1u);
        grid.local_store<u32>(LOCAL_OPENED, poison != ABORT_NONE || inside != 0 ? 1u : 0u);
        grid.local_store<u32>(FAULT_IN_MEETING, 0u);
        grid.local_store<u64>(FAULT_IN_EPOCH, u64(0));
    }
    u32 turn = grid.block % channel.team.size;
    grid.block_barrier();
    u64 epoch = grid.local_load<u64>(LOCAL_EPOCH);
    u64 meets = grid.local_load<u64>(LOCAL_MEETS);
    WaitContext wait = wait_context(grid, channel.team.control, channel.operation, channel.team.group,
                                    channel.team.rank, maximum(epoch, meets));
    // Thread 0 alone knows of an earlier launch that has not ended.
    if (inside != 0) report_fault(grid, wait, PHASE_OVERLAP, channel.team.rank, 0, inside, 0);
    return Lane{wait, epoch, meets, grid.local_load<u64>(LOCAL_USES), grid.block, turn, grid.local_load<u32>(LOCAL_OPENED) != 0,
                is_watched != 0};
}

// Every thread of the block, last of all. The block has read the counters when it opened the lane; the next to read them is a
// later kernel. After a fault nobody does.
ANABRANCH_DEVICE void lane_close(const Grid& grid, const Channel& channel, const Lane& lane) {
    if (grid.thread != 0) return;
    LaneState* state = channel.lanes + lane.index;
    heap_store(grid, &state->epoch, lane.epoch);
    heap_store(grid, &state->meets, lane.meets);
    heap_store(grid, &state->uses, lane.uses);
    if (!lane.counted) return;
    fetch_add_device(grid, &state->inside, ~0u);
}

// A kernel: opens the lane, does `work(lane)` unless there was a fault before, closes it. Every thread.
template <class Work>
ANABRANCH_DEVICE void on_lane(const Grid& grid, const Channel& channel, const Place& input, const Place& output, Work work) {
    Lane lane = lane_open(grid, channel, input, output);
    if (!lane.dead) work(lane);
    lane_close(grid, channel, lane);
}

// A wait of this thread failed. The block learns of it behind its next barrier.
ANABRANCH_DEVICE void lane_fail(const Grid& grid, u32 fault) { grid.local_store<u32>(fault, 1u); }

// Every thread, behind a block barrier.
ANABRANCH_DEVICE void lane_look(const Grid& grid, Lane& lane, u32 fault) {
    lane.dead = lane.dead || grid.local_load<u32>(fault) != 0;
}

}  // namespace ccl
