// Pipes: messages from one member to another, in which no other member takes part.
//
// From each member (the source) to each member (the target) go `width` pipes. A pipe is a ring of `depth` slots in the target's
// heap with three counters, each written by one side: the source's and the target's own (`PipeState`: chunks that it sent, and
// chunks that it received), kept from launch to launch in their own memory; `arrived` at the target, stored by the source
// after each chunk; and `consumed` at the source, stored by the target after its last read of each chunk. Chunk c lies in
// slot c % depth. Counters have 64 bits and are never reset, so a replayed graph just counts on.
//
// A message is cut into chunks by its length alone, which both sides know, and chunk i goes through pipe i % width. A message
// of no bytes is one empty chunk. Messages of a pair follow one another in every pipe in the order in which both sides list
// them. So both sides agree on what the next chunk of a pipe is, however many blocks each of them has.
//
// Why a slot may be written. The source writes chunk c when `consumed` has come to c + 1 - depth: the target has read chunk
// c - depth, which lay there, and released its reads before it counted. A pipe never waits for another pipe.
// Why a slot may be read. The target reads chunk c when `arrived` has come to c + 1: the source counts after a release of the
// slot and its header.
// Why no wait is circular. A block looks at all its pipes, of all peers and both directions, and moves a chunk of
// any that can move. Hence what one pipe waits for is a peer that has not launched its side, never this launch itself; a send
// ends when its chunks are in slots, received or not.
// Lengths that differ. Each slot has a header with its message's length. The two sides agree on where each message begins
// in pipe 0 until one differs; its first chunk there says so, and the target reports both lengths and copies no chunk of pipe 0.
#pragma once

#include "anabranch/prelude.h"
#include "ccl/buffer.h"

namespace ccl {

// Phases of fault records.
enum PipePhase : u32 { PHASE_PIPE_ROOM = 1, PHASE_PIPE_MESSAGE = 2, PHASE_PIPE_LENGTH = 3 };

// Bytes between two pipes' counters. Behind `arrived` lie the headers of the slots.
static constexpr u32 PIPE_LINE = 64;
// The last of a list.
static constexpr u32 NO_TRANSFER = 0xffffffffu;

// How a message is cut.
struct Cut {
    u64 chunk;  // bytes of a full chunk
    u64 count;
};
ANABRANCH_DEVICE Cut cut_of(const Pipes& pipes, u64 bytes) {
    u64 share = round_up((bytes + pipes.width - 1) / pipes.width, 256);
    u64 chunk = minimum(maximum(share, u64(pipes.least_bytes)), pipes.slot_bytes);
    return Cut{chunk, maximum((bytes + chunk - 1) / chunk, u64(1))};
}

ANABRANCH_DEVICE u64 pipe_base(const Grid& grid, const Pipes& pipes, u32 member) {
    return private_load(grid, pipes.team.peer_bases + member);
}
// At a member: the counters and slots of a pipe that comes from, and the counter of one that goes to, `other`.
ANABRANCH_DEVICE u64 pipe_index(const Pipes& pipes, u32 other, u32 pipe) {
    return static_cast<u64>(other) * pipes.width + pipe;
}
ANABRANCH_DEVICE u64* arrived_word(const Pipes& pipes, u64 base, u32 source, u32 pipe) {
    return reinterpret_cast<u64*>(base + pipes.arrived + pipe_index(pipes, source, pipe) * PIPE_LINE);
}
ANABRANCH_DEVICE u64* header_word(const Pipes& pipes, u64 base, u32 source, u32 pipe, u64 chunk) {
    return arrived_word(pipes, base, source, pipe) + 1 + chunk % pipes.depth;
}
ANABRANCH_DEVICE u64* consumed_word(const Pipes& pipes, u64 base, u32 target, u32 pipe) {
    return reinterpret_cast<u64*>(base + pipes.consumed + pipe_index(pipes, target, pipe) * PIPE_LINE);
}
ANABRANCH_DEVICE u64 slot_of(const Pipes& pipes, u64 base, u32 source, u32 pipe, u64 chunk) {
    u64 slot = chunk % pipes.depth;
    return base + pipes.slots + (pipe_index(pipes, source, pipe) * pipes.depth + slot) * pipes.slot_bytes;
}

// One pipe of one peer and direction, as the block that owns it goes through its messages. In local memory; thread 0 writes it.
struct Cursor {
    u64 counter;   // chunks of this pipe before this one, of all launches
    u64 chunk;     // the next chunk of the message that goes through this pipe
    u32 transfer;  // the message, or NO_TRANSFER
    u32 peer;
    u32 pipe;
    bool is_receive;
};
static constexpr u32 CURSOR_BYTES = 24;
static constexpr u32 LOCAL_PICK = 0;
static constexpr u32 LOCAL_CURSORS = 16;

// Cursors of a block: every `grid_blocks`th of all, which are counted pipe by pipe, so that small messages spread over blocks.
ANABRANCH_DEVICE u32 cursors_of(const Grid& grid, const PipesArgs& args) {
    u32 all = args.lists * args.used_pipes;
    return grid.block < all ? (all - grid.block - 1) / grid.grid_blocks + 1 : 0;
}

ANABRANCH_DEVICE Transfer transfer_of(const Grid& grid, const PipesArgs& args, u32 index) {
    if (args.table == nullptr) return args.transfers[index];
    const Transfer* entry = args.table + index;
    return Transfer{private_load(grid, &entry->address), private_load(grid, &entry->bytes),
                    private_load(grid, &entry->peer), private_load(grid, &entry->next)};
}

// The cursor's next chunk, past messages that have none in this pipe.
ANABRANCH_DEVICE void settle(const Grid& grid, const PipesArgs& args, Cursor& cursor) {
    while (cursor.transfer != NO_TRANSFER) {
        Transfer transfer = transfer_of(grid, args, cursor.transfer);
        if (cursor.chunk < cut_of(args.pipes, transfer.bytes).count) break;
        cursor.transfer = transfer.next;
        cursor.chunk = cursor.pipe;
    }
}

ANABRANCH_DEVICE Cursor load_cursor(const Grid& grid, const PipesArgs& args, u32 i) {
    u32 at = LOCAL_CURSORS + i * CURSOR_BYTES, number = grid.block + i * grid.grid_blocks;
    return Cursor{grid.local_load<u64>(at), grid.local_load<u64>(at + 8), grid.local_load<u32>(at + 16),
                  grid.local_load<u32>(at + 20), number / args.lists, number % args.lists < args.receive_lists};
}
ANABRANCH_DEVICE void store_cursor(const Grid& grid, u32 i, const Cursor& cursor) {
    u32 at = LOCAL_CURSORS + i * CURSOR_BYTES;
    grid.local_store<u64>(at, cursor.counter);
    grid.local_store<u64>(at + 8, cursor.chunk);
    grid.local_store<u32>(at + 16, cursor.transfer);
    grid.local_store<u32>(at + 20, cursor.peer);
}

// Where this rank keeps a cursor's counter between launches.
ANABRANCH_DEVICE u64* counter_word(const PipesArgs& args, const Cursor& cursor) {
    PipeState* state = args.pipes.states + pipe_index(args.pipes, cursor.peer, cursor.pipe);
    return cursor.is_receive ? &state->received : &state->sent;
}

// Every thread of the block; a block barrier follows. The first transfer of a list has the list's number.
ANABRANCH_DEVICE void open_cursors(const Grid& grid, const PipesArgs& args) {
    for (u32 i = grid.thread; i < cursors_of(grid, args); i += grid.block_threads) {
        u32 number = grid.block + i * grid.grid_blocks;
        u32 pipe = number / args.lists, list = number % args.lists;
        Cursor cursor = {0, pipe, list, transfer_of(grid, args, list).peer, pipe, list < args.receive_lists};
        cursor.counter = heap_load(grid, counter_word(args, cursor));
        settle(grid, args, cursor);
        store_cursor(grid, i, cursor);
    }
}

// Thread 0, which wrote the cursors. After a fault no kernel reads the counters again.
ANABRANCH_DEVICE void close_cursors(const Grid& grid, const PipesArgs& args) {
    for (u32 i = 0; i < cursors_of(grid, args); ++i) {
        Cursor cursor = load_cursor(grid, args, i);
        heap_store(grid, counter_word(args, cursor), cursor.counter);
    }
}

}  // namespace ccl
