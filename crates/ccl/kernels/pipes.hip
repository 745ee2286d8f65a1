// Sends and receives, through pipes (pipe.h has the protocol): one launch for a list of messages, which progress concurrently in any order
// of the list.
#include "ccl/pipe.h"

namespace ccl {

// The next cursor of a block in local memory, or one of these values.
static constexpr u32 ALL_DONE = 0xffffffffu;
static constexpr u32 FAILED = 0xfffffffeu;

// The counter that a cursor waits for, and the awaited value.
struct Awaited {
    const u64* word;
    u64 counter;
};
static ANABRANCH_DEVICE Awaited awaited_by(const PipesArgs& args, u64 own, const Cursor& cursor) {
    if (cursor.is_receive) return Awaited{arrived_word(args.pipes, own, cursor.peer, cursor.pipe), cursor.counter + 1};
    u64 depth = args.pipes.depth;
    return Awaited{consumed_word(args.pipes, own, cursor.peer, cursor.pipe), cursor.counter + 1 - depth};
}

// Thread 0: waits until a pipe of this block can move a chunk, and returns its cursor. Searches from `first` on, so that no pipe starves.
static ANABRANCH_DEVICE u32 next_pick(const Grid& grid, const PipesArgs& args, WaitContext& wait, u32 first) {
    u32 count = cursors_of(grid, args), missing = ALL_DONE;
    for (u32 i = 0; i < count; ++i) {
        u32 at = (first + i) % count;
        if (missing == ALL_DONE && load_cursor(grid, args, at).transfer != NO_TRANSFER) missing = at;
    }
    if (missing == ALL_DONE) return ALL_DONE;
    // The cursor that a fault names.
    u32 pick = missing;
    Cursor named = load_cursor(grid, args, missing);
    u64 own = pipe_base(grid, args.pipes, args.pipes.team.rank);
    wait.epoch = named.counter;
    auto look = [&]() {
        for (u32 i = 0; i < count; ++i) {
            u32 at = (first + i) % count;
            Cursor cursor = load_cursor(grid, args, at);
            if (cursor.transfer == NO_TRANSFER) continue;
            Awaited awaited = awaited_by(args, own, cursor);
            if (!has_reached(flag_load(grid, awaited.word), awaited.counter)) continue;
            pick = at;
            return true;
        }
        return false;
    };
    auto who = [&]() {
        Awaited awaited = awaited_by(args, own, named);
        return Missing{named.peer, awaited.counter, flag_load(grid, awaited.word)};
    };
    u32 phase = named.is_receive ? PHASE_PIPE_MESSAGE : PHASE_PIPE_ROOM;
    if (wait_for(grid, wait, phase, look, who) != WAIT_OK) return FAILED;
    fence_acquire_system(grid);
    return pick;
}

// Thread 0: whether the message of the arrived chunk has the expected length.
static ANABRANCH_DEVICE bool has_length(const Grid& grid, const PipesArgs& args, const WaitContext& wait,
                                        const Cursor& cursor) {
    const Pipes& pipes = args.pipes;
    Transfer transfer = transfer_of(grid, args, cursor.transfer);
    u64 own = pipe_base(grid, pipes, pipes.team.rank);
    u64 sent = heap_load(grid, header_word(pipes, own, cursor.peer, cursor.pipe, cursor.counter));
    if (sent == transfer.bytes) return true;
    report_fault(grid, wait, PHASE_PIPE_LENGTH, cursor.peer, transfer.bytes, sent, grid.clock_ns() - wait.start_ns);
    return false;
}

// Every thread: copies the chunk of a cursor into the slot of the peer or out of the slot of this rank, then stores the flag.
static ANABRANCH_DEVICE void move_chunk(const Grid& grid, const PipesArgs& args, u32 pick) {
    const Pipes& pipes = args.pipes;
    Cursor cursor = load_cursor(grid, args, pick);
    Transfer transfer = transfer_of(grid, args, cursor.transfer);
    Cut cut = cut_of(pipes, transfer.bytes);
    u64 first = cursor.chunk * cut.chunk;
    u64 bytes = minimum(cut.chunk, transfer.bytes - minimum(first, transfer.bytes));
    u64 peer = pipe_base(grid, pipes, cursor.peer);
    u32 me = pipes.team.rank;
    u64* flag = nullptr;
    if (cursor.is_receive) {
        u64 slot = slot_of(pipes, pipe_base(grid, pipes, me), cursor.peer, cursor.pipe, cursor.counter);
        flag = consumed_word(pipes, peer, me, cursor.pipe);
        copy_bytes<LOADS_OF_LONG>(grid, transfer.address + first, slot, bytes);
    } else {
        flag = arrived_word(pipes, peer, me, cursor.pipe);
        if (grid.thread == 0) {
            remote_store(grid, header_word(pipes, peer, me, cursor.pipe, cursor.counter), transfer.bytes);
        }
        copy_bytes<LOADS_OF_LONG>(grid, slot_of(pipes, peer, me, cursor.pipe, cursor.counter), transfer.address + first, bytes);
    }
    block_release_system(grid);
    if (grid.thread != 0) return;
    flag_store(grid, flag, cursor.counter + 1);
    cursor.counter += 1;
    cursor.chunk += pipes.width;
    settle(grid, args, cursor);
    store_cursor(grid, pick, cursor);
}

}  // namespace ccl

ANABRANCH_KERNEL(anabranch_ccl_pipes, PipesArgs, 512) {
    const Pipes& pipes = args.pipes;
    WaitContext wait = wait_context(grid, pipes.team.control, pipes.operation, pipes.team.group, pipes.team.rank, 0);
    ccl::open_cursors(grid, args);
    bool dead = grid.thread == 0 && is_poisoned(grid, pipes.team.control);
    grid.block_barrier();
    for (u32 pick = 0;;) {
        if (grid.thread == 0) {
            pick = dead ? ccl::FAILED : ccl::next_pick(grid, args, wait, pick);
            if (pick < ccl::FAILED) {
                ccl::Cursor cursor = ccl::load_cursor(grid, args, pick);
                if (cursor.is_receive && !ccl::has_length(grid, args, wait, cursor)) pick = ccl::FAILED;
            }
            grid.local_store<u32>(ccl::LOCAL_PICK, pick);
        }
        grid.block_barrier();
        pick = grid.local_load<u32>(ccl::LOCAL_PICK);
        if (pick >= ccl::FAILED) break;
        ccl::move_chunk(grid, args, pick);
        pick += 1;
    }
    if (grid.thread == 0 && !dead) ccl::close_cursors(grid, args);
}
