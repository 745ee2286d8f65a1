// memory.h for the seeded host machine: the same functions, but every one is a call into the machine, which switches lanes
// there and decides what becomes visible when (docs/memory-model.md).
#pragma once

namespace instrumented {

ANABRANCH_DEVICE const AnabranchHostInstrumentedCalls* calls(const Grid& grid) {
    return reinterpret_cast<const AnabranchHostInstrumentedCalls*>(grid.host->calls);
}

// Pieces of at most 8 bytes, each of which the machine moves on its own: a row may tear between them.
template <class T>
ANABRANCH_DEVICE T load(const Grid& grid, const T* p, unsigned access) {
    static_assert(sizeof(T) == 16 || (sizeof(T) <= 8 && (sizeof(T) & (sizeof(T) - 1)) == 0), "1, 2, 4, 8 or 16 bytes");
    u64 piece[2] = {0, 0};
    u32 bytes = sizeof(T) == 16 ? 8 : static_cast<u32>(sizeof(T));
    piece[0] = calls(grid)->load(grid.host, p, bytes, access);
    if constexpr (sizeof(T) == 16) {
        piece[1] = calls(grid)->load(grid.host, reinterpret_cast<const u8*>(p) + 8, bytes, access);
    }
    T value;
    __builtin_memcpy(&value, piece, sizeof(T));
    return value;
}
template <class T>
ANABRANCH_DEVICE void store(const Grid& grid, T* p, T v, unsigned access) {
    static_assert(sizeof(T) == 16 || (sizeof(T) <= 8 && (sizeof(T) & (sizeof(T) - 1)) == 0), "1, 2, 4, 8 or 16 bytes");
    u64 piece[2] = {0, 0};
    __builtin_memcpy(piece, &v, sizeof(T));
    u32 bytes = sizeof(T) == 16 ? 8 : static_cast<u32>(sizeof(T));
    calls(grid)->store(grid.host, p, piece[0], bytes, access);
    if constexpr (sizeof(T) == 16) calls(grid)->store(grid.host, reinterpret_cast<u8*>(p) + 8, piece[1], bytes, access);
}
template <class T>
ANABRANCH_DEVICE T modify(const Grid& grid, T* p, T operand, T expected, unsigned operation, unsigned scope) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "atomics are 4 or 8 bytes wide");
    return static_cast<T>(calls(grid)->modify(grid.host, p, operand, expected, sizeof(T), operation, scope));
}

}  // namespace instrumented

template <class T>
ANABRANCH_DEVICE T remote_load(const Grid& grid, const T* p) {
    return instrumented::load(grid, p, ANABRANCH_ACCESS_REMOTE);
}
template <class T>
ANABRANCH_DEVICE void remote_store(const Grid& grid, T* p, T v) {
    instrumented::store(grid, p, v, ANABRANCH_ACCESS_REMOTE);
}
template <class T>
ANABRANCH_DEVICE T heap_load(const Grid& grid, const T* p) {
    return remote_load(grid, p);
}
template <class T>
ANABRANCH_DEVICE void heap_store(const Grid& grid, T* p, T v) {
    remote_store(grid, p, v);
}
template <class T>
ANABRANCH_DEVICE T private_load(const Grid& grid, const T* p) {
    return instrumented::load(grid, p, ANABRANCH_ACCESS_PRIVATE);
}
template <class T>
ANABRANCH_DEVICE void private_store(const Grid& grid, T* p, T v) {
    instrumented::store(grid, p, v, ANABRANCH_ACCESS_PRIVATE);
}
ANABRANCH_DEVICE Vec16 stream_load(const Grid& grid, const Vec16* p) {
    return instrumented::load(grid, p, ANABRANCH_ACCESS_PRIVATE);
}
ANABRANCH_DEVICE void stream_store(const Grid& grid, Vec16* p, Vec16 v) {
    instrumented::store(grid, p, v, ANABRANCH_ACCESS_PRIVATE);
}

ANABRANCH_DEVICE u64 flag_load(const Grid& grid, const u64* p) {
    return instrumented::load(grid, p, ANABRANCH_ACCESS_FLAG);
}
ANABRANCH_DEVICE u64 flag_load_for_wait(const Grid& grid, const u64* p) {
    if constexpr (ANABRANCH_POLL_ACQUIRES == 0) return flag_load(grid, p);
    return instrumented::load(grid, p, ANABRANCH_ACCESS_FLAG_ACQUIRE);
}
ANABRANCH_DEVICE void flag_store(const Grid& grid, u64* p, u64 v) {
    instrumented::store(grid, p, v, ANABRANCH_ACCESS_FLAG);
}

// The halves move on their own, in any order.
ANABRANCH_DEVICE Packet packet_load(const Grid& grid, const Packet* p) {
    return Packet{{flag_load(grid, &p->half[0]), flag_load(grid, &p->half[1])}};
}
ANABRANCH_DEVICE void packet_store(const Grid& grid, Packet* p, Packet v) {
    flag_store(grid, &p->half[0], v.half[0]);
    flag_store(grid, &p->half[1], v.half[1]);
}

ANABRANCH_DEVICE void fence_release_system(const Grid& grid) {
    instrumented::calls(grid)->fence(grid.host, ANABRANCH_FENCE_RELEASE, ANABRANCH_SCOPE_SYSTEM);
}
ANABRANCH_DEVICE void fence_acquire_system(const Grid& grid) {
    instrumented::calls(grid)->fence(grid.host, ANABRANCH_FENCE_ACQUIRE, ANABRANCH_SCOPE_SYSTEM);
}
ANABRANCH_DEVICE void fence_release_device(const Grid& grid) {
    instrumented::calls(grid)->fence(grid.host, ANABRANCH_FENCE_RELEASE, ANABRANCH_SCOPE_DEVICE);
}
ANABRANCH_DEVICE void fence_acquire_device(const Grid& grid) {
    instrumented::calls(grid)->fence(grid.host, ANABRANCH_FENCE_ACQUIRE, ANABRANCH_SCOPE_DEVICE);
}
ANABRANCH_DEVICE void name_earlier_work(const Grid& grid) {
    instrumented::calls(grid)->fence(grid.host, ANABRANCH_FENCE_OF_EARLIER, ANABRANCH_SCOPE_SYSTEM);
}

#define ANABRANCH_INSTRUMENTED_ATOMIC(NAME, OPERATION, SCOPE)                                                   \
    template <class T>                                                                                          \
    ANABRANCH_DEVICE T NAME(const Grid& grid, T* p, T v) {                                                      \
        return instrumented::modify(grid, p, v, T(0), ANABRANCH_ATOMIC_##OPERATION, ANABRANCH_SCOPE_##SCOPE);   \
    }
ANABRANCH_INSTRUMENTED_ATOMIC(fetch_add_device, ADD, DEVICE)
ANABRANCH_INSTRUMENTED_ATOMIC(fetch_min_device, MIN, DEVICE)
ANABRANCH_INSTRUMENTED_ATOMIC(fetch_add_system, ADD, SYSTEM)
ANABRANCH_INSTRUMENTED_ATOMIC(fetch_and_system, AND, SYSTEM)
ANABRANCH_INSTRUMENTED_ATOMIC(fetch_or_system, OR, SYSTEM)
ANABRANCH_INSTRUMENTED_ATOMIC(fetch_xor_system, XOR, SYSTEM)
ANABRANCH_INSTRUMENTED_ATOMIC(swap_system, SWAP, SYSTEM)
#undef ANABRANCH_INSTRUMENTED_ATOMIC
template <class T>
ANABRANCH_DEVICE T compare_swap_system(const Grid& grid, T* p, T expected, T desired) {
    return instrumented::modify(grid, p, desired, expected, ANABRANCH_ATOMIC_COMPARE_SWAP, ANABRANCH_SCOPE_SYSTEM);
}
