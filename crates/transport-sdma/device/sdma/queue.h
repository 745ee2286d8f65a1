// The producers' side of copy engines' queues in kernels: any number of lanes of one GPU, on any of its queues, at once.
//
// An operation is what is put into a queue in one piece: copies and, behind them, a signal at the peer and a word of the queue's
// own that says that everything so far is done. A lane
// 1. takes room, by moving `reserved` on when the engine has read far enough: what is taken is never given back;
// 2. writes what it passes over at the ring's end, its packets, and what fills its last unit. No other lane writes there:
//    `reserved` gave each position to one lane, and the engine has left it;
// 3. releases them at system scope, and with them what it copies from;
// 4. waits until `committed` is where its operation starts: everything before is written and has been made known;
// 5. stores the write pointer, then the doorbell, then `committed`, a release between each.
// Doorbells are therefore rung in ascending order, and words of others before are in memory then: each producer released its own
// before it moved `committed` on. Nothing is read behind step 4 that another lane wrote, so that there is nothing to acquire; the stores
// of step 5 are behind the load of step 4 because they depend on what it saw.
//
// Steps 1 and 4 are one loop: lanes of a wave may run in lock step, and one that waits for its turn must not keep the lane
// that it waits for from making its packets known (the loop's body does that, not what follows it).
//
// A lane whose wait expires in step 1 has taken nothing. One that gives up in step 4 has taken a range that it does not
// submit: the engine never sees that operation nor any later one, and the world is poisoned, so that no lane begins another one.
#pragma once

#include "anabranch/prelude.h"
#include "sdma/words.h"

namespace sdma {

enum Phase : u32 {
    // peer: whose queue it is; expected: the end that found no room, or the start whose turn did not come; seen: how far the engine
    // has read, or others have made packets known
    PHASE_POST = 0x5401,
    PHASE_DONE = 0x5402,  // ...; expected: the unit that everything before is to be done of; seen: the last one that was
};

// The queue as its owner described it.
ANABRANCH_DEVICE SdmaQueue load_queue(const Grid& grid, const SdmaQueue* queue) {
    SdmaQueue loaded;
    loaded.ring = private_load(grid, &queue->ring);
    loaded.reserved = private_load(grid, &queue->reserved);
    loaded.committed = private_load(grid, &queue->committed);
    loaded.done = private_load(grid, &queue->done);
    loaded.write_pointer = private_load(grid, &queue->write_pointer);
    loaded.doorbell = private_load(grid, &queue->doorbell);
    loaded.read_pointer = private_load(grid, &queue->read_pointer);
    loaded.ring_bytes = private_load(grid, &queue->ring_bytes);
    loaded.most_copy_bytes = private_load(grid, &queue->most_copy_bytes);
    loaded.fence_head = private_load(grid, &queue->fence_head);
    loaded.route = private_load(grid, &queue->route);
    loaded.peer = private_load(grid, &queue->peer);
    return loaded;
}

// Puts an operation whose words fit half the ring into the queue. `end` gets the position behind it. One lane.
ANABRANCH_DEVICE WaitStatus post_piece(const Grid& grid, const WaitContext& wait, const SdmaQueue& queue,
                                       const Operation& operation, u64& end) {
    u64 pieces = (operation.bytes + queue.most_copy_bytes - 1) / queue.most_copy_bytes;
    Operation packets = operation;
    u64 start = 0;
    u64 read = 0;
    bool placed = false;
    end = 0;
    return wait_for(
        grid, wait, PHASE_POST,
        [&]() {
            if (!placed) {
                u64 at = flag_load(grid, queue.reserved);
                u64 left = queue.ring_bytes - (at & (queue.ring_bytes - 1));
                // What comes to the ring's end tells, so that `done` is never more than two rings behind.
                packets.tells = operation.tells || bytes_of(packets, pieces, true) >= left;
                u64 bytes = bytes_of(packets, pieces, packets.tells);
                u64 padding = bytes > left ? left : 0;
                end = at + padding + bytes;
                read = flag_load(grid, queue.read_pointer);
                // One unit stays free, so that a full ring does not look empty. A position that the engine has passed was read
                // before another lane took it: the exchange below finds that.
                u64 room = queue.ring_bytes - UNIT;
                if (end - read > room) return false;
                if (compare_swap_system(grid, queue.reserved, at, end) != at) return false;
                start = at;
                placed = true;
                write_packets(grid, queue, packets, start, padding, end);
                fence_release_system(grid);
            }
            if (flag_load(grid, queue.committed) != start) return false;
            flag_store(grid, queue.write_pointer, end);
            fence_release_system(grid);
            flag_store(grid, queue.doorbell, end);
            fence_release_system(grid);
            flag_store(grid, queue.committed, end);
            return stays_inside();
        },
        [&]() { return placed ? Missing{queue.peer, start, flag_load(grid, queue.committed)} : Missing{queue.peer, end, read}; });
}

// Puts an operation of any length into the queue: in several pieces where the ring does not hold it at once, the signal behind
// the last. What it copies from has been released at system scope, or was written by this lane. No bytes and no tail are
// nothing. One lane.
ANABRANCH_DEVICE WaitStatus post(const Grid& grid, const WaitContext& wait, const SdmaQueue& queue,
                                 const Operation& operation, u64& end) {
    if (is_poisoned(grid, wait.control)) return WAIT_FAULT;
    u64 room = queue.ring_bytes / 2 / 4 - SIGNAL_WORDS - SDMA_FENCE_WORDS;
    u64 most = room / SDMA_COPY_WORDS * queue.most_copy_bytes;
    Operation piece = operation;
    u64 left = operation.bytes;
    while (left > most) {
        piece.bytes = most;
        piece.tail = Tail::NOTHING;
        piece.tells = false;
        if (post_piece(grid, wait, queue, piece, end) != WAIT_OK) return WAIT_FAULT;
        piece.source += most;
        piece.target += most;
        left -= most;
    }
    piece.bytes = left;
    piece.tail = operation.tail;
    piece.tells = operation.tells;
    if (left == 0 && piece.tail == Tail::NOTHING && !piece.tells) {
        end = flag_load(grid, queue.reserved);
        return WAIT_OK;
    }
    return post_piece(grid, wait, queue, piece, end);
}

// Waits until everything before the position `end` is done, which an operation at or behind it tells. Whoever reads what was copied
// acquires afterwards (`acquire_after_wait`). One lane.
ANABRANCH_DEVICE WaitStatus wait_done(const Grid& grid, const WaitContext& wait, const SdmaQueue& queue, u64 end) {
    u32 unit = static_cast<u32>(end / UNIT);
    u64 seen = 0;
    // The engine writes 32 bits, and is at most two rings behind: far less than half of what they count.
    return wait_until(
        grid, wait, PHASE_DONE, queue.peer, unit, queue.done,
        [unit](u64 now) { return static_cast<i32>(static_cast<u32>(now) - unit) >= 0; }, seen);
}

// Completes everything that was put into the queue before, by any lane that has returned from `post`. One lane.
ANABRANCH_DEVICE WaitStatus quiet(const Grid& grid, const WaitContext& wait, const SdmaQueue& queue) {
    u64 reserved = flag_load(grid, queue.reserved);
    if (static_cast<u32>(flag_load(grid, queue.done)) == static_cast<u32>(reserved / UNIT)) return WAIT_OK;
    Operation tells = {0, 0, 0, Tail::NOTHING, nullptr, 0, true};
    u64 end = 0;
    if (post(grid, wait, queue, tells, end) != WAIT_OK) return WAIT_FAULT;
    return wait_done(grid, wait, queue, end);
}

}  // namespace sdma
