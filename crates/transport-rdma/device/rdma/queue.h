// The producers' side of a NIC's send queues in kernels: any number of lanes of one GPU, on any of its queue pairs, at once.
//
// A request takes one to three entries. A lane
// 1. takes room, by moving `reserved` on when `completed` is far enough: what is taken is never given back;
// 2. writes its entries. No other lane writes there: `reserved` gave each position to one lane, and the NIC is done with it;
// 3. releases them at system scope, and with them what they send;
// 4. waits until `committed` is where its entries start: everything before is written and has been made known;
// 5. rings the doorbell (a record before it, where the NIC has one), then stores `committed`, a release between each.
// Doorbells are therefore rung in ascending order, and entries of others before are in memory then: each producer released its own
// before it moved `committed` on. Nothing is read behind step 4 that another lane wrote, so that there is nothing to acquire; the stores
// of step 5 are behind the load of step 4 because they depend on what it saw.
//
// All steps are one loop, that of `fetch` with the wait for the completion: lanes of a wave may run in lock step, and one that waits
// must not keep the lane that it waits for from going on: what that one does must be the loop's body, not what follows it (`stays_inside`).
//
// All queues of a NIC have one doorbell register, whose value says the queue (but for the host's, each of which has a word). Lanes that
// have their turn at once, on different queues, therefore ring one by one, each drained before the next one's.
//
// `completed` only grows, by whichever lane looks: it is exchanged from the value that the NIC's word was compared with. It is never more
// than a ring behind the NIC, so that 16 bits of the NIC's count are enough.
//
// What an operation fetches goes to the result slot of its first entry: two words, the value, and who waits for it (its position plus
// one, or zero). The slot of a position is that of the one a ring later. That one may be taken as soon as this is complete, which
// is before its lane has read the value; so a lane takes the slot, too, behind taking room, and gives it back when it has read. It waits for
// lanes whose operations are complete and which need nothing of it. Unused values go to one more slot after the ring's.
//
// A lane whose wait expires in step 1 has taken nothing. One that gives up later has taken a range that it does not submit: the NIC
// never sees that request nor any later one, and the world is poisoned, so that no lane begins another one.
#pragma once

#include "rdma/doorbell.h"
#include "rdma/view.h"

namespace rdma {

// A word of the results: the value, and the position that holds the slot plus one.
static constexpr u32 RESULT_WORDS = 2;

// How far the NIC is, brought up to date. A failure is reported, and poisons.
ANABRANCH_DEVICE u64 look(const Grid& grid, const WaitContext& wait, const RdmaQueue& queue) {
    u64 completed = flag_load(grid, queue.completed);
    Progress progress = Provider::look(grid, queue, completed);
    if (progress.completed != completed) {
        u64 found = compare_swap_system(grid, queue.completed, completed, progress.completed);
        if (found == completed) completed = progress.completed;
    }
    if (progress.failed && !is_poisoned(grid, wait.control)) {
        u64 waited = grid.clock_ns() - wait.start_ns;
        report_fault(grid, wait, PHASE_NIC_ERROR, queue.peer, progress.position, progress.syndrome, waited);
    }
    return completed;
}

// Whether everything before `end` is done.
ANABRANCH_DEVICE bool is_done(const Grid& grid, const WaitContext& wait, const RdmaQueue& queue, u64 end) {
    if (has_reached(flag_load(grid, queue.completed), end)) return true;
    return has_reached(look(grid, wait, queue), end);
}

// One request of a length that the NIC takes, and the dump behind it where the queue's completions need one. With `fetches`, it is waited for, and `old` gets what it brought; `key` is then not used.
// `end` gets the position behind it. One lane.
ANABRANCH_DEVICE WaitStatus post_one(const Grid& grid, const WaitContext& wait, const RdmaQueue& queue, const Request& asked,
                                     u32 key, bool fetches, u64& end, u64& old) {
    Request request = asked;
    bool is_dumped = Provider::DUMPS && queue.read_order == READ_ORDER_DUMPED && brings_values(asked.opcode, fetches);
    request.dumped = is_dumped ? 1 : 0;
    enum class Stage : u32 { ROOM, SLOT, TURN, COMPLETION };
    Stage stage = Stage::ROOM;
    u32 count = Provider::entries_of(request);
    u64 taken = 0, start = 0, completed = 0;
    u64* slot = queue.results + static_cast<u64>(queue.entries) * RESULT_WORDS;
    end = 0;
    return wait_for(
        grid, wait, PHASE_NIC_POST,
        [&]() {
            if (stage == Stage::ROOM) {
                taken = flag_load(grid, queue.reserved);
                completed = flag_load(grid, queue.completed);
                start = Provider::position(taken, completed);
                u64 room = queue.entries - Provider::SPARE;
                if (start + count - completed > room) {
                    look(grid, wait, queue);
                    return false;
                }
                // A position that the NIC has passed was read before another lane took it: the exchange finds that.
                u64 next = Provider::after(queue, taken, request);
                if (compare_swap_system(grid, queue.reserved, taken, next) != taken) return false;
                end = Provider::end(next, completed);
                if (fetches) slot = queue.results + (start & (queue.entries - 1)) * RESULT_WORDS;
                stage = Stage::SLOT;
            }
            if (stage == Stage::SLOT) {
                if (fetches) {
                    u64 holder = compare_swap_system(grid, slot + 1, 0ull, start + 1);
                    if (holder != 0) return false;
                }
                bool is_named = has_local(request.opcode) && !fetches;
                Local local = is_named ? Local{request.local, key} : Local{reinterpret_cast<u64>(slot), queue.results_key};
                if (request.opcode == Opcode::WRITE_VALUE) local = {0, 0};
                Provider::write(grid, queue, request, local, start, taken);
                fence_release_system(grid);
                if constexpr (Provider::MARKS) {
                    Provider::mark(grid, queue, request, start);
                    fence_release_system(grid);
                }
                stage = Stage::TURN;
            }
            if (stage == Stage::TURN) {
                if (flag_load(grid, queue.committed) != start) return false;
                Provider::record(grid, queue, start + count);
                auto ring = [&]() {
                    store_doorbell(grid, queue, Provider::doorbell(queue, request, start, start + count));
                    fence_release_system(grid);
                };
                grid.one_by_one(ring);
                flag_store(grid, queue.committed, start + count);
                if (!fetches) return stays_inside();
                stage = Stage::COMPLETION;
            }
            if (!is_done(grid, wait, queue, end)) return false;
            fence_acquire_system(grid);
            old = Provider::fetched(request, flag_load(grid, slot));
            fence_release_system(grid);  // the value is read before another lane's comes
            flag_store(grid, slot + 1, 0ull);
            return stays_inside();
        },
        [&]() {
            if (stage == Stage::TURN) return Missing{queue.peer, start, flag_load(grid, queue.committed)};
            return Missing{queue.peer, start + count, flag_load(grid, queue.completed)};
        });
}

// Puts a request into the queue: a write or read of any length, in several pieces where the NIC takes less at once. What it sends has been
// released at system scope, or was written by this lane. Writes and reads of no bytes are nothing, but for an immediate. What an
// operation on a word fetches is dropped. `end` gets the position for `wait_done`. One lane.
//
// A request that cannot be done is a fault (PHASE_NIC_UNREGISTERED, PHASE_NIC_UNSUPPORTED, PHASE_NIC_OUT_OF_RANGE), and nothing moves.
ANABRANCH_DEVICE WaitStatus post(const Grid& grid, const WaitContext& wait, const RdmaQueue& queue, const Request& request, u64& end) {
    u32 key = 0;
    u64 unwanted = 0;
    end = 0;
    if (is_poisoned(grid, wait.control) || !is_allowed(grid, wait, queue, request, false, key)) return WAIT_FAULT;
    Request piece = request;
    if (has_local(request.opcode)) {
        u64 most = minimum<u64>(queue.most_message_bytes, Provider::MOST_MESSAGE_BYTES);
        if (request.opcode == Opcode::WRITE_IMMEDIATE) piece.opcode = Opcode::WRITE;
        u64 left = request.bytes;
        for (piece.bytes = most; left > most; left -= most) {
            if (post_one(grid, wait, queue, piece, key, false, end, unwanted) != WAIT_OK) return WAIT_FAULT;
            piece.local += most;
            piece.remote += most;
            piece.fenced = 0;
        }
        piece.bytes = left;
        piece.opcode = request.opcode;
        if (left == 0 && request.opcode != Opcode::WRITE_IMMEDIATE) {
            end = flag_load(grid, queue.completed);
            return WAIT_OK;
        }
    }
    return post_one(grid, wait, queue, piece, key, false, end, unwanted);
}

// Does an operation on a word, or a read of 1, 2, 4 or 8 bytes (whose `local` says nothing), and waits for it: `old` gets the value
// that was there, in its low bytes. Faults as `post`'s. One lane; others of its wave may do the same.
ANABRANCH_DEVICE WaitStatus fetch(const Grid& grid, const WaitContext& wait, const RdmaQueue& queue, const Request& request, u64& old) {
    u32 key = 0;
    u64 end = 0;
    if (is_poisoned(grid, wait.control) || !is_allowed(grid, wait, queue, request, true, key)) return WAIT_FAULT;
    if (post_one(grid, wait, queue, request, key, true, end, old) != WAIT_OK) return WAIT_FAULT;
    old = low_bytes(old, length_of(request));
    return WAIT_OK;
}

// Waits until everything before the position `end` is done: what was sent may be written again, and the peer's NIC has it, which is not
// to say that it is in memory: it is seen behind a later write, value or atomic operation of a queue pair of the same two NICs (docs, "What
// a NIC's completion says"). What was read is here, and is read behind an acquire (`acquire_after_wait`). One lane.
ANABRANCH_DEVICE WaitStatus wait_done(const Grid& grid, const WaitContext& wait, const RdmaQueue& queue, u64 end) {
    WaitStatus status = wait_for(
        grid, wait, PHASE_NIC_DONE, [&]() { return is_done(grid, wait, queue, end); },
        [&]() { return Missing{queue.peer, end, flag_load(grid, queue.completed)}; });
#if ANABRANCH_POLL_ACQUIRES
    // Where polls acquire of themselves `acquire_after_wait` is nothing, and the looks at a NIC's words are relaxed.
    fence_acquire_system(grid);
#endif
    return status;
}

// Waits for everything that was put into the queue before, by any lane that has returned from `post`, as `wait_done` does. One lane.
ANABRANCH_DEVICE WaitStatus quiet(const Grid& grid, const WaitContext& wait, const RdmaQueue& queue) {
    u64 completed = flag_load(grid, queue.completed);
    return wait_done(grid, wait, queue, Provider::end(flag_load(grid, queue.reserved), completed));
}

}  // namespace rdma
