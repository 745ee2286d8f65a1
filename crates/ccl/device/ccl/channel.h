// Channels: the state that one block of a collective owns at every rank. Channel b of a set belongs to block b of the kernel of
// each member; a communicator has a set for sums with a norm, and one for all other calls. Channels share nothing, so that unused channels keep valid epochs in launches with fewer blocks. Launches of a communicator
// are ordered at each rank (one stream, or streams that wait for each other), so the uses of a channel are one sequence at each member.
//
// A channel has three counters, which only its own block accesses and which advance equally on all members, since all launch the same plans
// in the same order: `epoch` counts uses of its packets, `meets` its barriers, `uses` the uses of its staging. A kernel reads them when it
// begins and writes them when it ends, so a replayed graph is just another epoch.
//
// Overlaps. Two concurrent launches on one channel would use the same epochs. Launches in stream order cannot overlap; graphs replayed on
// two streams can. If the host watches a channel, each launch counts itself in and out, and a launch that finds another one in progress
// reports it and does nothing.
//
// Barriers and staging: meet.h. Packets: packets.h.
#pragma once

#include "anabranch/prelude.h"

namespace ccl {

// Phases of fault records. A meeting (`PHASE_MEET`) is a barrier of all members.
enum Phase : u32 {
    PHASE_PACKETS = 1,
    PHASE_MEET = 2,
    PHASE_FINGERPRINT = 3,
    PHASE_OVERLAP = 4,
};

// Bits of an epoch that flags carry. Fewer in tests, so that they wrap.
#if !defined(CCL_EPOCH_BITS)
#define CCL_EPOCH_BITS 32
#endif
static_assert(CCL_EPOCH_BITS >= 2 && CCL_EPOCH_BITS <= 32, "a packet has 32 bits for its flag");
static constexpr u32 EPOCH_MASK = static_cast<u32>((u64(1) << CCL_EPOCH_BITS) - 1);

struct Channel {
    WaitContext wait;
    u64 epoch;
    u64 meets;
    u64 uses;
    u32 index;
    u32 turn;  // index modulo the members
    bool dead;     // the world is poisoned, or a barrier failed; the same in every thread of the block
    bool counted;  // valid on thread 0: the launch has counted itself in
};

// Local memory: the counters, fault flags, then the addresses of the heap, input and output of every member.
static constexpr u32 LOCAL_EPOCH = 0;
static constexpr u32 LOCAL_MEETS = 8;
static constexpr u32 LOCAL_USES = 16;
static constexpr u32 LOCAL_OPENED = 24;
// Fault flags of failed waits: in a barrier, and in an epoch of packets, odd or even. Each is read after the block barrier that ends its
// use, and later waits use another flag: so all threads read the same value.
static constexpr u32 FAULT_IN_MEETING = 28;
static constexpr u32 FAULT_IN_EPOCH = 32;
static constexpr u32 LOCAL_TABLES = 40;

ANABRANCH_DEVICE u64 table_entry(const Grid& grid, const CommView& comm, u32 table, u32 member) {
    return grid.local_load<u64>(LOCAL_TABLES + (table * comm.team.size + member) * 8);
}
// The address of the heap of a member.
ANABRANCH_DEVICE u64 member_base(const Grid& grid, const CommView& comm, u32 member) {
    return table_entry(grid, comm, 0, member);
}
// The addresses of the input and output of a member. For a buffer that is not mapped at peers, only those of this rank are valid.
ANABRANCH_DEVICE u64 input_of(const Grid& grid, const CommView& comm, u32 member) {
    return table_entry(grid, comm, 1, member);
}
ANABRANCH_DEVICE u64 output_of(const Grid& grid, const CommView& comm, u32 member) {
    return table_entry(grid, comm, 2, member);
}

// The member `by` after this one, so that not all members start with the same peer. `by` is at most the number of members.
ANABRANCH_DEVICE u32 rotated(const CommView& comm, u32 by) {
    u32 member = comm.team.rank + by;
    return member < comm.team.size ? member : member - comm.team.size;
}

// All members for i from 0 on (`turned`), all peers for i from 1 on (`turned_peer`). Channels start with different ones, so that all links
// work at the same time.
ANABRANCH_DEVICE u32 turned(const CommView& comm, const Channel& channel, u32 i) {
    u32 by = i + channel.turn;
    return rotated(comm, 1 + (by < comm.team.size ? by : by - comm.team.size));
}
ANABRANCH_DEVICE u32 turned_peer(const CommView& comm, const Channel& channel, u32 i) {
    u32 by = i - 1 + channel.turn, peers = comm.team.size - 1;
    return rotated(comm, 1 + (by < peers ? by : by - peers));
}

ANABRANCH_DEVICE u64 buffer_at(const Grid& grid, const BufferView& buffer, u32 member) {
    return buffer.bases == nullptr ? buffer.offset : private_load(grid, buffer.bases + member) + buffer.offset;
}

// Every thread of the block, at the start. All loads are in flight before the first is used, because each takes longer than a fast
// collective can wait.
ANABRANCH_DEVICE Channel channel_open(const Grid& grid, const CommView& comm, const BufferView& input, const BufferView& output) {
    ChannelState* state = comm.channels + grid.block;
    u64 kept[3] = {0, 0, 0};
    u64 poison = 0;
    u32 is_watched = 0, inside = 0;
    if (grid.thread == 0) {
        kept[0] = heap_load(grid, &state->epoch);
        kept[1] = heap_load(grid, &state->meets);
        kept[2] = heap_load(grid, &state->uses);
        is_watched = heap_load(grid, &state->is_watched);
        poison = flag_load(grid, &comm.team.control->abort);
    }
    for (u32 member = grid.thread; member < comm.team.size; member += grid.block_threads) {
        u64 base = private_load(grid, comm.team.peer_bases + member);
        u64 from = buffer_at(grid, input, member);
        u64 to = buffer_at(grid, output, member);
        u32 at = LOCAL_TABLES + member * 8, table = comm.team.size * 8;
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
    u32 turn = grid.block % comm.team.size;
    grid.block_barrier();
    u64 epoch = grid.local_load<u64>(LOCAL_EPOCH);
    u64 meets = grid.local_load<u64>(LOCAL_MEETS);
    WaitContext wait = wait_context(grid, comm.team.control, comm.operation, comm.team.group,
                                    comm.team.rank, maximum(epoch, meets));
    // Only thread 0 knows of an earlier launch that is in progress.
    if (inside != 0) report_fault(grid, wait, PHASE_OVERLAP, comm.team.rank, 0, inside, 0);
    return Channel{wait, epoch, meets, grid.local_load<u64>(LOCAL_USES), grid.block, turn, grid.local_load<u32>(LOCAL_OPENED) != 0,
                is_watched != 0};
}

// Every thread of the block, at the end. The block read the counters when it opened the channel; a later kernel reads them next, and none
// after a fault.
ANABRANCH_DEVICE void channel_close(const Grid& grid, const CommView& comm, const Channel& channel) {
    if (grid.thread != 0) return;
    ChannelState* state = comm.channels + channel.index;
    heap_store(grid, &state->epoch, channel.epoch);
    heap_store(grid, &state->meets, channel.meets);
    heap_store(grid, &state->uses, channel.uses);
    if (!channel.counted) return;
    fetch_add_device(grid, &state->inside, ~0u);
}

// The body of a kernel: opens the channel, runs `work(channel)` unless the world has failed, closes the channel. Every thread.
template <class Work>
ANABRANCH_DEVICE void on_channel(const Grid& grid, const CommView& comm, const BufferView& input, const BufferView& output, Work work) {
    Channel channel = channel_open(grid, comm, input, output);
    if (!channel.dead) work(channel);
    channel_close(grid, comm, channel);
}

// Records that a wait of this thread failed. The block sees it after its next barrier. Atomic, because several threads may fail.
ANABRANCH_DEVICE void channel_fail(const Grid& grid, u32 fault) { grid.local_fetch_add(fault, 1u); }

// Every thread, after a block barrier.
ANABRANCH_DEVICE void channel_look(const Grid& grid, Channel& channel, u32 fault) {
    channel.dead = channel.dead || grid.local_load<u32>(fault) != 0;
}

}  // namespace ccl
