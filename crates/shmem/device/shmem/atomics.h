// Atomic operations on words of a peer: u32, u64, i32 and i64, naturally aligned, each by one thread. They are atomic with respect to each
// other and, for 64-bit words, to signals; not to puts and plain values over the same word. A 32-bit operation touches its 4 bytes only. By
// NIC they are atomic among those of NICs: a word is changed either by NICs or by mapped members. They are relaxed: fence or quiet orders
// them.
//
// Those that fetch return the old value; from a peer that cannot be reached they return zero and report a fault. The
// others return a status.
#pragma once

#include "shmem/nic_atomics.h"

namespace shmem {

template <u32 BYTES>
struct AtomicWord;
template <>
struct AtomicWord<4> {
    typedef u32 Raw;
    static ANABRANCH_DEVICE u32 load(const Grid& grid, u32* p) { return fetch_or_system(grid, p, 0u); }
};
template <>
struct AtomicWord<8> {
    typedef u64 Raw;
    static ANABRANCH_DEVICE u64 load(const Grid& grid, u64* p) { return flag_load(grid, p); }
};

template <class T>
struct IsAtomic {
    static constexpr bool VALUE = false;
};
template <>
struct IsAtomic<u32> {
    static constexpr bool VALUE = true;
};
template <>
struct IsAtomic<u64> {
    static constexpr bool VALUE = true;
};
template <>
struct IsAtomic<i32> {
    static constexpr bool VALUE = true;
};
template <>
struct IsAtomic<i64> {
    static constexpr bool VALUE = true;
};

// The mapped word as its unsigned type, or null.
template <class T>
ANABRANCH_DEVICE typename AtomicWord<sizeof(T)>::Raw* reach_atomic(const Grid& grid, const Context& context,
                                                                   Symmetric<T> word, GroupRank peer) {
    static_assert(IsAtomic<T>::VALUE, "atomics are on u32, u64, i32 and i64");
    return reinterpret_cast<typename AtomicWord<sizeof(T)>::Raw*>(reach_word(grid, context, word, peer));
}

template <class Raw>
ANABRANCH_DEVICE Raw add_word(const Grid& grid, Raw* word, Raw value) {
    return fetch_add_system(grid, word, value);
}

// atomic_fetch_add, atomic_fetch_and, ...: the old value. atomic_add, ...: without it.
// `Raw` is unsigned also for signed types. The lint `unscoped-atomic` of `dev/testkit` does not apply to these names: the primitives that they call have their scope in the name.
#define SHMEM_ATOMIC(FETCH_NAME, NAME, PRIMITIVE, OP)                                                              \
    template <class T>                                                                                             \
    ANABRANCH_DEVICE T FETCH_NAME(const Grid& grid, const Context& context, Symmetric<T> word, T value,            \
                                  GroupRank peer) {                                                                \
        typedef typename AtomicWord<sizeof(T)>::Raw Raw;                                                           \
        Raw* at = reach_atomic(grid, context, word, peer);                                                         \
        if (at != nullptr && is_by_nic(grid, context, peer)) {                                                     \
            Raw old = 0;                                                                                           \
            fetch_by_nic<AtomicOp::OP>(grid, context, peer, at, bit_cast<Raw>(value), Raw(0), old);                \
            return bit_cast<T>(old);                                                                               \
        }                                                                                                          \
        return at == nullptr ? T(0) : bit_cast<T>(PRIMITIVE(grid, at, bit_cast<Raw>(value)));                      \
    }                                                                                                              \
    template <class T>                                                                                             \
    ANABRANCH_DEVICE Status NAME(const Grid& grid, const Context& context, Symmetric<T> word, T value,             \
                                 GroupRank peer) {                                                                 \
        typedef typename AtomicWord<sizeof(T)>::Raw Raw;                                                           \
        Raw* at = reach_atomic(grid, context, word, peer);                                                         \
        if (at == nullptr) return Status::UNREACHABLE;                                                             \
        if (is_by_nic(grid, context, peer)) {                                                                      \
            return change_by_nic<AtomicOp::OP>(grid, context, peer, at, bit_cast<Raw>(value));                     \
        }                                                                                                          \
        PRIMITIVE(grid, at, bit_cast<Raw>(value));                                                                 \
        return Status::OK;                                                                                         \
    }
SHMEM_ATOMIC(atomic_fetch_add, atomic_add, add_word, ADD)
SHMEM_ATOMIC(atomic_fetch_and, atomic_and, fetch_and_system, AND)
SHMEM_ATOMIC(atomic_fetch_or, atomic_or, fetch_or_system, OR)
SHMEM_ATOMIC(atomic_fetch_xor, atomic_xor, fetch_xor_system, XOR)
// Swap gives the old value; set does not.
SHMEM_ATOMIC(atomic_swap, atomic_set, swap_system, SWAP)
#undef SHMEM_ATOMIC

// Stores `desired` if the word is `expected`; the old value in any case, so it was stored if that equals `expected`.
template <class T>
ANABRANCH_DEVICE T atomic_compare_swap(const Grid& grid, const Context& context, Symmetric<T> word, T expected,
                                       T desired, GroupRank peer) {
    typedef typename AtomicWord<sizeof(T)>::Raw Raw;
    Raw* at = reach_atomic(grid, context, word, peer);
    if (at == nullptr) return T(0);
    if (is_by_nic(grid, context, peer)) {
        Raw old = 0;
        fetch_by_nic<AtomicOp::COMPARE_SWAP>(grid, context, peer, at, bit_cast<Raw>(desired), bit_cast<Raw>(expected), old);
        return bit_cast<T>(old);
    }
    return bit_cast<T>(compare_swap_system(grid, at, bit_cast<Raw>(expected), bit_cast<Raw>(desired)));
}

// The value now. Use signal_wait to wait for one.
template <class T>
ANABRANCH_DEVICE T atomic_fetch(const Grid& grid, const Context& context, Symmetric<T> word, GroupRank peer) {
    typedef typename AtomicWord<sizeof(T)>::Raw Raw;
    Raw* at = reach_atomic(grid, context, word, peer);
    if (at != nullptr && is_by_nic(grid, context, peer)) return bit_cast<T>(word_by_nic(grid, context, peer, at));
    return at == nullptr ? T(0) : bit_cast<T>(AtomicWord<sizeof(T)>::load(grid, at));
}

}  // namespace shmem
