// Copies, values and signals by NIC, where a peer's route has queue pairs that kernels write (transport `rdma`). The unit is compiled
// with SHMEM_NIC = 1 then, RDMA_PROVIDER and RDMA_ATOMICS; such a peer is not mapped, and its objects are at addresses of its NIC.
//
// The leader of a scope puts requests into one queue pair: that of its wave, out of the peer's. What the scope's lanes stored is
// released before, as a NIC reads memory and no cache. The queue pair depends on the numbers of the block and of its wave alone: wave 0 of
// block b, by which blocks put, has the same in every launch, however many threads its blocks have. Flags that the same block writes from
// launch to launch (ccl/links.h) are therefore in order. A word that different blocks set could go back, because queue pairs are not ordered
// with each other: `team_sync`, which any block may call, uses the peer's first queue pair (`first_nic_entry`). For `signal` and `p` on a
// word this is the caller's duty: one block sets it, or the next value is sent after the peer has shown that it read the last one
// (ep/kernels/dispatch_nodes.hip).
//
// Order: writes and values of one queue pair are done at the peer in the order in which they were posted, and atomic operations after
// earlier writes. So a signal after a copy needs no fence. Requests after reads and atomic operations may overtake these (InfiniBand
// specification, volume 1, "work request operation ordering"): a fence waits for what the wave's queue pair has.
#pragma once

#include "shmem/scope.h"

#if SHMEM_NIC
#include "rdma/rdma.h"
#endif

namespace shmem {

#if SHMEM_NIC

// The entry of a peer's queue pair in the team's table that this lane's wave uses. The peer is reached by NIC.
ANABRANCH_DEVICE const RdmaQueue* nic_entry(const Grid& grid, const Context& context, GroupRank peer) {
    u32 each = context.team.nics_per_peer;
    u32 channel = (grid.block + grid.wave()) % each;
    return context.team.nics + (static_cast<u64>(peer.value) * each + channel);
}

// The first of them, for every caller.
ANABRANCH_DEVICE const RdmaQueue* first_nic_entry(const Context& context, GroupRank peer) {
    return context.team.nics + static_cast<u64>(peer.value) * context.team.nics_per_peer;
}

ANABRANCH_DEVICE Status from_nic(WaitStatus status) { return status == WAIT_OK ? Status::OK : Status::FAULT; }

// A copy of `bytes` to or from the peer.
ANABRANCH_DEVICE rdma::Request nic_copy(rdma::Opcode opcode, const void* local, const void* remote, u64 bytes) {
    rdma::Request request = {};
    request.opcode = opcode;
    request.local = reinterpret_cast<u64>(local);
    request.remote = reinterpret_cast<u64>(remote);
    request.bytes = bytes;
    return request;
}

// The low `bytes` (1, 2, 4 or 8) of a value, in one piece.
ANABRANCH_DEVICE rdma::Request nic_value(const void* remote, u64 value, u32 bytes) {
    rdma::Request request = nic_copy(rdma::Opcode::WRITE_VALUE, nullptr, remote, bytes);
    request.value = value;
    return request;
}

// An atomic operation on a word of the peer.
ANABRANCH_DEVICE rdma::Request nic_operation(rdma::Opcode opcode, const void* remote, u64 value, u64 compare, u32 bytes) {
    rdma::Request request = nic_copy(opcode, nullptr, remote, 0);
    request.value = value;
    request.compare = compare;
    request.word_bytes = bytes;
    return request;
}

// Posts a copy for `peer`, and after it a signal if `signals`, to its queue pair. If `waits`, waits until they are done, so that what
// was copied here may be read, and what was copied from here written again. All lanes of the scope, equal arguments.
template <class Scope>
ANABRANCH_DEVICE Status by_nic(const Grid& grid, const Context& context, GroupRank peer, const rdma::Request& copy, bool signals,
                               const rdma::Request& signal, bool waits) {
    Scope::release_for_leader(grid);
    Status status = Status::OK;
    if (Scope::lane(grid) == 0) {
        RdmaQueue queue = rdma::load_queue(grid, nic_entry(grid, context, peer));
        u64 end = 0, first = 0;
        u32 no_key = 0;
        WaitStatus done = WAIT_OK;
        // Before the copy: if the signal is refused, nothing moves.
        bool is_looked_at = signals && !is_poisoned(grid, context.wait.control);
        if (is_looked_at && !rdma::is_allowed(grid, context.wait, queue, signal, false, no_key)) done = WAIT_FAULT;
        if (done == WAIT_OK) done = rdma::post(grid, context.wait, queue, copy, first);
        if (done == WAIT_OK && signals) done = rdma::post(grid, context.wait, queue, signal, end);
        if (!signals) end = first;
        if (done == WAIT_OK && waits) {
            done = rdma::wait_done(grid, context.wait, queue, end);
            acquire_after_wait(grid);
        }
        status = from_nic(done);
    }
    Scope::barrier(grid);
    return static_cast<Status>(Scope::broadcast(grid, static_cast<u64>(status)));
}

// A value of 1, 2, 4 or 8 bytes as a number.
template <u32 BYTES>
struct NicWord;
template <>
struct NicWord<1> {
    typedef u8 Raw;
};
template <>
struct NicWord<2> {
    typedef u16 Raw;
};
template <>
struct NicWord<4> {
    typedef u32 Raw;
};
template <>
struct NicWord<8> {
    typedef u64 Raw;
};

// Stores a value at the peer, by the queue pair of this entry. One thread.
template <class T>
ANABRANCH_DEVICE Status put_value_by_nic(const Grid& grid, const Context& context, const RdmaQueue* entry, T* to, T value) {
    u64 number = bit_cast<typename NicWord<sizeof(T)>::Raw>(value);
    RdmaQueue queue = rdma::load_queue(grid, entry);
    u64 end = 0;
    return from_nic(rdma::post(grid, context.wait, queue, nic_value(to, number, sizeof(T)), end));
}

// Loads a value of the peer; zero after a fault. One thread.
template <class T>
ANABRANCH_DEVICE T get_value_by_nic(const Grid& grid, const Context& context, GroupRank peer, const T* from) {
    RdmaQueue queue = rdma::load_queue(grid, nic_entry(grid, context, peer));
    u64 number = 0;
    rdma::Request read = nic_copy(rdma::Opcode::READ, nullptr, from, sizeof(T));
    if (rdma::fetch(grid, context.wait, queue, read, number) != WAIT_OK) return T{};
    return bit_cast<T>(static_cast<typename NicWord<sizeof(T)>::Raw>(number));
}

// Waits for what this lane's wave has put into its queue pairs to `count` peers from `first` on. One thread; an expired wait has poisoned
// the world.
ANABRANCH_DEVICE void finish_nics(const Grid& grid, const Context& context, u32 first, u32 count) {
    for (u32 peer = first; peer < first + count; ++peer) {
        if (!is_by_nic(grid, context, GroupRank{peer})) continue;
        RdmaQueue queue = rdma::load_queue(grid, nic_entry(grid, context, GroupRank{peer}));
        rdma::quiet(grid, context.wait, queue);
    }
}

// Waits for what was put into the queue pairs of `count` peers from `first` on. All lanes of the scope; an expired wait has poisoned
// the world.
template <class Scope>
ANABRANCH_DEVICE void drain_nics(const Grid& grid, const Context& context, u32 first, u32 count) {
    u32 each = context.team.nics_per_peer;
    for (u32 index = first * each + Scope::lane(grid); index < (first + count) * each; index += Scope::lanes(grid)) {
        RdmaQueue queue = rdma::load_queue(grid, context.team.nics + index);
        if (queue.route == ROUTE_NIC) rdma::quiet(grid, context.wait, queue);
    }
}

#endif

}  // namespace shmem
