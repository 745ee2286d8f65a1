// Links: queues of chunks from one member to another, also between machines, where no memory is mapped. What a member does with
// them is a list of steps that src/network/schedule.rs makes, which also says why no wait is circular.
//
// For each channel and stream there is a link from each member (the source) to each other (the target): LINK_DEPTH slots in
// the target's heap with two counters. `arrived`, at the target, counts the chunks that were given; `consumed`, at the source, those
// that were taken. Each is written by the other side alone, by one block of it, as a signal that is set; both count on from launch to launch
// (`LinkState`), have 64 bits and are never reset, so a replayed graph just counts on. Chunk c lies in slot c % LINK_DEPTH.
//
// To a member of the same machine a chunk is stored into its slot, and the counter after a release. To another machine it is written
// into the same slot of this rank's *outgoing* ones first, from which the transport takes it: user memory need not be registered.
//
// Why a slot may be written. The source writes chunk c when `consumed` has come to c + 1 - LINK_DEPTH: the target has read chunk c -
// LINK_DEPTH, which lay there, and released its reads before it counted. Why an outgoing slot may be written. By then the target had that
// chunk: the transport had read it here before it arrived there. Why a slot may be read. The target reads chunk c when `arrived` has come
// to c + 1. On a machine the source counts after a release of the slot. Between machines the counter is the signal of the put that brought
// the chunk (shmem/signal.h). Why counters do not go back. Those of a link are set by one wave, the first of the block of its channel, in
// every launch. To which queue pair of a peer this wave puts says the block's number alone (shmem/nic.h), not the launch, the collective or
// the kernel; so chunks and counters of a link go by one queue pair, in order, and so do those of one launch and the next. Links of
// different channels have nothing in common. Why launches do not meet each other's chunks. They follow each other at each member, and both
// ends of a link count as many chunks in each call.
#pragma once

#include "ccl/buffer.h"
#include "shmem/shmem.h"

namespace ccl {

// As src/network/schedule.rs has them.
static constexpr u32 LINK_DEPTH = 4;
static constexpr u32 LINK_STREAMS = 2;
// Bytes between two counters that different members write.
static constexpr u32 LINK_LINE = 64;

// Phases of fault records, after those of channel.h.
enum LinkPhase : u32 { PHASE_LINK_CHUNK = 5, PHASE_LINK_ROOM = 6 };

// Bits of ports and steps: src/args.rs.
static constexpr u32 PORT_LINK = 1;
static constexpr u32 PORT_INTERNODE = 2;
static constexpr u32 STEP_REDUCES = 1;
static constexpr u32 STEP_TAKES_UNROUNDED = 2;
static constexpr u32 STEP_GIVES_UNROUNDED = 4;
static constexpr u32 STEP_IS_TOKEN = 8;
static constexpr u32 STEP_PACKS = 16;
static constexpr u32 STEP_UNPACKS = 32;

// Local memory: whether the world was poisoned before; whether a wait failed; {given, taken} of each link of the channel; then for each port
// of a step where its chunk is here, and what its counter at the peer becomes.
static constexpr u32 LINK_OPENED = 0;
static constexpr u32 LINK_FAULT = 4;
static constexpr u32 LOCAL_LINKS = 8;
ANABRANCH_DEVICE u32 local_count(u32 link, bool is_source) { return LOCAL_LINKS + 16 * link + (is_source ? 8 : 0); }
ANABRANCH_DEVICE u32 local_port(const Links& links, u32 port) {
    return LOCAL_LINKS + 16 * (LINK_STREAMS * links.team.size + port);
}

// A link of this channel: by its stream and its other end.
ANABRANCH_DEVICE u32 link_of(const Links& links, const LinkPort& port) {
    return static_cast<u32>(port.address) * links.team.size + port.peer;
}
// The same among all channels, in the heap of any member: `peer` is the other end as that member sees it.
ANABRANCH_DEVICE u64 link_index(const Grid& grid, const Links& links, u64 stream, u32 peer) {
    return (static_cast<u64>(grid.block) * LINK_STREAMS + stream) * links.team.size + peer;
}
ANABRANCH_DEVICE u64 line_offset(u64 first, u64 index) { return first + index * LINK_LINE; }
ANABRANCH_DEVICE u64 slot_offset(const Links& links, u64 first, u64 index, u64 chunk) {
    u64 slot = chunk % LINK_DEPTH;
    return first + (index * LINK_DEPTH + slot) * links.slot_bytes;
}

// The words of the steps, then those of their ports; two numbers of 32 bits are in a word, the first in its low half.
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

// Where port `i`'s chunk is on this rank, or in a mapped peer's slot.
ANABRANCH_DEVICE u64 chunk_at(const Grid& grid, const Links& links, u32 i) { return grid.local_load<u64>(local_port(links, i)); }
ANABRANCH_DEVICE u64 count_at(const Grid& grid, const Links& links, u32 i) {
    return grid.local_load<u64>(local_port(links, i) + 8);
}

// Every thread, first and last of all: this channel's counters. After a fault no kernel reads them again.
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

// One thread: waits until the port can be used, and puts down where its chunk is. `first` is where the chunk starts in a tensor.
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

// One thread: counts at a member of this machine.
ANABRANCH_DEVICE void count_inside(const Grid& grid, const Links& links, const LinkPort& port, bool is_source, u64 count) {
    u64 there = link_index(grid, links, port.address, links.team.rank);
    u64 base = private_load(grid, links.team.peer_bases + port.peer);
    u64 word = base + line_offset(is_source ? links.consumed : links.arrived, there);
    flag_store(grid, reinterpret_cast<u64*>(word), count);
}

// Every thread: counts at a member of another machine, for a target after its chunk of `bytes` bytes.
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
