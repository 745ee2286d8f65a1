// The packets of dispatch and combine in the queues of copy engines (transport `sdma`): rows, then their flag.
// Members whose route has no such queue get their rows by copies on streams, and the flag from a later kernel.
//
// Why a flag is never seen before its rows: all packets of one slot for one rank go into one queue, which processes them in
// order, and a fence waits for all packets before it. Why half a flag is not taken for a whole one: the flag is {epoch, count}, which an
// engine writes as two words, the count first. Until the epoch is written, a reader sees the last epoch and continues to wait. The
// epoch is the last write, so a reader that has seen it may reuse or free the word.
//
// Why the engines no longer access a slot's memory when the slot is used again or its plan is dropped: the receive of each operation
// waits until the send's packets are done (`wait_posted`), and the slot's next use, and the drop, come after that in slot order.
#pragma once

#include "anabranch/prelude.h"
#include "shmem/engine.h"

// The queue by which a slot reaches a rank; null where its route has none.
static ANABRANCH_DEVICE const SdmaQueue* queue_to(const Grid& grid, const TeamView& team, u32 slot, u32 peer) {
    u32 each = team.queues_per_peer;
    if (each == 0) return nullptr;
    const SdmaQueue* entry = team.queues + (static_cast<u64>(peer) * each + slot % each);
    bool is_written_here = private_load(grid, &entry->route) == static_cast<u32>(shmem::RouteKind::QUEUE);
    return is_written_here ? entry : nullptr;
}

// Bytes of this rank that go to a peer.
struct Payload {
    u64 source;
    u64 target;
    u64 bytes;
};

// Posts payloads and then the flag to a queue; `posted` gets the position to wait for. The payloads were released at system
// scope. One lane. An expired wait poisons the world.
template <u32 COUNT>
static ANABRANCH_DEVICE void post_payloads(const Grid& grid, const WaitContext& wait, const SdmaQueue* entry,
                                           const Payload (&payloads)[COUNT], u64* flag, u64 value, u64* posted) {
    SdmaQueue queue = sdma::load_queue(grid, entry);
    u64 end = 0;
    sdma::Operation flagging = {0, 0, 0, sdma::Tail::FLAG, flag, value, true};
    ANABRANCH_UNROLL
    for (u32 i = 0; i < COUNT; ++i) {
        sdma::Operation copy = {payloads[i].source, payloads[i].target, payloads[i].bytes, sdma::Tail::NOTHING, nullptr, 0, false};
        if (sdma::post(grid, wait, queue, copy, end) != WAIT_OK) return;
    }
    if (sdma::post(grid, wait, queue, flagging, end) != WAIT_OK) return;
    private_store(grid, posted, end);
}

// A block waits until the engines have done the packets of the slot's last send. It returns earlier only in a poisoned world.
static ANABRANCH_DEVICE void wait_posted(const Grid& grid, const TeamView& team, const WaitContext& wait, u32 slot,
                                         const u64* posted) {
    for (u32 peer = grid.thread; peer < team.size; peer += grid.block_threads) {
        const SdmaQueue* entry = queue_to(grid, team, slot, peer);
        if (entry == nullptr) continue;
        sdma::wait_done(grid, wait, sdma::load_queue(grid, entry), private_load(grid, posted + peer));
    }
}
