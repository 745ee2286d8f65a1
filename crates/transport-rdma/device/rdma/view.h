// A queue as its owner described it, what a fault record says of one, and what a request must be.
#pragma once

#include "rdma/provider.h"

namespace rdma {

enum Phase : u32 {
    // peer: whose queue it is; expected: the end that found no room, or the start whose turn did not come; seen: how far the NIC has come,
    // or others have made entries known. Of `fetch` also its completion: the position and how far the NIC is.
    PHASE_NIC_POST = 0x5501,
    PHASE_NIC_DONE = 0x5502,          // expected: the position that everything before is to be done of; seen: how far it is
    // expected: the entry's position (bnxt_re and ionic: how far completions were known); seen: mlx5: vendor syndrome << 8 | syndrome, else
    // the status as the provider numbers it
    PHASE_NIC_ERROR = 0x5503,
    PHASE_NIC_UNREGISTERED = 0x5504,  // expected: the local address; seen: bytes
    // expected: the opcode; seen: bytes of its word, value or fetched value, of a write whose immediate the peer does not take, or of
    // what would be brought here where nothing orders it before its completion
    PHASE_NIC_UNSUPPORTED = 0x5505,
    PHASE_NIC_OUT_OF_RANGE = 0x5506,  // beyond the peer's heap, or off a word's boundary. expected: the remote address; seen: bytes
};

// RdmaQueue::read_order, ReadOrder in Rust.
static constexpr u32 READ_ORDER_NONE = 0, READ_ORDER_DUMPED = 2;

// Whether the NIC writes to this device's memory what the caller then reads.
ANABRANCH_DEVICE constexpr bool brings_values(Opcode opcode, bool fetches) { return fetches || opcode == Opcode::READ; }

// Whether the provider, as the unit was compiled, has an operation on words of `word_bytes` (which says nothing of others than atomic
// ones).
ANABRANCH_DEVICE constexpr bool supports(Opcode opcode, u32 word_bytes) { return Provider::supports(opcode, word_bytes); }

// The queue at `queue`, which may be in memory of this rank alone. Any lane.
ANABRANCH_DEVICE RdmaQueue load_queue(const Grid& grid, const RdmaQueue* queue) {
    RdmaQueue loaded;
    loaded.ring = private_load(grid, &queue->ring);
    loaded.completions = private_load(grid, &queue->completions);
    loaded.doorbell_record = private_load(grid, &queue->doorbell_record);
    loaded.doorbell = private_load(grid, &queue->doorbell);
    loaded.sequence_table = private_load(grid, &queue->sequence_table);
    loaded.reserved = private_load(grid, &queue->reserved);
    loaded.committed = private_load(grid, &queue->committed);
    loaded.completed = private_load(grid, &queue->completed);
    loaded.results = private_load(grid, &queue->results);
    loaded.ranges = private_load(grid, &queue->ranges);
    loaded.remote_base = private_load(grid, &queue->remote_base);
    loaded.remote_bytes = private_load(grid, &queue->remote_bytes);
    loaded.doorbell_value = private_load(grid, &queue->doorbell_value);
    loaded.entries = private_load(grid, &queue->entries);
    loaded.number = private_load(grid, &queue->number);
    loaded.remote_key = private_load(grid, &queue->remote_key);
    loaded.results_key = private_load(grid, &queue->results_key);
    loaded.range_count = private_load(grid, &queue->range_count);
    loaded.most_message_bytes = private_load(grid, &queue->most_message_bytes);
    loaded.path_mtu = private_load(grid, &queue->path_mtu);
    loaded.route = private_load(grid, &queue->route);
    loaded.peer = private_load(grid, &queue->peer);
    loaded.immediates = private_load(grid, &queue->immediates);
    loaded.read_order = private_load(grid, &queue->read_order);
    return loaded;
}

// The key of the registered range that holds all of `bytes` at `address`; whether there is one.
//
// The table may change meanwhile (ranges.rs): a range joins with no bytes, then gets them; one that leaves loses them. Whose range it is
// keeps it until what was posted with it is done, so that the key that is found is good while the NIC uses it. A lane that looks for
// another range may see part of a place from before it was given away and part from afterwards, and take the new range's key for an
// address that is not in it. It therefore looks at address and bytes again, behind an acquire: a place loses its bytes before anything
// else of it changes, so that neither has changed where all four are of one range. A place that has changed holds no range of this lane's.
ANABRANCH_DEVICE bool find_key(const Grid& grid, const RdmaQueue& queue, u64 address, u64 bytes, u32& key) {
    for (u32 i = 0; i < queue.range_count; ++i) {
        const RdmaRange* range = queue.ranges + i;
        u64 start = private_load(grid, &range->address);
        u64 length = private_load(grid, &range->bytes);
        u64 before = address - start;
        if (before > length || bytes > length - before) continue;
        key = private_load(grid, &range->key);
        fence_acquire_system(grid);
        if (private_load(grid, &range->address) == start && private_load(grid, &range->bytes) == length) return true;
    }
    return false;
}

// Whether a request is one that the NIC would do; if not, it is reported. `key` gets that of its local side, unless it `fetches`: then
// what it brings goes to a result slot, and it is an operation on a word, or a read of one. Words and values are in one piece for whoever
// reads them, so they lie on boundaries of their own size.
ANABRANCH_DEVICE bool is_allowed(const Grid& grid, const WaitContext& wait, const RdmaQueue& queue, const Request& request, bool fetches,
                                 u32& key) {
    Opcode opcode = request.opcode;
    bool is_word = is_atomic(opcode);
    u64 bytes = is_word ? request.word_bytes : request.bytes;
    bool is_size = bytes == 4 || bytes == 8 || (!is_word && (bytes == 1 || bytes == 2));
    bool is_range = has_local(opcode) && !fetches;
    bool is_known = is_range || (is_size && supports(opcode, request.word_bytes) && !(fetches && !is_word && opcode != Opcode::READ));
    u64 before = request.remote - queue.remote_base;
    if (opcode == Opcode::WRITE_IMMEDIATE && queue.immediates == 0) is_known = false;
    if (queue.read_order == READ_ORDER_NONE && brings_values(opcode, fetches)) is_known = false;
    bool is_inside = before <= queue.remote_bytes && bytes <= queue.remote_bytes - before;
    u32 phase = 0;
    u64 expected = request.remote;
    if (!is_known) {
        phase = PHASE_NIC_UNSUPPORTED;
        expected = static_cast<u64>(opcode);
    } else if (!is_inside || (!is_range && request.remote % bytes != 0)) {
        phase = PHASE_NIC_OUT_OF_RANGE;
    } else if (is_range && bytes != 0 && !find_key(grid, queue, request.local, bytes, key)) {
        phase = PHASE_NIC_UNREGISTERED;
        expected = request.local;
    }
    if (phase != 0) report_fault(grid, wait, phase, queue.peer, expected, bytes, 0);
    return phase == 0;
}

}  // namespace rdma
