// Bulk copies and single values. Over P2P a put is stores to the peer's mapped memory and a get is loads from it; by copy
// engines (engine.h) both are packets; single values are stores and loads either way. By NIC (nic.h) all are requests, and the local
// side of copies is registered with the NIC: the heap, or memory of `World::register_local`. Else it is a fault, and nothing moves.
//
// For all of them: any number of elements, also zero (nothing moves, OK); any alignment; not one byte outside the two
// ranges is read or written; source and destination do not overlap; the peer may be this rank. The local side is memory
// of this rank, heap or not. The caller orders stores of other lanes of the scope to the source before the call (a barrier
// of the scope). Several copies are not ordered among themselves: see order.h and put_signal.
#pragma once

#include "shmem/engine.h"

namespace shmem {

// `count` units, both sides aligned to the unit. Loads of several units are in flight before the first is stored.
template <class Unit>
ANABRANCH_DEVICE void copy_units(const Grid& grid, u32 lane, u32 lanes, u8* to, const u8* from, u64 count) {
    static constexpr u32 UNROLL = 4;
    Unit* target = reinterpret_cast<Unit*>(to);
    const Unit* source = reinterpret_cast<const Unit*>(from);
    u64 step = lanes;
    u64 at = lane;
    for (; at + (UNROLL - 1) * step < count; at += UNROLL * step) {
        Unit unit[UNROLL];
        ANABRANCH_UNROLL
        for (u32 u = 0; u < UNROLL; ++u) unit[u] = heap_load(grid, source + at + u * step);
        ANABRANCH_UNROLL
        for (u32 u = 0; u < UNROLL; ++u) remote_store(grid, target + at + u * step, unit[u]);
    }
    for (; at < count; at += step) remote_store(grid, target + at, heap_load(grid, source + at));
}

// Bytes up to the first aligned unit, the units, and the bytes after the last one. Both addresses are equal modulo
// the unit, so aligning one aligns the other.
template <class Unit>
ANABRANCH_DEVICE void copy_aligned(const Grid& grid, u32 lane, u32 lanes, u8* to, const u8* from, u64 bytes) {
    u64 head = minimum<u64>(bytes, (0 - reinterpret_cast<u64>(to)) & (sizeof(Unit) - 1));
    u64 units = (bytes - head) / sizeof(Unit);
    u64 tail = head + units * sizeof(Unit);
    for (u64 at = lane; at < head; at += lanes) remote_store(grid, to + at, heap_load(grid, from + at));
    copy_units<Unit>(grid, lane, lanes, to + head, from + head, units);
    for (u64 at = tail + lane; at < bytes; at += lanes) remote_store(grid, to + at, heap_load(grid, from + at));
}

// The share of one lane out of `lanes` of a copy of `bytes`, in the widest unit to which both sides can be aligned.
ANABRANCH_DEVICE void copy_bytes(const Grid& grid, u32 lane, u32 lanes, u8* to, const u8* from, u64 bytes) {
    u64 skew = reinterpret_cast<u64>(to) ^ reinterpret_cast<u64>(from);
    if (skew % 16 == 0) {
        copy_aligned<Vec16>(grid, lane, lanes, to, from, bytes);
    } else if (skew % 8 == 0) {
        copy_aligned<u64>(grid, lane, lanes, to, from, bytes);
    } else if (skew % 4 == 0) {
        copy_aligned<u32>(grid, lane, lanes, to, from, bytes);
    } else if (skew % 2 == 0) {
        copy_aligned<u16>(grid, lane, lanes, to, from, bytes);
    } else {
        copy_units<u8>(grid, lane, lanes, to, from, bytes);
    }
}

template <class Scope>
ANABRANCH_DEVICE Status check_peer(const Grid& grid, const Context& context, u64 offset, GroupRank peer) {
    if (names_one_peer<Scope>(grid, peer)) return Status::OK;
    report_fault(grid, context.wait, PHASE_MISUSE, peer.value, offset, 0, 0);
    return Status::MISUSE;
}

// A copy by the peer's route. False, and nothing is done, if the peer is mapped.
template <class Scope>
ANABRANCH_DEVICE bool copy_by_route(const Grid& grid, const Context& context, GroupRank peer, const void* to,
                                     const void* from, u64 bytes, bool is_get, bool waits, Status& status) {
    RouteKind route = route_kind(grid, context, peer);
    if (route == RouteKind::MAPPING || (route == RouteKind::HOST && bytes == 0)) return false;
#if SHMEM_ENGINES
    if (route == RouteKind::QUEUE) {
        sdma::Operation operation = {reinterpret_cast<u64>(from), reinterpret_cast<u64>(to), bytes,
                                     sdma::Tail::NOTHING,         nullptr,                   0,
                                     false};
        status = by_queue<Scope>(grid, context, peer, operation, waits);
        return true;
    }
#endif
#if SHMEM_NIC
    if (route == RouteKind::NIC) {
        rdma::Request copy = is_get ? nic_copy(rdma::Opcode::READ, to, from, bytes) : nic_copy(rdma::Opcode::WRITE, from, to, bytes);
        status = by_nic<Scope>(grid, context, peer, copy, false, copy, waits);
        return true;
    }
#endif
    static_cast<void>(to);
    static_cast<void>(from);
    static_cast<void>(is_get);
    static_cast<void>(waits);
    status = refuse(grid, context, 0, peer);
    return true;
}

// Copies `count` elements to `peer`. The source may be reused only after quiet<Scope>. A barrier of the scope may be inside.
template <class Scope, class T>
ANABRANCH_DEVICE Status put_nbi(const Grid& grid, const Context& context, Symmetric<T> target, const T* source,
                                u64 count, GroupRank peer, bool waits = false) {
    Status status = check_peer<Scope>(grid, context, target.offset, peer);
    if (status != Status::OK) return status;
    T* to = reach(grid, context, target, peer);
    if (to == nullptr) return Status::UNREACHABLE;
    if (copy_by_route<Scope>(grid, context, peer, to, source, count * sizeof(T), false, waits, status)) return status;
    copy_bytes(grid, Scope::lane(grid), Scope::lanes(grid), reinterpret_cast<u8*>(to),
               reinterpret_cast<const u8*>(source), count * sizeof(T));
    return Status::OK;
}

// Copies `count` elements to `peer`. On return every lane of the scope may reuse the source: each lane's loads have
// returned before its stores are issued, and the barrier waits for all lanes; copies by engine and NIC are complete. The data is visible at
// the peer only after quiet, a team barrier, or a signal after a fence.
template <class Scope, class T>
ANABRANCH_DEVICE Status put(const Grid& grid, const Context& context, Symmetric<T> target, const T* source, u64 count,
                            GroupRank peer) {
    Status status = put_nbi<Scope>(grid, context, target, source, count, peer, true);
    Scope::barrier(grid);
    return status;
}

// Copies `count` elements from `peer`. The destination is valid after quiet<Scope>. A barrier of the scope may be inside.
template <class Scope, class T>
ANABRANCH_DEVICE Status get_nbi(const Grid& grid, const Context& context, T* target, Symmetric<T> source, u64 count,
                                GroupRank peer, bool waits = false) {
    Status status = check_peer<Scope>(grid, context, source.offset, peer);
    if (status != Status::OK) return status;
    const T* from = reach(grid, context, source, peer);
    if (from == nullptr) return Status::UNREACHABLE;
    if (copy_by_route<Scope>(grid, context, peer, target, from, count * sizeof(T), true, waits, status)) return status;
    copy_bytes(grid, Scope::lane(grid), Scope::lanes(grid), reinterpret_cast<u8*>(target),
               reinterpret_cast<const u8*>(from), count * sizeof(T));
    return Status::OK;
}

// Copies `count` elements from `peer`. On return the destination is valid for every lane of the scope. What it holds is
// what the peer made visible before: by a signal that was waited for, or a team barrier.
template <class Scope, class T>
ANABRANCH_DEVICE Status get(const Grid& grid, const Context& context, T* target, Symmetric<T> source, u64 count,
                            GroupRank peer) {
    Status status = get_nbi<Scope>(grid, context, target, source, count, peer, true);
    Scope::barrier(grid);
    return status;
}

// Stores one value of 1, 2, 4 or 8 bytes in one transaction. One thread; the target is aligned to its size. Ordered as a
// put is.
template <class T>
ANABRANCH_DEVICE Status p(const Grid& grid, const Context& context, Symmetric<T> target, T value, GroupRank peer) {
    T* to = reach_word(grid, context, target, peer);
    if (to == nullptr) return Status::UNREACHABLE;
#if SHMEM_NIC
    if (is_by_nic(grid, context, peer)) return put_value_by_nic(grid, context, nic_entry(grid, context, peer), to, value);
#endif
    remote_store(grid, to, value);
    return Status::OK;
}

// Loads one value of 1, 2, 4 or 8 bytes in one transaction. One thread; the source is aligned to its size. From a peer
// that cannot be reached: zero, and a fault is reported.
template <class T>
ANABRANCH_DEVICE T g(const Grid& grid, const Context& context, Symmetric<T> source, GroupRank peer) {
    const T* from = reach_word(grid, context, source, peer);
    if (from == nullptr) return T{};
#if SHMEM_NIC
    if (is_by_nic(grid, context, peer)) return get_value_by_nic(grid, context, peer, from);
#endif
    return remote_load(grid, from);
}

}  // namespace shmem
