// Pipes: messages from one member to another, without any other member.
//
// There are `width` pipes from each member (the source) to each member (the target). A pipe is a ring of `depth` slots in the heap of the
// target. Each side keeps a counter of its own in its own memory (`PipeState`: chunks sent, chunks received) from launch to launch.
// `arrived`, at the target, is stored by the source after each chunk. `consumed`, at the source, is stored by the target after its last
// read of each chunk. Chunk c is in slot c % depth. Counters have 64 bits and are never reset, so that a replayed graph just counts on.
//
// A message is cut into chunks by its length alone, which both sides know, and chunk i uses pipe i % width. A message of no bytes is one
// empty chunk. Messages of a pair follow one another in every pipe in the list order of both sides. So both sides agree on the next chunk
// of a pipe, whatever their numbers of blocks are.
//
// Why a slot may be written. The source writes chunk c when `consumed` has reached c + 1 - depth: the target has read chunk c - depth,
// which was there, and released its reads before it counted. A pipe never waits for another pipe.
// Why a slot may be read. The target reads chunk c when `arrived` has reached c + 1: the source counts after a release of the slot and its
// header.
// Why no wait is circular. A block polls all its pipes, of all peers and both directions, and moves a chunk of any pipe that can move. So a
// pipe to a peer waits only for that peer. A pipe to this rank waits for a block of this launch, which is resident, or this block polls both
// sides. Launches of a communicator run one after the other on each rank, and one block of a launch owns a pipe, so `PipeState` has one
// user. A send ends when its chunks are in slots, received or not.
// Different lengths. Each slot has a header with the length of its message. The two sides agree on the start of each message in pipe 0
// until a length differs. The header of the first chunk there shows it, and the target reports both lengths and copies no chunk of pipe 0.
#pragma once

#include "anabranch/prelude.h"
#include "ccl/buffer.h"

namespace ccl {

// Phases of fault records.
enum PipePhase : u32 { PHASE_PIPE_ROOM = 1, PHASE_PIPE_MESSAGE = 2, PHASE_PIPE_LENGTH = 3 };

// Bytes between the counters of two pipes. The headers of the slots follow `arrived`.
static constexpr u32 PIPE_LINE = 64;
// End of a list.
static constexpr u32 NO_TRANSFER = 0xffffffffu;

// The division of a message into chunks.
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
// Index of a pipe at a member: of the counters and slots of a pipe from `other`, and of the counter of a pipe to `other`.
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

// The progress of one pipe of one peer and direction, in local memory of the block that owns it; thread 0 writes it.
struct Cursor {
    u64 counter;   // previous chunks of this pipe, of all launches
    u64 chunk;     // the next chunk of the message in this pipe
    u32 transfer;  // the message, or NO_TRANSFER
    u32 peer;
    u32 pipe;
    bool is_receive;
};
static constexpr u32 CURSOR_BYTES = 24;
static constexpr u32 LOCAL_PICK = 0;
static constexpr u32 LOCAL_CURSORS = 16;

// Number of cursors of a block: every `grid_blocks`th of all, numbered pipe by pipe, so that short messages spread over blocks.
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

// Advances the cursor past messages without further chunks in this pipe.
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

// The counter of a cursor in memory, between launches.
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
