// Links: queues of chunks from one member to another, also internode, where no memory is mapped. A member works on them by the list of
// steps from src/network/schedule.rs, which states why no wait is circular.
//
// For each channel and stream there is a link from each member (the source) to each other (the target): LINK_DEPTH slots in the heap of the
// target, and two counters. `arrived`, at the target, counts chunks sent; `consumed`, at the source, counts chunks received. The other side
// writes each, from one block, as a signal with SET. Both count on from launch to launch (`LinkState`), have 64 bits and are never reset,
// so that a replayed graph just counts on. Chunk c is in slot c % LINK_DEPTH.
//
// Within a node, the source stores a chunk into its slot, and the counter after a release. Between nodes it writes the chunk into the same
// slot of its *outgoing* slots first, from which the transport sends it: user memory need not be registered.
//
// Why a slot may be written. The source writes chunk c when `consumed` has reached c + 1 - LINK_DEPTH: the target has read chunk c -
// LINK_DEPTH, which was there, and released its reads before it counted.
// Why an outgoing slot may be written. The target has received the previous chunk in that slot, so the transport has read it here.
// Why a slot may be read. The target reads chunk c when `arrived` has reached c + 1. Within a node the source counts after a release of the
// slot. Between nodes the counter is the signal of the put of the chunk (shmem/signal.h).
// Why counters do not go back. One wave sets those of a link in every launch: the first wave of the block of its channel. The number of the
// block alone selects the queue pair to a peer (shmem/nic.h), not the launch, the collective or the kernel. So chunks and counters of a
// link use one queue pair, in order, also from one launch to the next. Links of different channels share nothing.
// Why launches do not receive chunks of each other. They are ordered at each member, and both ends of a link count equally many chunks in
// each call.
#pragma once

#include "ccl/buffer.h"
#include "shmem/shmem.h"

namespace ccl {

// As in src/network/schedule.rs.
static constexpr u32 LINK_DEPTH = 4;
static constexpr u32 LINK_STREAMS = 2;
// Bytes between two counters that different members write.
static constexpr u32 LINK_LINE = 64;

// Phases of fault records, after those of channel.h.
enum LinkPhase : u32 { PHASE_LINK_CHUNK = 5, PHASE_LINK_ROOM = 6 };

// Flags of ports and steps, as in src/device/args.rs.
static constexpr u32 PORT_LINK = 1;
static constexpr u32 PORT_INTERNODE = 2;
static constexpr u32 STEP_REDUCES = 1;
static constexpr u32 STEP_TAKES_UNROUNDED = 2;
static constexpr u32 STEP_GIVES_UNROUNDED = 4;
static constexpr u32 STEP_IS_TOKEN = 8;
static constexpr u32 STEP_PACKS = 16;
static constexpr u32 STEP_UNPACKS = 32;

// Local memory: whether the world was poisoned at the start; whether a wait failed; {given, taken} of each link of the channel; then, for
// each port of a step, the address of its chunk and the new value of its counter at the peer.
static constexpr u32 LINK_OPENED = 0;
static constexpr u32 LINK_FAULT = 4;
static constexpr u32 LOCAL_LINKS = 8;
ANABRANCH_DEVICE u32 local_count(u32 link, bool is_source) { return LOCAL_LINKS + 16 * link + (is_source ? 8 : 0); }
ANABRANCH_DEVICE u32 local_port(const Links& links, u32 port) {
    return LOCAL_LINKS + 16 * (LINK_STREAMS * links.team.size + port);
}

// Index of a link of this channel, from its stream and its other end.
ANABRANCH_DEVICE u32 link_of(const Links& links, const LinkPort& port) {
    return static_cast<u32>(port.address) * links.team.size + port.peer;
}
// Index of a link among all channels, in the heap of any member: `peer` is the other end as that member sees it.
ANABRANCH_DEVICE u64 link_index(const Grid& grid, const Links& links, u64 stream, u32 peer) {
    return (static_cast<u64>(grid.block) * LINK_STREAMS + stream) * links.team.size + peer;
}
ANABRANCH_DEVICE u64 line_offset(u64 first, u64 index) { return first + index * LINK_LINE; }
ANABRANCH_DEVICE u64 slot_offset(const Links& links, u64 first, u64 index, u64 chunk) {
    u64 slot = chunk % LINK_DEPTH;
    return first + (index * LINK_DEPTH + slot) * links.slot_bytes;
}

// Words of the steps, then of their ports. Two 32-bit numbers share a word, the first in its low half.
ANABRANCH_DEVICE u64 step_word(const Grid& grid, const NetworkArgs& args, u32 index) {
    return args.table == nullptr ? args.words[index] : private_load(grid, args.table + index);
}
ANABRANCH_DEVICE LinkStep load_step(const Grid& grid, const NetworkArgs& args, u32 index) {
    u64 word[4];
    for (u32 i = 0; i < 4; ++i) word[i] = step_word(grid, args, 4 * index + i);
    auto low = [&](u32 i) { return static_cast<u32>(word[i]); };
    auto high = [&](u32 i) { return static_cast<u32>(word[i] >> 32); };
    return LinkStep{word[0], low(1), high(1), low(2), high(2), low(3), 0};
}
ANABRANCH_DEVICE LinkPort load_port(const Grid& grid, const NetworkArgs& args, u32 index) {
    u32 first = 4 * args.step_count + 2 * index;
    u64 address = step_word(grid, args, first), other = step_word(grid, args, first + 1);
    return LinkPort{address, static_cast<u32>(other), static_cast<u32>(other >> 32)};
}

// Address of the chunk of port `i` on this rank, or in the slot of a mapped peer.
ANABRANCH_DEVICE u64 chunk_at(const Grid& grid, const Links& links, u32 i) { return grid.local_load<u64>(local_port(links, i)); }
ANABRANCH_DEVICE u64 count_at(const Grid& grid, const Links& links, u32 i) {
    return grid.local_load<u64>(local_port(links, i) + 8);
}

// Every thread, at the start and at the end: load and store the counters of this channel. After a fault no kernel reads them again.
ANABRANCH_DEVICE void open_links(const Grid& grid, const Links& links) {
    for (u32 i = grid.thread; i < LINK_STREAMS * links.team.size; i += grid.block_threads) {
        LinkState* state = links.states + link_index(grid, links, 0, i);
        grid.local_store<u64>(local_count(i, false), heap_load(grid, &state->given));
        grid.local_store<u64>(local_count(i, true), heap_load(grid, &state->taken));
    }
    if (grid.thread == 0) {
        grid.local_store<u32>(LINK_OPENED, is_poisoned(grid, links.team.control) ? 1u : 0u);
        grid.local_store<u32>(LINK_FAULT, 0u);
    }
    grid.block_barrier();
}
ANABRANCH_DEVICE void close_links(const Grid& grid, const Links& links) {
    for (u32 i = grid.thread; i < LINK_STREAMS * links.team.size; i += grid.block_threads) {
        LinkState* state = links.states + link_index(grid, links, 0, i);
        heap_store(grid, &state->given, grid.local_load<u64>(local_count(i, false)));
        heap_store(grid, &state->taken, grid.local_load<u64>(local_count(i, true)));
    }
}

// One thread: waits until the port is ready, and records the address of its chunk. `first` is the offset of the chunk in a tensor.
ANABRANCH_DEVICE bool ready_port(const Grid& grid, const Links& links, WaitContext wait, const LinkPort& port, bool is_source,
                                 u64 first, u32 place) {
    u64 at = port.address + first, count = 0, seen = 0;
    WaitStatus status = WAIT_OK;
    if ((port.flags & PORT_LINK) != 0) {
        u32 counter = local_count(link_of(links, port), is_source), me = links.team.rank;
        u64 here = link_index(grid, links, port.address, port.peer), there = link_index(grid, links, port.address, me);
        u64 chunk = grid.local_load<u64>(counter);
        count = chunk + 1;
        wait.epoch = count;
        u64 room = LINK_DEPTH, target = is_source ? count : count - room;
        const u64* word = reinterpret_cast<const u64*>(links.heap + line_offset(is_source ? links.arrived : links.consumed, here));
        status = wait_until(
            grid, wait, is_source ? PHASE_LINK_CHUNK : PHASE_LINK_ROOM, port.peer, target, word,
            [target](u64 now) { return has_reached(now, target); }, seen);
        if (is_source) {
            at = links.heap + slot_offset(links, links.incoming, here, chunk);
        } else if ((port.flags & PORT_INTERNODE) != 0) {
            at = links.heap + slot_offset(links, links.outgoing, here, chunk);
        } else {
            at = private_load(grid, links.team.peer_bases + port.peer) + slot_offset(links, links.incoming, there, chunk);
        }
        grid.local_store<u64>(counter, count);
    }
    grid.local_store<u64>(local_port(links, place), at);
    grid.local_store<u64>(local_port(links, place) + 8, count);
    return status == WAIT_OK;
}

// One thread: sets the counter at a member of this node.
ANABRANCH_DEVICE void count_inside(const Grid& grid, const Links& links, const LinkPort& port, bool is_source, u64 count) {
    u64 there = link_index(grid, links, port.address, links.team.rank);
    u64 base = private_load(grid, links.team.peer_bases + port.peer);
    u64 word = base + line_offset(is_source ? links.consumed : links.arrived, there);
    flag_store(grid, reinterpret_cast<u64*>(word), count);
}

// Every thread: sets the counter at a member of another node; for a target after the put of its chunk of `bytes` bytes.
ANABRANCH_DEVICE bool count_internode(const Grid& grid, const Links& links, const shmem::Context& context, const LinkPort& port,
                                  bool is_source, u64 at, u64 count, u64 bytes) {
    u64 there = link_index(grid, links, port.address, links.team.rank);
    shmem::GroupRank peer = {port.peer};
    shmem::Symmetric<u64> word = {line_offset(is_source ? links.consumed : links.arrived, there)};
    if (is_source) return shmem::signal<shmem::Block>(grid, context, word, count, shmem::SignalOp::SET, peer) == shmem::Status::OK;
    shmem::Symmetric<u8> slot = {slot_offset(links, links.incoming, there, count - 1)};
    return shmem::put_signal_nbi<shmem::Block>(grid, context, slot, reinterpret_cast<const u8*>(at), bytes, word, count,
                                               shmem::SignalOp::SET, peer) == shmem::Status::OK;
}

}  // namespace ccl
