// Types of the symmetric heap: ranks, symmetric objects, the context of a kernel, and the status of an operation. Everything is in the
// namespace `shmem`; nothing is global, a kernel makes its `Context` from its arguments.
//
// Every operation takes the grid first and the context second. `<Scope>` (scope.h) is the group of threads that call it together.
#pragma once

#include "anabranch/prelude.h"

// 1 adds checks of the caller's duties (natural alignment of words, one peer for a whole wave).
#ifndef SHMEM_DEBUG
#define SHMEM_DEBUG 0
#endif
// 1 if copies to some peer go through copy engines (engine.h). Set by `World::kernel`.
#ifndef SHMEM_ENGINES
#define SHMEM_ENGINES 0
#endif
// 1 if some peer is reached by a NIC (nic.h). Set by `World::kernel`, with RDMA_PROVIDER and RDMA_ATOMICS.
#ifndef SHMEM_NIC
#define SHMEM_NIC 0
#endif

namespace shmem {

// A rank of the team that the context is for. An aggregate: `GroupRank{3}` is written out, a bare number does not convert.
struct GroupRank {
    u32 value;

    ANABRANCH_DEVICE bool operator==(GroupRank other) const { return value == other.value; }
    ANABRANCH_DEVICE bool operator!=(GroupRank other) const { return value != other.value; }
};

// An object of the heap: `offset` bytes from the heap's start, the same on every rank. Not a pointer and never made from
// one: the address at a peer is the peer's base plus the offset. The address is aligned to T's size only if the offset is.
template <class T>
struct Symmetric {
    u64 offset;

    // The object `elements` further on.
    ANABRANCH_DEVICE Symmetric operator+(u64 elements) const { return Symmetric{offset + elements * sizeof(T)}; }
    // The same place as objects of another type.
    template <class U>
    ANABRANCH_DEVICE Symmetric<U> cast() const {
        return Symmetric<U>{offset};
    }
};

// The result of an operation, the same in every lane of the scope.
enum class Status : u32 {
    OK = 0,
    FAULT = 1,        // the wait timed out or the world is poisoned; the fault record has which
    UNREACHABLE = 2,  // no such rank, or its heap is not mapped here; nothing was touched, a fault was reported
    MISUSE = 3,       // SHMEM_DEBUG only: lanes of a wave named different peers; nothing was touched, a fault was reported
    UNSUPPORTED = 4,  // kernels cannot do it over this peer's route; nothing was touched, a fault was reported
};

// The phase in the fault records of these operations. The operation's code there is the context's.
enum Phase : u32 {
    PHASE_SIGNAL_WAIT = 0x5301,  // peer: the rank that should have signalled; expected: the value compared with
    PHASE_WAIT_ALL = 0x5302,     // as above, for one word of several
    PHASE_WAIT_ANY = 0x5303,     // peer: the rank that signals the first of the words
    PHASE_TEAM_SYNC = 0x5304,    // peer: the rank that has not arrived; expected: the epoch
    PHASE_UNREACHABLE = 0x5305,  // peer: the rank that cannot be reached; expected: the offset
    PHASE_MISUSE = 0x5306,       // peer: the rank named; expected: the offset
    PHASE_UNSUPPORTED = 0x5307,  // peer: the rank whose copy engines the host alone drives; expected: the offset
    PHASE_NIC_CONTENDED = 0x5308,  // peer: whose word others changed before each try; expected: what it was
};

// A team and the budget of waits, for the operations of a kernel. Each thread makes its own, at the kernel's start: the budget of its
// waits counts from there. An operation orders and completes what was issued through contexts of the same team by the
// lanes that call it; mapped memory keeps no other state, and queues of copy engines are the team's.
struct Context {
    TeamView team;
    WaitContext wait;

    ANABRANCH_DEVICE GroupRank rank() const { return GroupRank{team.rank}; }
    ANABRANCH_DEVICE u32 size() const { return team.size; }
};

// `operation` and `epoch` are for fault records. Any thread.
ANABRANCH_DEVICE Context make_context(const Grid& grid, const TeamView& team, u32 operation, u64 epoch) {
    return Context{team, wait_context(grid, team.control, operation, team.group, team.rank, epoch)};
}

// Where an object of `peer` is mapped here, or null when it is not (no such rank, base 0). For code that moves data with
// the prelude's `remote_` functions. Any thread; orders nothing.
template <class T>
ANABRANCH_DEVICE T* peer_pointer(const Grid& grid, const Context& context, Symmetric<T> object, GroupRank peer) {
    if (peer.value >= context.team.size) return nullptr;
    u64 base = private_load(grid, context.team.peer_bases + peer.value);
    // The offset is not added to a missing base: the sum would look like an address.
    return base == 0 ? nullptr : reinterpret_cast<T*>(base + object.offset);
}

// The object on this rank. Any thread.
template <class T>
ANABRANCH_DEVICE T* own_pointer(const Grid& grid, const Context& context, Symmetric<T> object) {
    return peer_pointer(grid, context, object, context.rank());
}

#if SHMEM_NIC
// RdmaQueue::route of a peer that is reached by NIC.
static constexpr u32 ROUTE_NIC = 3;
#endif

// Whether a peer is reached by NIC. `reach` then returns an address for the NIC, which no load or store may touch. Any lane.
ANABRANCH_DEVICE bool is_by_nic(const Grid& grid, const Context& context, GroupRank peer) {
#if SHMEM_NIC
    u32 each = context.team.nics_per_peer;
    if (each == 0 || peer.value >= context.team.size) return false;
    return private_load(grid, &context.team.nics[static_cast<u64>(peer.value) * each].route) == ROUTE_NIC;
#else
    static_cast<void>(grid);
    static_cast<void>(context);
    static_cast<void>(peer);
    return false;
#endif
}

// As `peer_pointer`, but a peer that cannot be reached is a fault of the world, and one that is reached by NIC has an address for the NIC.
// For the operations of these headers, which distinguish the two.
template <class T>
ANABRANCH_DEVICE T* reach(const Grid& grid, const Context& context, Symmetric<T> object, GroupRank peer) {
    T* pointer = peer_pointer(grid, context, object, peer);
#if SHMEM_NIC
    if (is_by_nic(grid, context, peer)) {
        u64 first = static_cast<u64>(peer.value) * context.team.nics_per_peer;
        return reinterpret_cast<T*>(private_load(grid, &context.team.nics[first].remote_base) + object.offset);
    }
#endif
    if (pointer == nullptr) report_fault(grid, context.wait, PHASE_UNREACHABLE, peer.value, object.offset, 0, 0);
    return pointer;
}

// As `reach`, for one word that is read or written in one access: in debug builds a word off its natural alignment is a
// fault too, of PHASE_MISUSE. Null means that nothing may be touched; operations return UNREACHABLE.
template <class T>
ANABRANCH_DEVICE T* reach_word(const Grid& grid, const Context& context, Symmetric<T> object, GroupRank peer) {
    static_assert(sizeof(T) == 1 || sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8, "words of 1, 2, 4 or 8 bytes");
    if constexpr (SHMEM_DEBUG != 0) {
        if (object.offset % sizeof(T) != 0) {
            report_fault(grid, context.wait, PHASE_MISUSE, peer.value, object.offset, sizeof(T), 0);
            return nullptr;
        }
    }
    return reach(grid, context, object, peer);
}

}  // namespace shmem
