// Signals: 64-bit words in flag memory, 8-byte aligned, that one side sets or adds to and the other waits for. Over one
// word either SET or ADD is in flight, never both; a word is written through signals (or 64-bit atomics) only.
//
// By copy engines a SET is two stores of 32 bits, the low half first: values that only grow, with waits by GE or GT, are correct; other
// waits may see a value that was never set. Signals are ordered within a queue only, and a wave uses one queue to a peer: a word that
// several waves, or a kernel and the host, SET one after the other needs a quiet between.
//
// By NIC a signal is a request after those of its copy. A word is added to either by NICs or by mapped members: NICs' atomic operations are
// atomic among themselves, and not all are so with respect to a GPU's.
//
// Orders are compared by the signed difference, as epochs are, so that they survive a wrap: `GE` holds when the word is
// less than 2^63 ahead of the value. GE is the form to use; EQ misses an overrun, NE passes on garbage.
#pragma once

#include "shmem/put_get.h"

namespace shmem {

enum class SignalOp : u32 {
    SET = 0,
    ADD = 1,
};

enum class Compare : u32 {
    EQ = 0,
    NE = 1,
    GT = 2,
    GE = 3,
    LT = 4,
    LE = 5,
};

// Whether `word` compares so with `value`.
ANABRANCH_DEVICE bool holds(Compare compare, u64 word, u64 value) {
    i64 ahead = static_cast<i64>(word - value);
    switch (compare) {
        case Compare::EQ: return ahead == 0;
        case Compare::NE: return ahead != 0;
        case Compare::GT: return ahead > 0;
        case Compare::GE: return ahead >= 0;
        case Compare::LT: return ahead < 0;
        case Compare::LE: return ahead <= 0;
    }
    return false;
}

// The leader's part of a signal; `word` is mapped.
template <class Scope>
ANABRANCH_DEVICE void signal_word(const Grid& grid, u64* word, u64 value, SignalOp op) {
    if (Scope::lane(grid) != 0) return;
    if (op == SignalOp::SET) {
        flag_store(grid, word, value);
    } else {
        fetch_add_system(grid, word, value);
    }
}

#if SHMEM_ENGINES
// A signal after copies, as packets of the peer's queue. The word at the peer is mapped.
template <class Scope>
ANABRANCH_DEVICE Status signal_by_queue(const Grid& grid, const Context& context, GroupRank peer, const void* to,
                                        const void* from, u64 bytes, u64* word, u64 value, SignalOp op, bool waits) {
    sdma::Tail tail = op == SignalOp::SET ? sdma::Tail::SET : sdma::Tail::ADD;
    sdma::Operation operation = {
        reinterpret_cast<u64>(from), reinterpret_cast<u64>(to), bytes, tail, word, value, false};
    return by_queue<Scope>(grid, context, peer, operation, waits);
}
#endif

#if SHMEM_NIC
// A signal after a copy, as requests of the peer's queue pair. `to` and `word` are addresses for the NIC.
template <class Scope>
ANABRANCH_DEVICE Status signal_by_nic(const Grid& grid, const Context& context, GroupRank peer, const void* to, const void* from,
                                      u64 bytes, u64* word, u64 value, SignalOp op, bool waits) {
    rdma::Request signal =
        op == SignalOp::SET ? nic_value(word, value, 8) : nic_operation(rdma::Opcode::FETCH_ADD, word, value, 0, 8);
    return by_nic<Scope>(grid, context, peer, nic_copy(rdma::Opcode::WRITE, from, to, bytes), true, signal, waits);
}
#endif

// Sets the word at `peer` to `value`, or adds it: exactly one signal a call. Not ordered after earlier puts: fence or
// quiet comes between. All lanes of the scope call; a barrier of the scope may be inside.
template <class Scope>
ANABRANCH_DEVICE Status signal(const Grid& grid, const Context& context, Symmetric<u64> word, u64 value, SignalOp op,
                               GroupRank peer) {
    u64* at = reach_word(grid, context, word, peer);
    if (at == nullptr) return Status::UNREACHABLE;
    RouteKind route = route_kind(grid, context, peer);
    if (route == RouteKind::HOST) return refuse(grid, context, word.offset, peer);
#if SHMEM_ENGINES
    if (route == RouteKind::QUEUE) {
        return signal_by_queue<Scope>(grid, context, peer, nullptr, nullptr, 0, at, value, op, false);
    }
#endif
#if SHMEM_NIC
    // The copy of no bytes is to the word itself: nothing moves there.
    if (route == RouteKind::NIC) return signal_by_nic<Scope>(grid, context, peer, at, nullptr, 0, at, value, op, false);
#endif
    signal_word<Scope>(grid, at, value, op);
    return Status::OK;
}

// Copies `count` elements to `peer` and then signals there: a reader that sees the signal sees all of *this* put's data (not
// that of earlier puts). Zero elements still signal. The source may be reused after quiet<Scope>. All lanes of the scope
// call.
//
// Order: every lane that copied releases (scope.h), a barrier of the scope, the leader stores the word.
template <class Scope, class T>
ANABRANCH_DEVICE Status put_signal_nbi(const Grid& grid, const Context& context, Symmetric<T> target, const T* source,
                                       u64 count, Symmetric<u64> word, u64 value, SignalOp op, GroupRank peer,
                                       bool waits = false) {
    u64* at = reach_word(grid, context, word, peer);
    if (at == nullptr) return Status::UNREACHABLE;
    RouteKind route = route_kind(grid, context, peer);
    if (route == RouteKind::HOST) return refuse(grid, context, target.offset, peer);
#if SHMEM_ENGINES || SHMEM_NIC
    if (route != RouteKind::MAPPING) {
        Status named = check_peer<Scope>(grid, context, target.offset, peer);
        if (named != Status::OK) return named;
        T* to = reach(grid, context, target, peer);
        if (to == nullptr) return Status::UNREACHABLE;
        u64 bytes = count * sizeof(T);
#if SHMEM_NIC
        if (route == RouteKind::NIC) return signal_by_nic<Scope>(grid, context, peer, to, source, bytes, at, value, op, waits);
#endif
#if SHMEM_ENGINES
        return signal_by_queue<Scope>(grid, context, peer, to, source, bytes, at, value, op, waits);
#endif
    }
#else
    static_cast<void>(waits);
#endif
    Status status = put_nbi<Scope>(grid, context, target, source, count, peer);
    if (status != Status::OK) return status;
    Scope::release_for_leader(grid);
    signal_word<Scope>(grid, at, value, op);
    return Status::OK;
}

// As put_signal_nbi; the source may be reused on return, because a barrier of the scope comes after the last load, or the engine is done.
template <class Scope, class T>
ANABRANCH_DEVICE Status put_signal(const Grid& grid, const Context& context, Symmetric<T> target, const T* source,
                                   u64 count, Symmetric<u64> word, u64 value, SignalOp op, GroupRank peer) {
    return put_signal_nbi<Scope>(grid, context, target, source, count, word, value, op, peer, true);
}

// One look at an own word, with acquire: when it holds, what was put before the signal may be read. One thread.
ANABRANCH_DEVICE bool signal_test(const Grid& grid, const Context& context, Symmetric<u64> word, Compare compare,
                                  u64 value) {
    const u64* at = reach_word(grid, context, word, context.rank());
    if (at == nullptr || !holds(compare, flag_load(grid, at), value)) return false;
    fence_acquire_system(grid);
    return true;
}

}  // namespace shmem
